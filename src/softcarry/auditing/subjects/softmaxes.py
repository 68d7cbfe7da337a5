"""Softmaxes alone as subjects: torch's, JAX's, SciPy's and softcarry's, and NumPy's formula as a control.

Observed with torch 2.13, JAX 0.10, SciPy 1.17: a row whose scores are all −inf becomes NaN in all three, and
0 in softcarry. torch computes 16-bit rows in float32. JAX and SciPy compute in the dtype of the scores.
"""

from functools import partial

import numpy as np

from softcarry.auditing.softmax_subject import softmax_subject
from softcarry.auditing.subject import Subject
from softcarry.auditing.subjects import KNOWN


def torch_softmax() -> Subject:
    """Return torch.softmax on the CPU.

    Returns
    -------
    Subject
    """
    import torch

    return _subject("torch-softmax", partial(torch.softmax, dim=-1), "torch")


def jax_softmax() -> Subject:
    """Return jax.nn.softmax.

    Returns
    -------
    Subject
    """
    import jax

    return _subject("jax-softmax", jax.nn.softmax, "jax")


def scipy_softmax() -> Subject:
    """Return scipy.special.softmax.

    Returns
    -------
    Subject
    """
    from scipy.special import softmax

    return _subject("scipy-softmax", partial(softmax, axis=-1), "numpy")


def softcarry_softmax() -> Subject:
    """Return softcarry.softmax.

    Returns
    -------
    Subject
    """
    from softcarry.rows import softmax

    return _subject("softcarry-softmax", softmax, "numpy")


def numpy_softmax() -> Subject:
    """Return the formula in NumPy, on the bfloat16 of ml_dtypes, whose sums are kept in bfloat16.

    Returns
    -------
    Subject
        A control: a sum of equal terms stops at 2^(t+1) = 256 (ml_dtypes#63).

    Examples
    --------
    >>> numpy_softmax().control
    True
    """
    return _subject("control-numpy-softmax", plain_softmax, "numpy")


def plain_softmax(x):
    """Return e^(x − m) / l of the last axis, every step in the dtype of x.

    Examples
    --------
    >>> plain_softmax(np.zeros(4)).tolist()
    [0.25, 0.25, 0.25, 0.25]
    """
    terms = np.exp(x - x.max(axis=-1, keepdims=True))
    return terms / terms.sum(axis=-1, keepdims=True)


def _subject(name, function, arrays):
    entry = KNOWN[name]
    return softmax_subject(function, name=name, arrays=arrays, dtypes=entry.dtypes, control=entry.control)
