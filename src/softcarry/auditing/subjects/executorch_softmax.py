"""ExecuTorch's softmax kernel, through an exported program, as a subject.

Observed with ExecuTorch 1.5: float32, bfloat16 and float16. The program is exported once a dtype, for any
number of rows up to a limit. A row whose scores are all −inf becomes NaN. Releases before the mend of
executorch PR#20090 keep the row sums of 16-bit dtypes in those dtypes.
"""

import warnings
from functools import lru_cache
from importlib import import_module

from softcarry.auditing.softmax_subject import softmax_subject
from softcarry.auditing.subject import Subject
from softcarry.auditing.subjects import KNOWN
from softcarry.auditing.subjects._executorch import quiet

# The memory of a program is planned for its largest call: 16 · 2^17 numbers, in and out.
_ROWS, _KEYS = 16, 1 << 17


def softmax() -> Subject:
    """Return the softmax of ExecuTorch's runtime.

    Returns
    -------
    Subject
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # its imports use what has been renamed
        import_module("executorch.exir")  # which needs more packages than the runtime does
    name = "executorch-softmax"
    return softmax_subject(row_softmax, name=name, arrays="torch", dtypes=KNOWN[name].dtypes)


def row_softmax(x):
    """Run the exported program on rows, a few at a time.

    Parameters
    ----------
    x : torch.Tensor
        (..., n) float32, bfloat16 or float16.

    Returns
    -------
    torch.Tensor
        (..., n) of the same dtype.
    """
    import torch

    if x.numel() == 0:
        return x
    rows = x.reshape(-1, x.shape[-1])
    program, _ = _program(str(x.dtype))
    with quiet():
        # What it returns lies in memory that its next call writes to.
        parts = [program.forward([part])[0].clone() for part in rows.split(_ROWS)]
    return torch.cat(parts).reshape(x.shape)


@lru_cache(maxsize=4)
def _program(dtype):
    import torch
    from executorch.exir import to_edge  # pyright: ignore[reportMissingImports]
    from executorch.extension.pybindings import _C  # pyright: ignore[reportMissingImports]

    class Softmax(torch.nn.Module):
        def forward(self, x):
            return torch.softmax(x, dim=-1)

    example = torch.zeros(2, 8, dtype=getattr(torch, dtype.removeprefix("torch.")))
    sizes = {"x": {0: torch.export.Dim("rows", max=_ROWS), 1: torch.export.Dim("keys", max=_KEYS)}}
    exported = torch.export.export(Softmax(), (example,), dynamic_shapes=sizes)
    # The runtime reads its program where it lies, so that the bytes must live as long.
    content = to_edge(exported).to_executorch().buffer
    return _C._load_for_executorch_from_buffer(content), content
