"""What the user promises about a kernel, and what the audit therefore holds it to."""

import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from softcarry.auditing.subject import ALIASES, DTYPES
from softcarry.errors import OptionError

INVARIANCES = (
    "alone or in a batch",
    "neighbours",
    "query chunks",
    "padded keys",
    "threads",
    "splits",
    "key order",
)
"""What a kernel's bits may be promised not to depend on; that runs repeat is always asked."""

_CHOICES = {
    "empty_rows": ("zero", "nan", "mean", "any"),
    "lse_empty": ("-inf", "+inf", "0", "nan", "any"),
    "causal": (None, "bottom-right", "top-left"),
    "masked_values": ("hidden", "any"),
}
_NAMES = {
    "invariant": INVARIANCES,
    "dtypes": DTYPES,
    "options": tuple(ALIASES),
}


@dataclass(frozen=True)
class Contract:
    """The promises that an audit gates against.

    Parameters
    ----------
    empty_rows : {"zero", "nan", "mean", "any"}
        The output of a row without keys. The default is that of ONNX opset 24 and of torch since 2.5.
        "mean" is the mean of V that a finite mask fill leaves behind; "any" gates nothing.
    lse_empty : {"-inf", "+inf", "0", "nan", "any"}
        The lse of a row without keys. −inf is ln 0, the identity of a merge.
    carry_format : str, optional
        Format of m, l and o between updates. The default is the subject's declared carry, else float32
        (float64 for float64).
    causal : {"bottom-right", "top-left"}, optional
        Alignment of the causal mask where tq ≠ tk. The default is what the subject declares.
    masked_values : {"hidden", "any"}
        Whether NaN, inf and the like behind masks and lengths must leave every bit as it is. "any" is for
        kernels that multiply masked values by weights of 0, as textbooks do: POISON is then left out.
    invariant : iterable of str
        Of ``INVARIANCES``: what no bit of the output depends on. By default nothing is promised, and
        differences must stay within the error bound.
    dtypes : iterable of str
        Dtypes that the kernel must take; one that it refuses is a finding. Default: none is promised.
    options : iterable of str
        Options that the kernel must take ("mask", "causal", "scale", "softcap", "window", "kv_lengths",
        "dropout", "sinks", "splits"); one that it lacks is a finding. Default: none is promised.
    longest_n : int, optional
        The longest row of keys that the kernel is made for: no check makes it longer than this, and GROWTH
        goes up to it. The default leaves the lengths to the checks.

    Raises
    ------
    OptionError
        For a value that is none of these.

    Examples
    --------
    >>> Contract(empty_rows="nan").lse_empty
    '-inf'
    >>> Contract(invariant="threads").invariant
    ('threads',)
    """

    empty_rows: str = "zero"
    lse_empty: str = "-inf"
    carry_format: str | None = None
    causal: str | None = None
    masked_values: str = "hidden"
    invariant: Iterable[str] = ()
    dtypes: Iterable[str] = ()
    options: Iterable[str] = ()
    longest_n: int | None = None

    def __post_init__(self) -> None:
        for name, choices in _CHOICES.items():
            _check_choice(name, getattr(self, name), choices)
        for name, known in _NAMES.items():
            object.__setattr__(self, name, _names(name, getattr(self, name), known))
        if self.carry_format is not None:
            from softcarry.numerics._formats import get_format

            get_format(self.carry_format)
        longest = self.longest_n
        if longest is not None and (isinstance(longest, bool) or not isinstance(longest, int) or longest < 1):
            msg = f"the contract's longest_n is a number of keys of at least 1; got {longest!r}"
            raise OptionError(msg)

    @classmethod
    def of(cls, promises: "Contract | Mapping[str, Any] | str | Path | None") -> "Contract":
        """Make a contract from a mapping, a TOML file, from nothing, or from a contract.

        Parameters
        ----------
        promises : Contract or mapping or path or None
            The fields to set; None sets none. A path is that of a TOML file, whose fields stand at its top or
            in a table ``[contract]``.

        Returns
        -------
        Contract

        Raises
        ------
        OptionError
            For a key that is no field, with the closest field; for a file that is not there or is no TOML;
            for anything else.

        Examples
        --------
        >>> Contract.of({"empty_rows": "nan"}).empty_rows
        'nan'
        """
        if promises is None:
            return cls()
        if isinstance(promises, Contract):
            return promises
        if isinstance(promises, (str, Path)):
            return _read(cls, Path(promises))
        if not isinstance(promises, Mapping):
            msg = (
                "contract is a Contract, a mapping of its fields, the path of a TOML file, or None; "
                f"got {type(promises).__name__}"
            )
            raise OptionError(msg)
        known = [field.name for field in fields(cls)]
        for key in promises:
            if key not in known:
                msg = f"a contract has the fields {', '.join(known)}; got {key!r}{_closest(key, known)}"
                raise OptionError(msg)
        return cls(**promises)


def _read(cls, path):
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        msg = f"the contract {path} can't be read: {error.strerror}"
        raise OptionError(msg) from None
    except ValueError as error:  # no TOML, or no UTF-8
        msg = f"the contract {path} is no TOML: {error}"
        raise OptionError(msg) from None
    promises = content.get("contract", content)
    if promises is not content and len(content) > 1:
        others = ", ".join(name for name in content if name != "contract")
        msg = f"the contract {path} has a table [contract] and beside it {others}: move those into the table"
        raise OptionError(msg)
    try:
        return cls.of(promises)
    except OptionError as error:
        msg = f"the contract {path}: {error}"
        raise OptionError(msg) from None


def _check_choice(name, value, choices):
    if value not in choices:
        legal = ", ".join(repr(choice) for choice in choices)
        msg = f"the contract's {name} is one of {legal}; got {value!r}"
        raise OptionError(msg)


def _names(field, names, known):
    given = (names,) if isinstance(names, str) else names
    if not isinstance(given, Iterable):
        msg = f"the contract's {field} are names, of {', '.join(known)}; got {names!r}"
        raise OptionError(msg)
    given = tuple(given)
    for name in given:
        if name not in known:
            msg = f"the contract's {field} are of {', '.join(known)}; got {name!r}{_closest(name, known)}"
            raise OptionError(msg)
    return tuple(dict.fromkeys(given))


def _closest(name, known):
    close = get_close_matches(str(name), known, n=1)
    return f"; did you mean {close[0]!r}?" if close else ""
