"""What a convention refuses, and how it says so: shapes, dtypes and options, before any work."""

from typing import TYPE_CHECKING

import numpy as np

from softcarry._arrays import Array, DType, Namespace, array_namespace, dtype_name, require_floating
from softcarry._conventions import layouts, packed
from softcarry.carry.state import Carry
from softcarry.errors import DTypeError, OptionError, ShapeError

if TYPE_CHECKING:
    from softcarry._conventions.convention import Convention


def require_known(convention: "Convention", done: str) -> None:
    """Refuse a convention that mixes two logarithms in one number."""
    if convention.kind == "mixed":
        msg = (
            f"{convention.name} cannot be {done}: {convention.note}; ask the library for m and l apart, "
            f"or for m + ln l"
        )
        raise OptionError(msg)


def statistics(convention: "Convention", lse: Array | tuple[Array, Array]) -> list[Array]:
    """Return the lse, or the two arrays of the pair, as a list."""
    paired = isinstance(lse, tuple | list)
    got = f"{len(lse)} arrays" if paired else type(lse).__name__
    if convention.kind == "lse":
        if paired:
            msg = f"lse of {convention.name} is one array, got {got}: pass the lse alone"
            raise OptionError(msg)
        return [lse]
    if not paired or len(lse) != 2:
        order = convention.kind.removeprefix("pair ")
        msg = f"{convention.name} gives a pair and no lse, got {got}: pass both, decode(output, {order})"
        raise OptionError(msg)
    return list(lse)


def sequence_lengths(
    convention: "Convention", cu_seqlens: Array | list[int] | None, tokens: int
) -> np.ndarray | None:
    """Return the lengths of the packed sequences for an lse that is kept per sequence, None for any other."""
    per_sequence = "s" in convention.lse_layout.split()
    if per_sequence and cu_seqlens is None:
        msg = (
            f"{convention.name} keeps its lse per sequence, {layouts.words(convention.lse_layout)}: "
            f"pass cu_seqlens, the cumulated lengths of the packed queries{_or_related(convention)}"
        )
        raise OptionError(msg)
    if not per_sequence and cu_seqlens is not None:
        msg = (
            f"lse of {convention.name} is {layouts.words(convention.lse_layout)}, not kept per sequence: "
            f"leave cu_seqlens out{_or_related(convention)}"
        )
        raise OptionError(msg)
    return None if cu_seqlens is None else packed.sequence_lengths(cu_seqlens, tokens=tokens)


def require_output(convention: "Convention", output: Array) -> None:
    """Refuse an output that is missing, not floating point or has another number of axes."""
    array_namespace(output)
    require_floating(f"output of {convention.name}", output.dtype)
    if not layouts.fits(convention.output_layout, output.shape):
        msg = (
            f"output of {convention.name} is {layouts.words(convention.output_layout)}; "
            f"got shape {tuple(output.shape)}: reshape it{_or_related(convention)}"
        )
        raise ShapeError(msg)


def require_dtype(xp: Namespace, dtype: DType | None) -> None:
    """Refuse an output dtype that is not real floating point, or that the library of the carry lacks."""
    if dtype is None:
        return
    try:
        own = xp.zeros((), dtype=dtype).dtype
    except (TypeError, AttributeError) as error:
        library = xp.__name__.removeprefix("array_api_compat.").partition(".")[0]
        msg = f"dtype must be one of {library}, the carry's library, got {dtype!r}: name one of its own"
        raise DTypeError(msg) from error
    require_floating("dtype", own)


def require_carry(convention: "Convention", carry: Carry) -> None:
    """Refuse what is no carry, a carry without o, or one with another number of axes than the convention."""
    if not isinstance(carry, Carry):
        msg = f"encode takes a Carry, got {type(carry).__name__}: make one with Carry.of or Carry.from_lse"
        raise OptionError(msg)
    if carry.o is None:
        msg = (
            f"a carry for {convention.name} needs an o, and this one has none: make it with values, "
            f"as Carry.of(scores, values) does"
        )
        raise OptionError(msg)
    layout = layouts.canonical(convention.output_layout)
    if not layouts.fits(layout, carry.o.shape):
        rows = layout.removesuffix(" d")
        msg = (
            f"a carry for {convention.name} is {layouts.words(rows)}; got shape {tuple(carry.m.shape)}: "
            f"reshape it{_or_related(convention)}"
        )
        raise ShapeError(msg)


def require_statistic(
    convention: "Convention", lse: Array, output: Array, lengths: np.ndarray | None
) -> None:
    """Refuse an lse, l or m that does not belong to the output, or has fewer bits than the library gives."""
    name = convention.name
    array_namespace(lse)
    require_floating(f"lse of {name}", lse.dtype)
    if convention.lse_dtype.startswith("float32") and dtype_name(lse.dtype) not in ("float32", "float64"):
        msg = (
            f"lse of {name} is {convention.lse_dtype}; got {dtype_name(lse.dtype)}, which has lost digits: "
            f"pass it as the library gives it, or convert it first if that loss is meant"
        )
        raise DTypeError(msg)
    axes = layouts.sizes(convention.output_layout, output.shape)
    if lengths is not None:
        axes |= {"b": lengths.size, "s": int(lengths.max(initial=0))}
    got, expected = tuple(lse.shape), layouts.shape(convention.lse_layout, axes)
    if not _admits(convention, got, expected):
        remedy = (
            "transpose it"
            if got != expected and sorted(got) == sorted(expected)
            else "pass the lse of this output"
        )
        what = "lse" if convention.kind == "lse" else "l and m"
        msg = (
            f"{what} of {name} is {layouts.words(convention.lse_layout)} = {expected}{_padding(convention)} "
            f"for an output of {tuple(output.shape)}; got {got}: {remedy}{_or_related(convention)}"
        )
        raise ShapeError(msg)


def require_mask(empty: Array, lse: Array) -> None:
    """Refuse a mask of empty rows that is not boolean or has not the shape of the lse."""
    shape, name = tuple(empty.shape), dtype_name(empty.dtype)
    if not name.startswith("bool"):
        msg = f"empty is a boolean array, True where a row has no live key; got {name}: compare it first"
        raise DTypeError(msg)
    if shape != tuple(lse.shape):
        msg = f"empty has the shape of the lse, {tuple(lse.shape)}; got {shape}: lay it out as the lse is"
        raise ShapeError(msg)


def _admits(convention: "Convention", got: tuple[int, ...], expected: tuple[int, ...]) -> bool:
    if len(got) != len(expected):
        return False
    # A padded lse is longer along its last axis, and only there.
    if convention.padding is None or got[:-1] != expected[:-1]:
        return got == expected
    queries = expected[-1]
    if isinstance(convention.padding, int):
        return got[-1] in (queries, queries + -queries % convention.padding)
    return got[-1] >= queries


def _padding(convention: "Convention") -> str:
    if convention.padding is None:
        return ""
    return " or longer" if convention.padding == "any" else f" or up to a multiple of {convention.padding}"


def _or_related(convention: "Convention") -> str:
    if not convention.related:
        return ""
    return f", or use the convention {' or '.join(repr(name) for name in convention.related)}"
