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
        ("zero", ("mapping", "str")),
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
