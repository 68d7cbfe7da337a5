"""The subjects that softcarry knows by name.

The table is plain text: a subject's library is looked for without importing it, and its adapter is loaded
when it is audited.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from importlib import import_module
from importlib.util import find_spec
from types import MappingProxyType
from typing import TYPE_CHECKING

from softcarry.errors import MissingDependencyError, SubjectError

if TYPE_CHECKING:
    from softcarry.auditing.subject import Subject


@dataclass(frozen=True)
class KnownSubject:
    """One line of the table of known subjects.

    Attributes
    ----------
    name : str
        What ``softcarry audit`` calls it.
    summary : str
        What it is.
    factory : str
        "module:function" of the adapter, which returns the Subject.
    dtypes : tuple of str
        The dtypes in which it is audited.
    requires : str
        The module it needs beyond softcarry's own dependencies, or nothing.
    install : str
        The command that installs that module.
    control : bool
        True for a kernel that is wrong on purpose.
    """

    name: str
    summary: str
    factory: str
    dtypes: tuple[str, ...]
    requires: str = ""
    install: str = ""
    control: bool = False

    @property
    def available(self) -> bool:
        """Whether the module it requires is installed; nothing is imported to find out."""
        return not self.requires or find_spec(self.requires) is not None


_ALL = ("float64", "float32", "bfloat16", "float16")
_TORCH = {
    "dtypes": ("float32", "bfloat16", "float16"),
    "requires": "torch",
    "install": 'pip install "softcarry[torch]"',
}

_TABLE = (
    KnownSubject(
        "softcarry",
        "softcarry's reference kernel: blocked attention made of Carry.of and merge",
        "softcarry.auditing.subjects.softcarry_reference:reference",
        _ALL,
    ),
    KnownSubject(
        "softcarry-attention",
        "softcarry.attention on NumPy arrays, with the lse of attention_carry",
        "softcarry.auditing.subjects.softcarry_attention:numpy_attention",
        _ALL,
    ),
    KnownSubject(
        "softcarry-attention-torch",
        "softcarry.attention on torch tensors, with the lse of attention_carry",
        "softcarry.auditing.subjects.softcarry_attention:torch_attention",
        **{**_TORCH, "dtypes": _ALL},
    ),
    KnownSubject(
        "softcarry-attention-prefill",
        "softcarry.attention_carry on its path of many queries: o / l and lse, before any 16-bit rounding",
        "softcarry.auditing.subjects.softcarry_attention:prefill",
        _ALL,
    ),
    KnownSubject(
        "torch-sdpa-flash",
        "torch's CPU flash attention operator, with its lse",
        "softcarry.auditing.subjects.torch_sdpa:flash",
        **_TORCH,
    ),
    KnownSubject(
        "torch-sdpa-math",
        "torch's scaled_dot_product_attention on its unfused MATH path",
        "softcarry.auditing.subjects.torch_sdpa:math",
        **_TORCH,
    ),
    KnownSubject(
        "control-bfloat16-carry",
        "CONTROL, wrong on purpose: l and o kept in bfloat16, one key a block",
        "softcarry.auditing.subjects.controls:bfloat16_carry",
        ("float32",),
        control=True,
    ),
)

KNOWN: Mapping[str, KnownSubject] = MappingProxyType({entry.name: entry for entry in _TABLE})
"""The known subjects by name, in the order in which an audit of all of them goes."""


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
    entry = KNOWN[name]
    if not entry.available:
        msg = f"subject {name!r} needs {entry.requires}, which is not installed; {entry.install} installs it"
        raise MissingDependencyError(msg)
    module, _, function = entry.factory.partition(":")
    try:
        return getattr(import_module(module), function)()
    except Exception as error:
        first = (str(error).strip().splitlines() or [""])[0]
        hint = f"; {entry.install} may mend it" if entry.install else ""
        msg = f"subject {name!r} does not load: {type(error).__name__}: {first}{hint}"
        raise MissingDependencyError(msg) from error
