"""The lse of packed sequences kept per sequence: both gathers against plain loops."""

import numpy as np
import pytest

from softcarry._conventions import packed
from softcarry.errors import ShapeError

HEADS = 3


def gathered(lse, lengths):
    return np.stack([lse[b, :, s] for b, n in enumerate(lengths) for s in range(n)], axis=1)


# A sequence of no tokens first, in the middle and last.
@pytest.mark.parametrize("lengths", [[4], [2, 5, 1], [0, 3, 0, 2, 0]])
@pytest.mark.parametrize("longer", [0, 3])
def test_pack_takes_the_live_positions(lengths, longer):
    lengths = np.array(lengths)
    lse = np.random.default_rng(0).standard_normal((lengths.size, HEADS, lengths.max() + longer))
    import array_api_compat.numpy as xp

    result = packed.pack(xp, lse, lengths)
    np.testing.assert_array_equal(result, gathered(lse, lengths))
    again = packed.unpack(xp, result, lengths, padding=np.inf)
    for b, n in enumerate(lengths):
        np.testing.assert_array_equal(again[b, :, :n], lse[b, :, :n])
        assert np.all(again[b, :, n:] == np.inf)
    assert again.shape == (lengths.size, HEADS, lengths.max())


def test_no_tokens_at_all():
    import array_api_compat.numpy as xp

    lengths = np.array([0, 0])
    assert packed.pack(xp, np.zeros((2, HEADS, 0)), lengths).shape == (HEADS, 0)
    assert packed.unpack(xp, np.zeros((HEADS, 0)), lengths, padding=np.inf).shape == (2, HEADS, 0)


@pytest.mark.parametrize("wrong", [[0, 3], [1, 5], [0, 4, 3, 5], [[0, 5]], [], [0.0, 5.0]])
def test_lengths_that_do_not_cover_the_tokens_are_refused(wrong):
    with pytest.raises(ShapeError, match=r"rising from 0 to 5 tokens; got"):
        packed.sequence_lengths(wrong, tokens=5)
