"""Values V that make one part of the carry visible, and kinds of data that attention meets in practice."""

import math

import numpy as np


def one_hot_values(positions, keys, size=1.0):
    """One column a position: ``size`` at that key, zero at every other, so that the output is a weight.

    A kernel divides by its running sum l once, at the end; with a single non-zero value a column nothing in o
    can cancel an error of l, as it does when all values are equal.

    Parameters
    ----------
    positions : sequence of int
        The keys to read.
    keys : int
        tk.
    size : float
        The value; a power of two keeps the reading exact and away from the subnormals.

    Returns
    -------
    ndarray
        (tk, len(positions)) float64.

    Examples
    --------
    >>> one_hot_values([2, 0], 3).tolist()
    [[0.0, 1.0], [0.0, 0.0], [1.0, 0.0]]
    """
    values = np.zeros((keys, len(positions)))
    values[np.asarray(positions), np.arange(len(positions))] = size
    return values


def reading_size(keys, largest=2.0**15):
    """Return the power of two that brings a weight of 1/keys near 1, within ``largest`` (float16 holds 2^15).

    Examples
    --------
    >>> reading_size(1000), reading_size(2**20)
    (1024.0, 32768.0)
    """
    return min(2.0 ** math.ceil(math.log2(max(keys, 1))), largest)


def spread_positions(rng, keys, count):
    """``count`` keys: the first, the last, and one drawn from each of as many stretches between.

    Parameters
    ----------
    rng : numpy.random.Generator
    keys, count : int

    Returns
    -------
    ndarray
        (count,) int, rising; repeats where there are fewer keys than positions.

    Examples
    --------
    >>> spread_positions(np.random.default_rng(0), 64, 2).tolist()
    [0, 63]
    """
    edges = np.linspace(0, keys, count + 1)
    inner = np.floor(edges[:-1] + rng.random(count) * np.diff(edges)).astype(int)
    inner[0], inner[-1] = 0, keys - 1
    return np.clip(inner, 0, keys - 1)


def random_sign_values(rng, keys, columns):
    """Values of +1 and −1: w, the weighted mean of their sizes, is 1 in every column.

    Examples
    --------
    >>> np.abs(random_sign_values(np.random.default_rng(0), 3, 2)).tolist()
    [[1.0, 1.0], [1.0, 1.0], [1.0, 1.0]]
    """
    return rng.choice([-1.0, 1.0], size=(keys, columns))
