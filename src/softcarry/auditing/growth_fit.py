"""Reading an error curve: its slope, a power law with a floor, and where it leaves the floor."""

from typing import NamedTuple

import numpy as np


class PowerLaw(NamedTuple):
    """error ≈ floor + factor · n^exponent.

    Attributes
    ----------
    floor, factor, exponent : float
        The three parameters; floor and factor are not negative.
    misfit : float
        Root mean square of the relative residuals.
    """

    floor: float
    factor: float
    exponent: float
    misfit: float


class Knee(NamedTuple):
    """Where a curve leaves its floor.

    Attributes
    ----------
    below, above : float
        The last length on the floor and the first one off it: the knee lies between.
    returns : tuple of float
        Lengths beyond the knee at which the curve is on its floor again, as it is when a kernel changes its
        method with the length.
    """

    below: float
    above: float
    returns: tuple[float, ...]

    @property
    def position(self):
        """The geometric mean of the bracket."""
        return float(np.sqrt(self.below * self.above))


def loglog_slope(lengths, errors):
    """Fit the slope of log error over log n by least squares.

    0 is a floor, 1/2 a random walk of rounding errors, 1 a drift: errors of one sign.

    Parameters
    ----------
    lengths, errors : array_like
        One-dimensional. Points that are zero or not finite are left out.

    Returns
    -------
    float
        NaN with fewer than three points.

    References
    ----------
    Higham and Mary, A new approach to probabilistic rounding error analysis, SISC 41(5), 2019 (√n);
    Connolly, Higham and Mary, SISC 43(1), 2021.

    Examples
    --------
    >>> round(loglog_slope([64, 256, 1024], [1.0, 2.0, 4.0]), 3)
    0.5
    """
    n, e = _usable(lengths, errors)
    if n.size < 3:
        return float("nan")
    x, y = np.log(n), np.log(e)
    x -= x.mean()
    return float((x @ (y - y.mean())) / (x @ x))


def fit_power(lengths, errors, exponents=None):
    """Fit floor + factor · n^exponent to a curve, by the relative residuals.

    For a given exponent the two others follow from a linear least-squares problem, whose solutions outside
    the quadrant of non-negative numbers fall to its edges; the exponent is searched for on a grid.

    Parameters
    ----------
    lengths, errors : array_like
        One-dimensional. Points that are zero or not finite are left out.
    exponents : array_like, optional
        Default: 0.05 to 2 in steps of 0.05.

    Returns
    -------
    PowerLaw
        All NaN with fewer than four points.

    Examples
    --------
    >>> n = 2.0 ** np.arange(6, 17)
    >>> fit = fit_power(n, 1e-3 + 1e-6 * n)
    >>> round(fit.floor, 6), round(fit.exponent, 2)
    (0.001, 1.0)
    """
    n, e = _usable(lengths, errors)
    if n.size < 4:
        return PowerLaw(*[float("nan")] * 4)
    grid = np.arange(1, 41) / 20.0 if exponents is None else np.asarray(exponents, np.float64)
    candidates = [_fit_at(n, e, exponent) for exponent in grid]
    return min(candidates, key=lambda fit: fit.misfit)


def _fit_at(n, e, exponent):
    start = n.min()
    shape = (n / start) ** exponent
    columns = np.stack([1.0 / e, shape / e], axis=1)
    options = [np.linalg.lstsq(columns, np.ones_like(e), rcond=None)[0]]
    for only in (0, 1):
        alone = np.zeros(2)
        alone[only] = columns[:, only].sum() / (columns[:, only] @ columns[:, only])
        options.append(alone)
    options = [option for option in options if (option >= 0.0).all()]
    misfits = [float(np.sqrt(np.mean((columns @ option - 1.0) ** 2))) for option in options]
    best = int(np.argmin(misfits))
    floor, factor = options[best]
    return PowerLaw(float(floor), float(factor / start**exponent), float(exponent), misfits[best])


def find_knee(lengths, errors, *, floor, factor=4.0):
    """Find where a curve leaves its floor: one step up by more than ``factor`` over all that came before.

    Between neighbouring lengths a drift grows by the ratio of the lengths and a random walk by its root, so
    with lengths a factor of 1.5 apart a step by four is neither: it is a sum that has stopped.

    Parameters
    ----------
    lengths, errors : array_like
        One-dimensional, lengths rising; an error that is not finite counts as infinitely large.
    floor : float or array_like
        An error up to which nothing is said, one for all lengths or one for each, such as a bound.
    factor : float
        How large a step is one.

    Returns
    -------
    Knee or None
        None if there is no such step. A curve whose first point is off its floor already has none there.

    Examples
    --------
    >>> find_knee([64, 96, 128, 192], [1e-3, 1e-3, 1e-3, 0.4], floor=1e-3)
    Knee(below=128.0, above=192.0, returns=())
    """
    n = np.asarray(lengths, np.float64)
    e = np.asarray(errors, np.float64)
    e = np.where(np.isfinite(e), e, np.inf)
    floor = np.broadcast_to(np.asarray(floor, np.float64), e.shape)
    for i in range(1, n.size):
        level = np.maximum(floor, factor * e[:i].max())
        if e[i] > level[i]:
            back = n[i + 1 :][e[i + 1 :] <= level[i + 1 :]]
            return Knee(float(n[i - 1]), float(n[i]), tuple(back.tolist()))
    return None


def _usable(lengths, errors):
    n = np.asarray(lengths, np.float64)
    e = np.asarray(errors, np.float64)
    good = np.isfinite(e) & (e > 0.0) & (n > 0.0)
    return n[good], e[good]
