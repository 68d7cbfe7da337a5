"""The lse of packed sequences that a library keeps one padded row a sequence: (batch, heads, positions).

FlashAttention before 2.6 packed the output, (tokens, heads, value dim), but not its lse. Both directions are
a gather, which every array library has and which needs no array to be written in place.
"""

import numpy as np
from array_api_compat import device, is_torch_array

from softcarry._arrays import Array, Namespace
from softcarry.errors import ShapeError


def sequence_lengths(cu_seqlens: Array | list[int], *, tokens: int) -> np.ndarray:
    """Return the lengths of packed sequences from their cumulated lengths (0, n1, n1 + n2, ...).

    Raises
    ------
    ShapeError
        If ``cu_seqlens`` is no list of integers that rises from 0 to the number of tokens.
    """
    bounds = np.asarray(cu_seqlens.cpu() if is_torch_array(cu_seqlens) else cu_seqlens)
    integers = bounds.ndim == 1 and bounds.size > 0 and bounds.dtype.kind in "iu"
    steps = np.diff(bounds.astype(np.int64)) if integers else bounds
    if not integers or bounds[0] != 0 or bounds[-1] != tokens or np.any(steps < 0):
        msg = (
            f"cu_seqlens holds the cumulated lengths of the packed sequences, integers rising from 0 to "
            f"{tokens} tokens; got {bounds.tolist()}: pass what the kernel was given for the queries"
        )
        raise ShapeError(msg)
    return steps


def pack(xp: Namespace, lse: Array, lengths: np.ndarray) -> Array:
    """Gather an lse (batch, heads, positions) to (heads, tokens), leaving out what lies beyond a length."""
    sequence = np.repeat(np.arange(lengths.size), lengths)
    position = np.arange(sequence.size) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    heads, longest = lse.shape[1], lse.shape[2]
    rows = xp.reshape(xp.permute_dims(lse, (1, 0, 2)), (heads, lengths.size * longest))
    return xp.take(rows, _indices(xp, sequence * longest + position, lse), axis=1)


def unpack(xp: Namespace, lse: Array, lengths: np.ndarray, *, padding: float) -> Array:
    """Gather an lse (heads, tokens) to (batch, heads, longest length), padded."""
    heads, tokens = lse.shape
    longest = int(lengths.max(initial=0))
    position = np.arange(longest)
    token = (np.cumsum(lengths) - lengths)[:, None] + position
    token = np.where(position < lengths[:, None], token, tokens)
    column = xp.full((heads, 1), padding, dtype=lse.dtype, device=device(lse))
    rows = xp.take(xp.concat([lse, column], axis=1), _indices(xp, token.reshape(-1), lse), axis=1)
    return xp.permute_dims(xp.reshape(rows, (heads, lengths.size, longest)), (1, 0, 2))


def _indices(xp: Namespace, indices: np.ndarray, like: Array) -> Array:
    return xp.asarray(indices, device=device(like))
