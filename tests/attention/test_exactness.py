"""What attention owes to the bit: weights of 1, values that nobody sees, rows that are alone in the world.

Nothing here has a tolerance. One key, or equal values, give the value itself; NaN and infinities behind masks,
beyond lengths, in pads, in unused pages and between strides change no bit; a row does not depend on its
neighbours, on threads, on how its keys lie in memory; what is live reaches the rows that see it and no others.
"""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

import softcarry as sc
from attention_cases import (
    DTYPES,
    LAYOUTS,
    TORCH_LAYOUTS,
    Case,
    as_kind,
    as_numpy,
    assert_same_bits,
    of_kind,
    random_cases,
    to_pages,
)
from attention_oracle import INF, attention_of
from row_cases import KINDS, largest
from row_oracle import narrowed

NAN = math.nan
# One query, a few, and several blocks of them.
QUERIES = (1, 4, 70)
POISONS = {"NaN": NAN, "inf": INF, "-inf": -INF, "1e30": 1e30}


@pytest.fixture
def threads():
    before = sc.get_num_threads()
    yield sc.set_num_threads
    sc.set_num_threads(before)


def both(q, k, v, **options):
    """The output and the arrays of the carry."""
    carry = sc.attention_carry(q, k, v, **options)
    return sc.attention(q, k, v, **options), carry.m, carry.l, carry.o


def assert_all_same(got, want):
    for x, y in zip(got, want, strict=True):
        assert_same_bits(x, y)


def poison(name: str, dtype) -> float:
    return POISONS[name] if name != "1e30" else min(1e30, largest(dtype))


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


def poisoned(x: np.ndarray, where: np.ndarray, value: float) -> np.ndarray:
    """A copy of (b, h, t, d) with a value in all numbers of the tokens where (b, t) or (t,) is True."""
    copy = x.copy()
    copy[np.broadcast_to(where[..., None, :, None], x.shape)] = value
    return copy


@pytest.mark.parametrize("fill", POISONS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("tq", QUERIES)
class TestPoisonThatNobodySees:
    def held(self, q, k, v, where, value, want=None, **options):
        """Poison K, V and both where no query may see; compare with the clean call."""
        want = both(q, k, v, **options) if want is None else want
        other_k, other_v = poisoned(k, where, value), poisoned(v, where, value)
        assert_all_same(both(q, other_k, v, **options), want)
        assert_all_same(both(q, k, other_v, **options), want)
        assert_all_same(both(q, other_k, other_v, **options), want)

    def test_masked_keys(self, dtype, fill, tq):
        rng = np.random.default_rng(3)
        for tk in (3, 67, 200):
            q, k, v, _ = Case(2, 4, 2, tq, tk, 16, 24, dtype).build()
            dead = rng.random((2, tk)) < 0.4
            mask = ~dead[:, None, None, :] & (rng.random((2, 1, tq, tk)) < 0.9)
            bias = np.where(mask, 0.5, -INF).astype(np.float32)
            for options in ({"mask": mask}, {"bias": bias}, {"mask": mask, "softcap": 3.0, "splits": 2}):
                self.held(q, k, v, dead, poison(fill, dtype), **options)

    def test_a_key_block_that_is_masked_as_a_whole(self, dtype, fill, tq):
        q, k, v, _ = Case(1, 2, 1, tq, 700, 16, 24, dtype).build()
        where = np.arange(700)
        for dead in (where < 600, where >= 100, (where >= 128) & (where < 512)):
            self.held(q, k, v, dead, poison(fill, dtype), mask=~dead)

    def test_keys_outside_causality_and_windows(self, dtype, fill, tq):
        q, k, v, _ = Case(1, 4, 2, tq, tq + 90, 16, 24, dtype).build()
        where, value = np.arange(tq + 90), poison(fill, dtype)
        self.held(q, k, v, where >= tq, value, causal="top-left")
        self.held(q, k, v, where >= tq + 5, value, causal="top-left", mask=where < tq + 200)
        self.held(q, k, v, where < 90 - 7, value, window=(7, None))
        self.held(q, k, v, where < 90 - 7, value, window=(7, 0), causal=True)
        self.held(q, k, v, (where >= tq + 3), value, window=(None, 3), causal="top-left")
        self.held(q, k, v, where >= tq, value, window=(5, 70), causal="top-left")

    def test_keys_beyond_lengths(self, dtype, fill, tq):
        q, k, v, _ = Case(3, 4, 2, tq, 150, 16, 24, dtype).build()
        for lengths in ([150, 1, 0], [0, 0, 0], [67, 149, 32]):
            dead = np.arange(150) >= np.array(lengths)[:, None]
            for options in ({}, {"causal": True}, {"splits": 4, "sinks": np.zeros(4, np.float32)}):
                self.held(q, k, v, dead, poison(fill, dtype), kv_lengths=lengths, **options)

    def test_pads_between_packed_sequences(self, dtype, fill, tq):
        q, k, v, _ = Case(1, 4, 2, tq, 190, 16, 24, dtype).build()
        query_cuts, key_cuts = [0, tq // 2, tq // 2, tq], [0, 64, 70, 190]
        lengths, place = [33, 0, 97], np.arange(190)
        dead = np.ones(190, bool)
        for first, length in zip(key_cuts, lengths, strict=False):
            dead &= (place < first) | (place >= first + length)
        for causal in (False, True):
            self.held(
                *(q, k, v, dead, poison(fill, dtype)),
                cu_seqlens=(query_cuts, key_cuts),
                kv_lengths=lengths,
                causal=causal,
            )

    def test_pages_that_are_unused_and_rows_of_the_last(self, dtype, fill, tq):
        """Entries of the table beyond the pages needed may be anything too."""
        rng = np.random.default_rng(4)
        q, k, v, _ = Case(3, 4, 2, tq, 130, 16, 24, dtype).build()
        lengths = np.array([130, 0, 41])
        for page in (1, 7, 16, 64):
            cached_k, cached_v, table = to_pages(rng, k, v, lengths, page)
            used = np.isfinite(cached_v.astype(np.float64))[:, 0, :, 0]
            clean = [np.where(np.isnan(x), np.asarray(0, x.dtype), x) for x in (cached_k, cached_v)]
            safe = np.clip(table, 0, cached_k.shape[0] - 1)
            for options in ({}, {"causal": True, "splits": 2}):
                want = both(q, *clean, block_table=safe, kv_lengths=lengths, **options)
                for entries in (safe, table):
                    self.held(
                        *(q, *clean, ~used, poison(fill, dtype), want),
                        block_table=entries,
                        kv_lengths=lengths,
                        **options,
                    )

    def test_queries_that_see_nothing(self, dtype, fill, tq):
        q, k, v, _ = Case(2, 4, 2, tq, 67, 16, 24, dtype).build()
        blind = np.zeros((2, tq), bool)
        blind[1, tq // 2 :] = True
        mask = ~blind[:, None, :, None] & np.ones((1, 1, 1, 67), bool)
        want = both(q, k, v, mask=mask)
        assert_all_same(both(poisoned(q, blind, poison(fill, dtype)), k, v, mask=mask), want)

    def test_memory_between_strides(self, dtype, fill, tq):
        q, k, v, _ = Case(2, 4, 2, tq, 67, 16, 23, dtype).build()
        want = both(q, k, v, causal=True)

        def surrounded(x):
            shape = (x.shape[0], x.shape[1] + 1, x.shape[2] + 3, x.shape[3] + 5)
            view = np.full(shape, poison(fill, dtype), x.dtype)[:, 1:, 1:-2, 2:-3]
            view[...] = x
            return view

        assert_all_same(both(surrounded(q), surrounded(k), surrounded(v), causal=True), want)

    def test_neighbours(self, dtype, fill, tq):
        """Other entries of the batch, other heads, other packed sequences: all their own numbers."""
        q, k, v, _ = Case(3, 4, 2, tq, 67, 16, 24, dtype).build()
        value, want = poison(fill, dtype), both(q, k, v)
        for batch in range(3):
            others = np.broadcast_to((np.arange(3) != batch)[:, None], (3, 67))
            queries = np.broadcast_to((np.arange(3) != batch)[:, None], (3, tq))
            got = both(poisoned(q, queries, value), poisoned(k, others, value), poisoned(v, others, value))
            assert_all_same([x[batch] for x in got], [x[batch] for x in want])
        for kv_head in range(2):
            other_q, other_k, other_v = q.copy(), k.copy(), v.copy()
            other_q[:, 2 * (1 - kv_head) : 2 * (1 - kv_head) + 2] = value
            other_k[:, 1 - kv_head], other_v[:, 1 - kv_head] = value, value
            heads = slice(2 * kv_head, 2 * kv_head + 2)
            got = both(other_q, other_k, other_v)
            assert_all_same([x[:, heads] for x in got], [x[:, heads] for x in want])
        other = q.copy()
        other[:, 1::2] = value
        assert_all_same([x[:, ::2] for x in both(other, k, v)], [x[:, ::2] for x in want])
        if tq > 1:
            other = q.copy()
            other[:, :, 1::2] = value
            assert_all_same([x[:, :, ::2] for x in both(other, k, v)], [x[:, :, ::2] for x in want])


class TestRowsAlone:
    @pytest.mark.parametrize("splits", [None, 1, 3])
    @pytest.mark.parametrize("dtype", DTYPES)
    @pytest.mark.parametrize("tq", QUERIES)
    def test_batch_entries_and_heads_by_themselves(self, dtype, splits, tq):
        """No bit tells how large the batch is, nor how many groups of heads there are."""
        for tk in (33, 300, 1500):
            q, k, v, _ = Case(4, 6, 3, tq, tk, 16, 24, dtype).build()
            want = both(q, k, v, causal=True, splits=splits)
            for batch in range(4):
                part = slice(batch, batch + 1)
                got = both(q[part], k[part], v[part], causal=True, splits=splits)
                assert_all_same(got, [x[part] for x in want])
            for head in range(3):
                heads = slice(2 * head, 2 * head + 2)
                one = slice(head, head + 1)
                got = both(q[:, heads], k[:, one], v[:, one], causal=True, splits=splits)
                assert_all_same(got, [x[:, heads] for x in want])

    @pytest.mark.parametrize("dtype", DTYPES)
    def test_a_query_head_is_the_same_with_or_without_the_others_of_its_group(self, dtype):
        """The keys of a group are read once for all its heads; each of them repeated gives the same bits."""
        for tq in QUERIES:
            q, k, v, _ = Case(2, 6, 2, tq, 200, 16, 24, dtype).build()
            want = both(q, k, v)
            assert_all_same(both(q, np.repeat(k, 3, axis=1), np.repeat(v, 3, axis=1)), want)

    @pytest.mark.parametrize("splits", [None, 1, 3])
    @pytest.mark.parametrize("dtype", DTYPES)
    @pytest.mark.parametrize("causal", [False, True, "top-left"])
    def test_packed_sequences_by_themselves(self, dtype, splits, causal):
        for tq, tk in ((4, 200), (150, 300)):
            q, k, v, _ = Case(1, 4, 2, tq, tk, 16, 24, dtype).build()
            query_cuts, key_cuts = np.array([0, tq // 4, tq // 4, tq]), np.array([0, 0, 33, tk])
            options = {"causal": causal, "splits": splits}
            want = both(q, k, v, cu_seqlens=(query_cuts, key_cuts), **options)
            for s in range(3):
                rows = np.s_[:, :, query_cuts[s] : query_cuts[s + 1]]
                keys = np.s_[:, :, key_cuts[s] : key_cuts[s + 1]]
                assert_all_same(both(q[rows], k[keys], v[keys], **options), [x[rows] for x in want])

    @pytest.mark.parametrize("dtype", DTYPES)
    @pytest.mark.parametrize("tq", QUERIES)
    def test_a_length_is_the_same_as_fewer_keys(self, dtype, tq):
        """With splits given: by default the shape may decide, and the buffer is part of it."""
        q, k, v, _ = Case(1, 4, 2, tq, 300, 16, 24, dtype).build()
        for length in (1, 64, 129, 299):
            for splits in (1, 3):
                options = {"causal": True, "splits": splits}
                want = both(q, k[:, :, :length], v[:, :, :length], **options)
                assert_all_same(both(q, k, v, kv_lengths=[length], **options), want)

    @pytest.mark.parametrize("dtype", DTYPES)
    @pytest.mark.parametrize("page", [1, 3, 16, 64, 128])
    def test_a_paged_cache_is_the_same_as_a_contiguous_one(self, dtype, page):
        """Of the same number of rows, so that nothing else differs."""
        rng = np.random.default_rng(6)
        for tq in QUERIES:
            for splits in (None, 1, 3):
                total = -(-260 // page) * page
                q, k, v, _ = Case(3, 4, 2, tq, total, 16, 24, dtype).build()
                lengths = np.array([total, 0, 131])
                options = {"kv_lengths": lengths, "causal": True, "splits": splits}
                cached_k, cached_v, table = to_pages(rng, k, v, lengths, page)
                got = both(q, cached_k, cached_v, block_table=table, **options)
                assert_all_same(got, both(q, k, v, **options))

    @pytest.mark.parametrize("dtype", DTYPES)
    @pytest.mark.parametrize("kind", KINDS)
    def test_layouts(self, kind, dtype):
        """(b, t, h, d) memory, slices, steps, reversals: the bits of contiguous arrays."""
        for tq, tk in ((1, 200), (4, 67), (70, 130)):
            case = Case(2, 4, 2, tq, tk, 24, 17, dtype, options=("causal", "mask"))
            q, k, v, options = case.build()
            want = both(*(as_kind(kind, x) for x in (q, k, v)), **of_kind(kind, options))
            for layout in TORCH_LAYOUTS if kind == "torch" else LAYOUTS:
                other = replace(case, layouts=(layout,) * 3, kind=kind).arguments()
                assert_all_same(both(*other[:3], **other[3]), want)

    def test_the_library_does_not_show(self):
        for case in random_cases(60, start=1000):
            if set(case.layouts) <= set(TORCH_LAYOUTS):
                want = [replace(case, kind="numpy").arguments(), replace(case, kind="torch").arguments()]
                numpy, torches = (both(*arguments[:3], **arguments[3]) for arguments in want)
                assert_all_same([as_numpy(x) for x in torches], numpy)


class TestRepeatedRuns:
    @pytest.mark.parametrize("case", random_cases(60, start=2000), ids=str)
    def test_threads_and_repetition(self, case, threads):
        q, k, v, options = case.arguments()
        threads(1)
        want = both(q, k, v, **options)
        for count in (1, 2, 3, 5):
            threads(count)
            assert_all_same(both(q, k, v, **options), want)

    @pytest.mark.parametrize("dtype", DTYPES)
    @pytest.mark.parametrize(("tq", "tk"), [(1, 9000), (3, 4001), (600, 700), (33, 2500)])
    def test_threads_where_there_is_work_for_several(self, dtype, tq, tk, threads):
        q, k, v, _ = Case(2, 8, 2, tq, tk, 32, 24, dtype).build()
        for options in ({}, {"causal": True}, {"splits": 5}, {"splits": 1, "window": (300, 20)}):
            threads(1)
            want = both(q, k, v, **options)
            for count in (2, 3, 5, 3):
                threads(count)
                assert_all_same(both(q, k, v, **options), want)

    def test_several_callers_at_once(self, threads):
        from concurrent.futures import ThreadPoolExecutor

        threads(3)
        cases = [case.arguments() for case in random_cases(24, start=3000)]
        want = [both(*case[:3], **case[3]) for case in cases]
        with ThreadPoolExecutor(6) as callers:
            for _ in range(3):
                got = callers.map(lambda case: both(*case[:3], **case[3]), cases)
                for results, same in zip(got, want, strict=True):
                    assert_all_same(results, same)

    def test_a_threshold_that_is_never_passed_and_one_of_zero(self):
        q, k, v, _ = Case(2, 4, 2, 20, 200, 16, 24).build()
        assert_all_same(both(q, k, v, rescale_threshold=0.0), both(q, k, v))
        # In a row whose first key has the greatest score there is nothing to put off.
        k[:, :, 0] = 0
        q[..., 0], k[:, :, 0, 0], k[:, :, 1:, 0] = 4.0, 20.0, -20.0
        assert_all_same(both(q, k, v, rescale_threshold=8.0, splits=1), both(q, k, v, splits=1))


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
            v[...] = 1.0
            v[0, 0, at, 2] = fill
            for splits in (None, 1, 4):
                output, _ = self.assert_classes(q, k, v, bias=bias, splits=splits)
                assert not np.isfinite(output[..., 2].astype(np.float64)).any()
                assert (np.delete(output, 2, axis=-1) == 1).all()

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
        assert_all_same(both(q, k, v), both(q, np.where(np.isinf(k), np.asarray(0, k.dtype), k), v, mask=mask))
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
