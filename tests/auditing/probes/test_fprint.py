"""FPRINT records bits that depend on the kernel only, and finds nothing itself."""

import numpy as np
import pytest

from examining import examine
from mutants import LogAddExp, Online, TwoPass, plain
from softcarry.auditing import Subject, audit
from softcarry.auditing.baseline import compare_with_baseline
from softcarry.auditing.last_places import count_last_places
from softcarry.auditing.probes.fprint import SHAPES, fixed_numbers
from softcarry.numerics import formats
from softcarry.reference import blocked_attention

SOUND = {
    "two passes": TwoPass(),
    "one pass": Online(),
    "by the lse": LogAddExp(),
    "reference": blocked_attention,
}


def prints(kernel, **options):
    examination = examine(kernel, "FPRINT", **options)
    assert examination.findings == []
    return {name: fact.value for name, fact in examination.facts.items()}


def test_inputs_are_exact_in_every_dtype_and_never_change():
    x = fixed_numbers((64, 64), 1)
    for name in ("float64", "float32", "bfloat16", "float16"):
        np.testing.assert_array_equal(formats[name].round(x / 8.0), x / 8.0)
    assert abs(x.mean()) < 0.25
    assert 8.0 * x.size > len(np.unique(x)) > 250
    assert not np.array_equal(x, fixed_numbers((64, 64), 2))
    # Worked out once in integers of Python: the numbers are part of every stored baseline.
    assert fixed_numbers((4,), 7).tolist() == [hashed(i + 1, 7) for i in range(4)]


def hashed(place, salt):
    mask = 2**64 - 1
    z = (place + (salt << 32)) * 0x9E3779B97F4A7C15 & mask
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 & mask
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB & mask
    return (((z ^ (z >> 31)) >> 56) - 128) / 16.0


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16", "float16"])
@pytest.mark.parametrize("kernel", SOUND.values(), ids=SOUND)
def test_the_same_bits_for_every_seed(kernel, dtype):
    first = prints(kernel, dtype=dtype)
    assert set(SHAPES) < set(first["fingerprint"])
    assert {"boolean mask", "additive mask", "causal", "scale"} < set(first["fingerprint"])
    for seed in range(1, 10 if dtype == "float32" else 2):
        assert prints(kernel, dtype=dtype, seed=seed) == first


def test_the_lse_has_a_print_of_its_own():
    with_lse = prints(TwoPass())["fingerprint"]
    without = prints(TwoPass(lse_dtype=None))["fingerprint"]
    assert {name: with_lse[name] for name in without} == without
    assert set(with_lse) - set(without) == {f"{name}, lse" for name in without}


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16", "float16"])
def test_the_sample_is_small_and_holds_the_output_bits(dtype):
    found = prints(blocked_attention, dtype=dtype)["fingerprint sample"]
    assert 1024 < sum(map(len, found.values())) <= 2048
    digits = {"float64": 16, "float32": 8, "bfloat16": 4, "float16": 4}[dtype]
    assert all(len(bits) % digits == 0 and bits for bits in found.values())
    q, k, v = (fixed_numbers((1, 2, t, 40), salt) for salt, t in enumerate((7, 67, 67)))
    exact, _ = blocked_attention(q / 8.0, k / 8.0, v)
    first = count_last_places(dtype, [(found["odd sizes"][:digits], as_bits(exact.flat[0], dtype))])
    assert sum(first.values()) == 1
    assert set(first) <= {"0", "1", "2", "up to 4", "up to 16"}


def as_bits(number, dtype):
    from softcarry.auditing._libraries import numpy_dtype

    kind = numpy_dtype(dtype)
    return (
        np.array([number]).astype(kind).view(f"u{kind.itemsize}").astype(f">u{kind.itemsize}").tobytes().hex()
    )


def one_ulp_off(q, k, v):
    output = plain(q, k, v)
    output.reshape(-1)[-1] = np.nextafter(output.reshape(-1)[-1], output.dtype.type(np.inf))
    return output


def other_order(q, k, v):
    return plain(q, k[:, :, ::-1], v[:, :, ::-1])


def scaled_values(q, k, v):
    return plain(q, k, (v.astype(np.float32) * np.float32(1.0 + 2.0**-20)).astype(q.dtype))


def last_block_backwards(q, k, v):
    """From 257 keys on."""
    places = np.arange(k.shape[2])
    places[256:] = places[256:][::-1]
    return plain(q, k[:, :, places], v[:, :, places])


IN_ALL = "output bits differ from the baseline's in 4 of 4 cases"
MUTANTS = {
    "one number by one ulp": (one_ulp_off, IN_ALL),
    "keys in another order": (other_order, IN_ALL),
    "V scaled by 1 + 2^-20": (scaled_values, IN_ALL),
    "last block in another order": (last_block_backwards, "output bits differ from the baseline's in 3 of 4"),
}
"""What FPRINT finds it finds against a baseline: here that of the sound kernel."""


def messages_of(kernel):
    """What a comparison with the report of the sound kernel says."""
    now, then = (audit(Subject(each, name="mine", arrays="numpy"), only="FPRINT") for each in (kernel, plain))
    return [finding.message for finding in compare_with_baseline(now, then)]


@pytest.mark.parametrize("name", MUTANTS)
def test_a_changed_kernel_has_another_fingerprint(name):
    kernel, fragment = MUTANTS[name]
    (message,) = messages_of(kernel)
    assert fragment in message


def test_a_sound_kernel_is_like_its_own_baseline():
    assert messages_of(plain) == []


def test_a_kernel_that_does_not_repeat_has_no_fingerprint():
    turns = iter(range(10**6))

    def restless(q, k, v):
        places = np.random.default_rng(next(turns)).permutation(k.shape[2])
        return plain(q, k[:, :, places], v[:, :, places])

    examination = examine(restless, "FPRINT")
    assert examination.findings == []
    assert examination.facts == {}
    assert [skip.what for skip in examination.skipped] == [f"fingerprint of {name}" for name in SHAPES]
    assert examination.skipped[0].reason == "the same call does not give the same bits twice"


@pytest.mark.parametrize("path", ["flash", "math"])
def test_torch_repeats(path):
    pytest.importorskip("torch")
    from softcarry.auditing.subjects import torch_sdpa

    subject = getattr(torch_sdpa, path)()
    assert prints(subject, dtype="bfloat16") == prints(subject, dtype="bfloat16", seed=5)
