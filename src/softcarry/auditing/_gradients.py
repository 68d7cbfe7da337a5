"""Gradients through a subject's own kernel, on float64 NumPy arrays on both sides."""

import warnings
from math import log
from typing import NamedTuple

import numpy as np

from softcarry.auditing._calling import Calling, KernelRaisedError, _pair, one_line
from softcarry.auditing._libraries import library_of, to_float64, to_library
from softcarry.errors import SoftcarryError


class NoGradientError(SoftcarryError):
    """What the kernel returns does not depend on its inputs, as far as its library knows."""


class Gradients(NamedTuple):
    """Gradients of one number with respect to q, k and v.

    Attributes
    ----------
    q, k, v : ndarray
        float64, of the shapes of q, k and v.
    """

    q: np.ndarray
    k: np.ndarray
    v: np.ndarray


def pull_back(calling: Calling, q, k, v, *, cotangent, of="output", second=False, **options) -> Gradients:
    """Differentiate Σ cotangent · output, or Σ cotangent · lse, through the kernel.

    torch differentiates by autograd, JAX by ``jax.vjp``.

    Parameters
    ----------
    calling : Calling
    q, k, v : ndarray
        As for a call.
    cotangent : ndarray
        (b, h, tq, dv) for the output, (b, h, tq) for the lse; exact in the dtype of what it belongs to.
    of : {"output", "lse"}
        The lse counts in natural units.
    second : bool
        Differentiate once more: the gradients of the sum of all elements of the three gradients.
    **options
        As for a call.

    Returns
    -------
    Gradients
        0 for an input on which the result does not depend.

    Raises
    ------
    NoGradientError
        If the result carries no gradient.
    KernelRaisedError
        If the kernel raises, forwards or backwards.
    """
    if calling.library == "numpy":
        msg = "the kernel returns arrays without gradients: those of NumPy have none"
        raise NoGradientError(msg)
    if of == "lse":
        seed = np.swapaxes(cotangent, 1, 2) if calling.lse_tokens_first else cotangent
    else:
        seed = calling._swap(cotangent)
    dtype = calling.lse_dtype if of == "lse" else calling.output_dtype
    seed = to_library(seed, calling.library, dtype, calling.subject.device)
    arrays = calling._hand_over(q, k, v)
    shape = (*q.shape[:3], k.shape[2])
    given = calling._options(options, shape)
    by_library = _by_torch if calling.library == "torch" else _by_jax

    def result(*arrays):
        return _pair(calling._raw(arrays, given))[1 if of == "lse" else 0]

    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            found = by_library(result, arrays, seed, second)
    except (NoGradientError, KernelRaisedError):
        raise
    except Exception as error:
        raise KernelRaisedError(f"{one_line(error)} (in its backward)") from error
    unit = log(2.0) if of == "lse" and calling.subject.lse == "2" else 1.0
    return Gradients(*(calling._swap(to_float64(x)) * unit for x in found))


def _by_torch(result, arrays, seed, second):
    import torch

    with torch.enable_grad():
        arrays = [x.requires_grad_() for x in arrays]
        try:
            out = result(*arrays)
        except KernelRaisedError as error:
            # Kernels that leave torch say so in this way before they compute anything.
            if "grad" in str(error).lower():
                msg = f"the kernel takes no arrays that require gradients: {error}"
                raise NoGradientError(msg) from None
            raise
        if library_of(out) != "torch" or not out.requires_grad:
            msg = "the kernel returns arrays without gradients"
            raise NoGradientError(msg)
        first = torch.autograd.grad(out, arrays, seed, create_graph=second, allow_unused=True)
        if not second:
            return _filled(first, arrays)
        total = sum(x.sum() for x in first if x is not None and x.requires_grad)
        if not isinstance(total, torch.Tensor):
            msg = "the kernel's gradients are arrays without gradients"
            raise NoGradientError(msg)
        return _filled(torch.autograd.grad(total, arrays, allow_unused=True), arrays)


def _filled(gradients, arrays):
    import torch

    return [
        torch.zeros_like(x) if found is None else found for found, x in zip(gradients, arrays, strict=True)
    ]


def _by_jax(result, arrays, seed, second):
    import jax

    def first(*arrays):
        return jax.vjp(result, *arrays)[1](seed)

    def both(*arrays):
        return jax.grad(lambda *arrays: sum(x.sum() for x in first(*arrays)), argnums=(0, 1, 2))(*arrays)

    # Dispatched one by one, the operations of every new shape are compiled one by one, which takes seconds.
    return jax.jit(both if second else first)(*arrays)
