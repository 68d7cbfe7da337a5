"""Kernels that take arguments that do not fit for others that do; importable in a process of their own."""

import numpy as np

from mutants import TwoPass, kill_process

_attention = TwoPass(lse_dtype=None)


def right(q, k, v, *, mask=None):
    """Refuse what a documented kernel refuses, and compute the rest."""
    heads = q.shape[1] if q.ndim == 4 else 0
    if not q.ndim == k.ndim == v.ndim == 4 or k.shape[:3] != v.shape[:3] or not q.dtype == k.dtype == v.dtype:
        msg = "q, k and v do not fit"
        raise ValueError(msg)
    if q.shape[0] != k.shape[0] or heads % k.shape[1] or q.shape[3] != k.shape[3]:
        msg = "q and k do not fit"
        raise ValueError(msg)
    k, v = (np.repeat(x, heads // k.shape[1], axis=1) for x in (k, v))
    return _attention(q, k, v, mask=mask)


def shorter_of_k_and_v(q, k, v, *, mask=None):
    n = min(k.shape[2], v.shape[2])
    return right(q, k[:, :, :n], v[:, :, :n], mask=mask)


def heads_in_turn(q, k, v, *, mask=None):
    index = np.arange(q.shape[1]) % k.shape[1]
    return right(q, k[:, index], v[:, index], mask=mask)


def shorter_depth(q, k, v, *, mask=None):
    d = min(q.shape[-1], k.shape[-1])
    return right(q[..., :d], k[..., :d], v, mask=mask)


def batch_of_the_query(q, k, v, *, mask=None):
    if k.ndim == 4:
        k, v = k[: q.shape[0]], v[: q.shape[0]]
    return right(q, k, v, mask=mask)


def mask_cut(q, k, v, *, mask=None):
    if mask is not None:
        mask = mask[..., : q.shape[2], : k.shape[2]]
    return right(q, k, v, mask=mask)


def mask_ignored_if_it_does_not_fit(q, k, v, *, mask=None):
    fits = mask is not None and mask.shape == (*q.shape[:3], k.shape[2])
    return right(q, k, v, mask=mask if fits else None)


def bits_of_the_query(q, k, v, *, mask=None):
    """Read the memory of k and v as if their dtype were that of q."""
    k, v = (np.resize(np.frombuffer(x.tobytes(), q.dtype), x.shape) for x in (k, v))
    return right(q, k, v, mask=mask)


def dies_of_longer_values(q, k, v, *, mask=None):
    if v.shape[-2] > k.shape[-2]:
        kill_process()
    return right(q, k, v, mask=mask)


def shapes_in_place_of_an_output(q, k, v, *, mask=None):
    try:
        return right(q, k, v, mask=mask)
    except ValueError:
        return None
