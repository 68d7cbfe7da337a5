"""Merging the outputs of attention over parts of the keys, by their log-sum-exps."""

from softcarry.merging._into import merge_output_into as merge_output_into
from softcarry.merging._outputs import merge_outputs as merge_outputs
from softcarry.merging._outputs import merge_outputs_ragged as merge_outputs_ragged
