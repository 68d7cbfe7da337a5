"""Two reports of a kernel: what is new, what is mended, which facts have drifted, and whose bits changed."""

import re
from collections.abc import Iterable
from typing import Any

from softcarry.auditing.last_places import count_last_places
from softcarry.report.model import Finding, Report

_FINGERPRINTS = ("fingerprint", "fingerprint sample")
_RANKS = {"pass": 0, "skip": 1, "warn": 2, "fail": 3}
_REMEDY = "look at what changed between the two; store the new report as the baseline if it is meant"


def compare_with_baseline(report: Report, baseline: Report) -> tuple[Finding, ...]:
    """Compare a report with an older one of the same kernel.

    Parameters
    ----------
    report, baseline : Report
        The new one, and the one that is stored.

    Returns
    -------
    tuple of Finding
        All of severity "warning". Of check "FPRINT" where output bits differ, with the distances in units in
        the last place; "PROFILE" for each fact that differs, old and new; of the check itself for a finding
        that is new or mended and for a verdict that got worse; "BASELINE" for what only one of the reports
        has, and for a baseline of another subject.

    Notes
    -----
    Findings are matched by check, dtype, severity and message, numbers left out. Integers, strings and truth
    values of the profile must be equal. Measured numbers count as different when they differ by more than a
    factor of two: they are statistics of rounding errors, which another order of the same sums changes.

    Examples
    --------
    >>> old = Report({"name": "mine"}, findings=(Finding("LSE", "error", "in base 2", {}, "", "float32"),))
    >>> [finding.message for finding in compare_with_baseline(Report({"name": "mine"}), old)]
    ['mended since the baseline: in base 2']
    """
    return (
        *_what_is_not_compared(report, baseline),
        *_bits(report, baseline),
        *_drift(report, baseline),
        *_verdicts(report, baseline),
        *_findings(report, baseline),
    )


def _warn(check, message, evidence, dtype, remedy=_REMEDY):
    return Finding(check, "warning", message, evidence, remedy, dtype)


def _what_is_not_compared(report, baseline):
    dtype = next(iter(report.profile), "")
    names = {"now": report.subject.get("name"), "then": baseline.subject.get("name")}
    if names["now"] != names["then"]:
        yield _warn("BASELINE", f"the baseline is a report of another subject, {names['then']}", names, dtype)
    now, then = _examined(report), _examined(baseline)
    for what, index in (("dtypes", 0), ("checks", 1)):
        here, there = ({pair[index] for pair in pairs} for pairs in (now, then))
        only = {"only now": sorted(here - there), "only in the baseline": sorted(there - here)}
        if here != there and here and there:
            listed = ", ".join(only["only now"] + only["only in the baseline"])
            message = f"not compared, as only one of the reports has these {what}: {listed}"
            yield _warn("BASELINE", message, only, dtype, "audit both with the same dtypes and checks")


def _examined(report):
    return {(verdict.dtype, verdict.check) for verdict in report.verdicts}


def _shared(report, baseline):
    """Yield each dtype that both have, and the profiles in it as JSON has them."""
    profiles = (each.to_dict()["profile"] for each in (report, baseline))
    now, then = profiles
    for dtype in now:
        if dtype in then:
            yield dtype, now[dtype], then[dtype]


def _bits(report, baseline):
    for dtype, now, then in _shared(report, baseline):
        if not all("fingerprint" in facts for facts in (now, then)):
            continue
        prints = [facts["fingerprint"]["value"] for facts in (now, then)]
        common = [case for case in prints[0] if case in prints[1]]
        differing = [case for case in common if prints[0][case] != prints[1][case]]
        if not differing:
            continue
        evidence = {
            "cases that differ": differing,
            "cases that are the same": [case for case in common if case not in differing],
            "distances in units in the last place": _distances(report, baseline, dtype, now, then, differing),
            "changed around it": _environment(report, baseline),
        }
        message = f"output bits differ from the baseline's in {len(differing)} of {len(common)} cases"
        yield _warn("FPRINT", message, evidence, dtype)


def _distances(report, baseline, dtype, now, then, cases):
    formats = [each.subject.get("output_dtypes", {}).get(dtype, dtype) for each in (report, baseline)]
    if formats[0] != formats[1]:
        return f"outputs are {formats[0]} now and were {formats[1]}"
    samples = [facts.get("fingerprint sample", {}).get("value", {}) for facts in (now, then)]
    pairs = [(samples[0][case], samples[1][case]) for case in cases if all(case in each for each in samples)]
    return count_last_places(formats[0], pairs)


def _environment(report, baseline):
    """Say what is different about where the two ran."""
    now, then = report.environment, baseline.environment
    return {
        key: {"then": then.get(key), "now": now.get(key)}
        for key in sorted(now.keys() | then.keys())
        if key != "time" and now.get(key) != then.get(key)
    }


def _drift(report, baseline):
    for dtype, now, then in _shared(report, baseline):
        for name in now:
            if name in _FINGERPRINTS or name not in then:
                continue
            old, new = then[name]["value"], now[name]["value"]
            if not _alike(old, new):
                changed = _changes(old, new)
                yield _warn("PROFILE", f"drift: {name} is not what it was", changed, dtype)


def _alike(old: Any, new: Any) -> bool:
    if isinstance(old, dict) and isinstance(new, dict):
        return old.keys() == new.keys() and all(_alike(old[key], new[key]) for key in old)
    if isinstance(old, list) and isinstance(new, list):
        return len(old) == len(new) and all(map(_alike, old, new))
    if isinstance(old, float) and isinstance(new, float):
        return abs(new - old) <= max(abs(new), abs(old)) / 2.0
    return type(old) is type(new) and old == new


def _changes(old, new):
    """Return old and new, of a mapping only the entries that differ."""
    if not (isinstance(old, dict) and isinstance(new, dict)):
        return {"then": old, "now": new}
    keys = [*new, *(key for key in old if key not in new)]
    differing = [key for key in keys if key not in old or key not in new or not _alike(old[key], new[key])]
    return {
        "then": {key: old[key] for key in differing if key in old},
        "now": {key: new[key] for key in differing if key in new},
    }


def _verdicts(report, baseline):
    then = {(verdict.dtype, verdict.check): verdict.outcome for verdict in baseline.verdicts}
    for verdict in report.verdicts:
        old = then.get((verdict.dtype, verdict.check))
        if old is not None and _RANKS[verdict.outcome] > _RANKS[old]:
            message = f"worse than in the baseline: {old} then, {verdict.outcome} now"
            yield _warn(verdict.check, message, {"then": old, "now": verdict.outcome}, verdict.dtype)


def _findings(report, baseline):
    """Name what is new and what is mended, in checks and dtypes that both have."""
    both = _examined(report) & _examined(baseline)
    comparable = both or None
    for one, other, word in ((report, baseline, "new"), (baseline, report, "mended")):
        known = {_key(finding) for finding in other.findings}
        for finding in _within(one.findings, comparable):
            if _key(finding) not in known:
                evidence = {"severity": finding.severity} | finding.evidence
                message = f"{word} since the baseline: {finding.message}"
                yield _warn(finding.check, message, evidence, finding.dtype, finding.remedy)


def _within(findings: Iterable[Finding], pairs):
    """Yield the findings of pairs (dtype, check), or all if there are none to go by."""
    return (finding for finding in findings if pairs is None or (finding.dtype, finding.check) in pairs)


def _key(finding):
    return (
        finding.check,
        finding.dtype,
        finding.severity,
        re.sub(r"[-−+]?\d[\d.,e+−-]*", "#", finding.message),
    )
