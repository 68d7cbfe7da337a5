"""The exceptions and warnings that softcarry raises.

Every message says what was expected, what came, and what to do about it, in one line.
"""


class SoftcarryError(ValueError):
    """Base of every error that softcarry raises on purpose."""


class ShapeError(SoftcarryError):
    """An array has a shape that the operation cannot take."""


class DTypeError(SoftcarryError):
    """An array has a dtype that the operation cannot take."""


class OptionError(SoftcarryError):
    """An argument lies outside the values that the operation knows."""


class SubjectError(SoftcarryError):
    """A kernel under audit does not import, raises, or returns something that is no attention output."""


class MissingDependencyError(SoftcarryError, ImportError):
    """An optional library is needed and not installed; the message holds the command that installs it."""


class UnderflowWarning(RuntimeWarning):
    """Every term of a row underflowed because a known bound was far above the row's scores."""
