"""Every case of the merges: both calls compute the same, from the same bytes, and a wrong result is seen."""

import ml_dtypes
import numpy as np
import pytest

from softcarry.benchmarks import merge


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setattr(merge, "SHAPE", (64, 3, 40))
    monkeypatch.setattr(merge, "GROUPS", (24, 3, 40))
    merge.inputs.cache_clear()
    yield
    merge.inputs.cache_clear()


# By number, since the shapes are made small after this is read.
every_case = pytest.mark.parametrize(
    "number",
    range(len(merge.merge_cases())),
    ids=["/".join(case.labels) for case in merge.merge_cases()],
)


@every_case
def test_our_result_is_right_and_the_peer_s_is_the_same(number):
    case = merge.merge_cases()[number]
    calls = case.build()
    assert calls.disagreement() == ""
    ours, theirs = calls.ours(), calls.peer()
    u = 2.0**-8 if case.dtype == "bfloat16" else 2.0**-24
    largest = float(np.abs(calls.buffer.astype("f8")).max())
    n = 15
    for mine, other, size in zip(ours, theirs, (largest, 16.0), strict=True):
        other = other.double().numpy()
        assert mine.shape == other.shape
        # Both are within some roundings, as many as there are partials, of weighted means.
        off = np.abs(np.asarray(mine).astype("f8") - other)
        assert (off <= size * (3 * u + (4 * n + 32) * 2.0**-24)).all()
        assert np.ptp(other) > 0.1


@every_case
def test_the_shape_and_the_dtype_are_those_named_and_the_traffic_is_counted(number):
    case = merge.merge_cases()[number]
    calls = case.build()
    assert calls.buffer.shape == case.shape
    assert calls.buffer.dtype == np.dtype(ml_dtypes.bfloat16 if case.dtype == "bfloat16" else case.dtype)
    n, *rows, dv = case.shape
    row_bytes = dv * calls.buffer.itemsize + 4
    results = 24 if case.group == "ragged" else 1
    assert calls.traffic == (n + results) * int(np.prod(rows)) * row_bytes


@every_case
@pytest.mark.parametrize("place", [0, 1])
def test_a_wrong_result_is_seen(number, place, monkeypatch):
    case = merge.merge_cases()[number]
    name = "merge_outputs_ragged" if case.group == "ragged" else "merge_outputs"
    right = getattr(merge, name)

    def wrong(*args, out=None, **options):
        result = [np.array(part) for part in right(*args, **options)]
        largest = np.unravel_index(np.abs(result[place].astype("f8")).argmax(), result[place].shape)
        result[place][largest] *= np.asarray(1 - 2.0**-4).astype(result[place].dtype)
        return result

    monkeypatch.setattr(merge, name, wrong)
    assert case.build().disagreement() != ""


def test_the_targets_are_those_of_the_design():
    targets = {case.labels: (case.target, case.share_target) for case in merge.merge_cases()}
    assert targets["float32", "8-partials-out"] == (8.0, 0.7)
    assert targets["float32", "8-partials"] == (8.0, None)


def test_some_partials_are_empty_and_no_row_is():
    _, lses = merge.inputs((8, 100, 30, 4), "float32")
    empty = lses == -np.inf
    assert 5 <= empty.sum() <= 80
    assert not empty.all(axis=0).any()


def test_memory_is_measured_beside_torch_s():
    ours, theirs = merge.memory_cases()
    assert (ours.labels, ours.library, ours.target) == (("memory", "merge"), "softcarry", 2**20)
    assert (theirs.library, theirs.target) == ("torch", None)
    found = merge.measure_memory(ours, threads=1, quick=True)
    assert found.met is None
    assert found.found.reason or found.found.result == 64 // 32 * 3 * 41 * 4
