"""Binary floating-point formats, and rounding to them bit for bit."""

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from softcarry.errors import OptionError
from softcarry.numerics._codes import decode, encode
from softcarry.numerics._floats import as_float_array, draw_seed

if TYPE_CHECKING:
    from softcarry.numerics._rounding import Rounding

RoundingMode = Literal["nearest-even", "nearest-away", "toward-zero", "up", "down", "stochastic"]


@dataclass(frozen=True)
class FloatFormat:
    """A binary floating-point format with subnormals, a sign, and the IEEE 754 layout of its fields.

    Parameters
    ----------
    name : str
        What the format is called in messages.
    exponent_bits, mantissa_bits : int
        Widths of the stored fields, 2 to 11 and 1 to 52; ``mantissa_bits`` is t, the precision is t + 1.
    has_infinity : bool
        True if the all-ones exponent holds infinity and NaN, as in IEEE 754. False for the "FN" layout of
        the OCP formats: no infinity, NaN only where all exponent and mantissa bits are ones, and the rest
        of that binade holds finite numbers; at most 10 exponent bits, or float64 could not hold it.

    Raises
    ------
    OptionError
        A width lies outside what float64 can emulate.

    References
    ----------
    IEEE Std 754-2019, section 3.4; OCP 8-bit Floating Point Specification (OFP8) 1.0, 2023, section 5.

    Examples
    --------
    >>> import softcarry as sc
    >>> bfloat16 = sc.numerics.formats["bfloat16"]
    >>> bfloat16.drop_index
    256
    >>> float(bfloat16.round(257.0))
    256.0
    """

    name: str
    exponent_bits: int
    mantissa_bits: int
    has_infinity: bool = True

    def __post_init__(self) -> None:
        widest = 11 if self.has_infinity else 10
        whole = type(self.exponent_bits) is int and type(self.mantissa_bits) is int
        if not whole or not 2 <= self.exponent_bits <= widest or not 1 <= self.mantissa_bits <= 52:
            msg = (
                f"a FloatFormat {'with' if self.has_infinity else 'without'} infinity has 2 to {widest} "
                "exponent bits and 1 to 52 mantissa bits (it is emulated in float64); got "
                f"{self.exponent_bits!r} and {self.mantissa_bits!r}: choose widths in that range"
            )
            raise OptionError(msg)

    @property
    def bias(self) -> int:
        """Exponent bias, 2^(exponent_bits − 1) − 1."""
        return 2 ** (self.exponent_bits - 1) - 1

    @property
    def bits(self) -> int:
        """Width of the format in bits, sign included."""
        return 1 + self.exponent_bits + self.mantissa_bits

    @property
    def unit_roundoff(self) -> float:
        """Unit roundoff u = 2^−(t+1), the largest relative error of rounding a normal number to nearest."""
        return math.ldexp(1.0, -(self.mantissa_bits + 1))

    @property
    def drop_index(self) -> int:
        """2^(t+1): in a sequential sum of equal terms, those after this many are lost."""
        return 2 ** (self.mantissa_bits + 1)

    @property
    def smallest_normal(self) -> float:
        """The smallest positive normal number."""
        return math.ldexp(1.0, 1 - self.bias)

    @property
    def smallest_subnormal(self) -> float:
        """The smallest positive number."""
        return math.ldexp(1.0, 1 - self.bias - self.mantissa_bits)

    @property
    def largest(self) -> float:
        """The largest finite number."""
        if self.has_infinity:
            return math.ldexp(2.0 - 2.0**-self.mantissa_bits, self.bias)
        return math.ldexp(2.0 - 2.0 ** (1 - self.mantissa_bits), self.bias + 1)

    def holds(self, other: "FloatFormat") -> bool:
        """Whether every finite number of ``other`` is a number of this format.

        Examples
        --------
        >>> from softcarry.numerics import get_format
        >>> get_format("float32").holds(get_format("bfloat16"))
        True
        >>> get_format("float16").holds(get_format("bfloat16"))
        False
        """
        return (
            self.mantissa_bits >= other.mantissa_bits
            and self.smallest_subnormal <= other.smallest_subnormal
            and self.largest >= other.largest
        )

    def rounding(self, mode: RoundingMode = "nearest-even", saturate: bool = False) -> "Rounding":
        """Give what a compiled loop needs to round to this format, as plain numbers; cached.

        Parameters
        ----------
        mode : str
            As in `round`.
        saturate : bool
            As in `round`.

        Returns
        -------
        Rounding
            A named tuple for the functions of ``softcarry.numerics._rounding``.

        Raises
        ------
        OptionError
            Unknown mode.
        """
        if not isinstance(mode, str) or mode not in get_args(RoundingMode):
            msg = f"unknown rounding mode {mode!r}: choose one of {', '.join(get_args(RoundingMode))}"
            raise OptionError(msg)
        from softcarry.numerics._rounding import rounding_to

        return rounding_to(self, mode, bool(saturate))

    def round(
        self,
        x: ArrayLike,
        mode: RoundingMode = "nearest-even",
        saturate: bool = False,
        rng: "np.random.Generator | int | None" = None,
    ) -> Any:
        """Round to the format, once, bit for bit.

        Parameters
        ----------
        x : array_like, any shape
            float64, float32, float16, bfloat16 or another format of ml_dtypes, Python floats, or what
            ``numpy.asarray`` turns into these (torch CPU tensors); integers up to 2^53 in magnitude.
        mode : {"nearest-even", "nearest-away", "toward-zero", "up", "down", "stochastic"}
            Ties of the nearest modes go to the even neighbour or away from zero; up and down are towards
            +∞ and −∞; stochastic goes to either neighbour with the probability that makes the mean exact
            (to a multiple of 2^−53).
        saturate : bool
            True clamps everything beyond `largest`, infinity too, to ± `largest`. False overflows as
            IEEE 754 does: to infinity, but to ± `largest` where the mode rounds towards zero; a format
            without infinity has NaN in its place.
        rng : numpy.random.Generator or int
            Source or seed of stochastic rounding, which needs one; other modes do not read it.

        Returns
        -------
        ndarray or scalar
            float64, or float32 if ``x`` is float32 and float32 holds the format; the shape of ``x``, a
            NumPy scalar for a scalar. −0 and NaN come back as they are; an empty array comes back empty.

        Raises
        ------
        OptionError
            Unknown mode, or stochastic without a source of random numbers.
        DTypeError
            ``x`` is not made of real numbers that float64 can hold.

        References
        ----------
        IEEE Std 754-2019, sections 4.3 and 7.4. Connolly, Higham and Mary, Stochastic rounding and its
        probabilistic backward error analysis, SIAM J. Sci. Comput. 43(1), 2021, section 2 (mode 1).

        Examples
        --------
        >>> from softcarry.numerics import formats
        >>> formats["E4M3FN"].round([0.3, 464.0, 465.0]).tolist()
        [0.3125, 448.0, nan]
        >>> formats["E4M3FN"].round([465.0, float("-inf")], saturate=True).tolist()
        [448.0, -448.0]
        >>> float(formats["float16"].round(0.1, "up"))
        0.10003662109375
        """
        rounding = self.rounding(mode, saturate)
        values, from_float32 = as_float_array(x)
        seed = draw_seed(rng) if mode == "stochastic" else np.uint64(0)
        rounded = np.empty_like(values)
        if values.size:
            from softcarry.numerics._rounding import round_all

            round_all(values.reshape(-1), rounding, seed, rounded.reshape(-1))
        if from_float32 and formats["float32"].holds(self):
            rounded = rounded.astype(np.float32)
        return rounded[()]

    def encode(self, values: ArrayLike) -> NDArray[np.unsignedinteger]:
        """Encode numbers of the format as bit patterns.

        Parameters
        ----------
        values : array_like, any shape
            Numbers that the format holds, infinity included if it has one; what `round` returns.

        Returns
        -------
        ndarray
            Codes of the same shape, in the narrowest unsigned integer dtype of at least `bits` bits. NaN
            becomes the quiet NaN of its sign (all ones in a format without infinity).

        Raises
        ------
        OptionError
            A value is not a number of the format.
        DTypeError
            As `round`.

        Examples
        --------
        >>> from softcarry.numerics import formats
        >>> [hex(code) for code in formats["bfloat16"].encode([1.0, -0.0, float("inf")])]
        ['0x3f80', '0x8000', '0x7f80']
        """
        return encode(self, as_float_array(values)[0])

    def decode(self, codes: ArrayLike) -> NDArray[np.float64]:
        """Decode bit patterns to the numbers that they stand for, exactly.

        Parameters
        ----------
        codes : array_like of integers, any shape
            0 to 2^bits − 1.

        Returns
        -------
        ndarray
            float64, the same shape; ±inf and NaN where the code means them.

        Raises
        ------
        DTypeError
            Codes are not integers.
        OptionError
            A code has more than `bits` bits.

        Examples
        --------
        >>> from softcarry.numerics import formats
        >>> formats["E5M2"].decode([0x00, 0x01, 0x3C, 0x7B, 0x7C, 0x80]).tolist()
        [0.0, 1.52587890625e-05, 1.0, 57344.0, inf, -0.0]
        """
        return decode(self, np.asarray(codes))


class UnknownFormatError(OptionError, KeyError):
    """A name that no format has; a KeyError too, so that ``in`` and ``get`` of the table work."""

    __str__ = Exception.__str__  # KeyError would show the repr of the message


class FormatTable(Mapping[str, FloatFormat]):
    """The named formats, read-only; a lookup ignores case.

    ======== ======== == ============ ========================= ===================
    name     exponent t  largest      NumPy or ml_dtypes        torch
    ======== ======== == ============ ========================= ===================
    float64  11       52 1.8e308      numpy.float64             torch.float64
    float32  8        23 3.4e38       numpy.float32             torch.float32
    TF32     8        10 3.4e38       none: bits of a float32   none
    float16  5        10 65504        numpy.float16             torch.float16
    bfloat16 8        7  3.4e38       ml_dtypes.bfloat16        torch.bfloat16
    E5M2     5        2  57344        ml_dtypes.float8_e5m2     torch.float8_e5m2
    E4M3     4        3  240          ml_dtypes.float8_e4m3     none
    E4M3FN   4        3  448          ml_dtypes.float8_e4m3fn   torch.float8_e4m3fn
    E3M4     3        4  15.5         ml_dtypes.float8_e3m4     none
    ======== ======== == ============ ========================= ===================

    E4M3 has the layout of IEEE 754 and infinity; E4M3FN is the one of the OCP specification, with neither.

    Raises
    ------
    OptionError
        An unknown name; the error is a KeyError too.

    Examples
    --------
    >>> from softcarry.numerics import formats
    >>> formats["BFLOAT16"].mantissa_bits
    7
    >>> "bf16" in formats
    False
    """

    def __init__(self, entries: tuple[FloatFormat, ...]) -> None:
        self._entries = {entry.name: entry for entry in entries}
        self._by_lower_name = {entry.name.lower(): entry for entry in entries}

    def __getitem__(self, name: str) -> FloatFormat:
        entry = self._by_lower_name.get(name.lower()) if isinstance(name, str) else None
        if entry is None:
            msg = (
                f"unknown format {name!r}: choose one of {', '.join(self)}, or any widths as "
                "e5m10 ('e4m3fn' for the layout without infinity)"
            )
            raise UnknownFormatError(msg)
        return entry

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def __repr__(self) -> str:
        return f"formats({', '.join(self)})"


formats = FormatTable(
    (
        FloatFormat("float64", 11, 52),
        FloatFormat("float32", 8, 23),
        FloatFormat("TF32", 8, 10),
        FloatFormat("float16", 5, 10),
        FloatFormat("bfloat16", 8, 7),
        FloatFormat("E5M2", 5, 2),
        FloatFormat("E4M3", 4, 3),
        FloatFormat("E4M3FN", 4, 3, has_infinity=False),
        FloatFormat("E3M4", 3, 4),
    )
)


def get_format(name_or_format: str | FloatFormat) -> FloatFormat:
    """Look up the format of a name, or of widths written as ``"e5m10"``.

    Parameters
    ----------
    name_or_format : str or FloatFormat
        A name of `formats`, or ``"eXmY"`` for X exponent and Y mantissa bits in the layout of IEEE 754, with
        ``"fn"`` behind it for the layout without infinity. Case is ignored.

    Returns
    -------
    FloatFormat
        The named one where the widths have a name: ``"e8m7"`` is bfloat16.

    Raises
    ------
    OptionError
        Unknown name, or widths that `FloatFormat` refuses.

    Examples
    --------
    >>> from softcarry.numerics import get_format
    >>> get_format("e8m7").name
    'bfloat16'
    >>> get_format("e6m9").drop_index
    1024
    """
    if isinstance(name_or_format, FloatFormat):
        return name_or_format
    widths = re.fullmatch(r"e(\d{1,3})m(\d{1,3})(fn)?", str(name_or_format).lower())
    if widths is None or name_or_format in formats:
        return formats[name_or_format]
    given = FloatFormat(str(name_or_format).upper(), int(widths[1]), int(widths[2]), widths[3] is None)
    for entry in formats.values():
        if replace(entry, name=given.name) == given:
            return entry
    return given
