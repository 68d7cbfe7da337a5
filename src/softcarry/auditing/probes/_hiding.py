"""Places in K and V that rows do not attend to: where they are, and from which rows they are hidden."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from softcarry.auditing.examination import Examination
from softcarry.auditing.golden import causal_mask

_DEPTH = 32
_QUERIES = 8
_KEYS = 1100  # more than two key blocks of 512
_CAUSAL = (80, 600)


class Hiding(NamedTuple):
    """A call, and keys that some of its rows do not attend to.

    Attributes
    ----------
    name : str
        What hides the keys.
    inputs : tuple of ndarray
        q (b, h, tq, d), k (b, h, tk, d) and v (b, h, tk, d).
    options : dict
        Of the call.
    keys : ndarray
        (b, h, tk) bool: those to put something at.
    rows : ndarray
        (b, h, tq) bool: those that attend to none of them.
    """

    name: str
    inputs: tuple[np.ndarray, np.ndarray, np.ndarray]
    options: dict[str, Any]
    keys: np.ndarray
    rows: np.ndarray


def behind_masks(examination: Examination) -> Iterator[Hiding]:
    """List the calls with something that must hide keys whatever they hold; all of them if it can be told.

    What a kernel lacks is recorded as skipped.

    Parameters
    ----------
    examination : Examination

    Yields
    ------
    Hiding
    """
    makers = {"mask": _boolean_mask, "causal": _causal, "kv_lengths": _lengths}
    for option, make in makers.items():
        if option == "mask" and examination.can(option) and examination.subject.masks == "additive":
            examination.skip("what boolean masks hide", "the kernel takes masks that are added only")
        elif examination.can(option):
            yield make(examination)
        elif option == "causal" and examination.causal == "ignored":
            examination.skip("what a causal mask hides", "the causal option changes nothing: see EMPTY")
        else:
            examination.skip(f"what {_IN_WORDS[option]} hide", examination.lacks(option))


_IN_WORDS = {"mask": "boolean masks", "causal": "causal masks", "kv_lengths": "lengths"}


def behind_additive_mask(examination: Examination) -> Hiding:
    """Return the call whose mask is of 0 and −inf, which hides a value and can't hide a NaN in a score."""
    hiding = _boolean_mask(examination)
    mask = np.where(hiding.options["mask"], 0.0, -np.inf)
    return hiding._replace(name="an additive mask of −inf", options={"mask": mask})


def in_other_heads(examination: Examination) -> Hiding:
    """Return a call in which all keys of one head of one batch entry are meant, seen from everywhere else."""
    keys = _at_most(examination, _KEYS)
    poisoned = np.zeros((2, 2, keys), bool)
    poisoned[1, 0] = True
    rows = np.ones((2, 2, _QUERIES), bool)
    rows[1, 0] = False
    inputs = draw_inputs(examination, (2, 2), _QUERIES, keys)
    return Hiding("other heads and batch entries", inputs, {}, poisoned, rows)


def draw_inputs(examination: Examination, batch: tuple[int, int], queries: int, keys: int, depth=_DEPTH):
    """Draw normal q, k and v, exact in the dtype.

    Parameters
    ----------
    examination : Examination
    batch : tuple of int
        (b, h).
    queries, keys, depth : int

    Returns
    -------
    q, k, v : ndarray
        (b, h, tq, d), (b, h, tk, d), (b, h, tk, d) float64.
    """
    q, k, v = (
        examination.round(examination.rng.standard_normal((*batch, tokens, depth)))
        for tokens in (queries, keys, keys)
    )
    return q, k, v


def _at_most(examination, keys):
    longest = examination.contract.longest_n
    return keys if longest is None else min(keys, longest)


def _boolean_mask(examination):
    """Single keys, more than a key block at the start, the same at the end; rows that see one of them."""
    keys = _at_most(examination, _KEYS)
    rng, half = examination.rng, keys // 2 + 1
    hidden = np.zeros((2, 2, keys), bool)
    hidden[0, 0] = rng.random(keys) < 0.1
    hidden[0, 1, :half] = True
    hidden[1, 0, -half:] = True
    hidden[1, 1, [keys // 3, -1]] = True
    seen = (rng.random((2, 2, _QUERIES, keys)) < 0.7) & ~hidden[:, :, None]
    seen[1, 1, _QUERIES // 2 :, -1] = True
    # A row needs a key: two in the middle, where one may be hidden.
    seen[..., half - 2 : half] |= ~hidden[:, :, None, half - 2 : half]
    rows = ~(seen & hidden[:, :, None]).any(axis=-1)
    inputs = draw_inputs(examination, (2, 2), _QUERIES, keys)
    return Hiding("a boolean mask", inputs, {"mask": seen}, hidden, rows)


def _causal(examination):
    """Keys beyond the diagonal of the first half of the queries; in the other head, the last key alone."""
    keys = _at_most(examination, _CAUSAL[1])
    queries = min(_CAUSAL[0], keys)
    alignment = "top-left" if examination.causal == "top-left" else "bottom-right"
    seen = causal_mask(queries, keys, alignment)
    hidden = np.zeros((1, 2, keys), bool)
    hidden[0, 0] = ~seen[: max(queries // 2, 1)].any(axis=0)
    hidden[0, 1, -1] = True
    rows = ~(seen & hidden[:, :, None]).any(axis=-1)
    inputs = draw_inputs(examination, (1, 2), queries, keys)
    return Hiding("a causal mask", inputs, {"causal": True}, hidden, rows)


def _lengths(examination):
    keys = _at_most(examination, _KEYS)
    lengths = np.array([keys * 2 // 3, min(37, keys)])
    hidden = np.broadcast_to(np.arange(keys) >= lengths[:, None, None], (2, 2, keys)).copy()
    inputs = draw_inputs(examination, (2, 2), _QUERIES, keys)
    return Hiding("a length", inputs, {"kv_lengths": lengths}, hidden, np.ones((2, 2, _QUERIES), bool))
