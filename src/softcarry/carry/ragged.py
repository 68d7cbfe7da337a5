"""Merging groups of partials of unequal number at once."""

from typing import Any

from softcarry._arrays import array_namespace
from softcarry.carry import _groups, _merge
from softcarry.carry._algebra import Summary
from softcarry.carry.state import Carry
from softcarry.errors import OptionError, ShapeError


def merge_ragged(carries: Carry, indptr: Any) -> Carry:
    """Merge groups of partials: N carries along the leading axis, cut into G groups.

    Parameters
    ----------
    carries : Carry
        m and l (N, ...), o (N, ..., dv) or None.
    indptr : array (G + 1,) of integers
        Group g holds the carries indptr[g] to indptr[g + 1] − 1, as in CSR. Of any library, or a list; its
        values must be known (not traced).

    Returns
    -------
    Carry
        m and l (G, ...), o (G, ..., dv); a group of none is empty. Groups are summed pairwise: in the bound
        of `Carry`, a group of k partials counts ⌈log2 k⌉ sums and one rescaling. Large NumPy arrays and torch
        CPU tensors without gradients are merged as by `Carry.merge`.

    Raises
    ------
    ShapeError, DTypeError, OptionError
        If the carries have no leading axis, or indptr does not hold integers that run from 0 to N without
        decreasing.

    Examples
    --------
    >>> import numpy as np
    >>> import softcarry as sc
    >>> partials = sc.Carry.of(np.array([[2.0, 5.0], [1.0, 7.0], [0.0, 0.0]]))
    >>> sc.merge_ragged(partials, [0, 2, 2, 3]).l.round(4)
    array([1.1446, 0.    , 2.    ])
    """
    if not isinstance(carries, Carry):
        msg = (
            f"merge_ragged takes a Carry of stacked partials, got {type(carries).__name__}: stack m, l and o"
        )
        raise OptionError(msg)
    if carries.m.ndim == 0:
        msg = "merge_ragged takes carries (N, ...), got one of shape (): give it a leading axis"
        raise ShapeError(msg)
    pointer = _groups.read_indptr(indptr, carries.m.shape[0])
    xp = array_namespace(carries.m)
    parts = Summary(carries.m, carries.l, carries.o)
    return Carry(*_merge.combine_groups(xp, parts, pointer, base=carries.base), carries.base)
