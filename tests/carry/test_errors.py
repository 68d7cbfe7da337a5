"""Bad input to the carry: one line that says what was expected, what came and what to do."""

import numpy as np
import pytest

from softcarry.carry import Carry
from softcarry.carry.ragged import merge_ragged
from softcarry.errors import DTypeError, OptionError, ShapeError, SoftcarryError

F, V = np.zeros((2, 3)), np.zeros((3, 4))
C, CV = Carry.of(F), Carry.of(F, V)

CASES = {
    "integer scores": (lambda: Carry.of(np.arange(3)), DTypeError, "scores must be .*got int64: convert"),
    "boolean scores": (lambda: Carry.of(np.ones(3, bool)), DTypeError, "got bool"),
    "complex scores": (lambda: Carry.of(np.ones(3, complex)), DTypeError, "got complex128"),
    "long double": (lambda: Carry.of(np.ones(3, np.longdouble)), DTypeError, "got (float128|longdouble)"),
    "integer values": (lambda: Carry.of(F, np.ones((3, 4), int)), DTypeError, "values must be .*got int64"),
    "a list": (lambda: Carry.of([2.0, 5.0]), DTypeError, "expected an array .*got list: wrap"),
    "a number": (lambda: Carry.of(2.0), DTypeError, "got float"),
    "a point": (lambda: Carry.of(np.array(2.0)), ShapeError, "got a point: give it an axis"),
    "n differs": (lambda: Carry.of(F, np.zeros((4, 4))), ShapeError, r"share n, got \(2, 3\) and \(4, 4\)"),
    "one axis of values": (lambda: Carry.of(F, np.zeros(3)), ShapeError, "must share n"),
    "attention values without a query axis": (
        lambda: Carry.of(np.zeros((2, 4, 5, 3)), np.zeros((2, 4, 3, 8))),
        ShapeError,
        r"must broadcast, got .*\(b, h, 1, n, dv\)",
    ),
    "base 10": (lambda: Carry.of(F, base=10), OptionError, 'must be "e" or "2", got 10'),
    "base E": (lambda: Carry.empty(2, base="E"), OptionError, "got 'E'"),
    "base in to_base": (lambda: C.to_base("10"), OptionError, "got '10'"),
    "negative length": (lambda: Carry.empty((2, -1)), ShapeError, r"non-negative .*got \(2, -1\)"),
    "fractional length": (lambda: Carry.empty(2.5), ShapeError, "got 2.5"),
    "negative value_dim": (lambda: Carry.empty(2, value_dim=-1), ShapeError, "got -1"),
    "integer like": (lambda: Carry.empty(2, like=np.int32), DTypeError, "like must be .*got int32"),
    "unknown like": (lambda: Carry.empty(2, like="float32"), DTypeError, "got 'float32'"),
    "l of another shape": (lambda: Carry(np.zeros(2), np.zeros(3)), ShapeError, r"m \(2,\), l \(3,\)"),
    "o of another shape": (lambda: Carry(np.zeros(2), np.zeros(2), V), ShapeError, r"o \(3, 4\)"),
    "o a point": (lambda: Carry(np.array(0.0), np.array(0.0), np.array(0.0)), ShapeError, r"o \(\)"),
    "integer m": (lambda: Carry(np.zeros(2, int), np.zeros(2)), DTypeError, "m must be"),
    "merge with an array": (lambda: C.merge(F), OptionError, "takes carries, got ndarray: make one"),
    "merge with a pair": (lambda: C.merge((F, F)), OptionError, "got tuple"),
    "merge of shapes": (lambda: C | Carry.empty(3), ShapeError, r"got m \(2,\) and \(3,\)"),
    "merge that would broadcast": (lambda: C | Carry.empty(()), ShapeError, "must have one shape"),
    "merge of dv": (lambda: CV | Carry.empty(2, value_dim=5), ShapeError, r"got o \(2, 4\) and \(2, 5\)"),
    "merge without values": (lambda: CV | C, ShapeError, "one carry has values"),
    "absorb without values": (lambda: CV.absorb(F), ShapeError, "one carry has values"),
    "absorb of another shape": (lambda: C.absorb(np.zeros((3, 2))), ShapeError, "must have one shape"),
    "output without values": (lambda: C.output, OptionError, "no values, so it has no output"),
    "weights of another shape": (lambda: C.weights(np.zeros((3, 4))), ShapeError, r"with m \(2,\), got"),
    "weights of a point": (lambda: C.weights(np.array(1.0)), ShapeError, "scores must have shape"),
    "integer weights": (lambda: C.weights(np.zeros((2, 4), int)), DTypeError, "scores must be"),
    "logprob with an axis too many": (lambda: C.logprob(F.T), ShapeError, r"broadcast to the shape \(2,\)"),
    "integer logprob": (lambda: C.logprob(np.zeros(2, int)), DTypeError, "score must be"),
    "from_lse of shapes": (lambda: Carry.from_lse(V, np.zeros(2)), ShapeError, "got m"),
    "ragged of an array": (lambda: merge_ragged(F, [0, 2]), OptionError, "takes a Carry .*got ndarray"),
    "ragged of a single carry": (lambda: merge_ragged(Carry.empty(()), [0]), ShapeError, "leading axis"),
    "ragged floats": (lambda: merge_ragged(C, [0.0, 2.0]), DTypeError, "integers, got float64"),
    "ragged booleans": (lambda: merge_ragged(C, np.array([False, True])), DTypeError, "got bool"),
    "ragged from 1": (lambda: merge_ragged(C, [1, 2]), OptionError, "from 0 to 2, .*got 1 to 2"),
    "ragged too short": (lambda: merge_ragged(C, [0, 1]), OptionError, "got 0 to 1"),
    "ragged too long": (lambda: merge_ragged(C, [0, 3]), OptionError, "got 0 to 3"),
    "ragged negative length": (lambda: merge_ragged(C, [0, 3, 2]), OptionError, "group 1 has length -1"),
    "ragged two axes": (lambda: merge_ragged(C, [[0, 2]]), ShapeError, r"got \(1, 2\)"),
    "ragged nothing": (lambda: merge_ragged(C, np.zeros(0, int)), ShapeError, r"got \(0,\)"),
    "ragged text": (lambda: merge_ragged(C, "02"), SoftcarryError, "indptr"),
    "ragged objects": (
        lambda: merge_ragged(C, np.array([0, 2], dtype=object)),
        DTypeError,
        "integers, got object",
    ),
    "ragged scalar": (lambda: merge_ragged(C, np.int64(2)), ShapeError, r"got \(\): begin it with 0"),
    "score None": (lambda: C.logprob(None), DTypeError, "expected an array .*got None"),
    "a matrix": (lambda: Carry.of(np.zeros((2, 2)).view(np.matrix)), DTypeError, "got a numpy.matrix"),
    "bound beyond float32": (
        lambda: Carry.of(F.astype(np.float32), bound=1e39),
        OptionError,
        "finite in float32 .*a number that overflows",
    ),
    "bound beyond float64": (lambda: Carry.of(F, bound=10**400), OptionError, "finite in float64"),
    "ragged uneven": (lambda: merge_ragged(C, [[0], [1, 2]]), OptionError, "array of known integers"),
}


@pytest.mark.parametrize("case", CASES)
def test_bad_input_is_refused_in_one_clear_line(case):
    call, kind, words = CASES[case]
    with pytest.raises(kind, match=words) as caught:
        call()
    assert "\n" not in str(caught.value)


def test_two_libraries_do_not_mix():
    torch = pytest.importorskip("torch")
    there = Carry.of(torch.zeros(2, 3))
    for call in (
        lambda: C | there,
        lambda: C.absorb(torch.zeros(2, 3)),
        lambda: Carry.of(F, torch.zeros(3, 4)),
        lambda: C.weights(torch.zeros(2, 4)),
        lambda: C.logprob(torch.zeros(2)),
        lambda: Carry.of(F, bound=torch.zeros(2)),
    ):
        with pytest.raises(DTypeError, match="one array-API library, got numpy and torch"):
            call()
    with pytest.raises(DTypeError, match="got int64"):
        Carry.of(torch.zeros(3, dtype=torch.int64))


def test_traced_indptr_is_refused():
    jax = pytest.importorskip("jax")
    c = Carry.of(jax.numpy.zeros((3, 2)))
    with pytest.raises(OptionError, match="do not trace it"):
        jax.jit(lambda i: merge_ragged(c, i).l)(jax.numpy.array([0, 3]))


def test_nothing_and_masked_arrays_are_refused_by_name():
    with pytest.raises(DTypeError, match=r"expected an array.*got None"):
        Carry.of(None)
    masked = np.ma.array([1.0, 1e9], mask=[False, True])
    with pytest.raises(DTypeError, match="got a masked one: fill it first"):
        Carry.of(masked)
