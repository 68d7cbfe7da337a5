"""What a probe sees, and how what it says is kept."""

import threading

import numpy as np
import pytest

from mutants import TwoPass, kill_process, plain
from softcarry.auditing.contract import Contract
from softcarry.auditing.examination import CaseCrashed, CaseRefused, Examination
from softcarry.auditing.subject import Subject
from softcarry.report.model import Curve


def examination_of(kernel, dtype="float32", **options):
    return Examination(Subject(kernel, arrays="numpy"), dtype, check="TEST", **options)


def arrays(tq=2, tk=3):
    return np.zeros((1, 1, tq, 4)), np.zeros((1, 1, tk, 4)), np.ones((1, 1, tk, 4))


def test_rounding_gives_numbers_of_the_dtype():
    examination = examination_of(TwoPass(), "bfloat16")
    assert examination.round([1.0 + 2.0**-9, 3.14159]).tolist() == [1.0, 3.140625]
    assert examination.format.name == "bfloat16"
    assert examination.output_format.name == "bfloat16"


def test_random_numbers_depend_on_seed_check_and_dtype_only():
    def draw(dtype="float32", check="TEST", seed=0):
        examination = Examination(Subject(plain, arrays="numpy"), dtype, check=check, seed=seed)
        return examination.rng.random()

    assert draw() == draw()
    assert len({draw(), draw("bfloat16"), draw(check="OTHER"), draw(seed=1)}) == 4


def test_what_the_kernel_can():
    full, none = examination_of(TwoPass()), examination_of(plain)
    assert all(full.can(option) for option in ("mask", "causal", "scale", "lse"))
    assert not any(none.can(option) for option in ("mask", "causal", "scale", "lse"))


def test_an_option_that_is_lacking_is_skipped_and_refused():
    examination = examination_of(plain)
    for _ in range(2):
        with pytest.raises(CaseRefused, match="takes no mask and no scale"):
            examination.call(*arrays(), mask=np.ones((2, 3), bool), scale=1.0)
    assert len(examination.skipped) == 1
    assert examination.skipped[0].check == "TEST"
    assert "q (1, 1, 2, 4)" in examination.skipped[0].what
    assert examination.verdict.outcome == "skip"


def test_a_signature_that_leaves_options_open_is_not_said_to_lack_them():
    examination = examination_of(lambda q, k, v, **options: plain(q, k, v))
    with pytest.raises(CaseRefused, match=r"its signature names no mask; declare Subject\(options=...\)"):
        examination.call(*arrays(), mask=np.ones((2, 3), bool))


def test_a_kernel_that_raises_is_skipped_and_one_that_is_malformed_fails():
    def kernel(q, k, v):
        if k.shape[2] == 3:
            msg = "three keys"
            raise ValueError(msg)
        return plain(q, k, v) if k.shape[2] == 64 else None

    examination = examination_of(kernel)
    with pytest.raises(CaseRefused):
        examination.call(*arrays())
    assert examination.skipped[0].reason == "the kernel raised ValueError: three keys"
    assert examination.findings == []
    with pytest.raises(CaseRefused):
        examination.call(*arrays(tk=4))
    with pytest.raises(CaseRefused):
        examination.call(*arrays(tk=5))
    assert [(f.message, f.evidence) for f in examination.findings] == [
        (
            "malformed result: the output is of type NoneType, not an array",
            {"call": "q (1, 1, 2, 4), k (1, 1, 4, 4), v (1, 1, 4, 4)", "malformed results": 2},
        )
    ]
    assert examination.verdict.outcome == "fail"


def test_an_isolated_call_gives_the_same_outcome():
    examination = examination_of(TwoPass())
    q, k, v = arrays()
    here, there = examination.call(q, k, v, causal=True), examination.call_isolated(q, k, v, causal=True)
    np.testing.assert_array_equal(here.output, there.output)
    np.testing.assert_array_equal(here.lse, there.lse)
    assert examination.calls == 2


def test_isolated_deaths_refusals_and_unportable_kernels():
    examination = examination_of(TwoPass(on_no_keys=kill_process))
    with pytest.raises(CaseCrashed, match="killed by SIGFPE"):
        examination.call_isolated(*arrays(tk=0))
    lock = threading.Lock()

    def unportable(q, k, v):
        with lock:
            return plain(q, k, v)

    examination = examination_of(unportable)
    with pytest.raises(CaseRefused, match="does not pickle"):
        examination.call_isolated(*arrays())
    assert "does not pickle" in examination.skipped[0].reason


def test_findings_facts_and_curves_are_labelled():
    examination = examination_of(TwoPass())
    assert examination.verdict.outcome == "pass"
    examination.warn("odd", evidence={"x": np.float64(2.0)}, remedy="look")
    assert examination.verdict.outcome == "warn"
    examination.fail("wrong", evidence={"x": np.array([1.0, 2.0])}, remedy="repair")
    assert examination.verdict.outcome == "fail"
    assert [(f.check, f.severity, f.dtype, f.evidence) for f in examination.findings] == [
        ("TEST", "warning", "float32", {"x": 2.0}),
        ("TEST", "error", "float32", {"x": [1.0, 2.0]}),
    ]
    examination.fact("size", 3, 0.5, "seen")
    assert examination.facts["size"].confidence == 0.5
    examination.curve(Curve("error", (1, 2), (0.1, 0.2)))
    assert (examination.curves[0].check, examination.curves[0].dtype) == ("TEST", "float32")


def test_the_model_is_the_contracts_then_the_subjects_then_the_default():
    from softcarry.numerics import CarryModel

    def model(dtype="float32", carry=None, **promises):
        subject = Subject(plain, arrays="numpy", carry=carry)
        return Examination(subject, dtype, contract=Contract(**promises)).model

    assert model() == CarryModel()
    assert model("bfloat16").p_format == "bfloat16"
    assert model("float64").l_format == model("float64").o_format == "float64"
    declared = CarryModel(l_format="bfloat16", key_block=64)
    assert model(carry=declared) is declared
    assert model(carry={"bfloat16": declared}) == CarryModel()
    promised = model(carry=declared, carry_format="float16")
    assert (promised.l_format, promised.o_format, promised.key_block) == ("float16", "float16", 64)


def test_bound_and_golden_belong_to_the_same_call():
    examination = examination_of(TwoPass())
    rng = np.random.default_rng(0)
    q, k, v = (examination.round(rng.standard_normal((1, 2, t, 8))) for t in (4, 200, 200))
    mask = rng.random((4, 200)) < 0.5
    mask[1] = False
    options = {"mask": mask, "causal": True, "scale": 0.7}
    outcome = examination.call(q, k, v, **options)
    golden, bound = examination.golden(q, k, v, **options), examination.bound(q, k, v, **options)
    assert (np.abs(outcome.output - golden.output) <= bound.output).all()
    assert not bound.output[:, :, 1].any()
    live = ~np.isneginf(golden.lse)
    assert (outcome.lse[~live] == -np.inf).all()
    assert (np.abs(outcome.lse[live] - golden.lse[live]) <= bound.lse[live]).all()


def test_a_bound_may_be_that_of_another_model():
    from softcarry.numerics import CarryModel

    examination = examination_of(plain)
    own = examination.bound(*arrays())
    narrow = examination.bound(*arrays(), model=CarryModel(l_format="bfloat16", o_format="bfloat16"))
    assert (narrow.output > own.output).all()
