"""ARGS finds arguments that are accepted though they do not fit, and says what was made of them."""

import numpy as np
import pytest

import misfit_mutants
from examining import examine, messages
from mutants import LogAddExp, Online, TwoPass
from softcarry.auditing._attempts import attempt_here
from softcarry.auditing.probes import args
from softcarry.auditing.subject import Subject
from softcarry.numerics import EmulatedKernel
from softcarry.reference import blocked_attention


@pytest.fixture
def here(monkeypatch):
    """Make the calls in this process: these kernels survive them."""
    monkeypatch.setattr(args, "attempt_all", lambda calling, cases: [attempt_here(calling, c) for c in cases])


STRICT = {
    "reference": blocked_attention,
    "emulated": EmulatedKernel(key_block=16),
    "checked": misfit_mutants.right,
}
BROADCASTING = {"two passes": TwoPass(), "one pass": Online(), "by the lse": LogAddExp()}


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "float64"])
@pytest.mark.parametrize("name", STRICT)
def test_kernels_that_check_pass(name, dtype):
    for seed in range(10):
        examination = examine(STRICT[name], "ARGS", dtype=dtype, seed=seed)
        assert messages(examination) == []
        assert examination.calls >= 18


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("name", BROADCASTING)
def test_bare_array_kernels_are_warned_of_broadcasting_only(name, dtype):
    for seed in range(10):
        examination = examine(BROADCASTING[name], "ARGS", dtype=dtype, seed=seed)
        assert [finding.severity for finding in examination.findings] == ["warning"]
        assert messages(examination)[0].startswith("shapes are broadcast, as few kernels document")


@pytest.mark.usefixtures("here")
def test_softcarry_passes():
    from softcarry.auditing.subjects.softcarry_attention import numpy_attention

    for dtype in ("float32", "bfloat16"):
        examination = examine(numpy_attention(), "ARGS", dtype=dtype)
        assert messages(examination) == []
        assert set(examination.facts["arguments that do not fit"].value.values()) == {"raises"}


MUTANTS = {
    "K and V are cut to the shorter of the two": (
        misfit_mutants.shorter_of_k_and_v,
        "lengths of k and v that do not fit are accepted: with v of 96 keys beside k of 48 it leaves out",
    ),
    "heads of K and V are used in turn": (
        misfit_mutants.heads_in_turn,
        "numbers of heads that do not fit are accepted: with 3 heads of k and v beside 4 of q it uses heads "
        "[0, 1, 2, 0]",
    ),
    "the deeper of q and k is cut": (
        misfit_mutants.shorter_depth,
        "depths of q and k that do not fit are accepted: with k of depth 8 beside q of 16 it cuts the deeper",
    ),
    "batch entries beyond those of q are left out": (
        misfit_mutants.batch_of_the_query,
        "batches that do not fit are accepted: with 3 batch entries of k and v beside 2 of q it leaves out",
    ),
    "a mask that is too large is cut": (
        misfit_mutants.mask_cut,
        "shapes of the mask that do not fit are accepted: with a mask of 56 keys beside 48 it cuts it",
    ),
    "a mask that does not fit is ignored": (
        misfit_mutants.mask_ignored_if_it_does_not_fit,
        "shapes of the mask that do not fit are accepted: with a mask of 56 keys beside 48 it ignores it",
    ),
    "k is read as if its dtype were that of q": (
        misfit_mutants.bits_of_the_query,
        "dtypes that do not fit are accepted: with q in float16 beside k and v in float32 it returns",
    ),
    "the process dies of a V that is longer than K": (
        misfit_mutants.dies_of_longer_values,
        "the process dies of arguments that do not fit: v of 96 keys beside k of 48 (killed by SIGFPE)",
    ),
    "nothing is returned instead of an error": (
        misfit_mutants.shapes_in_place_of_an_output,
        "lengths of k and v that do not fit are accepted: with v of 96 keys beside k of 48 it returns a None",
    ),
}


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", [name for name in MUTANTS if "dies" not in name])
def test_what_was_made_of_the_arguments_is_said(name, dtype):
    kernel, fragment = MUTANTS[name]
    examination = examine(kernel, "ARGS", dtype=dtype)
    expected = fragment.replace("float32", dtype)
    assert any(message.startswith(expected) for message in messages(examination))
    assert all(finding.severity == "error" for finding in examination.findings)


def test_a_process_that_dies_is_told_and_the_rest_is_examined():
    kernel, message = MUTANTS["the process dies of a V that is longer than K"]
    examination = examine(kernel, "ARGS")
    assert messages(examination) == [message]
    seen = examination.facts["arguments that do not fit"].value
    assert list(seen.values()).count("died: killed by SIGFPE") == 1
    assert seen["k of 48 keys beside v of 24"] == "raises"
    assert len(seen) == examination.calls == 18


def test_a_sound_kernel_passes_in_a_process_of_its_own():
    assert messages(examine(blocked_attention, "ARGS")) == []


def test_what_torch_makes_of_its_arguments():
    """The public function checks or broadcasts; the operator beneath its flash path checks little."""
    pytest.importorskip("torch")
    from softcarry.auditing.subjects import torch_sdpa

    plain = examine(torch_sdpa.math(), "ARGS")
    assert [f.severity for f in plain.findings] == ["warning"]
    operator = examine(torch_sdpa.flash(), "ARGS")
    found = messages(operator)
    # Which of these reads memory that is not its own is left to chance; that they are accepted is not.
    assert any(message.startswith("batches that do not fit are accepted") for message in found)
    seen = operator.facts["arguments that do not fit"].value
    assert seen["v of 96 keys beside k of 48"] != "raises"  # pytorch#193728


@pytest.mark.usefixtures("here")
def test_three_axes_with_a_wrong_answer_are_an_error():
    def wrong_axis(q, k, v):
        output = misfit_mutants._attention(q, k, v)
        return output if q.ndim == 4 else 2 * output

    found = messages(examine(wrong_axis, "ARGS"))
    assert any(message.startswith("numbers of axes that do not fit are accepted") for message in found)


def test_a_kernel_that_can_not_be_sent_is_skipped():
    from threading import Lock

    lock = Lock()

    def holds_a_lock(q, k, v):
        with lock:
            return misfit_mutants.right(q, k, v)

    examination = examine(holds_a_lock, "ARGS")
    assert examination.verdict.outcome == "skip"
    assert "does not pickle" in examination.skipped[-1].reason


def test_a_layout_of_tokens_first_is_kept(here):
    def tokens_first(q, k, v):
        return np.swapaxes(misfit_mutants.right(*(np.swapaxes(x, 1, 2) for x in (q, k, v))), 1, 2)

    subject = Subject(tokens_first, arrays="numpy", layout="bthd")
    assert messages(examine(subject, "ARGS")) == []
    cut = Subject(
        lambda q, k, v: tokens_first(q, k[:, : v.shape[1]], v[:, : k.shape[1]]), arrays="numpy", layout="bthd"
    )
    assert any("leaves out the values without keys" in message for message in messages(examine(cut, "ARGS")))


def test_a_quick_audit_starts_no_process():
    from softcarry.auditing.examination import Examination

    quick = Examination(Subject(blocked_attention, arrays="numpy"), "float32", check="ARGS", quick=True)
    args.probe(quick)
    assert quick.verdict.outcome == "skip"
