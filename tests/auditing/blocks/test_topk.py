"""Each fault of a softmax with top-k is named with its smallest input; sound ones pass."""

import math
from collections import namedtuple

import numpy as np
import pytest

import softcarry as sc
from block_checks import found, the_finding
from softcarry.auditing.blocks import check

INF, NAN = math.inf, math.nan


def probabilities(x):
    x = np.asarray(x).astype(np.float64)
    m = x.max()
    p = np.exp(x - (0.0 if m == -INF else m))
    return p / (p.sum() or 1.0)


def of_lists(x, k):
    """Plain Python, sorted."""
    if any(s != s for s in x):
        return [NAN] * k, list(range(k))
    p = probabilities(list(x)).tolist()
    best = sorted(range(len(x)), key=lambda i: -x[i])[:k]
    return [p[i] for i in best], best


def of_arrays(x, k):
    """NumPy, by a stable argsort."""
    best = np.argsort(-x.astype(np.float64), kind="stable")[:k]
    return probabilities(x)[best], best


def one_pass(x, k):
    """The paper's algorithm: m, l and the k best in one pass."""
    m, total, best = -INF, 0.0, []
    for index, score in enumerate(x):
        s = float(score)
        new = s if s != s or s > m else m
        shift = 0.0 if new == -INF else new
        total = total * math.exp(m - shift) + (math.exp(s - shift) if s > -INF or s != s else 0.0)
        m = new
        best.append((-s, index))
        best = sorted(best)[:k]
    shift = 0.0 if m == -INF else m
    return np.array([math.exp(-s - shift) / total if total else 0.0 for s, _ in best]), [i for _, i in best]


def of_tensors(x, k):
    import torch

    p, indices = torch.sort(torch.softmax(x, dim=-1), dim=-1, descending=True, stable=True)
    return p[..., :k], indices[..., :k]


SOUND = {"lists": of_lists, "arrays": of_arrays, "one pass": one_pass, "softcarry": sc.softmax_topk}


@pytest.mark.parametrize("function", SOUND.values(), ids=SOUND)
@pytest.mark.parametrize("empty", ["any", "zero"])
def test_sound_functions_pass(function, empty, monkeypatch):
    if function is one_pass:
        from softcarry.auditing.blocks import _rows

        monkeypatch.setattr(_rows, "SIZES", (1, 2, 3, 33))
    assert found(function, "topk", empty=empty) == []


def test_torch_passes():
    pytest.importorskip("torch")
    assert found(of_tensors, "topk") == []


def test_torch_topk_does_not_promise_the_order_of_equal_scores():
    torch = pytest.importorskip("torch")
    report = check(lambda x, k: torch.topk(torch.softmax(x, -1), k), "topk")
    assert report.ok
    assert [finding.check for finding in report.findings] in ([], ["TIES"])


def softmax_of_the_best(x, k):
    best = of_arrays(x, k)[1]
    return probabilities(x[best]), best


def no_maximum(x, k):
    best = of_arrays(x, k)[1]
    return (np.exp(x) / np.exp(x).sum())[best], best


def in_row_order(x, k):
    best = np.sort(of_arrays(x, k)[1])
    return probabilities(x)[best], best


def last_first(x, k):
    best = np.argsort(x, kind="stable")[::-1][:k]
    return probabilities(x)[best], best


def looked_up_by_value(x, k):
    best = [list(x).index(s) for s in sorted(x, reverse=True)[:k]]
    return probabilities(x)[best], best


def padded(x, k):
    p, best = of_arrays(np.concatenate([x, np.zeros(max(0, k - len(x)))]), k)
    return p, best


def sentinel(x, k):
    return of_arrays(np.maximum(x, -1e4), k)


def masked_as_zero(x, k):
    return of_arrays(np.where(np.isneginf(x), 0.0, x), k)


def last_block_dropped(x, k):
    n = len(x)
    return of_arrays(x[: n - n % 16] if n > 16 else x, k)


def summed_in_16_bits(x, k):
    best = of_arrays(x, k)[1]
    p = np.exp(x - x.max())
    return (p / np.cumsum(p, dtype=np.float16 if x.dtype != np.float64 else None)[-1])[best], best


def one_index_without_keys(x, k):
    p, best = of_arrays(x, k)
    return p, np.zeros_like(best) if np.isneginf(x).all() else best


# fault: (function, name, part of the message, input, right)
WRONG = {
    "softmax of the best": (
        softmax_of_the_best,
        "NORMALISER",
        "top k alone",
        "x = [0, 2], k = 1",
        "[0.880797] at [1]",
    ),
    "indices first": (
        lambda x, k: of_arrays(x, k)[::-1],
        "PLAIN",
        "(indices, probabilities)",
        "x = [0, 2], k = 1",
        "at [1]",
    ),
    "indices from 1": (
        lambda x, k: (of_arrays(x, k)[0], of_arrays(x, k)[1] + 1),
        "PLAIN",
        "from 1",
        "x = [0, 2], k = 1",
        "at [1]",
    ),
    "scores": (
        lambda x, k: (x[of_arrays(x, k)[1]], of_arrays(x, k)[1]),
        "PLAIN",
        "returns scores",
        "x = [0, 2], k = 1",
        "0.88",
    ),
    "no maximum": (no_maximum, "OVERFLOW", "overflows", "x = [1000], k = 1", "[1] at [0]"),
    "floor of -1e4": (sentinel, "UNDERFLOW", "far below 0", "x = [-100000, -100001], k = 1", "0.731059"),
    "in row order": (in_row_order, "SORTED", "descending", "x = [0, 3, 1, 2], k = 3", "at [1, 3, 2]"),
    "looked up by value": (
        looked_up_by_value,
        "DUPLICATES",
        "the same index",
        "x = [0, 0], k = 2",
        "at [0, 1]",
    ),
    "last of equals": (last_first, "TIES", "a later one goes first", "x = [0, 0], k = 1", "[0.5] at [0]"),
    "padded": (padded, "K_TOO_LARGE", "no scores", "x = [0], k = 2", "an error, or [1] at [0]"),
    "masked as 0": (masked_as_zero, "NEGINF", "gets weight", "x = [-inf, 0], k = 1", "[1] at [1]"),
    "one index without keys": (
        one_index_without_keys,
        "ALL_NEGINF",
        "−inf alone",
        "x = [-inf, -inf], k = 2",
        "[0, 0] at [0, 1]",
    ),
    "NaN swallowed": (
        lambda x, k: of_arrays(np.nan_to_num(x, neginf=-INF, posinf=INF), k),
        "NAN",
        "NaN is swallowed",
        "x = [nan], k = 1",
        "nan",
    ),
    "last block dropped": (
        last_block_dropped,
        "TAIL",
        "some lengths",
        "x = [0] * 16 + [1], k = 1",
        "at [16]",
    ),
    "16-bit sums": (
        summed_in_16_bits,
        "STUCK",
        "too few bits",
        "zeros(2304, float16), k=1",
        "0.000434028 each",
    ),
}


@pytest.mark.parametrize("fault", WRONG)
def test_each_fault_is_named_with_its_smallest_input_and_the_right_value(fault):
    function, name, words, given, right = WRONG[fault]
    finding = the_finding(function, "topk", name)
    assert words in finding.message
    assert finding.evidence["input"] == given
    assert right in finding.evidence["right"]


def test_a_long_float32_row_must_be_summed_in_float32():
    def only_float32(x, k):
        return of_arrays(x, k) if x.dtype != np.float32 else summed_in_16_bits(x, k)

    assert the_finding(only_float32, "topk", "STUCK").evidence["input"] == "zeros(4096, float32), k=1"


def test_the_lse_may_come_as_a_third_part():
    assert found(lambda x, k: (*of_arrays(x, k), 0.0), "topk") == []


def test_a_result_with_names_is_read_by_them():
    named = namedtuple("named", "indices probabilities")
    assert found(lambda x, k: named(*of_arrays(x, k)[::-1]), "topk") == []


def test_k_beyond_n_may_be_refused_or_filled_up():
    def refused(x, k):
        if k > len(x):
            raise ValueError
        return of_arrays(x, k)

    def filled(x, k):
        p, best = of_arrays(x, k)
        more = k - len(p)
        return np.append(p, np.zeros(more)), np.append(best, -np.ones(more))

    assert found(refused, "topk") == []
    assert found(filled, "topk") == []
