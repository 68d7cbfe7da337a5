"""The conventions in which libraries return (output, lse), and the way from each to a Carry and back."""

from softcarry._conventions.convention import Convention as Convention
from softcarry._conventions.table import conventions as conventions
