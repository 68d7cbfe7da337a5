"""Attention given to threads and put together: the caller of its kernels."""

import numpy as np

from softcarry.cpu import attention_tasks, decode, prefill
from softcarry.cpu.attention_cut import Cut, Shapes, cuts
from softcarry.cpu.attention_layout import Problem
from softcarry.cpu.attention_results import Parts, Results
from softcarry.cpu.compiling import ready
from softcarry.cpu.memory import ELEMENTS
from softcarry.cpu.prefill import Options
from softcarry.cpu.threads import get_num_threads, run

_SHARE = 2**20
"""Multiplications that are worth a thread: waking one takes as long as some 20 µs of work."""


def attend(element: str, problem: Problem, options: Options, results: Results, shapes: Shapes) -> None:
    """Compute attention of all sequences. No result depends on the number of threads."""
    for cut in cuts(shapes):
        _attend(element, problem, options, results, shapes.working, cut)


def _attend(
    element: str, problem: Problem, options: Options, results: Results, working: str, cut: Cut
) -> None:
    like, width = ELEMENTS[working], cut.width
    held = np.empty(cut.parts * (2 + width) + 64 if cut.parts else 0, like.dtype)
    m = held.__array_interface__["data"][0]
    o = -(-(m + 2 * cut.parts * like.itemsize) // 64) * 64
    parts = Parts(m, m + cut.parts * like.itemsize, o, width)
    counters = np.zeros(2, np.int64)
    counter = counters.__array_interface__["data"][0]
    tasks = cut.tasks.__array_interface__["data"][0]
    fixed = (ELEMENTS[element], like, problem, options, results, parts, tasks, cut.units)
    threads = max(1, min(get_num_threads(), cut.products // _SHARE, cut.units))
    if cut.few:
        kernel, arguments = decode.attend_groups, (*fixed, width, counter)
    else:
        kernel, arguments = prefill.attend_queries, (*fixed, cut.rows, width, counter)
    ready(kernel, (element,), arguments)
    run(lambda: kernel(*arguments), threads)
    if cut.parts:
        finish = (ELEMENTS[element], like, problem, results, parts, tasks, cut.parted_rows, counter + 8)
        ready(attention_tasks.finish_rows, (element,), finish)
        run(lambda: attention_tasks.finish_rows(*finish), min(threads, -(-cut.parts * width // _SHARE)))
    # What the addresses are of, and a late call looks at, outlives the calls.
    del held, counters
