"""TAIL: is the output right for every shape, also where blocks don't come out even?

Question
    Kernels work in blocks of keys, queries and channels. What happens to the last, partial one?
Input
    n from 1 to 1024 keys, 1 to 257 queries, d from 1 to 512, dv apart from d: powers of two, their
    neighbours, and odd sizes between. Per shape four heads: normal data; scores well below 0, among which a
    padded key of score 0 would dominate; a last key with most of the weight; and equal scores with integer
    values, half of the columns with the same value at every key.
Conclusion
    The shapes that fail, and what they have in common. A single key must come back bit for bit: its weight is
    e^0 / e^0, in every form. With the pair (l, o) so does the mean of integers over 2^k keys, equal ones
    included: every sum and the quotient are exact in float32; with weights e^(s − lse) they are not, so that
    is a fact. Over other numbers of keys o · (1/l) may differ from o / l: those are held to the bound.
Tolerance
    The master bound, componentwise; equality for a single key, where a difference within the bound is a
    warning.
Source
    Exact cases: e^0 = 1, and sums of integers below 2^24 are exact in float32 in every order (IEEE 754). They
    are the anchors that a correlation or a relative norm lacks.
Public faults of this kind
    pytorch#159247 (unmasked tail keys), pytorch#147284 (odd widths), jax#27224, tiny-flash-attention#12
    (sizes that are no power of two), tt-metal#51927 (a single key does not come back), pytorch#193728.
"""

from typing import NamedTuple

import numpy as np

from softcarry.auditing.examination import CaseRefused
from softcarry.auditing.shape_pattern import describe_sizes
from softcarry.auditing.tolerance import compare

# fmt: off
KEYS = (
    1, 2, 3, 7, 8, 16, 31, 32, 33, 48, 63, 64, 65, 96, 127, 128, 129, 192, 255, 256, 257, 384, 511, 512, 513,
    545, 577, 640, 703, 767, 769, 895, 961, 1000, 1023, 1024,
)
# fmt: on
QUERIES = (1, 2, 3, 7, 16, 31, 32, 33, 48, 63, 64, 65, 96, 127, 128, 129, 191, 192, 193, 255, 257)
DEPTHS = (1, 7, 8, 16, 32, 40, 59, 64, 80, 96, 128, 256, 512)
VALUE_DEPTHS = (1, 7, 32, 40, 64, 80, 128, 256)
RAGGED = ((33, 65), (129, 67), (513, 33), (1000, 77))
PLAIN = 64
FEW = 32
QUICK = (1, 7, 33, 64, 67, 80, 129, 513)


class Shape(NamedTuple):
    """One shape: queries, keys, d, dv."""

    queries: int
    keys: int
    depth: int
    value_depth: int


class Sweep(NamedTuple):
    """Shapes that differ in one size: its name, what is fixed, the sizes, and a shape for each."""

    name: str
    fixed: str
    sizes: tuple[int, ...]
    shapes: tuple[Shape, ...]


class Result(NamedTuple):
    """What one shape gave: error / bound, and whether the exact cases were exact (None if there are none)."""

    excess: float
    exact: bool | None


def sweeps(quick=False):
    """List the sweeps of this check; sizes that are not swept are 64, and 32 or one query.

    A quick one keeps a few sizes of each: one, odd ones, a power of two and its neighbours.
    """
    p = PLAIN
    every = (
        Sweep("n", "", KEYS, tuple(Shape(FEW, n, p, p) for n in KEYS)),
        Sweep("n", " with one query", KEYS, tuple(Shape(1, n, p, p) for n in KEYS)),
        Sweep("tq", "", QUERIES, tuple(Shape(t, p, p, p) for t in QUERIES)),
        Sweep("d", "", DEPTHS, tuple(Shape(FEW, p, d, d) for d in DEPTHS)),
        Sweep("dv", f" with d = {p}", VALUE_DEPTHS, tuple(Shape(FEW, p, p, dv) for dv in VALUE_DEPTHS)),
        Sweep(
            "n",
            " with tq uneven too",
            tuple(n for n, _ in RAGGED),
            tuple(Shape(t, n, p, p) for n, t in RAGGED),
        ),
    )
    return tuple(_thinned(sweep) for sweep in every) if quick else every


def _thinned(sweep):
    kept = [i for i, shape in enumerate(sweep.shapes) if set(shape) <= {*QUICK, FEW}]
    return sweep._replace(
        sizes=tuple(sweep.sizes[i] for i in kept), shapes=tuple(sweep.shapes[i] for i in kept)
    )


def probe(examination):
    """Call the kernel with every shape and describe those that fail.

    Parameters
    ----------
    examination : Examination
        Fact ``exact_cases``, at most one error for each of n, tq, d and dv, and one warning go to it.
    """
    known = {}
    reported = set()
    found = []
    for sweep in sweeps(examination.quick):
        failing, passing = [], []
        for size, shape in zip(sweep.sizes, sweep.shapes, strict=True):
            if shape not in known:
                known[shape] = _try(examination, shape)
            result = known[shape]
            if result is None:
                continue
            (passing if result.excess <= 1.0 else failing).append((size, shape))
        if failing:
            found.append((sweep, failing, passing))
    plain = known[Shape(FEW, PLAIN, PLAIN, PLAIN)]
    if plain is not None and plain.excess > 1.0:
        _report_plain(examination, plain, found)
        return
    # A sweep that fails at every size fails because of the sizes that it holds fixed, which others vary.
    found = [entry for entry in found if entry[2]] or found
    for sweep, failing, passing in found:
        if sweep.name not in reported:
            reported.add(sweep.name)
            _report(examination, sweep, failing, passing, known)
    _report_exactness(examination, known)


def _try(examination, shape):
    q, k, v = problem(examination, shape)
    try:
        output = examination.call(q, k, v).output
    except CaseRefused:
        return None
    comparison = compare(examination, q, k, v, output)
    exact = None
    model = examination.model
    if _wide(model.l_format) and _wide(model.o_format):
        if shape.keys == 1:
            exact = bool((output == v).all())
        elif shape.keys & (shape.keys - 1) == 0:
            mean = examination.output_format.round(v[:, 3:].mean(axis=2, keepdims=True))
            exact = bool((output[:, 3:] == mean).all())
    return Result(float(comparison.worst()), exact)


def problem(examination, shape):
    """q, k and v of one shape, four heads: normal, low scores, heavy last key, equal scores.

    Parameters
    ----------
    examination : Examination
        Gives the generator and the rounding.
    shape : Shape

    Returns
    -------
    q, k, v : ndarray
        (1, 4, t, d) float64, exact in the dtype.
    """
    rng = examination.rng
    queries, keys, depth, value_depth = shape
    q = rng.standard_normal((1, 4, queries, depth))
    k = rng.standard_normal((1, 4, keys, depth))
    v = rng.standard_normal((1, 4, keys, value_depth))
    # The first coordinate sets the level of the scores, which is k's times √d/√d.
    q[:, 1:3, :, 0] = np.sqrt(depth)
    k[:, 1, :, 0] -= 6.0
    k[:, 2, -1, 0] = np.log(keys) + 3.0
    q[:, 3] = 0.0
    v[:, 3] = rng.integers(-4, 5, (keys, value_depth))
    v[:, 3, :, ::2] = v[:, 3, :1, ::2]
    return tuple(examination.round(x) for x in (q, k, v))


def _wide(name):
    from softcarry.numerics._formats import get_format

    return get_format(name).mantissa_bits >= 23


def _report(examination, sweep, failing, passing, known):
    pattern = describe_sizes(sweep.name, [size for size, _ in failing], [size for size, _ in passing])
    worst = max((shape for _, shape in failing), key=lambda shape: known[shape].excess)
    examination.fail(
        f"wrong for {pattern}{sweep.fixed}: {_times(known[worst].excess)} at q {_q(worst)}, k {_k(worst)}",
        evidence={
            "size": sweep.name,
            "failing": [size for size, _ in failing],
            "passing": [size for size, _ in passing],
            "pattern": pattern,
            "error_over_bound": {str(size): known[shape].excess for size, shape in failing},
        },
        remedy={
            "n": "mask the keys beyond n in the last block with −inf, and do visit that block",
            "tq": "guard the rows beyond tq, and index the last query block by its own length",
            "d": "scale by the true 1/√d, not the padded one, and fill padded channels with zeros",
            "dv": "take the width of the output from v, not from q",
        }[sweep.name],
    )


def _report_plain(examination, plain, found):
    examination.fail(
        f"wrong for {FEW} queries and {PLAIN} keys already, {_times(plain.excess)}: see REF first",
        evidence={
            "error_over_bound": plain.excess,
            "failing": {f"{sweep.name}{sweep.fixed}": [size for size, _ in bad] for sweep, bad, _ in found},
        },
        remedy="start from the plain shape; this check says more once it is right",
    )


def _report_exactness(examination, known):
    exact = {
        what: [result.exact for shape, result in known.items() if result and (shape.keys == 1) == single]
        for what, single in (("a single key", True), ("the mean of integers over 2^k keys", False))
    }
    seen = {what: [x for x in results if x is not None] for what, results in exact.items()}
    examination.fact(
        "exact_cases",
        {what: all(results) if results else None for what, results in seen.items()},
        1.0,
        "outputs equal to the rounded exact ones, over all shapes",
    )
    inexact = [
        shape for shape, result in known.items() if shape.keys == 1 and result and result.exact is False
    ]
    if inexact and known[inexact[0]].excess <= 1.0:
        examination.warn(
            f"a single key does not come back bit for bit at q {_q(inexact[0])}, k {_k(inexact[0])}, though "
            f"within the bound",
            evidence={"shapes": [shape._asdict() for shape in inexact]},
            remedy="divide by l once, at the end, and let the exponential of 0 be exactly 1",
        )


def _times(excess):
    return f"{excess:.2g} times the bound" if np.isfinite(excess) else "no finite output"


def _q(shape):
    return f"({shape.queries}, {shape.depth})"


def _k(shape):
    return f"({shape.keys}, {shape.depth})"
