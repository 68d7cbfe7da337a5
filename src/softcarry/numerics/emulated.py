"""An attention kernel whose every numerical choice is an argument."""

import inspect
import math
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np

from softcarry.errors import OptionError
from softcarry.numerics import _emulated_gate as gate
from softcarry.numerics._arguments import one_of, whole
from softcarry.numerics._formats import FloatFormat, RoundingMode, formats, get_format

if TYPE_CHECKING:
    from numpy.typing import NDArray

Format = str | FloatFormat
Order = Literal["forward", "backward"] | tuple[Literal["permuted"], int]
Rescale = (
    Literal["every-block", "on-growth", "two-pass"]
    | tuple[Literal["lazy"], float]
    | tuple[Literal["bound"], float]
)
Empty = Literal["zero", "nan", "mean"]


class EmulatedKernel:
    r"""Attention computed as a blocked kernel with these formats, this blocking and these rules computes it.

    The key blocks of a row are visited one after the other, and each updates the carry (m, l, o) once:

    .. math:: m' = \max(m, \max_j s_j), \quad p_j = e^{s_j - m'}, \quad
              l' = \mathrm{fl}_l(l e^{m - m'} + \sum_j p_j), \quad
              o' = \mathrm{fl}_o(o e^{m - m'} + \sum_j p_j v_j)

    with one rounding an update to the format in which l or o is kept. Every operation is carried out in
    float64 and its result rounded once to the format that keeps it. What is emulated is the carry and the
    roundings around it: the products q·k are summed in float64 and rounded once, so the accumulation
    inside the first matrix product is not modelled, and exp and the rescale factor are float64's. When all
    formats are float64 the result is attention in float64.

    Parameters
    ----------
    m_format, l_format, o_format : str or FloatFormat
        Formats in which the running maximum, the running sum and the running output are kept between updates.
    p_format : str or FloatFormat
        Format to which a weight is rounded before it multiplies its value.
    score_format : str or FloatFormat
        Format of a score after each of its three steps: q·k, times scale, plus additive mask.
    output_format : str or FloatFormat, optional
        Format to which o / l is rounded; by default that of q's dtype.
    block_format : str or FloatFormat
        Format in which the sums over the keys of one block are kept, in key order, one rounding a key.
    key_block : int
        Keys summarised at once, Bc.
    splits : int
        Each split is a contiguous range of ⌈tk / splits⌉ keys, rounded up to whole key blocks, so that the
        last splits may be short or empty. Each has a carry of its own; they are merged in the order of their
        keys, with one rounding of l and o a merge.
    order : "forward", "backward" or ("permuted", seed)
        Order in which the key blocks are visited inside each split; a permutation of all block numbers is
        drawn by NumPy's ``default_rng(seed)``, once for all rows.
    rescale : "every-block", "on-growth", ("lazy", threshold), "two-pass" or ("bound", value)
        Where m comes from. "every-block": the running maximum, and the carry is multiplied at every block.
        "on-growth": it is multiplied only when m has grown; the factor is 1 otherwise, so the bits are those
        of "every-block". "lazy": m stays while the maximum exceeds it by no more than ``threshold`` (natural
        logarithm), so weights may reach e^threshold. "two-pass": the true maximum of the split is found
        first. "bound": m is ``value`` from the start and never moves; ("bound", 0.0) is softmax without
        subtracting a maximum.
    rounding : str
        Rounding mode of the updates and merges of l and o: "nearest-even", "nearest-away", "toward-zero",
        "up", "down" or "stochastic". Everything else rounds to nearest, ties to even.
    fill : "select", "-inf" or float
        What becomes of a masked key (False, beyond the causal diagonal, or additive −inf). "select": it never
        takes part. "-inf" or a finite number: its score is replaced by that, and it takes part.
    empty : "zero", "nan" or "mean"
        What a row returns whose l is 0: 0, NaN, or the mean of all V of its head. l is 0 for a row without
        keys under fill "select" or "-inf", and for a row whose weights have all underflowed.
    seed : int
        Of stochastic rounding. The same seed gives the same bits.
    l_from : "unrounded" or "rounded"
        Whether l sums the weights before or after they are rounded to ``p_format``.
    guard : bool
        True: where m is −inf, 0 is subtracted in its place. False: exp(−inf − (−inf)) makes NaN of every row
        that meets a fully masked block before its first key.
    lse_base : "e" or "2"
        Logarithm of the second result.
    lse_empty : float
        The second result of a row whose l is 0.

    Raises
    ------
    OptionError
        An argument is outside the values above.

    See Also
    --------
    softcarry.Carry : the exact carry, mergeable.
    softcarry.numerics.running_sum : the same question for a plain sum.

    Notes
    -----
    A live NaN, or a live score of +inf, makes NaN of exactly the rows that attend to it; under fill "select"
    nothing behind a mask reaches a result. A live score of −inf has weight 0. Results do not depend on the
    number of threads. exp is the C library's, whose last bit may differ between platforms.

    References
    ----------
    M. Milakov and N. Gimelshein, Online normalizer calculation for softmax, 2018, arXiv:1805.02867,
    algorithm 3. T. Dao, FlashAttention-2, 2023, arXiv:2307.08691, section 3.1 (the unnormalised o).
    Lazy rescaling is FlashAttention-4's.

    Examples
    --------
    The drop index of bfloat16 is 256, and 1024 equal scores leave l there when every key is an update:

    >>> import numpy as np
    >>> import softcarry as sc
    >>> q, k = np.zeros((1, 1, 1, 4)), np.zeros((1, 1, 1024, 4))
    >>> v = np.zeros((1, 1, 1024, 1))
    >>> v[0, 0, 0] = 1  # the output is 1 / l
    >>> output, lse = sc.numerics.EmulatedKernel(l_format="bfloat16", key_block=1)(q, k, v)
    >>> float(1 / output.item()), float(np.exp(lse).round().item())
    (256.0, 256.0)
    >>> output, lse = sc.numerics.EmulatedKernel(l_format="bfloat16", key_block=4)(q, k, v)
    >>> float(1 / output.item())
    1024.0
    """

    def __init__(
        self,
        *,
        m_format: Format = "float32",
        l_format: Format = "float32",
        o_format: Format = "float32",
        p_format: Format = "float32",
        score_format: Format = "float32",
        output_format: Format | None = None,
        block_format: Format = "float32",
        key_block: int = 128,
        splits: int = 1,
        order: Order = "forward",
        rescale: Rescale = "every-block",
        rounding: RoundingMode = "nearest-even",
        fill: Literal["select", "-inf"] | float = "select",
        empty: Empty = "zero",
        seed: int = 0,
        l_from: Literal["unrounded", "rounded"] = "unrounded",
        guard: bool = True,
        lse_base: Literal["e", "2"] = "e",
        lse_empty: float = -math.inf,
    ) -> None:
        one_of("rounding", rounding, get_args(RoundingMode))
        one_of("empty", empty, get_args(Empty))
        one_of("l_from", l_from, ("unrounded", "rounded"))
        one_of("lse_base", lse_base, ("e", "2"))
        self.m_format = get_format(m_format)
        self.l_format = get_format(l_format)
        self.o_format = get_format(o_format)
        self.p_format = get_format(p_format)
        self.score_format = get_format(score_format)
        self.output_format = None if output_format is None else get_format(output_format)
        self.block_format = get_format(block_format)
        self.key_block = whole("key_block", key_block, 1)
        self.splits = whole("splits", splits, 1)
        self.order: Order = gate.visiting_order(order)
        self.rescale: Rescale = gate.rescale_rule(rescale)
        self.rounding: RoundingMode = rounding
        self.fill: Literal["select", "-inf"] | float = gate.fill_value(fill)
        self.empty: Empty = empty
        self.seed = whole("seed", seed, 0)
        self.l_from = l_from
        self.guard = bool(guard)
        self.lse_base = lse_base
        self.lse_empty = gate.number("lse_empty", lse_empty)

    def __repr__(self) -> str:
        """Write the call that makes an equal kernel, without the arguments that are the defaults."""
        defaults = {
            name: parameter.default for name, parameter in inspect.signature(type(self)).parameters.items()
        }
        said = []
        for name, default in defaults.items():
            value = _spelling(getattr(self, name))
            if value != default:
                written = f"float({str(value)!r})" if value in (math.inf, -math.inf) else repr(value)
                said.append(f"{name}={written}")
        return f"{type(self).__name__}({', '.join(said)})"

    def split_starts(self, tk: int) -> list[int]:
        """Give the first key of every split that has keys."""
        length = self._split_blocks(tk) * self.key_block
        return list(range(0, tk, length)) if tk else []

    def carry_updates(self, tk: int) -> int:
        """How often one carry is updated in a row of ``tk`` keys: the blocks of the longest split.

        This is n/Bc for one split. Merges come on top, one a further split. Blocks without a live key,
        which a kernel may skip, are counted.

        Examples
        --------
        >>> import softcarry as sc
        >>> sc.numerics.EmulatedKernel(key_block=128, splits=4).carry_updates(8192)
        16
        """
        return self._split_blocks(whole("tk", tk, 0))

    def _split_blocks(self, tk: int) -> int:
        return -(-tk // (self.key_block * self.splits))

    def __call__(
        self,
        q: "NDArray[Any]",
        k: "NDArray[Any]",
        v: "NDArray[Any]",
        *,
        mask: "NDArray[Any] | None" = None,
        causal: bool = False,
        scale: float | None = None,
    ) -> "tuple[NDArray[Any], NDArray[Any]]":
        """Attend.

        Parameters
        ----------
        q : (b, h, tq, d) NumPy array of float64, float32, float16 or ml_dtypes.bfloat16
        k, v : (b, kv_heads, tk, d) and (b, kv_heads, tk, dv) arrays of the same dtype
            h is a multiple of kv_heads; query head i attends to key head i // (h / kv_heads). tk may be 0.
        mask : array, optional
            Broadcasts to (b, h, tq, tk). Bool: True = attend. Float: added to the scaled scores, and −inf
            masks as False does.
        causal : bool
            Query i attends to keys up to i + tk − tq: the last query sees the last key.
        scale : float, optional
            Of the scores; 1/√d by default.

        Returns
        -------
        output : (b, h, tq, dv) array of q's dtype
            o / l, rounded once, from float64 (twice if ``output_format`` is another than q's).
        lse : (b, h, tq) array, float32, or float64 when ``l_format`` is float64
            m + ln l, in base 2 if ``lse_base`` says so.

        Raises
        ------
        ShapeError, DTypeError, OptionError
            Before any work.
        """
        arrays = gate.inputs(q, k, v, mask, scale)
        m, running_sum, o = self._carries(arrays, _bottom_right(causal))
        empty = running_sum == 0.0
        # NaN and infinity are results here, and no reason to warn.
        with np.errstate(all="ignore"):
            output = o / running_sum[..., None]
            lse = m + np.log(running_sum)
            if self.lse_base == "2":
                lse = lse * math.log2(math.e)
            if empty.any():
                output[empty] = self._empty_rows(v, output)[empty]
            lse = np.where(empty, self.lse_empty, lse)
            if self.output_format is not None:
                output = self.output_format.round(output)
            output = get_format(q.dtype.name).round(output).astype(q.dtype)
            lse_dtype = np.float64 if self.l_format == get_format("float64") else np.float32
            return output, lse.astype(lse_dtype)

    def _empty_rows(self, v: "NDArray[Any]", output: "NDArray[np.float64]") -> "NDArray[np.float64]":
        if self.empty == "mean":
            means = v.astype(np.float64).sum(axis=2) / np.float64(v.shape[2])
            means = np.repeat(means, output.shape[1] // v.shape[1], axis=1)
            return np.broadcast_to(means[:, :, None], output.shape)
        return np.full_like(output, 0.0 if self.empty == "zero" else math.nan)

    def _carries(
        self, arrays: gate.Inputs, causal: bool
    ) -> "tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]":
        """m, l (b, h, tq) and o (b, h, tq, dv) of every row, in float64."""
        # Numba takes half a second to import: only a kernel that is called needs it.
        from softcarry.numerics import _recurrence as recurrence
        from softcarry.numerics._emulated_loop import all_carries

        rule, argument = self.rescale if isinstance(self.rescale, tuple) else (self.rescale, 0.0)
        origins = {"two-pass": recurrence.TRUE_MAXIMUM, "bound": recurrence.KNOWN_BOUND}
        rules = recurrence.Recurrence(
            maximum=origins.get(rule, recurrence.RUNNING),
            threshold=argument if rule == "lazy" else 0.0,
            bound=float(self.m_format.round(argument)) if rule == "bound" else 0.0,
            key_block=self.key_block,
            fill=self._masked_score(),
            select=self.fill == "select",
            guard=self.guard,
            sum_rounded=self.l_from == "rounded",
            seed=self.seed % 2**63,
        )
        roundings = recurrence.Roundings(
            score=self.score_format.rounding(),
            p=self.p_format.rounding(),
            block=self.block_format.rounding(),
            m=self.m_format.rounding(),
            running_sum=self.l_format.rounding(self.rounding),
            o=self.o_format.rounding(self.rounding),
        )
        blocks, pointer = self._visits(arrays.v.shape[2])
        m, running_sum, o = all_carries(arrays, causal, blocks, pointer, rules, roundings)
        shape = arrays.q.shape[:3]
        return m.reshape(shape), running_sum.reshape(shape), o.reshape(*shape, o.shape[2])

    def _masked_score(self) -> float:
        if isinstance(self.fill, str):
            return -math.inf
        return float(self.score_format.round(self.fill))

    def _visits(self, tk: int) -> "tuple[NDArray[np.int64], NDArray[np.int64]]":
        """Block numbers in visiting order, split by split, and where each split begins among them."""
        blocks = np.arange(-(-tk // self.key_block), dtype=np.int64)
        in_split = blocks // max(self._split_blocks(tk), 1)
        if self.order == "backward":
            blocks = blocks[::-1]
        elif isinstance(self.order, tuple):
            blocks = np.random.default_rng(self.order[1]).permutation(blocks)
        blocks = blocks[np.argsort(in_split[blocks], kind="stable")]
        pointer = np.searchsorted(in_split, np.arange(self.splits + 1)).astype(np.int64)
        return np.ascontiguousarray(blocks), pointer


def _spelling(value: Any) -> Any:
    """How a value is written in a call: a format that has a name by that name."""
    if isinstance(value, FloatFormat):
        return value.name if formats.get(value.name) == value else value
    return value


def _bottom_right(causal) -> bool:
    # Any other string would be true, and silently give the one alignment there is.
    if isinstance(causal, bool | np.bool_) or (isinstance(causal, str) and causal == "bottom-right"):
        return bool(causal)
    msg = f"causal is True (bottom-right) or False here, got {causal!r}: give any other alignment as a mask"
    raise OptionError(msg)
