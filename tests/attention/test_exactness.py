"""What attention owes to the bit: weights of 1, live NaN and infinities, rows without keys.

Nothing here has a tolerance. One key, or equal values, give the value itself; what is live reaches the rows
that see it, whatever its weight, and no others; rows without keys are empty carries, but for sinks.
"""

import math

import numpy as np
import pytest
import torch

import softcarry as sc
from attention_agreement import assert_all_same, both
from attention_cases import DTYPES, Case, as_kind, as_numpy, assert_same_bits, of_kind
from attention_oracle import INF, attention_of
from row_cases import KINDS, largest
from row_oracle import narrowed

NAN = math.nan
# One query, a few, and several blocks of them.
QUERIES = (1, 4, 70)


class TestWeightsOfOne:
    """Softmax of one score is 1 exactly, and a mean of equal numbers is that number."""

    @pytest.mark.parametrize("kind", KINDS)
    @pytest.mark.parametrize("dtype", DTYPES)
    def test_one_key(self, kind, dtype):
        for tq in (1, 3, 33, 130):
            for data in ("normal", "huge"):
                q, k, v, _ = Case(2, 4, 2, tq, 1, 17, 24, dtype, data=data).build()
                edges = [largest(dtype), -largest(dtype), float(np.nextafter(0, 1)), 1 / 3]
                v[0, 0, 0, :4] = narrowed(edges, dtype).astype(v.dtype)
                given = [as_kind(kind, x) for x in (q, k, v)]
                want = np.broadcast_to(np.repeat(v, 2, axis=1), (2, 4, tq, 24))
                output, m, l, o = (as_numpy(x) for x in both(*given))
                assert_same_bits(output, want)
                np.testing.assert_array_equal(o, want.astype(o.dtype))
                np.testing.assert_array_equal(l, 1.0)
                assert np.isfinite(m).all()

    @pytest.mark.parametrize("dtype", DTYPES)
    def test_subnormal_values(self, dtype):
        tiny = np.array([1, 5, 77], np.float64) * 2.0 ** {"float64": -1074, "float32": -149}.get(dtype, -133)
        tiny = tiny if dtype != "float16" else np.array([1, 5, 77]) * 2.0**-24
        v = np.broadcast_to(narrowed(tiny, dtype).astype(DTYPES[dtype]), (1, 1, 1, 3))
        for tq in QUERIES:
            q = np.ones((1, 1, tq, 8), v.dtype)
            assert_same_bits(sc.attention(q, q[:, :, :1], v), np.broadcast_to(v, (1, 1, tq, 3)))

    @pytest.mark.parametrize("dtype", DTYPES)
    @pytest.mark.parametrize("tq", QUERIES)
    def test_one_live_key_among_many(self, dtype, tq):
        """By mask, bias, window, causality, lengths, cuts and pages, wherever the key stands."""
        q, k, v, _ = Case(1, 4, 2, tq, tq + 60, 16, 24, dtype, data="huge").build()
        tk, doubled = tq + 60, np.repeat(v, 2, axis=1)
        for at in (0, 1, 31, 32, tk - 1):
            mask = np.arange(tk) == at
            want = np.broadcast_to(doubled[:, :, at : at + 1], (1, 4, tq, 24))
            assert_same_bits(sc.attention(q, k, v, mask=mask), want)
            assert_same_bits(sc.attention(q, k, v, bias=np.where(mask, -3.0, -INF).astype(np.float32)), want)
            output = sc.attention(q, k, v, mask=mask, softcap=5.0, splits=3, rescale_threshold=4.0)
            assert_same_bits(output, want)
        for causal, first in ((True, 60), ("top-left", 0)):
            want = doubled[:, :, first : first + tq]
            assert_same_bits(sc.attention(q, k, v, causal=causal, window=(0, 0)), want)
        assert_same_bits(sc.attention(q, k, v, causal="top-left")[:, :, 0], doubled[:, :, 0])
        want = np.broadcast_to(doubled[:, :, :1], (1, 4, tq, 24))
        assert_same_bits(sc.attention(q, k, v, kv_lengths=[1]), want)
        cuts = np.arange(tq + 1)
        assert_same_bits(sc.attention(q, k[:, :, :tq], v[:, :, :tq], cu_seqlens=cuts), doubled[:, :, :tq])

    @pytest.mark.parametrize("dtype", DTYPES)
    @pytest.mark.parametrize("tq", QUERIES)
    def test_equal_values(self, dtype, tq):
        """Whatever the scores are. Column c holds c-th multiples of an odd fraction, of both signs."""
        for tk in (2, 3, 65, 200, 513):
            for data in ("normal", "growing", "huge"):
                q, k, v, _ = Case(2, 2, 1, tq, tk, 16, 24, dtype, data=data).build()
                v[...] = v[:, :, :1].copy()
                want = np.broadcast_to(np.repeat(v[:, :, :1], 2, axis=1), (2, 2, tq, 24))
                assert_same_bits(sc.attention(q, k, v), want)
                assert_same_bits(sc.attention(q, k, v, splits=3), want)
                mask = np.random.default_rng(tk).random((tq, tk)) < 0.5
                mask[:, 0] = True
                assert_same_bits(sc.attention(q, k, v, mask=mask), want)

    @pytest.mark.parametrize("dtype", DTYPES)
    @pytest.mark.parametrize("tq", QUERIES)
    def test_equal_values_of_the_keys_that_a_row_sees(self, dtype, tq):
        """Other rows see other values, and nobody's are all equal."""
        q, k, v, _ = Case(2, 4, 2, tq, tq + 131, 16, 24, dtype).build()
        for width in (3, 40):
            group = np.arange(tq + 131) // width
            values = v[:, :, group * width]
            mask = group[:tq, None] == group
            want = np.repeat(values[:, :, :tq], 2, axis=1)
            assert_same_bits(sc.attention(q, k, values, mask=mask), want)
            bias = np.where(mask, 0.5, -INF).astype(np.float32)
            assert_same_bits(sc.attention(q, k, values, bias=bias, splits=2), want)
        values = v.copy()
        values[:, :, :40] = v[:, :, :1]
        want = np.broadcast_to(np.repeat(v[:, :, :1], 2, axis=1), (2, 4, tq, 24))
        assert_same_bits(sc.attention(q, k, values, kv_lengths=[40, 33]), want)
        rows = min(tq, 40)
        got = sc.attention(q, k, values, causal="top-left")
        assert_same_bits(got[:, :, :rows], np.ascontiguousarray(want[:, :, :rows]))

    def test_powers_of_two_keys_of_equal_score_give_exact_means(self):
        """Zero queries make every weight 1; integers below 2^24 add up exactly in any order."""
        rng = np.random.default_rng(2)
        for tq in QUERIES:
            for tk in (2, 64, 1024, 4096):
                q, k = np.zeros((1, 2, tq, 8), np.float32), rng.normal(size=(1, 2, tk, 8)).astype(np.float32)
                v = rng.integers(-1000, 1000, (1, 2, tk, 5)).astype(np.float32)
                want = np.broadcast_to(v.sum(axis=2, keepdims=True) / tk, (1, 2, tq, 5))
                output, m, l, o = both(q, k, v)
                assert_same_bits(output, np.ascontiguousarray(want))
                assert (m == 0).all()
                assert (l == tk).all()
                np.testing.assert_array_equal(o, want * tk)


class TestWhatIsLive:
    """A NaN or infinity that a row attends to reaches it, whatever its weight, and reaches no other row."""

    def assert_classes(self, q, k, v, **options):
        truth = attention_of(q, k, v, **options)
        output, m, l, o = both(q, k, v, **options)
        finite = np.isfinite(truth.output.astype(np.float64))
        assert (~finite).any()
        for got in (output, o):
            np.testing.assert_array_equal(np.isfinite(got.astype(np.float64)), finite)
        rows = np.isfinite(truth.m.astype(np.float64)) | (truth.m == -INF)
        for got in (m, l):
            np.testing.assert_array_equal(np.isfinite(got) | (got == -INF), rows)
        return output, truth

    @pytest.mark.parametrize("fill", [NAN, INF, -INF])
    @pytest.mark.parametrize("dtype", DTYPES)
    @pytest.mark.parametrize("tq", QUERIES)
    def test_values(self, dtype, fill, tq):
        for at in (0, 5, 66):
            q, k, v, _ = Case(2, 4, 2, tq, 67, 16, 24, dtype).build()
            clean = both(q, k, v, causal=True)
            v[1, 1, at, 3] = fill
            output, truth = self.assert_classes(q, k, v, causal=True)
            reached = ~np.isfinite(truth.output.astype(np.float64))
            untouched = np.where(reached, output, clean[0])
            assert_same_bits(output, untouched)
            signs = np.isinf(output.astype(np.float64))
            assert (output[signs] == np.asarray(fill, output.dtype)).all()

    @pytest.mark.parametrize("fill", [NAN, INF, -INF])
    @pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
    @pytest.mark.parametrize("tq", QUERIES)
    def test_values_whose_weight_underflows(self, dtype, fill, tq):
        """Else the result would depend on how the keys were split."""
        q, k, v, _ = Case(1, 2, 1, tq, 300, 8, 9, dtype).build()
        for at in (0, 130, 299):
            bias = np.zeros(300, np.float32)
            bias[at] = -3000.0
            for splits in (None, 1, 4):
                clean = sc.attention(q, k, v, bias=bias, splits=splits)
                poisoned = v.copy()
                poisoned[0, 0, at, 2] = fill
                output, _ = self.assert_classes(q, k, poisoned, bias=bias, splits=splits)
                assert not np.isfinite(output[..., 2].astype(np.float64)).any()
                assert_same_bits(np.delete(output, 2, axis=-1), np.delete(clean, 2, axis=-1))

    @pytest.mark.parametrize("dtype", DTYPES)
    @pytest.mark.parametrize("tq", QUERIES)
    def test_nan_in_keys_and_queries(self, dtype, tq):
        for name in ("k", "q"):
            for position in (0, tq - 1):
                q, k, v, _ = Case(2, 4, 2, tq, tq + 40, 16, 24, dtype).build()
                clean = both(q, k, v, causal=True)
                (k if name == "k" else q)[1, 1, position, 3] = NAN
                output, truth = self.assert_classes(q, k, v, causal=True)
                reached = np.isnan(truth.output.astype(np.float64))
                assert_same_bits(output, np.where(reached, output, clean[0]))
                assert np.isnan(output.astype(np.float64)[reached]).all()

    @pytest.mark.parametrize("dtype", DTYPES)
    @pytest.mark.parametrize("tq", QUERIES)
    def test_infinities_in_keys(self, dtype, tq):
        """A score of +inf makes its row NaN, one of −inf is masked, and inf − inf or 0·inf is NaN."""
        q, k, v, _ = Case(1, 4, 2, tq, tq + 40, 16, 24, dtype).build()
        q[..., 3] = np.abs(q[..., 3]) + np.asarray(0.25, q.dtype)
        k[0, 0, 7, 3] = INF
        self.assert_classes(q, k, v)
        self.assert_classes(q, k, v, causal=True, splits=2)
        k[0, 0, 7, 3] = -INF
        mask = ~np.isinf(k.astype(np.float64)).any(axis=-1)[:, :, None].repeat(2, axis=1)
        assert_all_same(
            both(q, k, v), both(q, np.where(np.isinf(k), np.asarray(0, k.dtype), k), v, mask=mask)
        )
        k[0, 0, 7, :2] = [INF, -INF]
        self.assert_classes(q, k, v)

    @pytest.mark.parametrize("tq", QUERIES)
    def test_nan_and_infinity_in_a_bias(self, tq):
        q, k, v, _ = Case(1, 2, 1, tq, 67, 8, 9).build()
        for fill in (NAN, INF):
            bias = np.zeros((tq, 67), np.float32)
            bias[tq // 2, 40] = fill
            self.assert_classes(q, k, v, bias=bias)


class TestRowsWithoutKeys:
    def assert_empty(self, results, rows=np.s_[...]):
        output, m, l, o = (as_numpy(x)[rows] for x in results)
        assert output.size or not m.size
        assert (m == -INF).all()
        for zeros in (output, l, o):
            assert not zeros.astype(np.float64).any()
            assert not np.signbit(zeros.astype(np.float64)).any()

    @pytest.mark.parametrize("kind", KINDS)
    @pytest.mark.parametrize("dtype", DTYPES)
    @pytest.mark.parametrize("tq", [1, 4, 70, 300])
    def test_every_reason(self, kind, dtype, tq):
        q, k, v, _ = Case(2, 4, 2, tq, 67, 16, 24, dtype).build()
        v[...] = -np.abs(v)
        nothing = np.zeros((), bool)
        reasons = {
            "mask": {"mask": nothing},
            "bias": {"bias": np.full((67,), -INF, np.float32)},
            "lengths": {"kv_lengths": np.array([0, 0])},
            "disjoint": {"window": (0, 0), "mask": ~np.eye(tq, 67, 67 - tq, dtype=bool)},
            "sink of nothing": {"mask": nothing, "sinks": np.full(4, -INF, np.float32)},
            "softcap": {"mask": nothing, "softcap": 2.0, "splits": 3, "rescale_threshold": 3.0},
            "alibi": {"mask": nothing, "alibi": np.ones(4, np.float32), "causal": True},
        }
        given = [as_kind(kind, x) for x in (q, k, v)]
        for options in reasons.values():
            results = both(*given, **of_kind(kind, options))
            self.assert_empty(results)
            carry = sc.Carry(*results[1:])
            assert (as_numpy(carry.lse) == -INF).all()
            assert not as_numpy(carry.output).any()
        no_keys = [as_kind(kind, x[:, :, :0].copy()) for x in (k, v)]
        for causal in (False, True, "top-left"):
            self.assert_empty(both(given[0], *no_keys, causal=causal))

    @pytest.mark.parametrize("dtype", DTYPES)
    def test_more_queries_than_keys_leave_the_first_without(self, dtype):
        for tq, tk in ((5, 3), (70, 3), (300, 200), (130, 1)):
            q, k, v, _ = Case(2, 4, 2, tq, tk, 16, 24, dtype).build()
            results = both(q, k, v, causal=True)
            self.assert_empty(results, np.s_[:, :, : tq - tk])
            assert (results[1][:, :, tq - tk :] > -INF).all()

    def test_the_neighbours_of_empty_rows_are_not_changed(self):
        for tq in QUERIES:
            q, k, v, _ = Case(2, 4, 2, tq, 67, 16, 24).build()
            mask = np.random.default_rng(1).random((2, 4, tq, 67)) < 0.5
            want = both(q, k, v, mask=mask)
            empty = np.random.default_rng(2).random((2, 4, tq)) < 0.4
            results = both(q, k, v, mask=mask & ~empty[..., None])
            self.assert_empty(results, empty)
            assert_all_same([x[~empty] for x in results], [x[~empty] for x in want])

    def test_lengths_of_zero_beside_others(self):
        q, k, v, _ = Case(3, 4, 2, 5, 67, 16, 24).build()
        results = both(q, k, v, kv_lengths=[67, 0, 3])
        self.assert_empty(results, np.s_[1])
        assert (results[1][[0, 2]] > -INF).all()

    def test_empty_packed_sequences(self):
        q, k, v, _ = Case(1, 4, 2, 40, 67, 16, 24).build()
        results = both(q, k, v, cu_seqlens=([0, 10, 10, 30, 40], [0, 30, 30, 30, 67]))
        self.assert_empty(results, np.s_[:, :, 10:30])
        assert (results[1][:, :, :10] > -INF).all()
        assert (results[1][:, :, 30:] > -INF).all()

    @pytest.mark.parametrize("kind", KINDS)
    @pytest.mark.parametrize("dtype", DTYPES)
    def test_no_rows_at_all(self, kind, dtype):
        for b, heads, tq, tk in ((0, (4, 2), 5, 7), (2, (4, 2), 0, 7), (0, (4, 2), 0, 0), (2, (4, 2), 0, 0)):
            q, k, v, _ = Case(b, *heads, tq, tk, 8, 9, dtype).build()
            output, m, l, o = both(*(as_kind(kind, x) for x in (q, k, v)), causal=True)
            assert tuple(output.shape) == tuple(o.shape) == (b, 4, tq, 9)
            assert tuple(m.shape) == tuple(l.shape) == (b, 4, tq)

    def test_sinks_fill_rows_without_keys(self):
        sinks = np.array([0.5, -INF, -3.0, 700.0], np.float32)
        for tq in QUERIES:
            q, k, v, _ = Case(2, 4, 2, tq, 67, 16, 24).build()
            for options in ({"mask": np.zeros((), bool)}, {"kv_lengths": [0, 0], "splits": 3}):
                output, m, l, o = both(q, k, v, sinks=sinks, **options)
                np.testing.assert_array_equal(m, np.broadcast_to(sinks[:, None], m.shape))
                np.testing.assert_array_equal(l, np.broadcast_to((sinks > -INF)[:, None], l.shape))
                assert not output.any()
                assert not o.any()
            assert_all_same(both(q, k, v, sinks=np.full(4, -INF, np.float32)), both(q, k, v))


def test_torch_gets_memory_of_its_own():
    """Two results are two arrays, and the inputs none of them."""
    q, k, v = (torch.from_numpy(x) for x in Case(1, 2, 1, 4, 20, 8, 8).build()[:3])
    first, second = sc.attention(q, k, v), sc.attention(q, k, v)
    first.zero_()
    assert second.abs().min() > 0
    assert (sc.attention(q, k, v) == second).all()
