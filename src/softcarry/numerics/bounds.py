"""softcarry's error analysis in one place: where sums stall, what they err by, what attention may err by.

The parts live next door: ``swamping`` (drop index, stall level, envelope, predicted carry error),
``summation_bounds`` (γ and the bounds of sums, merges and the lse), ``attention_bounds`` (the master bound
that an attention kernel is held to) and ``planning`` (which key blocks are safe).
"""

from softcarry.numerics.attention_bounds import AttentionBound as AttentionBound
from softcarry.numerics.attention_bounds import CarryModel as CarryModel
from softcarry.numerics.attention_bounds import attention_error_bound as attention_error_bound
from softcarry.numerics.planning import Plan as Plan
from softcarry.numerics.planning import PlanOption as PlanOption
from softcarry.numerics.planning import plan as plan
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

__all__ = [
    "AttentionBound",
    "CarryModel",
    "Plan",
    "PlanOption",
    "attention_error_bound",
    "carry_error",
    "drop_index",
    "envelope_limit",
    "gamma",
    "lse_bound",
    "merge_bound",
    "participation_number",
    "plan",
    "probabilistic_gamma",
    "stall_level",
    "summation_bound",
    "summation_depth",
    "swamped_weight",
]
