"""check: what is right and wrong about one building block, with the smallest input that shows it."""

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from softcarry.auditing._locate import find_function
from softcarry.auditing.blocks._asking import ask
from softcarry.auditing.contract import Contract
from softcarry.auditing.environment import describe_environment
from softcarry.errors import OptionError
from softcarry.report.model import Fact, Report

KINDS = ("normalizer", "merge", "topk", "softmax", "attention")
FORMS = ("carry", "lse")
EMPTY_ROWS = ("any", "zero")


def check(
    function: Callable[..., Any] | str,
    kind: str,
    *,
    form: str | None = None,
    empty: str = "any",
) -> Report:
    """Say what is right and wrong about a building block of attention, each fault by its name.

    Parameters
    ----------
    function : callable or str
        The function, or "module:function".
    kind : {"normalizer", "merge", "topk", "softmax", "attention"}
        What it is meant to be:

        - normalizer: ``f(iterable of floats) -> (m, l)``, read once; m the maximum, l = Σ e^(s − m).
        - merge: ``f((m1, l1, o1), (m2, l2, o2)) -> (m, l, o)`` of two carries, or
          ``f(output1, lse1, output2, lse2) -> (output, lse)``.
        - topk: ``f(x, k) -> (probabilities, indices)`` of the k largest, of the softmax of all of x.
        - softmax: ``f(x) -> p`` over the last axis.
        - attention: ``f(q, k, v[, mask])`` on (t, d) or (b, h, t, d), scale 1/√d, mask True = attend.

        Results may be lists, tuples, NumPy, torch or JAX arrays. Inputs are handed over as NumPy arrays,
        lists, torch tensors or floats: the first that a plain call takes.
    form : {"carry", "lse"}, optional
        Which of the two merges it is. By default the signature tells: two parameters or four.
    empty : {"any", "zero"}
        What a softmax, a top-k or an attention may give for a row of −inf alone: anything, or only 0.

    Returns
    -------
    Report
        Each finding has the name of the fault in ``check``, and in ``evidence`` the smallest failing
        "input", what "came", the "right" value and the "source" of the fault. Rows of −inf, +inf and NaN,
        and empty ones, are legal inputs: raising on them is a finding.

    Raises
    ------
    SubjectError
        If the function can't be found, or no plain call of it gives a result of the right form.
    OptionError
        If another argument is none of the above.

    References
    ----------
    Milakov and Gimelshein, Online normalizer calculation for softmax, arXiv:1805.02867, 2018. Every finding
    names the public fault that it is of the kind of.

    Examples
    --------
    >>> def two_passes(scores):
    ...     import math
    ...     scores = list(scores)
    ...     m = max(scores, default=-math.inf)
    ...     return m, sum(math.exp(s - m) for s in scores if s > -math.inf)
    >>> report = check(two_passes, kind="normalizer")
    >>> report.findings[0].check, report.findings[0].evidence["input"]
    ('PASSES', '16 scores')
    """
    _one_of("kind", kind, KINDS)
    _one_of("empty", empty, EMPTY_ROWS)
    if form is not None:
        _one_of("form", form, FORMS)
        if kind != "merge":
            msg = f"form is for kind 'merge'; got form {form!r} with kind {kind!r}"
            raise OptionError(msg)
    if isinstance(function, str):
        function = find_function(function, f"a function to check as {kind}")
    block = _block(function, kind, form, empty)
    answers = ask(block.questions(), block.dtype)
    more = getattr(block, "audit", None)
    if more is not None:
        answers = more(answers)
    facts = {"building block": Fact(kind, 1.0, "as asked"), **getattr(block, "facts", {})}
    facts["called with"] = Fact(block.library, 1.0, "the first that a plain call takes")
    return Report(
        subject={
            "name": _name_of(function),
            "arrays": block.library if block.library in ("torch", "numpy", "jax") else None,
            "layout": "bhtd",  # the schema asks for one; only an attention has it
            "dtypes": [block.dtype],
            "output_dtypes": {},
            "options": {},
            "returns_lse": False,
            "lse_unit": None,
            "causal": None,
            "control": False,
        },
        findings=answers.findings,
        verdicts=answers.verdicts,
        profile={block.dtype: facts},
        skipped=answers.skipped,
        environment=describe_environment() | {"seed": 0, "contract": asdict(Contract(empty_rows=empty))},
    )


def _block(function, kind, form, empty) -> Any:
    if kind == "normalizer":
        from softcarry.auditing.blocks.normalizer import Normalizer

        return Normalizer(function)
    if kind == "merge":
        from softcarry.auditing.blocks.merge import merge_block

        return merge_block(function, form)
    if kind == "topk":
        from softcarry.auditing.blocks.topk import TopK

        return TopK(function, empty=empty)
    if kind == "softmax":
        from softcarry.auditing.blocks.softmax import Softmax

        return Softmax(function, empty=empty)
    from softcarry.auditing.blocks.attention import Attention

    return Attention(function, empty=empty)


def _one_of(what, value, choices):
    if value not in choices:
        msg = f"{what} is one of {', '.join(map(repr, choices))}; got {value!r}"
        raise OptionError(msg)


def _name_of(function):
    name = getattr(function, "__name__", None)
    return name if isinstance(name, str) and name else type(function).__name__
