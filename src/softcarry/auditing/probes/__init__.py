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
        "TAIL": "softcarry.auditing.probes.tail",
        "RANGE": "softcarry.auditing.probes.range",
        "GROWTH": "softcarry.auditing.probes.growth",
        "LSE": "softcarry.auditing.probes.lse",
        "REF": "softcarry.auditing.probes.ref",
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
