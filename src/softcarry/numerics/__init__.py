"""Floating-point formats, sums and attention kernels emulated in them, and error bounds.

Names are loaded on first use (PEP 562): some bring a compiler along. The rooms behind them:

- ``_formats``: binary formats and rounding to them; ``summation``: running sums in a format.
- ``emulated``: a whole attention kernel whose every rounding is an argument.
- ``swamping``: where a sum stalls, and the carry's predicted error; ``summation_bounds``: γ and the bounds of
  sums, merges and the lse; ``attention_bounds``: the master bound of an attention kernel; ``planning``: which
  key blocks are safe.
- ``experiments``: the measurements behind the commands ``stagnation`` and ``envelope``.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from softcarry.numerics._formats import FloatFormat as FloatFormat
    from softcarry.numerics._formats import formats as formats
    from softcarry.numerics._formats import get_format as get_format
    from softcarry.numerics.attention_bounds import AttentionBound as AttentionBound
    from softcarry.numerics.attention_bounds import CarryModel as CarryModel
    from softcarry.numerics.attention_bounds import attention_error_bound as attention_error_bound
    from softcarry.numerics.emulated import EmulatedKernel as EmulatedKernel
    from softcarry.numerics.planning import Plan as Plan
    from softcarry.numerics.planning import PlanOption as PlanOption
    from softcarry.numerics.planning import plan as plan
    from softcarry.numerics.summation import running_sum as running_sum
    from softcarry.numerics.summation_bounds import gamma as gamma
    from softcarry.numerics.summation_bounds import lse_bound as lse_bound
    from softcarry.numerics.summation_bounds import merge_bound as merge_bound
    from softcarry.numerics.summation_bounds import probabilistic_gamma as probabilistic_gamma
    from softcarry.numerics.summation_bounds import summation_bound as summation_bound
    from softcarry.numerics.summation_bounds import summation_depth as summation_depth
    from softcarry.numerics.swamping import carry_error as carry_error
    from softcarry.numerics.swamping import drop_index as drop_index
    from softcarry.numerics.swamping import envelope_limit as envelope_limit
    from softcarry.numerics.swamping import participation_number as participation_number
    from softcarry.numerics.swamping import stall_level as stall_level
    from softcarry.numerics.swamping import swamped_weight as swamped_weight

_HOMES = {
    "AttentionBound": "attention_bounds",
    "CarryModel": "attention_bounds",
    "EmulatedKernel": "emulated",
    "FloatFormat": "_formats",
    "Plan": "planning",
    "PlanOption": "planning",
    "attention_error_bound": "attention_bounds",
    "carry_error": "swamping",
    "drop_index": "swamping",
    "envelope_limit": "swamping",
    "formats": "_formats",
    "gamma": "summation_bounds",
    "get_format": "_formats",
    "lse_bound": "summation_bounds",
    "merge_bound": "summation_bounds",
    "participation_number": "swamping",
    "plan": "planning",
    "probabilistic_gamma": "summation_bounds",
    "running_sum": "summation",
    "stall_level": "swamping",
    "summation_bound": "summation_bounds",
    "summation_depth": "summation_bounds",
    "swamped_weight": "swamping",
}

__all__ = list(_HOMES)  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        value = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
        globals()[name] = value
        return value
    msg = f"module {__name__!r} has no attribute {name!r}"
    raise AttributeError(msg)


def __dir__() -> list[str]:
    return sorted(__all__)
