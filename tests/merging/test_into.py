"""merge_output_into: merge_outputs to the bit, in place, and nothing where the mask says no."""

import math

import numpy as np
import pytest
import torch

from merge_oracle import ROUNDING, partials, same_bits
from row_cases import KINDS, as_kind, as_numpy
from softcarry.merging import merge_output_into, merge_outputs

NAN, INF = math.nan, math.inf
every_dtype = pytest.mark.parametrize("dtype", ROUNDING)


def raw(array) -> bytes:
    return np.ascontiguousarray(array).tobytes()


@every_dtype
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("base", ["e", "2"])
@pytest.mark.parametrize("dv", [1, 8, 37, 64])
def test_it_is_merge_outputs_to_the_bit(dtype, kind, base, dv):
    outputs, lses = partials(2, (30, dv), dtype)
    outputs[1, 3, 0], outputs[0, 4, dv - 1] = INF, NAN
    want = merge_outputs(outputs, lses, base=base)
    output, lse = outputs[0].copy(), lses[0].copy()
    arrays = (as_kind(kind, a) for a in (output, lse, outputs[1], lses[1]))
    assert merge_output_into(*arrays, base=base) is None
    assert same_bits(output, want[0])
    assert same_bits(lse, want[1])


@every_dtype
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dv", [3, 64])
def test_rows_masked_out_keep_every_bit(dtype, kind, dv):
    outputs, lses = partials(2, (5, 7, dv), dtype)
    want = merge_outputs(outputs, lses)
    rng = np.random.default_rng(0)
    masks = [
        rng.random((5, 7)) < 0.5,
        (rng.random((7, 5)) < 0.5).T,
        rng.random((5, 14))[:, ::2] < 0.5,
        rng.random(7) < 0.5,
        np.array([True, False, False, True, False])[:, None],
        np.array(True),
        np.array(False),
    ]
    for mask in masks:
        # A NaN that signals, with a payload, which arithmetic would quieten.
        output, lse = outputs[0].copy(), lses[0].copy()
        whole = np.broadcast_to(mask, (5, 7))
        output.view(f"u{output.itemsize}")[~whole] = (
            np.array(NAN, output.dtype).view(f"u{output.itemsize}") | 5
        )
        before = raw(output[~whole]), raw(lse[~whole])
        arrays = (as_kind(kind, a) for a in (output, lse, outputs[1], lses[1]))
        merge_output_into(*arrays, mask=torch.from_numpy(mask) if kind == "torch" else mask)
        assert (raw(output[~whole]), raw(lse[~whole])) == before
        assert same_bits(output[whole], want[0][whole])
        assert same_bits(lse[whole], want[1][whole])


@every_dtype
def test_an_accumulator_of_any_layout_from_nothing(dtype):
    outputs, lses = partials(4, (3, 5, 40), dtype)
    room = np.full((5, 3, 90), NAN, outputs.dtype)
    lse = np.full((3, 10), -INF, lses.dtype)[:, ::2]
    for output in (room[..., 10:90:2].swapaxes(0, 1), room[::-1, :, 5:45].swapaxes(0, 1)):
        lse[...] = -INF
        output[...] = NAN
        want = outputs[0], lses[0]
        merge_output_into(output, lse, outputs[0], lses[0])
        live = lses[0] > -INF
        assert same_bits(output[live], outputs[0][live])
        assert not output[~live].astype("f4").any()
        assert same_bits(lse, lses[0])
        want = output.copy(), lse.copy()
        for other, other_lse in zip(outputs[1:], lses[1:], strict=True):
            merge_output_into(output, lse, other, other_lse)
            want = merge_outputs([want[0], other], [want[1], other_lse])
        assert same_bits(output, want[0])
        assert same_bits(lse, want[1])


def test_torch_sees_that_its_tensors_change():
    outputs, lses = map(torch.from_numpy, partials(2, (3, 5), "float32"))
    output, lse = outputs[0].clone(), lses[0].clone()
    weight = torch.ones(3, 5, requires_grad=True)
    loss = (weight * output).sum()
    merge_output_into(output, lse, outputs[1], lses[1])
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()
    with torch.inference_mode():
        merge_output_into(torch.ones(3, 5), torch.zeros(3), outputs[1], lses[1])


def test_nothing_to_do():
    outputs, lses = partials(2, (0, 5), "float32")
    merge_output_into(outputs[0], lses[0], outputs[1], lses[1])
    outputs, lses = partials(2, (2, 5), "float32")
    output = as_numpy(outputs[0]).copy()
    merge_output_into(output[0], lses[0, :1][0:1].reshape(()), outputs[1, 0], lses[1, 0:1].reshape(()))
