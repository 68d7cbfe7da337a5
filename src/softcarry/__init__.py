"""The running state of softmax attention: a mergeable carry, its numerics, and an audit of kernels.

Names are loaded on first use (PEP 562), so that importing softcarry loads no numerical library at all.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from softcarry._version import __version__ as __version__

if TYPE_CHECKING:
    from softcarry import numerics as numerics
    from softcarry._attention import attention as attention
    from softcarry._attention import attention_carry as attention_carry
    from softcarry._conventions import conventions as conventions
    from softcarry.auditing import Subject as Subject
    from softcarry.auditing import audit as audit
    from softcarry.carry import Carry as Carry
    from softcarry.carry import CarryStack as CarryStack
    from softcarry.carry import NormalisedCarry as NormalisedCarry
    from softcarry.carry import merge_ragged as merge_ragged
    from softcarry.errors import SoftcarryError as SoftcarryError
    from softcarry.merging import merge_output_into as merge_output_into
    from softcarry.merging import merge_outputs as merge_outputs
    from softcarry.merging import merge_outputs_ragged as merge_outputs_ragged
    from softcarry.moments import Moments as Moments
    from softcarry.rows import Logprobs as Logprobs
    from softcarry.rows import RowStream as RowStream
    from softcarry.rows import TopK as TopK
    from softcarry.rows import get_num_threads as get_num_threads
    from softcarry.rows import log_softmax as log_softmax
    from softcarry.rows import logprobs as logprobs
    from softcarry.rows import logsumexp as logsumexp
    from softcarry.rows import online_normalizer as online_normalizer
    from softcarry.rows import set_num_threads as set_num_threads
    from softcarry.rows import softmax as softmax
    from softcarry.rows import softmax_topk as softmax_topk
    from softcarry.trace import recurrence as recurrence

_HOMES = {
    "Carry": "softcarry.carry",
    "CarryStack": "softcarry.carry",
    "NormalisedCarry": "softcarry.carry",
    "Moments": "softcarry.moments",
    "SoftcarryError": "softcarry.errors",
    "Subject": "softcarry.auditing",
    "attention": "softcarry._attention",
    "attention_carry": "softcarry._attention",
    "audit": "softcarry.auditing",
    "conventions": "softcarry._conventions",
    "merge_output_into": "softcarry.merging",
    "merge_outputs": "softcarry.merging",
    "merge_outputs_ragged": "softcarry.merging",
    "merge_ragged": "softcarry.carry",
    "Logprobs": "softcarry.rows",
    "RowStream": "softcarry.rows",
    "TopK": "softcarry.rows",
    "get_num_threads": "softcarry.rows",
    "log_softmax": "softcarry.rows",
    "logprobs": "softcarry.rows",
    "logsumexp": "softcarry.rows",
    "online_normalizer": "softcarry.rows",
    "set_num_threads": "softcarry.rows",
    "softmax": "softcarry.rows",
    "softmax_topk": "softcarry.rows",
    "recurrence": "softcarry.trace",
}

__all__ = [*_HOMES, "__version__", "numerics"]  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    if name == "numerics":
        return import_module("softcarry.numerics")
    if name in _HOMES:
        value = getattr(import_module(_HOMES[name]), name)
        globals()[name] = value
        return value
    msg = f"module 'softcarry' has no attribute {name!r}"
    raise AttributeError(msg)


def __dir__() -> list[str]:
    return sorted(__all__)
