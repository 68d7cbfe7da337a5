"""merge_outputs and merge_outputs_ragged: new outputs from partial ones."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from softcarry._arrays import Array
from softcarry.carry._checks import Base, require_base
from softcarry.carry._groups import read_indptr
from softcarry.cpu.merge_work import merge_parts, result_like
from softcarry.errors import OptionError, ShapeError
from softcarry.merging._partials import (
    Arrays,
    Partials,
    note_written,
    part_of,
    partials_of,
    require_apart,
    require_writable,
)

Out = tuple[Array, Array]


def merge_outputs(
    outputs: Arrays, lses: Arrays, *, base: Base = "e", out: Out | None = None
) -> tuple[Array, Any]:
    """Merge the outputs of attention over disjoint sets of keys, by their log-sum-exps.

    With the largest lse m of a row, and t = e^(lse − m) of each partial,

        output = Σ t·output / Σ t,    lse = m + ln Σ t,

    as if attention had seen all keys at once. Every partial is read once and the result written once.

    Parameters
    ----------
    outputs : array (n, ..., dv), or sequence of n arrays (..., dv)
        Normalised outputs of n ≥ 1 partials: NumPy arrays or torch CPU tensors of float64, float32, float16
        or bfloat16. No array is copied whatever its strides, so that (b, t, h, dv) in memory may be given as
        (b, h, t, dv); values (dv) that are not neighbours in memory are slow.
    lses : array (n, ...), or sequence of n arrays (...)
        Their log-sum-exps, float32 (float64 beside float64 outputs), with any strides. −inf makes a row of a
        partial empty.
    base : "e" or "2"
        "2" for log-sum-exps in base 2, as FlashInfer has them; the result is in the same base.
    out : (output, lse), optional
        Where to put the result, in the dtypes and shapes of one partial, without overlap with any.

    Returns
    -------
    output : array (..., dv)
        Of the library and dtype of the partials, in the order of memory of the first.
    lse : array (...)
        A scalar for NumPy's partials of one row.

    Raises
    ------
    DTypeError
        If an argument is no such array, the outputs have several dtypes, an lse is not of the working dtype,
        or a tensor records gradients.
    ShapeError
        If shapes do not fit, or there is no partial.
    OptionError
        If the base is neither, or ``out`` is read-only or overlaps itself or a partial.

    See Also
    --------
    merge_output_into : The same in place.
    merge_outputs_ragged : Groups of unequal number.
    Carry.merge : Of unnormalised (m, l, o), in every array library, with derivatives.

    Notes
    -----
    Row by row, no row touching another:

    - A partial whose lse is −inf is empty. It changes no bit of the result whatever its output holds, and
      its output is not read. Where all are empty, the output is 0 and the lse −inf.
    - A NaN lse makes output and lse NaN. An lse of +inf makes the output NaN and the lse +inf, or NaN if
      another is NaN.
    - An infinity in the output of a partial that is not empty makes that value of the result infinite, and a
      NaN, or infinities of both signs, NaN, however small its t is.

    The t are computed in float64. float32 and float64 outputs are summed in float64, the others in float32,
    left to right, and rounded once. Let u be the unit roundoff of the output's dtype, w that of its sums,
    2^−53 or 2^−24, and gap = m − lse in natural units. To first order and beside underflow the output of n
    partials is off by at most

        u·|output| + w·Σ t·|output|·(gap + ln n + 2n + 6) / Σ t,

    and the lse by its rounding and 2^−52·(n + 6 ln n + 2). Partials of one output give that output, but for
    the last places of float64. Two partials can be exchanged without changing a bit; nothing depends on the
    number of threads.

    FlashInfer calls these ``merge_state(v_a, s_a, v_b, s_b)`` and ``merge_states(v, s)``: its v (t, n, h, dv)
    and s (t, n, h) are ``v.transpose(0, 1)``, ``s.transpose(0, 1)`` and ``base="2"`` here.

    References
    ----------
    Ye et al., FlashInfer, arXiv:2501.01005, 2025, section 2.2 (the merge of attention states).
    Milakov and Gimelshein, Online normalizer calculation for softmax, arXiv:1805.02867, 2018, section 3.1.

    Examples
    --------
    >>> import numpy as np
    >>> import softcarry as sc
    >>> near, far = np.array([[1.0, 3.0]]), np.array([[5.0, -1.0]])
    >>> output, lse = sc.merge_outputs([near, far], [np.array([0.0]), np.log([3.0])])
    >>> output.round(4), lse.round(4)
    (array([[4., 0.]]), array([1.3863]))
    """
    base = require_base(base)
    partials = partials_of(outputs, lses)
    if partials.number == 0:
        msg = "merge_outputs needs at least one partial, got none along the leading axis"
        raise ShapeError(msg)
    return _merged(partials, np.array([0, partials.number]), None, base, out)


def merge_outputs_ragged(
    outputs: Arrays, lses: Arrays, indptr: Any, *, base: Base = "e", out: Out | None = None
) -> tuple[Array, Array]:
    """Merge groups of outputs of unequal number, by their log-sum-exps.

    Parameters
    ----------
    outputs : array (n, ..., dv), or sequence of n arrays (..., dv)
        Normalised outputs, as in `merge_outputs`.
    lses : array (n, ...), or sequence of n arrays (...)
        Their log-sum-exps.
    indptr : array (groups + 1,) of integers
        Group g holds the partials indptr[g] to indptr[g + 1] − 1, as in CSR. NumPy's, torch's or a list.
    base : "e" or "2"
        "2" for log-sum-exps in base 2.
    out : (output, lse), optional
        Where to put the result, (groups, ..., dv) and (groups, ...), in the dtypes of the partials, without
        overlap with any.

    Returns
    -------
    output : array (groups, ..., dv)
        0 for a group of none.
    lse : array (groups, ...)
        −inf for a group of none.

    Raises
    ------
    DTypeError, ShapeError, OptionError
        As `merge_outputs`; if indptr does not hold integers that run from 0 to n without decreasing.

    Notes
    -----
    The rules and the error are those of `merge_outputs`. FlashInfer calls this
    ``variable_length_merge_states(v, s, indptr)``.

    Examples
    --------
    >>> import numpy as np
    >>> import softcarry as sc
    >>> outputs, lses = np.array([[1.0], [5.0], [2.0]]), np.zeros(3)
    >>> output, lse = sc.merge_outputs_ragged(outputs, lses, [0, 2, 2, 3])
    >>> output.ravel(), lse.round(4)
    (array([3., 0., 2.]), array([0.6931,   -inf, 0.    ]))
    """
    base = require_base(base)
    partials = partials_of(outputs, lses)
    pointer = read_indptr(indptr, partials.number)
    return _merged(partials, pointer, len(pointer) - 1, base, out)


def _merged(
    partials: Partials, pointer: NDArray[np.int64], groups: int | None, base: Base, out: Out | None
) -> tuple[Array, Any]:
    output, lse, stacked = partials.outputs[0], partials.lses[0], partials.stacked
    if out is None:
        result = result_like(output, groups=groups, stacked=stacked, values=True)
        result_lse = result_like(lse, groups=groups, stacked=stacked)
    else:
        result, result_lse = _checked(out, partials, groups)
    merge_parts(
        partials.parts,
        part_of(result, result_lse, stacked=groups is not None),
        element=partials.element,
        shape=partials.shape,
        dv=output.shape[-1],
        base=base,
        indptr=pointer,
    )
    if out is not None:
        note_written(result, result_lse)
        return out
    return result, result_lse[()] if isinstance(result_lse, np.ndarray) else result_lse


def _checked(out: Any, partials: Partials, groups: int | None) -> Out:
    if not isinstance(out, list | tuple) or len(out) != 2:
        msg = f"out must be a pair (output, lse), got {type(out).__name__}: give both, or leave it out"
        raise OptionError(msg)
    output, lse = out
    shape = partials.shape if groups is None else (groups, *partials.shape)
    first, first_lse = partials.outputs[0], partials.lses[0]
    require_writable("out[0]", output, first, (*shape, first.shape[-1]), first.dtype)
    require_writable("out[1]", lse, first_lse, shape, first_lse.dtype)
    require_apart({"out[0]": output, "out[1]": lse}, {"outputs": partials.outputs, "lses": partials.lses})
    return output, lse
