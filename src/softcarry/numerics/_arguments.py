"""Checks of plain arguments, each with its one-line refusal."""

import math

import numpy as np

from softcarry.errors import OptionError


def one_of(name, value, choices):
    """Raise OptionError unless ``value`` is one of ``choices``."""
    if value not in choices:
        msg = f"{name} is one of {', '.join(map(repr, choices))}; got {value!r}"
        raise OptionError(msg)


def whole(name, value, least):
    """Return ``value`` as an int, or raise OptionError unless it is a whole number of at least ``least``."""
    number = None
    if not isinstance(value, bool | np.bool_ | str):
        try:
            number = int(value)
        except (TypeError, ValueError, OverflowError):
            number = None
    if number is None or number != value or number < least:
        msg = f"{name} is a whole number of at least {least}; got {value!r}"
        raise OptionError(msg)
    return number


def positive(name, value):
    """Return ``value`` as a float, or raise OptionError unless it is finite and above 0."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not 0.0 < number < math.inf:
        msg = f"{name} is a finite number above 0; got {value!r}"
        raise OptionError(msg)
    return number
