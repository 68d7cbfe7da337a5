"""Running one check on one kernel, for tests of probes."""

from softcarry.auditing.contract import Contract
from softcarry.auditing.examination import Examination
from softcarry.auditing.probes import load_probe
from softcarry.auditing.subject import Subject


class InProcess(Examination):
    """An examination whose isolated calls are made in this process, which is much cheaper."""

    def call_isolated(self, q, k, v, *, time_limit=120.0, **options):
        return self.call(q, k, v, **options)


def examine(kernel, check, *, dtype="float32", seed=0, isolate=False, contract=None, quick=False, **declared):
    """The finished examination of a NumPy kernel by one check."""
    subject = kernel if isinstance(kernel, Subject) else Subject(kernel, arrays="numpy", **declared)
    kind = Examination if isolate else InProcess
    examination = kind(subject, dtype, check=check, seed=seed, contract=Contract.of(contract), quick=quick)
    load_probe(check)(examination)
    return examination


def messages(examination):
    """What was found, in one string for each finding."""
    return [finding.message for finding in examination.findings]
