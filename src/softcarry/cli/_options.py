"""Options that several commands share: one spelling, one sentence of help."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter, Token

Distribution = Literal["equal", "uniform", "exponential", "lognormal"]


def whole_number(_type: Any, tokens: Sequence[Token]) -> int:
    """Read 8192 or 1e6; a fraction is an error, where cyclopts would round it."""
    text = tokens[0].value
    try:
        number = int(text) if text.lstrip("+-").isdigit() else float(text)
        whole = int(number)
    except (ValueError, OverflowError):
        whole, number = 0, 0.5
    if whole != number:
        msg = f"expected a whole number, such as 8192 or 1e6; got {text!r}"
        raise ValueError(msg)
    return whole


def whole_numbers(_type: Any, tokens: Sequence[Token]) -> list[int]:
    """Read several."""
    return [whole_number(int, [token]) for token in tokens]


Whole = Annotated[int, Parameter(converter=whole_number)]
Flag = Annotated[bool, Parameter(show_default=False)]
AsJson = Annotated[bool, Parameter(name="--json", show_default=False)]
Formats = Annotated[list[str] | None, Parameter(name="--format", consume_multiple=1)]
Distributions = Annotated[list[Distribution] | None, Parameter(name="--distribution", consume_multiple=1)]
SvgFile = Annotated[Path | None, Parameter(name="--svg", help="Also draw the curves to this file.")]
Rows = Annotated[int, Parameter(converter=whole_number, help="How many rows to average over.")]
Seed = Annotated[int, Parameter(converter=whole_number, help="Seed of the random terms.")]
