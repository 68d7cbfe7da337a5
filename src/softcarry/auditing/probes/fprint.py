"""FPRINT: which bits does the kernel return for inputs that never change?

Question
    Are the bits of this version, on this machine, those of another?
Input
    Multiples of 1/16, exact in every dtype, made by an integer hash: they depend on no seed, no dtype and no
    random generator. One query over 1031 keys, 40 queries over 640, sizes that are multiples of nothing, many
    queries; and each option that the kernel takes.
Conclusion
    A fact, never a finding: sha256 of the output bits, case by case, in the kernel's own dtype, and of the
    lse; and some of the output bits themselves, so that two versions can be told apart by units in the last
    place. ``softcarry audit --baseline`` compares them. Bits depend on the processor and on the number of
    threads too: a report says both. A case that does not repeat has no fingerprint.
Tolerance
    None.
Source
    Bits are those of the kernel's output dtype, most significant byte first.
Public faults of this kind
    pytorch#183809 (bits of bfloat16 attention changed between two versions, and perplexity in its fourth
    digit), pytorch#151912 (rounding points moved under a compiler).
"""

from hashlib import sha256

import numpy as np

from softcarry.auditing._libraries import numpy_dtype
from softcarry.auditing.examination import CaseRefused
from softcarry.auditing.probes._differences import same_outcome

# b, h, tq, tk, d
SHAPES = {
    "one query": (1, 4, 1, 1031, 64),
    "queries": (2, 3, 40, 640, 64),
    "odd sizes": (1, 2, 7, 67, 40),
    "many queries": (1, 1, 257, 300, 64),
}
_OPTIONS = (1, 2, 13, 700, 32)
_SAMPLE = 2048  # hexadecimal digits a dtype


def probe(examination):
    """Record the fingerprint.

    Parameters
    ----------
    examination : Examination
        Facts ``fingerprint`` and ``fingerprint sample`` go to it.
    """
    outputs, prints = {}, {}
    for name, inputs, options in _cases(examination):
        try:
            outcome = examination.call(*inputs, **options)
            again = examination.call(*inputs, **options)
        except CaseRefused:
            continue
        if not same_outcome(outcome, again):
            examination.skip(f"fingerprint of {name}", "the same call does not give the same bits twice")
            continue
        outputs[name] = _bits(outcome.output, examination.calling.output_dtype)
        prints[name] = sha256(outputs[name].tobytes()).hexdigest()
        if outcome.lse is not None:
            lse = _bits(outcome.lse, examination.calling.lse_dtype)
            prints[f"{name}, lse"] = sha256(lse.tobytes()).hexdigest()
    if prints:
        evidence = f"sha256 of the bits, {examination.calling.output_dtype}, of {len(outputs)} fixed inputs"
        examination.fact("fingerprint", prints, 1.0, evidence)
        examination.fact(
            "fingerprint sample",
            {name: _sample(bits, _SAMPLE // len(outputs)) for name, bits in outputs.items()},
            1.0,
            f"bits of {examination.calling.output_dtype} outputs, spread over each, in hexadecimal",
        )


def fixed_numbers(shape, salt):
    """Multiples of 1/16 between −8 and 8, hashed from their places (splitmix64).

    Parameters
    ----------
    shape : tuple of int
    salt : int
        Another one gives other numbers.

    Returns
    -------
    ndarray
        float64; 8 bits each, exact in every dtype.

    References
    ----------
    Steele, Lea and Flood, Fast splittable pseudorandom number generators, OOPSLA 2014, figure 16.

    Examples
    --------
    >>> fixed_numbers((3,), 0).tolist()
    [6.125, -1.125, -7.625]
    """
    step = np.uint64(0x9E3779B97F4A7C15)
    z = (np.arange(1, np.prod(shape) + 1, dtype=np.uint64) + (np.uint64(salt) << np.uint64(32))) * step
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    z = z ^ (z >> np.uint64(31))
    return ((z >> np.uint64(56)).astype(np.float64) - 128.0).reshape(shape) / 16.0


def _inputs(b, h, tq, tk, d):
    q, k, v = (fixed_numbers((b, h, t, d), salt) for salt, t in enumerate((tq, tk, tk)))
    return q / 8.0, k / 8.0, v


def _cases(examination):
    """List (name, inputs, options)."""
    for name, shape in SHAPES.items():
        yield name, _inputs(*shape), {}
    b, h, tq, tk, _ = _OPTIONS
    inputs = _inputs(*_OPTIONS)
    seen = fixed_numbers((b, h, tq, tk), 3) < 3.0
    bias = np.where(seen, fixed_numbers((b, h, tq, tk), 4), -np.inf)
    options = {
        "boolean mask": {"mask": seen},
        "additive mask": {"mask": bias},
        "causal": {"causal": True},
        "scale": {"scale": 0.3125},
        "softcap": {"softcap": 4.0},
        "window": {"window": (64, 0)},
        "kv_lengths": {"kv_lengths": np.full(b, 611)},
        "sinks": {"sinks": fixed_numbers((h,), 5)},
        "splits": {"splits": 3},
    }
    for name, given in options.items():
        if all(examination.can(option) for option in given):
            yield name, inputs, given


def _bits(x, dtype):
    """Return the bits of numbers that are exact in a dtype, most significant byte first; one NaN for all."""
    narrow = np.where(np.isnan(x), np.nan, x).astype(numpy_dtype(dtype))
    unsigned = narrow.view(f"u{narrow.itemsize}")
    return np.where(np.isnan(x), _nan(narrow.dtype), unsigned).astype(f">u{narrow.itemsize}")


def _nan(dtype):
    return np.array(np.nan, dtype).view(f"u{dtype.itemsize}")


def _sample(bits, digits):
    """Write some of the numbers, from first to last, in hexadecimal."""
    flat = bits.ravel()
    count = min(digits // (2 * flat.itemsize), flat.size)
    places = np.linspace(0, flat.size - 1, count).astype(int)
    return flat[places].tobytes().hex()
