"""The audit's questions, one module each.

A probe module answers one numerical question about a kernel. Its docstring says what it feeds in, what it
concludes, the tolerance and its source; its function ``probe(examination)`` does it. Probes are imported
when they run.
"""

from importlib import import_module
from types import MappingProxyType

CHECKS = MappingProxyType(
    {
        "EMPTY": "softcarry.auditing.probes.empty",
        "MASKREP": "softcarry.auditing.probes.maskrep",
        "TAIL": "softcarry.auditing.probes.tail",
        "RANGE": "softcarry.auditing.probes.range",
        "GROWTH": "softcarry.auditing.probes.growth",
        "LSE": "softcarry.auditing.probes.lse",
        "POISON": "softcarry.auditing.probes.poison",
        "CAUSAL": "softcarry.auditing.probes.causal",
        "GRAD": "softcarry.auditing.probes.grad",
        "REF": "softcarry.auditing.probes.ref",
        "SCALE": "softcarry.auditing.probes.scale",
        "LAYOUT": "softcarry.auditing.probes.layout",
        "INVAR": "softcarry.auditing.probes.invar",
        "FPRINT": "softcarry.auditing.probes.fprint",
        "HEADMAP": "softcarry.auditing.probes.headmap",
        "HARNESS": "softcarry.auditing.probes.harness",
        "NONFIN": "softcarry.auditing.probes.nonfin",
        "ARGS": "softcarry.auditing.probes.args",
        "DROP": "softcarry.auditing.probes.drop",
    }
)
"""The checks by name, in the order in which an audit runs them, with the module of each."""


def load_probe(check):
    """Return the probe function of a check.

    Parameters
    ----------
    check : str
        A key of ``CHECKS``.

    Returns
    -------
    callable
        ``probe(examination) -> None``.

    Examples
    --------
    >>> load_probe("EMPTY").__name__
    'probe'
    """
    return import_module(CHECKS[check]).probe
