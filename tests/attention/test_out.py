"""The out= of attention: written whatever its strides, nothing beside it, and refused where it overlaps."""

import numpy as np
import pytest

import softcarry as sc
from attention_cases import LAYOUTS, TORCH_LAYOUTS, Case, as_kind, as_numpy
from row_cases import DTYPES, KINDS
from softcarry.errors import OptionError

Q, K, V = (2, 4, 5, 8), (2, 2, 7, 8), (2, 2, 7, 9)


def refused(call, *words):
    """Fail unless the call raises an OptionError, in one line that has the words."""
    with pytest.raises(OptionError) as caught:
        call()
    message = str(caught.value)
    assert "\n" not in message
    for word in words:
        assert word in message, message


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_out_of_any_strides_is_written_and_returned(kind, dtype):
    for layout in TORCH_LAYOUTS if kind == "torch" else LAYOUTS:
        for tq in (1, 3, 40):
            q, k, v, options = Case(2, 4, 2, tq, 50, 8, 9, dtype, options=("causal",)).build()
            out = as_kind(kind, LAYOUTS[layout](np.full((2, 4, tq, 9), 7.0, DTYPES[dtype])))
            given = [as_kind(kind, x) for x in (q, k, v)]
            assert sc.attention(*given, out=out, **options) is out
            np.testing.assert_array_equal(as_numpy(out), as_numpy(sc.attention(*given, **options)))


def test_out_writes_nothing_beside_it():
    q, k, v, options = Case(2, 4, 2, 33, 50, 8, 9, options=("mask",)).build()
    around = np.full((3, 8, 70, 22), 7.0, np.float32)
    sc.attention(q, k, v, out=around[1:, 1::2, 3:69:2, 2:20:2], **options)
    around[1:, 1::2, 3:69:2, 2:20:2] = 7.0
    assert (around == 7.0).all()


class TestOutThatOverlaps:
    """An output that is written while inputs are read would depend on who comes first."""

    @pytest.mark.parametrize("kind", KINDS)
    @pytest.mark.parametrize("position", range(3))
    def test_an_input_itself(self, kind, position):
        given = [as_kind(kind, np.ones((2, 4, 5, 8), np.float32)) for _ in range(3)]
        refused(lambda: sc.attention(*given, out=given[position]), "out", "overlap")
        assert (np.asarray(given[position]) == 1.0).all()

    @pytest.mark.parametrize("kind", KINDS)
    def test_a_part_of_an_input(self, kind):
        memory = np.ones(4000, np.float32)
        k = as_kind(kind, memory[:1600].reshape(2, 4, 25, 8))
        q, v = (as_kind(kind, np.ones((2, 4, n, 8), np.float32)) for n in (5, 25))
        for start in (0, 8, 1280, 1599):
            out = as_kind(kind, memory[start : start + 320].reshape(2, 4, 5, 8))
            refused(lambda out=out: sc.attention(q, k, v, out=out), "out", "overlap")
        assert (memory == 1.0).all()
        sc.attention(q, k, v, out=as_kind(kind, memory[1600:1920].reshape(2, 4, 5, 8)))
        assert (memory[:1600] == 1.0).all()

    def test_the_mask_and_the_bias(self):
        q, out = np.ones((2, 4, 5, 8), np.float32), np.zeros((2, 4, 5, 8), np.float32)
        overlapping = {"bias": out[:1, :1, :1, :5], "mask": out.view(bool)[0, 0, :1, :5]}
        for name, array in overlapping.items():
            refused(lambda o={name: array}: sc.attention(q, q, q, out=out, **o), "out", "overlap", name)
        assert not out.any()

    @pytest.mark.parametrize("name", ["sinks", "alibi"])
    def test_the_sinks_and_the_slopes(self, name):
        """One number a head: they may be copied before anything is written, instead of being refused."""
        q, out = np.ones((2, 4, 5, 8), np.float32), np.zeros((2, 4, 5, 8), np.float32)
        numbers = out.reshape(-1)[-4:]
        numbers[:] = 1, 2, 3, 4
        want = sc.attention(q, q, q, **{name: numbers.copy()})
        try:
            got = sc.attention(q, q, q, out=out, **{name: numbers})
        except OptionError:
            return
        np.testing.assert_array_equal(got, want)

    @pytest.mark.parametrize("kind", KINDS)
    def test_itself(self, kind):
        given = [as_kind(kind, np.ones(shape, np.float32)) for shape in (Q, K, V)]
        thin = as_kind(kind, np.full((2, 4, 1, 9), 7.0, np.float32))
        out = (
            thin.expand(2, 4, 5, 9)
            if kind == "torch"
            else np.lib.stride_tricks.as_strided(thin, (*Q[:3], 9), (*thin.strides[:2], 0, thin.strides[3]))
        )
        refused(lambda: sc.attention(*given, out=out), "out")
        assert (np.asarray(thin) == 7.0).all()

    def test_interleaved_memory_is_refused_or_left_alone(self):
        memory = np.ones((2, 4, 10, 8), np.float32)
        q = k = v = memory[:, :, ::2]
        want = sc.attention(q.copy(), k.copy(), v.copy())
        try:
            got = sc.attention(q, k, v, out=memory[:, :, 1::2])
        except OptionError:
            # To refuse what merely interleaves is safe too.
            got = want
        np.testing.assert_array_equal(got, want)
        assert (memory[:, :, ::2] == 1.0).all()

    def test_memory_that_may_not_be_written(self):
        q, k, v = (np.zeros(shape, np.float32) for shape in (Q, K, V))
        out = np.full((2, 4, 5, 9), 7.0, np.float32)
        out.flags.writeable = False
        with pytest.raises(sc.SoftcarryError, match="out") as caught:
            sc.attention(q, k, v, out=out)
        assert "\n" not in str(caught.value)
        assert (out == 7.0).all()
