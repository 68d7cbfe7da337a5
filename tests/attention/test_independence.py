"""What changes no bit of attention: what nobody sees, neighbours, threads, and how the keys lie in memory.

Nothing here has a tolerance. NaN and infinities behind masks, beyond lengths, in pads, in unused pages and
between strides change nothing; a row is the same alone, in a batch, packed, in pages, of any layout and any
library, in any number of threads, run after run.
"""

import math
from dataclasses import replace

import numpy as np
import pytest

import softcarry as sc
from attention_agreement import assert_all_same, both
from attention_cases import (
    LAYOUTS,
    TORCH_LAYOUTS,
    Case,
    as_kind,
    as_numpy,
    of_kind,
    random_cases,
    to_pages,
)
from attention_oracle import INF
from row_cases import DTYPES, KINDS, largest

NAN = math.nan
# One query, a few, and several blocks of them.
QUERIES = (1, 4, 70)
POISONS = {"NaN": NAN, "inf": INF, "-inf": -INF, "1e30": 1e30}


@pytest.fixture
def threads():
    before = sc.get_num_threads()
    yield sc.set_num_threads
    sc.set_num_threads(before)


def poison(name: str, dtype) -> float:
    return POISONS[name] if name != "1e30" else min(1e30, largest(dtype))


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

    def test_masked_keys_beside_equal_values(self, dtype, fill, tq):
        """What is known of all values must not decide how the live ones are summed."""
        q, k, v, _ = Case(2, 4, 2, tq, 200, 16, 24, dtype).build()
        v[...] = v[:, :, :1].copy()
        dead = np.random.default_rng(3).random((2, 200)) < 0.4
        for options in (
            {"mask": ~dead[:, None, None, :]},
            {"bias": np.where(dead[:, None, None], -INF, 0.25)},
        ):
            self.held(q, k, v, dead, poison(fill, dtype), **options)
        lengths = [150, 90]
        self.held(
            q, k, v, np.arange(200) >= np.array(lengths)[:, None], poison(fill, dtype), kv_lengths=lengths
        )
        self.held(q, k, v, np.arange(200) >= tq, poison(fill, dtype), causal="top-left")

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
