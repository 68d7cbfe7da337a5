"""Kernels that leave the processor's arithmetic changed, and how to set it back."""

import ctypes
import ctypes.util
import platform
import sys

from mutants import plain

UPWARD = {"x86_64": 0x800, "aarch64": 0x400000}
"""FE_UPWARD in glibc's fenv.h; FE_TONEAREST is 0 on both."""


def flushes_subnormals(q, k, v):
    """Leave the flush-to-zero flag set, as a library does that is built with -ffast-math."""
    import torch

    torch.set_flush_denormal(True)
    return plain(q, k, v)


def rounds_upwards(q, k, v):
    """Leave the rounding direction upwards."""
    output = plain(q, k, v)
    _set_rounding(UPWARD[platform.machine()])
    return output


def _set_rounding(direction):
    ctypes.CDLL(ctypes.util.find_library("m")).fesetround(direction)


def restore_arithmetic():
    """Round to nearest, and keep subnormal numbers."""
    if sys.platform == "linux":
        _set_rounding(0)
    if "torch" in sys.modules:
        sys.modules["torch"].set_flush_denormal(False)
