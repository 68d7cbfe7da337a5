"""Subjects of other packages: the entry points of the group "softcarry.subjects".

A package that brings a subject names it, and the function that returns it, in its pyproject.toml::

    [project.entry-points."softcarry.subjects"]
    my-kernel = "my_package.audited:my_kernel"

The function takes nothing and returns a ``softcarry.Subject``. It is imported when the subject is audited.
"""

from collections.abc import Collection
from importlib.metadata import entry_points
from typing import NamedTuple

GROUP = "softcarry.subjects"


class ThirdParty(NamedTuple):
    """A subject of another package: its name, what it is, and "module:function" of its factory."""

    name: str
    summary: str
    factory: str


def third_parties(taken: Collection[str]) -> list[ThirdParty]:
    """List the subjects that installed packages bring; nothing of theirs is imported.

    Parameters
    ----------
    taken : collection of str
        Names that are given away already: nobody can take the place of a subject of softcarry's.

    Returns
    -------
    list of ThirdParty
        In the order of their names. Of two packages with the same name, the first that is found.

    Examples
    --------
    >>> [found.factory for found in third_parties(taken=["softcarry"]) if found.name == "softcarry"]
    []
    """
    found: dict[str, ThirdParty] = {}
    for point in entry_points(group=GROUP):
        package = point.dist.name if point.dist is not None else "another package"
        if point.name not in taken:
            found.setdefault(point.name, ThirdParty(point.name, f"a subject of {package}", point.value))
    return sorted(found.values())
