"""Which key blocks are safe for a carry format, and why.

Two limits are told apart. The *stall point* is the number of updates after which a sequential sum of equal
terms stops moving, 2^(t+1). The *error point* is the number of updates up to which the error stays within a
tolerance; it comes much earlier.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from softcarry.errors import OptionError
from softcarry.numerics._arguments import one_of, positive, whole
from softcarry.numerics._carry_sums import CarrySums, Question, error_point, stall_updates
from softcarry.numerics._formats import FloatFormat, formats, get_format
from softcarry.numerics.summation_bounds import ROUNDINGS

_LONGEST = 2**53

PLAN_ORDERS = ("sequential", "pairwise", "carry-stack", "kahan", "two-level")


@dataclass(frozen=True)
class PlanOption:
    """One key block of a plan.

    Attributes
    ----------
    key_block : int
        Bc.
    updates : int
        Carry updates of each split, ⌈⌈n/s⌉/Bc⌉.
    stalls : bool
        Whether the sum of equal terms stops moving before the row's end.
    stall_n : int or float
        The row length at which it does, s·Bc·2^(t+1); inf if it never does.
    worst_case : float
        Bound on the relative error of l, whatever the scores; inf where there is none.
    probabilistic : float
        The same with λ√updates·u, to first order, in place of updates·u; inf where it is invalid: beyond
        the stall point and for directed rounding.
    safe : bool
        Whether the error stays within the tolerance: the worst case, or for stochastic rounding the
        probabilistic error. Never where l, which equal scores drive up to n, may exceed the format's
        largest number; both errors are inf there.
    reason : str
        Why, in a sentence.
    """

    key_block: int
    updates: int
    stalls: bool
    stall_n: int | float
    worst_case: float
    probabilistic: float
    safe: bool
    reason: str


@dataclass(frozen=True)
class Plan:
    """The answer of ``plan``: one option for each key block, the limits behind them, and what else would do.

    Attributes
    ----------
    n, fmt, tolerance, splits, order, rounding, lambda_
        The question; ``fmt`` is the format's name.
    stall_updates : int or float
        The stall point: updates after which a sum of equal terms stops moving. inf if it never does.
    worst_case_updates, probabilistic_updates : int or float
        The error points: the most updates whose bound is within the tolerance, if nothing else erred. 0 if
        not even one is, inf if every number is. The probabilistic one holds only up to the stall point.
    options : tuple of PlanOption
        From the smallest key block to the largest.
    alternatives : tuple of str
        What meets the tolerance instead, if no option does; empty otherwise.
    """

    n: int
    fmt: str
    tolerance: float
    splits: int
    order: str
    rounding: str
    lambda_: float
    stall_updates: int | float
    worst_case_updates: int | float
    probabilistic_updates: int | float
    options: tuple[PlanOption, ...]
    alternatives: tuple[str, ...]

    @property
    def safe_key_blocks(self) -> tuple[int, ...]:
        """The key blocks of the options that are safe."""
        return tuple(option.key_block for option in self.options if option.safe)

    def explain(self) -> str:
        """Put the plan into text: the limits, a line for each key block, and the alternatives.

        Examples
        --------
        >>> print(plan(n=4096, fmt="bfloat16", key_block=64).explain().splitlines()[0])
        n = 4096, l carried in bfloat16, tolerance 0.01: no key block asked for is safe
        """
        safe = self.safe_key_blocks
        verdict = (
            f"safe key blocks: {', '.join(map(str, safe))}" if safe else "no key block asked for is safe"
        )
        splits = f" in {self.splits} splits" if self.splits > 1 else ""
        lines = [
            f"n = {self.n}{splits}, l carried in {self.fmt}, tolerance {self.tolerance:g}: {verdict}",
            f"error point: {_count(self.worst_case_updates)} in the worst case, "
            f"{_count(self.probabilistic_updates)} in the probabilistic model (λ = {self.lambda_:g})",
            "stall point: none"
            if self.stall_updates == math.inf
            else f"stall point: {_count(self.stall_updates)}, after which a sum of equal terms stops moving",
        ]
        lines += [f"Bc = {option.key_block}: {option.reason}" for option in self.options]
        lines += [f"instead: {alternative}" for alternative in self.alternatives]
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        """Put the plan into plain types that JSON can hold; what is infinite is None.

        Examples
        --------
        >>> plan(n=64, key_block=64).to_dict()["options"][0]["stall_n"]
        16384
        """
        return _finite({**asdict(self), "safe_key_blocks": self.safe_key_blocks})


def plan(
    *,
    n: int,
    fmt: str | FloatFormat = "bfloat16",
    key_block: int | Sequence[int] | None = None,
    tolerance: float = 1e-2,
    splits: int = 1,
    order: str = "sequential",
    rounding: str = "nearest-even",
    flush_every: int | None = None,
    lambda_: float = 1.0,
) -> Plan:
    """Say which key blocks keep the relative error of l within a tolerance, and why.

    Each of the s key splits adds ⌈⌈n/s⌉/Bc⌉ block sums to its carry, rounding every time. The block sums
    are made in float32, or in the carry format if that is wider, and the s carries are merged in the carry
    format.

    Parameters
    ----------
    n : int
        Keys in a row.
    fmt : str or FloatFormat
        The carry format of l.
    key_block : int or sequence of int, optional
        The key blocks to judge. None: the powers of two up to n, and n.
    tolerance : float
        The relative error of l to stay within.
    splits : int
        s, the key splits that are carried apart and merged at the end.
    order : {"sequential", "pairwise", "carry-stack", "kahan", "two-level"}
        How the block sums are added up. Only a sequential sum stalls.
    rounding : str
        Rounding mode of FloatFormat.
    flush_every : int, optional
        Updates between two flushes of "two-level"; needed for it.
    lambda_ : float
        λ of the probabilistic model: 1 is what is seen, 6 leaves 3e-8 a term (``probabilistic_gamma``). For
        stochastic rounding it counts standard deviations.

    Returns
    -------
    Plan
        ``safe_key_blocks``, ``options``, ``explain()`` and ``to_dict()``. o obeys the same bounds relative to
        Σ exp(s − m)·abs(v).

    Raises
    ------
    OptionError
        If n, a key block, the splits or ``flush_every`` is not a whole number of at least 1, the tolerance or
        λ not above 0, or the format, order or rounding unknown.

    References
    ----------
    ``summation_bound`` (Higham, Accuracy and Stability of Numerical Algorithms, 2nd ed., SIAM 2002, chapter
    4), ``probabilistic_gamma`` (Higham and Mary, SISC 41(5), 2019; Connolly, Higham and Mary, SISC 43(1),
    2021), ``merge_bound`` and ``stall_level``.

    Examples
    --------
    >>> p = plan(n=8192, fmt="float16")
    >>> p.safe_key_blocks
    (512, 1024, 2048, 4096, 8192)
    >>> p.stall_updates, p.worst_case_updates
    (2048, 20)
    """
    n, splits = whole("n", n, 1), whole("splits", splits, 1)
    if n > _LONGEST:
        msg = f"n is at most 2**53, beyond which float64 no longer counts keys; got {n}"
        raise OptionError(msg)
    if splits > n:
        msg = f"splits is at most n = {n}, a split without keys adds nothing; got {splits}"
        raise OptionError(msg)
    carry = get_format(fmt)
    tolerance, lambda_ = positive("tolerance", tolerance), positive("lambda_", lambda_)
    one_of("order", order, PLAN_ORDERS)
    one_of("rounding", rounding, ROUNDINGS)
    if order == "two-level" and flush_every is None:
        msg = "order='two-level' needs flush_every=, the updates between two flushes; got None"
        raise OptionError(msg)
    flush = None if flush_every is None else whole("flush_every", flush_every, 1)
    sums = CarrySums(carry, order, rounding, flush, lambda_)
    stall = stall_updates(carry, rounding) if order == "sequential" else math.inf
    question = Question(n, splits, tolerance, stall)
    options = tuple(_option(question, block, sums) for block in _key_blocks(key_block, n))
    return Plan(
        n=n,
        fmt=carry.name,
        tolerance=tolerance,
        splits=splits,
        order=order,
        rounding=rounding,
        lambda_=lambda_,
        stall_updates=stall,
        worst_case_updates=error_point(sums.worst_case, tolerance),
        probabilistic_updates=error_point(sums.probabilistic_model, tolerance),
        options=options,
        alternatives=()
        if any(option.safe for option in options)
        else tuple(_alternatives(question, options, sums)),
    )


def _key_blocks(key_block: int | Sequence[int] | None, n: int) -> list[int]:
    if key_block is None:
        return sorted({*(2**power for power in range(n.bit_length())), n})
    asked = key_block if isinstance(key_block, Sequence) and not isinstance(key_block, str) else [key_block]
    if not asked:
        msg = "key_block is a whole number, several, or None for the powers of two up to n; got none"
        raise OptionError(msg)
    return sorted({whole("key_block", block, 1) for block in asked})


def _option(question: Question, key_block: int, sums: CarrySums) -> PlanOption:
    keys = -(-question.n // question.splits)
    updates = -(-keys // key_block)
    stalls = updates > question.stall
    around = sums.around(min(key_block, keys), question)
    worst = sums.worst_case(updates) + around
    probable = math.inf if stalls else sums.probabilistic_model(updates) + around
    judged = probable if sums.rounding == "stochastic" else worst
    safe = judged <= question.tolerance
    return PlanOption(
        key_block=key_block,
        updates=updates,
        stalls=stalls,
        stall_n=question.stall * key_block * question.splits,
        worst_case=worst,
        probabilistic=probable,
        safe=safe,
        reason=_reason(question, updates, stalls, worst, probable, safe, sums),
    )


def _reason(question, updates, stalls, worst, probable, safe, sums) -> str:
    counted = _count(updates) + (" a split" if question.splits > 1 else "")
    tolerance = f"{question.tolerance:g}"
    if question.n > sums.fmt.largest:
        limit = f"{sums.fmt.largest:g}, the largest number of {sums.fmt.name}"
        return f"unsafe: l may reach {question.n}, above {limit}"
    if stalls:
        return f"unsafe: {counted}, and the sum of equal terms stops moving after {question.stall}"
    stochastic = sums.rounding == "stochastic"
    if safe and stochastic:
        return f"safe: {counted}, probabilistic error {probable:.2g} is within {tolerance}"
    if safe:
        return f"safe: {counted}, worst-case error {worst:.2g} is within {tolerance}"
    if stochastic:
        return f"unsafe: {counted}, probabilistic error {probable:.2g} is above {tolerance}"
    bound = f"worst-case error {worst:.2g} is above" if worst < math.inf else "no worst-case bound is within"
    far = f", though the sum stalls only after {question.stall}" if question.stall < math.inf else ""
    likely = f"; {probable:.2g} is likely, not guaranteed" if probable <= question.tolerance else ""
    return f"unsafe: {counted}, {bound} {tolerance}{far}{likely}"


def _alternatives(question: Question, options: tuple[PlanOption, ...], sums: CarrySums) -> Iterator[str]:
    """Say what would meet the tolerance, with that of the key blocks asked for that serves it best."""
    keys = -(-question.n // question.splits)

    def best(**changes) -> tuple[float, int]:
        other = replace(sums, **changes)
        return min(
            (other.worst_case(option.updates) + other.around(min(option.key_block, keys), question), block)
            for option in options
            for block in (option.key_block,)
        )

    allowed = error_point(sums.worst_case, question.tolerance)
    if 0 < allowed < min(option.updates for option in options):
        larger = -(-keys // int(allowed))
        updates = -(-keys // larger)
        if sums.worst_case(updates) + sums.around(larger, question) <= question.tolerance:
            yield f"a key block of at least {larger}, for {_count(updates)}"
    for wider in (formats["float32"], formats["float64"]):
        error, block = best(fmt=wider)
        if wider.mantissa_bits > sums.fmt.mantissa_bits and error <= question.tolerance:
            yield f"carry l in {wider.name}: worst-case error {error:.2g} with Bc = {block}"
            break
    if sums.fmt.mantissa_bits < formats["float32"].mantissa_bits:
        flush = error_point(lambda every: best(order="two-level", flush_every=every)[0], question.tolerance)
        if 0 < flush < math.inf:
            error, block = best(order="two-level", flush_every=flush)
            after = f"flush into a float32 sum after {_count(flush)}"
            yield f"{after}: worst-case error {error:.2g} with Bc = {block}"
    for order, words in (("kahan", "a compensated (Kahan) sum"), ("carry-stack", "a carry stack")):
        error, block = best(order=order)
        if order != sums.order and error <= question.tolerance:
            yield f"{words} in {sums.fmt.name}: worst-case error {error:.2g} with Bc = {block}"


def _count(updates: int | float) -> str:
    if updates == math.inf:
        return "any number of updates"
    return f"{updates if updates < 10**9 else format(updates, '.3g')} update{'' if updates == 1 else 's'}"


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
