"""Checks of building blocks: a normaliser, a merge, a top-k, a softmax or an attention of somebody's own."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from softcarry.auditing.blocks._check import KINDS as KINDS
    from softcarry.auditing.blocks._check import check as check

__all__ = ["KINDS", "check"]


def __getattr__(name):
    if name not in __all__:
        msg = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(msg)
    return getattr(import_module("softcarry.auditing.blocks._check"), name)
