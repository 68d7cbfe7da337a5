"""What the user promises about a kernel, and what the audit therefore holds it to."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from difflib import get_close_matches
from typing import Any

from softcarry.errors import OptionError

_CHOICES = {
    "empty_rows": ("zero", "nan", "mean", "any"),
    "lse_empty": ("-inf", "+inf", "0", "nan", "any"),
    "causal": (None, "bottom-right", "top-left"),
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

    Raises
    ------
    OptionError
        For a value that is none of these.

    Examples
    --------
    >>> Contract(empty_rows="nan").lse_empty
    '-inf'
    """

    empty_rows: str = "zero"
    lse_empty: str = "-inf"
    carry_format: str | None = None
    causal: str | None = None

    def __post_init__(self) -> None:
        for name, choices in _CHOICES.items():
            value = getattr(self, name)
            if value not in choices:
                legal = ", ".join(repr(choice) for choice in choices)
                msg = f"the contract's {name} is one of {legal}; got {value!r}"
                raise OptionError(msg)
        if self.carry_format is not None:
            from softcarry.numerics._formats import get_format

            get_format(self.carry_format)

    @classmethod
    def of(cls, promises: "Contract | Mapping[str, Any] | None") -> "Contract":
        """Make a contract from a mapping, from nothing, or from a contract.

        Parameters
        ----------
        promises : Contract or mapping or None
            The fields to set; None sets none.

        Returns
        -------
        Contract

        Raises
        ------
        OptionError
            For a key that is no field, with the closest field; for anything that is no mapping.

        Examples
        --------
        >>> Contract.of({"empty_rows": "nan"}).empty_rows
        'nan'
        """
        if promises is None:
            return cls()
        if isinstance(promises, Contract):
            return promises
        if not isinstance(promises, Mapping):
            msg = f"contract is a Contract, a mapping of its fields, or None; got {type(promises).__name__}"
            raise OptionError(msg)
        known = [field.name for field in fields(cls)]
        for key in promises:
            if key not in known:
                close = get_close_matches(str(key), known, n=1)
                hint = f"; did you mean {close[0]!r}?" if close else ""
                msg = f"a contract has the fields {', '.join(known)}; got {key!r}{hint}"
                raise OptionError(msg)
        return cls(**promises)
