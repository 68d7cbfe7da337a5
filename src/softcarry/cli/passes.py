"""``softcarry passes``: how often each softmax touches memory."""

import math
import random
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from softcarry.cli._console import output, paragraph, progress, ratio, table, write_json
from softcarry.cli._options import AsJson, Whole, whole_number
from softcarry.cli._status import NOTHING_FOUND
from softcarry.errors import OptionError

if TYPE_CHECKING:
    from softcarry._counted_row import Pass
    from softcarry.memory_passes import Accesses

_SHOWN = 5
"""How many of the k best fit in a line or two."""


def passes(
    *,
    n: Whole = 1000,
    k: Whole = 5,
    seed: Annotated[int, Parameter(converter=whole_number, help="Seed of the random scores.")] = 0,
    offset: float = 0.0,
    json: AsJson = False,
) -> int:
    """Count how often each kind of softmax reads and writes a score.

    Each algorithm runs over a row of normal scores that counts loads and
    stores, of the scores and of the probabilities it writes. A long row does
    not fit in cache, and these accesses are then what the time goes to.
    What stays small is not counted: m, l, the k best and their results. The
    column held shows that it is small: it is the most loaded numbers that
    were kept at once.

    Parameters
    ----------
    n
        How many scores the row has.
    k
        How many of the largest probabilities the top-k finds.
    offset
        Added to every score. The probabilities stay the same, up to the
        rounding of the scores, but from about 700 on (in float64) the softmax
        without a maximum overflows.
    json
        Write JSON to stdout. Keys: schema, n, k, seed, offset, algorithms,
        ratios; each algorithm has algorithm, passes (name, loads, stores),
        loads, stores, per_element, held, l, and the k largest probabilities
        with their indices; ratios has softmax and topk.

    Returns
    -------
    int
        Exit status.
    """
    from softcarry.memory_passes import count_accesses
    from softcarry.numerics._arguments import whole

    n, k, seed = whole("n", n, 1), whole("k", k, 1), whole("seed", seed, 0)
    if not math.isfinite(offset):
        msg = f"offset is a finite number, such as 1000; got {offset}"
        raise OptionError(msg)
    draw = random.Random(seed)
    scores = [draw.gauss(0.0, 1.0) + offset for _ in range(n)]
    with progress("counting", 5) as advance:
        runs = count_accesses(scores, k=k, progress=lambda _done, _total: advance())
    softmax, topk = _proportion(runs[:3]), _proportion(runs[3:])
    if json:
        write_json(
            {
                "schema": "softcarry.passes/1",
                "n": n,
                "k": k,
                "seed": seed,
                "offset": offset,
                "algorithms": [_record(run, k) for run in runs],
                "ratios": {"softmax": softmax, "topk": topk},
            }
        )
        return NOTHING_FOUND
    _show(runs, offset, seed, softmax, topk)
    return NOTHING_FOUND


def _show(
    runs: "Sequence[Accesses]", offset: float, seed: int, softmax: Sequence[int], topk: Sequence[int]
) -> None:
    unsafe, safe, *_, fused = runs
    n, k = unsafe.n, len(fused.probabilities)
    shift = f" {'+' if offset > 0 else '-'} {abs(offset):g}" if offset else ""
    row = f"a row of {n} normal score{'s' if n > 1 else ''}{shift}, seed {seed}"
    output().print(_table(runs, f"Memory accesses per score of {row}"))
    paragraph("held: how many loaded numbers were kept at once, at most")
    paragraph(f"accesses, unsafe : safe : online = {_written(softmax)}")
    paragraph(f"accesses, top-{k} after safe softmax : fused with online softmax = {_written(topk)}")
    paragraph(_verdict(unsafe, safe))
    paragraph(_best(fused))
    paragraph("Milakov and Gimelshein 2018, arXiv:1805.02867, sections 2-4")


def _proportion(runs: "Sequence[Accesses]") -> list[int]:
    """Bring the accesses of the runs to lowest terms."""
    counts = [run.accesses for run in runs]
    divisor = math.gcd(*counts)
    return [count // divisor for count in counts]


def _written(proportion: Sequence[int]) -> str:
    return " : ".join(map(str, proportion))


def _record(run: "Accesses", k: int) -> dict[str, Any]:
    probabilities, indices = run.probabilities, run.indices
    if indices is None:
        # NaN first and ties to the lower index, as the top-k algorithms have it.
        by_size = sorted(range(run.n), key=lambda i: (not math.isnan(probabilities[i]), -probabilities[i], i))
        indices = tuple(by_size[:k])
        probabilities = tuple(probabilities[i] for i in indices)
    return {
        "algorithm": run.algorithm,
        "passes": [{"name": one.name, "loads": one.loads, "stores": one.stores} for one in run.passes],
        "loads": run.loads,
        "stores": run.stores,
        "per_element": run.per_element,
        "held": run.held,
        "l": run.l,
        "probabilities": probabilities,
        "indices": indices,
    }


def _table(runs: "Sequence[Accesses]", title: str) -> Any:
    lines = table(
        "algorithm", "pass", "loads", "stores", "accesses", "held", title=title, left=("algorithm", "pass")
    )
    for run in runs:
        for one in run.passes:
            first, last = one is run.passes[0], one is run.passes[-1]
            lines.add_row(
                run.algorithm if first else "",
                f"{one.name}: {_kinds(one)}",
                f"{one.loads / run.n:g}",
                f"{one.stores / run.n:g}",
                f"{run.per_element:g}" if last else "",
                str(run.held) if last else "",
                end_section=last,
            )
    return lines


def _kinds(one: "Pass") -> str:
    return ", ".join(word for word, count in (("read", one.loads), ("write", one.stores)) if count)


def _verdict(unsafe: "Accesses", safe: "Accesses") -> str:
    """Say what became of the softmax without a maximum, beside the one with it."""
    lost = {"NaN": sum(map(math.isnan, unsafe.probabilities)), "0": unsafe.probabilities.count(0.0)}
    harm = f"of its {unsafe.n} probabilities {' and '.join(f'{n} are {x}' for x, n in lost.items() if n)}"
    if unsafe.l == math.inf:
        largest = math.log(sys.float_info.max)
        return (
            f"unsafe softmax overflowed: l is inf, and {harm}; e^s is beyond float64 above s = {largest:.2f} "
            "(float32: 88.72)"
        )
    if unsafe.l == 0.0:
        return f"unsafe softmax underflowed: every e^s is 0, so is l, and {harm}"
    error = max(abs(p - q) / q for p, q in zip(unsafe.probabilities, safe.probabilities, strict=True) if q)
    return f"unsafe softmax differs from safe softmax by {ratio(error)} at most; try --offset 1000"


def _best(fused: "Accesses") -> str:
    found = list(zip(fused.indices or (), fused.probabilities, strict=True))
    words = [f"{p:.4g} at {i}" for i, p in found[:_SHOWN]]
    return f"largest probabilities: {', '.join(words)}{', …' if len(found) > _SHOWN else ''}"
