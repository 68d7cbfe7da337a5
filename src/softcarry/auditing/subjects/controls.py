"""Kernels that are wrong on purpose: they show a reader what failure looks like."""

from softcarry.auditing.subject import Subject
from softcarry.auditing.subjects import KNOWN


def bfloat16_carry() -> Subject:
    """Return the naive kernel that keeps l and o in bfloat16 and updates them once a key.

    Its sums stop moving after 2^(t+1) = 256 equal terms.

    Returns
    -------
    Subject

    Examples
    --------
    >>> bfloat16_carry().control
    True
    """
    from softcarry.numerics import EmulatedKernel

    name = "control-bfloat16-carry"
    return Subject(
        EmulatedKernel(l_format="bfloat16", o_format="bfloat16", key_block=1),
        name=name,
        arrays="numpy",
        dtypes=KNOWN[name].dtypes,
        options=("mask", "causal", "scale"),
        lse="e",
        control=True,
    )
