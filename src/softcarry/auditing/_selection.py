"""Which checks and which dtypes an audit is asked for, by name."""

from collections.abc import Iterable
from difflib import get_close_matches

from softcarry.auditing.probes import CHECKS
from softcarry.auditing.subject import DTYPES
from softcarry.errors import OptionError


def choose_checks(
    only: Iterable[str] | str | None = None, skip: Iterable[str] | str | None = None
) -> tuple[str, ...]:
    """Return the checks to run, in their own order.

    Parameters
    ----------
    only, skip : iterable of str or str, optional
        Names in any case; one string may hold several, separated by commas.

    Returns
    -------
    tuple of str

    Raises
    ------
    OptionError
        For a name that is no check, or if nothing is left.

    Examples
    --------
    >>> choose_checks("lse,EMPTY")
    ('EMPTY', 'LSE')
    """
    wanted = tuple(CHECKS) if only is None else _choose("check", only, CHECKS)
    unwanted = () if skip is None else _choose("check", skip, CHECKS)
    checks = tuple(name for name in CHECKS if name in wanted and name not in unwanted)
    if not checks:
        msg = f"no check is left to run; the checks are {', '.join(CHECKS)}"
        raise OptionError(msg)
    return checks


def choose_dtypes(names: Iterable[str] | str) -> tuple[str, ...]:
    """Return the dtypes of those names, each once.

    Parameters
    ----------
    names : iterable of str or str
        In any case; one string may hold several, separated by commas.

    Returns
    -------
    tuple of str

    Raises
    ------
    OptionError
        For a name that is no dtype that can be audited.

    Examples
    --------
    >>> choose_dtypes("float32,bfloat16")
    ('float32', 'bfloat16')
    """
    chosen = _choose("dtype", names, DTYPES)
    if not chosen:
        msg = f"no dtype is left to audit; the dtypes are {', '.join(DTYPES)}"
        raise OptionError(msg)
    return chosen


def _choose(what, names, known):
    if not isinstance(names, Iterable):
        names = (names,)
    given = names.split(",") if isinstance(names, str) else list(names)
    by_folded = {name.casefold(): name for name in known}
    chosen = []
    for name in given:
        folded = str(name).strip().casefold()
        if folded not in by_folded:
            close = get_close_matches(folded, by_folded, n=1)
            hint = f"; did you mean {by_folded[close[0]]!r}?" if close else ""
            msg = f"a {what} is one of {', '.join(known)}; got {name!r}{hint}"
            raise OptionError(msg)
        chosen.append(by_folded[folded])
    return tuple(dict.fromkeys(chosen))
