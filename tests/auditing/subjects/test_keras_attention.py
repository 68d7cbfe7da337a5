"""keras.ops.nn.dot_product_attention as subjects: called rightly, a backend a process, real faults found."""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from examining import examine, messages
from softcarry.auditing._calling import KernelRaisedError, prepare
from softcarry.auditing.subjects import load_subject
from softcarry.errors import SubjectError
from subject_cases import check_case, dtypes_of_results, problem, row_without_keys, supported

pytestmark = pytest.mark.skipif(
    find_spec("keras") is None or find_spec("tensorflow") is None or find_spec("torch") is None,
    reason="keras and tensorflow are not installed; they are in the extra 'subjects'",
)

NAMES = ["keras-tensorflow", "keras-tensorflow-xla"]
CASES = supported(["mask", "causal", "scale"])


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("case", CASES)
def test_options_mean_what_they_say(name, case):
    check_case(load_subject(name), case)


@pytest.mark.parametrize("name", NAMES)
def test_the_output_has_the_dtype_of_the_inputs(name):
    subject = load_subject(name)
    assert dtypes_of_results(subject) == {dtype: (dtype, "") for dtype in subject.dtypes}


@pytest.mark.parametrize("name", NAMES)
def test_a_row_without_keys_is_the_mean_of_all_values(name):
    output, _, values = row_without_keys(load_subject(name))
    np.testing.assert_allclose(output, values.mean(axis=0), rtol=0, atol=1e-6)


def test_its_empty_rows_are_found():
    found = messages(examine(load_subject("keras-tensorflow"), "EMPTY"))
    assert any("rows without keys give the mean of V over all keys" in message for message in found)


def test_one_head_of_keys_for_all_is_refused_though_documented():
    """keras 3.15 repeats heads only where k has more than one."""
    q, k, v, _ = problem()
    with pytest.raises(KernelRaisedError):
        prepare(load_subject("keras-tensorflow"), "float32")(q, k[:, :1], v[:, :1])


def test_another_backend_in_the_same_process_is_refused():
    prepare(load_subject("keras-tensorflow"), "float32")
    with pytest.raises(SubjectError, match="one backend of keras, and this one has 'tensorflow'"):
        prepare(load_subject("keras-torch"), "float32")


ON_TORCH = f"""
import numpy as np
from softcarry.auditing.subjects import load_subject
from subject_cases import *
subject = load_subject("keras-torch")
for case in {CASES!r}:
    check_case(subject, case)
check_grouped_heads(subject)
assert dtypes_of_results(subject) == {{d: (d, "") for d in ("float32", "bfloat16", "float16")}}
output, _, values = row_without_keys(subject)
np.testing.assert_allclose(output, values.mean(axis=0), rtol=0, atol=1e-6)
output, _, values = row_without_keys(subject, "float16")
print(np.abs(output - values.mean(axis=0)).max(), np.abs(output).max())
"""


def test_the_torch_backend_in_a_process_of_its_own():
    """In float16 its mask is no lower than −45 850, which scores that are added to it survive."""
    tests = str(Path(__file__).parents[2])
    environment = {**os.environ, "PYTHONPATH": tests, "KERAS_BACKEND": "torch"}
    run = subprocess.run(
        [sys.executable, "-c", ON_TORCH],
        capture_output=True,
        text=True,
        env=environment,
        timeout=300,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    from_mean, largest = map(float, run.stdout.split())
    assert 0.05 < from_mean < largest + 1.0
