"""Where queries, keys, values, masks and outputs lie, and which keys a query sees.

Everything is a number: addresses and strides, in bytes, of any sign or 0. An array would be counted,
atomically, by every thread at every use.
"""

from typing import NamedTuple

from numba import njit

from softcarry.cpu.memory import element_size, load_byte, load_integer

UNLIMITED = 2**40
"""How far a window reaches on a side where it has no limit."""

KEY_BLOCK = 128
"""Bc: keys that are summarised at once. Blocks begin at its multiples, counted within a sequence, so that a
row's bits depend neither on the rows beside it nor on where its first key lies."""


class Heads(NamedTuple):
    """Where the vectors of all heads and tokens of an array lie."""

    address: int
    head: int
    """Stride from one head to the next."""
    token: int
    step: int
    """Stride along a vector."""


class Pairs(NamedTuple):
    """Where what is given for each pair of a query and a key lies; address 0 if there is nothing."""

    address: int
    head: int
    query: int
    key: int
    element: int
    """Of a bias: 0 for float32, 1 for float64, 2 for bfloat16, 3 for float16."""


class Problem(NamedTuple):
    """One call of attention, all sequences of it."""

    q: Heads
    k: Heads
    v: Heads
    mask: Pairs
    bias: Pairs
    sequences: int
    """Address of the table of sequences (n, COLUMNS), int64."""
    heads: int
    """Query heads."""
    group: int
    """Query heads that share a head of keys and values."""
    d: int
    dv: int
    left: int
    right: int
    """How many keys a query sees before and after its own position."""
    top_left: int
    """Whether query i stands at key i; else the last query stands at the last key."""
    page: int
    """Keys of a page; 0 where the keys of a sequence follow each other."""
    page_k: int
    page_v: int
    """Strides from one page to the next."""
    slopes: int
    """Address of ALiBi's slopes, contiguous, in the working type; 0 for none."""
    sequence_slopes: int
    """Stride from the slopes of one sequence to those of the next."""


# Columns of the table of sequences. Those of arrays are offsets in bytes from their address.
QUERIES, KEYS, VALUES, OUTPUT, MASK, BIAS = 0, 1, 2, 3, 4, 5
QUERY_COUNT, KEY_COUNT = 6, 7
PAGES = 8
"""Address of the numbers of a sequence's pages, int64, contiguous."""
FIRST_ROW = 9
"""Number of the first row of the sequence's head 0 among the rows of the carries."""
COLUMNS = 10


class Sequence(NamedTuple):
    """One row of the table."""

    number: int
    queries: int
    keys: int
    values: int
    output: int
    mask: int
    bias: int
    query_count: int
    key_count: int
    pages: int
    first_row: int


@njit(forceinline=True)
def sequence_of(problem, number):
    """Return a row of the table of sequences."""
    place = problem.sequences + number * (8 * COLUMNS)
    return Sequence(
        number,
        load_integer(place + 8 * QUERIES),
        load_integer(place + 8 * KEYS),
        load_integer(place + 8 * VALUES),
        load_integer(place + 8 * OUTPUT),
        load_integer(place + 8 * MASK),
        load_integer(place + 8 * BIAS),
        load_integer(place + 8 * QUERY_COUNT),
        load_integer(place + 8 * KEY_COUNT),
        load_integer(place + 8 * PAGES),
        load_integer(place + 8 * FIRST_ROW),
    )


@njit(forceinline=True)
def position(problem, sequence, query):
    """Return the number of the key that a query stands at; it may be negative."""
    return query if problem.top_left else query + sequence.key_count - sequence.query_count


@njit(forceinline=True)
def first_key(problem, sequence, query):
    """Return the first key that a query sees by position."""
    return max(0, position(problem, sequence, query) - problem.left)


@njit(forceinline=True)
def last_key(problem, sequence, query):
    """Return the key after the last one that a query sees by position, at least 0."""
    return max(0, min(sequence.key_count, position(problem, sequence, query) + problem.right + 1))


@njit(forceinline=True)
def query_address(problem, sequence, head, query):
    """Return where a query's vector lies."""
    return problem.q.address + sequence.queries + head * problem.q.head + query * problem.q.token


@njit(forceinline=True)
def _token(heads, page_stride, problem, sequence, offset, head, key):
    start = heads.address + offset + head * heads.head
    if problem.page == 0:
        return start + key * heads.token
    page = load_integer(sequence.pages + key // problem.page * 8)
    return start + page * page_stride + key % problem.page * heads.token


@njit(forceinline=True)
def key_address(problem, sequence, head, key):
    """Return where a key's vector lies; ``head`` counts heads of keys."""
    return _token(problem.k, problem.page_k, problem, sequence, sequence.keys, head, key)


@njit(forceinline=True)
def value_address(problem, sequence, head, key):
    """Return where a value's vector lies; ``head`` counts heads of keys."""
    return _token(problem.v, problem.page_v, problem, sequence, sequence.values, head, key)


@njit(forceinline=True)
def in_one_piece(problem, first, last):
    """Whether the keys from ``first`` to before ``last`` lie one stride apart."""
    return problem.page == 0 or first // problem.page == (last - 1) // problem.page


@njit(forceinline=True)
def end_of_run(problem, first, last):
    """Return before which of the keys from ``first`` to before ``last`` they stop lying one stride apart."""
    if problem.page == 0:
        return last
    return min(last, (first // problem.page + 1) * problem.page)


@njit(forceinline=True)
def mask_address(problem, sequence, head, query, key):
    """Return where the mask of a pair lies."""
    pairs = problem.mask
    return pairs.address + sequence.mask + head * pairs.head + query * pairs.query + key * pairs.key


@njit(forceinline=True)
def bias_address(problem, sequence, head, query, key):
    """Return where the bias of a pair lies."""
    pairs = problem.bias
    return pairs.address + sequence.bias + head * pairs.head + query * pairs.query + key * pairs.key


@njit(forceinline=True)
def slope_address(like, problem, sequence, head):
    """Return where the slope of a query head lies."""
    return problem.slopes + sequence.number * problem.sequence_slopes + head * element_size(like)


NOTHING, SOME, ALL = 0, 1, 2


_EIGHT = 0x0101010101010101


@njit
def allowed(problem, sequence, head, query, rows, first, last):
    """Return whether a mask allows NOTHING, SOME or ALL of the pairs of so many queries and keys."""
    if problem.mask.address == 0:
        return ALL
    any_pair, every_pair = False, True
    for row in range(rows if problem.mask.query != 0 else 1):
        place = mask_address(problem, sequence, head, query + row, first)
        key = first
        if problem.mask.key == 1:
            # Eight booleans at a time.
            while key + 8 <= last:
                eight = load_integer(place)
                any_pair, every_pair = any_pair or eight != 0, every_pair and eight == _EIGHT
                if any_pair and not every_pair:
                    return SOME
                key, place = key + 8, place + 8
        for _ in range(key, last):
            if load_byte(place) == 0:
                every_pair = False
            else:
                any_pair = True
            if any_pair and not every_pair:
                return SOME
            place += problem.mask.key
    return ALL if every_pair else NOTHING
