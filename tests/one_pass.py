"""Rows that know how often they were read, and what of them is still held."""

import math
import tracemalloc


class Score(float):
    """A score that knows how many of its kind are alive."""

    alive = most = 0

    def __init__(self, value: float) -> None:
        Score.alive += 1
        Score.most = max(Score.most, Score.alive)

    def __del__(self) -> None:
        Score.alive -= 1


class Once:
    """A row of n scores that can be iterated once, has no length, and lets go of every score it has given."""

    def __init__(self, n: int) -> None:
        self.n, self.passes, self.read = n, 0, 0

    def __iter__(self):
        self.passes += 1
        assert self.passes == 1, "the row was iterated a second time"
        Score.alive = Score.most = 0
        for j in range(self.n):
            self.read += 1
            yield Score(math.sin(j) * 10)


def assert_reads_once_and_keeps_two_numbers(normalizer) -> None:
    """Fail unless the function iterates once, to the end, in memory that does not grow with the row."""
    row = Once(4000)
    m, total = normalizer(row)
    assert (row.passes, row.read) == (1, 4000)
    assert Score.most <= 3, f"{Score.most} scores were alive at once"
    scores = [math.sin(j) * 10 for j in range(4000)]
    assert m == max(scores)
    # n sums, n products and 2n exponentials of 1 ulp each, in float64
    assert abs(total - math.fsum(math.exp(s - m) for s in scores)) <= 6 * 4000 * 2.0**-53 * total
    tracemalloc.start()
    normalizer(math.sin(j) for j in range(20000))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 20000  # a byte a score; a float takes 24 and its reference 8
