"""The master bound: by how much an attention output and its lse may differ from the exact ones.

To first order, with w = Σ p|v| (Higham, Accuracy and Stability of Numerical Algorithms, 2nd ed., SIAM 2002,
chapters 3 and 4; Blanchard, Higham, Lopez, Mary and Pranesh, SISC 42(3), 2020, for a low-precision P that is
summed in a wider format):

    |ô − o| ≤ w·(2δ + 2ε + r_P·u_P + E_l + E_o + R·(u_l + u_o)) + u_out·|o|

δ is the error of a score, ε of an exponential, E_l and E_o of the sums, R the number of rescales. What is
computed here weighs each error with what it acts on (the key's own weight in place of the largest δ, |o| in
place of w for errors of l), counts the roundings that the formula leaves out, and stays valid for large
errors. With d_j the bound on |ln(p̂_j/p_j)| before normalisation, D = Σ p_j·(e^d_j − 1), and o' the output of
the perturbed weights,

    |o' − o| ≤ e^(Σ p_j·d_j)·(Σ p_j·(e^d_j − 1)·|v_j| + D·|o|),

because Σ p_j·e^(±d_j) ≥ e^(−Σ p_j·d_j) by Jensen's inequality; o' is a mean of values, so that |o' − o| never
exceeds max|v| + |o| either.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from softcarry.errors import ShapeError
from softcarry.numerics._arguments import one_of, positive, whole
from softcarry.numerics._formats import FloatFormat, get_format
from softcarry.numerics.summation_bounds import (
    gamma,
    lse_bound,
    merge_bound,
    probabilistic_gamma,
    summation_bound,
)

CARRY_ORDERS = ("sequential", "pairwise", "carry-stack", "kahan")

_LOG2_E = 1.4426950408889634

# Still finite in float64, alone and in the sums and products below: what is larger is as good as no bound.
_LARGEST_EXPONENT = 600.0
_LARGEST = 1e200


@dataclass(frozen=True)
class CarryModel:
    """What a kernel's carry is made of, as far as its error bound depends on it.

    Parameters
    ----------
    l_format, o_format : str or FloatFormat
        The carry formats of l and o.
    p_format : str or FloatFormat, optional
        The format that P is rounded to before P·V; None if it is not rounded.
    score_format : str or FloatFormat
        The format in which scores are kept.
    key_block : int
        Bc. The default 1 is the worst case: all n terms one after another, an upper bound for every key
        block, as Bc + n/Bc − 2 ≤ n − 1.
    order : {"sequential", "pairwise", "carry-stack", "kahan"}
        How the block sums are added to the carry.
    splits : int
        Key splits of equal length, merged at the end.
    block_format : str or FloatFormat, optional
        The format of sums inside a block, of exponentials and of the scores' dot products. None: float32, or
        the score format if that is wider.
    exp_ulps : float
        Error of an exponential in units in the last place of ``block_format``. The default allows for the
        fast vector exponential of torch's CPU kernels, which states 20 (17 were measured); a hardware exp2
        has 2.

    Raises
    ------
    OptionError
        If an argument is none of the above.

    Examples
    --------
    >>> CarryModel(p_format="bfloat16", key_block=512).splits
    1
    """

    l_format: str | FloatFormat = "float32"
    o_format: str | FloatFormat = "float32"
    p_format: str | FloatFormat | None = None
    score_format: str | FloatFormat = "float32"
    key_block: int = 1
    order: str = "sequential"
    splits: int = 1
    block_format: str | FloatFormat | None = None
    exp_ulps: float = 20.0

    def __post_init__(self) -> None:
        for fmt in (self.l_format, self.o_format, self.score_format, self.p_format, self.block_format):
            if fmt is not None:
                get_format(fmt)
        whole("key_block", self.key_block, 1)
        whole("splits", self.splits, 1)
        one_of("order", self.order, CARRY_ORDERS)
        positive("exp_ulps", self.exp_ulps)

    @property
    def working_format(self) -> FloatFormat:
        """The format of sums inside a block: ``block_format`` with its default filled in."""
        if self.block_format is not None:
            return get_format(self.block_format)
        score = get_format(self.score_format)
        single = get_format("float32")
        return score if score.mantissa_bits > single.mantissa_bits else single


class AttentionBound(NamedTuple):
    r"""Componentwise bounds on what a kernel returns.

    Attributes
    ----------
    output : ndarray
        (b, h, tq, dv) bound on \|ô − o\|.
    lse : ndarray
        (b, h, tq) bound on \|lse − ref\|, natural log.
    """

    output: np.ndarray
    lse: np.ndarray


def attention_error_bound(
    scores,
    score_magnitudes,
    values,
    *,
    depth: int,
    model: CarryModel | None = None,
    output_format: str | FloatFormat = "float32",
    input_format: str | FloatFormat | None = None,
    lse_format: str | FloatFormat = "float32",
    statistical: bool = False,
    lambda_: float = 6.0,
) -> AttentionBound:
    r"""Bound, element by element, on the error of an attention kernel whose carry is as described.

    Parameters
    ----------
    scores : array_like
        (b, h, tq, tk) float64 scores in natural units, after scale, bias and softcap; −inf where masked.
    score_magnitudes : array_like
        The same shape: scale·Σ\|q_i\|\|k_i\|, plus \|bias\| where there is one. Read at live keys only.
    values : array_like
        (b, h, tk, dv), or (b, kv_heads, tk, dv) with h a multiple of kv_heads (query heads in order).
    depth : int
        d, the terms in a score's dot product.
    model : CarryModel, optional
        Default ``CarryModel()``: float32 throughout, blocks unknown.
    output_format : str or FloatFormat
        The format that the output is rounded to.
    input_format : str or FloatFormat, optional
        The format that q is rounded to after it has been multiplied by the scale, for kernels that do so.
    lse_format : str or FloatFormat
        The format that the lse is rounded to.
    statistical : bool
        Replace γ_n by λ√n·u (``probabilistic_gamma``) in every sum. At long n the worst case grows past the
        weight of a single key and can't tell a dropped one; this can. It is no bound but holds with a
        probability, each output with at least 1 − 2(n + d)·exp(−λ²/2) if rounding errors have mean zero, and
        does **not** hold for a carry that stagnates (bfloat16 beyond 256 updates: the bound is then inf) nor
        where all errors share a sign (rounding toward zero).
    lambda_ : float
        λ; 6 leaves 3e-8 for each rounding chain.

    Returns
    -------
    AttentionBound
        Empty rows (all scores −inf): 0 for both, output 0 and lse −inf are exact. Rows with a live NaN or
        +inf score or magnitude, and columns with a live NaN or infinite value: inf, no claim is made (compare
        classes first). inf too where n·u ≥ 1 for a carry format, and where l, o, a score or the output may
        exceed the largest number of its format. Subnormal outputs, products and weights of P are covered by
        absolute terms; kernels that flush subnormals to zero in float32 are not.

    Raises
    ------
    ShapeError
        If the shapes do not fit one another.
    OptionError
        If an argument is none of the above.

    Notes
    -----
    d_j = γ_{d+4}(u)·magnitude + 2u_score·\|s\| + log2(e)·u·(\|s\| + \|m\|) + 2u·(m − s) + ε + R·ε: the
    dot product with four roundings for scale and bias, the scores' own rounding, the residual of an exp2 with
    a pre-scaled maximum, the rounded difference, the exponential, and those of the R rescales. R is the
    number of times that the maximum grows, counted over the key blocks of the model in both key orders, the
    larger of the two. Blocks are contiguous; a permuted key order may rescale more often. The sums of l and
    of o round once more for each rescale. A P in ``p_format`` counts for o and, as some kernels add up the
    rounded P, for l. The exact answer is taken to be float64: for a float64 kernel its own error is of the
    size of the bound, so compare with twice the bound.

    References
    ----------
    Higham, Accuracy and Stability of Numerical Algorithms, 2nd ed., SIAM 2002, sections 3.1 and 4.2;
    Blanchard, Higham, Lopez, Mary and Pranesh, Mixed precision block fused multiply-add, SISC 42(3), 2020,
    C124-C141; Milakov and Gimelshein, arXiv:1805.02867, 2018 (rescaling); Higham and Mary, SISC 41(5), 2019
    (statistical).

    Examples
    --------
    >>> import numpy as np
    >>> scores = np.zeros((1, 1, 1, 1024))
    >>> values = np.ones((1, 1, 1024, 1))
    >>> bound = attention_error_bound(scores, np.zeros_like(scores), values, depth=1)
    >>> bool(1e-4 < bound.output[0, 0, 0, 0] < 2e-4)
    True
    """
    model = CarryModel() if model is None else model
    s, magnitudes, v = _checked(scores, score_magnitudes, values)
    depth = whole("depth", depth, 0)
    chance = positive("lambda_", lambda_) if statistical else None
    output_format, lse_format = get_format(output_format), get_format(lse_format)
    working = model.working_format
    u = working.unit_roundoff

    live = ~np.isneginf(s)
    usable = live & ~_overflowing(s, magnitudes, live, model)[..., None]
    s = np.where(usable, s, -np.inf)
    rescales = _rescales(s, model)
    maximum = np.max(s, axis=-1, keepdims=True, initial=-np.inf)
    maximum = np.where(np.isneginf(maximum), 0.0, maximum)
    p = np.exp(s - maximum)
    total = p.sum(axis=-1, keepdims=True)
    p /= np.where(total == 0.0, 1.0, total)

    log_p = s - maximum - np.log(np.where(total == 0.0, 1.0, total))
    s = np.where(usable, s, 0.0)
    magnitudes = np.where(usable, magnitudes, 0.0)
    with np.errstate(over="ignore"):
        d = (
            min(_growth(depth + 4, u, chance), _LARGEST) * magnitudes
            + _roundoff(input_format, 2.0) * magnitudes
        )
        d += (_roundoff(model.score_format, 2.0) + _LOG2_E * u) * np.abs(s)
        d += _LOG2_E * u * np.abs(maximum) + 2.0 * u * (maximum - s)
        d += (1.0 + rescales[..., None]) * 2.0 * model.exp_ulps * u
    d = np.where(usable, np.minimum(d, _LARGEST), 0.0)

    # The weights' error, which the sums' errors then come on top of.
    finite = np.isfinite(v)
    size = np.where(finite, np.abs(v), 0.0)
    exact = np.abs(p @ np.where(finite, v, 0.0))
    w = p @ size
    raised, raised_log = _raised(p, log_p, d)
    drift = raised.sum(axis=-1, keepdims=True)
    largest = size.max(axis=-2, keepdims=True, initial=0.0)
    with np.errstate(over="ignore"):
        jensen = np.exp(np.minimum((p * d).sum(axis=-1, keepdims=True), _LARGEST_EXPONENT))
        moved = raised @ size
        weights_error = np.minimum(jensen * (moved + drift * exact), largest + exact)
        w_moved = np.minimum(w + jensen * (moved + drift * w), largest)

    l_error, o_error = _carry_errors(usable.sum(axis=-1), s.shape[-1], rescales, model, chance)
    l_error, o_error = l_error[..., None], o_error[..., None]
    counted = usable.sum(axis=-1, keepdims=True)
    flushed_p = 0.0
    if model.p_format is not None:
        p_format = get_format(model.p_format)
        flushed_p = 0.5 * p_format.smallest_subnormal
        l_error = _together(l_error, p_format.unit_roundoff, flushed_p * counted / np.maximum(total, 1.0))
        o_error = _together(o_error, p_format.unit_roundoff)
    flushed = (flushed_p + working.smallest_normal) * (usable @ size)
    flushed += counted * (working.smallest_subnormal + 2.0 * get_format(model.o_format).smallest_subnormal)

    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        carried = o_error * w_moved + l_error * (exact + weights_error) + flushed
        error = weights_error + carried / (1.0 - l_error)
        error += (3.0 * u + output_format.unit_roundoff) * (exact + error) + output_format.smallest_subnormal
        lse = np.log(np.where(total == 0.0, 1.0, total)) + maximum
        lse_error = lse_bound(maximum, np.maximum(total, 1.0), l_error, working) + raised_log
        lse_error += (lse_format.unit_roundoff + 2.0 * u) * np.abs(lse)

    no_claim = np.any(live & ~usable, axis=-1, keepdims=True)
    no_claim |= (l_error >= 1.0) | (total > get_format(model.l_format).largest)
    lse_error = np.where(no_claim, np.inf, lse_error)
    no_claim = no_claim | ~(o_error < np.inf)
    if not finite.all():
        no_claim = no_claim | (live.astype(float) @ (~finite).astype(float) > 0.0)
    no_claim = no_claim | (w * total > min(get_format(model.o_format).largest, working.largest))
    no_claim |= ~(exact + error <= output_format.largest)
    error = np.where(no_claim, np.inf, error)
    empty = ~live.any(axis=-1, keepdims=True)
    return AttentionBound(np.where(empty, 0.0, error), np.where(empty, 0.0, lse_error)[..., 0])


def _checked(scores, score_magnitudes, values):
    s, magnitudes, v = (np.asarray(x, np.float64) for x in (scores, score_magnitudes, values))
    if s.ndim < 3 or v.ndim != s.ndim or s.shape != magnitudes.shape:
        msg = (
            "scores and score_magnitudes are (b, h, tq, tk) and values (b, h, tk, dv); "
            f"got {s.shape}, {magnitudes.shape} and {v.shape}"
        )
        raise ShapeError(msg)
    heads, kv_heads = s.shape[-3], v.shape[-3]
    fits = s.shape[:-3] == v.shape[:-3] and s.shape[-1] == v.shape[-2]
    if not fits or kv_heads == 0 or heads % kv_heads:
        msg = (
            "values are (b, kv_heads, tk, dv) with the b and tk of the scores (b, h, tq, tk) and h a "
            f"multiple of kv_heads; got {v.shape} for scores {s.shape}"
        )
        raise ShapeError(msg)
    return s, magnitudes, np.repeat(v, heads // kv_heads, axis=-3)


def _overflowing(s, magnitudes, live, model):
    """Rows (b, h, tq) for which no claim can be made: a live score that is not finite, or may overflow."""
    largest = get_format(model.score_format).largest
    with np.errstate(invalid="ignore"):
        fine = (np.abs(s) <= largest) & (magnitudes <= model.working_format.largest)
    return np.any(live & ~fine, axis=-1)


def _raised(p, log_p, d):
    """Return p·(e^d − 1) and ln Σ p·e^d, also where p underflows or e^d overflows."""
    raised = p * np.expm1(np.minimum(d, 1.0))
    log_sum = np.log1p(raised.sum(axis=-1, keepdims=True))
    if np.any(d > 1.0):
        exponent = log_p + d
        peak = np.maximum(exponent.max(axis=-1, keepdims=True), 0.0)
        with np.errstate(divide="ignore"):
            exact = peak + np.log(np.exp(exponent - peak).sum(axis=-1, keepdims=True))
        log_sum = np.where(np.any(d > 1.0, axis=-1, keepdims=True), exact, log_sum)
        raised = np.where(d > 1.0, np.exp(np.minimum(exponent, _LARGEST_EXPONENT)) - p, raised)
    return raised, log_sum


def _rescales(s, model):
    """How often the running maximum grows (b, h, tq): the most of any split, in either key order."""
    n = s.shape[-1]
    if n == 0:
        return np.zeros(s.shape[:-1])
    per_split = -(-n // model.splits)
    block = min(model.key_block, per_split)
    blocks = -(-per_split // block)
    counts = []
    for keys in (s, s[..., ::-1]):
        keys = _padded(keys, model.splits * per_split).reshape(*s.shape[:-1], model.splits, per_split)
        maxima = _padded(keys, blocks * block).reshape(*keys.shape[:-1], blocks, block).max(axis=-1)
        running = np.maximum.accumulate(maxima, axis=-1)
        before, after = running[..., :-1], running[..., 1:]
        # From an empty carry there is nothing to rescale.
        counts.append(((after > before) & ~np.isneginf(before)).sum(axis=-1).max(axis=-1))
    return np.maximum(*counts).astype(float)


def _padded(x, length):
    padding = [(0, 0)] * (x.ndim - 1) + [(0, length - x.shape[-1])]
    return np.pad(x, padding, constant_values=-np.inf)


def _carry_errors(counts, keys, rescales, model, chance):
    """Relative errors of l and o (b, h, tq) by summation, rescaling and merging; a masked key adds none."""
    per_split = max(1, -(-keys // model.splits))
    working = model.working_format
    different, place = np.unique(counts, return_inverse=True)
    errors = []
    for name, products in ((model.l_format, 0), (model.o_format, 1)):
        fmt = get_format(name)
        # A block sum is one more term to round where the carry is narrower than the sums inside a block.
        narrower = int(fmt.mantissa_bits < working.mantissa_bits)
        sums = []
        for count in different.tolist():
            terms = min(count, per_split)
            updates = min(-(-per_split // model.key_block), terms)
            inside = max(0, min(model.key_block, terms) - 1 + products)
            across = summation_bound(
                updates + narrower,
                fmt,
                model.order,
                probabilistic=chance is not None,
                lambda_=1.0 if chance is None else chance,
            )
            sums.append(_together(_growth(inside, working.unit_roundoff, chance), across))
        factors = _growth(rescales, fmt.unit_roundoff, chance)
        merges = merge_bound(model.splits, fmt, exp_format=working, exp_ulps=model.exp_ulps)
        errors.append(_together(np.array(sums)[place].reshape(counts.shape), factors, merges))
    return errors


def _growth(count, u, chance):
    return gamma(count, u) if chance is None else probabilistic_gamma(count, u, chance)


def _roundoff(fmt, times):
    return 0.0 if fmt is None else times * get_format(fmt).unit_roundoff


def _together(*errors):
    """Add up relative errors as those of a product of factors 1 + e."""
    return np.expm1(sum(np.log1p(error) for error in errors))
