"""The carry of softmax attention and everything that merges it."""

from softcarry.carry.normalised import NormalisedCarry as NormalisedCarry
from softcarry.carry.ragged import merge_ragged as merge_ragged
from softcarry.carry.stack import CarryStack as CarryStack
from softcarry.carry.state import Carry as Carry
