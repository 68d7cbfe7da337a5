"""An attention function of a learner as the kernel of a subject, whole or one head at a time."""

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np

from softcarry.auditing._calling import Calling, prepare
from softcarry.auditing._libraries import dtype_name, to_library
from softcarry.auditing.blocks._values import LISTS, libraries, numbers
from softcarry.auditing.subject import ALIASES, Subject
from softcarry.errors import SubjectError

DTYPE = "float32"


def prepare_kernel(function: Callable[..., Any]) -> tuple[Calling, str, str]:
    """Find out how an attention function is called.

    Parameters
    ----------
    function : callable
        ``f(q, k, v[, mask])``; the mask is called ``mask`` or ``attn_mask``, or is the fourth parameter.

    Returns
    -------
    calling : Calling
        Takes (b, h, t, d) whatever the function takes.
    library, axes : str
        What it takes: "(b, h, t, d)" or "(t, d)".

    Raises
    ------
    SubjectError
        If no plain call gives an output.
    """
    options = _options(function)
    reasons: dict[str, list[str]] = {}
    for library, axes, subject in _ways(function, options):
        try:
            return prepare(subject, DTYPE), library, axes
        except SubjectError as error:
            reasons.setdefault(str(error.__cause__), []).append(f"{library} {axes}")
    tried = "; ".join(f"{', '.join(names)}: {reason}" for reason, names in reasons.items())
    msg = f"the attention could not be called ({tried}); expected f(q, k, v[, mask]) -> output"
    raise SubjectError(msg)


def _ways(function, options):
    """List the arrays and axes to try, each with the subject that takes them."""
    name = Subject(function).name
    mask = options.get("mask")
    whole = _boolean_masks_only(function, mask)
    for library in [*libraries(), "jax"]:
        if library != LISTS:
            yield library, "(b, h, t, d)", Subject(whole, name=name, arrays=library, options=options)
        if library != "jax":
            by_head = _boolean_masks_only(_by_head(function, library, mask), "mask")
            known = {"mask": "mask"} if mask else {}
            yield library, "(t, d)", Subject(by_head, name=name, arrays="numpy", options=known)


def _options(function):
    """Read the options that the audit knows off the signature; another fourth parameter is the mask."""
    options = Subject(function).keywords
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return options
    named = {keyword for keywords in ALIASES.values() for keyword in keywords}
    fourth = parameters[3:4]
    if "mask" not in options and fourth and fourth[0].kind is inspect.Parameter.POSITIONAL_OR_KEYWORD:
        name = fourth[0].name
        if name not in named:
            options["mask"] = name
    return options


def _boolean_masks_only(function, keyword):
    """Refuse masks that are to be added to the scores, which the contract of this check does not know."""

    def kernel(q, k, v, **options):
        mask = options.get(keyword)
        if mask is not None and dtype_name(mask) != "bool":
            msg = "masks are boolean here"
            raise TypeError(msg)
        return function(q, k, v, **options)

    return kernel


def _by_head(function, library, mask_keyword):
    """Wrap a function of (t, d) so that it is called head by head."""

    def handed(x):
        return x.tolist() if library == LISTS else to_library(x, library, DTYPE)

    def kernel(q, k, v, *, mask=None):
        output = np.empty((*q.shape[:3], v.shape[-1]), q.dtype)
        for at in np.ndindex(q.shape[:2]):
            given = {}
            if mask is not None:
                given[mask_keyword] = handed(mask[at])
            result = function(handed(q[at]), handed(k[at]), handed(v[at]), **given)
            if isinstance(result, tuple) and len(result) == 2:
                result = result[0]
            output[at] = numbers(result, "the output").reshape(output[at].shape)
        return output

    return kernel
