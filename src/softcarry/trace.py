"""The recurrence of the carry, one step at a time, with the sum it stands for beside it."""

import math
import numbers
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from softcarry._trace_notes import note_of
from softcarry.errors import DTypeError, ShapeError
from softcarry.numerics._formats import FloatFormat, get_format
from softcarry.numerics.summation_bounds import one_of, whole

Form = Literal["unnormalised", "normalised"]


@dataclass(frozen=True)
class Step:
    """The carry of one row after one key block.

    Attributes
    ----------
    start, stop : int
        The block holds keys ``start`` to ``stop − 1``.
    scores : tuple of float
        The scores of the block, as the carry format holds them.
    m : float
        Running maximum after the block.
    factor : float
        e^(m_old − m), by which l and the unnormalised o are rescaled; 0 when nothing was carried before.
    terms : tuple of float
        e^(s − m) of each score of the block.
    l : float
        Running sum after the block.
    direct : float
        Σ e^(s − m) over every score up to the end of the block, in float64: what ``l`` should be.
    o : tuple of float or None
        Running output in the form of the trace; None without values.
    output : tuple of float or None
        o / l, the output if the row ended here; 0 where l is 0; None without values.
    note : str
        What happened, in words; empty when nothing is worth a remark.
    """

    start: int
    stop: int
    scores: tuple[float, ...]
    m: float
    factor: float
    terms: tuple[float, ...]
    l: float
    direct: float
    o: tuple[float, ...] | None
    output: tuple[float, ...] | None
    note: str

    @property
    def error(self) -> float:
        """Relative error of l against the direct sum; 0 when both are 0 (nothing attended yet)."""
        return 0.0 if self.l == self.direct else abs(self.l - self.direct) / self.direct


@dataclass(frozen=True)
class Final:
    """The carry at the end of a row, and what it is for.

    Attributes
    ----------
    m, l, lse : float
        Running maximum, running sum, and m + ln l (−inf for an empty row).
    weights : tuple of float
        e^(s − m) / l for every score; 0 for masked scores and in an empty row.
    output : tuple of float or None
        The output; None without values.
    """

    m: float
    l: float
    lse: float
    weights: tuple[float, ...]
    output: tuple[float, ...] | None


@dataclass(frozen=True)
class Trace:
    """A sequence of :class:`Step`, one a key block, and the :class:`Final` state.

    Attributes
    ----------
    steps : tuple of Step
        Also reached by iterating over the trace, indexing it, and ``len``.
    final : Final
        The state after the last step.
    block : int
        Key block.
    format : str
        Name of the carry format; ``"float64"`` when nothing is rounded.
    form : str
        ``"unnormalised"`` or ``"normalised"``.
    """

    steps: tuple[Step, ...]
    final: Final
    block: int
    format: str
    form: Form

    def __iter__(self) -> Iterator[Step]:
        return iter(self.steps)

    def __len__(self) -> int:
        return len(self.steps)

    def __getitem__(self, index: int) -> Step:
        return self.steps[index]

    def to_dict(self) -> dict[str, Any]:
        """Everything as nested dictionaries, lists and numbers; NaN and infinities stay floats."""
        return asdict(self)


def recurrence(
    scores: ArrayLike,
    values: ArrayLike | None = None,
    *,
    block: int = 1,
    fmt: FloatFormat | str | None = None,
    form: Form = "unnormalised",
) -> Trace:
    """Trace the carry of one row of scores, key block by key block.

    A step takes the maximum, rescales what is carried by e^(m_old − m), and adds the terms of its block::

        m = max(m_old, s_1, …, s_Bc)
        l = e^(m_old − m) · l_old + Σ e^(s_i − m)
        o = e^(m_old − m) · o_old + Σ e^(s_i − m) · v_i

    Parameters
    ----------
    scores : array_like
        Shape (n,), real numbers; n = 0 gives a trace without steps that ends empty.
    values : array_like, optional
        Shape (n,) or (n, dv): a number or a vector a key.
    block : int
        Key block: how many scores a step takes.
    fmt : FloatFormat or str, optional
        The carry format. Scores and values are rounded to it first; l and o are rounded to it once a step,
        while the arithmetic inside a step stays in float64. None rounds nothing.
    form : {"unnormalised", "normalised"}
        What ``o`` holds between steps: Σ e^(s − m) · v, as in FlashAttention-2, or that divided by l, as in
        the first FlashAttention.

    Returns
    -------
    Trace
        Steps and final state. A score of −inf is masked: it changes nothing, and its value is not read. A
        row of nothing else ends empty: m = −inf, l = 0, output 0, lse −inf. A score of NaN or +inf makes l
        NaN from its step on, in every form.

    Raises
    ------
    ShapeError
        Scores that are not a row, or values that are not one for each score.
    DTypeError
        Scores or values that are not real numbers.
    OptionError
        A block below 1, an unknown form or an unknown format.

    References
    ----------
    Milakov and Gimelshein, Online normalizer calculation for softmax, 2018, algorithm 3; Dao et al.,
    FlashAttention, 2022, algorithm 1, line 12 (normalised form); Dao, FlashAttention-2, 2023, section 3.1.

    Examples
    --------
    >>> from softcarry.trace import recurrence
    >>> [round(step.l, 4) for step in recurrence([2.0, 5.0, 1.0, 7.0])]
    [1.0, 1.0498, 1.0681, 1.1446]
    >>> recurrence([1.0] * 300, fmt="bfloat16").final.l
    256.0
    """
    s = _real("scores", scores)
    if s.ndim != 1:
        msg = f"scores must be one row, shape (n,); got shape {s.shape}; pass one row at a time"
        raise ShapeError(msg)
    v = None if values is None else _values(values, len(s))
    block = whole("block", block, 1)
    one_of("form", form, get_args(Form))
    carry_format = None if fmt is None else get_format(fmt)
    with np.errstate(all="ignore"):
        return _trace(s, v, block, carry_format, form)


class _State(NamedTuple):
    m: float
    l: float
    o: NDArray[np.float64] | None


def _trace(
    scores: NDArray[np.float64],
    values: NDArray[np.float64] | None,
    block: int,
    fmt: FloatFormat | None,
    form: Form,
) -> Trace:
    given, scores = scores, _rounded(scores, fmt)
    values = None if values is None else _rounded(values, fmt)
    state = _State(-math.inf, 0.0, None if values is None else np.zeros(values.shape[1]))
    direct = np.zeros(len(scores))
    steps = []
    for start in range(0, len(scores), block):
        keys = slice(start, min(start + block, len(scores)))
        old = state
        state, factor, terms = _absorb(old, scores[keys], None if values is None else values[keys], fmt, form)
        if state.m != old.m:
            # The sums that l stands for, all of them relative to this maximum: no recurrence in them.
            direct = np.cumsum(_terms(scores, state.m))
        note = note_of(given[keys], scores[keys], old.m, state.m, old.l, state.l, terms, fmt)
        steps.append(
            Step(
                start=start,
                stop=keys.stop,
                scores=_tuple(scores[keys]),
                m=state.m,
                factor=factor,
                terms=_tuple(terms),
                l=state.l,
                direct=float(direct[keys.stop - 1]),
                o=None if state.o is None else _tuple(state.o),
                output=_output(state, form),
                note=note,
            )
        )
    m, l = state.m, state.l
    # As for a Carry: a NaN makes the lse NaN, by the formula; a score of +inf makes l NaN and the lse +inf.
    lse = math.inf if m == math.inf else m + (math.log(l) if l > 0.0 else -math.inf if l == 0.0 else math.nan)
    weights = _tuple(_divide(_terms(scores, m), l))
    name = "float64" if fmt is None else fmt.name
    return Trace(tuple(steps), Final(m, l, lse, weights, _output(state, form)), block, name, form)


def _absorb(
    old: _State,
    scores: NDArray[np.float64],
    values: NDArray[np.float64] | None,
    fmt: FloatFormat | None,
    form: Form,
) -> tuple[_State, float, NDArray[np.float64]]:
    """One step: the new carry, the factor that rescaled the old one, and the terms that were added."""
    m = float(np.maximum(old.m, np.max(scores)))
    factor = _factor(old.m, m)
    terms = _terms(scores, m)
    # An empty carry is a true identity, whatever 0 · factor may be.
    empty = old.m == -math.inf
    kept = 0.0 if empty else old.l * factor
    l = float(_rounded(kept + float(np.sum(terms)), fmt))
    if values is None or old.o is None:
        return _State(m, l, None), factor, terms
    # What is carried counts as one more value, whose term is the factor.
    counted = np.array([not empty, *(scores != -math.inf)])
    factors = np.array([kept if form == "normalised" else factor, *terms])
    total = _weighted_sum(factors[counted], np.vstack([old.o, values])[counted])
    o = _rounded(_divide(total, l) if form == "normalised" else total, fmt)
    return _State(m, l, o), factor, terms


def _output(state: _State, form: Form) -> tuple[float, ...] | None:
    if state.o is None:
        return None
    return _tuple(state.o if form == "normalised" else _divide(state.o, state.l))


def _factor(m_old: float, m: float) -> float:
    """e^(m_old − m); where both are −inf the shift is 0, and where nothing was carried the factor is 0."""
    if m_old == -math.inf:
        return 1.0 if m == -math.inf else 0.0
    return float(np.exp(m_old - m))


def _terms(scores: NDArray[np.float64], m: float) -> NDArray[np.float64]:
    """e^(s − m), 0 for masked scores even where m is −inf or NaN."""
    return np.where(scores == -math.inf, 0.0, np.exp(scores - (0.0 if m == -math.inf else m)))


def _weighted_sum(terms: NDArray[np.float64], values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Σ term · value; an infinite value stays infinite where its term underflowed to 0, as in the carry."""
    finite = np.isfinite(values)
    return terms @ np.where(finite, values, 0.0) + np.sum(np.where(finite, 0.0, values), axis=0)


def _divide(total: NDArray[np.float64], l: float) -> NDArray[np.float64]:
    return np.zeros_like(total) if l == 0.0 else total / l


def _rounded(x: Any, fmt: FloatFormat | None) -> Any:
    return x if fmt is None else fmt.round(x)


def _tuple(x: NDArray[np.float64]) -> tuple[float, ...]:
    return tuple(x.tolist())


def _real(name: str, given: ArrayLike) -> NDArray[np.float64]:
    if isinstance(given, np.ma.MaskedArray):
        msg = f"{name} must be a plain array; got a masked one; fill it first, scores with −inf"
        raise DTypeError(msg)
    try:
        array = np.asarray(given)
    except ValueError:
        msg = f"{name} must be numbers in rows of one length; got a ragged sequence; make the rows equal"
        raise ShapeError(msg) from None
    except (TypeError, RuntimeError):
        msg = f"{name} must be real numbers; got {type(given).__name__}; convert them to a float64 array"
        raise DTypeError(msg) from None
    if array.size == 0:
        return array.astype(np.float64)
    if array.dtype == object:
        strange = [x for x in array.flat if not isinstance(x, numbers.Real) or isinstance(x, bool)]
        kind = type(strange[0]).__name__ if strange else ""
    else:
        # Kind "V" is how NumPy sees the types of ml_dtypes, which convert; structured types do not.
        real = array.dtype.kind in "iuf" or (array.dtype.kind == "V" and array.dtype.names is None)
        kind = "" if real else "text" if array.dtype.kind in "US" else array.dtype.name
    if kind:
        msg = f"{name} must be real numbers; got {kind}; convert them to float64"
        raise DTypeError(msg)
    try:
        return array.astype(np.float64)
    except OverflowError:
        msg = f"{name} must fit in float64; got a number beyond its largest; scale it, or use infinity"
        raise DTypeError(msg) from None


def _values(values: ArrayLike, count: int) -> NDArray[np.float64]:
    array = _real("values", values)
    if array.ndim not in (1, 2) or len(array) != count:
        got = f"{len(array)} values" if array.ndim == 1 else f"shape {array.shape}"
        msg = (
            f"values must be one for each of the {count} scores, shape ({count},) or ({count}, dv); got {got}"
        )
        raise ShapeError(msg)
    return array.reshape(count, -1) if count else array.reshape(0, array.shape[1] if array.ndim == 2 else 1)
