"""The exact carry of a row by mpmath, and the bound of the Carry docstring on what rounding makes of it."""

import math
from dataclasses import dataclass

import mpmath
import numpy as np

# The error of e^x in units of u. NumPy documents 2.52 ulp for its float32 exp, the other libraries 1 to 2,
# and an ulp is at most 2u: 4 ulp leave room for the libm of the platform.
EXP_ERROR = 8.0


@dataclass(frozen=True)
class Row:
    """Exact m, l, o (dv,) and natural lse of one row; its terms, and their gaps m − s in natural units."""

    m: float
    l: mpmath.mpf
    o: list
    lse: mpmath.mpf
    terms: list
    gaps: list
    values: np.ndarray

    @property
    def output(self) -> list:
        return [x / self.l for x in self.o]


def exact(scores: np.ndarray, values: np.ndarray, *, base: str = "e", m: float | None = None) -> Row:
    """Return the carry of finite or −inf scores (n,) and values (n, dv), at least one score finite."""
    with mpmath.workprec(160):
        unit = mpmath.log(2) if base == "2" else mpmath.mpf(1)
        live = np.asarray([float(s) > -math.inf for s in scores])
        finite = [mpmath.mpf(float(s)) for s in scores[live]]
        values = np.asarray(values, dtype=np.float64)[live]
        top = mpmath.mpf(max(finite) if m is None else m)
        gaps = [(top - s) * unit for s in finite]
        terms = [mpmath.exp(-gap) for gap in gaps]
        total = mpmath.fsum(terms)
        o = [
            mpmath.fsum(t * mpmath.mpf(float(v)) for t, v in zip(terms, column, strict=True))
            for column in values.T
        ]
        return Row(float(top), total, o, top * unit + mpmath.log(total), terms, gaps, values)


def bounds(row: Row, dtype: np.dtype, *, merges: int, exp_error: float = EXP_ERROR, extra: float = 0.0):
    """Return the bounds on |l − exact| and on |o − exact| (dv,).

    u·Σ t·|v|·c with c = n + (m − s) + ε + (1 + ε)·K, see the notes of Carry; ``extra`` is added to c. That is
    first order: the factor 1.01 covers the rest, as c·u < 1e-4 wherever a term is not lost to underflow. Each
    of the n terms and n + K products may lose the smallest normal number (some libraries flush), scaled by
    |v| at most.
    """
    u = float(np.finfo(dtype).eps) / 2
    tiny = float(np.finfo(dtype).tiny)
    n = len(row.terms)
    c = [n + float(gap) + exp_error + (1 + exp_error) * merges + extra for gap in row.gaps]
    weighted = np.array([float(t) * x for t, x in zip(row.terms, c, strict=True)])
    lost = 2 * (n + merges) * tiny
    bound_l = 1.01 * u * weighted.sum() + lost
    bound_o = 1.01 * u * (weighted[:, None] * np.abs(row.values)).sum(0) + lost * (
        1 + np.abs(row.values).max(0)
    )
    return bound_l, bound_o


def distinct_values(n: int, dv: int, dtype=np.float32) -> np.ndarray:
    """Values (n, dv) no two of which are equal, of both signs and several magnitudes."""
    index = np.arange(n * dv, dtype=np.float64).reshape(n, dv)
    fraction = index * 0.7548776662466927 % 1.0 - 0.5
    return (fraction * 4.0 ** (index % 5 - 2)).astype(dtype)


def assert_within(carry_l, carry_o, row: Row, dtype, **options) -> None:
    """Fail unless l and o (dv,) of one row lie within the bound."""
    bound_l, bound_o = bounds(row, dtype, **options)
    assert abs(mpmath.mpf(float(carry_l)) - row.l) <= bound_l
    for got, want, bound in zip(np.asarray(carry_o), row.o, bound_o, strict=True):
        assert abs(mpmath.mpf(float(got)) - want) <= bound
