"""DROP names what is wrong with dropout, restores the random generators, and spares sound kernels."""

import random
from functools import partial

import numpy as np
import pytest

from examining import examine, messages
from mutants import TwoPass, plain
from softcarry.auditing.probes._seeding import seeded
from softcarry.auditing.subjects import load_subject


class Dropping:
    """Sound attention with dropout, one method a step, from NumPy's global generator."""

    default = 0.0

    def __call__(self, q, k, v, *, dropout=None):
        p = self.default if dropout is None else dropout
        wide = np.float64 if q.dtype == np.float64 else np.float32
        s = q.astype(wide) @ np.swapaxes(k, -1, -2).astype(wide) / np.sqrt(wide(q.shape[3]))
        m = s.max(axis=-1, keepdims=True)
        terms = np.exp(s - m)
        total = terms.sum(axis=-1, keepdims=True)
        weights, output = terms / total, None
        if p > 0.0 or self.default:
            weights = self.dropped(weights, p)
        output = self.finished(weights @ v.astype(wide), p)
        lse = self.lse((m + np.log(total))[..., 0], weights)
        return output.astype(q.dtype), lse.astype(np.float32)

    def dropped(self, weights, p):
        kept = self.kept(weights.shape, p)
        with np.errstate(all="ignore"):
            return np.where(kept, self.rescaled(weights, p), 0).astype(weights.dtype)

    def kept(self, shape, p):
        return np.random.random(shape) >= p  # noqa: NPY002 - kernels use the global generator

    def rescaled(self, weights, p):
        return weights / (1 - p)

    def finished(self, output, p):
        return output

    def lse(self, lse, weights):
        return lse


class OneMinusByMultiplication(Dropping):
    def rescaled(self, weights, p):
        return weights * np.float32(1 / (1 - p)) if p < 1 else weights


class InBlocks(Dropping):
    """Random numbers are drawn one key block after another."""

    def kept(self, shape, p):
        draws = [np.random.random((*shape[:-1], min(64, shape[-1] - at))) for at in range(0, shape[-1], 64)]  # noqa: NPY002
        return np.concatenate(draws, axis=-1) >= p


class OwnGenerator(Dropping):
    """A generator that no seed reaches."""

    generator = np.random.default_rng(5)

    def kept(self, shape, p):
        return self.generator.random(shape) >= p


class RefusesOne(Dropping):
    def dropped(self, weights, p):
        if p >= 1:
            msg = "p must be below 1"
            raise ValueError(msg)
        return super().dropped(weights, p)


SOUND = {
    "sound": Dropping(),
    "by a factor": OneMinusByMultiplication(),
    "in blocks": InBlocks(),
    "own generator": OwnGenerator(),
    "refuses 1": RefusesOne(),
}


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("kernel", SOUND.values(), ids=SOUND)
def test_sound_kernels_pass(kernel, seed):
    for dtype in ("float32", "bfloat16", "float16"):
        assert messages(examine(kernel, "DROP", seed=seed, dtype=dtype)) == []


def test_sound_kernels_pass_in_float64():
    assert messages(examine(Dropping(), "DROP", dtype="float64")) == []


def mutant(**steps):
    return type("Mutant", (Dropping,), steps)()


def before_the_softmax(self, weights, p):
    kept = self.kept(weights.shape, p)
    total = np.where(kept, weights, 0).sum(axis=-1, keepdims=True)
    return np.where(kept, weights / np.maximum(total, 1e-30), 0).astype(weights.dtype)


def of_the_output(self, output, p):
    return np.where(self.kept(output.shape, p), output / (1 - min(p, 0.99)), 0) if p else output


def one_row_for_all(self, shape, p):
    return np.broadcast_to(np.random.random((*shape[:2], 1, shape[3])) >= p, shape)  # noqa: NPY002


def one_head_for_all(self, shape, p):
    return np.broadcast_to(np.random.random((shape[0], 1, *shape[2:])) >= p, shape)  # noqa: NPY002


def fixed_numbers(self, shape, p):
    return np.random.default_rng(0).random(shape) >= p


def lse_of_what_is_kept(self, lse, weights):
    with np.errstate(divide="ignore"):
        return lse + np.log(weights.sum(axis=-1))


class NoneIsNotZero(Dropping):
    """Another path, with other rounding, for the keyword."""

    def __call__(self, q, k, v, *, dropout=None):
        output, lse = super().__call__(q, k, v, dropout=dropout)
        return (output if dropout is None else output * output.dtype.type(0.75)), lse


MUTANTS = {
    "not rescaled": (mutant(rescaled=lambda self, w, p: w), "kept weights are not divided by 1 − p"),
    "multiplied by 1 − p": (mutant(rescaled=lambda self, w, p: w * (1 - p)), "multiplied by 1 − p"),
    "divided twice": (mutant(rescaled=lambda self, w, p: w / (1 - p) ** 2), "divided by 1 − p twice"),
    "divided by p": (
        mutant(
            rescaled=lambda self, w, p: w / p, kept=lambda self, shape, p: Dropping.kept(self, shape, 1 - p)
        ),
        "p is taken for the probability of keeping",
    ),
    "wrong fraction": (
        mutant(kept=lambda self, shape, p: Dropping.kept(self, shape, p * p)),
        "the fraction of weights that is dropped is not p",
    ),
    "before the softmax": (mutant(dropped=before_the_softmax), "dropout comes before the softmax"),
    "of the output": (
        mutant(dropped=lambda self, w, p: w, finished=of_the_output),
        "elements of the output are dropped, not weights",
    ),
    "ignored": (mutant(dropped=lambda self, w, p: w), "the dropout option is accepted and ignored"),
    "on by default": (mutant(default=0.1), "weights are dropped though no dropout is asked for"),
    "the same in every row": (mutant(kept=one_row_for_all), "the same weights are dropped in every row"),
    "the same in every head": (mutant(kept=one_head_for_all), "the same weights are dropped in every head"),
    "the same for every seed": (mutant(kept=fixed_numbers), "the same weights are dropped whatever the seed"),
    "lse of what is kept": (mutant(lse=lse_of_what_is_kept), "the lse changes under dropout"),
    "p = 0 is not none": (
        NoneIsNotZero(),
        "with dropout of probability 0 the output is another than without",
    ),
    "NaN for p = 1": (
        mutant(dropped=lambda self, w, p: self.kept(w.shape, p) * (w * (np.inf if p == 1 else 1 / (1 - p)))),
        "with dropout of probability 1 the output is NaN",
    ),
}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("name", MUTANTS)
def test_the_fault_is_named_once(name, dtype):
    kernel, said = MUTANTS[name]
    found = messages(examine(kernel, "DROP", dtype=dtype))
    assert len(found) == 1
    assert said in found[0]


def test_long_rows_that_lose_their_mean_are_found():
    """Beyond 64 keys, where weights are not read one by one, nothing is rescaled."""

    class ShortRowsOnly(Dropping):
        def rescaled(self, weights, p):
            return weights / (1 - p) if weights.shape[-1] <= 64 else weights

    finding = examine(ShortRowsOnly(), "DROP").findings[0]
    assert finding.message == "dropout does not keep the mean of the output"
    assert finding.evidence["mean"] == pytest.approx(0.5, abs=0.03)


def test_an_output_that_is_not_finite_is_said_to_be_just_that():
    kernel = mutant(rescaled=lambda self, w, p: w * np.float32(np.inf))
    assert messages(examine(kernel, "DROP")) == ["with dropout the output is not finite"]


def test_whether_a_seed_repeats_it_is_a_fact():
    name = "dropout repeats under a seed"
    assert examine(Dropping(), "DROP").facts[name].value is True
    assert examine(OwnGenerator(), "DROP").facts[name].value is False


def test_a_kernel_without_dropout_is_skipped():
    examination = examine(plain, "DROP")
    assert examination.verdict.outcome == "skip"
    assert [skip.what for skip in examination.skipped] == ["dropout"]
    assert examine(TwoPass(), "DROP").calls == 0


def test_the_generators_are_left_as_they_were():
    random.seed(1)
    np.random.seed(1)  # noqa: NPY002
    examine(Dropping(), "DROP")
    after = random.random(), np.random.random()  # noqa: NPY002
    random.seed(1)
    np.random.seed(1)  # noqa: NPY002
    assert after == (random.random(), np.random.random())  # noqa: NPY002


def test_torchs_generator_is_left_as_it_was():
    torch = pytest.importorskip("torch")
    torch.manual_seed(1)
    with seeded(7):
        one = torch.rand(3)
    after = torch.rand(3)
    torch.manual_seed(1)
    assert torch.equal(after, torch.rand(3))
    with seeded(7):
        assert torch.equal(one, torch.rand(3))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_torchs_math_path_passes(dtype):
    pytest.importorskip("torch")
    for seed in range(3):
        examination = examine(load_subject("torch-sdpa-math"), "DROP", dtype=dtype, seed=seed)
        assert messages(examination) == []
        assert examination.skipped == []
        assert examination.facts["dropout repeats under a seed"].value is True


def test_torchs_flash_operator_refuses_dropout():
    pytest.importorskip("torch")
    examination = examine(load_subject("torch-sdpa-flash"), "DROP")
    assert messages(examination) == []
    assert any("dropout > 0" in skip.reason for skip in examination.skipped)


def test_two_audits_say_the_same():
    kernel = partial(MUTANTS["not rescaled"][0])
    assert examine(kernel, "DROP").findings == examine(kernel, "DROP").findings
