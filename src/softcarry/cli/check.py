"""``softcarry check``: a building block of one's own, for those who learn or port."""

import os
import sys
from typing import Annotated, Literal

from cyclopts import Parameter

from softcarry.cli._console import output, write_json
from softcarry.cli._options import AsJson
from softcarry.cli._status import FINDINGS, NOTHING_FOUND
from softcarry.cli._stdout import stdout_kept_for_the_report

Kind = Literal["normalizer", "merge", "topk", "softmax", "attention"]


def check(
    function: str,
    *,
    as_: Annotated[Kind, Parameter(name="--as")],
    form: Literal["carry", "lse"] | None = None,
    empty: Literal["any", "zero"] = "any",
    fail_on: Literal["error", "warning"] = "error",
    json: AsJson = False,
) -> int:
    """Check a building block: a normaliser, a merge, a top-k, a softmax, an attention.

    Each fault is named, with the smallest failing input, what came, and the
    right value. The function runs in this process.

    Parameters
    ----------
    function
        module:function. Modules are looked for in the current folder, too.
        Results may be lists, tuples, NumPy, torch or JAX arrays; inputs are
        NumPy arrays, torch tensors or lists, whichever it takes.
    as_
        What the function is meant to be. normalizer: f(iterable of floats) ->
        (m, l), read once, m the maximum and l = sum of e^(s - m). merge:
        f((m1, l1, o1), (m2, l2, o2)) -> (m, l, o), or f(output1, lse1,
        output2, lse2) -> (output, lse). topk: f(x, k) -> (probabilities,
        indices) of the softmax of all of x. softmax: f(x) -> p over the last
        axis. attention: f(q, k, v[, mask]) on (t, d) or (b, h, t, d), scale
        1/sqrt(d), mask True = attend; if nothing is found and calls are fast,
        checks of softcarry audit follow.
    form
        Which of the two merges it is, where two or four parameters don't tell.
    empty
        What a softmax, a top-k or an attention may give for a row of -inf
        alone: anything sensible, or only 0.
    fail_on
        The least severe finding that makes the exit status 1.
    json
        Write JSON. Keys: schema, reports; the report is of the schema
        softcarry.report/1, docs/report-schema.json.

    Returns
    -------
    int
        Exit status.
    """
    from softcarry.auditing.blocks import check as run_check

    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    with stdout_kept_for_the_report():
        report = run_check(function, as_, form=form, empty=empty)
    if json:
        write_json({"schema": "softcarry.check/1", "reports": [report.to_dict()]})
    else:
        from softcarry.report.check_text import render

        output().print(render(report))
    counted = ("error",) if fail_on == "error" else ("error", "warning")
    return FINDINGS if any(finding.severity in counted for finding in report.findings) else NOTHING_FOUND
