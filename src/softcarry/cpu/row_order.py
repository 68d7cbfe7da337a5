"""The order of scores in a list of the best, and how a list is brought into it."""

from numba import njit

_INSERTION = 128
"""Longest list that is sorted by insertion."""


@njit(forceinline=True)
def ranks_before(x, i, y, j):
    """Return whether score x at index i ranks before y at j: NaN first, then by value, then by index."""
    if x != x or y != y:
        return x != x and (y == y or i < j)
    return x > y or (x == y and i < j)


@njit(forceinline=True)
def _swap(scores, indices, a, b):
    scores[a], scores[b] = scores[b], scores[a]
    indices[a], indices[b] = indices[b], indices[a]


@njit(forceinline=True)
def _order(scores, indices, a, b):
    if ranks_before(scores[b], indices[b], scores[a], indices[a]):
        _swap(scores, indices, a, b)


@njit
def select_best(scores, indices, base, size, k):
    """Move the best k of ``size`` entries from ``base`` on to the front, the k-th best last of them.

    This is Hoare's quickselect with the median of three, and a sort if it does not come to an end soon.
    """
    low, high, last = base, base + size - 1, base + k - 1
    rounds = 0
    while low < high:
        rounds += 1
        if rounds > 64:
            _heap_sort(scores, indices, low, high - low + 1)
            return
        middle = (low + high) // 2
        _order(scores, indices, low, middle)
        _order(scores, indices, middle, high)
        _order(scores, indices, low, middle)
        x, i = scores[middle], indices[middle]
        left, right = low, high
        while left <= right:
            while ranks_before(scores[left], indices[left], x, i):
                left += 1
            while ranks_before(x, i, scores[right], indices[right]):
                right -= 1
            if left <= right:
                _swap(scores, indices, left, right)
                left, right = left + 1, right - 1
        if last <= right:
            high = right
        elif last >= left:
            low = left
        else:
            return


@njit
def sort_best(scores, indices, base, size):
    """Sort ``size`` entries from ``base`` on, best first."""
    if size > _INSERTION:
        _heap_sort(scores, indices, base, size)
        return
    for end in range(base + 1, base + size):
        x, i = scores[end], indices[end]
        at = end
        while at > base and ranks_before(x, i, scores[at - 1], indices[at - 1]):
            scores[at], indices[at] = scores[at - 1], indices[at - 1]
            at -= 1
        scores[at], indices[at] = x, i


@njit
def _sift_down(scores, indices, base, size, parent):
    """Let an entry sink in a heap whose root is the last in order."""
    x, i = scores[base + parent], indices[base + parent]
    while True:
        child = 2 * parent + 1
        if child >= size:
            break
        at = base + child
        if child + 1 < size and ranks_before(scores[at], indices[at], scores[at + 1], indices[at + 1]):
            child, at = child + 1, at + 1
        if not ranks_before(x, i, scores[at], indices[at]):
            break
        scores[base + parent], indices[base + parent] = scores[at], indices[at]
        parent = child
    scores[base + parent], indices[base + parent] = x, i


@njit
def _heap_sort(scores, indices, base, size):
    for parent in range(size // 2 - 1, -1, -1):
        _sift_down(scores, indices, base, size, parent)
    for last in range(size - 1, 0, -1):
        _swap(scores, indices, base, base + last)
        _sift_down(scores, indices, base, last, 0)
