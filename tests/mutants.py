"""Small NumPy attention kernels: sound ones of different construction, and ones with a single known fault."""

import math
import os
import signal

import numpy as np


def scores_of(q, k, mask, causal, scale, fill=-np.inf):
    """float32 scores (b, h, tq, tk) with masked keys at ``fill``."""
    scale = 1.0 / math.sqrt(q.shape[-1]) if scale is None else scale
    s = np.float32(scale) * (q.astype(np.float32) @ np.swapaxes(k, -1, -2).astype(np.float32))
    if mask is not None:
        s = np.where(mask, s, np.float32(fill)) if mask.dtype == bool else s + mask.astype(np.float32)
    if causal:
        tq, tk = s.shape[-2:]
        s = np.where(np.tri(tq, tk, tk - tq, dtype=bool), s, np.float32(fill))
    return s.astype(np.float32)


class TwoPass:
    """Safe softmax over the whole row; the keywords each put one fault in.

    fill : what masked scores become (a finite one is the sentinel fault)
    guard : shift by 0 where the maximum is −inf (False gives NaN)
    empty_output, empty_lse : what a row without keys gets
    shared_maximum : one maximum for all rows of a head (underflow, and rows that notice their neighbours)
    no_maximum : exponentiate without subtracting anything
    lse : function (m, l, scale) -> lse
    lse_dtype : dtype of the returned lse, or None to return no lse
    """

    def __init__(
        self,
        *,
        fill=-np.inf,
        guard=True,
        empty_output=0.0,
        empty_lse=-np.inf,
        shared_maximum=False,
        no_maximum=False,
        ignore_mask_of_empty_rows=False,
        lse=lambda m, total, scale: m + np.log(total),
        lse_dtype=np.float32,
        on_no_keys=None,
    ):
        self.fill, self.guard = fill, guard
        self.empty_output, self.empty_lse = empty_output, empty_lse
        self.shared_maximum, self.no_maximum = shared_maximum, no_maximum
        self.ignore_mask_of_empty_rows = ignore_mask_of_empty_rows
        self.lse, self.lse_dtype, self.on_no_keys = lse, lse_dtype, on_no_keys

    def __call__(self, q, k, v, *, mask=None, causal=False, scale=None):
        if k.shape[2] == 0 and self.on_no_keys is not None:
            self.on_no_keys()
        s = scores_of(q, k, mask, causal, scale, self.fill)
        if self.ignore_mask_of_empty_rows:
            empty = (s == -np.inf).all(axis=-1, keepdims=True)
            s = np.where(empty, scores_of(q, k, None, False, scale), s)
        with np.errstate(all="ignore"):
            m = s.max(axis=-1, keepdims=True, initial=-np.inf)
            if self.shared_maximum:
                m = np.broadcast_to(m.max(axis=-2, keepdims=True), m.shape)
            if self.no_maximum:
                m = np.zeros_like(m)
            shift = np.where(np.isneginf(m), 0, m) if self.guard else m
            p = np.exp((s - shift).astype(np.float32))
            total = p.sum(axis=-1, keepdims=True)
            dead = (total == 0) & self.guard
            output = p @ v.astype(np.float32) / np.where(dead, 1, total)
            output = np.where(dead, np.float32(self.empty_output), output)
            lse = np.asarray(self.lse(m, total, 1.0 / math.sqrt(q.shape[-1])))
            lse = np.where(dead, np.float32(self.empty_lse), lse)[..., 0]
        output = output.astype(q.dtype)
        return output if self.lse_dtype is None else (output, lse.astype(self.lse_dtype))


class Online:
    """One pass over key blocks; ``guard=False`` forms −inf − (−inf), ``rescale=False`` forgets to rescale."""

    def __init__(self, *, key_block=128, guard=True, rescale=True):
        self.key_block, self.guard, self.rescale = key_block, guard, rescale

    def __call__(self, q, k, v, *, mask=None, causal=False, scale=None):
        s = scores_of(q, k, mask, causal, scale)
        rows = s.shape[:-1]
        m = np.full((*rows, 1), -np.inf, np.float32)
        total = np.zeros((*rows, 1), np.float32)
        o = np.zeros((*rows, v.shape[-1]), np.float32)
        with np.errstate(all="ignore"):
            for start in range(0, k.shape[2], self.key_block):
                block = s[..., start : start + self.key_block]
                new = np.maximum(m, block.max(axis=-1, keepdims=True))
                shift = np.where(np.isneginf(new), np.float32(0), new) if self.guard else new
                factor = np.exp(m - shift) if self.rescale else np.float32(1)
                p = np.exp(block - shift)
                total = total * factor + p.sum(axis=-1, keepdims=True)
                o = o * factor + p @ v[:, :, start : start + self.key_block].astype(np.float32)
                m = new
            output = np.where(total == 0, np.float32(0), o / np.where(total == 0, 1, total))
            lse = np.where(total == 0, np.float32(-np.inf), m + np.log(total))[..., 0]
        return output.astype(q.dtype), lse


class LogAddExp:
    """Normalised partial outputs of key blocks, combined by their lse: no running maximum at all."""

    def __call__(self, q, k, v, *, mask=None, causal=False, scale=None):
        s = scores_of(q, k, mask, causal, scale).astype(np.float64)
        lse = np.full(s.shape[:-1], -np.inf)
        output = np.zeros((*s.shape[:-1], v.shape[-1]))
        with np.errstate(all="ignore"):
            for start in range(0, k.shape[2], 64):
                block = s[..., start : start + 64]
                part_lse = np.logaddexp.reduce(block, axis=-1)
                both = np.logaddexp(lse, part_lse)
                weights = np.where(np.isneginf(both)[..., None], 0, np.exp(block - both[..., None]))
                kept = np.where(np.isneginf(lse), 0, np.exp(lse - both))
                output = kept[..., None] * output + weights @ v[:, :, start : start + 64].astype(np.float64)
                lse = both
        return output.astype(q.dtype), lse.astype(np.float32)


def plain(q, k, v):
    """No options and no lse."""
    return TwoPass(lse_dtype=None)(q, k, v)


class Trap:
    """A sound kernel that does something else instead when a row has more keys than this."""

    def __init__(self, act, keys=4096):
        self.act, self.keys = act, keys

    def __call__(self, q, k, v, *, mask=None, causal=False, scale=None):
        if k.shape[2] > self.keys:
            self.act()
        return TwoPass()(q, k, v, mask=mask, causal=causal, scale=scale)


def kill_process():
    """Die as an integer division by zero does."""
    os.kill(os.getpid(), signal.SIGFPE)


def refuse_no_keys():
    """Refuse the call, which is a kernel's right."""
    msg = "need at least one key"
    raise ValueError(msg)
