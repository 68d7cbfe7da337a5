"""A call of a kernel in one line."""

import numpy as np

from softcarry.auditing.subject import ALIASES


def describe_call(q, k, v, **options) -> str:
    """Write a call in one line: the shapes, and the options that are given.

    Examples
    --------
    >>> describe_call(*[np.zeros((1, 1, 2, 4))] * 3, causal=True, scale=0.5)
    'q (1, 1, 2, 4), k (1, 1, 2, 4), v (1, 1, 2, 4), causal, scale 0.5'
    """
    parts = [f"q {q.shape}, k {k.shape}, v {v.shape}"]
    for name, value in options.items():
        if name == "mask":
            parts.append("boolean mask" if np.asarray(value).dtype == bool else "additive mask")
        elif name == "causal":
            parts.append("causal")
        elif name in ALIASES:
            shown = np.asarray(value).tolist() if isinstance(value, np.ndarray) else value
            parts.append(f"{name} {shown:g}" if isinstance(value, float) else f"{name} {shown}")
    return ", ".join(parts)
