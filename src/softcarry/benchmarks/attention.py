"""Attention forward beside torch's, on as many queries as keys: long prompts, short ones, many small ones.

Both compute from the same bytes with the same number of threads. The share is of the FMA limit: the
operations of the two products over the live pairs of queries and keys, against multiply-adds that stay in
registers. What the exponentials take is not among them.
"""

from functools import partial

import softcarry as sc
from softcarry.benchmarks._attention_inputs import Shape, inputs, truth
from softcarry.benchmarks._cases import Calls, Case
from softcarry.benchmarks._row_truth import disagreement
from softcarry.benchmarks.rows import as_torch

LONG = Shape.square(1, 8, 2048, 64)
WIDE = Shape.square(1, 8, 2048, 128)
SHORT = Shape.square(1, 32, 128, 128)
SMALL = Shape.square(64, 8, 64, 64)


def attention_cases(*, quick: bool = False) -> list[Case]:
    """List every case; with ``quick`` the long prompts are a quarter as long.

    Examples
    --------
    >>> [case.name for case in attention_cases()]
    ['float32', 'causal', 'bfloat16', 'float16', 'float64', 'wide', 'short', 'small']
    """
    long, wide = (
        Shape.square(shape.batch, shape.heads, shape.tk // 4 if quick else shape.tk, shape.d)
        for shape in (LONG, WIDE)
    )
    return [
        _case("float32", long, "float32", target=1.2, share_target=0.88),
        _case("causal", long, "float32", causal=True, target=1.35),
        _case("bfloat16", long, "bfloat16", target=1.15),
        _case("float16", long, "float16", target=2.2),
        _case("float64", long, "float64"),
        _case("wide", wide, "float32", target=1.2, share_target=0.88),
        _case("short", SHORT, "float32", target=1.0),
        _case("small", SMALL, "float32", target=1.0),
    ]


def _case(
    name: str,
    shape: Shape,
    dtype: str,
    *,
    causal: bool = False,
    target: float | None = None,
    share_target: float | None = None,
) -> Case:
    build = partial(_calls, shape, dtype, causal=causal)
    sizes = (shape.batch, shape.heads, shape.tk, shape.d)
    return Case("forward", name, sizes, dtype, "torch SDPA", "torch", build, target, share_target)


def _calls(shape: Shape, dtype: str, *, causal: bool) -> Calls:
    from torch.nn.functional import scaled_dot_product_attention

    q, kv = inputs(shape, dtype)
    ours = partial(sc.attention, q, *kv, causal=causal)
    return Calls(
        ours,
        partial(scaled_dot_product_attention, as_torch(q), *as_torch(kv), is_causal=causal),
        lambda: disagreement("output", ours(), truth(shape, dtype, causal=causal)),
        buffer=kv,
        traffic=2 * q.nbytes + kv.nbytes,
        operations=shape.operations(causal=causal),
    )
