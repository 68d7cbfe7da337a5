"""Distances between floating-point numbers in units in the last place, from their bits."""

from collections.abc import Iterable

import numpy as np

from softcarry.auditing._libraries import numpy_dtype

_EDGES = (0, 1, 2, 4, 16, 256)


def count_last_places(dtype: str, pairs: Iterable[tuple[str, str]]) -> dict[str, int]:
    """Count by how many units in the last place numbers differ.

    Parameters
    ----------
    dtype : str
        Of the numbers.
    pairs : iterable of (str, str)
        Bits of the numbers in hexadecimal, most significant digit first; two of the same length.

    Returns
    -------
    dict
        How many numbers are 0, 1, 2, up to 4, up to 16, up to 256 and more units apart, and how many are not
        finite in one of the two. What is 0 is left out.

    Examples
    --------
    >>> count_last_places("float32", [("3f8000003f800000", "3f8000013f800000")])
    {'0': 1, '1': 1}
    """
    found: dict[str, int] = {}
    for one, other in pairs:
        a, b = _numbers(one, dtype), _numbers(other, dtype)
        count = min(a.size, b.size)
        for label in _labels(a[:count], b[:count]):
            found[label] = found.get(label, 0) + 1
    return {label: found[label] for label in _NAMES if label in found}


_NAMES = ("0", "1", "2", "up to 4", "up to 16", "up to 256", "more", "not finite")


def _numbers(digits, dtype):
    kind = numpy_dtype(dtype)
    raw = np.frombuffer(bytes.fromhex(digits), f">u{kind.itemsize}")
    return raw.astype(f"u{kind.itemsize}").view(kind)


def _labels(a, b):
    finite = np.isfinite(a.astype(np.float64)) & np.isfinite(b.astype(np.float64))
    for one, other, fine in zip(_places(a), _places(b), finite, strict=True):
        if not fine:
            yield "0" if one == other else "not finite"
            continue
        distance = abs(one - other)
        yield _NAMES[next((i for i, edge in enumerate(_EDGES) if distance <= edge), len(_EDGES))]


def _places(x):
    """Count the floating-point numbers from 0, and from −0, to each."""
    size = 8 * x.itemsize
    return [
        bits if bits < 1 << (size - 1) else (1 << (size - 1)) - bits
        for bits in x.view(f"u{x.itemsize}").tolist()
    ]
