"""Distances in units in the last place, from bits."""

import numpy as np
import pytest

from softcarry.auditing._libraries import numpy_dtype
from softcarry.auditing.last_places import count_last_places


def bits(numbers, dtype):
    kind = numpy_dtype(dtype)
    x = np.array(numbers, dtype=kind)
    return x.view(f"u{kind.itemsize}").astype(f">u{kind.itemsize}").tobytes().hex()


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16", "float16"])
def test_steps_are_counted_across_zero_and_powers_of_two(dtype):
    kind = numpy_dtype(dtype)
    unsigned = f"u{kind.itemsize}"
    tiny = np.array([1], unsigned).view(kind)[0]
    below = (np.array([1.0], kind).view(unsigned) - np.array([1], unsigned)).view(kind)[0]
    one, other = [1.0, -tiny, 0.0, 1.0, 1.0], [1.0, tiny, -0.0, below, np.inf]
    counted = count_last_places(dtype, [(bits(one, dtype), bits(other, dtype))])
    assert counted == {"0": 2, "1": 1, "2": 1, "not finite": 1}


def test_bfloat16_has_128_steps_an_octave():
    assert count_last_places("bfloat16", [(bits([1.0], "bfloat16"), bits([2.0], "bfloat16"))]) == {
        "up to 256": 1
    }
    assert count_last_places("float16", [(bits([1.0], "float16"), bits([2.0], "float16"))]) == {"more": 1}


def test_nan_is_the_same_as_itself_only():
    nan, inf = bits([np.nan], "float32"), bits([np.inf], "float32")
    assert count_last_places("float32", [(nan, nan), (nan, inf), (inf, inf)]) == {"0": 2, "not finite": 1}


def test_samples_of_two_lengths_are_compared_as_far_as_they_go():
    assert count_last_places("float32", [(bits([1.0, 2.0], "float32"), bits([1.0], "float32"))]) == {"0": 1}
