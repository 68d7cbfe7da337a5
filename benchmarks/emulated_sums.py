"""Emulated additions a second, for every order of summation and some formats.

Run it on a quiet machine; the first run compiles, which is not timed::

    python benchmarks/emulated_sums.py --rows 64 --n 16384

An addition is one term absorbed: rounded to the format, added, and the sum rounded; Kahan's four operations
count as one. The figure is that of the fastest of the repetitions.
"""

import argparse
import platform
import time
from pathlib import Path

import ml_dtypes
import numba
import numpy as np

import softcarry
from softcarry.numerics import running_sum

ORDERS = (
    ("sequential", None),
    ("pairwise", None),
    ("carry-stack", None),
    ("carry-stack", 64),
    ("blocked", 64),
    ("two-level", 64),
    ("kahan", None),
)


def processor() -> str:
    """What the machine calls its processor, without its name on a network."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    models = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.machine()


def additions_a_second(terms: np.ndarray, repetitions: int, *arguments, **options) -> float:
    running_sum(terms[:, :8], *arguments, **options)
    fastest = np.inf
    for _ in range(repetitions):
        start = time.perf_counter()
        running_sum(terms, *arguments, **options)
        fastest = min(fastest, time.perf_counter() - start)
    return terms.size / fastest


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=64)
    parser.add_argument("--n", type=int, default=16384)
    parser.add_argument("--long", type=int, default=2**22, help="terms of the single long row")
    parser.add_argument("--formats", nargs="+", default=["bfloat16", "float16", "float32"])
    parser.add_argument("--repetitions", type=int, default=7)
    arguments = parser.parse_args()

    print(f"{processor()}, {numba.get_num_threads()} threads, {platform.system()}")
    print(
        f"Python {platform.python_version()}, softcarry {softcarry.__version__}, numpy {np.__version__}, "
        f"numba {numba.__version__}, ml_dtypes {ml_dtypes.__version__}"
    )
    rng = np.random.default_rng(0)
    shapes = ((arguments.rows, arguments.n), (arguments.rows, arguments.n - 1), (1, arguments.long))
    print("\nmillions of additions a second\n")
    print(
        f"{'format':10}{'rounding':14}{'order':14}{'block':>6}", *(f"{f'{r} x {n}':>14}" for r, n in shapes)
    )
    rows = [rng.random(shape) for shape in shapes]
    for fmt in arguments.formats:
        for order, block in ORDERS:
            rates = [additions_a_second(x, arguments.repetitions, fmt, order, block=block) for x in rows]
            rates_text = (f"{rate / 1e6:14.0f}" for rate in rates)
            print(f"{fmt:10}{'nearest-even':14}{order:14}{block or '':>6}", *rates_text)
    for rounding in ("stochastic", "up"):
        for order in ("sequential", "pairwise"):
            rates = [additions_a_second(x, 3, "bfloat16", order, rounding=rounding) for x in rows]
            rates_text = (f"{rate / 1e6:14.0f}" for rate in rates)
            print(f"{'bfloat16':10}{rounding:14}{order:14}{'':>6}", *rates_text)


if __name__ == "__main__":
    main()
