"""The trace against plain loops: in float64, in narrow formats, masked, infinite, and in both forms."""

import json
import math
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from softcarry.errors import DTypeError, OptionError, ShapeError
from softcarry.numerics import FloatFormat
from softcarry.trace import recurrence

U = 2.0**-53

scores = st.lists(st.floats(-30.0, 30.0) | st.just(-math.inf), max_size=24)


def rounded(x, precision):
    """Round to a number of significant bits, ties to even, by Python's own integer rounding."""
    if x == 0.0 or not math.isfinite(x):
        return x
    mantissa, exponent = math.frexp(x)
    return math.ldexp(round(math.ldexp(mantissa, precision)), exponent - precision)


def loop(row, precision):
    """The recurrence with l rounded to a number of bits: one score a step, no arrays."""
    m, total = -math.inf, 0.0
    for s in (rounded(s, precision) for s in row):
        new = max(m, s)
        total = rounded((total * math.exp(m - new) if total else 0.0) + math.exp(s - new), precision)
        m = new
    return m, total


def softmax_sum(row):
    m = max(row)
    return m, math.fsum(math.exp(s - m) for s in row)


def test_the_row_of_the_book():
    trace = recurrence([2, 5, 1, 7])
    assert [step.m for step in trace] == [2, 5, 5, 7]
    assert [round(step.l, 4) for step in trace] == [1.0, 1.0498, 1.0681, 1.1446]
    assert [round(step.factor, 4) for step in trace] == [0.0, 0.0498, 1.0, 0.1353]
    assert [step.note for step in trace] == [
        "starts from empty",
        "maximum rises: rescale by e^-3",
        "",
        "maximum rises: rescale by e^-2",
    ]
    assert round(trace.final.lse, 4) == 7.135
    assert math.isclose(sum(trace.final.weights), 1.0, rel_tol=8 * U)


@given(scores, st.integers(1, 9))
def test_every_step_is_the_sum_it_stands_for(row, block):
    trace = recurrence(row, block=block)
    assert len(trace) == -(-len(row) // block)
    for step in trace:
        prefix = row[: step.stop]
        m, total = softmax_sum(prefix) if max(prefix) > -math.inf else (-math.inf, 0.0)
        assert step.m == m
        # A term goes through at most 24 rescales. Each errs by the rounding of m_old − m (|difference| ≤ 60,
        # so 60u in the exponential), 2u in exp, u in the product and u in the sum; exp(s − m) itself 62u.
        assert math.isclose(step.l, total, rel_tol=(24 * 64 + 62) * U)
        assert math.isclose(step.direct, total, rel_tol=(24 + 62) * U)


@given(scores, st.integers(1, 9))
def test_the_key_block_does_not_change_the_row(row, block):
    one, other = recurrence(row).final, recurrence(row, block=block).final
    assert other.m == one.m
    assert math.isclose(other.l, one.l, rel_tol=2 * (24 * 64 + 62) * U)


@given(
    st.lists(
        st.tuples(st.floats(-20.0, 20.0), st.floats(-5.0, 5.0), st.floats(-5.0, 5.0)), min_size=1, max_size=12
    )
)
def test_both_forms_give_the_weighted_mean(keys):
    row, vectors = [key[0] for key in keys], [key[1:] for key in keys]
    m, total = softmax_sum(row)
    for form in ("unnormalised", "normalised"):
        final = recurrence(row, vectors, form=form, block=2).final
        for column, got in enumerate(final.output):
            products = [math.exp(s - m) * v[column] for s, v in zip(row, vectors, strict=True)]
            # As for l, with 12 rescales of 44u (|difference| ≤ 40), once for the sum and once for l; the
            # normalised form multiplies by l and divides by it in between: 4u more a step.
            bound = 2 * 12 * (44 + 4) * U * math.fsum(abs(p) for p in products) / total
            assert abs(got - math.fsum(products) / total) <= bound + 1e-300


def test_the_running_output_is_in_the_form_that_was_asked_for():
    plain = recurrence([0.0, 1.0], [1.0, 2.0])
    divided = recurrence([0.0, 1.0], [1.0, 2.0], form="normalised")
    assert plain[1].o == pytest.approx((math.exp(-1.0) + 2.0,), rel=4 * U)
    assert divided[1].o == divided[1].output
    assert plain[0].o == plain[0].output == (1.0,)


def test_masked_scores_change_nothing_and_their_values_are_not_read():
    trace = recurrence([1.0, -math.inf, 2.0], [1.0, math.nan, 3.0])
    assert trace[1].note == "masked: nothing changes"
    assert (trace[1].m, trace[1].l, trace[1].factor) == (1.0, 1.0, 1.0)
    assert trace.final.weights[1] == 0.0
    assert math.isfinite(trace.final.output[0])
    assert recurrence([1.0, -math.inf], block=2)[0].note == "1 of 2 masked; starts from empty"


def test_an_empty_row_ends_empty():
    for row in ([], [-math.inf, -math.inf]):
        final = recurrence(row, [math.nan] * len(row)).final
        assert (final.m, final.l, final.lse, final.output) == (-math.inf, 0.0, -math.inf, (0.0,))
        assert set(final.weights) <= {0.0}
    assert recurrence([], np.zeros((0, 3))).final.output == (0.0, 0.0, 0.0)
    # A masked start is a true identity: what follows is as if it had not been there.
    assert recurrence([-math.inf, 3.0, 1.0]).final.l == recurrence([3.0, 1.0]).final.l


@pytest.mark.parametrize(
    ("bad", "note"),
    [
        (math.nan, "NaN score: l is NaN from here"),
        (math.inf, "score +inf: inf − inf makes l NaN from here"),
    ],
)
def test_nan_and_infinity_spoil_the_row_from_their_step_on(bad, note):
    trace = recurrence([1.0, bad, 2.0, -math.inf], [1.0, 1.0, 1.0, 1.0])
    assert trace[0].l == 1.0
    assert all(math.isnan(step.l) and math.isnan(step.output[0]) for step in trace.steps[1:])
    assert trace[1].note == note
    assert trace[2].note == trace[3].note == ""
    assert math.isnan(trace.final.l)
    assert math.isnan(trace[2].error)


def test_an_infinite_value_stays_infinite_where_its_term_underflows():
    assert recurrence([0.0, -800.0], [1.0, math.inf]).final.output == (math.inf,)
    assert recurrence([0.0, 800.0], [math.inf, 1.0]).final.output == (math.inf,)
    assert math.isnan(recurrence([0.0, 0.0], [math.inf, -math.inf]).final.output[0])


@given(st.lists(st.floats(-4.0, 4.0, width=16), min_size=1, max_size=40))
def test_a_narrow_carry_is_rounded_once_a_step(row):
    trace = recurrence(row, fmt="bfloat16")
    assert (trace.final.m, trace.final.l) == loop(row, 8)
    assert all(step.l == float(np.float64(step.l).astype(ml_dtypes.bfloat16)) for step in trace)


def test_equal_terms_stop_at_the_drop_index():
    trace = recurrence([0.0] * 260, fmt="bfloat16")
    assert [trace[k].l for k in (254, 255, 256, 259)] == [255.0, 256.0, 256.0, 256.0]
    assert trace[255].note == ""
    assert trace[256].note == "term 1 is half an ulp of l, and the tie rounds down: lost"
    assert trace[256].error == 1 / 257
    assert recurrence([0.0] * 260, fmt="bfloat16", block=4).final.l == 260.0


def test_a_term_below_half_an_ulp_is_lost():
    step = recurrence([0.0, math.log(2.0**-9)], fmt="bfloat16")[1]
    assert step.l == 1.0
    # ln 2^-9 = −6.238 is −6.25 in bfloat16, and e^-6.25 = 0.001930.
    assert step.note == "term 0.00193 is below half an ulp of l: lost"
    assert recurrence([0.0, -40.0])[1].note == "term 4.248e-18 is below half an ulp of l: lost"


def test_scores_beyond_12_do_not_overflow_float16():
    trace = recurrence([12.0, 15.0, 11.5], fmt="float16")
    assert trace.format == "float16"
    assert math.isclose(trace.final.l, softmax_sum([12.0, 15.0, 11.5])[1], rel_tol=3 * 2.0**-11)


def test_overflow_is_named():
    assert (
        recurrence([1.0, 1e5], fmt="float16")[1].note == "score 100000 overflows float16: l is NaN from here"
    )
    tiny = FloatFormat("E3M4", 3, 4)  # its largest number is 15.5
    overflowing = recurrence([0.0] * 40, fmt=tiny, block=8)
    assert overflowing[1].l == math.inf
    assert overflowing[1].note == "l overflows E3M4"
    assert overflowing[2].note == ""
    fn = recurrence([0.0] * 500, fmt="E4M3FN", block=250)
    assert fn[1].note == "l overflows E4M3FN: NaN from here"


def test_underflow_is_named():
    assert recurrence([0.0, -800.0])[1].note == "e^(s − m) underflows to 0"
    assert (
        recurrence([0.0, 800.0])[1].note
        == "maximum rises: rescale by e^-800; what was carried underflows to 0"
    )


def test_the_dictionary_holds_every_step_and_survives_json():
    row = recurrence([2.0, 5.0], [[1.0, 0.0], [0.0, 1.0]], block=2)
    data = json.loads(json.dumps(row.to_dict()))
    assert list(data) == ["steps", "final", "block", "format", "form"]
    assert data["steps"][0]["scores"] == [2.0, 5.0]
    assert data["steps"][0]["output"] == list(row.final.output)
    assert (data["block"], data["format"], data["form"]) == (2, "float64", "unnormalised")


@pytest.mark.parametrize("kind", [np.float32, np.float16, ml_dtypes.bfloat16, np.int64, list])
def test_scores_of_every_real_type_are_taken(kind):
    row = [2, 5, 1, 7] if kind is list else np.array([2, 5, 1, 7]).astype(kind)
    assert recurrence(row).final.m == 7.0


def test_numbers_that_numpy_keeps_as_objects_are_taken():
    assert recurrence([2**70, 0]).final.m == 2.0**70
    assert recurrence([Fraction(1, 2)], [Fraction(3, 4)]).final.output == (0.75,)


@pytest.mark.parametrize(
    ("arguments", "options", "error", "message"),
    [
        (([[1.0, 2.0]],), {}, ShapeError, r"scores must be one row, shape \(n,\); got shape \(1, 2\)"),
        (([1.0, 2.0], [1.0]), {}, ShapeError, r"values must be one for each of the 2 scores.*got 1 values"),
        (([1.0, 2.0], [[[1.0]], [[2.0]]]), {}, ShapeError, r"got shape \(2, 1, 1\)"),
        (([1.0, 2.0], [[1.0], [1.0, 2.0]]), {}, ShapeError, "rows of one length; got a ragged sequence"),
        ((["2", "5"],), {}, DTypeError, "scores must be real numbers; got text"),
        (([1.0, None],), {}, DTypeError, "scores must be real numbers; got NoneType"),
        ((iter([1.0]),), {}, DTypeError, "scores must be real numbers; got list_iterator"),
        (([2**70, True],), {}, DTypeError, "scores must be real numbers; got bool"),
        (([10**400],), {}, DTypeError, "got a number beyond its largest; scale it"),
        ((np.ma.array([1.0, 9.0], mask=[False, True]),), {}, DTypeError, "got a masked one; fill it first"),
        (([1.0], np.ma.array([1.0])), {}, DTypeError, "values must be a plain array"),
        (([1j],), {}, DTypeError, "scores must be real numbers; got complex128"),
        (([True],), {}, DTypeError, "scores must be real numbers; got bool"),
        (([1.0],), {"block": 0}, OptionError, "block is a whole number of at least 1; got 0"),
        (([1.0],), {"block": 1.5}, OptionError, "block is a whole number of at least 1; got 1.5"),
        (([1.0],), {"form": "sum"}, OptionError, "form is one of 'unnormalised', 'normalised'; got 'sum'"),
        (([1.0],), {"fmt": "bf16"}, OptionError, "unknown format 'bf16'"),
    ],
)
def test_bad_input_is_named(arguments, options, error, message):
    with pytest.raises(error, match=message):
        recurrence(*arguments, **options)


def test_the_lse_of_a_row_with_plus_infinity_is_that_of_the_carry():
    import numpy as np

    from softcarry.carry import Carry

    scores = [np.inf, 3.0]
    assert recurrence(scores).final.lse == float(Carry.of(np.array(scores)).lse) == np.inf
    assert np.isnan(recurrence([np.inf, np.nan]).final.lse)
