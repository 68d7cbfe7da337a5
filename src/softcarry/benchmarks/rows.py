"""The row functions beside what people use today, case by case.

``logsumexp`` (beside SciPy's too), ``softmax``, ``softmax_topk`` and ``logprobs``: over a vocabulary of
128256 in three dtypes, over short rows, and along the first axis. torch and softcarry work on the same bytes
with the same number of threads; SciPy has one.
"""

from collections.abc import Callable, Iterator
from functools import lru_cache, partial
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

import softcarry as sc
from softcarry.benchmarks._cases import Calls, Case
from softcarry.benchmarks._row_truth import RowTruth, disagreement

VOCABULARY = (64, 128256)
SHORT = ((4096, 128), (100000, 16))


class Inputs(NamedTuple):
    """Scores, one target a row, and what is right."""

    x: "np.ndarray[Any, Any]"
    targets: "np.ndarray[Any, Any]"
    truth: RowTruth


def long_shape(*, quick: bool) -> tuple[int, int]:
    """Return the shape of the long rows; with ``quick`` they are fewer, an eighth.

    Examples
    --------
    >>> long_shape(quick=True)
    (8, 128256)
    """
    rows, n = VOCABULARY
    return (rows // 8 if quick else rows), n


def row_cases(*, quick: bool = False) -> list[Case]:
    """List every case; with ``quick`` there are fewer long rows.

    Examples
    --------
    >>> [case.name for case in row_cases() if case.group == "bfloat16"]
    ['logsumexp', 'softmax', 'top5', 'logprobs']
    """
    long = long_shape(quick=quick)
    return [
        *_long_cases(long),
        *(case for dtype in ("bfloat16", "float16") for case in _half_cases(long, dtype)),
        *(case for shape in SHORT for case in _short_cases(shape)),
        *_column_cases((long[1], long[0])),
    ]


def _long_cases(shape: tuple[int, int]) -> Iterator[Case]:
    case = partial(_case, "float32", shape, "float32")
    yield case("logsumexp", "torch.logsumexp", _logsumexp, target=5.0, share_target=0.7)
    yield case("softmax", "torch.softmax", partial(_softmax, out=True), target=1.4)
    yield case("softmax-out", "torch.softmax out=", partial(_softmax, out=True, peer_out=True))
    yield case("top5", "torch.topk(softmax)", partial(_top, k=5), target=7.0)
    yield case("top50", "torch.topk(softmax)", partial(_top, k=50), target=5.0)
    yield case("logprobs", "torch cross_entropy", _logprobs, target=6.0)
    scipy = partial(_case, "scipy", shape, "float32", library="scipy")
    yield scipy("logsumexp", "scipy logsumexp", _logsumexp_scipy, target=25.0)


def _half_cases(shape: tuple[int, int], dtype: str) -> Iterator[Case]:
    case = partial(_case, dtype, shape, dtype, target=4.0)
    yield case("logsumexp", "torch.logsumexp", _logsumexp)
    yield case("softmax", "torch.softmax", partial(_softmax, out=True))
    yield case("top5", "torch.topk(softmax)", partial(_top, k=5))
    yield case("logprobs", "torch cross_entropy", _logprobs)


def _short_cases(shape: tuple[int, int]) -> Iterator[Case]:
    case = partial(_case, "x".join(map(str, shape)), shape, "float32", target=1.0)
    yield case("logsumexp", "torch.logsumexp", _logsumexp)
    yield case("softmax", "torch.softmax", _softmax)
    yield case("log_softmax", "torch.log_softmax", partial(_softmax, logarithm=True))
    yield case("top5", "torch.topk(softmax)", partial(_top, k=5))
    yield case("logprobs", "torch cross_entropy", _logprobs)


def _column_cases(shape: tuple[int, int]) -> Iterator[Case]:
    case = partial(_case, "columns", shape, "float32")
    yield case("logsumexp", "torch.logsumexp", partial(_logsumexp, axis=0))
    yield case("softmax", "torch.softmax", partial(_softmax, axis=0, out=True))


def _case(
    group: str,
    shape: tuple[int, int],
    dtype: str,
    name: str,
    peer: str,
    build: Callable[..., Calls],
    *,
    library: str = "torch",
    target: float | None = None,
    share_target: float | None = None,
) -> Case:
    return Case(group, name, shape, dtype, peer, library, partial(build, shape, dtype), target, share_target)


@lru_cache(maxsize=1)
def inputs(shape: tuple[int, int], dtype: str, axis: int = -1) -> Inputs:
    """Draw scores as a language model gives them: normal, and in every second row one that decides.

    The deciding scores stand at places from the first to the last, so that a function which drops either end
    of its rows is seen; the reductions are along ``axis``. The last inputs asked for are kept.
    """
    rng = np.random.default_rng([*shape, axis % 2])
    x = rng.standard_normal(shape, np.float32) * np.float32(3.0)
    along = x if axis == -1 else x.T
    count, n = along.shape
    deciding = np.arange(0, count, 2)
    along[deciding, np.linspace(0, n - 1, len(deciding)).astype(np.int64)] += np.float32(16.0)
    x = x.astype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
    return Inputs(x, rng.integers(0, n, count), RowTruth(x if axis == -1 else x.T))


def as_torch(x: "np.ndarray[Any, Any]") -> Any:
    """Return the torch tensor of the same bytes.

    Examples
    --------
    >>> as_torch(np.zeros(2, ml_dtypes.bfloat16)).dtype
    torch.bfloat16
    """
    import torch

    if x.dtype == ml_dtypes.bfloat16:
        return torch.from_numpy(x.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(x)


def _logsumexp(shape: tuple[int, int], dtype: str, *, axis: int = -1) -> Calls:
    import torch

    x, _, truth = inputs(shape, dtype, axis)
    ours, tensor = partial(sc.logsumexp, x, axis=axis), as_torch(x)
    return Calls(
        ours,
        partial(torch.logsumexp, tensor, axis),
        lambda: disagreement("logsumexp", ours(), truth.logsumexp()),
        buffer=x,
        traffic=x.nbytes,
    )


def _logsumexp_scipy(shape: tuple[int, int], dtype: str) -> Calls:
    from scipy.special import logsumexp

    x, _, truth = inputs(shape, dtype)
    ours = partial(sc.logsumexp, x)
    return Calls(
        ours,
        partial(logsumexp, x, axis=-1),
        lambda: disagreement("logsumexp", ours(), truth.logsumexp()),
        buffer=x,
        traffic=x.nbytes,
    )


def _softmax(
    shape: tuple[int, int],
    dtype: str,
    *,
    axis: int = -1,
    out: bool = False,
    peer_out: bool = False,
    logarithm: bool = False,
) -> Calls:
    import torch

    x, _, truth = inputs(shape, dtype, axis)
    tensor = as_torch(x)
    name = "log_softmax" if logarithm else "softmax"
    ours = partial(getattr(sc, name), x, axis=axis, **({"out": np.zeros_like(x)} if out else {}))
    peer = partial(getattr(torch, name), tensor, axis)

    def wrong() -> str:
        result = ours()
        expected = truth.log_softmax() if logarithm else truth.softmax()
        return disagreement(name, result if axis == -1 else np.asarray(result).T, expected)

    return Calls(
        ours,
        partial(peer, out=torch.zeros_like(tensor)) if peer_out else peer,
        wrong,
        buffer=x,
        traffic=2 * x.nbytes,
    )


def _top(shape: tuple[int, int], dtype: str, *, k: int) -> Calls:
    import torch

    x, _, truth = inputs(shape, dtype)
    tensor = as_torch(x)
    ours = partial(sc.softmax_topk, x, k)

    def wrong() -> str:
        probabilities, indices, lse = ours()
        expected = truth.top_indices(k)
        if not np.array_equal(indices, expected):
            row = int(np.argwhere(np.asarray(indices) != expected)[0, 0])
            return f"top indices of row {row} are {indices[row].tolist()}, expected {expected[row].tolist()}"
        return disagreement("probabilities", probabilities, truth.softmax().at(expected)) or disagreement(
            "lse", lse, truth.logsumexp()
        )

    return Calls(ours, lambda: torch.topk(torch.softmax(tensor, -1), k), wrong, buffer=x, traffic=x.nbytes)


def _logprobs(shape: tuple[int, int], dtype: str) -> Calls:
    import torch

    x, targets, truth = inputs(shape, dtype)
    tensor, chosen = as_torch(x), torch.from_numpy(targets)
    ours = partial(sc.logprobs, x, targets)
    return Calls(
        ours,
        partial(torch.nn.functional.cross_entropy, tensor, chosen, reduction="none"),
        lambda: disagreement("logprobs", ours(), truth.log_softmax().at(targets)),
        buffer=x,
        traffic=x.nbytes,
    )
