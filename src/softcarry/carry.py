"""The carry (m, l, o) of softmax attention: a mergeable summary of any set of keys, and its algebra."""

import math
from dataclasses import dataclass

import array_api_compat
import numpy as np

from softcarry import _algebra
from softcarry._algebra import LN2, LOG2E, Summary
from softcarry._arrays import (
    Array,
    DType,
    Namespace,
    array_namespace,
    broadcast_shape,
    convert,
    namespace_of_dtype,
    quiet,
    require_floating,
    require_shape,
    select,
    working_dtype,
)
from softcarry._blocks import summarise_block
from softcarry._carry_checks import (
    Base,
    as_array,
    matched,
    require_base,
    require_mergeable,
    warn_if_underflowed,
)
from softcarry.errors import OptionError, ShapeError


@dataclass(frozen=True, eq=False)
class Carry:
    """The running maximum m, the running sum l and the running output o of query rows.

    For the scores s and values v of the keys summarised so far, in base "e",

        m = max s,    l = Σ e^(s − m),    o = Σ e^(s − m)·v    (unnormalised; the output is o / l).

    Carries of disjoint key sets are merged exactly, anywhere and in any order: they form a commutative monoid
    with the empty carry as its identity. The arrays may be of any array-API library; none is changed in place.

    Parameters
    ----------
    m, l : array (...,)
        Running maximum, and running sum relative to m. Kept in float32, or in float64 if any array given is
        float64; narrower formats are converted to float32, exactly.
    o : array (..., dv) or None
        Running output relative to m; None where no values are summarised.
    base : "e" or "2"
        With "2", scores and m are in log2 units and the terms are 2^(s − m). The integer 2 is accepted.

    Raises
    ------
    ShapeError, DTypeError, OptionError
        If the arrays do not fit together, are not real floating point, or the base is neither.

    Notes
    -----
    The rules, row by row; no row touches another:

    =====================================  =====  ===  ==============  ======  ====  =======
    the row has                            m      l    o               output  lse   weights
    =====================================  =====  ===  ==============  ======  ====  =======
    no live score (empty)                  −inf   0    0               0       −inf  0
    finite scores                          max s  ≥ 1  finite          o/l     m+ln l  ≤ 1
    finite scores, all underflowed (below  bound  0    0               0       −inf  0
    a loose bound)
    a score of +inf, none NaN              +inf   NaN  NaN             NaN     +inf  NaN
    a NaN score                            NaN    NaN  NaN             NaN     NaN   NaN
    a live value of +inf (or −inf)         max s  ≥ 1  +inf (or −inf)  the same in that column
    a live NaN value, or both infinities   max s  ≥ 1  NaN             the same in that column
    =====================================  =====  ===  ==============  ======  ====  =======

    A score is live unless it is −inf. The value of a score of −inf is selected away, whatever it holds. A live
    NaN or infinity in a value counts even if its term underflows to 0, so that no rule depends on how the keys were
    split. An empty part is the identity in every position of a merge, to the bit, even if its l or o holds NaN.
    There is no finite sentinel.

    Rounding. Let u be the unit roundoff of the dtype and ε the error of e^x in units of u. A row of n terms that
    went through K merges on its way, in any grouping and any order, has to first order

        |l − exact| ≤ (n + ln n + (2 + ε)·K + ε)·u·l,    |o − exact| ≤ (the same + 1)·u·Σ e^(s − m)·|v|,

    beside underflow. For each subtraction s − m or m − m' errs by u times its size, the sizes on a term's way add
    up to max s − s, and Σ p·(max s − s) ≤ ln n; a rescaling costs an exponential and a product, and a term is in
    at most n − 1 + K sums. Where m stays, the rescale factor is exactly 1. Two carries commute to the bit (but a
    compiler that fuses a product and a sum, as JAX's may under ``jit``, can change the last one).

    Derivatives flow through every method where the library has them; those of empty parts are 0, never NaN.

    References
    ----------
    Milakov and Gimelshein, Online normalizer calculation for softmax, arXiv:1805.02867, 2018, section 3.
    Dao, FlashAttention-2, arXiv:2307.08691, 2023, section 3.1 (the unnormalised output).

    Examples
    --------
    >>> import numpy as np
    >>> import softcarry as sc
    >>> first = sc.Carry.of(np.array([2.0, 5.0]), np.array([[1.0], [2.0]]))
    >>> second = sc.Carry.of(np.array([1.0, 7.0]), np.array([[3.0], [4.0]]))
    >>> whole = first | second
    >>> float(whole.m), round(float(whole.l), 4), round(float(whole.output[0]), 4)
    (7.0, 1.1446, 3.7437)
    """

    m: Array
    l: Array  # noqa: E741 - the field's name
    o: Array | None = None
    base: Base = "e"

    def __post_init__(self) -> None:
        given = {"m": self.m, "l": self.l} | ({} if self.o is None else {"o": self.o})
        for name, array in matched(**given).items():
            object.__setattr__(self, name, array)
        object.__setattr__(self, "base", require_base(self.base))

    @classmethod
    def empty(
        cls,
        shape: int | tuple[int, ...],
        *,
        value_dim: int | None = None,
        like: Array | DType | None = None,
        base: Base = "e",
    ) -> "Carry":
        """Return the carry of no keys: m = −inf, l = 0, o = 0.

        Parameters
        ----------
        shape : int or tuple of int
            Shape of m.
        value_dim : int, optional
            dv; without it the carry has no o.
        like : array or dtype, optional
            Library, device and dtype: float64 for float64, float32 for narrower floating-point ones. NumPy's
            float32 by default.
        base : "e" or "2"

        Raises
        ------
        ShapeError, DTypeError, OptionError
            For a negative length, a dtype that is not real floating point, an unknown base.

        Examples
        --------
        >>> import softcarry as sc
        >>> float(sc.Carry.empty((), value_dim=3).lse)
        -inf
        """
        shape = require_shape(shape)
        like = np.float32 if like is None else like
        if isinstance(like, type | np.dtype) or not hasattr(like, "shape"):
            xp, dtype, device = namespace_of_dtype(like), like, None
        else:
            xp, dtype, device = array_namespace(like), like.dtype, array_api_compat.device(like)
        require_floating("like", dtype)
        options = {"dtype": working_dtype(xp, dtype), "device": device}
        o = None if value_dim is None else xp.zeros(shape + require_shape(value_dim), **options)
        return cls(xp.full(shape, -math.inf, **options), xp.zeros(shape, **options), o, base)

    @classmethod
    def of(
        cls,
        scores: Array,
        values: Array | None = None,
        *,
        base: Base = "e",
        bound: Array | float | None = None,
    ) -> "Carry":
        """Summarise one block of keys.

        Parameters
        ----------
        scores : array (..., n)
            Real floating point. −inf masks a key. n may be 0.
        values : array (..., n, dv), optional
            The leading axes of both broadcast, as in attention scores (b, h, tq, n) with values (b, h, 1, n, dv),
            which takes one matrix product a head. Values (n, dv) are shared by all rows.
        base : "e" or "2"
            "2" for scores in log2 units.
        bound : float or array broadcastable to (...,), optional
            A number known to be at least every score of its row, which m takes in place of the maximum. Carries of
            equal bounds merge without rescaling. The maximum is still read, to check the bound. A bound costs
            digits where it lies more than 87 (float32; 708 for float64; in base "e") above the largest score,
            and underflows every term of the row from 104 (745) on.

        Returns
        -------
        Carry
            m and l (...,), o (..., dv).

        Warns
        -----
        UnderflowWarning
            If a bound underflowed every term of a row. Not while traced; `underflowed` tells then.

        Raises
        ------
        ShapeError, DTypeError, OptionError
            For mismatched shapes, two libraries, scores or values that are not real floating point, a score above
            its bound (not checked while traced).

        Examples
        --------
        >>> import numpy as np
        >>> import softcarry as sc
        >>> c = sc.Carry.of(np.array([2.0, 5.0, 1.0, 7.0]))
        >>> float(c.m), round(float(c.l), 4)
        (7.0, 1.1446)
        """
        base = require_base(base)
        carry = cls(*summarise_block(scores, values, base=base, bound=bound), base)
        if bound is not None:
            warn_if_underflowed(carry)
        return carry

    @classmethod
    def from_lse(cls, output: Array | None, lse: Array, *, base: Base = "e") -> "Carry":
        """Return the carry of a normalised output and its log-sum-exp: m = lse, l = 1, o = output.

        Parameters
        ----------
        output : array (..., dv) or None
        lse : array (...,)
            In units of the base. −inf makes the row empty whatever its output holds; NaN and +inf act as scores.
        base : "e" or "2"
            "2" for an lse2.

        Raises
        ------
        ShapeError, DTypeError, OptionError
            As for the class.

        Examples
        --------
        >>> import numpy as np
        >>> import softcarry as sc
        >>> float(sc.Carry.from_lse(np.array([3.0]), np.array(0.5)).lse)
        0.5
        """
        raw = cls(lse, lse, output, base)
        xp = array_namespace(raw.m)
        finite = xp.isfinite(raw.m)
        l = select(xp, finite, 1.0, select(xp, raw.m == -math.inf, 0.0, xp.full_like(raw.m, math.nan)))  # noqa: E741
        o = raw.o
        if o is not None:
            o = _algebra.clear_empty(xp, raw.m, select(xp, xp.expand_dims(finite, axis=-1), o, math.nan))
        return cls(raw.m, l, o, raw.base)

    def absorb(
        self, scores: Array, values: Array | None = None, *, bound: Array | float | None = None
    ) -> "Carry":
        """Take in one more block of keys: ``self.merge(Carry.of(scores, values, base=self.base, bound=bound))``.

        The scores are in units of the carry's base. Parameters, warnings and errors are those of `of`, and of
        `merge` where the shapes of block and carry differ.

        Examples
        --------
        >>> import numpy as np
        >>> import softcarry as sc
        >>> c = sc.Carry.empty(())
        >>> for score in (2.0, 5.0, 1.0, 7.0):
        ...     c = c.absorb(np.array([score], dtype=np.float32))
        >>> float(c.m), round(float(c.l), 4)
        (7.0, 1.1446)
        """
        block = Carry(*summarise_block(scores, values, base=self.base, bound=bound), self.base)
        merged = self.merge(block)
        if bound is not None:
            warn_if_underflowed(block)
        return merged

    def merge(self, *others: "Carry") -> "Carry":
        """Combine with any number of carries of disjoint key sets; ``a | b`` merges two.

        Every part is rescaled once, to the common maximum, and summed left to right. Carries of both bases are
        merged in base "e": see `to_base` for the error.

        Returns
        -------
        Carry
            float64 if one of them is.

        Raises
        ------
        ShapeError, DTypeError, OptionError
            If an argument is no carry, shapes differ, only some have values, or they belong to two libraries.

        Examples
        --------
        >>> import numpy as np
        >>> import softcarry as sc
        >>> parts = [sc.Carry.of(np.array(block)) for block in ([2.0], [5.0, 1.0], [7.0])]
        >>> round(float(sc.Carry.merge(*parts).l), 4)
        1.1446
        """
        for other in others:
            require_mergeable(self, other)
        if not others:
            return self
        carries = [self, *others]
        base = self.base if len({carry.base for carry in carries}) == 1 else "e"
        xp = array_namespace(self.m)
        dtype = working_dtype(xp, *(carry.m.dtype for carry in carries))
        parts = [carry.to_base(base)._summary(xp, dtype) for carry in carries]
        with quiet(xp):
            return Carry(*_algebra.combine(xp, parts, base=base), base)

    def __or__(self, other: "Carry") -> "Carry":
        return self.merge(other) if isinstance(other, Carry) else NotImplemented

    @property
    def underflowed(self) -> Array:
        """Boolean array (...,): True where a loose bound underflowed every term, so that l = 0 with m > −inf."""
        return (self.l == 0) & (self.m > -math.inf)

    @property
    def lse(self) -> Array:
        """The natural log-sum-exp (...,), m + ln l, whatever the base; −inf for an empty row."""
        return self._log_sum_exp("e")

    @property
    def lse2(self) -> Array:
        """The base-2 log-sum-exp (...,), lse / ln 2, whatever the base; −inf for an empty row."""
        return self._log_sum_exp("2")

    @property
    def output(self) -> Array:
        """The normalised output (..., dv), o / l, in the dtype of the carry; 0 for an empty row.

        Raises OptionError if the carry holds no values.
        """
        if self.o is None:
            msg = "this carry holds no values, so it has no output: give values to Carry.of or absorb"
            raise OptionError(msg)
        xp = array_namespace(self.m)
        with quiet(xp):
            return _algebra.clear_empty(xp, self.m, self.o) / xp.expand_dims(self._safe(xp)[2], axis=-1)

    def weights(self, scores: Array) -> Array:
        """Return the softmax weights e^(s − m) / l of scores that the carry has absorbed.

        Parameters
        ----------
        scores : array (..., n)
            In units of the carry's base; the leading axes broadcast with those of m.

        Returns
        -------
        array (..., n)
            0 for a score of −inf, and in every row that is empty or underflowed.

        Raises
        ------
        ShapeError, DTypeError

        Examples
        --------
        >>> import numpy as np
        >>> import softcarry as sc
        >>> x = np.array([2.0, 5.0, 1.0, 7.0])
        >>> sc.Carry.of(x).weights(x).round(3)
        array([0.006, 0.118, 0.002, 0.874])
        """
        xp = array_namespace(scores, self.m)
        require_floating("scores", scores.dtype)
        if scores.ndim == 0 or broadcast_shape(scores.shape[:-1], self.m.shape) is None:
            msg = (
                f"scores must have shape (..., n) with leading axes that broadcast with m "
                f"{tuple(self.m.shape)}, got {tuple(scores.shape)}"
            )
            raise ShapeError(msg)
        with quiet(xp):
            weightless, shift, l = (xp.expand_dims(array, axis=-1) for array in self._safe(xp))  # noqa: E741
            scores = convert(xp, scores, working_dtype(xp, scores.dtype, self.m.dtype))
            scores = select(xp, weightless, -math.inf, scores)
            return _algebra.exponential(xp, self.base)(scores - shift) / l

    def logprob(self, score: Array | float) -> Array:
        """Return the natural log-probability of one score a row, (s − m) − ln l.

        It comes from the pair, never from s − lse: under a common offset of 1e8 in float32, lse is a multiple of
        8 while s − m is exact.

        Parameters
        ----------
        score : float or array broadcastable to the shape of m
            In units of the carry's base.

        Returns
        -------
        array (...,)
            −inf for a score of −inf, and in every row that is empty or underflowed.

        Raises
        ------
        ShapeError, DTypeError

        Examples
        --------
        >>> import numpy as np
        >>> import softcarry as sc
        >>> x = np.array([1e8, 1e8, 1e8], dtype=np.float32)
        >>> round(float(sc.Carry.of(x).logprob(x[0])), 4)
        -1.0986
        """
        xp = array_namespace(self.m)
        score = as_array(self.m, score, "score", tuple(self.m.shape))
        with quiet(xp):
            weightless, shift, l = self._safe(xp)  # noqa: E741
            gap = select(xp, weightless, -math.inf, xp.broadcast_to(score, self.m.shape)) - shift
            return (gap * LN2 if self.base == "2" else gap) - xp.log(l)

    def to_base(self, base: Base) -> "Carry":
        """Return the same carry with m in units of another base; l and o stay as they are.

        The rounding of m·ln 2 or m·log2 e is a relative error of at most 1.5·|m|·u of all terms (m in base "e"),
        which shows once the carry is merged with others: 9e-6 for m = 100 in float32, 0.9 % for m = 1e5. A kernel
        that scales its scores by log2 e has made a like error in each. m overflows above 2.3e38 in float32.

        Raises
        ------
        OptionError
            If the base is neither "e" nor "2".

        Examples
        --------
        >>> import numpy as np
        >>> import softcarry as sc
        >>> c = sc.Carry.of(np.array([3.0, 3.0]), base="2")
        >>> float(c.lse2), round(float(c.to_base("e").m), 4)
        (4.0, 2.0794)
        """
        base = require_base(base)
        if base == self.base:
            return self
        with quiet(array_namespace(self.m)):
            return Carry(self.m * (LN2 if base == "e" else LOG2E), self.l, self.o, base)

    def _summary(self, xp: Namespace, dtype: DType) -> Summary:
        return Summary(*(None if a is None else convert(xp, a, dtype) for a in (self.m, self.l, self.o)))

    def _safe(self, xp: Namespace) -> tuple[Array, Array, Array]:
        """Return which rows have no weight to give (empty or underflowed), the shift, and l with 1 in those."""
        weightless = (self.m == -math.inf) | (self.l == 0)
        return weightless, _algebra.shift_of(xp, self.m), select(xp, weightless, 1.0, self.l)

    def _log_sum_exp(self, base: Base) -> Array:
        xp = array_namespace(self.m)
        with quiet(xp):
            weightless, _, l = self._safe(xp)  # noqa: E741
            m = select(xp, weightless, -math.inf, self.to_base(base).m)
            return select(xp, m == math.inf, math.inf, m + (xp.log if base == "e" else xp.log2)(l))
