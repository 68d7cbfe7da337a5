"""The rules of causal masks, windows and lengths, and the known ways of getting them wrong."""

import numpy as np

from softcarry.auditing.probes._supports import Fault, Reading

ALIGNMENTS = ("bottom-right", "top-left")
_BLOCKS = (16, 32, 64, 128, 256)


def after_diagonal(reading: Reading, alignment: str, *, restart: int | None = None) -> np.ndarray:
    """Return by how much key j lies after the key at which query i stands, (tq, tk).

    Examples
    --------
    >>> after_diagonal(Reading("", 2, 3, {}, np.zeros((1, 2, 3))), "bottom-right").tolist()
    [[-1, 0, 1], [-2, -1, 0]]
    """
    shift = reading.keys - reading.queries if alignment == "bottom-right" else 0
    query = np.arange(reading.queries)
    query = query if restart is None else query % restart
    return np.arange(reading.keys)[None, :] - query[:, None] - shift


def causal_rule(alignment: str):
    """Return the rule of a causal mask."""
    return lambda reading: after_diagonal(reading, alignment) <= 0


def causal_faults(alignment: str) -> list[Fault]:
    """List the faults of a causal mask that is meant to be aligned that way, other alignments left out."""
    own = "let query i see keys up to its own: j ≤ i + tk − tq, or j ≤ i if aligned top-left"

    def after(reading):
        return after_diagonal(reading, alignment)

    def by_blocks(reading, size):
        position = np.arange(reading.queries)
        if alignment == "bottom-right":
            position = position + reading.keys - reading.queries
        return np.arange(reading.keys) // size <= position[:, None] // size

    return [
        Fault(
            "the causal option is accepted and ignored",
            lambda reading: np.ones((reading.queries, reading.keys), bool),
            "mask the keys beyond each query, or leave the option out of the signature",
        ),
        Fault(
            "a causal query does not see its own key: the diagonal is excluded",
            lambda reading: after(reading) < 0,
            own,
        ),
        Fault("a causal query sees one key beyond its own", lambda reading: after(reading) <= 1, own),
        Fault(
            "the causal mask is transposed: a query sees the keys from its own on",
            lambda reading: after(reading) >= 0,
            "compare key j with query i, not i with j; scores kept transposed need the mask transposed too",
        ),
        *(
            Fault(
                f"the causal mask hides whole blocks of {size} keys only, none in the block at the diagonal",
                lambda reading, size=size: by_blocks(reading, size),
                "mask the block that the diagonal crosses element by element",
            )
            for size in _BLOCKS
        ),
        *(
            Fault(
                f"the position of causal queries starts again every {size} rows",
                lambda reading, size=size: after_diagonal(reading, alignment, restart=size) <= 0,
                "add the first row of the query block to the position inside it",
            )
            for size in _BLOCKS
        ),
        Fault(
            "the causal mask reaches the first batch entry only",
            lambda reading: (after(reading) <= 0) | (np.arange(len(reading.weights)) > 0)[:, None, None],
            "use the same mask in every batch entry",
        ),
    ]


def other_alignment(alignment: str) -> str:
    """Return the other of the two alignments."""
    return ALIGNMENTS[alignment == ALIGNMENTS[0]]


def within(reading: Reading, alignment: str, left: int | None, right: int | None) -> np.ndarray:
    """Return which keys lie in a window around the diagonal, edges included; none after it if causal."""
    after = after_diagonal(reading, alignment)
    seen = np.ones(after.shape, bool)
    if left is not None:
        seen &= after >= -left
    if right is not None:
        seen &= after <= right
    return seen & (after <= 0) if reading.options.get("causal") else seen


def window_rule(alignment: str):
    """Return the rule of a window (left, right), both edges included."""
    return lambda reading: within(reading, alignment, *reading.options["window"])


def window_faults(alignment: str) -> list[Fault]:
    """List the faults of a window around a diagonal that is aligned that way."""
    edges = "a window (left, right) includes both edges: i − left ≤ j ≤ i + right"

    def changed(change, to=alignment):
        return lambda reading: within(reading, to, *change(*reading.options["window"]))

    def moved(left_by, right_by):
        return changed(
            lambda left, right: (
                None if left is None else left + left_by,
                None if right is None else right + right_by,
            )
        )

    other = other_alignment(alignment)
    return [
        Fault(
            "the window option is accepted and ignored",
            changed(lambda left, right: (None, None)),
            "hide the keys outside the window, or leave the option out of the signature",
        ),
        Fault(
            f"the window is aligned {other}, where {alignment} is meant",
            changed(lambda left, right: (left, right), other),
            "let the window follow the diagonal of the causal mask",
        ),
        Fault("the left edge of the window is exclusive: one key is missing", moved(-1, 0), edges),
        Fault("the window reaches one key too far to the left", moved(1, 0), edges),
        Fault("the right edge of the window is exclusive: one key is missing", moved(0, -1), edges),
        Fault("the window reaches one key too far to the right", moved(0, 1), edges),
        Fault("both edges of the window are exclusive", moved(-1, -1), edges),
        Fault(
            "the sides of the window are swapped",
            changed(lambda left, right: (right, left)),
            "left counts the keys before the diagonal, right those after it",
        ),
        Fault(
            "the window has no keys after the diagonal, though its right side is not 0",
            changed(lambda left, right: (left, 0)),
            "a window is not causal by itself: apply its right side, and the causal mask where asked for",
        ),
        Fault(
            "a side of 0 keys counts as no limit",
            changed(lambda left, right: (left or None, right or None)),
            "test for None, not for truth: 0 is a limit",
        ),
        Fault(
            "the left side of the window is ignored",
            changed(lambda left, right: (None, right)),
            edges,
        ),
        Fault(
            "the right side of the window is ignored",
            changed(lambda left, right: (left, None)),
            edges,
        ),
    ]


def _lengths(reading):
    return np.asarray(reading.options["kv_lengths"])[:, None, None]


def lengths_rule(reading: Reading) -> np.ndarray:
    """Return the keys before each sequence's length, (b, 1, tk)."""
    return np.arange(reading.keys) < _lengths(reading)


def lengths_faults() -> list[Fault]:
    """List the faults of lengths."""
    own = "let sequence b see keys j < kv_lengths[b]"

    def instead(lengths):
        return lambda reading: np.arange(reading.keys) < lengths(_lengths(reading), reading.keys)

    return [
        Fault(
            "kv_lengths is accepted and ignored",
            instead(lambda lengths, keys: np.full_like(lengths, keys)),
            "hide the keys from each sequence's length on, or leave the option out of the signature",
        ),
        Fault(
            "the key at kv_lengths is seen: one too many",
            instead(lambda lengths, keys: np.minimum(lengths + 1, keys)),
            own,
        ),
        Fault("the last key before kv_lengths is hidden", instead(lambda lengths, keys: lengths - 1), own),
        Fault(
            "the length of the first sequence counts for all",
            instead(lambda lengths, keys: np.broadcast_to(lengths[:1], lengths.shape)),
            own,
        ),
        Fault(
            "the longest length counts for all sequences",
            instead(lambda lengths, keys: np.full_like(lengths, lengths.max())),
            own,
        ),
        *(
            Fault(
                f"kv_lengths is rounded up to a multiple of {size}: keys of the last block are not hidden",
                instead(lambda lengths, keys, size=size: np.minimum(-(-lengths // size) * size, keys)),
                "hide the keys of the last, partial block element by element",
            )
            for size in _BLOCKS
        ),
    ]


def mask_faults(alignment: str) -> list[Fault]:
    """List the ways in which a causal and a boolean mask are put together wrongly."""

    def parts(reading):
        return after_diagonal(reading, alignment) <= 0, np.asarray(reading.options["mask"])

    both = "a key is seen if the causal mask and the boolean mask both let it through"
    return [
        Fault("beside a boolean mask the causal mask is ignored", lambda r: parts(r)[1], both),
        Fault("beside a causal mask the boolean mask is ignored", lambda r: parts(r)[0], both),
        Fault("a key that one of two masks hides is seen", lambda r: parts(r)[0] | parts(r)[1], both),
    ]


def diagonals(alignment: str):
    """Return the rules that are legal for a causal mask beside lengths, by what they do."""

    def at_length(reading):
        shift = _lengths(reading) - reading.queries if alignment == "bottom-right" else 0
        key, query = np.arange(reading.keys), np.arange(reading.queries)[:, None]
        return lengths_rule(reading) & (key <= query + shift)

    return {
        "its diagonal ends at tk": lambda reading: lengths_rule(reading) & causal_rule(alignment)(reading),
        "its diagonal ends at the length": at_length,
    }
