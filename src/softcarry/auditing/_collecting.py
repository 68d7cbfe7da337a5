"""From the events of an audit to its report."""

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

from softcarry.auditing._events import Event, Examined, Introduced, Plan, Prepared, Refused, Started
from softcarry.auditing.contract import Contract
from softcarry.errors import SubjectError
from softcarry.report.model import Fact, Finding, Report, Skip, Verdict

Progress = Callable[[int, int, str], None]


@dataclass
class Collector:
    """Takes the events of an audit, tells how far it is, and makes the report.

    Parameters
    ----------
    plan : sequence of (str, str)
        The pairs (dtype, check) of the audit.
    contract : Contract
    seed : int
    progress : callable, optional
        Called as ``progress(done, total, what)`` before each check and once at the end.
    """

    plan: Plan
    contract: Contract
    seed: int = 0
    progress: Progress | None = None
    introduced: Introduced = field(default_factory=lambda: Introduced({}, {}))
    prepared: dict[str, Prepared] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    examined: dict[tuple[str, str], Examined] = field(default_factory=dict)
    broken: list[Finding] = field(default_factory=list)

    def take(self, event: Event) -> None:
        """Take one event; a dtype or check that comes again replaces what was known of it."""
        if isinstance(event, Introduced):
            self.introduced = event
        elif isinstance(event, Prepared):
            self.prepared[event.dtype] = event
        elif isinstance(event, Refused):
            self.refused[event.dtype] = event.reason
        elif isinstance(event, Examined):
            self.examined[event.verdict.dtype, event.verdict.check] = event
        elif isinstance(event, Started) and event.check and self.progress is not None:
            done = self.plan.index((event.dtype, event.check))
            self.progress(done, len(self.plan), f"{self._name} {event.dtype} {event.check}")

    @property
    def left(self) -> Plan:
        """The pairs that no event has ended yet."""
        return [
            (dtype, check)
            for dtype, check in self.plan
            if dtype not in self.refused and (dtype, check) not in self.examined
        ]

    def break_off(
        self, dtype: str, check: str, message: str, *, evidence: dict[str, Any], remedy: str
    ) -> None:
        """Record that the process came to an end in a check, or in the plain call before all checks.

        The check counts as not examined; without a check, the dtype does.
        """
        self.broken.append(Finding("RUN", "error", message, evidence, remedy, dtype))
        if check:
            self.give_up(dtype, check, message)
        else:
            self.refused[dtype] = message

    def give_up(self, dtype: str, check: str, reason: str) -> None:
        """Record that a check was not made."""
        self.take(Examined(Verdict(check, dtype, "skip"), skipped=(Skip(check, "all of it", reason, dtype),)))

    def report(self) -> Report:
        """Make the report.

        Raises
        ------
        SubjectError
            If no dtype could be audited, and no process came to an end by it.
        """
        if self.progress is not None:
            self.progress(len(self.plan), len(self.plan), self._name)
        if not self.prepared and not self.broken:
            raise SubjectError(next(iter(self.refused.values())))
        promised, promises = _judge_promises(self)
        ended = [self.examined[pair] for pair in self.plan if pair in self.examined]
        run = [Verdict("RUN", dtype, "fail") for dtype in dict.fromkeys(f.dtype for f in self.broken)]
        return Report(
            subject=self._subject(),
            findings=(*self.broken, *promised, *(finding for each in ended for finding in each.findings)),
            verdicts=(*run, *promises, *(each.verdict for each in ended)),
            profile=self._profile(),
            curves=tuple(curve for each in ended for curve in each.curves),
            skipped=tuple(self._skipped(ended)),
            environment=self.introduced.environment
            | {"seed": self.seed, "contract": _plain(asdict(self.contract))},
        )

    @property
    def _name(self):
        return self.introduced.subject["name"]

    def _subject(self):
        first = next(iter(self.prepared.values()), None)
        found = {
            "arrays": first.library if first else None,
            "returns_lse": first.returns_lse if first else False,
            "causal": self.contract.causal or (first.causal if first else None),
        }
        dtypes = {each.dtype: each.output_dtype for each in self.prepared.values()}
        return self.introduced.subject | found | {"dtypes": list(dtypes), "output_dtypes": dtypes}

    def _profile(self):
        profile: dict[str, dict[str, Fact]] = {dtype: {} for dtype in self.prepared}
        for (dtype, _), examined in self.examined.items():
            profile.setdefault(dtype, {}).update(examined.facts or {})
        for dtype, prepared in self.prepared.items():
            if prepared.writes_to:
                evidence = "the arrays handed to one plain call held other numbers after it"
                profile[dtype]["inputs written to"] = Fact(list(prepared.writes_to), 1.0, evidence)
        return profile

    def _skipped(self, ended):
        for dtype, reason in self.refused.items():
            yield Skip("all", f"{dtype} as a whole", reason, dtype)
        for each in ended:
            yield from each.skipped


def _judge_promises(collector):
    """Hold the kernel to the dtypes and options of the contract: findings and verdicts of CONTRACT."""
    contract = collector.contract
    found = [
        Finding(
            "CONTRACT",
            "error",
            f"{dtype} is promised, and the kernel does not take it",
            {"call": "one small plain call", "reason": collector.refused[dtype]},
            "take it, or leave it out of the contract's dtypes",
            dtype,
        )
        for dtype in contract.dtypes
        if dtype in collector.refused
    ]
    options = collector.introduced.subject["options"]
    lacking = [option for option in contract.options if option not in options]
    if lacking and collector.prepared:
        found.append(
            Finding(
                "CONTRACT",
                "error",
                f"the contract promises {', '.join(lacking)}, and the kernel has no such option",
                {"options that it has": list(options)},
                "take them by name, or declare Subject(options=...)",
                next(iter(collector.prepared)),
            )
        )
    failed = {finding.dtype for finding in found}
    dtypes = list(dict.fromkeys(dtype for dtype, _ in collector.plan))
    promising = contract.dtypes or contract.options
    verdicts = [Verdict("CONTRACT", d, "fail" if d in failed else "pass") for d in dtypes if promising]
    return found, verdicts


def _plain(promises):
    return {name: list(value) if isinstance(value, tuple) else value for name, value in promises.items()}
