"""Each fault of an attention is named with its smallest input; sound ones pass, and meet the audit."""

import math

import numpy as np
import pytest

import softcarry as sc
from block_checks import found, the_finding
from mutants import LogAddExp, Online, TwoPass
from softcarry.auditing.blocks import attention, check
from softcarry.errors import SubjectError
from softcarry.reference import blocked_attention

INF = math.inf


def of_lists(q, k, v, mask=None):
    """Plain Python, (t, d)."""
    output = []
    for i, query in enumerate(q):
        scores = [sum(a * b for a, b in zip(query, key, strict=True)) / math.sqrt(len(query)) for key in k]
        live = [j for j in range(len(k)) if mask is None or mask[i][j]]
        m = max((scores[j] for j in live), default=0.0)
        weights = [math.exp(scores[j] - m) if scores[j] == scores[j] else math.nan for j in live]
        total = sum(weights)
        columns = range(len(v[0]))
        output.append(
            [sum(w * v[j][c] for w, j in zip(weights, live, strict=True)) / (total or 1.0) for c in columns]
        )
    return output


def of_matrices(q, k, v, allowed=None):
    """NumPy, (t, d); the mask is the fourth parameter, whatever its name."""
    s = q @ k.T / np.sqrt(np.float32(q.shape[1]))
    if allowed is not None:
        s = np.where(allowed, s, -INF)
    m = s.max(axis=1, keepdims=True)
    p = np.exp(s - np.where(np.isneginf(m), 0.0, m))
    total = p.sum(axis=1, keepdims=True)
    return (p @ v / np.where(total == 0.0, 1.0, total)).astype(q.dtype)


def of_tensors(q, k, v, attn_mask=None):
    import torch

    return torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=attn_mask)


SOUND = {
    "lists": of_lists,
    "matrices": of_matrices,
    "two passes": TwoPass(),
    "one pass": Online(),
    "one pass, 16 keys a block": Online(key_block=16),
    "by the lse": LogAddExp(),
    "without a mask": lambda q, k, v: TwoPass(lse_dtype=None)(q, k, v),
    "reference": blocked_attention,
    "softcarry": lambda q, k, v, mask=None: sc.attention(q, k, v, mask=mask),
}


@pytest.fixture
def no_audit(monkeypatch):
    monkeypatch.setattr(attention, "_AUDITED", ())


@pytest.mark.usefixtures("no_audit")
@pytest.mark.parametrize("function", SOUND.values(), ids=SOUND)
@pytest.mark.parametrize("empty", ["any", "zero"])
def test_sound_attentions_pass(function, empty):
    assert found(function, "attention", empty=empty) == []


@pytest.mark.usefixtures("no_audit")
def test_torch_passes():
    pytest.importorskip("torch")
    assert found(of_tensors, "attention") == []


def test_what_it_takes_is_inferred(no_audit):
    facts = check(of_matrices, "attention").profile["float32"]
    assert facts["axes"].value == "(t, d)"
    assert facts["takes a mask"].value
    assert facts["NaN behind the mask"].value == "reaches the output"
    assert check(of_lists, "attention").profile["float32"]["NaN behind the mask"].value == "is selected away"
    assert check(TwoPass(), "attention").profile["float32"]["axes"].value == "(b, h, t, d)"


def test_the_audit_follows_where_nothing_was_found(monkeypatch):
    monkeypatch.setattr(attention, "_AUDITED", ("EMPTY", "REF"))
    report = check(TwoPass(), "attention")
    assert report.findings == ()
    assert {verdict.check: verdict.outcome for verdict in report.verdicts}["REF"] == "pass"
    wrong = check(TwoPass(no_maximum=True), "attention")
    assert {skip.reason for skip in wrong.skipped if skip.check == "REF"} == {"mend what was found first"}


def test_the_audit_finds_what_few_keys_do_not_show(monkeypatch):
    monkeypatch.setattr(attention, "_AUDITED", ("REF",))

    def wrong_of_many_rows(q, k, v, mask=None):
        return TwoPass(lse_dtype=None)(q, k, v, mask=mask) * np.float32(1.01 if q.shape[3] > 4 else 1.0)

    assert found(wrong_of_many_rows, "attention") == ["REF"]


def test_a_slow_function_is_not_audited(monkeypatch):
    monkeypatch.setattr(attention, "_PATIENCE", 0.0)
    report = check(TwoPass(), "attention")
    assert {skip.reason for skip in report.skipped} == {
        "a call of 32 queries and 64 keys takes over 0 ms: see softcarry audit"
    }


def plain(q, k, v, mask=None):
    return TwoPass(lse_dtype=None)(q, k, v, mask=mask)


def unscaled(q, k, v, mask=None):
    return TwoPass(lse_dtype=None)(q, k, v, mask=mask, scale=1.0)


def base_two(q, k, v, mask=None):
    return TwoPass(lse_dtype=None)(q, k, v, mask=mask, scale=math.log(2.0) / math.sqrt(q.shape[3]))


def last_block_dropped(q, k, v, mask=None):
    n = k.shape[2]
    n -= n % 16 if n > 16 else 0
    return plain(q, k[:, :, :n], v[:, :, :n], None if mask is None else mask[..., :n])


def padded_keys_counted(q, k, v, mask=None):
    more = -k.shape[2] % 32
    pad = ((0, 0), (0, 0), (0, more), (0, 0))
    mask = None if mask is None else np.pad(mask, (*pad[:3], (0, more)))
    return plain(q, np.pad(k, pad), np.pad(v, pad), mask)


def last_queries_not_written(q, k, v, mask=None):
    output = plain(q, k, v, mask)
    t = output.shape[2]
    output[:, :, t - t % 8 if t > 8 else t :] = 0.0
    return output


def masked_keys_at_the_end_count(q, k, v, mask=None):
    """In a last block of 8 that is masked to its end, the mask is forgotten."""
    if mask is not None and mask.shape[3] > 8 and not mask[..., -1].any():
        mask = mask.copy()
        mask[..., (mask.shape[3] - 1) // 8 * 8 :] = True
    return plain(q, k, v, mask)


def nan_to_zero(q, k, v, mask=None):
    return np.nan_to_num(plain(q, k, v, mask))


def first_key_without_keys(q, k, v, mask=None):
    output = plain(q, k, v, mask)
    if mask is not None:
        output = np.where(mask.any(-1, keepdims=True), output, -v[:, :, :1])
    return output


# fault: (function, name, part of the message, part of the input, right)
WRONG = {
    "no scale": (unscaled, "SCALE", "1/√d", "q = (1, 0, 0, 0)", "[0.731059]"),
    "base 2": (base_two, "PLAIN", "plain call", "scores [1, 0], values [1, 2]", "[1.26894]"),
    "no maximum": (
        TwoPass(no_maximum=True),
        "OVERFLOW",
        "overflows",
        "1 query, 1 key, d = 1: scores [1000], values [1]",
        "[1]",
    ),
    "last block dropped": (last_block_dropped, "LENGTHS", "wrong for 17 keys", "scores [0] * 17", "[9]"),
    "padded keys counted": (padded_keys_counted, "PLAIN", "plain call", "1 query, 1 key", "[1]"),
    "last queries not written": (
        last_queries_not_written,
        "LENGTHS",
        "wrong for 9 queries",
        "9 queries, 3 keys",
        "[2, 2, 2, 2, 2, 2, …]",
    ),
    "forgets to rescale": (
        Online(rescale=False, key_block=16),
        "RESCALE",
        "forgets to rescale: wrong from 17 keys on",
        "scores [0] * 16 + [3]",
        "[13.2312]",
    ),
    "first block masked": (
        Online(guard=False, key_block=48),
        "MASKED_BLOCK",
        "48 masked keys at the start gives NaN",
        "mask [0] * 48 + [1]",
        "[49]",
    ),
    "every key masked on its own": (
        Online(guard=False, key_block=1),
        "MASKED_BLOCK",
        "a masked key at the start gives NaN",
        "mask [0, 1]",
        "[2]",
    ),
    "masked last block": (
        masked_keys_at_the_end_count,
        "LAST_BLOCK",
        "masked keys at the end is wrong",
        "mask [1] + [0] * 8",
        "[1]",
    ),
    "sentinel": (TwoPass(fill=-1e4), "SENTINEL", "finite stand-in", "scores [-100000, 0]", "[1]"),
    "garbage without keys": (first_key_without_keys, "EMPTY_ROW", "a row without keys", "mask [0]", "[0]"),
    "one maximum for all rows": (
        TwoPass(shared_maximum=True),
        "ROWS",
        "the row beside it",
        "times [1, 2000]",
        "[1.73106]",
    ),
    "NaN swallowed": (nan_to_zero, "NAN", "NaN is swallowed", "values [1, nan]", "NaN"),
}


@pytest.mark.usefixtures("no_audit")
@pytest.mark.parametrize("fault", WRONG)
def test_each_fault_is_named_with_its_smallest_input_and_the_right_value(fault):
    function, name, words, given, right = WRONG[fault]
    finding = the_finding(function, "attention", name)
    assert words in finding.message
    assert given in finding.evidence["input"]
    assert right in finding.evidence["right"]


@pytest.mark.usefixtures("no_audit")
def test_nan_without_keys_is_an_error_where_0_is_asked_for():
    def naive(q, k, v, mask=None):
        return TwoPass(guard=False, lse_dtype=None)(q, k, v, mask=mask)

    assert found(naive, "attention") == []
    assert found(naive, "attention", empty="zero") == ["EMPTY_ROW"]


@pytest.mark.usefixtures("no_audit")
def test_a_function_that_raises_on_few_keys_is_named():
    def whole_blocks(q, k, v, mask=None):
        if k.shape[2] % 8:
            msg = "whole blocks, please"
            raise ValueError(msg)
        return plain(q, k, v, mask)

    finding = the_finding(whole_blocks, "attention", "PLAIN")
    assert finding.evidence["came"] == "raised ValueError: whole blocks, please"


def test_a_function_that_is_no_attention_is_refused():
    with pytest.raises(SubjectError, match=r"the attention could not be called \(numpy \(b, h, t, d\)"):
        check(lambda q, k, v: 0.0, "attention")
