"""How attention is cut up: every row and key in one unit, by each sequence's own shape, as splits say."""

from collections import Counter

import numpy as np
import pytest

from softcarry.cpu.attention_cut import _MANY_QUERIES, Shapes, cuts
from softcarry.cpu.attention_layout import KEY_BLOCK
from softcarry.cpu.attention_tasks import Task
from softcarry.cpu.decode import MOST_ROWS
from softcarry.cpu.product import PANEL

COUNTS = (0, 1, 2, 7, 23, 24, MOST_ROWS, MOST_ROWS + 1, 100, 513, 3000)
KEYS = (0, 1, KEY_BLOCK - 1, KEY_BLOCK, KEY_BLOCK + 1, 5 * KEY_BLOCK, 5000, 40_000, 10**6)
SPLITS = (0, 1, 2, 3, 7, 1000)


def shapes_of(queries, keys, splits=0, heads=4, group=2, d=64, dv=80, working="float32"):
    counts = (np.array(numbers, np.int64).tobytes() for numbers in (queries, keys))
    return Shapes(heads, group, d, dv, working, *counts, splits)


def tasks_of(cut):
    """The tasks, and the row for the end."""
    return [Task(*map(int, row)) for row in cut.tasks]


def every_batch():
    """Sequences of all counts of queries and keys side by side, cut in every way."""
    queries, keys = (n.ravel() for n in np.meshgrid(COUNTS, KEYS))
    for splits in SPLITS:
        for heads, group, working in ((4, 1, "float32"), (6, 3, "float64"), (40, 40, "float32")):
            shapes = shapes_of(queries, keys, splits, heads, group, working=working)
            yield shapes, queries, keys, cuts(shapes)


def queries_of(cut, task, count):
    """The queries of each of a task's blocks, as kernels read the table."""
    if cut.few:
        return [range(count)]
    return [range(n * cut.rows, min((n + 1) * cut.rows, count)) for n in range(task.blocks)]


def test_every_sequence_with_queries_is_in_one_task():
    for _, queries, _, parts in every_batch():
        assert Counter(task.sequence for cut in parts for task in tasks_of(cut)[:-1]) == Counter(
            np.flatnonzero(queries).tolist()
        )


def test_every_row_and_key_is_in_one_unit():
    """Blocks of queries follow each other without a gap, and so do pieces of keys; none is empty."""
    for _, queries, keys, parts in every_batch():
        for cut in parts:
            for task in tasks_of(cut)[:-1]:
                blocks = queries_of(cut, task, int(queries[task.sequence]))
                assert [n for block in blocks for n in block] == list(range(queries[task.sequence]))
                assert all(blocks)
                count = int(keys[task.sequence])
                firsts = range(0, task.pieces * task.piece_keys, task.piece_keys)
                assert task.piece_keys % KEY_BLOCK == 0
                assert firsts[-1] < max(count, 1) <= firsts[-1] + task.piece_keys


def test_units_rows_and_pieces_are_counted():
    """Each number in the table is the sum of what comes before; the last row holds the totals."""
    for shapes, queries, _, parts in every_batch():
        for cut in parts:
            heads = shapes.heads // shapes.group if cut.few else shapes.heads
            rows = parts_of_rows = units = 0
            for task in tasks_of(cut)[:-1]:
                assert (task.first_row, task.first_part, task.first_unit) == (rows, parts_of_rows, units)
                of_task = int(queries[task.sequence]) * shapes.heads if task.pieces > 1 else 0
                rows, parts_of_rows = rows + of_task, parts_of_rows + of_task * task.pieces
                units += heads * task.blocks * task.pieces
            assert (
                (rows, parts_of_rows, units)
                == tasks_of(cut)[-1][4:]
                == (cut.parted_rows, cut.parts, cut.units)
            )


@pytest.mark.parametrize("group", [1, 2, 4, MOST_ROWS, 2 * MOST_ROWS])
def test_few_rows_share_the_keys_that_are_streamed(group):
    """Up to MOST_ROWS rows of a group, for which there is room, unless the queries alone fill a panel."""
    most = min(MOST_ROWS // group, _MANY_QUERIES - 1)
    for queries in (1, max(most, 1), most + 1, MOST_ROWS, 500):
        (cut,) = cuts(shapes_of([queries], [300], heads=2 * group, group=group))
        assert cut.few == (queries <= most)
    # The two kinds come in two cuts, of which an empty one is left out.
    both = cuts(shapes_of([most + 1, most, 500], [300] * 3, heads=2 * group, group=group))
    kinds = [(cut.few, [task.sequence for task in tasks_of(cut)[:-1]]) for cut in both]
    assert kinds == ([(False, [0, 2]), (True, [1])] if most else [(False, [0, 2])])


def test_what_is_beside_a_sequence_does_not_change_its_pieces():
    """Nor its path: its bits would differ between batches."""
    for shapes, queries, keys, parts in every_batch():
        together = {task.sequence: (cut.few, *task[2:4]) for cut in parts for task in tasks_of(cut)[:-1]}
        for number in np.flatnonzero(queries).tolist():
            alone = [np.array([counts[number]], np.int64).tobytes() for counts in (queries, keys)]
            (cut,) = cuts(shapes._replace(query_counts=alone[0], key_counts=alone[1]))
            assert together[number] == (cut.few, *tasks_of(cut)[0][2:4])


@pytest.mark.parametrize("queries", [1, 600])
def test_splits_are_honoured(queries):
    """Pieces of equal whole blocks, the last one shorter: so many, if blocks can be shared out like that."""
    for keys in KEYS:
        blocks = max(-(-keys // KEY_BLOCK), 1)
        for splits in SPLITS[1:]:
            (cut,) = cuts(shapes_of([queries], [keys], splits))
            task = tasks_of(cut)[0]
            assert task.piece_keys == -(-blocks // min(splits, blocks)) * KEY_BLOCK
            assert task.pieces <= splits
            if blocks % min(splits, blocks) == 0:
                assert task.pieces == min(splits, blocks)


def test_keys_are_shared_out_where_rows_are_few():
    """One query over many keys is work for many threads; many queries are without it."""
    (one,) = cuts(shapes_of([1], [10**6], heads=1, group=1))
    (many,) = cuts(shapes_of([10**5], [10**6], heads=8, group=1))
    assert tasks_of(one)[0].pieces > 100
    assert tasks_of(many)[0].pieces == 1
    assert many.units > 100


def test_nothing_to_do_is_no_work():
    """No sequences, or none with queries. Queries without keys have one piece: they get their rows."""
    assert cuts(shapes_of([], [])) == ()
    assert cuts(shapes_of([0, 0], [5, 0])) == ()
    for queries in (1, 600):
        (cut,) = cuts(shapes_of([0, queries], [0, 0], 3))
        task = tasks_of(cut)[0]
        assert (task.sequence, task.pieces, cut.parts, cut.products) == (1, 1, 0, 0)


@pytest.mark.parametrize(("working", "size"), [("float32", 4), ("float64", 8)])
def test_rows_and_columns_of_a_unit_are_whole_panels(working, size):
    """No more rows than the longest sequence fills, and, beyond one panel, than fit into the cache."""
    lanes = PANEL // size
    for queries in (33, 100, 513, 5000):
        for d, dv in ((1, 1), (64, 64), (128, 100), (5000, 3000)):
            (cut,) = cuts(shapes_of([40, queries], [100, 100], d=d, dv=dv, group=1, working=working))
            assert cut.rows % lanes == cut.width % lanes == 0
            assert lanes <= cut.rows < max(queries, 40) + lanes
            assert cut.rows == lanes or cut.rows * (d + dv) * size <= 2**18
            assert dv <= cut.width
            assert cut.products == (40 + queries) * 100 * 4 * (d + dv)
