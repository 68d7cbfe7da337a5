"""Every case of the rows: both calls compute the same, from the same bytes, and a wrong result is seen."""

import math

import ml_dtypes
import numpy as np
import pytest
import torch

import softcarry as sc
from softcarry.benchmarks import rows

SHAPES = {"VOCABULARY": (16, 2003), "SHORT": ((12, 128), (100, 16))}


@pytest.fixture(autouse=True)
def small(monkeypatch):
    for name, value in SHAPES.items():
        monkeypatch.setattr(rows, name, value)
    rows.inputs.cache_clear()
    yield
    rows.inputs.cache_clear()


# By number, since the names of groups depend on the shapes.
every_case = pytest.mark.parametrize(
    "number", range(len(rows.row_cases())), ids=["/".join(case.labels) for case in rows.row_cases()]
)
NAMES = {"top5": "softmax_topk", "top50": "softmax_topk", "softmax-out": "softmax"}


def plain(result) -> list[np.ndarray]:
    """Arrays, tensors and tuples of them as float64 arrays; of a torch top-k the values only."""
    if isinstance(result, torch.Tensor):
        return [result.double().numpy()]
    if isinstance(result, np.ndarray | np.generic):
        return [np.asarray(result).astype(np.float64)]
    return [plain(part)[0] for part in result][:1]


@every_case
def test_our_result_is_right_and_the_peer_s_is_the_same(number):
    case = rows.row_cases()[number]
    calls = case.build()
    assert calls.disagreement() == ""
    (ours,), (theirs,) = plain(calls.ours()), plain(calls.peer())
    # cross_entropy is the negative log-probability
    sign = -1.0 if case.name == "logprobs" else 1.0
    # Both are within some float32 roundings of numbers below 64, and one of their own dtype each.
    u = {"float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}[case.dtype]
    assert ours.shape == theirs.shape
    assert np.all(np.abs(ours - sign * theirs) <= 2 * u * np.abs(ours) + 64 * 8 * 2.0**-24)
    assert np.ptp(ours) > 0.01


@every_case
def test_the_shape_and_the_dtype_are_those_named_and_the_traffic_is_counted(number):
    case = rows.row_cases()[number]
    calls = case.build()
    assert calls.buffer.shape == case.shape
    assert calls.buffer.dtype == np.dtype(ml_dtypes.bfloat16 if case.dtype == "bfloat16" else case.dtype)
    writes = "softmax" in case.name
    assert calls.traffic == math.prod(case.shape) * calls.buffer.itemsize * (2 if writes else 1)


def off_by_a_little(result):
    """The result with one number moved by eight units of bfloat16, which no dtype here may confuse."""
    changed = np.array(result)
    flat = changed.reshape(-1)
    largest = int(np.argmax(np.abs(flat.astype(np.float64))))
    flat[largest] = flat[largest] * np.asarray(1 - 2.0**-4).astype(changed.dtype)
    return changed


@every_case
def test_a_wrong_result_is_seen(number, monkeypatch):
    case = rows.row_cases()[number]
    name = NAMES.get(case.name, case.name)
    right = getattr(sc, name)

    def wrong(*args, **options):
        result = right(*args, **options)
        if name != "softmax_topk":
            return off_by_a_little(result)
        probabilities, indices, lse = result
        return off_by_a_little(probabilities), indices, lse

    monkeypatch.setattr(sc, name, wrong)
    assert case.build().disagreement() != ""


def test_wrong_top_indices_are_seen_though_the_probabilities_are_right(monkeypatch):
    right = sc.softmax_topk

    def wrong(x, k):
        probabilities, indices, lse = right(x, k)
        return probabilities, np.array(indices)[:, ::-1], lse

    monkeypatch.setattr(sc, "softmax_topk", wrong)
    case = next(case for case in rows.row_cases() if case.name == "top5")
    assert case.build().disagreement().startswith("top indices of row 0 are [")


def test_the_targets_are_those_of_the_design():
    targets = {(case.group, case.name): (case.target, case.share_target) for case in rows.row_cases()}
    assert targets["float32", "logsumexp"] == (5.0, 0.7)
    assert targets["float32", "softmax"] == (1.4, None)
    assert targets["float32", "top5"] == (7.0, None)
    assert targets["float32", "top50"] == (5.0, None)
    assert targets["float32", "logprobs"] == (6.0, None)
    assert targets["scipy", "logsumexp"] == (25.0, None)
    for dtype in ("bfloat16", "float16"):
        assert {value for (group, _), value in targets.items() if group == dtype} == {(4.0, None)}
    for shape in ("12x128", "100x16"):
        found = {name: value for (group, name), value in targets.items() if group == shape}
        assert found.keys() == {"logsumexp", "softmax", "log_softmax", "top5", "logprobs"}
        assert set(found.values()) == {(1.0, None)}


@pytest.mark.parametrize("axis", [-1, 0])
def test_weight_lies_at_both_ends_of_the_rows(axis):
    x = rows.inputs((9, 40) if axis == -1 else (40, 9), "float32", axis).x
    along = x if axis == -1 else x.T
    assert set(along[::2].argmax(axis=1).tolist()) >= {0, 39}
    # The other rows have their weight spread: 16 is what decides.
    assert along[1::2].max() < 16.0 <= along[::2].max(axis=1).min() + 10.0


def test_torch_sees_the_same_bytes():
    for dtype in ("float32", "float16", ml_dtypes.bfloat16):
        x = np.arange(6.0).reshape(2, 3).astype(dtype)
        tensor = rows.as_torch(x)
        assert tensor.tolist() == [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]]
        x[0, 0] = 9.0
        assert float(tensor[0, 0]) == 9.0


def test_quick_has_the_same_cases():
    assert [case.labels for case in rows.row_cases(quick=True)] == [case.labels for case in rows.row_cases()]
    assert rows.row_cases(quick=True)[0].shape == (2, 2003)
