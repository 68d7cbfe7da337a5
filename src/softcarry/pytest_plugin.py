"""Attention kernels in a test suite: an assertion, a fixture, and two options of pytest.

pytest loads this module in every run where softcarry is installed: it imports nothing heavy until it is used.
"""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from softcarry.auditing import Contract, Subject
    from softcarry.report.model import Report


def assert_attention_sane(
    kernel: "Callable[..., Any] | Subject | str",
    contract: "Contract | Mapping[str, Any] | str | Path | None" = None,
    *,
    only: Iterable[str] | str | None = None,
    skip: Iterable[str] | str | None = None,
    dtypes: Iterable[str] | str | None = None,
    seed: int = 0,
    quick: bool = True,
    fail_on: str = "error",
) -> "Report":
    """Audit a kernel and raise an AssertionError that names the kinds of fault.

    Parameters
    ----------
    kernel : callable or Subject or str
        As for ``softcarry.audit``: kernel(q, k, v, *, mask=None, causal=False, scale=None) returning the
        output or (output, lse), q (b, h, tq, d), k (b, h, tk, d), v (b, h, tk, dv).
    contract : Contract or mapping or path, optional
        What the kernel promises.
    only, skip, dtypes, seed
        As for ``softcarry.audit``.
    quick : bool
        Fewer inputs, a few seconds; the full audit takes half a minute.
    fail_on : {"error", "warning"}
        The least severe finding that fails the test.

    Returns
    -------
    Report
        If nothing is found.

    Raises
    ------
    AssertionError
        With every finding: what the kernel does, the numbers that show it, the remedy and the kind of fault.
    SubjectError
        If the kernel gives no attention output at all.
    OptionError
        If another argument lies outside what is known.

    Examples
    --------
    >>> from softcarry.reference import blocked_attention
    >>> assert_attention_sane(blocked_attention, only="EMPTY,LSE").ok
    True
    """
    __tracebackhide__ = True
    from softcarry.auditing import audit
    from softcarry.errors import OptionError

    if fail_on not in ("error", "warning"):
        msg = f"fail_on is 'error' or 'warning'; got {fail_on!r}"
        raise OptionError(msg)
    report = audit(kernel, contract=contract, only=only, skip=skip, dtypes=dtypes, seed=seed, quick=quick)
    bad = [f for f in report.findings if f.severity == "error" or fail_on == "warning"]
    if bad:
        from softcarry.report.failure import describe_failure

        raise AssertionError(describe_failure(report, bad))
    return report


@pytest.fixture(name="assert_attention_sane")
def _assertion(request: pytest.FixtureRequest) -> Callable[..., "Report"]:
    """``softcarry.pytest_plugin.assert_attention_sane``, with the contract and depth of the command line."""
    default = request.config.getoption("--attention-contract")
    full = request.config.getoption("--attention-full")

    def assertion(kernel: Any, contract: Any = None, **options: Any) -> "Report":
        __tracebackhide__ = True
        options.setdefault("quick", not full)
        return assert_attention_sane(kernel, default if contract is None else contract, **options)

    return assertion


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options of the fixture ``assert_attention_sane``."""
    group = parser.getgroup("softcarry", "audits of attention kernels")
    group.addoption(
        "--attention-contract",
        metavar="FILE",
        help="TOML file of what kernels promise, for tests that hand over no contract",
    )
    group.addoption(
        "--attention-full",
        action="store_true",
        help="audit kernels in full: half a minute each instead of seconds",
    )
