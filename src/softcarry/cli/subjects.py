"""``softcarry subjects``: the kernels that can be audited by name."""

from dataclasses import asdict

from softcarry.cli._console import output, table, write_json
from softcarry.cli._options import AsJson
from softcarry.cli._status import NOTHING_FOUND


def subjects(*, json: AsJson = False) -> int:
    """List the kernels that can be audited by name, and whether they are installed.

    Parameters
    ----------
    json
        Write JSON. Keys: schema, subjects; each with name, summary, dtypes,
        available, requires, install, control.

    Returns
    -------
    int
        Exit status.
    """
    from softcarry.auditing.subjects import KNOWN

    if json:
        listed = [
            {name: value for name, value in asdict(entry).items() if name != "factory"}
            | {"available": entry.available}
            for entry in KNOWN.values()
        ]
        write_json({"schema": "softcarry.subjects/1", "subjects": listed})
        return NOTHING_FOUND
    grid = table("subject", "available", "what", left=("subject", "available", "what"))
    for entry in KNOWN.values():
        what = f"{entry.summary} ({', '.join(entry.dtypes) or 'dtypes of its own'})"
        if not entry.available:
            what += f"; to install: {entry.install}"
        grid.add_row(entry.name, "yes" if entry.available else "no", what)
    output().print(grid)
    output().print("Your own: softcarry audit module:function")
    return NOTHING_FOUND
