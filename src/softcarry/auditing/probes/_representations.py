"""The ways in which one mask is written, and the answers of kernels that read it in another way."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from softcarry.auditing.examination import Examination
from softcarry.auditing.golden import Golden, golden_attention


class Representation(NamedTuple):
    """One way of writing a boolean mask.

    Attributes
    ----------
    name : str
        To be read after "a mask of".
    write : callable
        Boolean mask, True = attend, to the mask that is handed over.
    fill : float
        What a masked key's score has added; −inf where it is hidden for good.
    """

    name: str
    write: Callable[[np.ndarray], np.ndarray]
    fill: float


LOWEST = "the lowest finite number"


def representations(examination: Examination) -> list[Representation]:
    """List the ways of writing a mask, in the dtype of the examination.

    −1e9 is −inf in float16, and left out there.

    Parameters
    ----------
    examination : Examination

    Returns
    -------
    list of Representation
    """
    lowest = -examination.format.largest
    fills = [("−inf", -np.inf), (LOWEST, lowest)]
    fills += [(name, float(examination.round(x))) for name, x in (("−1e9", -1e9), ("−1e4", -1e4))]
    return [
        Representation("booleans", lambda mask: mask, -np.inf),
        *(
            Representation(name, lambda mask, fill=fill: np.where(mask, 0.0, fill), fill)
            for name, fill in fills
            if np.isfinite(fill) or name == "−inf"
        ),
        Representation(
            f"sums of two masks of {LOWEST}", lambda mask: _sum_of_two(examination, mask, lowest), lowest
        ),
    ]


def _sum_of_two(examination, mask, lowest):
    """Add two masks of which the first hides two thirds of the masked keys and the second too.

    As of a causal and a padding mask: in the dtype the sum is −inf where both hide a key.
    """
    third = np.arange(mask.shape[-1]) % 3
    first, second = (np.where(mask | (third == kept), 0.0, lowest) for kept in (1, 2))
    with np.errstate(over="ignore"):
        return examination.round(first + second)


class Reading(NamedTuple):
    """A wrong way to read a mask.

    Attributes
    ----------
    name : str
        To be read after "a mask of … is".
    golden : Golden
        The exact answer of a kernel that reads it so.
    """

    name: str
    golden: Golden


def readings_of_booleans(q, k, v, mask: np.ndarray) -> list[Reading]:
    """Compute what kernels return that read a boolean mask wrongly.

    Parameters
    ----------
    q, k, v : ndarray
    mask : ndarray
        (b, h, tq, tk) bool.

    Returns
    -------
    list of Reading
    """
    scores = golden_attention(q, k, v).scores
    wrong = {
        "inverted: True hides a key": ~mask,
        "ignored": None,
        "added to the scores as 0 and 1": mask.astype(np.float64),
        "multiplied with the scores, which leaves masked keys the score 0": np.where(mask, 0.0, -scores),
        "that of the first head for all heads": np.broadcast_to(mask[:1, :1], mask.shape),
    }
    return _readings(q, k, v, wrong)


def readings_of_floats(q, k, v, mask: np.ndarray) -> list[Reading]:
    """Compute what kernels return that read a floating mask wrongly.

    Parameters
    ----------
    q, k, v : ndarray
    mask : ndarray
        (b, h, tq, tk) float64, to be added to the scores.

    Returns
    -------
    list of Reading
    """
    scores = golden_attention(q, k, v).scores
    scale = 1.0 / np.sqrt(q.shape[-1])
    with np.errstate(all="ignore"):
        wrong = {
            "taken for booleans, not added": mask != 0.0,
            "taken for booleans, not added, and inverted": mask == 0.0,
            "taken for booleans, not added: what is above 0 attends": mask > 0.0,
            "ignored": None,
            "multiplied by the scale": mask * scale,
            "added in units of log2, scaled by ln 2": mask * np.log(2.0),
            "added in units of log2, scaled by log2 e": mask / np.log(2.0),
            "subtracted": -mask,
            "added twice": 2.0 * mask,
            "multiplied with the scores": scores * (mask - 1.0),
            "that of the first head for all heads": np.broadcast_to(mask[:1, :1], mask.shape),
        }
    return _readings(q, k, v, wrong)


def _readings(q, k, v, wrong):
    return [Reading(name, golden_attention(q, k, v, mask=mask)) for name, mask in wrong.items()]
