"""How a call of attention is cut into units of work, and how the pieces of its rows come together."""

from typing import NamedTuple

import numpy as np
from numba import njit

from softcarry.cpu.attention_layout import sequence_of
from softcarry.cpu.attention_results import merge_parts, write_row
from softcarry.cpu.memory import claim, element_size, keep, load_integer


class Task(NamedTuple):
    """The work on one sequence: a row of the table of tasks, int64, which ends with a row for the end."""

    sequence: int
    blocks: int
    """Blocks of queries."""
    pieces: int
    """Pieces that the keys are cut into."""
    piece_keys: int
    """Keys of a piece, whole key blocks."""
    first_row: int
    """Number of its first row among those that come in pieces."""
    first_part: int
    """Number of the first piece of its first row among all pieces of rows."""
    first_unit: int
    """Number of its first unit of work."""


TASK_COLUMNS = len(Task._fields)


@njit(forceinline=True)
def load_task(tasks, number):
    """Return a row of the table at an address."""
    place = tasks + number * (8 * TASK_COLUMNS)
    return Task(
        load_integer(place),
        load_integer(place + 8),
        load_integer(place + 16),
        load_integer(place + 24),
        load_integer(place + 32),
        load_integer(place + 40),
        load_integer(place + 48),
    )


@njit(forceinline=True)
def task_of(tasks, number, unit):
    """Return the number of the task that a unit belongs to; ``number`` is that of an earlier unit."""
    while unit >= load_task(tasks, number + 1).first_unit:
        number += 1
    return number


@njit(nogil=True, cache=True)
def finish_rows(element, like, problem, results, parts, tasks, rows, counter):
    """Claim rows that come in pieces until none is left, merge their pieces, and write them."""
    memory = np.empty((parts.width + 16) * element_size(like), np.uint8)
    o = (memory.ctypes.data + 63) // 64 * 64
    run, of_run = np.zeros(2, np.int64), (-1, -1)
    number = 0
    row = claim(counter)
    while row < rows:
        while row >= load_task(tasks, number + 1).first_row:
            number += 1
        task = load_task(tasks, number)
        sequence = sequence_of(problem, task.sequence)
        within = row - task.first_row
        m, l = merge_parts(like, parts, task.first_part + within * task.pieces, task.pieces, o)
        head, query = within // sequence.query_count, within % sequence.query_count
        values = (task.sequence, head // problem.group)
        if values != of_run:
            run[:] = 0
            of_run = values
        write_row(element, like, problem, sequence, head, query, m, l, o, results, run.ctypes.data)
        row = claim(counter)
    keep(memory)
