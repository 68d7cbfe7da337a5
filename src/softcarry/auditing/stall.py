"""A sum that stops growing with the number of keys: after how many, and which formats explain that."""

from dataclasses import dataclass

import numpy as np

from softcarry.auditing.growth_fit import Knee, find_knee

# Formats that a carry has been kept in, one a drop index: TF32 has float16's, E4M3FN has E4M3's.
SUSPECTS = ("E5M2", "E4M3", "bfloat16", "float16")


@dataclass(frozen=True)
class Stall:
    """A step in what arrives of l or o when all keys are equal.

    Attributes
    ----------
    part : {"l", "o"}
        Which sum.
    knee : Knee
        Between which lengths it left its floor.
    keys : float
        After how many keys: the level at which it stays, or else the middle of the knee.
    kind : {"stops", "overflows", "leaves"}
        Whether the sum is the same at all lengths beyond, infinite at all of them, or neither.
    """

    part: str
    knee: Knee
    keys: float
    kind: str


def find_stall(lengths, kept, part, *, floor):
    """Find where a running sum of equal terms stops.

    Parameters
    ----------
    lengths : array_like
        Numbers of keys n, rising.
    kept : array_like
        For each n the share of the sum that arrived; 0, infinite or NaN where it overflowed.
    part : {"l", "o"}
        Which sum it is.
    floor : float or array_like
        A loss up to which nothing is said, one for all lengths or one for each, such as a bound.

    Returns
    -------
    Stall or None
        None if the loss nowhere makes a step.

    References
    ----------
    Higham, Accuracy and Stability of Numerical Algorithms, 2nd ed., SIAM 2002, section 4.2: a sequential sum
    of equal terms is exact up to 2^(t+1) of them, and the same for any number beyond.

    Examples
    --------
    >>> n = np.array([64, 128, 256, 512, 1024])
    >>> stall = find_stall(n, np.minimum(1.0, 256 / n), "l", floor=1e-6)
    >>> stall.kind, stall.keys, stall.knee.above
    ('stops', 256.0, 512.0)
    """
    n, kept = np.asarray(lengths, np.float64), np.asarray(kept, np.float64)
    knee = find_knee(n, np.abs(1.0 - kept), floor=floor)
    if knee is None:
        return None
    beyond = n >= knee.above
    levels = n[beyond] * kept[beyond]
    # A sum that rounds at random, or comes from another method at some lengths, has no level of its own.
    if np.isfinite(levels).all() and 0.0 < levels.max() < 1.1 * levels.min() and kept[-1] < 0.9:
        return Stall(part, knee, float(np.median(levels)), "stops")
    lost = not np.any(np.isfinite(levels) & (levels != 0.0))
    return Stall(part, knee, knee.position, "overflows" if lost else "leaves")


def explain_stall(keys, lengths, errors, *, output_roundoff):
    """List formats and key blocks whose sequential sum stops after so many keys, likeliest first.

    2^(t+1) updates of a block of ``keys`` / 2^(t+1) would do it, in every format. What tells them apart is
    the error long before the stop, where roundings walk at random: each is worth 0.41·u of the sum so far
    (uniform within half an ulp, averaged over a binade), K of them 0.41·u·√(K/3) of a sum that grows evenly.

    Parameters
    ----------
    keys : float
        After how many keys the sum stops.
    lengths, errors : array_like
        Root mean square relative error of the sum for terms that differ, at every n.
    output_roundoff : float
        u of the output, which no error can be seen below.

    Returns
    -------
    list of dict
        "format", "key_block", "updates". Formats with less than a key a block are left out.

    References
    ----------
    Higham and Mary, SISC 41(5), 2019, A2815-A2835 (the random walk).

    Examples
    --------
    >>> n = np.array([64, 128, 256])
    >>> explain_stall(4096, n, 0.41 * 2.0**-8 * np.sqrt(n / 16 / 3), output_roundoff=2.0**-24)[0]
    {'format': 'bfloat16', 'key_block': 16.0, 'updates': 256}
    """
    from softcarry.numerics._formats import formats

    n, seen = np.asarray(lengths, np.float64), np.asarray(errors, np.float64)
    early = n <= max(keys / 8.0, n[0])
    found = []
    for name in SUSPECTS:
        block = keys / formats[name].drop_index
        if block < 0.9:
            continue
        walk = 0.41 * formats[name].unit_roundoff * np.sqrt(np.maximum(1.0, n[early] / block / 3.0))
        expected = np.hypot(walk, output_roundoff / 4.0)
        distance = np.mean(np.abs(np.log(np.fmax(seen[early], 1e-300) / expected)))
        entry = {"format": name, "key_block": round(block, 1), "updates": formats[name].drop_index}
        found.append((float(distance), entry))
    return [entry for _, entry in sorted(found, key=lambda pair: pair[0])]
