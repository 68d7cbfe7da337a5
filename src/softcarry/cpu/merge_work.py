"""How a merge of partials is laid out for the kernel, cut up, and given to threads."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from softcarry.cpu.compiling import ready
from softcarry.cpu.memory import ELEMENTS
from softcarry.cpu.merge import Merge, merge_rows
from softcarry.cpu.row_layout import SIZES
from softcarry.cpu.simd import STRIP
from softcarry.cpu.threads import get_num_threads, run

_RUN = 64
"""Rows of a run, the most."""
_WEIGHTS = 2**16
"""Weights of a run beyond which it has fewer rows: they are read twice, the second time from a cache."""
_UNIT = 2**18
"""Bytes that a unit of work reads, about."""
_SHARE = 2**18
"""Bytes that are worth a thread: waking one takes as long as reading them."""
_STREAMED = 2**24
"""Bytes of a result that is written past the caches: it is larger than what they would keep."""


class Strided(NamedTuple):
    """An array in memory; strides are in bytes, of any sign or 0."""

    address: int
    strides: tuple[int, ...]
    """Of the axes of rows."""
    step: int = 0
    """Between partials, or groups, where they are stacked."""
    values: int = 0
    """Between the values of a row."""


class Part(NamedTuple):
    """The arrays of one partial, of all that are stacked, or of the result.

    Either o is the output and m its lse, and there is no l; or o is relative to m, and there may be no o.
    """

    o: Strided | None
    m: Strided
    l: Strided | None = None


def strided(array: Any, *, stacked: bool, values: bool) -> Strided:
    """Describe a NumPy array or torch CPU tensor, (n, ..., dv) if stacked and of values, else fewer axes."""
    if isinstance(array, np.ndarray):
        address, strides = array.__array_interface__["data"][0], array.strides
    else:
        size = array.element_size()
        address, strides = array.data_ptr(), tuple(size * stride for stride in array.stride())
    last = len(strides) - 1 if values else len(strides)
    return Strided(
        address,
        strides[int(stacked) : last],
        strides[0] if stacked else 0,
        # One value has no neighbour, whatever the stride says.
        (strides[-1] if array.shape[-1] > 1 else array.itemsize) if values else 0,
    )


def merge_parts(
    parts: Sequence[Part],
    result: Part,
    *,
    element: str,
    shape: tuple[int, ...],
    dv: int,
    base: str,
    indptr: NDArray[np.int64],
    mask: Strided | None = None,
) -> None:
    """Merge groups of partials into the rows of a result.

    Parameters
    ----------
    parts : sequence of Part
        One for each partial, or a single one in which they are stacked.
    result : Part
        Groups are stacked in it, if there are several. It may be the first of the parts; otherwise it has no
        byte in common with any.
    element : str
        Element type of o; m and l are float64 if it is, else float32.
    shape : tuple of int
        Of the rows: all axes but that of partials and that of values.
    dv : int
        Values of a row; 0 if there is no o.
    base : "e" or "2"
    indptr : int64 array (groups + 1,)
        Where each group begins among the partials: checked.
    mask : Strided, optional
        Of booleans: where they are False, the result is left as it is. For a single group.
    """
    groups, rows = len(indptr) - 1, math.prod(shape)
    if not groups or not rows:
        return
    state = "float64" if element == "float64" else "float32"
    normalised = result.l is None
    lengths, inner, table = _table([*parts, result], mask, shape)
    longest = int(np.diff(indptr).max())
    partials = int(indptr[-1])
    run_rows = STRIP * max(1, min(_RUN, inner + STRIP - 1, _WEIGHTS // max(1, longest)) // STRIP)
    row_bytes = max(1, partials * dv * SIZES[element] // groups)
    merge = Merge(
        table=table.ctypes.data,
        arrays=len(parts),
        lengths=lengths.ctypes.data,
        outer=len(lengths),
        places=rows // inner,
        inner=inner,
        indptr=indptr.ctypes.data,
        groups=groups,
        longest=longest,
        dv=dv,
        run=run_rows,
        unit=max(1, _UNIT // (row_bytes * min(run_rows, inner))),
        normalised=normalised,
        binary=base == "2",
        streaming=_streaming(result, parts, element, dv * SIZES[element], groups * rows),
    )
    threads = min(get_num_threads(), merge.units, max(1, rows * groups * row_bytes // _SHARE))
    counter = np.zeros(1, np.int64)
    scalars = ELEMENTS[element], ELEMENTS[state]
    arguments = (*scalars, merge, merge.runs, merge.units, counter)
    ready(merge_rows, (element, state), arguments)

    def work() -> None:
        merge_rows(*arguments)

    # A call that comes late looks at the counter only, which it keeps alive.
    run(work, threads)


def _table(
    parts: Sequence[Part], mask: Strided | None, shape: tuple[int, ...]
) -> tuple[NDArray[np.int64], int, NDArray[np.int64]]:
    """Return the lengths of the outer axes, that of the innermost, and the table that `Merge` describes."""
    absent = Strided(0, (0,) * len(shape))
    fields = [field or absent for part in parts for field in (*part, None)]
    fields[-1] = mask or absent
    strides = np.array([field.strides for field in fields], np.int64).reshape(len(fields), len(shape))
    axes = [axis for axis, length in enumerate(shape) if length > 1]
    # Rows in the order of memory, since no result depends on their order. Those of o, where there is one.
    weight = np.abs(strides[0] if parts[0].o else strides[1])
    axes.sort(key=lambda axis: -weight[axis])
    lengths: list[int] = []
    joined: list[NDArray[np.int64]] = []
    for axis in axes:
        column = strides[:, axis]
        if joined and (joined[-1] == column * shape[axis]).all():
            lengths[-1], joined[-1] = lengths[-1] * shape[axis], column
        else:
            lengths.append(shape[axis])
            joined.append(column)
    if not joined:
        lengths, joined = [1], [np.zeros(len(fields), np.int64)]
    fixed = np.array([(field.address, field.step, field.values) for field in fields], np.int64)
    table = np.column_stack([fixed, joined[-1], *joined[:-1]])
    return np.array(lengths[:-1], np.int64), lengths[-1], np.ascontiguousarray(table)


def _streaming(result: Part, parts: Sequence[Part], element: str, row_bytes: int, rows: int) -> bool:
    """Whether a result is large, is not read, and begins every row at a multiple of 64 bytes."""
    o = result.o
    if o is None or row_bytes * rows < _STREAMED or o.values != SIZES[element] or o == parts[0].o:
        return False
    return not any(number % 64 for number in (o.address, o.step, *o.strides))
