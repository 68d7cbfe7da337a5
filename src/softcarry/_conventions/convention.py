"""What one library means by (output, lse), and how that becomes a carry and back."""

import math
from dataclasses import dataclass
from typing import Literal

from softcarry._arrays import (
    Array,
    DType,
    Namespace,
    array_namespace,
    convert,
    known,
    quiet,
    select,
    working_dtype,
)
from softcarry._conventions import checks, layouts, packed
from softcarry.carry.state import Carry

_LN2 = math.log(2.0)


@dataclass(frozen=True, kw_only=True)
class Convention:
    """The convention of one library, or of one version or mode of it, for the pair (output, lse).

    Parameters
    ----------
    name : str
        Key of the table.
    library, versions : str
        Whose arrays these are: the function, and the versions or options for which the entry holds.
    base : {"e", "2"}
        Base of the lse's logarithm.
    output_layout, lse_layout : str
        One letter an axis: ``n`` splits or ranks, ``b`` batch, ``g`` groups, ``h`` heads, ``t`` queries or
        packed tokens, ``s`` positions in a sequence, ``d`` value dim, ``1`` an axis of size one, ``...`` any
        leading axes.
    lse_dtype : {"float32", "float32 or float64", "output", "any"}
        What the library stores the lse in; "float32 or float64" is float64 for a float64 output, "output" is
        the dtype of the output, whichever that is.
    empty : tuple of float
        Values of the lse that are read as an empty row. 0.0, +inf and NaN can also be the lse of a live row,
        see `decode`.
    empty_below : float or None
        A finite lse at or below this is an empty row: the library starts its maximum at a finite number.
    empty_written : float
        The lse of an empty row that `encode` writes; for a pair, the m.
    padding : int, "any" or None
        The lse has as many queries as a multiple of this, or any number from that of the output on.
    padding_value : float
        What `encode` writes into the padding. What the padding holds on the way in never matters.
    normalised : bool
        Whether the output is o / l, or o itself.
    epsilon : float
        What the library adds to l before it divides.
    kind : {"lse", "pair (l, m)", "pair (m, l)", "mixed"}
        Whether one number a row comes back, or both, or one from which neither can be had.
    source : str
        The file, pull request or issue that says so.
    note : str
        What a user must know beyond the other fields.
    related : tuple of str
        Entries that are easily taken for this one.
    """

    name: str
    library: str
    versions: str
    base: Literal["e", "2"]
    output_layout: str
    lse_layout: str
    lse_dtype: Literal["float32", "float32 or float64", "output", "any"] = "float32"
    empty: tuple[float, ...] = (-math.inf,)
    empty_below: float | None = None
    empty_written: float = -math.inf
    padding: int | Literal["any"] | None = None
    padding_value: float = math.inf
    normalised: bool = True
    epsilon: float = 0.0
    kind: Literal["lse", "pair (l, m)", "pair (m, l)", "mixed"] = "lse"
    source: str
    note: str = ""
    related: tuple[str, ...] = ()

    def decode(
        self,
        output: Array,
        lse: Array | tuple[Array, Array],
        *,
        empty: Array | None = None,
        cu_seqlens: Array | list[int] | None = None,
    ) -> Carry:
        """Return the carry of a library's result.

        Where the library drops m and l, the carry is (m = lse, l = 1, o = output): every later output and lse
        is right, but log-probabilities are only as exact as the lse was.

        Parameters
        ----------
        output : array
            In `output_layout`, any real floating dtype. It is never changed.
        lse : array, or pair of arrays
            In `lse_layout`; for a pair, (l, m) or (m, l) as `kind` says. Views and strides are welcome.
        empty : boolean array, optional
            In the layout of the lse: the rows known to be empty. It settles what the values leave open, and
            takes the place of the convention's own reading; an lse or m of −inf, or l = 0, is empty all the
            same.
        cu_seqlens : array or list of int, optional
            Cumulated lengths of the packed sequences; needed where the lse is kept per sequence (axis ``s``),
            refused elsewhere.

        Returns
        -------
        Carry
            m and l of shape (batch, heads, queries), or (heads, tokens) for packed sequences; where there are
            splits and groups, (splits, batch, groups, heads, queries). o with the value dim last. In the
            base of the library; float32, or float64 if an input is.

        Raises
        ------
        ShapeError
            If a shape does not fit the layout. Where two axes have the same length, a transposed lse cannot
            be told from a right one.
        DTypeError
            If an array is not real floating point, or an lse comes in fewer bits than the library gives it.
        OptionError
            If the convention cannot be undone, or ``cu_seqlens`` is missing or out of place.

        Notes
        -----
        Empty rows become the identity, whatever the library left in their output. Three values are ambiguous:

        - 0.0 is read as empty only if the whole output row is 0 (a live row can have lse 0, and a live row of
          zero values then counts as empty);
        - +inf is read as empty unless the output row holds a NaN, since FlashAttention 2 writes +inf also
          for a row whose sum is NaN; such a row stays live, and NaN reaches what depends on it;
        - NaN, in the conventions that list it, is always read as empty: a live NaN is lost there.

        A NaN or +inf that the convention does not list stays in the carry and reaches exactly the rows that
        depend on it.

        Examples
        --------
        >>> import numpy as np
        >>> import softcarry as sc
        >>> out, lse = np.zeros((5, 2, 8), np.float32), np.full((5, 2), -np.inf, np.float32)
        >>> carry = sc.conventions["flashinfer"].decode(out, lse)
        >>> carry.m.shape, carry.o.shape, carry.base
        ((2, 5), (2, 5, 8), '2')
        """
        checks.require_known(self, "decoded")
        statistics = checks.statistics(self, lse)
        checks.require_output(self, output)
        xp = array_namespace(output, *statistics, empty)
        lengths = checks.sequence_lengths(self, cu_seqlens, output.shape[0])
        for statistic in statistics:
            checks.require_statistic(self, statistic, output, lengths)
        if empty is not None:
            checks.require_mask(empty, statistics[0])

        output = layouts.to_canonical(xp, output, self.output_layout)
        queries = None if self.padding is None else output.shape[-2]

        def to_canonical(statistic: Array) -> Array:
            if lengths is not None:
                return packed.pack(xp, statistic, lengths)
            statistic = layouts.to_canonical(xp, statistic, self.lse_layout)
            return statistic if queries is None else statistic[..., :queries]

        statistics = [to_canonical(statistic) for statistic in statistics]
        mask = None if empty is None else to_canonical(empty)
        with quiet(xp):
            if self.kind != "lse":
                return self._decode_pair(xp, output, statistics, mask)
            rows = self._empty_rows(xp, output, statistics[0], mask)
            return Carry.from_lse(output, select(xp, rows, -math.inf, statistics[0]), base=self.base)

    def encode(
        self, carry: Carry, *, dtype: DType | None = None, cu_seqlens: Array | list[int] | None = None
    ) -> tuple[Array, Array | tuple[Array, Array]]:
        """Return (output, lse) of a carry as the library has them.

        Parameters
        ----------
        carry : Carry
            In the canonical layout of `decode`, either base.
        dtype : dtype, optional
            Dtype of the output; that of the carry if left out.
        cu_seqlens : array or list of int, optional
            As in `decode`.

        Returns
        -------
        output, lse : array
            In `output_layout` and `lse_layout`; for a pair, lse is a tuple in the order of `kind`. An empty
            row has output 0 and the library's own lse.

        Raises
        ------
        ShapeError
            If the carry has not as many axes as the convention.
        DTypeError
            If the dtype is not real floating point, or not one of the carry's library.
        OptionError
            If the carry is none or has no o, the convention cannot be written, or ``cu_seqlens`` is missing
            or out of place.

        Notes
        -----
        `encode` undoes `decode`: given the dtype of the output, the output and lse of live rows come back
        to the bit. For a normalised pair, m and l do, and the output is within two roundings of the carry's
        dtype. The other way round, output and lse keep their value within one rounding to the dtypes of the
        convention.

        Examples
        --------
        >>> import numpy as np
        >>> import softcarry as sc
        >>> carry = sc.Carry.empty((2, 5), value_dim=8, like=np.float32)
        >>> out, lse = sc.conventions["flash-attn-varlen"].encode(carry)
        >>> out.shape, lse.shape, float(lse[0, 0])
        ((5, 2, 8), (2, 5), inf)
        """
        checks.require_known(self, "encoded")
        checks.require_carry(self, carry)
        xp = array_namespace(carry.m, carry.l, carry.o)
        checks.require_dtype(xp, dtype)
        lengths = checks.sequence_lengths(self, cu_seqlens, carry.m.shape[-1] if carry.m.ndim else 0)
        empty = (carry.m == -math.inf) | (carry.l == 0)
        with quiet(xp):
            output, statistics = self._encode_rows(xp, carry, empty)
            output = convert(xp, output, output.dtype if dtype is None else dtype)
            statistics = [convert(xp, x, self._stored_dtype(xp, output.dtype, x.dtype)) for x in statistics]
        output = layouts.from_canonical(xp, output, self.output_layout)
        if lengths is not None:
            statistics = [packed.unpack(xp, x, lengths, padding=self.padding_value) for x in statistics]
        else:
            statistics = [layouts.from_canonical(xp, self._pad(xp, x), self.lse_layout) for x in statistics]
        return output, statistics[0] if self.kind == "lse" else (statistics[0], statistics[1])

    def _decode_pair(self, xp: Namespace, output: Array, pair: list[Array], mask: Array | None) -> Carry:
        l, m = pair if self.kind == "pair (l, m)" else pair[::-1]
        dtype = working_dtype(xp, l.dtype, m.dtype, output.dtype)
        l, m, output = (convert(xp, array, dtype) for array in (l, m, output))
        rows = (l == 0) | (m == -math.inf)
        if mask is not None:
            rows = rows | mask
        elif self.empty_below is not None:
            rows = rows | (m <= self.empty_below)
        o = output * xp.expand_dims(l + self.epsilon, axis=-1) if self.normalised else output
        return Carry(
            m=select(xp, rows, -math.inf, m),
            l=select(xp, rows, 0.0, l),
            o=select(xp, xp.expand_dims(rows, axis=-1), 0.0, o),
            base=self.base,
        )

    def _encode_rows(self, xp: Namespace, carry: Carry, empty: Array) -> tuple[Array, list[Array]]:
        """Return the output and the lse, or the pair, in canonical layout and in the carry's dtype."""
        if self.kind == "lse":
            lse = carry.lse if self.base == "e" else carry.lse2
            if carry.base == self.base:
                # m + ln 1 is m, except that −0.0 + 0.0 is 0.0.
                lse = xp.where(carry.l == 1, carry.m, lse)
            return carry.output, [select(xp, empty, self.empty_written, lse)]
        m = carry.m if carry.base == self.base else carry.m * (_LN2 if self.base == "e" else 1 / _LN2)
        m = select(xp, empty, self.empty_written, m)
        l = select(xp, empty, 0.0, carry.l)
        output = carry.o
        if self.normalised:
            output = output / xp.expand_dims(select(xp, empty, 1.0, l + self.epsilon), axis=-1)
        return output, [l, m] if self.kind == "pair (l, m)" else [m, l]

    def _empty_rows(self, xp: Namespace, output: Array, lse: Array, mask: Array | None) -> Array:
        """Return which rows the convention calls empty; output and lse in canonical layout."""
        rows = lse == -math.inf
        if mask is not None:
            return rows | mask
        if self.empty_below is not None:
            rows = rows | (lse <= self.empty_below)
        if any(math.isnan(value) for value in self.empty):
            rows = rows | xp.isnan(lse)
        # The output is looked at only where a value needs it: the pass over it is most of the cost.
        if math.inf in self.empty and known(xp.any(lse == math.inf)) is not False:
            rows = rows | ((lse == math.inf) & ~xp.any(xp.isnan(output), axis=-1))
        if 0.0 in self.empty and known(xp.any(lse == 0)) is not False:
            rows = rows | ((lse == 0) & xp.all(output == 0, axis=-1))
        return rows

    def _stored_dtype(self, xp: Namespace, output_dtype: DType, dtype: DType) -> DType:
        if self.lse_dtype == "output":
            return output_dtype
        if self.lse_dtype == "float32 or float64":
            return working_dtype(xp, output_dtype)
        return xp.float32 if self.lse_dtype == "float32" else dtype

    def _pad(self, xp: Namespace, lse: Array) -> Array:
        queries = lse.shape[-1] if lse.ndim else 0
        missing = -queries % self.padding if isinstance(self.padding, int) else 0
        if not missing:
            return lse
        filler = xp.full_like(xp.broadcast_to(lse[..., :1], (*lse.shape[:-1], missing)), self.padding_value)
        return xp.concat([lse, filler], axis=-1)
