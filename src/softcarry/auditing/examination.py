"""The examination: what a probe sees of one subject in one dtype, and where it puts what it finds."""

from dataclasses import replace
from functools import cached_property, partial
from typing import Any
from zlib import crc32

import numpy as np

from softcarry.auditing._call_words import describe_call
from softcarry.auditing._calling import (
    Calling,
    KernelRaisedError,
    MalformedResultError,
    Outcome,
    prepare,
)
from softcarry.auditing.contract import Contract
from softcarry.auditing.golden import Golden, golden_attention
from softcarry.auditing.isolation import (
    CrashedError,
    NotPortableError,
    OutOfTimeError,
    call_in_fresh_process,
)
from softcarry.auditing.subject import ALIASES, Subject
from softcarry.errors import SoftcarryError
from softcarry.report.model import Curve, Fact, Finding, Severity, Skip, Verdict

_MALFORMED = "malformed result: "


class CaseRefused(SoftcarryError):  # noqa: N818 - the kernel's answer, not the audit's error
    """The kernel raised, lacks an option, or can't be called this way; the examination has noted it."""


class CaseCrashed(SoftcarryError):  # noqa: N818
    """The process that made the call died; the message says how."""


class Examination:
    """What a probe sees of one subject in one dtype.

    Arrays are float64 NumPy (b, h, t, d) on both sides of a call, whatever the kernel takes; inputs must be
    exact in the dtype, which ``round`` sees to.

    Parameters
    ----------
    subject : Subject
    dtype : str
        One of "float64", "float32", "bfloat16", "float16".
    check : str
        The name of the check, such as "EMPTY": it labels what is found and seeds ``rng``.
    contract : Contract, optional
    seed : int
    calling : Calling, optional
        A way of calling the subject that is known to work; by default one is looked for.
    quick : bool
        Ask for fewer inputs: a check then takes a fraction of a second.
    first_dtype : bool
        Whether the dtype is the first of the audit: what no dtype changes is asked in that one only.

    Attributes
    ----------
    findings, skipped, curves : list
        What has been recorded.
    facts : dict
        Facts by name.

    Raises
    ------
    SubjectError
        If one small plain call gives no attention output.

    Examples
    --------
    >>> def mean_of_values(q, k, v):
    ...     return np.broadcast_to(v.mean(axis=2, keepdims=True), q.shape[:3] + v.shape[-1:])
    >>> examination = Examination(Subject(mean_of_values, arrays="numpy"), "float32", check="REF")
    >>> v = np.array([[[[1.0], [3.0]]]])
    >>> examination.call(np.zeros((1, 1, 1, 1)), np.zeros((1, 1, 2, 1)), v).output.item()
    2.0
    """

    def __init__(
        self,
        subject: Subject,
        dtype: str,
        *,
        check: str = "",
        contract: Contract | None = None,
        seed: int = 0,
        calling: Calling | None = None,
        quick: bool = False,
        first_dtype: bool = True,
    ):
        self.subject = subject
        self.dtype = dtype
        self.check = check
        self.contract = contract or Contract()
        self.calling = calling or prepare(subject, dtype)
        self.quick = quick
        self.first_dtype = first_dtype
        self.rng = np.random.default_rng([seed, crc32(check.encode()), crc32(dtype.encode())])
        self.findings: list[Finding] = []
        self.skipped: list[Skip] = []
        self.curves: list[Curve] = []
        self.facts: dict[str, Fact] = {}
        self.calls = 0

    @cached_property
    def format(self):
        """The FloatFormat of the dtype of q, k and v."""
        from softcarry.numerics._formats import get_format

        return get_format(self.dtype)

    @cached_property
    def output_format(self):
        """The FloatFormat of the kernel's output, which need not be that of its inputs."""
        from softcarry.numerics._formats import get_format

        return get_format(self.calling.output_dtype)

    @cached_property
    def model(self):
        """The CarryModel that the kernel is held to, for ``numerics.attention_error_bound``.

        The carry format is the contract's; else what the subject declares; else float32, or float64 for
        float64. Undeclared kernels may round P to a 16-bit dtype of their inputs, as fused kernels do.
        """
        from softcarry.numerics import CarryModel

        declared = self.subject.carry_in(self.dtype)
        working = "float64" if self.dtype == "float64" else "float32"
        if declared is None:
            declared = CarryModel(
                l_format=working,
                o_format=working,
                p_format=self.dtype if self.dtype in ("bfloat16", "float16") else None,
                score_format=working,
            )
        if self.contract.carry_format is not None:
            format_ = self.contract.carry_format
            declared = replace(declared, l_format=format_, o_format=format_)
        return declared

    @property
    def causal(self) -> str:
        """The alignment of the kernel's causal mask: the contract's, else declared, else read off a call.

        "ignored" if that call showed that the option changes nothing.
        """
        return self.contract.causal or self.calling.causal

    def can(self, option: str) -> bool:
        """Whether the kernel takes one of the options in ``subject.ALIASES``, or returns an "lse".

        A causal option that is known to change nothing does not count: EMPTY reports it.
        """
        if option == "lse":
            return self.calling.returns_lse
        if option == "causal" and self.calling.causal == "ignored":
            return False
        return option in self.subject.keywords

    def lacks(self, *options: str) -> str:
        """Say why a call with these options, which it can't take, is not made."""
        if self.subject.may_take_more:
            return f"its signature names no {' and no '.join(options)}; declare Subject(options=...)"
        return f"the kernel takes no {' and no '.join(options)}"

    def round(self, x) -> np.ndarray:
        """Round numbers to the dtype, to nearest even, and give them back as float64."""
        return np.asarray(self.format.round(np.asarray(x, np.float64)), np.float64)

    def golden(self, q, k, v, *, causal=False, **options) -> Golden:
        """Return the exact answer to the same call, with the kernel's own causal alignment."""
        alignment = "top-left" if self.causal == "top-left" else "bottom-right"
        return golden_attention(
            q, k, v, causal=self.causal if causal else False, alignment=alignment, **options
        )

    def bound(self, q, k, v, *, scale=None, model=None, **options):
        """Bound the error of the same call a priori, by ``numerics.attention_error_bound``.

        Parameters
        ----------
        q, k, v, scale, **options
            As for ``call``.
        model : CarryModel, optional
            Instead of the kernel's ``model``.

        Returns
        -------
        AttentionBound
            output (b, h, tq, dv) and lse (b, h, tq), for the kernel's ``model``.
        """
        from softcarry.numerics import attention_error_bound

        golden = self.golden(q, k, v, scale=scale, **options)
        factor = 1.0 / np.sqrt(q.shape[-1]) if scale is None else abs(scale)
        magnitudes = factor * np.matmul(np.abs(q), np.swapaxes(np.abs(k), -1, -2))
        return attention_error_bound(
            golden.scores,
            magnitudes,
            v,
            depth=q.shape[-1],
            input_format=self.format,
            model=model or self.model,
            output_format=self.output_format,
            lse_format=self.calling.lse_dtype or "float32",
        )

    def call(self, q, k, v, **options) -> Outcome:
        """Call the kernel.

        Parameters
        ----------
        q, k, v : ndarray
            float64 (b, h, tq, d), (b, h, tk, d), (b, h, tk, dv), exact in the dtype. Keep dv = d unless that
            is the question: many kernels refuse any other.
        **options
            Of ``subject.ALIASES``: a mask, boolean (True = attend) or floating, broadcastable to
            (b, h, tq, tk); ``causal``, aligned as ``self.causal`` says; ``scale``, where None means 1/√d; and
            so on. What is None or False is not handed over.
            Also ``arrange``, ``arrange_mask`` and ``broadcast_mask`` of ``Calling``.

        Returns
        -------
        Outcome
            output (b, h, tq, dv) and lse (b, h, tq) or None, float64.

        Raises
        ------
        CaseRefused
            If the kernel raises, lacks one of the options, or returns something malformed. The first two are
            recorded as skipped, the last as a finding.
        """
        return self._call(self.calling, q, k, v, **options)

    def call_isolated(self, q, k, v, *, time_limit=120.0, **options) -> Outcome:
        """Call the kernel in a fresh process, for calls that may kill it.

        A quick examination leaves such calls out: a process takes seconds to start.

        Parameters
        ----------
        q, k, v, **options
            As for ``call``.
        time_limit : float
            Seconds.

        Returns
        -------
        Outcome

        Raises
        ------
        CaseRefused
            As for ``call``; also if the kernel can't be sent to another process, or gives no answer in time,
            which a slow start can't be told from.
        CaseCrashed
            If the process dies.
        """
        if self.quick:
            reason = "left out of a quick audit: it needs a process of its own"
            self.skip(describe_call(q, k, v, **options), reason)
            raise CaseRefused(reason)

        def elsewhere(*arrays, **keywords):
            try:
                return call_in_fresh_process(self.calling, *arrays, time_limit=time_limit, **keywords)
            except CrashedError as error:
                raise CaseCrashed(str(error)) from None

        return self._call(elsewhere, q, k, v, **options)

    def gradients(self, q, k, v, **options):
        """Differentiate through the kernel, by ``_gradients.pull_back``.

        Parameters
        ----------
        q, k, v, **options
            As for ``call``; also ``cotangent``, ``of`` and ``second`` of ``pull_back``.

        Returns
        -------
        Gradients
            float64, of the shapes of q, k and v.

        Raises
        ------
        CaseRefused
            As for ``call``, a backward pass that raises included.
        NoGradientError
            If what the kernel returns carries no gradient.
        """
        from softcarry.auditing._gradients import pull_back

        return self._call(partial(pull_back, self.calling), q, k, v, **options)

    def _call(self, function, q, k, v, **options):
        used = {name: value for name, value in options.items() if value is not None and value is not False}
        case = describe_call(q, k, v, **used)
        lacking = [name for name in used if name in ALIASES and not self.can(name)]
        if lacking:
            reason = self.lacks(*lacking)
            self.skip(case, reason)
            raise CaseRefused(reason)
        longest = self.contract.longest_n
        if longest is not None and k.shape[2] > longest:
            reason = f"the contract's longest_n is {longest}"
            self.skip(case, reason)
            raise CaseRefused(reason)
        try:
            outcome = function(q, k, v, **options)
        except KernelRaisedError as error:
            reason = f"the kernel raised {error}"
            self.skip(case, reason)
            raise CaseRefused(reason) from None
        except (NotPortableError, OutOfTimeError) as error:
            self.skip(case, str(error))
            raise CaseRefused(str(error)) from None
        except MalformedResultError as error:
            self._malformed(case, error)
            raise CaseRefused(str(error)) from None
        self.calls += 1
        return outcome

    def _malformed(self, case, error):
        """Record the first malformed result, and with it how many there were."""
        for index, finding in enumerate(self.findings):
            if finding.message.startswith(_MALFORMED):
                count = finding.evidence["malformed results"] + 1
                evidence = finding.evidence | {"malformed results": count}
                self.findings[index] = replace(finding, evidence=evidence)
                return
        self.fail(
            f"{_MALFORMED}{error}",
            evidence={"call": case, "malformed results": 1},
            remedy="return floating arrays (b, h, tq, dv) and (b, h, tq) for every shape of the inputs",
        )

    def fail(self, message: str, *, evidence: dict[str, Any], remedy: str) -> None:
        """Record a finding that breaks the contract or an error bound."""
        self._find("error", message, evidence, remedy)

    def warn(self, message: str, *, evidence: dict[str, Any], remedy: str) -> None:
        """Record a finding that is within the contract and worth knowing."""
        self._find("warning", message, evidence, remedy)

    def _find(self, severity: Severity, message, evidence, remedy):
        plain = {name: _plain(value) for name, value in evidence.items()}
        self.findings.append(Finding(self.check, severity, message, plain, remedy, self.dtype))

    def skip(self, what: str, reason: str) -> None:
        """Record that something is not examined; the same thing is recorded once."""
        entry = Skip(self.check, what, reason, self.dtype)
        if entry not in self.skipped:
            self.skipped.append(entry)

    def fact(self, name: str, value: Any, confidence: float, evidence: str) -> None:
        """Record something inferred about the kernel: it goes to the report's profile."""
        self.facts[name] = Fact(value, float(confidence), evidence)

    def curve(self, curve: Curve) -> None:
        """Record an error curve."""
        self.curves.append(replace(curve, check=self.check, dtype=self.dtype))

    @property
    def verdict(self) -> Verdict:
        """How the check has ended so far."""
        severities = {finding.severity for finding in self.findings}
        outcome = "fail" if "error" in severities else "warn" if severities else "pass"
        if outcome == "pass" and self.skipped and not self.calls:
            outcome = "skip"
        return Verdict(self.check, self.dtype, outcome, self.calls)


def _plain(value):
    """Turn NumPy scalars and arrays into Python numbers and lists, for a reader."""
    return value.tolist() if isinstance(value, (np.ndarray, np.generic)) else value
