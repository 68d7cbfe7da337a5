"""What happened in one step of a trace, in words."""

import math
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from softcarry.numerics._formats import FloatFormat


def note_of(
    given: "NDArray[np.float64]",
    scores: "NDArray[np.float64]",
    m_old: float,
    m: float,
    l_old: float,
    l: float,
    terms: "NDArray[np.float64]",
    fmt: "FloatFormat | None",
) -> str:
    """Describe a step from what it saw (scores as given and as rounded) and what it did to m and l."""
    if math.isnan(l):
        return _spoilt(given, scores, l_old, fmt)
    masked = int(np.count_nonzero(scores == -math.inf))
    if masked == len(scores):
        return "masked: nothing changes"
    notes = []
    if masked:
        notes.append(f"{masked} of {len(scores)} masked")
    if m_old == -math.inf:
        notes.append("starts from empty")
    elif m > m_old:
        notes.append(f"maximum rises: rescale by e^{m_old - m:.4g}")
    if np.any((terms == 0.0) & (scores != -math.inf)):
        notes.append("e^(s − m) underflows to 0")
    if math.isinf(l):
        if not math.isinf(l_old):
            notes.append(f"l overflows {_name(fmt)}")
    elif m_old != -math.inf:
        lost = _lost(l_old, l, l_old * math.exp(m_old - m), float(np.sum(terms)), fmt)
        if lost:
            notes.append(lost)
    return "; ".join(notes)


def _spoilt(
    given: "NDArray[np.float64]", scores: "NDArray[np.float64]", l_old: float, fmt: "FloatFormat | None"
) -> str:
    """Why l is NaN: said once, where it begins."""
    if math.isnan(l_old):
        return ""
    overflowed = np.isfinite(given) & ~np.isfinite(scores)
    if np.any(overflowed):
        score = float(given[np.argmax(overflowed)])
        return f"score {score:.6g} overflows {_name(fmt)}: l is NaN from here"
    if np.any(np.isnan(scores)):
        return "NaN score: l is NaN from here"
    if np.any(scores == math.inf):
        return "score +inf: inf − inf makes l NaN from here"
    return f"l overflows {_name(fmt)}: NaN from here"


def _lost(l_old: float, l: float, kept: float, block_sum: float, fmt: "FloatFormat | None") -> str:
    """Whether l ignores what was added to it, or what was carried before."""
    if l_old > 0.0 and kept == 0.0:
        return "what was carried underflows to 0"
    if block_sum == 0.0 or l != (kept if fmt is None else float(fmt.round(kept))):
        return ""
    half = _half_ulp(l, fmt)
    if kept == l and block_sum < half:
        return f"term {block_sum:.4g} is below half an ulp of l: lost"
    if kept == l and block_sum == half:
        return f"term {block_sum:.4g} is half an ulp of l, and the tie rounds down: lost"
    return f"term {block_sum:.4g} is rounded away: lost"


def _half_ulp(x: float, fmt: "FloatFormat | None") -> float:
    if fmt is None:
        return 0.5 * math.ulp(x)
    binade = max(math.ldexp(1.0, math.frexp(x)[1] - 1), fmt.smallest_normal)
    return binade * fmt.unit_roundoff


def _name(fmt: "FloatFormat | None") -> str:
    return "float64" if fmt is None else fmt.name
