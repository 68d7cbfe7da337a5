"""Attention of many queries: blocks of queries by blocks of keys, both products in registers.

The keys of a block are summarised for a panel of queries at a time: scores, transposed, by one product; their
terms; and the running output by another. Whole blocks that no query of the unit sees are passed over.

References
----------
T. Dao, "FlashAttention-2: Faster Attention with Better Parallelism and Work Partitioning", 2023, algorithm 1.
"""

from typing import NamedTuple

import numpy as np
from numba import njit

from softcarry.cpu.attention_layout import (
    KEY_BLOCK,
    NOTHING,
    SOME,
    allowed,
    bias_address,
    first_key,
    in_one_piece,
    key_address,
    last_key,
    mask_address,
    position,
    query_address,
    sequence_of,
    slope_address,
)
from softcarry.cpu.attention_packing import pack_keys, pack_queries, pack_values
from softcarry.cpu.attention_results import store_part, write_row
from softcarry.cpu.attention_tasks import load_task, task_of
from softcarry.cpu.memory import (
    block_lanes,
    claim,
    element_size,
    filled_block,
    keep,
    load_block,
    load_element,
    store,
)
from softcarry.cpu.product import add_product, panel_columns, store_product
from softcarry.cpu.score_panel import (
    Block,
    absorb_scores,
    add_bias,
    cap_scores,
    filled_panel,
    hide_by_mask,
    hide_by_position,
    panel_numbers,
    subtract_distances,
)
from softcarry.cpu.simd import fma


class Options(NamedTuple):
    """What a call of attention is told about scores."""

    scale: float
    softcap: float
    """0 for none."""
    threshold: float
    """m moves only where it would grow by more."""


class Workspace(NamedTuple):
    """Addresses of what a thread holds of one unit of work, each a multiple of 64."""

    q: int
    """Panels of queries, (panels, d, lanes)."""
    k: int
    """(KEY_BLOCK, d)"""
    v: int
    """Panels of values, (width // lanes, KEY_BLOCK, lanes)."""
    scores: int
    """A panel, (KEY_BLOCK, lanes)."""
    hidden: int
    """The scores of a panel before they become terms."""
    m: int
    l: int
    factors: int
    """Of the running output."""
    o: int
    """(rows, width)"""
    rows: int
    """Queries of a unit at most, whole panels."""
    width: int
    """Columns of the running output: dv, in whole panels."""


@njit(forceinline=True)
def _copy_panel(like, source, target, begin, end):
    stride = block_lanes(like) * element_size(like)
    for j in range(begin, end):
        store(like, target + j * stride, load_block(like, source + j * stride))


@njit
def _add_live_terms(like, terms, scores, begin, end, rows, v, o, width, factors):
    """Add terms times values to the running output as the product does, but pass over what is masked.

    This is for values that are infinite or NaN, which 0 would not hide.
    """
    size, lanes = element_size(like), block_lanes(like)
    stride = lanes * size
    for row in range(rows):
        factor = filled_block(like, load_element(like, factors + row * size))
        for column in range(0, width, lanes):
            total = filled_block(like, -0.0)
            for j in range(begin, end):
                if load_element(like, scores + j * stride + row * size) != -np.inf:
                    term = filled_block(like, load_element(like, terms + j * stride + row * size))
                    value = load_block(like, v + (column * KEY_BLOCK + j * lanes) * size)
                    total = fma(term, value, total)
            place = o + (row * width + column) * size
            store(like, place, fma(load_block(like, place), factor, total))


@njit
def _absorb_panel(
    like,
    problem,
    sequence,
    head,
    query,
    rows,
    first,
    begin,
    end,
    k,
    k_row,
    finite,
    masked,
    options,
    work,
    number,
):
    """Absorb the keys from first + begin to before first + end into the carries of a panel of queries."""
    size, lanes = element_size(like), block_lanes(like)
    stride, row = lanes * size, number * lanes
    d, width, panel = problem.d, work.width, Block(like)
    scores = work.scores + begin * stride
    q = work.q + number * d * stride
    for column in range(0, lanes, panel_columns(like)):
        place = column * size
        store_product(like, k, k_row, q + place, scores + place, end - begin, d)
    if options.softcap != 0:
        cap_scores(panel, work.scores, begin, end, options.softcap)
    here = position(problem, sequence, query) - first
    if problem.bias.address != 0:
        pairs = problem.bias
        source = bias_address(problem, sequence, head, query, first)
        add_bias(
            panel,
            pairs.element,
            source,
            pairs.key,
            pairs.query,
            0,
            rows,
            work.scores,
            begin,
            end,
            work.hidden,
        )
    if problem.slopes != 0:
        slope = load_element(like, slope_address(like, problem, sequence, head))
        slopes = filled_panel(panel, slope)
        subtract_distances(panel, panel_numbers(panel), here, slopes, work.scores, begin, end)
    if masked:
        pairs = problem.mask
        source = mask_address(problem, sequence, head, query, first)
        hide_by_mask(panel, source, pairs.key, pairs.query, 0, rows, work.scores, begin, end, work.hidden)
    last_row = query + rows - 1
    if (
        first_key(problem, sequence, last_row) > first + begin
        or last_key(problem, sequence, query) < first + end
    ):
        left, right = problem.left, problem.right
        hide_by_position(panel, panel_numbers(panel), here, left, right, work.scores, begin, end)
    if not finite:
        _copy_panel(like, work.scores, work.hidden, begin, end)
    m, l, factors = work.m + row * size, work.l + row * size, work.factors + row * size
    absorb_scores(panel, work.scores, work.scores, begin, end, m, l, factors, options.threshold)
    o = work.o + row * width * size
    if not finite:
        _add_live_terms(like, work.scores, work.hidden, begin, end, rows, work.v, o, width, factors)
        return
    for column in range(0, width, panel_columns(like)):
        v = work.v + (column // lanes * lanes * KEY_BLOCK + begin * lanes + column % lanes) * size
        add_product(like, scores, v, o + column * size, width * size, rows, end - begin, factors)


@njit
def summarise_queries(element, like, problem, sequence, head, query, rows, first, last, options, work):
    """Leave the carries of queries over the keys from ``first`` to before ``last`` in the workspace."""
    size, lanes = element_size(like), block_lanes(like)
    kv_head = head // problem.group
    d, width = problem.d, work.width
    nothing, lowest = filled_block(like, -0.0), filled_block(like, -np.inf)
    for row in range(0, rows, lanes):
        source = query_address(problem, sequence, head, query + row)
        target = work.q + row * d * size
        held = min(lanes, rows - row)
        pack_queries(element, like, source, problem.q.token, problem.q.step, held, d, options.scale, target)
        store(like, work.m + row * size, lowest)
        store(like, work.l + row * size, nothing)
    for place in range(0, -(-rows // lanes) * lanes * width, lanes):
        store(like, work.o + place * size, nothing)
    start = max(first, first_key(problem, sequence, query) // KEY_BLOCK * KEY_BLOCK)
    stop = min(last, last_key(problem, sequence, query + rows - 1))
    direct = element_size(element) == size and problem.k.step == size
    for block in range(start, stop, KEY_BLOCK):
        block_end = min(block + KEY_BLOCK, stop)
        pairs = allowed(problem, sequence, head, query, rows, block, block_end)
        if pairs == NOTHING:
            continue
        in_place = direct and in_one_piece(problem, block, block_end)
        if in_place:
            k, k_row = key_address(problem, sequence, kv_head, block), problem.k.token
        else:
            pack_keys(element, like, problem, sequence, kv_head, block, block_end, work.k)
            k, k_row = work.k, d * size
        finite = pack_values(element, like, problem, sequence, kv_head, block, block_end, KEY_BLOCK, work.v)
        for row in range(0, rows, lanes):
            held = min(lanes, rows - row)
            begin = max(0, first_key(problem, sequence, query + row) - block)
            end = min(block_end, last_key(problem, sequence, query + row + held - 1)) - block
            if begin < end:
                _absorb_panel(
                    like,
                    problem,
                    sequence,
                    head,
                    query + row,
                    held,
                    block,
                    begin,
                    end,
                    k + begin * k_row,
                    k_row,
                    finite,
                    pairs == SOME,
                    options,
                    work,
                    row // lanes,
                )


@njit(forceinline=True)
def _aligned(address):
    return (address + 63) // 64 * 64


@njit
def room(size, lanes, d, width, rows):
    """Return the bytes of a workspace."""
    return size * (rows * (d + width + 3) + KEY_BLOCK * (d + width + 2 * lanes)) + 64 * 10


@njit(forceinline=True)
def workspace(address, size, lanes, d, width, rows):
    """Return a workspace that begins at an address."""
    q = _aligned(address)
    k = _aligned(q + rows * d * size)
    v = _aligned(k + KEY_BLOCK * d * size)
    scores = _aligned(v + KEY_BLOCK * width * size)
    hidden = _aligned(scores + KEY_BLOCK * lanes * size)
    m = _aligned(hidden + KEY_BLOCK * lanes * size)
    l = _aligned(m + rows * size)
    factors = _aligned(l + rows * size)
    o = _aligned(factors + rows * size)
    return Workspace(q, k, v, scores, hidden, m, l, factors, o, rows, width)


@njit(nogil=True, cache=True)
def attend_queries(element, like, problem, options, results, parts, tasks, units, rows, width, counter):
    """Claim units of work until none is left: a block of queries of one head, over one piece of the keys.

    With one piece the results are written, else the carry of the piece is kept for `finish_rows`.
    """
    size, lanes = element_size(like), block_lanes(like)
    memory = np.empty(room(size, lanes, problem.d, width, rows), np.uint8)
    work = workspace(memory.ctypes.data, size, lanes, problem.d, width, rows)
    run = np.zeros(2, np.int64)
    place = 0
    unit = claim(counter)
    while unit < units:
        place = task_of(tasks, place, unit)
        task = load_task(tasks, place)
        sequence = sequence_of(problem, task.sequence)
        piece = (unit - task.first_unit) % task.pieces
        block = (unit - task.first_unit) // task.pieces
        head = block // task.blocks
        # The last queries of a causal call see the most keys: the long units come first.
        query = (task.blocks - 1 - block % task.blocks) * rows
        held = min(rows, sequence.query_count - query)
        first = piece * task.piece_keys
        last = min(sequence.key_count, first + task.piece_keys)
        summarise_queries(element, like, problem, sequence, head, query, held, first, last, options, work)
        run[:] = 0
        for row in range(held):
            m, l = load_element(like, work.m + row * size), load_element(like, work.l + row * size)
            o = work.o + row * width * size
            if task.pieces > 1:
                number = head * sequence.query_count + query + row
                store_part(like, parts, task.first_part + number * task.pieces + piece, m, l, o)
            else:
                write_row(
                    element, like, problem, sequence, head, query + row, m, l, o, results, run.ctypes.data
                )
        unit = claim(counter)
    keep(memory)
