"""The subjects that softcarry knows by name.

The table is plain text: a subject's library is looked for without importing it, and its adapter is loaded
when it is audited.
"""

from collections.abc import Mapping
from difflib import get_close_matches
from importlib import import_module
from types import MappingProxyType
from typing import TYPE_CHECKING

from softcarry.auditing.subjects._table import TABLE, KnownSubject
from softcarry.auditing.subjects._third_parties import third_parties
from softcarry.errors import MissingDependencyError, SubjectError

if TYPE_CHECKING:
    from softcarry.auditing.subject import Subject


_OWN = {entry.name: entry for entry in TABLE}

KNOWN: Mapping[str, KnownSubject] = MappingProxyType(
    _OWN | {found.name: KnownSubject(*found, dtypes=()) for found in third_parties(taken=_OWN)}
)
"""The known subjects by name, in the order in which an audit of all of them goes, other packages' last."""


def load_subject(name: str) -> "Subject":
    """Load the known subject of that name.

    Parameters
    ----------
    name : str
        A key of ``KNOWN``.

    Returns
    -------
    Subject

    Raises
    ------
    SubjectError
        If there is no such name; the message gives the closest.
    MissingDependencyError
        If its library is not installed, or does not import; the message gives the command that installs it.

    Examples
    --------
    >>> load_subject("softcarry").name
    'softcarry'
    """
    if name not in KNOWN:
        close = get_close_matches(name, KNOWN, n=3, cutoff=0.4)
        hint = f"; did you mean {' or '.join(repr(each) for each in close)}?" if close else ""
        msg = (
            f"there is no subject {name!r}{hint}; the known ones are {', '.join(KNOWN)}, "
            "and module:function audits your own"
        )
        raise SubjectError(msg)
    from softcarry.auditing.subject import Subject

    entry = KNOWN[name]
    if not entry.available:
        msg = f"subject {name!r} needs {entry.requires}, which is not installed; {entry.install} installs it"
        raise MissingDependencyError(msg)
    module, _, function = entry.factory.partition(":")
    try:
        subject = getattr(import_module(module), function)()
    except Exception as error:
        first = (str(error).strip().splitlines() or [""])[0]
        hint = f"; {entry.install} may mend it" if entry.install else ""
        msg = f"subject {name!r} does not load: {type(error).__name__}: {first}{hint}"
        raise MissingDependencyError(msg) from error
    if not isinstance(subject, Subject):
        msg = f"subject {name!r} is no Subject: {entry.factory} returned a {type(subject).__name__}"
        raise SubjectError(msg)
    return subject
