"""What adapters of subjects are called with, and the right answers by loops over one row at a time."""

import math

import numpy as np

import oracle
from softcarry.auditing._calling import prepare

QUERIES, KEYS, DEPTH = 4, 6, 8

CASES = {
    "nothing": (),
    "scale": ("scale",),
    "boolean mask": ("boolean",),
    "additive mask": ("additive",),
    "causal": ("causal",),
    "boolean mask and causal": ("boolean", "causal"),
    "softcap": ("softcap",),
    "softcap and boolean mask": ("softcap", "boolean"),
    "window": ("window",),
    "window without an end": ("open window",),
    "lengths": ("kv_lengths",),
}
"""Which options are given together."""


def problem():
    """q (2, 2, 4, 8), k and v (2, 2, 6, 8), and a mask (4, 6): all exact in 16 bits, no row without keys."""
    rng = np.random.default_rng(0)
    q, k, v = (rng.integers(-8, 9, (2, 2, t, DEPTH)) / 8.0 for t in (QUERIES, KEYS, KEYS))
    mask = rng.random((QUERIES, KEYS)) < 0.6
    mask[:, 0] = True
    return q, k, v, mask


def options_of(case):
    """The options of a case, as the audit hands them over."""
    mask = problem()[3]
    given = {
        "scale": ("scale", 0.5),
        "boolean": ("mask", mask),
        "additive": ("mask", np.where(mask, np.arange(KEYS) / 4.0, -np.inf)),
        "causal": ("causal", True),
        "softcap": ("softcap", 0.75),
        "window": ("window", (1, 1)),
        "open window": ("window", (0, None)),
        "kv_lengths": ("kv_lengths", np.array([3, 5])),
    }
    return dict(given[part] for part in CASES[case])


def answer(
    q, k, v, *, alignment, mask=None, causal=False, scale=None, softcap=None, window=None, kv_lengths=None
):
    """Output and lse of the same call, with the diagonal "top-left" or "bottom-right"."""
    b, h, tq, d = q.shape
    tk = k.shape[2]
    shift = tk - tq if alignment == "bottom-right" else 0
    scale = 1.0 / math.sqrt(d) if scale is None else scale
    output, lse = np.zeros((b, h, tq, v.shape[3])), np.zeros((b, h, tq))
    for entry, head, i in np.ndindex(b, h, tq):
        scores = []
        for j in range(tk):
            score = scale * math.fsum(q[entry, head, i] * k[entry, head, j])
            score = score if softcap is None else softcap * math.tanh(score / softcap)
            if mask is not None:
                boolean = mask.dtype == bool
                score = (score if mask[i, j] else -math.inf) if boolean else score + mask[i, j]
            left, right = (None, None) if window is None else window
            hidden = (
                (causal and j > i + shift)
                or (left is not None and j < i + shift - left)
                or (right is not None and j > i + shift + right)
                or (kv_lengths is not None and j >= kv_lengths[entry])
            )
            scores.append(-math.inf if hidden else score)
        lse[entry, head, i] = oracle.lse_of(scores)
        for j, weight in enumerate(oracle.softmax_of(scores)):
            output[entry, head, i] += weight * v[entry, head, j]
    return output, lse


def supported(keywords):
    """The cases whose options a subject takes."""
    return [case for case in CASES if set(options_of(case)) <= set(keywords)]


def check_case(subject, case):
    """Call a subject in float32 and compare with `answer`; its lse too, if it returns one."""
    calling = prepare(subject, "float32")
    q, k, v, _ = problem()
    options = options_of(case)
    outcome = calling(q, k, v, **options)
    output, lse = answer(q, k, v, alignment=calling.causal, **options)
    # Eight products and six terms of size below 8, in float32 on one side.
    np.testing.assert_allclose(outcome.output, output, rtol=0, atol=4e-6)
    if calling.returns_lse:
        np.testing.assert_allclose(outcome.lse, lse, rtol=0, atol=4e-6)


def row_without_keys(subject, dtype="float32"):
    """Output (d,) and lse (or None) of a row whose keys are masked by booleans, and the values (tk, d)."""
    q, k, v, mask = problem()
    mask[1] = False
    outcome = prepare(subject, dtype)(q, k, v, mask=mask)
    return outcome.output[0, 1, 1], None if outcome.lse is None else outcome.lse[0, 1, 1], v[0, 1]


def check_grouped_heads(subject):
    """Call a subject with two heads of q for one of k and v."""
    q, k, v, _ = problem()
    one = slice(0, 1)
    outcome = prepare(subject, "float32")(q, k[:, one], v[:, one])
    repeated = (np.repeat(x[:, one], 2, axis=1) for x in (k, v))
    output, _ = answer(q, *repeated, alignment="bottom-right")
    np.testing.assert_allclose(outcome.output, output, rtol=0, atol=4e-6)


def dtypes_of_results(subject):
    """The dtypes of the output and of the lse ("" for none) for every dtype that is audited."""
    found = {dtype: prepare(subject, dtype) for dtype in subject.dtypes}
    return {dtype: (calling.output_dtype, calling.lse_dtype) for dtype, calling in found.items()}
