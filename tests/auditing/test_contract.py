"""Contracts take known promises and refuse others by name."""

import pytest

from softcarry.auditing.contract import Contract
from softcarry.errors import OptionError, SoftcarryError


def test_nothing_promised_is_the_default():
    assert Contract.of(None) == Contract() == Contract.of({})
    assert (Contract().empty_rows, Contract().lse_empty) == ("zero", "-inf")


def test_a_mapping_or_a_contract_is_taken():
    contract = Contract.of({"empty_rows": "nan", "carry_format": "bfloat16"})
    assert contract == Contract("nan", carry_format="bfloat16")
    assert Contract.of(contract) is contract


@pytest.mark.parametrize(
    ("promises", "words"),
    [
        ({"empty_row": "zero"}, ("'empty_row'", "did you mean 'empty_rows'?")),
        ({"speed": "fast"}, ("'speed'", "lse_empty")),
        ({"empty_rows": "one"}, ("empty_rows", "'mean'", "'one'")),
        ({"lse_empty": 0}, ("lse_empty", "'0'", "got 0")),
        ({"causal": True}, ("causal", "'top-left'", "True")),
        (3, ("mapping", "TOML", "int")),
        ({"masked_values": "seen"}, ("masked_values", "'any'", "'seen'")),
        ({"invariant": ["thread"]}, ("invariant", "'thread'", "did you mean 'threads'?")),
        ({"invariant": 3}, ("invariant", "names", "got 3")),
        ({"dtypes": ["float8"]}, ("dtypes", "bfloat16", "'float8'")),
        ({"options": "is_causal"}, ("options", "'is_causal'", "did you mean 'causal'?")),
        ({"longest_n": 0}, ("longest_n", "at least 1", "got 0")),
        ({"longest_n": True}, ("longest_n", "at least 1", "got True")),
    ],
)
def test_others_are_refused_in_one_line(promises, words):
    with pytest.raises(OptionError) as caught:
        Contract.of(promises)
    assert all(word in str(caught.value) for word in words), str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_unknown_carry_format_is_refused():
    with pytest.raises(SoftcarryError, match="float33"):
        Contract(carry_format="float33")


def test_names_are_kept_once_as_a_tuple():
    contract = Contract(invariant=["threads", "threads"], dtypes="float32", options=("mask",))
    assert (contract.invariant, contract.dtypes, contract.options) == (("threads",), ("float32",), ("mask",))


@pytest.mark.parametrize("header", ["", "[contract]\n"])
def test_a_file_holds_the_same_fields(tmp_path, header):
    file = tmp_path / "kernel.toml"
    file.write_text(f'{header}empty_rows = "nan"\ninvariant = ["threads", "neighbours"]\nlongest_n = 4096\n')
    expected = Contract(empty_rows="nan", invariant=("threads", "neighbours"), longest_n=4096)
    assert Contract.of(file) == Contract.of(str(file)) == expected


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, ("can't be read", "No such file")),
        ("empty_rows = ", ("no TOML",)),
        ('empty_row = "zero"', ("did you mean 'empty_rows'?",)),
        ('speed = "fast"\n[contract]\nempty_rows = "nan"', ("[contract]", "speed", "into the table")),
        ("contract = 3", ("mapping", "int")),
    ],
)
def test_files_that_are_no_contract_are_refused_by_name(tmp_path, text, words):
    file = tmp_path / "kernel.toml"
    if text is not None:
        file.write_text(text)
    with pytest.raises(OptionError) as caught:
        Contract.of(file)
    assert all(word in str(caught.value) for word in ("kernel.toml", *words)), str(caught.value)
    assert "\n" not in str(caught.value)
