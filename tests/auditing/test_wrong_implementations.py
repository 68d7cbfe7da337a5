"""Four wrong implementations, each caught by the name of a check, by calls of attention or of their part.

They are faults that a reader of a textbook writes: a normaliser that takes two passes, a merge that forgets
to rescale, a softmax without its maximum, a blocked attention that makes NaN of a fully masked block.
"""

import numpy as np
import pytest

from examining import examine, messages
from mutants import Online, TwoPass
from one_pass import assert_reads_once_and_keeps_two_numbers
from softcarry.auditing.blocks import check

CHECKS = ["EMPTY", "LSE", "RANGE", "REF"]


def failing(kernel, checks=CHECKS):
    """The checks that find an error."""
    return {name for name in checks if not examine_ok(kernel, name)}


def examine_ok(kernel, name):
    return all(finding.severity != "error" for finding in examine(kernel, name).findings)


def two_passes(scores):
    scores = list(scores)
    largest = max(scores)
    return largest, float(np.sum(np.exp(np.array(scores) - largest)))


def merge_that_forgets(a, b):
    return max(a[0], b[0]), a[1] + b[1], a[2] + b[2]


def softmax_without_maximum(x):
    return np.exp(x) / np.exp(x).sum(axis=-1, keepdims=True)


@pytest.mark.parametrize(
    ("part", "kind", "fault", "given"),
    [
        (two_passes, "normalizer", "PASSES", "16 scores"),
        (merge_that_forgets, "merge", "RESCALE", "f((0, 1, [1, 0]), (1, 1, [0, 1]))"),
        (softmax_without_maximum, "softmax", "OVERFLOW", "[1000]"),
        (Online(guard=False, key_block=4), "attention", "MASKED_BLOCK", "mask [0, 0, 0, 0, 1]"),
    ],
)
def test_each_is_named_as_a_part_with_its_smallest_input(part, kind, fault, given):
    findings = {finding.check: finding for finding in check(part, kind).findings}
    assert fault in findings
    assert findings[fault].evidence["input"].endswith(given)


def test_a_normaliser_of_two_passes_can_not_be_seen_from_calls_but_from_its_reads():
    """Its results are right, so no call of attention shows it."""
    assert failing(TwoPass()) == set()
    with pytest.raises(AssertionError):
        assert_reads_once_and_keeps_two_numbers(two_passes)


def test_a_merge_that_forgets_to_rescale_is_caught():
    assert failing(Online(rescale=False, key_block=16)) == {"REF", "RANGE"}


def test_a_softmax_without_its_maximum_is_caught():
    found = failing(TwoPass(no_maximum=True))
    assert "RANGE" in found
    assert "REF" not in found


def test_a_masked_block_that_gives_nan_is_caught():
    examination = examine(Online(guard=False), "EMPTY")
    assert any(message.startswith("rows that have keys are not finite") for message in messages(examination))
    assert failing(Online(guard=False), ["LSE", "REF"]) <= {"LSE"}
