"""The table of conventions: one entry a library, and more where a version or an option differs."""

import difflib
from collections.abc import Iterator, Mapping

from softcarry._conventions.convention import Convention
from softcarry._conventions.frameworks import FRAMEWORKS
from softcarry._conventions.kernels import KERNELS
from softcarry.errors import OptionError

_SOFTCARRY = Convention(
    name="softcarry",
    library="softcarry",
    versions="all",
    base="e",
    output_layout="... d",
    lse_layout="...",
    lse_dtype="float32 or float64",
    source="Carry.output, Carry.lse",
    note="any leading axes: (batch, heads, queries), or (heads, tokens) for packed sequences",
)


class UnknownConventionError(OptionError, KeyError):
    """The table has no convention of that name; also a KeyError, as any mapping raises."""

    __str__ = Exception.__str__


class Conventions(Mapping[str, Convention]):
    """The read-only table of conventions, by name.

    Lookup ignores case, and takes "_" and blanks for "-". The order is stable. `print` shows the short form
    of the table, `describe` the whole of it.

    Raises
    ------
    OptionError
        From a lookup, if the name is unknown; it is a KeyError as well, and names the closest entries.

    Examples
    --------
    >>> import softcarry as sc
    >>> sc.conventions["flashinfer"].base, sc.conventions["flash-attn"].lse_layout
    ('2', 'b h t')
    >>> "Flash_Attn" in sc.conventions
    True
    """

    def __init__(self, entries: tuple[Convention, ...]) -> None:
        self._entries = {entry.name: entry for entry in entries}

    def __getitem__(self, name: str) -> Convention:
        key = "-".join(str(name).lower().replace("_", " ").split())
        if key not in self._entries:
            close = [other for other in self._entries if key and (key in other or other in key)]
            close += [other for other in difflib.get_close_matches(key, self._entries) if other not in close]
            nearest = f"the closest are {', '.join(close[:4])}; " if close else ""
            msg = f"no convention is called {name!r}: {nearest}print(softcarry.conventions) lists all"
            raise UnknownConventionError(msg)
        return self._entries[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def rows(self) -> list[dict[str, str]]:
        """Return the table as one dict of strings an entry, all with the same keys."""
        return [_row(entry) for entry in self._entries.values()]

    def describe(self) -> str:
        """Return the whole table in Markdown."""
        rows = self.rows()
        lines = [list(rows[0]), ["---"] * len(rows[0]), *(list(row.values()) for row in rows)]
        return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)

    def __repr__(self) -> str:
        columns = ("name", "base", "output", "lse", "lse dtype", "empty")
        rows = [columns, *(tuple(row[column] for column in columns) for row in self.rows())]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)
        return "\n".join(lines)


def _row(entry: Convention) -> dict[str, str]:
    return {
        "name": entry.name,
        "library": entry.library,
        "versions": entry.versions,
        "base": entry.base,
        "output": entry.output_layout,
        "lse": entry.lse_layout if entry.kind == "lse" else f"{entry.lse_layout}, {entry.kind}",
        "lse dtype": entry.lse_dtype,
        "empty": _empty_in_words(entry),
        "padding": {None: "", "any": "any"}.get(entry.padding, f"to a multiple of {entry.padding}"),
        "normalised": "yes" if entry.normalised else "no",
        "source": entry.source,
        "note": entry.note,
    }


def _empty_in_words(entry: Convention) -> str:
    if entry.kind == "mixed":
        return ""
    if entry.kind.startswith("pair"):
        return f"l = 0, m = {entry.empty_written:g}".replace("-", "−")
    read = [f"{value:g}" + (" with output 0" if value == 0 else "") for value in entry.empty]
    read += [] if entry.empty_below is None else [f"≤ {entry.empty_below:g}"]
    written = f"{entry.empty_written:g}"
    return f"{', '.join(read)}; writes {written}".replace("-", "−")


conventions = Conventions((_SOFTCARRY, *KERNELS, *FRAMEWORKS))
