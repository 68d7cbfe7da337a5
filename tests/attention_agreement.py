"""When an implementation of attention agrees with the oracle: the bounds on what rounding makes of it.

The tolerance is the master bound, `attention_error_bound`, of a kernel that keeps m, l, o and P in the
working format and adds up in blocks of any size; `row_bounds` says what the options add to it. An output in
float16 or bfloat16 may differ by that and one rounding. m, m + ln l and o / l are bounded each: that fixes
the carry.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

import softcarry as sc
from attention_cases import Case, as_kind, as_numpy, assert_same_bits, of_kind
from attention_oracle import INF, Rows, Truth, attention_of, wide_of
from softcarry.numerics import attention_error_bound
from softcarry.numerics.attention_bounds import CarryModel

LOG2_E = 1.0 / math.log(2.0)

# Stored mantissa bits, least exponent of a normal number.
LAYOUT = {"float64": (52, -1022), "float32": (23, -126), "float16": (10, -14), "bfloat16": (7, -126)}

# What exponentials may err by, in units in the last place: the 1 to 2 of the master bound.
EXP_ULPS = 2.0

# Roundings of the size of the cap in c·tanh(x/c), with tanh y = 1 − 2/(1 + e^(2y)): x and 1/c each move y by
# u·|y|, which weighs sech²y·|y| < 1/2 at most; the exponential errs by 4u, which weighs 2e^(2y)/(1 + e^(2y))²
# ≤ 1/2; 1 + e, the quotient, 1 − 2/(1 + e) and the product with c round once each, by at most u·c; c itself
# is rounded, and so is c·log2 e. tanh' ≤ 1: the error of x comes on top, no larger than it was.
SOFTCAP_ROUNDINGS = 8.0


def unit_roundoff(dtype) -> float:
    return 2.0 ** -(LAYOUT[np.dtype(dtype).name][0] + 1)


def working_name(dtype) -> str:
    return "float64" if np.dtype(dtype) == np.float64 else "float32"


@dataclass(frozen=True)
class Bounds:
    """Bounds on the errors of the output before its last rounding, and after it, of lse and of m."""

    output: np.ndarray
    rounded: np.ndarray
    lse: np.ndarray
    m_below: np.ndarray
    m_above: np.ndarray


def bounds_of(truth: Truth, *, splits: int = 1, threshold: float = 0.0, statistical: bool = False) -> Bounds:
    """The master bound of every row of an exact answer: see `row_bounds`."""
    bounds = Bounds(
        np.zeros(truth.output.shape),
        np.zeros(truth.output.shape),
        *(np.zeros(truth.m.shape) for _ in range(3)),
    )
    for rows in truth.parts:
        found = row_bounds(rows, truth.dtype, splits, threshold, statistical)
        for name in vars(bounds):
            getattr(bounds, name)[rows.sequence.batch, :, rows.sequence.rows] = getattr(found, name)
    return bounds


def row_bounds(rows: Rows, dtype, splits: int, threshold: float, statistical: bool) -> Bounds:
    """The master bound of a kernel that keeps m, l, o and P in the working format, in blocks of any size.

    Beyond `attention_error_bound` there are, in a score's error d_j,

    - |bias| and |alibi| beside scale·Σ|q||k| (see `Sequence.magnitudes`);
    - a softcap c: 8u·c (see SOFTCAP_ROUNDINGS);
    - a sink: one more key, of value 0, whose score is rounded and not computed;
    - a rescale threshold τ: m lags behind the maximum by τ at most, so that where the bound has u·(m − s) and
      u·|m| there may be τ more: u·τ·(2 + log2 e). o and l only grow by it, which no relative error sees.

    A sum u·E is added to d_j as E/(d + 4) of magnitude, since that weighs γ_{d+4} ≥ (d + 4)·u. More splits
    than keys have nothing to merge.
    """
    sequence, name = rows.sequence, working_name(dtype)
    u, depth = unit_roundoff(name), sequence.q.shape[-1]
    extra = threshold * (2.0 + LOG2_E)
    if sequence.softcap is not None:
        extra += SOFTCAP_ROUNDINGS * sequence.softcap
    finite = np.isfinite(rows.magnitudes)
    magnitudes = np.where(finite, rows.magnitudes, INF).astype(np.float64) + extra / (depth + 4)
    scores = rows.scores.astype(np.float64)
    # The sink is one more key, and every value but its own is padded below by a row of zeros.
    sinks = rows.sinks[..., None].astype(np.float64)
    scores = np.concatenate([scores, sinks], axis=-1)
    magnitudes = np.concatenate([magnitudes, np.where(np.isfinite(sinks), np.abs(sinks), 0.0)], axis=-1)
    values = np.pad(sequence.v.astype(np.float64), ((0, 0), (0, 1), (0, 0)))
    model = CarryModel(
        l_format=name,
        o_format=name,
        score_format=name,
        exp_ulps=EXP_ULPS,
        splits=max(1, min(splits, scores.shape[-1])),
    )
    with np.errstate(all="ignore"):
        found = attention_error_bound(
            scores[None],
            magnitudes[None],
            values[None],
            depth=depth,
            model=model,
            output_format=name,
            lse_format=name,
            statistical=statistical,
        )
        live = scores != -INF
        score_errors = (depth + 5) * u * magnitudes + (2.0 + LOG2_E) * u * np.abs(scores)
        m = rows.m.astype(np.float64)
        m_above = (np.where(live, scores + score_errors, -INF)).max(axis=-1) - m
        m_below = m - (np.where(live, scores - score_errors, -INF)).max(axis=-1) + threshold
        empty = m == -INF
        # Another margin for the oracle itself, which matters only where long doubles are no wider.
        margin = 1.0 + float(np.finfo(wide_of(dtype)).eps) / u
        output, lse = margin * found.output[0], margin * found.lse[0]
        roundoff = 0.0 if np.dtype(dtype).name == name else unit_roundoff(dtype)
        bits, least = LAYOUT[np.dtype(dtype).name]
        rounded = output + roundoff * (np.abs(rows.output.astype(np.float64)) + output)
        rounded = np.where(empty[..., None], 0.0, rounded + 2.0 ** (least - bits) * (roundoff > 0))
    residual = LOG2_E * u * np.abs(np.where(np.isfinite(m), m, 0.0))
    m_below, m_above = (
        np.where(empty, 0.0, np.where(np.isfinite(m), x + residual, INF)) for x in (m_below, m_above)
    )
    return Bounds(output, rounded, lse, m_below, m_above)


def worst(error: np.ndarray, bound: np.ndarray) -> str:
    """Say where an error exceeds its bound most."""
    with np.errstate(all="ignore"):
        ratio = np.where(np.isnan(error), INF, error / np.where(bound > 0, bound, 5e-324))
    at = np.unravel_index(int(np.argmax(ratio)), ratio.shape)
    place = tuple(int(i) for i in at)
    return f"{place}: off by {float(error[at]):.3g}, allowed {float(bound[at]):.3g} (x{float(ratio[at]):.3g})"


def assert_within(name: str, got: np.ndarray, want: np.ndarray, bound: np.ndarray, below=None) -> None:
    """Fail unless |got − want| ≤ bound where want is finite, and got is of the same class where it is not.

    A NaN counts as an infinity: which of the two comes out depends on whether 0·inf is formed.
    """
    got = got.astype(want.dtype)
    assert got.shape == want.shape, f"{name}: shape {got.shape} for {want.shape}"
    finite = np.isfinite(want)
    odd = ~finite & (want != -INF if name in ("m", "lse") else True)
    wrong = (odd & np.isfinite(got)) | (np.isinf(got) & np.isinf(want) & (got != want))
    wrong |= ~finite & ~odd & (got != want)
    assert not wrong.any(), f"{name}: {got[wrong][:3]} for {want[wrong][:3]} at {np.argwhere(wrong)[:3]}"
    with np.errstate(all="ignore"):
        difference = np.where(finite, got - want, 0).astype(np.float64)
    below = bound if below is None else below
    allowed = np.where(difference < 0, below, bound)
    assert not np.isnan(allowed).any(), f"{name}: there is no bound"
    fine = np.abs(difference) <= allowed
    assert fine.all(), f"{name} {worst(np.abs(difference), allowed)}"


def assert_zero(name: str, got: np.ndarray, rows: np.ndarray) -> None:
    """Fail unless rows are +0 to the bit, as those of an empty carry are."""
    wrong = (got[rows] != 0) | np.signbit(got[rows])
    assert not wrong.any(), (
        f"{name} of empty rows: {got[rows][wrong][:3]} at {np.argwhere(rows)[:3].tolist()}"
    )


def assert_output(got: np.ndarray, truth: Truth, bounds: Bounds) -> None:
    """Fail unless an output (b, hq, tq, dv) in the dtype of q lies within the bound and one rounding."""
    assert got.dtype == truth.dtype, got.dtype
    assert_within("output", got, truth.output, bounds.rounded)
    assert_zero("output", got.astype(truth.output.dtype), truth.m == -INF)


def assert_carry(carry: sc.Carry, truth: Truth, bounds: Bounds) -> None:
    """Fail unless m, m + ln l and o / l lie within their bounds; these three fix the carry."""
    name = working_name(truth.dtype)
    m, l, o = (as_numpy(x) for x in (carry.m, carry.l, carry.o))
    assert [str(x.dtype) for x in (m, l, o)] == [name] * 3, [x.dtype for x in (m, l, o)]
    assert_within("m", m, truth.m, bounds.m_above, bounds.m_below)
    empty = truth.m == -INF
    assert_zero("l", l, empty)
    assert_zero("o", o, empty)
    finite = np.isfinite(truth.m)
    assert not (l[finite] <= 0).any(), "l: a row with keys has none"
    wide = truth.m.dtype
    with np.errstate(all="ignore"):
        total = np.where(empty, 1, l.astype(wide))
        lse = np.where(empty, -INF, m.astype(wide) + np.log(total))
        output = o.astype(wide) / total[..., None]
    assert_within("lse", np.where(truth.m == INF, m, lse), truth.lse, bounds.lse)
    assert_within("o / l", output, truth.output, bounds.output)


@dataclass(frozen=True)
class Implementation:
    """Two functions with the signature of `softcarry.attention` and `softcarry.attention_carry`."""

    attention: Callable
    attention_carry: Callable


# Looked up at each call, so that a test may put something else in their place.
OURS = Implementation(
    lambda *arrays, **options: sc.attention(*arrays, **options),
    lambda *arrays, **options: sc.attention_carry(*arrays, **options),
)


def assert_agree(q, k, v, options, kind="numpy", implementation=OURS):
    """Fail unless both functions of an implementation agree with the oracle on NumPy arguments."""
    truth = attention_of(q, k, v, **options)
    bounds = bounds_of(
        truth, splits=options.get("splits") or 1, threshold=options.get("rescale_threshold", 0.0)
    )
    given = [as_kind(kind, x) for x in (q, k, v)]
    turned = of_kind(kind, options)
    output = implementation.attention(*given, **turned)
    assert isinstance(output, torch.Tensor) == (kind == "torch")
    assert_output(as_numpy(output), truth, bounds)
    carry = implementation.attention_carry(*given, **turned)
    assert isinstance(carry, sc.Carry)
    assert carry.base == "e"
    assert isinstance(carry.m, torch.Tensor) == (kind == "torch")
    assert_carry(carry, truth, bounds)


def assert_case(case: Case, implementation=OURS):
    q, k, v, options = case.build()
    assert_agree(q, k, v, options, case.kind, implementation)


def both(q, k, v, **options):
    """The output and the arrays of the carry."""
    carry = sc.attention_carry(q, k, v, **options)
    return sc.attention(q, k, v, **options), carry.m, carry.l, carry.o


def assert_all_same(got, want):
    for x, y in zip(got, want, strict=True):
        assert_same_bits(x, y)
