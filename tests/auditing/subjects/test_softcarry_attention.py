"""softcarry's compiled attention as subjects: called rightly, found clean, and its wrong variants found."""

from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest

import attention_oracle
import oracle
import softcarry as sc
from examining import examine, messages
from softcarry._attention import _computing
from softcarry.auditing._calling import prepare
from softcarry.auditing.probes import CHECKS
from softcarry.auditing.subjects import KNOWN, load_subject
from softcarry.auditing.subjects.softcarry_attention import attention_kernel
from softcarry.cpu.decode import MOST_ROWS

NAMES = ["softcarry-attention", "softcarry-attention-torch", "softcarry-attention-prefill"]
DTYPES = ["float64", "float32", "bfloat16", "float16"]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("kind", ["none", "boolean", "additive", "causal"])
def test_options_mean_what_they_say(name, kind):
    rng = np.random.default_rng(0)
    q, k, v = (rng.integers(-8, 9, (1, 2, t, 8)) / 8.0 for t in (4, 6, 6))
    mask = rng.random((4, 6)) < 0.6
    mask[:, 0], mask[2] = True, False
    options = {
        "none": {},
        "boolean": {"mask": mask},
        "additive": {"mask": np.where(mask, 0.0, -np.inf)},
        "causal": {"causal": True},
    }[kind]
    outcome = prepare(load_subject(name), "float32")(q, k, v, scale=0.5, **options)
    output, lse = oracle.attention(
        q, k, v, scale=0.5, mask=mask if "mask" in options else None, causal=kind == "causal"
    )
    # Six products and sums of size below 10, in float32 on one side.
    np.testing.assert_allclose(outcome.output, output, rtol=0, atol=2e-6)
    np.testing.assert_allclose(outcome.lse, lse, rtol=0, atol=2e-6)


OPTIONS = {
    "softcap": {"softcap": 0.75},
    "window": {"window": (2, 1)},
    "lengths": {"kv_lengths": np.array([4, 6])},
    "lengths, causal": {"kv_lengths": np.array([4, 6]), "causal": True},
    "sinks": {"sinks": np.array([0.5, -2.0])},
    "all": {
        "softcap": 2.0,
        "window": (3, None),
        "kv_lengths": np.array([6, 3]),
        "sinks": np.array([1.0, 0.0]),
    },
}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("kind", OPTIONS)
def test_further_options_mean_what_they_say(name, kind):
    rng = np.random.default_rng(1)
    q, k, v = (rng.integers(-8, 9, (2, 2, t, 8)) / 8.0 for t in (4, 6, 6))
    outcome = prepare(load_subject(name), "float32")(q, k, v, scale=0.5, **OPTIONS[kind])
    truth = attention_oracle.attention_of(q, k, v, scale=0.5, **OPTIONS[kind])
    # As above, and a few roundings more for the cap and the sink.
    np.testing.assert_allclose(outcome.output, truth.output.astype(np.float64), rtol=0, atol=4e-6)
    np.testing.assert_allclose(outcome.lse, truth.lse.astype(np.float64), rtol=0, atol=4e-6)


@pytest.mark.parametrize("name", NAMES)
def test_every_dtype_is_audited(name):
    assert list(KNOWN[name].dtypes) == DTYPES


@pytest.mark.parametrize("dtype", DTYPES)
def test_outputs_are_of_the_dtype_but_for_those_of_the_carry(dtype):
    wide = "float64" if dtype == "float64" else "float32"
    found = {name: prepare(load_subject(name), dtype) for name in NAMES}
    assert [calling.output_dtype for calling in found.values()] == [dtype, dtype, wide]
    assert {calling.lse_dtype for calling in found.values()} == {wide}


def test_no_call_of_the_subject_of_many_queries_has_few(monkeypatch):
    rows = []

    def recorded(*arguments):
        shapes = arguments[-1]
        rows.extend(np.frombuffer(shapes.query_counts, np.int64) * shapes.group)
        return _attend(*arguments)

    _attend = _computing.attend
    monkeypatch.setattr(_computing, "attend", recorded)
    examine(load_subject("softcarry-attention-prefill"), "LSE")
    assert min(rows) > MOST_ROWS


NOT_ITS = {"GRAD": "NumPy", "DROP": "takes no dropout"}
"""Checks of what these kernels do not do, and what the reason must say."""


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ["softcarry-attention", "softcarry-attention-prefill"])
def test_the_audit_is_clean(name, dtype, check):
    examination = examine(load_subject(name), check, dtype=dtype)
    assert messages(examination) == []
    if check in NOT_ITS:
        assert examination.verdict.outcome == "skip"
        assert NOT_ITS[check] in examination.skipped[0].reason
    else:
        assert examination.skipped == []
        assert examination.calls


@pytest.mark.parametrize("check", ["EMPTY", "LSE", "RANGE", "REF"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_audit_is_clean_with_tensors(dtype, check):
    examination = examine(load_subject("softcarry-attention-torch"), check, dtype=dtype)
    assert messages(examination) == []
    assert examination.skipped == []


def without_last_key(q, k, v, *, mask=None, causal=False, scale=None):
    mask = None if mask is None else mask[..., :-1]
    return attention_kernel(q, k[:, :, :-1], v[:, :, :-1], mask=mask, causal=causal, scale=scale)


def without_last_key_of_many(q, k, v, *, mask=None, causal=False, scale=None):
    kernel = attention_kernel if k.shape[2] % 128 == 0 else without_last_key
    return kernel(q, k, v, mask=mask, causal=causal, scale=scale)


def masked(q, k, v, mask, rule, scale):
    """The kernel under a mask and a rule (tq, tk) for all rows."""
    if mask is not None and mask.dtype != bool:
        return attention_kernel(q, k, v, mask=np.where(rule, mask, -np.inf).astype(mask.dtype), scale=scale)
    return attention_kernel(q, k, v, mask=rule if mask is None else rule & mask, scale=scale)


def causal_one_key_further(q, k, v, *, mask=None, causal=False, scale=None):
    tq, tk = q.shape[2], k.shape[2]
    return masked(q, k, v, mask, np.tri(tq, tk, tk - tq + 1 if causal else tk, dtype=bool), scale)


def causal_one_key_less(q, k, v, *, mask=None, causal=False, scale=None):
    tq, tk = q.shape[2], k.shape[2]
    return masked(q, k, v, mask, np.tri(tq, tk, tk - tq - 1 if causal else tk, dtype=bool), scale)


def causal_top_left(q, k, v, *, mask=None, causal=False, scale=None):
    tq, tk = q.shape[2], k.shape[2]
    return masked(q, k, v, mask, np.tri(tq, tk, 0 if causal else tk, dtype=bool), scale)


def lse_in_base_2(q, k, v, **options):
    output, lse = attention_kernel(q, k, v, **options)
    return output, lse * np.log2(np.e, dtype=lse.dtype)


def nan_in_empty_rows(q, k, v, **options):
    output, lse = attention_kernel(q, k, v, **options)
    return np.where(np.isneginf(lse)[..., None], np.nan, output).astype(output.dtype), lse


def lse_0_of_empty_rows(q, k, v, **options):
    output, lse = attention_kernel(q, k, v, **options)
    return output, np.where(np.isneginf(lse), 0, lse).astype(lse.dtype)


def halves(q, k, v, mask, causal, scale):
    """Carries of two halves of the keys; causal calls are made whole, with an empty half."""
    cut = k.shape[2] if causal else k.shape[2] // 2
    for part in (slice(0, cut), slice(cut, None)):
        selected = None if mask is None else mask[..., part]
        boolean = selected is not None and selected.dtype == bool
        yield sc.attention_carry(
            q,
            k[:, :, part],
            v[:, :, part],
            mask=selected if boolean else None,
            bias=None if boolean else selected,
            causal=causal and part.start == 0,
            scale=scale,
        )


def halves_added_without_rescale(q, k, v, *, mask=None, causal=False, scale=None):
    one, other = halves(q, k, v, mask, causal, scale)
    total = sc.Carry(np.maximum(one.m, other.m), one.l + other.l, one.o + other.o)
    return total.output.astype(q.dtype), total.lse


def halves_merged_in_bfloat16(q, k, v, *, mask=None, causal=False, scale=None):
    narrow = (
        sc.Carry(c.m, c.l, c.o.astype(ml_dtypes.bfloat16).astype(c.o.dtype))
        for c in halves(q, k, v, mask, causal, scale)
    )
    total = next(narrow) | next(narrow)
    return total.output.astype(q.dtype), total.lse


def mutant(kernel):
    options = ("mask", "causal", "scale")
    return replace(load_subject("softcarry-attention"), kernel=kernel, options=options)


WRONG = {
    without_last_key: "REF",
    without_last_key_of_many: "TAIL",
    causal_one_key_further: "EMPTY",
    causal_one_key_less: "EMPTY",
    causal_top_left: "EMPTY",
    lse_in_base_2: "LSE",
    nan_in_empty_rows: "EMPTY",
    lse_0_of_empty_rows: "LSE",
    halves_added_without_rescale: "REF",
}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("kernel", WRONG, ids=lambda kernel: kernel.__name__)
def test_a_wrong_variant_is_found(kernel, dtype):
    examination = examine(mutant(kernel), WRONG[kernel], dtype=dtype)
    assert any(finding.severity == "error" for finding in examination.findings)


def test_a_narrow_merge_is_found_because_the_carry_is_declared():
    """Undeclared, the bound in bfloat16 allows for terms that are rounded to it, as fused kernels do."""
    declared = examine(mutant(halves_merged_in_bfloat16), "REF", dtype="bfloat16")
    assert any(finding.severity == "error" for finding in declared.findings)
    undeclared = replace(mutant(halves_merged_in_bfloat16), carry=None)
    assert messages(examine(undeclared, "REF", dtype="bfloat16")) == []


def ignores_scale(q, k, v, *, mask=None, causal=False, scale=None):
    return attention_kernel(q, k, v, mask=mask, causal=causal)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_scale_that_is_ignored_is_found(dtype):
    found = messages(examine(mutant(ignores_scale), "SCALE", dtype=dtype))
    assert len(found) == 1
    assert found[0].startswith("the scale is ignored: 1/√d is used")
