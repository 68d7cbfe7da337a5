"""How many emulated additions a second the emulated kernel makes, and how long its first call takes.

An addition is one rounded update of l or of one column of o. With a key block of one key, every key updates
the carry, and the additions inside the block are not counted; with a longer block those are the ones counted.
Run: python benchmarks/emulated_kernel.py
"""

import argparse
import platform
import time

import numba
import numpy as np

from softcarry.numerics import EmulatedKernel

CASES = (
    ("bfloat16 carry", {"l_format": "bfloat16", "o_format": "bfloat16"}),
    ("float16 carry", {"l_format": "float16", "o_format": "float16"}),
    ("float32 carry", {}),
    ("bfloat16 carry, 8 splits", {"l_format": "bfloat16", "o_format": "bfloat16", "splits": 8}),
    (
        "bfloat16 carry, stochastic",
        {"l_format": "bfloat16", "o_format": "bfloat16", "rounding": "stochastic"},
    ),
)


def seconds(kernel, inputs, repeats):
    """Wall and processor seconds of the fastest of some calls."""
    best = (np.inf, np.inf)
    for _ in range(repeats):
        wall, processor = time.perf_counter(), time.process_time()
        kernel(*inputs)
        best = min(best, (time.perf_counter() - wall, time.process_time() - processor))
    return best


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--keys", type=int, default=16384)
    parser.add_argument("--rows", type=int, default=64)
    parser.add_argument("--width", type=int, default=64, help="of q, k and v")
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()

    rng = np.random.default_rng(0)
    shapes = [(1, 1, tokens, arguments.width) for tokens in (arguments.rows, arguments.keys, arguments.keys)]
    inputs = [rng.normal(size=shape) for shape in shapes]
    print(
        f"{platform.machine()}, {numba.get_num_threads()} threads, Python {platform.python_version()}, "
        f"NumPy {np.__version__}, Numba {numba.__version__}"
    )
    print(f"{arguments.rows} rows, {arguments.keys} keys, width {arguments.width}")
    begin = time.perf_counter()
    EmulatedKernel()(*(array[:, :, :1] for array in inputs))
    print(f"first call, compiled or read from the cache: {time.perf_counter() - begin:.1f} s")
    additions = arguments.rows * arguments.keys * (arguments.width + 1)
    print(f"{'':28} {'key block':>9} {'seconds':>9} {'processor':>9} {'million additions/s':>20}")
    for name, options in CASES:
        for key_block in (1, 128):
            kernel = EmulatedKernel(key_block=key_block, **options)
            wall, processor = seconds(kernel, inputs, arguments.repeats)
            print(f"{name:28} {key_block:9} {wall:9.3f} {processor:9.3f} {additions / wall / 1e6:20.0f}")


if __name__ == "__main__":
    main()
