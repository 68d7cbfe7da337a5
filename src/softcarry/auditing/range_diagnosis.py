"""Which fault explains the sizes of score at which a kernel fails."""

import math
from typing import NamedTuple

SENTINELS = (1e4, 5e4, 65504.0, 1e6, 1e9, 1e30)
"""Finite numbers that kernels have used in place of −∞, without their sign."""


class Equal(NamedTuple):
    """Equal scores of one size: what they were, and how the weights came out."""

    score: float
    finite: bool
    right: bool
    error: float
    sum: float


def diagnose(cases, depth, keys):
    """Find the fault that explains which equal scores come out wrong, and what to do about it.

    Parameters
    ----------
    cases : sequence of Equal
        At least one of them wrong.
    depth : int
        d: q·k is √d times the score.
    keys : int
        How many equal scores there were.

    Returns
    -------
    cause, remedy : str

    Examples
    --------
    >>> diagnose([Equal(x, x > -5e4, x > -5e4, 0.0, 1.0) for x in (-1e6, -51200.0, -4.9e4, 1e6)], 64, 64)[0]
    'a finite sentinel of −50000 stands for −∞'
    """
    wrong = [case.score for case in cases if not case.right]
    sound = [case.score for case in cases if case.right]
    up, down = [x for x in wrong if x > 0.0], [-x for x in wrong if x < 0.0]
    sound_up, sound_down = [x for x in sound if x > 0.0], [-x for x in sound if x < 0.0]
    if up and down and max(min(up), min(down)) <= 110.0:
        return (
            "the maximum is not subtracted before the exponential",
            "subtract the running maximum from every score before exp",
        )
    if down and not up:
        for sentinel in SENTINELS:
            # Up to ln(largest float32) below the sentinel the terms are small but alive.
            if max((x for x in sound_down if x < min(down)), default=0.0) <= sentinel < min(down):
                return (
                    f"a finite sentinel of −{sentinel:.5g} stands for −∞",
                    "start the running maximum at −inf, and select masked scores away",
                )
        return (
            f"scores below about −{min(down):.3g} are lost, as with a finite sentinel in place of −∞",
            "start the running maximum at −inf, and do not clamp it",
        )
    largest = max((case for case in cases if not case.right), key=lambda case: abs(case.score))
    if largest.finite and abs(largest.sum - keys) <= 0.01 * keys:
        return (
            "ln l is lost beside m, as it is when they are kept as one lse",
            "keep the pair (m, l), and weigh by e^(s − m) / l, never by e^(s − lse)",
        )
    smallest = min(up + down)
    reached = max((x for x in sound_up + sound_down if x < smallest), default=0.0)
    for limit, where in ((65504.0 / math.sqrt(depth), "q·k before scaling"), (65504.0, "the scores")):
        if reached <= limit * 1.001 < smallest * 1.001:
            return (
                f"{where} overflow float16, whose largest number is 65504",
                "compute and keep q·k in float32",
            )
    return (
        f"scores beyond {reached:.3g} are not handled",
        "subtract the maximum from the scores in the arithmetic in which they were rounded, then scale",
    )
