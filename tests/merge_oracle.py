"""Merges of partials in extended precision, and the bound on what rounding makes of them.

Nothing here calls softcarry. All is in long double, which `tests/merging/test_outputs.py` holds to mpmath.
"""

import math
from dataclasses import dataclass

import ml_dtypes
import numpy as np

WIDE = np.longdouble
# Unit roundoff, least subnormal number, and the unit roundoff of sums.
ROUNDING = {
    "float64": (2.0**-53, 2.0**-1074, 2.0**-53),
    "float32": (2.0**-24, 2.0**-149, 2.0**-53),
    "float16": (2.0**-11, 2.0**-24, 2.0**-24),
    "bfloat16": (2.0**-8, 2.0**-133, 2.0**-24),
}


@dataclass(frozen=True)
class Merged:
    """Output (..., dv) and lse (...) of a merge, and how far off they may be."""

    output: np.ndarray
    lse: np.ndarray
    output_bound: np.ndarray
    lse_bound: np.ndarray


def merged(outputs, lses, *, base: str = "e") -> Merged:
    """Merge outputs (n, ..., dv) of any of the four dtypes by their lses (n, ...), n ≥ 0."""
    outputs, lses = np.asarray(outputs), np.asarray(lses)
    u, tiny, w = ROUNDING[outputs.dtype.name]
    n = len(outputs)
    values, s = outputs.astype(WIDE), lses.astype(WIDE)
    unit = np.log(WIDE(2)) if base == "2" else WIDE(1)
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        m = s.max(axis=0, initial=-math.inf)
        shift = np.where(np.isfinite(m), m, WIDE(0))
        live = s != -math.inf
        gap = np.where(live, (shift - s) * unit, WIDE(0))
        terms = np.where(live, np.exp(-gap), WIDE(0))
        total = terms.sum(axis=0)
        lse = m + np.log(total) / unit
        lse_error = 2.0**-52 * (n + 6 * math.log(max(n, 1)) + 2)
        lse_u = ROUNDING[lses.dtype.name][0]
        finite = np.isfinite(values) & live[..., None]
        weighted = np.where(finite, values, WIDE(0)) * terms[..., None]
        output = weighted.sum(axis=0) / total[..., None]
        factor = gap + math.log(max(n, 1)) + 2 * n + 6
        bound = w * (np.abs(weighted) * factor[..., None]).sum(axis=0) / total[..., None]
        up = ((values == math.inf) & live[..., None]).any(axis=0)
        down = ((values == -math.inf) & live[..., None]).any(axis=0)
        nan = (np.isnan(values) & live[..., None]).any(axis=0)
    output = np.where(up, WIDE(math.inf), np.where(down, WIDE(-math.inf), output))
    output = np.where(nan | (up & down), WIDE(math.nan), output)
    empty, broken = m == -math.inf, np.isnan(m) | (m == math.inf)
    bound = np.where(empty[..., None], WIDE(0), bound)
    output = np.where(empty[..., None], WIDE(0), np.where(broken[..., None], WIDE(math.nan), output))
    lse = np.where(empty | broken, m, lse)
    with np.errstate(invalid="ignore"):
        bound = 1.01 * (bound + u * np.abs(output)) + tiny
        lse_bound = 1.01 * (lse_u * np.abs(lse) + lse_error) + tiny
    return Merged(output, lse, bound, lse_bound)


def assert_near(got, want, bound) -> None:
    """Fail unless finite numbers are within their bounds and the others equal."""
    got = np.asarray(got).astype(WIDE)
    assert got.shape == want.shape
    finite = np.isfinite(want)
    np.testing.assert_array_equal(got[~finite], want[~finite])
    off = np.abs(got[finite] - want[finite])
    assert (off <= bound[finite]).all(), (off / bound[finite]).max()


def assert_merged(output, lse, outputs, lses, *, base: str = "e") -> None:
    """Fail unless a merge of partials is within its bounds."""
    want = merged(outputs, lses, base=base)
    assert_near(output, want.output, want.output_bound)
    assert_near(lse, want.lse, want.lse_bound)


def partials(n: int, shape: tuple[int, ...], dtype: str, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Outputs (n, *shape) and lses (n, *shape[:-1]), some partials empty, some rows far apart."""
    rng = np.random.default_rng([seed, n, *shape])
    kind = ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype
    outputs = (rng.standard_normal((n, *shape)) * 2.0 ** rng.integers(-6, 7, (n, *shape))).astype(kind)
    lses = rng.standard_normal((n, *shape[:-1])) * rng.choice([0.5, 3.0, 40.0], (n, *shape[:-1]))
    lses = (lses + rng.choice([0.0, 700.0, -3e4], shape[:-1])).astype(
        "float64" if dtype == "float64" else "f4"
    )
    lses[rng.random(lses.shape) < 0.2] = -math.inf
    return outputs, lses


def same_bits(a, b) -> bool:
    """Whether two arrays agree to the bit, all NaN counting as one."""
    a, b = np.asarray(a), np.asarray(b)
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    with np.errstate(invalid="ignore"):
        both = np.isnan(a) & np.isnan(b)
    integers = f"u{a.dtype.itemsize}"
    return bool(
        (both | (np.ascontiguousarray(a).view(integers) == np.ascontiguousarray(b).view(integers))).all()
    )
