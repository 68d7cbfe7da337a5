"""The same audit inside a test suite, by a fixture of softcarry's pytest plug-in."""

from pathlib import Path

from my_kernel import attention


def test_attention_is_sane(assert_attention_sane):
    assert_attention_sane(attention, Path(__file__).with_name("contract.toml"))
