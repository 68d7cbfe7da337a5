"""Attention of few queries: keys and values are streamed once for all rows that share them.

The rows are those of all query heads of a group, head after head. Their products with the keys of a block,
and of their terms with its values, read both where they lie; no vector is copied but those whose elements do
not follow each other.

References
----------
T. Dao, D. Haziza, F. Massa and G. Sizov, "Flash-Decoding for long-context inference", 2023: keys are split,
and the carries of the pieces merged.
"""

import numpy as np
from numba import njit

from softcarry.cpu.attention_layout import (
    ALL,
    KEY_BLOCK,
    NOTHING,
    SOME,
    allowed,
    bias_address,
    end_of_run,
    first_key,
    key_address,
    last_key,
    mask_address,
    position,
    query_address,
    sequence_of,
    slope_address,
    value_address,
)
from softcarry.cpu.attention_packing import pack_keys, pack_value_rows
from softcarry.cpu.attention_results import store_part, write_row
from softcarry.cpu.attention_tasks import load_task, task_of
from softcarry.cpu.decode_workspace import MOST_ROWS, SCORE_KEYS, of_head, room, workspace
from softcarry.cpu.dots import ROWS, Coming, add_values, score_keys
from softcarry.cpu.memory import (
    block_lanes,
    claim,
    element_size,
    filled_block,
    filled_strip,
    keep,
    load_block,
    load_element,
    load_strip,
    store,
    store_element,
)
from softcarry.cpu.score_panel import (
    Strip,
    absorb_scores,
    add_bias,
    cap_scores,
    hide_by_mask,
    hide_by_position,
    subtract_distances,
)
from softcarry.cpu.simd import STRIP, fma, lane_sum

_TOGETHER = 4096
"""Bytes of the vectors of a token, of the heads of keys that a unit of work takes together, at most."""
_UNITS = 16
"""Units of work that are left at least, for many threads to share."""


@njit
def _begin_rows(element, like, problem, sequence, kv_head, rows, scale, work):
    """Copy the queries of all rows, and empty their carries."""
    size, element_bytes, q_row = element_size(like), element_size(element), work.q_row
    factor, nothing = type(like)(scale), filled_strip(like, 0.0)
    for at in range(0, -(-rows // ROWS) * ROWS * q_row, STRIP * size):
        store(like, work.q + at, nothing)
    for row in range(rows):
        head, query = kv_head * problem.group + row // sequence.query_count, row % sequence.query_count
        source = query_address(problem, sequence, head, query)
        target = work.q + row * q_row
        c = 0
        if problem.q.step == element_bytes:
            while c + STRIP <= problem.d:
                numbers = load_strip(element, source + c * element_bytes)
                store(like, target + c * size, numbers * filled_strip(like, factor))
                c += STRIP
        while c < problem.d:
            number = load_element(element, source + c * problem.q.step)
            store_element(like, target + c * size, type(like)(number * factor))
            c += 1
        store_element(like, work.queries + row * size, type(like)(query))
        if problem.slopes != 0:
            slope = load_element(like, slope_address(like, problem, sequence, head))
            store_element(like, work.slopes + row * size, slope)
    for row in range(0, rows, STRIP):
        store(like, work.m + row * size, filled_strip(like, -np.inf))
        store(like, work.l + row * size, nothing)
    for place in range(0, rows * work.width, block_lanes(like)):
        store(like, work.o + place * size, filled_block(like, -0.0))


@njit
def _allowed(problem, sequence, kv_head, first, last):
    """Return whether a mask allows NOTHING, SOME or ALL of the pairs of a group's rows and keys."""
    heads = problem.group if problem.mask.address != 0 and problem.mask.head != 0 else 1
    head = kv_head * problem.group
    found = allowed(problem, sequence, head, 0, sequence.query_count, first, last)
    for more in range(1, heads):
        if (
            found != SOME
            and allowed(problem, sequence, head + more, 0, sequence.query_count, first, last) != found
        ):
            found = SOME
    return found


@njit
def _score_block(element, like, problem, sequence, kv_head, rows, block, begin, end, work):
    """Store the scores of the keys from block + begin to before block + end."""
    size, d = element_size(like), problem.d
    panel = SCORE_KEYS * STRIP * size
    if problem.k.step != element_size(element):
        pack_keys(element, like, problem, sequence, kv_head, block + begin, block + end, work.k)
        scores, row = work.scores + begin * STRIP * size, d * size
        nothing = Coming(work.k, 0, 0)
        score_keys(like, like, work.q, work.q_row, rows, work.k, row, end - begin, d, scores, panel, nothing)
        return
    first, last = block + begin, block + end
    while first < last:
        stop = end_of_run(problem, first, last)
        k = key_address(problem, sequence, kv_head, first)
        v = value_address(problem, sequence, kv_head, first)
        coming = Coming(v, problem.v.token, problem.dv * element_size(element))
        scores, token = work.scores + (first - block) * STRIP * size, problem.k.token
        score_keys(element, like, work.q, work.q_row, rows, k, token, stop - first, d, scores, panel, coming)
        first = stop


@njit
def _edit_panel(like, problem, sequence, kv_head, row, held, block, begin, end, masked, softcap, work):
    """Cap scores, add what is added to them, and select away what is masked, of one panel of rows."""
    size, panel, count = element_size(like), Strip(like), sequence.query_count
    scores = work.scores + row // STRIP * (SCORE_KEYS * STRIP * size)
    here = position(problem, sequence, 0) - block
    queries = load_strip(like, work.queries + row * size)
    if softcap != 0:
        cap_scores(panel, scores, begin, end, softcap)
    if problem.bias.address != 0 or masked:
        # Rows that follow each other with one stride: those of one head, or of single queries of all heads.
        at = row
        while at < row + held:
            head, query = kv_head * problem.group + at // count, at % count
            rows = row + held - at if count == 1 else min(count - query, row + held - at)
            if problem.bias.address != 0:
                pairs = problem.bias
                source = bias_address(problem, sequence, head, query, block)
                step = pairs.head if count == 1 else pairs.query
                add_bias(panel, pairs.element, source, pairs.key, step, at - row, rows, scores, begin, end, 0)
            at += rows
    if problem.slopes != 0:
        slopes = load_strip(like, work.slopes + row * size)
        subtract_distances(panel, queries, here, slopes, scores, begin, end)
    if masked:
        at = row
        while at < row + held:
            head, query = kv_head * problem.group + at // count, at % count
            rows = row + held - at if count == 1 else min(count - query, row + held - at)
            pairs = problem.mask
            source = mask_address(problem, sequence, head, query, block)
            step = pairs.head if count == 1 else pairs.query
            hide_by_mask(panel, source, pairs.key, step, at - row, rows, scores, begin, end, 0)
            at += rows
    if (
        first_key(problem, sequence, count - 1) > block + begin
        or last_key(problem, sequence, 0) < block + end
    ):
        hide_by_position(panel, queries, here, problem.left, problem.right, scores, begin, end)


@njit
def _all_finite(like, address, rows, width):
    size, nothing = element_size(like), filled_block(like, 0.0)
    # 0·x summed is 0, or NaN if any x is infinite or NaN.
    zeros = nothing
    for place in range(0, rows * width, block_lanes(like)):
        zeros = fma(load_block(like, address + place * size), nothing, zeros)
    return lane_sum(zeros) == 0


@njit
def _add_live_values(like, scores, terms, begin, end, rows, v, width, totals):
    """Store terms times values as `add_values` adds them, but pass over what is masked.

    This is for values that are infinite or NaN, which 0 would not hide.
    """
    size = element_size(like)
    for row in range(rows):
        for column in range(0, width, block_lanes(like)):
            total = filled_block(like, -0.0)
            for j in range(begin, end):
                at = (j * STRIP + row) * size
                if load_element(like, scores + at) != -np.inf:
                    term = filled_block(like, load_element(like, terms + at))
                    total = fma(term, load_block(like, v + (j * width + column) * size), total)
            store(like, totals + (row * width + column) * size, total)


@njit
def _absorb_values(
    element, like, problem, sequence, kv_head, row, held, block, begin, end, next_head, next_keys, work
):
    """Add the terms of a panel times the values of a block to the running output.

    The keys that are scored next are those of another head of keys, so many keys on.
    """
    size, width, dv = element_size(like), work.width, problem.dv
    lanes, bytes_of_row = block_lanes(like), width * element_size(like)
    packed = problem.v.step != element_size(element)
    filled = 1 if held == 1 else -(-held // ROWS) * ROWS
    for place in range(0, filled * width, lanes):
        store(like, work.totals + place * size, filled_block(like, -0.0))
    if packed:
        terms, v = work.terms + begin * STRIP * size, work.v + begin * bytes_of_row
        nothing = Coming(v, 0, 0)
        add_values(
            like, like, terms, held, v, bytes_of_row, end - begin, dv, work.totals, bytes_of_row, nothing
        )
    first, last = block + begin, block + end
    while first < last and not packed:
        stop = end_of_run(problem, first, last)
        v, terms = (
            value_address(problem, sequence, kv_head, first),
            work.terms + (first - block) * STRIP * size,
        )
        token = problem.v.token
        key = first + next_keys if first + next_keys < sequence.key_count else first
        k = key_address(problem, sequence, next_head, key)
        coming = Coming(k, problem.k.token, problem.d * element_size(element))
        add_values(element, like, terms, held, v, token, stop - first, dv, work.totals, bytes_of_row, coming)
        first = stop
    if not _all_finite(like, work.totals, held, width):
        if not packed:
            target = work.v + begin * bytes_of_row
            pack_value_rows(
                element, like, problem, sequence, kv_head, block + begin, last, bytes_of_row, target
            )
        scores = work.scores + row // STRIP * (SCORE_KEYS * STRIP * size)
        _add_live_values(like, scores, work.terms, begin, end, held, work.v, width, work.totals)
    for i in range(held):
        factor = filled_block(like, load_element(like, work.factors + (row + i) * size))
        o = work.o + (row + i) * bytes_of_row
        for column in range(0, width, lanes):
            total = load_block(like, work.totals + i * bytes_of_row + column * size)
            store(like, o + column * size, fma(load_block(like, o + column * size), factor, total))


@njit
def _absorb_block(
    element, like, problem, sequence, kv_head, rows, block, begin, end, next_head, next_keys, options, work
):
    """Absorb the keys from block + begin to before block + end into the carries of a group's rows."""
    size, panel = element_size(like), Strip(like)
    pairs = _allowed(problem, sequence, kv_head, block + begin, block + end)
    if pairs == NOTHING:
        return
    _score_block(element, like, problem, sequence, kv_head, rows, block, begin, end, work)
    if problem.v.step != element_size(element):
        row = work.width * size
        first, last, v = block + begin, block + end, work.v + begin * row
        pack_value_rows(element, like, problem, sequence, kv_head, first, last, row, v)
    for row in range(0, rows, STRIP):
        held = min(STRIP, rows - row)
        masked, softcap = pairs != ALL, options.softcap
        _edit_panel(like, problem, sequence, kv_head, row, held, block, begin, end, masked, softcap, work)
        scores = work.scores + row // STRIP * (SCORE_KEYS * STRIP * size)
        m, l, factors = work.m + row * size, work.l + row * size, work.factors + row * size
        absorb_scores(panel, scores, work.terms, begin, end, m, l, factors, options.threshold)
        _absorb_values(
            element,
            like,
            problem,
            sequence,
            kv_head,
            row,
            held,
            block,
            begin,
            end,
            next_head,
            next_keys,
            work,
        )


@njit
def summarise_groups(element, like, problem, sequence, kv_head, heads, rows, first, last, options, work):
    """Leave the carries of some groups' rows, over the keys of one piece, in the workspace.

    The groups are those of so many heads of keys from ``kv_head`` on; the keys, from ``first`` to before
    ``last``.
    """
    for number in range(heads):
        own = of_head(like, work, number)
        _begin_rows(element, like, problem, sequence, kv_head + number, rows, options.scale, own)
    first_seen = first_key(problem, sequence, 0)
    start = max(first, first_seen // KEY_BLOCK * KEY_BLOCK)
    stop = min(last, last_key(problem, sequence, sequence.query_count - 1))
    for block in range(start, stop, KEY_BLOCK):
        begin, end = max(0, first_seen - block), min(KEY_BLOCK, stop - block)
        for number in range(heads):
            head, at_end = kv_head + number, number == heads - 1
            next_head, next_keys = (kv_head, KEY_BLOCK) if at_end else (head + 1, 0)
            own = of_head(like, work, number)
            _absorb_block(
                element,
                like,
                problem,
                sequence,
                head,
                rows,
                block,
                begin,
                end,
                next_head,
                next_keys,
                options,
                own,
            )


@njit
def heads_together(element, problem, units):
    """Return how many heads of keys a unit of work takes together, a divisor of their number.

    Where the vectors of all heads of a token lie side by side, a page of memory and what the processor reads
    ahead belong to several heads. No bit depends on it.
    """
    found, kv_heads = 1, problem.heads // problem.group
    if 0 < problem.k.head < problem.k.token:
        for heads in range(2, kv_heads + 1):
            fits = heads * problem.d * element_size(element) <= _TOGETHER and units >= _UNITS * heads
            if fits and kv_heads % heads == 0:
                found = heads
    return found


@njit(nogil=True, cache=True)
def attend_groups(element, like, problem, options, results, parts, tasks, units, width, counter):
    """Claim units of work until none is left: all rows that share a head of keys, over one piece of the keys.

    The units of a piece follow each other, one a head of keys; some may be claimed together. With one piece
    the results are written, else the carry of the piece is kept for `finish_rows`.
    """
    size = element_size(like)
    kv_heads, heads = problem.heads // problem.group, heads_together(element, problem, units)
    memory = np.empty(room(like, problem.d, width, heads), np.uint8)
    work = workspace(like, memory.ctypes.data, problem.d, width, heads)
    for place in range(0, MOST_ROWS * SCORE_KEYS, STRIP):
        store(like, work.scores + place * size, filled_strip(like, 0.0))
    for place in range(0, MOST_ROWS, STRIP):
        store(like, work.queries + place * size, filled_strip(like, 0.0))
    for place in range(0, heads * MOST_ROWS, STRIP):
        store(like, work.slopes + place * size, filled_strip(like, 0.0))
    run = np.zeros(2, np.int64)
    place = 0
    unit = claim(counter) * heads
    while unit < units:
        place = task_of(tasks, place, unit)
        task = load_task(tasks, place)
        sequence = sequence_of(problem, task.sequence)
        piece, kv_head = (unit - task.first_unit) // kv_heads, (unit - task.first_unit) % kv_heads
        rows = problem.group * sequence.query_count
        first = piece * task.piece_keys
        last = min(sequence.key_count, first + task.piece_keys)
        summarise_groups(element, like, problem, sequence, kv_head, heads, rows, first, last, options, work)
        for number in range(heads):
            own = of_head(like, work, number)
            run[:] = 0
            for row in range(rows):
                m, l = load_element(like, own.m + row * size), load_element(like, own.l + row * size)
                o = own.o + row * width * size
                within = (kv_head + number) * rows + row
                if task.pieces > 1:
                    store_part(like, parts, task.first_part + within * task.pieces + piece, m, l, o)
                else:
                    head, query = within // sequence.query_count, within % sequence.query_count
                    write_row(
                        element, like, problem, sequence, head, query, m, l, o, results, run.ctypes.data
                    )
        unit = claim(counter) * heads
    keep(memory)
