"""The multi-head attention that jax ships as a Pallas kernel for GPUs, in interpret mode.

Observed with jax 0.10.2 on a CPU (jax.experimental.pallas.ops.gpu.attention.mha).

Layout
    q, k, v and the output are (b, t, h, d); the lse is (b, h, tq) float32, in base 2. One d for all.
Blocks
    128 queries by 128 keys; shorter sequences are one block. Longer ones must be multiples of 128, all others
    are refused: sizes that its users pad to. Interpreting keeps the kernel's own steps (a running maximum, l
    and o in float32, P rounded to the dtype of v), and XLA compiles them anew for each shape, about a second:
    so float16 is left out, where nothing differs but the rounding of P.
Options
    causal, aligned top-left, and the scale, whose default is 1 and not 1/√d: here it is always given. There
    are segments, but no masks.
Empty rows
    None can be asked for but by tk = 0. Rows past the last key (causal, tq > tk) are no such rows, but NaN
    where they lie in another block: the loop over keys goes past the end of k.
"""

import math

from softcarry.auditing.subject import Subject
from softcarry.auditing.subjects import KNOWN


def multi_head() -> Subject:
    """Return ``mha`` with ``interpret=True`` and its residual.

    Returns
    -------
    Subject
        Takes causal and scale.
    """
    name = "pallas-mha"
    return Subject(
        multi_head_kernel,
        name=name,
        arrays="jax",
        layout="bthd",
        dtypes=KNOWN[name].dtypes,
        lse="2",
        causal="top-left",
    )


def multi_head_kernel(q, k, v, *, causal=False, scale=None):
    """Call ``mha``, interpreted.

    Parameters
    ----------
    q, k, v : jax.Array
        (b, tq, h, d), (b, tk, h, d), (b, tk, h, d).
    causal : bool
        Top-left.
    scale : float, optional
        Default 1/√d.

    Returns
    -------
    output, lse : jax.Array
        (b, tq, h, d) in the dtype of q; (b, h, tq) float32, in base 2.
    """
    from jax.experimental.pallas.ops.gpu.attention import mha

    scale = 1.0 / math.sqrt(q.shape[-1]) if scale is None else scale
    return mha(q, k, v, None, sm_scale=scale, causal=causal, interpret=True, return_residuals=True)
