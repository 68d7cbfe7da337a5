"""Axis layouts as strings: "b h t" is (batch, heads, queries), "t h d" is (tokens, heads, value dim).

One letter an axis, in the order in which the library stores them:

==== =====================================================================================
``n``  splits of the keys, or ranks: one partial result each
``b``  batch
``g``  groups of heads that share their keys
``h``  heads
``t``  queries; tokens where the layout has no batch, because sequences are packed
``s``  position of a query in its own sequence, up to the longest one (packed output, padded lse)
``1``  a last axis of size one
``d``  value dim
==== =====================================================================================

``...`` in front stands for any leading axes. The canonical layout has the axes in the order of this list,
so a carry is (batch, heads, queries), or (heads, tokens) for packed sequences.
"""

from collections.abc import Mapping, Sequence

from softcarry._arrays import Array, Namespace

_ORDER = "nbght"
_WORDS = {
    "n": "splits",
    "b": "batch",
    "g": "groups",
    "h": "heads",
    "s": "positions in a sequence",
    "1": "1",
    "d": "value dim",
}


def words(layout: str) -> str:
    """Return a layout in words: ``"t h d"`` gives ``"(tokens, heads, value dim)"``."""
    axes = layout.split()
    query = "queries" if "b" in axes else "tokens"
    named = ["..." if axis == "..." else query if axis == "t" else _WORDS[axis] for axis in axes]
    return f"({named[0]},)" if len(named) == 1 else f"({', '.join(named)})"


def canonical(layout: str) -> str:
    """Return the axes in canonical order, without those of size one; ``"t n h d"`` gives ``"n h t d"``."""
    axes = layout.split()
    if axes[0] == "...":
        return " ".join(axis for axis in axes if axis != "1")
    return " ".join([axis for axis in _ORDER if axis in axes] + (["d"] if "d" in axes else []))


def fits(layout: str, shape: Sequence[int]) -> bool:
    """Return whether an array of that shape has as many axes as the layout."""
    axes = layout.split()
    return len(shape) >= len(axes) - 1 if axes[0] == "..." else len(shape) == len(axes)


def sizes(layout: str, shape: Sequence[int]) -> dict[str, int]:
    """Return the length of each axis; leading axes under ``...`` are numbered."""
    axes = layout.split()
    if axes[0] == "...":
        axes = [str(-i) for i in range(len(shape) - len(axes) + 1, 0, -1)] + axes[1:]
    return dict(zip(axes, shape, strict=True))


def shape(layout: str, lengths: Mapping[str, int]) -> tuple[int, ...]:
    """Return the shape of an array whose axes have these lengths, the inverse of `sizes`."""
    axes = layout.split()
    leading = [n for axis, n in lengths.items() if axis.startswith("-")] if axes[0] == "..." else []
    return (*leading, *({**lengths, "1": 1}[axis] for axis in axes if axis != "..."))


def to_canonical(xp: Namespace, array: Array, layout: str) -> Array:
    """Return a view of the array with its axes in canonical order; a last axis of size one is dropped."""
    axes = layout.split()
    if axes[-1] == "1":
        array = xp.squeeze(array, axis=-1)
        axes = axes[:-1]
    if axes[0] == "...":
        return array
    order = tuple(axes.index(axis) for axis in canonical(layout).split())
    return array if order == tuple(range(len(order))) else xp.permute_dims(array, order)


def from_canonical(xp: Namespace, array: Array, layout: str) -> Array:
    """Return a view of an array in canonical order with its axes as the layout has them."""
    axes = layout.split()
    if axes[-1] == "1":
        array = xp.expand_dims(array, axis=-1)
    if axes[0] == "...":
        return array
    stored = canonical(layout).split() + axes[-1:] * (axes[-1] == "1")
    order = tuple(stored.index(axis) for axis in axes)
    return array if order == tuple(range(len(order))) else xp.permute_dims(array, order)
