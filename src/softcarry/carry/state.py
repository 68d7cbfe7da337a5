"""The carry (m, l, o) of softmax attention: a mergeable summary of any set of keys, and its algebra."""

import math
from dataclasses import dataclass

import numpy as np

from softcarry._arrays import (
    Array,
    DType,
    array_namespace,
    convert,
    options_of,
    quiet,
    require_shape,
    working_dtype,
)
from softcarry.carry import _algebra, _merge, _readout
from softcarry.carry._algebra import LN2, LOG2E, Summary
from softcarry.carry._blocks import summarise_block
from softcarry.carry._checks import Base, matched, require_base, require_mergeable, warn_if_underflowed


@dataclass(frozen=True, eq=False)
class Carry:
    """The running maximum m, the running sum l and the running output o of query rows.

    For the scores s and values v of the keys summarised so far, in base "e",

        m = max s,    l = Σ e^(s − m),    o = Σ e^(s − m)·v    (unnormalised; the output is o / l).

    Carries of disjoint key sets are merged exactly, anywhere and in any order: they form a commutative monoid
    with the empty carry as its identity. The arrays may be of any array-API library; none is changed in
    place.

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

    ======================================  =======  =====  ====  ======  ======  =======
    the row has                             m        l      o     output  lse     weights
    ======================================  =======  =====  ====  ======  ======  =======
    no live score: it is empty              −inf     0      0     0       −inf    0
    finite scores                           max s    ≥ 1    Σ     o/l     m+ln l  ≤ 1
    finite scores and a bound               bound    ≥ 0    Σ     o/l     m+ln l  ≤ 1
    the same, every term underflowed        bound    0      0     0       −inf    0
    a score of +inf and no NaN              +inf     NaN    NaN   NaN     +inf    NaN
    a NaN score                             NaN      NaN    NaN   NaN     NaN     NaN
    ======================================  =======  =====  ====  ======  ======  =======

    A score is live unless it is −inf. The value of a score of −inf is selected away, whatever it holds. An
    infinity among the live values of a column makes that column of o and output infinite; a NaN, or
    infinities of both signs, make it NaN. They count even if their term underflows to 0, so that no rule
    depends on how the keys were split. o overflows where l·|v| does, though the output might not. An empty
    part is the identity in every position of a merge, to the bit, even if its l or o holds NaN. There is no
    finite sentinel.

    Rounding. Let u be the unit roundoff of the dtype, ε the error of e^x in units of u, and t = e^(s − m).
    For a row of n terms that went through K merges on its way, in any grouping and any order, to first order
    and beside underflow,

        |l − exact| ≤ u·Σ t·c,    |o − exact| ≤ u·Σ t·|v|·c,    c = n + (m − s) + ε + (1 + ε)·K.

    For a term is in at most n − 1 sums and one product with its value; each subtraction s − m or m − m' errs
    by u times its size, and the sizes on a term's way add up to m − s; a rescaling costs an exponential and a
    product. Since Σ t·(m − s) ≤ l·ln n where m = max s, the relative error of l is at most (n + ln n + ε + (1
    + ε)·K)·u. Where m stays, the rescale factor is exactly 1. Two carries commute to the bit (a compiler that
    fuses a product with a sum, as JAX's may under ``jit``, can change the last one).

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
    l: Array
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
            float32 by default. The dtypes of JAX's arrays are NumPy's: give an array, or jax.numpy.float32.
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
        xp, options = options_of(np.float32 if like is None else like)
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
            The leading axes of both broadcast, as in attention scores (b, h, tq, n) with values (b, h, 1, n,
            dv), which takes one matrix product a head. Values (n, dv) are shared by all rows.
        base : "e" or "2"
            "2" for scores in log2 units.
        bound : float or array broadcastable to (...,), optional
            A number known to be at least every score of its row; m takes it in place of the maximum, which
            is read only to check it. Carries of equal bounds merge without rescaling. A bound costs digits
            where it lies over 87 (float32; 708 for float64; base "e") above the largest score, and underflows
            every term of the row from 104 (745) on.

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
            For mismatched shapes, two libraries, scores or values that are not real floating point, a score
            above its bound (not checked while traced).

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
            In units of the base. −inf makes the row empty whatever its output holds; NaN, +inf act as scores.
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
        return cls(*_algebra.of_normalised(array_namespace(raw.m), raw.m, raw.o), raw.base)

    def absorb(
        self, scores: Array, values: Array | None = None, *, bound: Array | float | None = None
    ) -> "Carry":
        """Take in one more block: ``self.merge(Carry.of(scores, values, base=self.base, bound=bound))``.

        Scores are in units of the carry's base. Parameters, warnings and errors: see `of` and `merge`.

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

        Every part is rescaled once, to the common maximum, and summed left to right; by compiled code, in
        float64 and rounded once, for large NumPy arrays and torch CPU tensors without gradients. Carries of
        both bases are merged in base "e": see `to_base` for the error.

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
        widened = (Carry(convert(xp, c.m, dtype), c.l, c.o, c.base).to_base(base) for c in carries)
        parts = [Summary(c.m, c.l, c.o) for c in widened]
        return Carry(*_merge.combine(xp, parts, base=base), base)

    def __or__(self, other: "Carry") -> "Carry":
        return self.merge(other) if isinstance(other, Carry) else NotImplemented

    @property
    def underflowed(self) -> Array:
        """Boolean array (...,): True where a loose bound underflowed every term (l = 0 with m > −inf)."""
        return (self.l == 0) & (self.m > -math.inf)

    @property
    def lse(self) -> Array:
        """The natural log-sum-exp (...,), m + ln l, whatever the base; −inf for an empty row."""
        return _readout.log_sum_exp(self, "e")

    @property
    def lse2(self) -> Array:
        """The base-2 log-sum-exp (...,), lse / ln 2, whatever the base; −inf for an empty row."""
        return _readout.log_sum_exp(self, "2")

    @property
    def output(self) -> Array:
        """The output (..., dv), o / l; 0 for an empty row. OptionError if the carry holds no values."""
        return _readout.output(self)

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
        return _readout.weights(self, scores)

    def logprob(self, score: Array | float) -> Array:
        """Return the natural log-probability of one score a row, (s − m) − ln l.

        It comes from the pair, never from s − lse: under a common offset of 1e8 in float32, lse is a multiple
        of 8 while s − m is exact.

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
        return _readout.logprob(self, score)

    def to_base(self, base: Base) -> "Carry":
        """Return the same carry with m in units of another base; l and o stay as they are.

        Rounding m·ln 2 or m·log2 e is a relative error of all terms of at most 1.5·|m|·u (m in base "e"),
        seen once carries are merged: 9e-6 for m = 100 in float32, 0.9 % for m = 1e5. A kernel that scales its
        scores by log2 e has made a like error in each. m overflows above 2.3e38 in float32.

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
