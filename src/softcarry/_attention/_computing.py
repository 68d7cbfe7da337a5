"""From the arguments of a call of attention to its results: all is checked, then the kernels run."""

from typing import Any, NamedTuple

from softcarry._arrays import Array
from softcarry._attention._operands import Operands, PairArray, operands, pair_array
from softcarry._attention._options import (
    Reach,
    require_reach,
    require_scale,
    require_softcap,
    require_splits,
    require_threshold,
)
from softcarry._attention._problem import call_of, heads_of, per_head, sinks_of, slopes_of
from softcarry._attention._sequences import Sequences, sequences
from softcarry._host_arrays import HostArray, empty_like, host_array, require_writable_output
from softcarry.carry import Carry
from softcarry.cpu.attention_cut import Shapes
from softcarry.cpu.attention_layout import Heads
from softcarry.cpu.attention_results import Results
from softcarry.cpu.attention_work import attend
from softcarry.cpu.prefill import Options

_NOWHERE = Heads(0, 0, 0, 0)


class _Checked(NamedTuple):
    given: Operands
    of: Sequences
    reach: Reach
    mask: PairArray | None
    bias: PairArray | None
    slopes: Any
    sinks: Any
    options: Options
    splits: int


def computed_output(q: Array, k: Array, v: Array, out: Array | None, **options: Any) -> Array:
    """Check a call of `attention` and return its output.

    Raises
    ------
    DTypeError, ShapeError, OptionError
    """
    checked = _checked(q, k, v, **options)
    given = checked.given
    shape = given.output_shape
    if out is None:
        out = empty_like(q, shape, given.q.element)
        target = host_array("out", out)
    else:
        read = {"q": q, "k": k, "v": v, "mask": options["mask"], "bias": options["bias"]}
        inputs = {name: array for name, array in read.items() if array is not None}
        target = require_writable_output(out, shape, given.q.element, given.q.library, inputs)
    _attend(checked, target, None)
    return out


def computed_carry(q: Array, k: Array, v: Array, **options: Any) -> Carry:
    """Check a call of `attention_carry` and return its carries.

    Raises
    ------
    DTypeError, ShapeError, OptionError
    """
    checked = _checked(q, k, v, **options)
    given = checked.given
    m, l, o = (
        empty_like(q, shape, given.working)
        for shape in (given.q.shape[:3], given.q.shape[:3], given.output_shape)
    )
    _attend(checked, None, tuple(host_array("carry", array).address for array in (m, l, o)))
    return Carry(m, l, o)


def _checked(
    q: Array,
    k: Array,
    v: Array,
    *,
    scale: Any,
    causal: Any,
    window: Any,
    mask: Any,
    bias: Any,
    softcap: Any,
    alibi: Any,
    sinks: Any,
    kv_lengths: Any,
    cu_seqlens: Any,
    block_table: Any,
    splits: Any,
    rescale_threshold: Any,
) -> _Checked:
    given = operands(q, k, v, paged=block_table is not None)
    of = sequences(given, kv_lengths, cu_seqlens, block_table)
    slopes, sinks = per_head("alibi", alibi, given, of.sequence_count), per_head("sinks", sinks, given)
    reach = require_reach(causal, window)
    allowed = None if mask is None else pair_array("mask", mask, of.pair_shape)
    added = None if bias is None else pair_array("bias", bias, of.pair_shape)
    options = Options(
        require_scale(scale, given.q.shape[3], given.working),
        require_softcap(softcap, given.working),
        require_threshold(rescale_threshold),
    )
    pieces = require_splits(splits)
    # What is small is read last.
    numbers = slopes_of(slopes, given), sinks_of(sinks, given)
    return _Checked(given, of, reach, allowed, added, *numbers, options, pieces)


def _attend(checked: _Checked, output: HostArray | None, carry: tuple[int, ...] | None) -> None:
    """Run the kernels, for the output or the addresses of m, l and o."""
    given, of = checked.given, checked.of
    if 0 in given.q.shape[:3]:
        return
    call = call_of(given, of, checked.reach, checked.mask, checked.bias, checked.slopes, output)
    m, l, o = carry or (0, 0, 0)
    sinks = 0 if checked.sinks is None else checked.sinks.ctypes.data
    results = Results(_NOWHERE if output is None else heads_of(output), o, m, l, given.q.shape[2], sinks)
    shapes = Shapes(
        given.heads,
        given.heads // given.kv_heads,
        given.q.shape[3],
        given.v.shape[3],
        given.working,
        of.query_counts.tobytes(),
        of.key_counts.tobytes(),
        checked.splits,
    )
    attend(given.q.element, call.problem, checked.options, results, shapes)
    # What the problem has addresses of outlives the call.
    del call
