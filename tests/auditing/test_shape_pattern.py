"""The rule behind a set of sizes, for rules that kernels have had faults by."""

import pytest

from softcarry.auditing.probes.tail import DEPTHS, KEYS, QUERIES
from softcarry.auditing.shape_pattern import describe_sizes

RULES = {
    "every n that is not a multiple of 32": lambda n: n % 32,
    "every n that is not a multiple of 128": lambda n: n % 128,
    "every n that is odd": lambda n: n % 2,
    "every n that is a multiple of 64": lambda n: n % 64 == 0,
    "every n that is not a power of two": lambda n: n & (n - 1),
    "every n above 512": lambda n: n > 512,
    "every n below 32": lambda n: n < 32,
    "every n from 33 that is not a multiple of 32": lambda n: n > 32 and n % 32,
    "every n from 513 that is odd and not 31 modulo 32": lambda n: n > 512 and n % 2 and n % 32 != 31,
    "every n that is 1 modulo 32": lambda n: n % 32 == 1,
    "n = 1": lambda n: n == 1,
    "n = 3, 255": lambda n: n in (3, 255),
    "every n tried": lambda n: True,
    "no n": lambda n: False,
}


@pytest.mark.parametrize("words", RULES)
def test_the_rule_behind_the_keys_is_found(words):
    """On the very sizes that TAIL tries: they must tell these rules apart."""
    failing = [n for n in KEYS if RULES[words](n)]
    passing = [n for n in KEYS if not RULES[words](n)]
    assert describe_sizes("n", failing, passing) == words


def test_the_sizes_of_queries_and_depths_tell_blocks_apart():
    for block in (16, 32, 64, 128):
        failing = [t for t in QUERIES if t % block]
        passing = [t for t in QUERIES if t % block == 0]
        assert describe_sizes("tq", failing, passing) == f"every tq that is not a multiple of {block}"
    for block in (8, 16, 32):
        failing = [d for d in DEPTHS if d % block]
        passing = [d for d in DEPTHS if d % block == 0]
        assert describe_sizes("d", failing, passing) == f"every d that is not a multiple of {block}"


def test_many_sizes_without_a_rule_are_cut_short():
    failing = [3, 5, 10, 12, 17, 23, 24, 40, 41, 55]
    passing = [4, 6, 11, 13, 18, 25, 39, 56]
    assert describe_sizes("n", failing, passing) == "n = 3, 5, 10, 12, 17, 23, 24, 40 and 2 more"
