"""Attention of one query on many keys, as a model that writes a text needs it token by token, beside torch's.

Every key and value must be read once, whatever is done with it: the share is of the one-pass read bandwidth.
Two more ways to hold the same cache are put beside the first, (b, h, t, d): tokens before heads, and pages.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

import softcarry as sc
from softcarry.benchmarks._attention_inputs import Shape, inputs, truth
from softcarry.benchmarks._cases import Calls, Case
from softcarry.benchmarks._row_truth import disagreement
from softcarry.benchmarks.rows import as_torch

GROUPED = Shape(1, 32, 8, 1, 32768, 128)
ONE_HEAD = Shape(1, 1, 1, 1, 131072, 128)
PAGE = 16
"""Keys of a page."""


def decode_cases(*, quick: bool = False) -> list[Case]:
    """List every case; with ``quick`` there are an eighth of the keys.

    Examples
    --------
    >>> [case.name for case in decode_cases()]
    ['float32', 'bthd', 'paged', 'bfloat16', 'one-head']
    """
    part = 8 if quick else 1
    grouped, one_head = (shape._replace(tk=shape.tk // part) for shape in (GROUPED, ONE_HEAD))
    ours = partial(_case, shape=grouped, dtype="float32", peer="ours (b, h, t, d)", library="numpy")
    return [
        _case("float32", grouped, "float32", _beside_torch, target=5.0, share_target=0.75),
        ours("bthd", build=partial(_beside_ours, _bthd)),
        ours("paged", build=partial(_beside_ours, _paged)),
        _case("bfloat16", grouped, "bfloat16", _beside_torch, target=18.0, share_target=0.75),
        _case("one-head", one_head, "float32", _beside_torch, target=3.0),
    ]


def _case(
    name: str,
    shape: Shape,
    dtype: str,
    build: Callable[[Shape, str], Calls],
    *,
    peer: str = "torch SDPA",
    library: str = "torch",
    target: float | None = None,
    share_target: float | None = None,
) -> Case:
    sizes = (shape.heads, shape.kv_heads, shape.tk, shape.d)
    built = partial(build, shape, dtype)
    return Case("decode", name, sizes, dtype, peer, library, built, target, share_target)


def _beside_torch(shape: Shape, dtype: str) -> Calls:
    from torch.nn.functional import scaled_dot_product_attention

    q, kv = inputs(shape, dtype)
    ours = partial(sc.attention, q, *kv)
    grouped = shape.heads != shape.kv_heads
    peer = partial(scaled_dot_product_attention, as_torch(q), *as_torch(kv), enable_gqa=grouped)
    return _calls(ours, peer, shape, dtype)


def _beside_ours(layout: Callable[..., Callable[[], Any]], shape: Shape, dtype: str) -> Calls:
    q, kv = inputs(shape, dtype)
    return _calls(layout(q, *kv), partial(sc.attention, q, *kv), shape, dtype)


def _calls(ours: Callable[[], Any], peer: Callable[[], Any], shape: Shape, dtype: str) -> Calls:
    q, kv = inputs(shape, dtype)
    return Calls(
        ours,
        peer,
        lambda: disagreement("output", ours(), truth(shape, dtype)),
        buffer=kv,
        traffic=2 * q.nbytes + kv.nbytes,
    )


def _bthd(q: "np.ndarray[Any, Any]", *kv: "np.ndarray[Any, Any]") -> Callable[[], Any]:
    """Lay the cache out as (batch, tokens, heads, d), and show it as a transposed view."""
    k, v = (np.ascontiguousarray(each.swapaxes(1, 2)).swapaxes(1, 2) for each in kv)
    return partial(sc.attention, q, k, v)


def _paged(q: "np.ndarray[Any, Any]", *kv: "np.ndarray[Any, Any]") -> Callable[[], Any]:
    """Cut the cache of one sequence into pages that lie in no order."""
    _, heads, tk, d = kv[0].shape
    pages = tk // PAGE
    block_table = np.random.default_rng(pages).permutation(pages)[None]
    k, v = (np.empty((pages, heads, PAGE, d), each.dtype) for each in kv)
    for paged, plain in zip((k, v), kv, strict=True):
        paged[block_table[0]] = plain.reshape(heads, pages, PAGE, d).swapaxes(0, 1)
    return partial(sc.attention, q, k, v, kv_lengths=np.array([tk]), block_table=block_table)
