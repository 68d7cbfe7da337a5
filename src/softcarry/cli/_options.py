"""Options that several commands share: one spelling, one sentence of help."""

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

Distribution = Literal["equal", "uniform", "exponential", "lognormal"]

AsJson = Annotated[bool, Parameter(name="--json", show_default=False)]
Formats = Annotated[list[str] | None, Parameter(name="--format", consume_multiple=True)]
Distributions = Annotated[list[Distribution] | None, Parameter(name="--distribution", consume_multiple=True)]
SvgFile = Annotated[Path | None, Parameter(name="--svg", help="Also draw the curves to this file.")]
Rows = Annotated[int, Parameter(help="How many rows to average over.")]
Seed = Annotated[int, Parameter(help="Seed of the random terms.")]
