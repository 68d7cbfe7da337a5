"""The other form of the running output: normalised at every step, as in the first FlashAttention."""

import math
from dataclasses import dataclass

from softcarry._arrays import Array, array_namespace, quiet, select
from softcarry.carry import _algebra
from softcarry.carry._checks import Base, matched, require_base
from softcarry.carry.state import Carry
from softcarry.errors import OptionError


@dataclass(frozen=True, eq=False)
class NormalisedCarry:
    """The carry in the form of the first FlashAttention: the output is kept normalised at every step.

    Every merge multiplies by the old l, rescales, adds, and divides by the new l: a division a step that the
    unnormalised form of `softcarry.Carry` saves. Both forms are exact in real arithmetic; this one adds
    at most 2·u a merge, relative to Σ p·|v|, to the rounding error of the output.

    Start from `from_carry` of an empty carry or of a first block. The rules are those of `softcarry.Carry`.

    Parameters
    ----------
    m, l : array (...,)
    output : array (..., dv)
        Σ e^(s − m)·v / l; 0 for an empty row.
    base : "e" or "2"

    References
    ----------
    Dao, Fu, Ermon, Rudra and Ré, FlashAttention, arXiv:2205.14135, 2022, Algorithm 1, line 12.

    Examples
    --------
    >>> import numpy as np
    >>> import softcarry as sc
    >>> scores, values = np.array([2.0, 5.0, 1.0, 7.0]), np.array([[1.0], [2.0], [3.0], [4.0]])
    >>> c = sc.NormalisedCarry.from_carry(sc.Carry.of(scores[:1], values[:1]))
    >>> for j in range(1, 4):
    ...     c = c.absorb(scores[j : j + 1], values[j : j + 1])
    >>> round(float(c.output[0]), 4)
    3.7437
    """

    m: Array
    l: Array
    output: Array
    base: Base = "e"

    def __post_init__(self) -> None:
        for name, array in matched(m=self.m, l=self.l, output=self.output).items():
            object.__setattr__(self, name, array)
        object.__setattr__(self, "base", require_base(self.base))

    @classmethod
    def from_carry(cls, carry: Carry) -> "NormalisedCarry":
        """Return a carry in this form.

        Raises
        ------
        OptionError
            If it is no `softcarry.Carry`, or holds no values.
        """
        if not isinstance(carry, Carry):
            msg = f"from_carry takes a Carry, got {type(carry).__name__}: make one with Carry.of"
            raise OptionError(msg)
        return cls(carry.m, carry.l, carry.output, carry.base)

    @property
    def lse(self) -> Array:
        """The natural log-sum-exp (...,), m + ln l, whatever the base; −inf for an empty row."""
        return Carry(self.m, self.l, None, self.base).lse

    def absorb(
        self, scores: Array, values: Array, *, bound: Array | float | None = None
    ) -> "NormalisedCarry":
        """Take one more block of keys in; see `Carry.absorb`."""
        return self.from_carry(self.unnormalised().absorb(scores, values, bound=bound))

    def merge(self, *others: "NormalisedCarry") -> "NormalisedCarry":
        """Combine with carries of disjoint key sets; see `Carry.merge`."""
        for other in others:
            if not isinstance(other, NormalisedCarry):
                msg = (
                    f"merge takes carries of this form, got {type(other).__name__}: "
                    f"convert it by NormalisedCarry.from_carry"
                )
                raise OptionError(msg)
        return self.from_carry(self.unnormalised().merge(*(other.unnormalised() for other in others)))

    def __or__(self, other: "NormalisedCarry") -> "NormalisedCarry":
        return self.merge(other) if isinstance(other, NormalisedCarry) else NotImplemented

    def unnormalised(self) -> Carry:
        """Return the carry with o = output·l."""
        xp = array_namespace(self.m, self.l, self.output)
        with quiet(xp):
            weightless = (self.m == -math.inf) | (self.l == 0)
            total = select(xp, weightless, 1.0, self.l)
            o = _algebra.clear_empty(xp, self.m, self.output) * xp.expand_dims(total, axis=-1)
        return Carry(self.m, self.l, o, self.base)
