"""Calls whose arguments do not fit together, and what a kernel may make of them without saying so."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from softcarry.auditing._attempts import Attempt

BATCH, HEADS, QUERIES, KEYS, DEPTH = 2, 4, 6, 48, 16


class Reading(NamedTuple):
    """A call that fits, whose answer a kernel may have given instead of an error.

    Attributes
    ----------
    text : str
        What the kernel then does.
    call : tuple
        q, k, v and a dict of options.
    harm : {"none", "little", "wrong"}
        "none": the answer is the right one for what was asked; "little": a convention that few document.
    """

    text: str
    call: tuple[np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]
    harm: str = "wrong"


@dataclass(frozen=True)
class Misfit:
    """A call that should raise, of a group of faults, and the readings of it."""

    group: str
    attempt: Attempt
    readings: tuple[Reading, ...] = ()


def plain_attempt(examination) -> Attempt:
    """Draw the call that fits, from which the others are made.

    Parameters
    ----------
    examination : Examination

    Returns
    -------
    Attempt
        Values are multiples of 1/8 up to 1, exact in every dtype.
    """
    q = _draw(examination, BATCH, HEADS, QUERIES, DEPTH)
    k, v = (_draw(examination, BATCH, HEADS, KEYS, DEPTH) for _ in range(2))
    return Attempt("arguments that fit", q, k, v)


def misfits(examination, plain: Attempt) -> Iterator[Misfit]:
    """Yield the calls that should raise.

    Parameters
    ----------
    examination : Examination
    plain : Attempt

    Yields
    ------
    Misfit
    """
    yield from _shapes(plain)
    yield from _lengths(plain)
    if examination.can("mask"):
        yield from _masks(examination, plain)
    yield from _dtypes(examination, plain)
    if examination.can("kv_lengths"):
        yield from _kv_lengths(plain)


def _draw(examination, *shape):
    return examination.rng.integers(-8, 9, shape) / 8.0


def _padded(x, count, axis):
    widths = [(0, 0)] * x.ndim
    widths[axis] = (0, count)
    return np.pad(x, widths)


def _lengths(plain):
    q, k, v = plain.q, plain.k, plain.v
    longer = np.concatenate([v, v[:, :, ::-1]], axis=2)
    yield Misfit(
        "lengths of k and v",
        Attempt(f"v of {2 * KEYS} keys beside k of {KEYS}", q, k, longer),
        (
            Reading("leaves out the values without keys", (q, k, v, {})),
            Reading("scores 0 the values without keys", (q, _padded(k, KEYS, 2), longer, {})),
        ),
    )
    short = v[:, :, : KEYS // 2]
    yield Misfit(
        "lengths of k and v",
        Attempt(f"k of {KEYS} keys beside v of {KEYS // 2}", q, k, short),
        (
            Reading("leaves out the keys without values", (q, k[:, :, : KEYS // 2], short, {})),
            Reading("gives the keys without values a value of 0", (q, k, _padded(short, KEYS // 2, 2), {})),
        ),
    )


def _shapes(plain):
    q, k, v = plain.q, plain.k, plain.v
    three = np.arange(HEADS) % 3, np.arange(HEADS) * 3 // HEADS, np.minimum(np.arange(HEADS), 2)
    yield Misfit(
        "numbers of heads",
        Attempt("3 heads of k and v beside 4 of q", q, k[:, :3], v[:, :3]),
        tuple(
            Reading(f"uses heads {heads.tolist()} of k and v", (q, k[:, heads], v[:, heads], {}))
            for heads in three
        ),
    )
    yield Misfit(
        "numbers of heads",
        Attempt("4 heads of k and v beside 2 of q", q[:, :2], k, v),
        tuple(
            Reading(f"uses heads {heads} of k and v", (q[:, :2], k[:, heads], v[:, heads], {}))
            for heads in ([0, 1], [0, 2])
        ),
    )
    yield Misfit(
        "numbers of heads",
        Attempt("2 heads of v beside 4 of q and k", q, k, v[:, :2]),
        (
            Reading("shares each head of v between two of k", (q, k, v[:, [0, 0, 1, 1]], {}), "little"),
            Reading("repeats the heads of v in turn", (q, k, v[:, [0, 1, 0, 1]], {})),
        ),
    )
    half = DEPTH // 2
    for name, short_q, short_k in (
        (f"k of depth {half} beside q of {DEPTH}", q, k[..., :half]),
        (f"q of depth {half} beside k of {DEPTH}", q[..., :half], k),
    ):
        cut = q[..., :half], k[..., :half], v
        yield Misfit(
            "depths of q and k",
            Attempt(name, short_q, short_k, v),
            (
                Reading("cuts the deeper one", (*cut, {})),
                Reading("cuts the deeper one, and scales by its depth", (*cut, {"scale": DEPTH**-0.5})),
            ),
        )
    third_k, third_v = (np.concatenate([x, x[:1]]) for x in (k, v))
    yield Misfit(
        "batches",
        Attempt("3 batch entries of k and v beside 2 of q", q, third_k, third_v),
        (Reading("leaves out the last batch entry", (q, k, v, {})),),
    )
    spread_k, spread_v = (np.broadcast_to(x[:1], x.shape) for x in (k, v))
    yield Misfit(
        "batches",
        Attempt("one batch entry of k and v beside 2 of q", q, k[:1], v[:1]),
        (Reading("uses it for both", (q, spread_k, spread_v, {}), "little"),),
    )
    yield Misfit(
        "numbers of axes",
        Attempt("k of three axes beside q and v of four", q, k[0], v),
        (Reading("uses it for every batch entry", (q, spread_k, v, {}), "little"),),
    )
    yield Misfit(
        "numbers of axes",
        Attempt("q, k and v of three axes", q[0], k[0], v[0]),
        (Reading("computes attention without a batch axis", (q[:1], k[:1], v[:1], {}), "none"),),
    )


def _masks(examination, plain):
    q, k, v = plain.q, plain.k, plain.v
    mask = examination.rng.random((BATCH, HEADS, QUERIES, KEYS)) < 0.7
    mask[..., 0] = True
    ignored = Reading("ignores it", (q, k, v, {}))
    more = np.concatenate([mask, mask[..., :8]], axis=-1)
    yield Misfit(
        "shapes of the mask",
        Attempt(f"a mask of {KEYS + 8} keys beside {KEYS}", q, k, v, options={"mask": more}),
        (Reading("cuts it", (q, k, v, {"mask": mask})), ignored),
    )
    fewer = mask[..., : KEYS - 8]
    filled = [np.concatenate([fewer, np.full_like(mask[..., :8], fill)], axis=-1) for fill in (True, False)]
    yield Misfit(
        "shapes of the mask",
        Attempt(f"a mask of {KEYS - 8} keys beside {KEYS}", q, k, v, options={"mask": fewer}),
        (
            Reading("lets the keys beyond it be seen", (q, k, v, {"mask": filled[0]})),
            Reading("masks the keys beyond it", (q, k, v, {"mask": filled[1]})),
            ignored,
        ),
    )
    taller = np.concatenate([mask, mask[:, :, :2]], axis=2)
    yield Misfit(
        "shapes of the mask",
        Attempt(f"a mask of {QUERIES + 2} queries beside {QUERIES}", q, k, v, options={"mask": taller}),
        (Reading("cuts it", (q, k, v, {"mask": mask})), ignored),
    )
    yield Misfit(
        "shapes of the mask",
        Attempt("a mask of 3 heads beside 4", q, k, v, options={"mask": mask[:, :3]}),
        (Reading("repeats its heads in turn", (q, k, v, {"mask": mask[:, [0, 1, 2, 0]]})), ignored),
    )


def _dtypes(examination, plain):
    other = "float32" if examination.dtype == "float16" else "float16"
    for index, name in enumerate("qkv"):
        mixed = [other if place == index else None for place in range(3)]
        rest = " and ".join(x for x in "qkv" if x != name)
        yield Misfit(
            "dtypes",
            Attempt(
                f"{name} in {other} beside {rest} in {examination.dtype}",
                plain.q,
                plain.k,
                plain.v,
                (mixed[0], mixed[1], mixed[2]),
            ),
            (Reading("converts", (plain.q, plain.k, plain.v, {}), "none"),),
        )


def _kv_lengths(plain):
    q, k, v = plain.q, plain.k, plain.v
    clamped = np.array([KEYS, 9])
    yield Misfit(
        "kv_lengths",
        Attempt(
            f"a length of {2 * KEYS} beside {KEYS} keys",
            q,
            k,
            v,
            options={"kv_lengths": np.array([2 * KEYS, 9])},
        ),
        (Reading("takes all keys", (q, k, v, {"kv_lengths": clamped}), "little"),),
    )
    yield Misfit(
        "kv_lengths",
        Attempt("3 lengths beside 2 batch entries", q, k, v, options={"kv_lengths": np.array([KEYS, 9, 9])}),
        (Reading("leaves out the last", (q, k, v, {"kv_lengths": clamped})),),
    )
