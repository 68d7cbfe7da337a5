"""A Triton kernel in the interpreter as a subject: called rightly, sound; the interpreter's fault found."""

import os
import subprocess
import sys
from importlib.util import find_spec

import numpy as np
import pytest

from examining import examine, messages
from softcarry.auditing._calling import KernelRaisedError, prepare
from softcarry.auditing.golden import golden_attention
from softcarry.auditing.subjects import load_subject
from subject_cases import (
    check_case,
    check_grouped_heads,
    dtypes_of_results,
    problem,
    row_without_keys,
    supported,
)

pytestmark = pytest.mark.skipif(
    find_spec("triton") is None or find_spec("torch") is None,
    reason="triton and torch are not installed; they are in the extra 'subjects'",
)

NAME = "triton-flash"


@pytest.mark.parametrize("case", supported(["mask", "causal", "scale"]))
def test_options_mean_what_they_say(case):
    check_case(load_subject(NAME), case)


def test_grouped_heads_are_taken():
    check_grouped_heads(load_subject(NAME))


def test_the_lse_is_float32():
    assert dtypes_of_results(load_subject(NAME)) == {
        dtype: (dtype, "float32") for dtype in ("float32", "bfloat16", "float16")
    }


def test_a_row_without_keys_is_empty():
    output, lse, _ = row_without_keys(load_subject(NAME))
    assert not output.any()
    assert lse == -np.inf


def test_no_keys_at_all():
    q, k, v, _ = problem()
    outcome = prepare(load_subject(NAME), "float32")(q, k[:, :, :0], v[:, :, :0])
    assert not outcome.output.any()
    assert (outcome.lse == -np.inf).all()


@pytest.mark.parametrize(("queries", "keys", "depth", "value_depth"), [(65, 129, 7, 40), (1, 64, 80, 1)])
def test_partial_blocks_of_every_size(queries, keys, depth, value_depth):
    rng = np.random.default_rng(0)
    shapes = (queries, depth), (keys, depth), (keys, value_depth)
    q, k, v = (rng.integers(-8, 9, (1, 1, *shape)) / 8.0 for shape in shapes)
    outcome = prepare(load_subject(NAME), "float32")(q, k, v, causal=queries > 1)
    exact = golden_attention(q, k, v, causal=queries > 1)
    # Products of 80, sums of 129 terms, values below 1: float32 on one side.
    np.testing.assert_allclose(outcome.output, exact.output, rtol=0, atol=2e-5)
    np.testing.assert_allclose(outcome.lse, exact.lse, rtol=0, atol=2e-5)


def test_a_live_nan_stays_in_its_row():
    q, k, v, _ = problem()
    q[0, 0, 1] = np.nan
    outcome = prepare(load_subject(NAME), "float32")(q, k, v)
    assert np.isnan(outcome.output[0, 0, 1]).all()
    assert np.isnan(outcome.lse[0, 0, 1])
    assert np.isnan(outcome.lse).sum() == 1


def test_shapes_that_do_not_fit_are_refused():
    q, k, v, _ = problem()
    with pytest.raises(KernelRaisedError, match="don't fit each other"):
        prepare(load_subject(NAME), "float32")(q, k, v[:, :, :5])


@pytest.mark.parametrize("check", ["EMPTY", "LSE", "RANGE"])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_it_is_sound(check, dtype):
    examination = examine(load_subject(NAME), check, dtype=dtype)
    assert messages(examination) == []
    assert examination.calls


def test_products_in_bfloat16_are_found_to_be_wrong():
    """The interpreter multiplies the bit patterns (triton#11584); a release without that fails this test."""
    from triton import __version__

    found = messages(examine(load_subject(NAME), "REF", dtype="bfloat16"))
    assert found, f"triton {__version__} multiplies bfloat16 rightly: say so in the adapter"


AS_A_COMPILER = """
import triton
import torch
from softcarry.auditing.subjects import load_subject
x = torch.zeros(1, 1, 2, 16)
try:
    load_subject("triton-flash").kernel(x, x, x)
except RuntimeError as error:
    print(error)
"""


def test_a_process_that_compiles_is_told_that_it_can_not_interpret():
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    run = subprocess.run(
        [sys.executable, "-c", AS_A_COMPILER],
        capture_output=True,
        text=True,
        env=environment,
        timeout=120,
        check=False,
    )
    assert "run this subject alone, or set TRITON_INTERPRET=1 from the start" in run.stdout, run.stderr
