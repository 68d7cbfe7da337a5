"""Every check's mutants: small wrong kernels that its tests define, and the table of them in the docs."""

import importlib.util
import sys
from functools import cache
from pathlib import Path

from examining import examine, messages
from softcarry.auditing.probes import CHECKS
from softcarry.auditing.subject import Subject

FOLDER = Path(__file__).parent / "auditing" / "probes"
DOCUMENT = Path(__file__).parent.parent / "docs" / "audit-mutants.md"

_HEAD = """# Checks against mutants

Every check is tested with small kernels that have one known fault each, made from public reports of faults.
The check must find the fault, and say what the last column says somewhere in its message; sound kernels of
different construction must come out with nothing found. The kernels are in `tests/auditing/probes/`, one file
a check; this table is made from them by `tests/mutant_table.py`, and a test compares the two.
"""


@cache
def module_of(check):
    """The test module of a check, loaded once more from its file, so that no import of tests is needed."""
    path = FOLDER / f"test_{check.lower()}.py"
    name = f"mutants_of_{check.lower()}"
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def mutants_of(check):
    """Fault to (kernel or subject, what the message says)."""
    return module_of(check).MUTANTS


def what_is_said(check, fault):
    """The messages of a check about one of its mutants."""
    kernel, _ = mutants_of(check)[fault]
    by_itself = getattr(module_of(check), "messages_of", None)
    if by_itself is not None:  # FPRINT finds what it finds against a baseline
        return by_itself(kernel)
    dtype = kernel.dtypes[0] if isinstance(kernel, Subject) else "float32"
    return messages(examine(kernel, check, dtype=dtype))


def table():
    """The document."""
    lines = [_HEAD]
    count = sum(len(mutants_of(check)) for check in CHECKS)
    lines.append(f"{len(CHECKS)} checks, {count} mutants.\n")
    lines.append("| check | fault | what is said of it |")
    lines.append("|---|---|---|")
    for check in CHECKS:
        for fault, (_, fragment) in mutants_of(check).items():
            lines.append(f"| {check} | {_escaped(fault)} | {_escaped(fragment)} |")
    return "\n".join(lines) + "\n"


def _escaped(text):
    return text.replace("|", "\\|").replace("\n", " ")
