"""An attention: f(q, k, v[, mask]), asked with one query and few keys, and then by the audit.

Scores are set one by one: q = (√d, 0, …) and k_j = (s_j, 0, …), so that score j is s_j; value j is
(v_j, 0, …). d is 1 where the function takes it, and then q is 1, k_j is s_j and v_j is v_j.
"""

import math
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any

import numpy as np

from softcarry.auditing._audit import audit
from softcarry.auditing._calling import KernelRaisedError, MalformedResultError
from softcarry.auditing.blocks._asking import Answers, Case, NotApplicableError, Question
from softcarry.auditing.blocks._exact import attention as exact
from softcarry.auditing.blocks._kernel import prepare_kernel
from softcarry.auditing.blocks._rows import sized
from softcarry.auditing.blocks._tolerance import TINY, weight_tolerance
from softcarry.auditing.blocks._values import agree, row_text, text
from softcarry.auditing.contract import Contract
from softcarry.auditing.probes import CHECKS
from softcarry.report.model import Fact, Skip, Verdict

_DEPTHS = (1, 4, 16, 64)
_LENGTHS = (*range(1, 67), 96, 127, 128, 129, 192, 255, 256, 257, 511, 512, 513, 1025)
_QUERIES = (2, 3, 4, 5, 8, 9, 16, 17, 32, 33, 64, 65, 128, 129)
_AUDITED = ("EMPTY", "MASKREP", "TAIL", "RANGE", "REF")
_PATIENCE = 3e-3
"""Seconds that a call of 32 queries and 64 keys may take: the audit makes hundreds."""
_PAPER = "FlashAttention, Dao et al. 2022, arXiv:2205.14135, Algorithm 1"
_BASICS = ("PLAIN", "SCALE", "OVERFLOW", "LENGTHS")


class Attention:
    """An attention that can be called.

    Parameters
    ----------
    function : callable
    empty : {"any", "zero"}
        What a row without keys may give.

    Raises
    ------
    SubjectError
        If no plain call gives an output.
    """

    dtype = "float32"

    def __init__(self, function: Callable[..., Any], *, empty: str = "any"):
        self.empty = empty
        self.calling, self.library, self.axes = prepare_kernel(function)
        self.masks = "mask" in self.calling.subject.keywords
        self.depth = next((d for d in _DEPTHS if self._takes(d)), _DEPTHS[-1])

    @property
    def facts(self) -> dict[str, Fact]:
        """What was inferred."""
        return {
            "axes": Fact(self.axes, 1.0, "the first that a plain call takes"),
            "takes a mask": Fact(self.masks, 1.0, "read off the signature"),
            "NaN behind the mask": self._nan_behind_mask(),
        }

    def _nan_behind_mask(self):
        """Try what check POISON of the audit is about: many sound functions let it through."""
        try:
            came = self([0.0, 0.0], [1.0, math.nan], [[1, 0]])
        except (KernelRaisedError, MalformedResultError, NotApplicableError) as error:
            return Fact(None, 0.0, str(error))
        words = "reaches the output" if _is_nan(came) else "is selected away"
        return Fact(words, 1.0, "a NaN value at a masked key")

    def _takes(self, depth):
        column = np.zeros((1, 1, 64, depth))
        try:
            self.calling(column, column, column)
        except (KernelRaisedError, MalformedResultError):
            return False
        return True

    def __call__(
        self,
        scores: Sequence[float],
        values: Sequence[float],
        masks: Any = None,
        *,
        queries: Sequence[float] = (1.0,),
    ) -> np.ndarray:
        """Return the outputs (t,) of queries whose scores are those, times a number for each query."""
        q = self._column(np.sqrt(self.depth) * np.asarray(queries))
        mask = None if masks is None else np.asarray(masks, bool)[None, None]
        if mask is not None and not self.masks:
            msg = "the function takes no mask"
            raise NotApplicableError(msg)
        output = self.calling(q, self._column(scores), self._column(values), mask=mask).output
        return output[0, 0, :, 0]

    def _column(self, numbers):
        x = np.zeros((1, 1, len(numbers), self.depth))
        x[0, 0, :, 0] = numbers
        return x

    def questions(self) -> list[Question]:
        """List the questions to this function, in order."""
        return [
            Question(
                "SCALE",
                "scores are not scaled by 1/√d",
                "multiply q·k by 1/√d, d the last axis of q",
                "tt-metal#33304, jax Pallas mha (another default scale)",
                [self._scaled()],
            ),
            Question(
                "PLAIN",
                "wrong on a plain call",
                "output = Σ e^(s − m)·v / Σ e^(s − m), with m the maximum of the scores",
                _PAPER,
                [self._counted(s) for s in ([0.0], [0.0, 0.0], [1.0, 0.0], [2.0, 1.0, 0.0])],
                after=("SCALE",),
            ),
            Question(
                "OVERFLOW",
                "overflows: e^s is taken of large scores, without subtracting the maximum",
                "take e^(s − m), with m the running maximum",
                "pytorch#62897 (a softmax that forgot its maximum)",
                [
                    self._counted(s, agrees=_finite)
                    for s in ([1000.0], [1000.0, 0.0], [0.0, 1000.0], [-1000.0])
                ],
                after=("SCALE", "PLAIN"),
            ),
            Question(
                "LENGTHS",
                _explain_length,
                "visit the last, partial block, and mask what lies beyond it with −inf",
                "pytorch#159247, jax#27224, tiny-flash-attention#12",
                [
                    *(self._counted([0.0] * n) for n in _LENGTHS),
                    *(self._counted([0.0] * 3, queries=(1.0,) * t) for t in _QUERIES),
                ],
                after=("SCALE", "PLAIN", "OVERFLOW"),
            ),
            Question(
                "RESCALE",
                _explain_rescale,
                "at every rise of the maximum from m to m', multiply l and o by e^(m − m')",
                _PAPER,
                [self._peak(n, place) for n in _LENGTHS[1:] for place in (n - 1, 0)],
                after=_BASICS,
            ),
            *self._mask_questions(),
            Question(
                "ROWS",
                "a row is changed by the row beside it",
                "keep m and l a row, and guard each row apart",
                "pytorch#103749, vllm#641",
                self._neighbours(),
                after=("SCALE", "PLAIN", "OVERFLOW", "MASKED_BLOCK", "LAST_BLOCK"),
            ),
            Question(
                "NAN",
                "NaN is swallowed: a live value or score of NaN leaves the output finite",
                "let NaN through to the rows that attend to it",
                "cubecl PR#1070 (a NaN that nobody saw)",
                [self._case([0.0, 0.0], [1.0, math.nan], agrees=_is_nan, right="NaN"),
                 self._case([0.0, math.nan], [1.0, 2.0], agrees=_is_nan, right="NaN")],
                after=("SCALE", "PLAIN"),
            ),
        ]  # fmt: skip

    def _mask_questions(self):
        return [
            Question(
                "MASKED_BLOCK",
                _explain_block,
                "shift by 0 while the maximum is −inf: −inf − (−inf) is NaN, and it stays in l and o",
                "pytorch#103963, iree#24175, mlx PR#2608",
                [self._masked(live + [0] * size + [1]) for size in _LENGTHS[:-1] for live in ([], [1])],
                after=(*_BASICS, "RESCALE"),
            ),
            Question(
                "LAST_BLOCK",
                _explain_block,
                "give masked keys weight 0, by a score of −inf, in the last block too",
                "vllm PR#43961, pytorch#159247",
                [self._masked([1] + [0] * size) for size in _LENGTHS[:-1]],
                after=(*_BASICS, "RESCALE", "MASKED_BLOCK"),
            ),
            Question(
                "EMPTY_ROW",
                "a row without keys gives "
                + (
                    "another answer than 0"
                    if self.empty == "zero"
                    else "neither 0, nor NaN, nor the mean of V"
                ),
                "where l is 0, return 0",
                "onnxruntime#28904, pytorch#103963, mlx PR#2608",
                [self._empty_row(n) for n in (1, 2, 65)],
                after=("SCALE", "PLAIN"),
            ),
            Question(
                "SENTINEL",
                "masked scores get a finite stand-in for −inf: they have weight where others are below it",
                "mask by a score of −inf, and shift by 0 while the maximum is −inf",
                "onnxruntime#28904, burn PR#4697, onnxruntime#14363",
                [self._case([level, 0.0], [1.0, 2.0], [[1, 0]]) for level in (-1e3, -1e5, -1e10, -1e31)],
                after=(*_BASICS, "MASKED_BLOCK", "LAST_BLOCK"),
            ),
        ]

    def audit(self, answers: Answers) -> Answers:
        """Add the audit's own checks, if nothing was found so far and calls are fast enough."""
        checks = [name for name in _AUDITED if name in CHECKS]
        if not checks:
            return answers
        reason = self._reason_against(answers)
        if reason:
            skips = tuple(Skip(name, "the check of softcarry audit", reason, self.dtype) for name in checks)
            verdicts = tuple(Verdict(name, self.dtype, "skip") for name in checks)
            return Answers(answers.findings, answers.verdicts + verdicts, answers.skipped + skips)
        report = audit(
            self.calling.subject,
            only=checks,
            contract=Contract(empty_rows=self.empty),
            dtypes=self.dtype,
            quick=True,
        )
        return Answers(
            answers.findings + report.findings,
            answers.verdicts + report.verdicts,
            answers.skipped + report.skipped,
        )

    def _reason_against(self, answers):
        if any(finding.severity == "error" for finding in answers.findings):
            return "mend what was found first"
        q, k = np.ones((1, 1, 32, 64)), np.ones((1, 1, 64, 64))
        took = []
        for _ in range(3):
            start = perf_counter()
            self.calling(q, k, k)
            took.append(perf_counter() - start)
        if min(took) > _PATIENCE:
            return (
                f"a call of 32 queries and 64 keys takes over {_PATIENCE * 1e3:.0f} ms: see softcarry audit"
            )
        return ""

    def _case(self, scores, values, masks=None, *, queries=(1.0,), agrees=None, right=None):
        scores, values = list(map(float, scores)), list(map(float, values))
        expected = [row[0] for row in exact(_each(queries), _each(scores), _each(values), masks)]
        relative = weight_tolerance(len(scores), sized([q * s for q in queries for s in scores]))
        largest = max(map(abs, values))

        def near(came):
            return agree(came, expected, relative, relative * largest + TINY)

        return Case(
            self._given(scores, values, masks, queries),
            lambda: self(scores, values, masks, queries=queries),
            right or text(expected),
            agrees or near,
            text,
            (scores, values, masks, queries),
        )

    def _given(self, scores, values, masks, queries):
        few = f"{len(queries)} queries" if len(queries) > 1 else "1 query"
        keys = f"{len(scores)} keys" if len(scores) > 1 else "1 key"
        shown = f"{few}, {keys}, d = {self.depth}: scores {row_text(scores)}, "
        if any(q != 1.0 for q in queries):
            shown += f"times {row_text(queries)}, "
        shown += f"values {row_text(values) if len(values) <= 8 else '1, 2, …'}"
        if masks is None:
            return shown
        return f"{shown}, mask {'; '.join(row_text(mask) for mask in masks)}"

    def _scaled(self):
        """Make a case of d = 4 with scores of 1 and 0, or 2 and 0 without the scale."""
        q, k = np.zeros((1, 1, 1, 4)), np.zeros((1, 1, 2, 4))
        v = np.zeros((1, 1, 2, 4))
        q[..., 0], k[..., 0, 0], v[..., 0, 0] = 1.0, 2.0, 1.0
        weights = {scale: 1.0 / (1.0 + math.exp(-2.0 * scale)) for scale in (0.5, 1.0, 0.25)}

        def agrees(came):
            near = {scale: agree(came, [p], weight_tolerance(2, 2.0)) for scale, p in weights.items()}
            return near[0.5] or not (near[1.0] or near[0.25])

        def run():
            try:
                return self.calling(q, k, v).output[0, 0, :, 0]
            except (KernelRaisedError, MalformedResultError) as error:
                msg = f"d = 4: {error}"
                raise NotApplicableError(msg) from None

        given = "q = (1, 0, 0, 0), k = (2, 0, 0, 0) and 0, v = 1 and 0"
        return Case(given, run, text([weights[0.5]]), agrees, text)

    def _counted(self, scores, masks=None, **more):
        """Make a case whose values are 1, 2, …, so that each key tells."""
        return self._case(scores, range(1, len(scores) + 1), masks, **more)

    def _peak(self, keys, place):
        scores = [0.0] * keys
        scores[place] = 3.0
        return self._counted(scores)

    def _masked(self, mask):
        return self._counted([0.0] * len(mask), [mask])

    def _empty_row(self, keys):
        mean = (keys + 1) / 2.0

        def agrees(came):
            allowed = (0.0,) if self.empty == "zero" else (0.0, math.nan, mean)
            return any(agree(came, [value], weight_tolerance(keys, 0.0)) for value in allowed)

        return self._counted([0.0] * keys, [[0] * keys], agrees=agrees)

    def _neighbours(self):
        scores, values = [0.0, 1.0], [1.0, 2.0]
        right = [row[0] for row in exact([[1.0]], _each(scores), _each(values))]

        def agrees(came):
            return agree(came[:1], right, weight_tolerance(2, 1.0))

        for queries, masks in (([1.0, 2000.0], None), ([1.0, -2000.0], None), ([1.0, 1.0], [[1, 1], [0, 0]])):
            yield self._case(
                scores, values, masks, queries=queries, right=f"{text(right)} in the first row", agrees=agrees
            )


def _each(numbers):
    return [[x] for x in numbers]


def _finite(came):
    return bool(np.isfinite(came).all())


def _is_nan(came):
    return bool(np.isnan(came).any())


def _explain_length(failure):
    scores, _, _, queries = failure.case.arguments
    if len(queries) > 1:
        return f"wrong for {len(queries)} queries, and right for fewer: the last, partial block of queries"
    return f"wrong for {len(scores)} keys, and right for fewer: the last, partial block of keys"


def _explain_rescale(failure):
    scores = failure.case.arguments[0]
    where = "comes last" if scores[-1] > 0 else "comes first"
    kind = "forgets to rescale" if where == "comes last" else "rescales wrongly"
    return f"{kind}: wrong from {len(scores)} keys on where the largest score {where}"


def _explain_block(failure):
    mask = failure.case.arguments[2][0]
    count = mask.count(0)
    place = "at the start" if not mask[0] else "at the end" if not mask[-1] else "in the middle"
    came = "raises" if failure.came is None else "gives NaN" if _is_nan(failure.came) else "is wrong"
    keys = "a masked key" if count == 1 else f"{count} masked keys"
    return f"a row with {keys} {place} {came}: a key block without a live key"
