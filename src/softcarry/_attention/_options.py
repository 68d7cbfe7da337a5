"""The options of a call of attention that are numbers: what they may be, and what they mean."""

import contextlib
import math
from numbers import Integral, Real
from typing import Any, NamedTuple

import numpy as np

from softcarry.cpu.attention_layout import UNLIMITED
from softcarry.errors import OptionError

_LARGEST_THRESHOLD = 20.0
"""e to it, 5·10⁸, times as many keys as there can be is far from overflow in float32."""


class Reach(NamedTuple):
    """Which keys a query sees, counted from the key that it stands at."""

    left: int
    right: int
    top_left: bool
    """Whether query i stands at key i; else the last query stands at the last key."""


def require_scale(scale: Any, d: int, working: str) -> float:
    """Return the factor of the scores, 1/√d by default.

    Raises
    ------
    OptionError
        If it is no finite number of the working type.
    """
    if scale is None:
        return 1.0 / math.sqrt(d)
    return _finite("scale", scale, f"a finite number of {working}, or None for 1/√d", working)


def require_softcap(softcap: Any, working: str) -> float:
    """Return the softcap, 0 for none.

    Raises
    ------
    OptionError
        If it is no positive, finite and normal number of the working type.
    """
    if softcap is None:
        return 0.0
    expected = f"a positive finite number of {working}, or None for no cap"
    number = _finite("softcap", softcap, expected, working)
    if number < float(np.finfo(working).tiny):
        msg = f"softcap must be {expected}, got {softcap!r}"
        raise OptionError(msg)
    return number


def require_threshold(threshold: Any) -> float:
    """Return the threshold of rescaling, in natural log units.

    Raises
    ------
    OptionError
        If it is no number from 0 to 80.
    """
    expected = f"from 0, rescale always, to {_LARGEST_THRESHOLD:g}"
    number = _finite("rescale_threshold", threshold, expected, "float64")
    if not 0 <= number <= _LARGEST_THRESHOLD:
        msg = f"rescale_threshold must be {expected}, got {threshold!r}"
        raise OptionError(msg)
    return number


def require_splits(splits: Any) -> int:
    """Return into how many pieces the keys are cut, 0 if that follows from the shapes.

    Raises
    ------
    OptionError
        If it is no integer of at least 1.
    """
    if splits is None:
        return 0
    if not _is_integer(splits) or splits < 1:
        msg = f"splits must be an integer of at least 1, or None to leave it to the shapes, got {splits!r}"
        raise OptionError(msg)
    return min(int(splits), UNLIMITED)


def require_reach(causal: Any, window: Any) -> Reach:
    """Return what causality and a window leave of the keys.

    Raises
    ------
    OptionError
        If causal is none of False, True, "bottom-right" and "top-left", or the window no pair of integers of
        at least 0 and None.
    """
    if isinstance(causal, str):
        known = causal in ("bottom-right", "top-left")
    else:
        known = causal is False or causal is True or type(causal).__name__ in ("bool_", "bool")
    if not known:
        msg = f"causal must be False, True, 'bottom-right' (as True) or 'top-left', got {causal!r}"
        raise OptionError(msg)
    left = right = UNLIMITED
    if window is not None:
        left, right = _window(window)
    if bool(causal):
        right = 0
    return Reach(left, right, isinstance(causal, str) and causal == "top-left")


def _window(window: Any) -> tuple[int, int]:
    sides = tuple(window) if isinstance(window, tuple | list) else ()
    if len(sides) != 2 or any(side is not None and (not _is_integer(side) or side < 0) for side in sides):
        msg = (
            f"window must be (left, right), how many keys a query sees on each side of its own: integers of "
            f"at least 0, or None for no limit; got {window!r}"
        )
        raise OptionError(msg)
    left, right = (UNLIMITED if side is None else min(int(side), UNLIMITED) for side in sides)
    return left, right


def _is_integer(number: Any) -> bool:
    return isinstance(number, Integral) and not isinstance(number, bool)


def _finite(name: str, number: Any, expected: str, working: str) -> float:
    value = math.nan
    if isinstance(number, Real) and not isinstance(number, bool):
        # An integer may be too large for any float.
        with contextlib.suppress(OverflowError):
            value = float(number)
    if not abs(value) <= float(np.finfo(working).max):
        msg = f"{name} must be {expected}, got {_shown(number)}"
        raise OptionError(msg)
    return value


def _shown(number: Any) -> str:
    text = repr(number)
    return text if len(text) <= 40 else f"{text[:20]}… of {len(text)} characters"
