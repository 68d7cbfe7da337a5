"""Narrow floating-point formats, sums and attention kernels emulated in them, and error bounds.

Names other than the formats are loaded on first use (PEP 562): they bring a compiler along.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

# Bound here and not on first use: importing the module of the same name would otherwise put itself in the
# place of the table.
from softcarry.numerics.formats import FloatFormat as FloatFormat
from softcarry.numerics.formats import formats as formats
from softcarry.numerics.formats import get_format as get_format

if TYPE_CHECKING:
    from softcarry.numerics.bounds import AttentionBound as AttentionBound
    from softcarry.numerics.bounds import CarryModel as CarryModel
    from softcarry.numerics.bounds import Plan as Plan
    from softcarry.numerics.bounds import PlanOption as PlanOption
    from softcarry.numerics.bounds import attention_error_bound as attention_error_bound
    from softcarry.numerics.bounds import carry_error as carry_error
    from softcarry.numerics.bounds import drop_index as drop_index
    from softcarry.numerics.bounds import envelope_limit as envelope_limit
    from softcarry.numerics.bounds import gamma as gamma
    from softcarry.numerics.bounds import lse_bound as lse_bound
    from softcarry.numerics.bounds import merge_bound as merge_bound
    from softcarry.numerics.bounds import participation_number as participation_number
    from softcarry.numerics.bounds import plan as plan
    from softcarry.numerics.bounds import probabilistic_gamma as probabilistic_gamma
    from softcarry.numerics.bounds import stall_level as stall_level
    from softcarry.numerics.bounds import summation_bound as summation_bound
    from softcarry.numerics.bounds import summation_depth as summation_depth
    from softcarry.numerics.bounds import swamped_weight as swamped_weight
    from softcarry.numerics.emulated import EmulatedKernel as EmulatedKernel
    from softcarry.numerics.summation import running_sum as running_sum

_HOMES = {
    "AttentionBound": "bounds",
    "CarryModel": "bounds",
    "EmulatedKernel": "emulated",
    "Plan": "bounds",
    "PlanOption": "bounds",
    "attention_error_bound": "bounds",
    "carry_error": "bounds",
    "drop_index": "bounds",
    "envelope_limit": "bounds",
    "gamma": "bounds",
    "lse_bound": "bounds",
    "merge_bound": "bounds",
    "participation_number": "bounds",
    "plan": "bounds",
    "probabilistic_gamma": "bounds",
    "running_sum": "summation",
    "stall_level": "bounds",
    "summation_bound": "bounds",
    "summation_depth": "bounds",
    "swamped_weight": "bounds",
}

__all__ = [*_HOMES, "FloatFormat", "formats", "get_format"]  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        value = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
        globals()[name] = value
        return value
    msg = f"module {__name__!r} has no attribute {name!r}"
    raise AttributeError(msg)


def __dir__() -> list[str]:
    return sorted(__all__)
