"""Each fault of a softmax is named with its smallest input; sound ones pass."""

import math

import numpy as np
import pytest

import softcarry as sc
from block_checks import found, the_finding
from softcarry.auditing.blocks import _rows, check
from softcarry.errors import SubjectError

INF, NAN = math.inf, math.nan


def of_lists(x):
    """Plain Python, one row."""
    if any(s != s or s == INF for s in x):
        return [NAN] * len(x)
    m = max(x)
    if m == -INF:
        return [0.0] * len(x)
    terms = [math.exp(s - m) for s in x]
    return [term / math.fsum(terms) for term in terms]


def of_arrays(x, *, axis=-1, shift=None, work=np.float64, divide=True):
    """NumPy, in float64 whatever x is in; the keywords each put one fault in."""
    x = x.astype(work)
    m = x.max(axis, keepdims=True) if shift is None else shift(x)
    p = np.exp(x - np.where(np.isneginf(m), 0.0, m).astype(work))
    total = p.sum(axis, keepdims=True)
    return p / np.where(total == 0.0, 1.0, total).astype(work)


def of_tensors(x):
    import torch

    return torch.softmax(x, dim=-1)


def by_the_lse(x):
    """e^(x − lse), with logaddexp, which keeps no maximum."""
    lse = np.logaddexp.reduce(x.astype(np.float64), axis=-1, keepdims=True)
    return np.exp(x - np.where(np.isneginf(lse), 0.0, lse))


SOUND = {
    "lists": of_lists,
    "arrays": lambda x: of_arrays(x),
    "by the lse": by_the_lse,
    "softcarry": sc.softmax,
}


@pytest.mark.parametrize("function", SOUND.values(), ids=SOUND)
@pytest.mark.parametrize("empty", ["any", "zero"])
def test_sound_softmaxes_pass(function, empty):
    report = check(function, "softmax", empty=empty)
    assert [finding.message for finding in report.findings] == []
    assert report.profile["float64"]["row of −inf alone"].value == "zero"


def test_torch_passes_and_gives_nan_where_0_is_asked_for():
    pytest.importorskip("torch")
    report = check(of_tensors, "softmax")
    assert [finding.message for finding in report.findings] == []
    assert report.profile["float64"]["row of −inf alone"].value == "nan"
    finding = the_finding(of_tensors, "softmax", "ALL_NEGINF", empty="zero")
    assert (finding.evidence["came"], finding.evidence["right"]) == ("[nan]", "[0]")


def test_jax_passes_but_works_in_float32(monkeypatch):
    jax = pytest.importorskip("jax")
    # Every length is compiled anew.
    monkeypatch.setattr(_rows, "SIZES", (1, 33))
    assert found(lambda x: jax.nn.softmax(x, axis=-1), "softmax") == ["PRECISION"]


def arrays(**fault):
    return lambda x: of_arrays(x, **fault)


def mutated(before=lambda x: x, after=lambda p: p):
    return lambda x: after(of_arrays(before(np.asarray(x, np.float64))))


def last_block_dropped(x):
    n = x.shape[-1]
    whole = n - n % 32 if n > 32 else n
    return np.concatenate([of_arrays(x[..., :whole]), np.zeros((*x.shape[:-1], n - whole))], axis=-1)


def odd_widths_wrong(x):
    """The predicate of pytorch#147284."""
    n = x.shape[-1]
    return of_arrays(x) * (1.01 if 512 < n < 1024 and n % 2 and n % 32 != 31 else 1.0)


def summed_in_16_bits(x):
    p = np.exp(x - x.max(-1, keepdims=True))
    return p / np.cumsum(p, axis=-1, dtype=x.dtype)[..., -1:]


def swallows_infinity(x):
    return np.where(np.isposinf(x).any(-1, keepdims=True), 0.5, of_arrays(x))


def multiplied_mask(x):
    """Masked scores become 0 · 1 = 0 rather than −inf."""
    return of_arrays(np.where(np.isneginf(x), 0.0, x))


def axis_0_of_many(x):
    return of_arrays(x, axis=0 if x.ndim == 3 else -1)


# fault: (function, name, part of the message, input, right)
WRONG = {
    "no division": (
        lambda x: np.exp(x - x.max(-1, keepdims=True)),
        "PLAIN",
        "plain row",
        "[0, 0]",
        "[0.5, 0.5]",
    ),
    "base 2": (mutated(lambda x: x * math.log(2.0)), "PLAIN", "plain row", "[0, 1]", "0.731059"),
    "no maximum": (arrays(shift=np.zeros_like), "OVERFLOW", "overflows", "[1000]", "[1]"),
    "mean for maximum": (
        arrays(shift=lambda x: x.mean(-1, keepdims=True)),
        "OVERFLOW",
        "overflows",
        "[0, 2000]",
        "[0, 1]",
    ),
    "maximum of 0": (
        arrays(shift=lambda x: x.max(-1, keepdims=True, initial=0.0)),
        "UNDERFLOW",
        "underflows",
        "[-1000]",
        "[1]",
    ),
    "clipped": (mutated(lambda x: np.clip(x, -50, 50)), "SHIFT", "adding a constant", "[60, 61]", "0.731059"),
    "mask by a product": (multiplied_mask, "NEGINF", "gets weight", "[-inf, 0]", "[0, 1]"),
    "sentinel -1e9": (
        mutated(lambda x: np.where(np.isneginf(x), -1e9, x)),
        "SENTINEL",
        "finite number",
        "[-1e+10, -inf]",
        "[1, 0]",
    ),
    "garbage without keys": (
        lambda x: np.where(np.isneginf(x).all(-1, keepdims=True), 2.0, of_arrays(x)),
        "ALL_NEGINF",
        "neither 0, nor NaN",
        "[-inf]",
        "[0]",
    ),
    "raises without keys": (
        lambda x: 1 / 0 if np.isneginf(x).all() else of_arrays(x),
        "ALL_NEGINF",
        "−inf alone",
        "[-inf]",
        "[0]",
    ),
    "NaN to 0": (mutated(after=np.nan_to_num), "NAN", "NaN is swallowed", "[nan]", "[nan]"),
    "+inf swallowed": (swallows_infinity, "POSINF", "finite probabilities", "[inf, 0]", "[nan, nan]"),
    "first axis": (arrays(axis=0), "AXIS", "another axis", "[[0, 0], [0, 1]]", "[0.268941, 0.731059]"),
    "first axis of three": (
        axis_0_of_many,
        "AXIS",
        "another axis",
        "[[[0, 0], [0, 1]], [[0, 0], [0, 1]]]",
        "0.268941",
    ),
    "one maximum for all rows": (
        arrays(shift=np.max),
        "ROWS",
        "the row beside it",
        "[[0, 1], [2000, 0]]",
        "first row [0.268941, 0.731059]",
    ),
    "last block dropped": (last_block_dropped, "TAIL", "some lengths", "[0] * 32 + [1]", "0.0782954"),
    "odd widths": (odd_widths_wrong, "TAIL", "some lengths", "[0] * 512 + [1]", "sum 1"),
    "16-bit sums": (
        summed_in_16_bits,
        "STUCK",
        "16-bit format",
        "zeros(272, bfloat16)",
        "272 probabilities of 0.00367647, sum 1",
    ),
    "16-bit sums, float16 only": (
        lambda x: of_arrays(x) if x.dtype.name == "bfloat16" else summed_in_16_bits(x),
        "STUCK",
        "16-bit format",
        "zeros(2304, float16)",
        "sum 1",
    ),
    "float32": (arrays(work=np.float32), "PRECISION", "no more exact than float32", "[0, 1]", "0.731059"),
}


@pytest.mark.parametrize("fault", WRONG)
def test_each_fault_is_named_with_its_smallest_input_and_the_right_value(fault):
    function, name, words, given, right = WRONG[fault]
    finding = the_finding(function, "softmax", name)
    assert words in finding.message
    assert finding.evidence["input"] == given
    assert right in finding.evidence["right"]


def test_one_fault_makes_one_finding():
    for fault in ("no maximum", "maximum of 0", "first axis", "sentinel -1e9"):
        function, name, *_ = WRONG[fault]
        assert found(function, "softmax") == [name]


def test_rows_are_asked_of_functions_that_take_several():
    report = check(of_lists, "softmax")
    assert {skip.check for skip in report.skipped} == {"AXIS", "ROWS"}


def test_functions_of_two_axes_only_are_called_with_them():
    def two_axes(x):
        rows, n = x.shape
        return of_arrays(x.reshape(rows, n))

    assert found(two_axes, "softmax") == []


def test_a_function_that_is_no_softmax_is_refused():
    with pytest.raises(SubjectError, match=r"the softmax could not be called .*expected f\(x\) -> p"):
        check(lambda x: "p", "softmax")
