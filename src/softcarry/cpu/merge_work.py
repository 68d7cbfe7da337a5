"""How a merge of partials is laid out for the kernel, cut up, and given to threads."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from softcarry._host_arrays import SIZES
from softcarry.cpu.compiling import ready
from softcarry.cpu.memory import ELEMENTS
from softcarry.cpu.merge import Merge, merge_rows
from softcarry.cpu.simd import STRIP
from softcarry.cpu.threads import get_num_threads, run

_RUN = 64
"""Rows of a run, the most."""
_WEIGHTS = 2**16
"""Weights of a run beyond which it has fewer rows: they are read twice, the second time from a cache."""
_UNIT = 2**20
"""Bytes that a unit of work reads, about."""
_SHARE = 2**18
"""Bytes that are worth a thread: waking one takes as long as reading them."""
_STREAMED = 2**24
"""Bytes of a result that is written past the caches: it is larger than what they would keep."""

_LINE = 64
"""Bytes of a cache line."""


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


def strided(array: Any, *, stacked: bool = False, values: bool = False) -> Strided:
    """Describe a NumPy array or torch CPU tensor, with a leading axis if stacked and a last one of values."""
    if isinstance(array, np.ndarray):
        address, strides = array.__array_interface__["data"][0], array.strides
    else:
        size = array.element_size()
        address, strides = array.data_ptr(), tuple(size * stride for stride in array.stride())
    last = len(strides) - values
    # One value has no neighbour, whatever the stride says.
    between = 0 if not values else strides[-1] if array.shape[-1] > 1 else array.itemsize
    return Strided(address, strides[int(stacked) : last], strides[0] if stacked else 0, between)


def result_like(array: Any, *, groups: int | None = None, stacked: bool = False, values: bool = False) -> Any:
    """Make an array for the merge of arrays like one, of its kind, its dtype and the order of its memory.

    Parameters
    ----------
    array : NumPy array or torch CPU tensor
    groups : int, optional
        Length of a leading axis of the result.
    stacked, values : bool
        Whether the first axis of the array is that of partials, and the last that of values.
    """
    shape, strides = array.shape[int(stacked) :], strided(array, stacked=stacked, values=values).strides
    lead = () if groups is None else (groups,)
    order = sorted(range(len(strides)), key=lambda axis: -abs(strides[axis]))
    made = _room(array, (*lead, *(shape[axis] for axis in order), *shape[len(strides) :]))
    places = [len(lead) + order.index(axis) for axis in range(len(order))]
    axes = (*range(len(lead)), *places, *range(len(lead) + len(order), len(lead) + len(shape)))
    return made.transpose(axes) if isinstance(made, np.ndarray) else made.permute(axes)


def _room(like: Any, shape: tuple[int, ...]) -> Any:
    if not isinstance(like, np.ndarray):
        # torch's own arrays begin at multiples of 64 bytes.
        return like.new_empty(shape)
    size = math.prod(shape) * like.itemsize
    if size < _STREAMED:
        return np.empty(shape, like.dtype)
    room = np.empty(size + _LINE, np.uint8)
    first = -room.__array_interface__["data"][0] % _LINE
    return room[first : first + size].view(like.dtype).reshape(shape)


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
    threads = max(1, min(get_num_threads(), rows * groups * row_bytes // _SHARE))
    runs = groups * (rows // inner) * -(-inner // run_rows)
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
        unit=max(1, min(_UNIT // (row_bytes * min(run_rows, inner)), runs // (4 * threads))),
        normalised=normalised,
        binary=base == "2",
        streaming=_streaming(result, parts, element, dv * SIZES[element], groups * rows),
    )
    counter = np.zeros(1, np.int64)
    scalars = ELEMENTS[element], ELEMENTS[state]
    arguments = (*scalars, merge, runs, -(-runs // merge.unit), counter)
    ready(merge_rows, (element, state), arguments)

    def work() -> None:
        merge_rows(*arguments)

    # A call that comes late looks at the counter only, which it keeps alive.
    run(work, min(threads, runs))


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
    return not any(number % _LINE for number in (o.address, o.step, *o.strides))
