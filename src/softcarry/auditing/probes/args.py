"""ARGS: are arguments that do not fit together refused?

Question
    Does a call whose lengths, heads, depths, batches, mask, dtypes or axes do not fit raise an error, rather
    than return something or end the process?
Input
    q (2, 4, 6, 16) beside k and v (2, 4, 48, 16), and one thing at a time that does not fit: v longer or
    shorter than k, 3 heads beside 4, another depth of q and k, another batch, masks too long, too short or of
    too few heads, one array in another dtype, three axes, lengths beyond the keys. All calls are made in a
    fresh process, and in another one from the next call on if it dies.
Conclusion
    An exception of any kind is right. A result is an error, and if it is the answer of a call that would have
    fitted, that is said. A process that dies or hangs is an error. Two things pass: one array converted from
    another dtype with the right answer, and attention of arrays without a batch axis. K and V of one batch
    entry, or of three axes, that are used for all of q's batch are a warning: array libraries broadcast so,
    and few kernels document it.
Tolerance
    The master bound for the answers of calls that would fit, plus two roundings to the narrower dtype where
    dtypes are mixed.
Source
    The documented shapes of attention: q (b, h, tq, d), k (b, kv_heads, tk, d), v (b, kv_heads, tk, dv),
    kv_heads a divisor of h.
Public faults of this kind
    pytorch#193728 (a value that is longer than the key: the CPU flash path reads past the end of the key).
"""

import numpy as np

from softcarry.auditing._attempts import attempt_all
from softcarry.auditing.isolation import NotPortableError
from softcarry.auditing.probes._args_cases import misfits, plain_attempt

_REMEDY = "compare the shapes and dtypes of q, k, v and the options before any work, and raise"


def probe(examination) -> None:
    """Make calls that should raise.

    Parameters
    ----------
    examination : Examination
        A fact ``arguments that do not fit``, and a finding for each group of faults.
    """
    if examination.quick:
        examination.skip(
            "arguments that do not fit", "a process of its own takes seconds: not in a quick audit"
        )
        return
    if not examination.first_dtype:
        examination.skip("arguments that do not fit", "asked in the first dtype: shapes have none")
        return
    plain = plain_attempt(examination)
    cases = list(misfits(examination, plain))
    for option in ("mask", "kv_lengths"):
        if not examination.can(option):
            examination.skip(f"arguments that do not fit: {option}", examination.lacks(option))
    try:
        first, *answers = attempt_all(examination.calling, [plain, *(case.attempt for case in cases)])
    except NotPortableError as error:
        examination.skip("arguments that do not fit", str(error))
        return
    if first.kind != "returned":
        reason = f"a call that fits {first.kind} in a fresh process ({first.text})"
        examination.skip("arguments that do not fit", reason)
        return
    seen, accepted, ended = {}, {}, []
    for case, answer in zip(cases, answers, strict=True):
        name = case.attempt.name
        if answer.kind == "not made":
            examination.skip(name, answer.text)
            continue
        examination.calls += 1
        if answer.kind == "raised":
            seen[name] = "raises"
        elif answer.kind == "returned":
            text, harm = _read(examination, case, answer)
            seen[name] = text
            if harm != "none":
                group = case.group if harm == "wrong" else ""
                accepted.setdefault(group, []).append((case, answer, text))
        else:
            seen[name] = f"{answer.kind}: {answer.text}"
            ended.append((name, answer))
    examination.fact("arguments that do not fit", seen, 1.0, "one call each, in a fresh process")
    _report_ended(examination, ended)
    for group, found in accepted.items():
        _report_accepted(examination, group, found)


def _read(examination, case, answer):
    """Say what was computed instead of an error, and how much harm that does."""
    if answer.output is None:
        return f"returns {answer.text}", "wrong"
    for reading in case.readings:
        q, k, v, options = reading.call
        wanted = examination.golden(q, k, v, **options)
        output = wanted.output[0] if answer.output.ndim == 3 else wanted.output
        if answer.output.shape != output.shape:
            continue
        bound = examination.bound(q, k, v, **options).output + _mixed(case, wanted.weights @ np.abs(v))
        error = np.abs(answer.output - output)
        if (error <= (bound[0] if answer.output.ndim == 3 else bound)).all():
            return reading.text, reading.harm
    # Nothing more is said of numbers that may come from beyond an array: they differ from run to run.
    return f"returns {answer.text} that is the answer of no call that fits", "wrong"


def _mixed(case, weight):
    from softcarry.numerics import get_format

    others = [dtype for dtype in case.attempt.dtypes if dtype is not None]
    return sum(2.0 * get_format(dtype).unit_roundoff * weight for dtype in others)


def _report_ended(examination, ended):
    for kind, what in (("died", "the process dies of"), ("hung", "no answer comes to")):
        names = [name for name, answer in ended if answer.kind == kind]
        if names:
            reasons = {name: answer.text for name, answer in ended if answer.kind == kind}
            first = reasons[names[0]]
            examination.fail(
                f"{what} arguments that do not fit: {'; '.join(names)} ({first})",
                evidence={"calls": reasons},
                remedy=_REMEDY,
            )


def _report_accepted(examination, group, found):
    case, answer, text = found[0]
    attempt = case.attempt
    evidence = {
        "call": f"q {attempt.q.shape}, k {attempt.k.shape}, v {attempt.v.shape}",
        "expected": "an exception",
        "accepted": {each.attempt.name: done for each, _, done in found},
        "result": answer.text,
    }
    if group:
        examination.fail(
            f"{group} that do not fit are accepted: with {attempt.name} it {text}",
            evidence=evidence,
            remedy=_REMEDY,
        )
    else:
        examination.warn(
            f"shapes are broadcast, as few kernels document: with {attempt.name} it {text}",
            evidence=evidence,
            remedy="document it, or raise",
        )
