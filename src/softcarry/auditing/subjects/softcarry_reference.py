"""softcarry's own reference kernel as a subject."""

from softcarry.auditing.subject import Subject
from softcarry.auditing.subjects import KNOWN


def reference() -> Subject:
    """Return blocked attention made of ``Carry.of`` and ``merge``, called with NumPy arrays.

    Returns
    -------
    Subject

    Examples
    --------
    >>> reference().arrays
    'numpy'
    """
    from softcarry.reference import blocked_attention

    return Subject(
        blocked_attention,
        name="softcarry",
        arrays="numpy",
        dtypes=KNOWN["softcarry"].dtypes,
        lse="e",
    )
