"""Calls whose scores are known in every part: product, scale, cap, bias and mask; and what came of them."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from softcarry.auditing.examination import CaseRefused, Examination
from softcarry.auditing.golden import causal_mask

ROWS = 4
HEADS = 2
_TANH_ERROR = 2.0**-11


@dataclass(frozen=True)
class Case:
    """One call: four queries along different axes, each with the same products with the keys.

    Attributes
    ----------
    products : ndarray
        (n,) q·k, before the scale; n ≤ depth.
    depth : int
        d.
    scale, softcap : float, optional
        As of the call.
    bias : ndarray, optional
        (n,) an additive mask.
    hidden : ndarray, optional
        (n,) bool: keys that a mask hides.
    additive : bool
        Whether it hides them by −inf, or as a boolean.
    causal : bool
    keys : int
        tk; keys beyond n have product 0 and value 0, and lie between the others.
    """

    products: np.ndarray
    depth: int
    scale: float | None = None
    softcap: float | None = None
    bias: np.ndarray | None = None
    hidden: np.ndarray | None = None
    additive: bool = False
    causal: bool = False
    keys: int = 0

    @property
    def factor(self) -> float:
        """The scale that is meant."""
        return 1.0 / math.sqrt(self.depth) if self.scale is None else self.scale

    @property
    def read(self) -> np.ndarray:
        """Where the n keys lie among all."""
        count = len(self.products)
        return np.linspace(0, max(self.keys, count) - 1, count).astype(int)

    def spread(self, numbers, fill=0.0) -> np.ndarray:
        """Put a number a key, (n,), among those of all keys."""
        among = np.full(max(self.keys, len(self.products)), fill)
        among[self.read] = numbers
        return among

    def inputs(self):
        """Return q, k, v, float64 (1, 2, t, d); q has a 1 where k holds the products in every channel."""
        keys = max(self.keys, len(self.products))
        q = np.zeros((1, HEADS, ROWS, self.depth))
        q[:, :, np.arange(ROWS), np.linspace(0, self.depth - 1, ROWS).astype(int)] = 1.0
        k = np.broadcast_to(self.spread(self.products)[:, None], (1, HEADS, keys, self.depth))
        v = np.zeros((1, HEADS, keys, self.depth))
        v[:, :, self.read, np.arange(len(self.read))] = 1.0
        return q, k, v

    def options(self) -> dict[str, Any]:
        """Return the options of the call."""
        mask = None
        if self.hidden is not None:
            hidden = self.spread(self.hidden, fill=False).astype(bool)
            mask = np.where(hidden, -np.inf, 0.0) if self.additive else ~hidden
        elif self.bias is not None:
            mask = self.spread(self.bias)
        return {"scale": self.scale, "softcap": self.softcap, "mask": mask, "causal": self.causal}

    def __str__(self) -> str:
        parts = [f"d = {self.depth}, tk = {max(self.keys, len(self.products))}"]
        parts += [f"{name} {value:g}" for name, value in self._numbers() if value is not None]
        if self.hidden is not None:
            parts.append("mask of −inf" if self.additive else "boolean mask")
        parts += ["additive mask"] * (self.bias is not None) + ["causal"] * self.causal
        return ", ".join(parts)

    def _numbers(self):
        return ("scale", self.scale), ("softcap", self.softcap)


class Reading(NamedTuple):
    """A case and the weights that the kernel gave to its n keys, (2, 4, n)."""

    case: Case
    weights: np.ndarray
    sees: np.ndarray  # (4, tk) bool, what causal masks and masks let through


Rule = Callable[[Case], np.ndarray]
"""Gives the scores (tk,) of the keys, before masks hide any."""


class Fault(NamedTuple):
    """A known way of getting scores wrong: what to say, the scores that it gives, and what to change.

    ``of_hidden`` gives the score that hidden keys have by it.
    """

    message: str
    rule: Rule
    remedy: str
    of_hidden: Callable[[Case], float] = lambda case: -math.inf


def scores(case: Case, factor: float | None = None, bias_factor: float = 1.0) -> np.ndarray:
    """Return the scores (tk,) of a case: the scaled products, capped, and the bias added to them."""
    scaled = case.spread(case.products) * (case.factor if factor is None else factor)
    capped = scaled if case.softcap is None else case.softcap * np.tanh(scaled / case.softcap)
    return capped if case.bias is None else capped + bias_factor * case.spread(case.bias)


def read(examination: Examination, cases: Sequence[Case]) -> list[Reading]:
    """Make the calls; those that the kernel refuses are left out, and noted as skipped."""
    readings = []
    for case in cases:
        try:
            output = examination.call(*case.inputs(), **case.options()).output
        except CaseRefused:
            continue
        keys = max(case.keys, len(case.products))
        sees = np.ones((ROWS, keys), bool)
        if case.causal:
            sees = causal_mask(ROWS, keys, examination.causal)
        if case.hidden is not None:
            sees = sees & ~case.spread(case.hidden, fill=False).astype(bool)
        readings.append(Reading(case, output[0, ..., : len(case.products)], sees))
    return readings


def explains(examination: Examination, reading: Reading, fault: Fault) -> bool:
    """Whether scores by that rule give the weights that were read, within the bound on their error."""
    from softcarry.numerics import attention_error_bound

    case, v = reading.case, reading.case.inputs()[2][:, :, :, : len(reading.case.products)]
    with np.errstate(over="ignore", invalid="ignore"):
        wanted = np.where(reading.sees, fault.rule(case), fault.of_hidden(case))
    wanted = np.broadcast_to(wanted, (1, HEADS, *wanted.shape))
    finite = np.where(np.isfinite(wanted), wanted, 0.0)
    magnitudes = np.abs(finite)
    if case.bias is not None:  # product and bias may cancel
        magnitudes = magnitudes + 2.0 * np.abs(case.spread(case.bias))
    bound = np.asarray(
        attention_error_bound(
            wanted,
            magnitudes,
            v,
            depth=case.depth,
            input_format=examination.format,
            model=examination.model,
            output_format=examination.output_format,
        ).output
    )[0]
    exact = _softmax(wanted)[0] @ v[0]
    if case.softcap is not None:
        # δ ln w_j = δs_j − Σ p·δs, to first order.
        moved = _TANH_ERROR * (np.abs(finite) + np.abs(finite).max(axis=-1, keepdims=True))
        bound = bound + (_softmax(wanted) * moved @ v)[0]
    if examination.dtype == "float64":
        bound = 2.0 * bound
    return bool((np.abs(reading.weights - exact) <= bound).all())


def _softmax(wanted):
    largest = wanted.max(axis=-1, keepdims=True)
    terms = np.exp(wanted - np.where(np.isneginf(largest), 0.0, largest))
    total = terms.sum(axis=-1, keepdims=True)
    return terms / np.where(total == 0.0, 1.0, total)


def judge(
    examination: Examination, what: str, readings: Sequence[Reading], faults: Sequence[Fault]
) -> list[Reading]:
    """Hold readings to the scores that are meant: a finding for each kind of fault. Returns what is wrong."""
    right = Fault(what, scores, "")
    wrong = [reading for reading in readings if not explains(examination, reading, right)]
    lost = [reading for reading in wrong if not np.isfinite(reading.weights).all()]
    if lost:
        _report(
            examination,
            f"{what} does not come out finite",
            lost,
            "keep every score finite: subtract the maximum, and build tanh from exponentials of −|s| only",
        )
    explained = [reading for reading in wrong if np.isfinite(reading.weights).all()]
    of_all = [fault for fault in faults if all(explains(examination, each, fault) for each in explained)]
    groups: dict[str, tuple[str, list[Reading]]] = {}
    for reading in explained:
        known = of_all or [fault for fault in faults if explains(examination, reading, fault)]
        if not known and reading.case.causal and _has_the_scale(examination, reading):
            examination.skip(str(reading.case), "its keys are not those of the causal rule: see CAUSAL")
            continue
        message = known[0].message if known else f"weights are not those of {what} that is meant"
        remedy = known[0].remedy if known else "compute the scores as scale · q·k, capped, then masked"
        groups.setdefault(message, (remedy, []))[1].append(reading)
    for message, (remedy, of_it) in groups.items():
        if not any(finding.message.startswith(message) for finding in examination.findings):
            _report(examination, message, of_it, remedy)
    return wrong


def _report(examination, message, readings, remedy):
    shown = readings[0]
    examination.fail(
        f"{message} (at {shown.case})",
        evidence={
            "call": str(shown.case),
            "products q·k": shown.case.products,
            "weights": shown.weights[0, -1],
            "expected": _softmax(np.where(shown.sees, scores(shown.case), -np.inf))[-1, shown.case.read],
            "slope of ln weight over q·k": effective_scale(shown),
            "scale that is meant": shown.case.factor,
            "wrong calls": [str(reading.case) for reading in readings],
        },
        remedy=remedy,
    )


def _has_the_scale(examination, reading):
    # It tells two faults apart, and decides nothing about right and wrong: a wide margin will do.
    slope, meant = effective_scale(reading), reading.case.factor
    u = max(examination.format.unit_roundoff, examination.output_format.unit_roundoff)
    return slope is not None and abs(slope - meant) <= 64.0 * u * abs(meant)


def effective_scale(reading: Reading) -> float | None:
    """Fit ln weight = scale · q·k + constant, over the weights that are not lost in rounding."""
    weights, products = reading.weights[0, -1], reading.case.products
    used = np.isfinite(weights) & (weights > 2.0**-13)
    if len(set(products[used])) < 2:
        return None
    return float(np.polyfit(products[used], np.log(weights[used]), 1)[0])
