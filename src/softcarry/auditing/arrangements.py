"""Arrays of NumPy and torch with the same values elsewhere in memory: views, and what lies between them.

A view lies in a buffer of its own, which is NaN (True, for booleans) wherever the view does not reach, so
that a kernel that reads beside it can't go unnoticed. JAX's arrays have no strides.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from softcarry.auditing._libraries import library_of

LIBRARIES = ("numpy", "torch")


class Placed(NamedTuple):
    """A view with the values of an array, and the contiguous buffer that it lies in."""

    view: Any
    buffer: Any


class Arrangement(NamedTuple):
    """One way of laying an array of four axes into memory.

    Attributes
    ----------
    name : str
        What a reader calls it.
    place : callable
        ``place(x) -> Placed``; x is an array of NumPy or torch, contiguous.
    libraries : tuple of str
        Those whose arrays can lie so.
    """

    name: str
    place: Callable[[Any], Placed]
    libraries: tuple[str, ...] = LIBRARIES


def contiguous(x) -> Placed:
    """Leave an array where it is."""
    return Placed(x, x)


def swapped(x) -> Placed:
    """Lay the second and third axis in the other order: (b, h, t, d) as it leaves a projection.

    Parameters
    ----------
    x : array
        Of four axes, NumPy or torch.

    Returns
    -------
    Placed

    Examples
    --------
    >>> swapped(np.zeros((1, 2, 3, 4), np.float32)).buffer.shape
    (1, 3, 2, 4)
    """
    a, b, c, d = x.shape
    return _filled(x, (a, c, b, d), lambda buffer: buffer.swapaxes(1, 2))


def packed(x) -> Placed:
    """Lay an array as the second of three that a joint projection of q, k and v makes."""
    a, b, c, d = x.shape
    return _filled(x, (a, c, 3, b, d), lambda buffer: buffer[:, :, 1].swapaxes(1, 2))


def pitched(x) -> Placed:
    """Leave a gap after each row of d numbers."""
    *rest, d = x.shape
    return _filled(x, (*rest, d + 8), lambda buffer: buffer[..., :d])


def offset(x) -> Placed:
    """Start three numbers into a buffer, off every boundary of 16 bytes or more."""
    size = int(np.prod(x.shape))
    return _filled(x, (size + 6,), lambda buffer: buffer[3 : 3 + size].reshape(x.shape))


def sliced(x) -> Placed:
    """Cut an array out of one that is longer on every axis and on both sides."""
    longer = tuple(size + 3 for size in x.shape)
    inner = tuple(slice(1, 1 + size) for size in x.shape)
    return _filled(x, longer, lambda buffer: buffer[inner])


def spread(x) -> Placed:
    """Take every second row: tokens in the layout (b, h, t, d)."""
    a, b, c, d = x.shape
    return _filled(x, (a, b, 2 * c, d), lambda buffer: buffer[:, :, ::2])


def spread_columns(x) -> Placed:
    """Take every second number of a row, so that the last axis is not contiguous."""
    *rest, d = x.shape
    return _filled(x, (*rest, 2 * d), lambda buffer: buffer[..., ::2])


def transposed(x) -> Placed:
    """Lay the last two axes in the other order: the transpose of a stored Kᵀ."""
    a, b, c, d = x.shape
    return _filled(x, (a, b, d, c), lambda buffer: buffer.swapaxes(2, 3))


def reversed_rows(x) -> Placed:
    """Lay the third axis backwards, with a negative stride (NumPy)."""
    return _filled(x, x.shape, lambda buffer: buffer[:, :, ::-1])


def reversed_everywhere(x) -> Placed:
    """Lay every axis backwards, with negative strides (NumPy)."""
    return _filled(x, x.shape, lambda buffer: buffer[::-1, ::-1, ::-1, ::-1])


def expanded(*axes: int) -> Callable[[Any], Placed]:
    """Return a ``place`` that keeps the first entry of some axes only, with stride 0.

    Parameters
    ----------
    *axes : int
        Along which all entries of the array are equal.

    Returns
    -------
    callable

    Examples
    --------
    >>> expanded(0)(np.zeros((3, 1, 2, 4), np.float32)).view.strides[0]
    0
    """

    def place(x):
        first = x[tuple(slice(0, 1) if i in axes else slice(None) for i in range(len(x.shape)))]
        buffer = first.clone() if library_of(x) == "torch" else first.copy()
        return Placed(_broadcast(buffer, x.shape), buffer)

    return place


ARRANGEMENTS = (
    Arrangement("the second and third axis swapped in memory", swapped),
    Arrangement("one third of a joint q, k, v", packed),
    Arrangement("gaps between rows", pitched),
    Arrangement("an odd offset", offset),
    Arrangement("cut out of a larger array", sliced),
    Arrangement("every second row", spread),
    Arrangement("every second number of a row", spread_columns),
    Arrangement("the last two axes swapped in memory", transposed),
    Arrangement("rows backwards", reversed_rows, ("numpy",)),
    Arrangement("all axes backwards", reversed_everywhere, ("numpy",)),
)
"""The arrangements that hold any values; those of ``expanded`` need equal ones."""


class Arranger:
    """Arranges q, k and v as a call hands them over, and knows afterwards what the call wrote.

    Parameters
    ----------
    place : callable
        As of an ``Arrangement``.
    names : str
        Which of "qkv" are arranged; the others stay contiguous, and are watched too.

    Examples
    --------
    >>> arranger = Arranger(pitched, "k")
    >>> q, k, v = (arranger(np.zeros((1, 1, 2, 4), np.float32)) for _ in range(3))
    >>> q.strides, k.strides
    ((32, 32, 16, 4), (96, 96, 48, 4))
    >>> k[...] = 1.0
    >>> arranger.written()
    ('k',)
    """

    def __init__(self, place: Callable[[Any], Placed], names: str = "qkv"):
        self.place = place
        self.names = names
        self._handed: list[tuple[Any, bytes]] = []

    def __call__(self, x):
        """Arrange the next of q, k and v."""
        name = "qkv"[len(self._handed)]
        view, buffer = self.place(x) if name in self.names else (x, x)
        self._handed.append((buffer, _bits(buffer)))
        return view

    def written(self) -> tuple[str, ...]:
        """Which of q, k and v are not what they were, the memory beside a view included."""
        return tuple(
            name
            for name, (buffer, before) in zip("qkv", self._handed, strict=False)
            if _bits(buffer) != before
        )


def _filled(x, shape, look) -> Placed:
    """Make a buffer of that shape, write the values of x through a view of it, and return both."""
    fill = True if "bool" in str(x.dtype) else float("nan")
    buffer = x.new_full(shape, fill) if library_of(x) == "torch" else np.full(shape, fill, x.dtype)
    view = look(buffer)
    view[...] = x
    return Placed(view, buffer)


def _broadcast(x, shape):
    return x.expand(shape) if library_of(x) == "torch" else np.broadcast_to(x, shape)


def _bits(x):
    if library_of(x) == "torch":
        import torch

        return x.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes()
    return np.asarray(x).tobytes()
