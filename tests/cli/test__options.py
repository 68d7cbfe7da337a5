"""Whole numbers on the command line: digits, 1e6, and nothing that would be rounded."""

import pytest
from cyclopts import Token

from softcarry.cli._options import whole_number, whole_numbers


@pytest.mark.parametrize(
    ("text", "number"),
    [("8192", 8192), ("-3", -3), ("+3", 3), ("1e6", 10**6), ("30.0", 30), (str(2**70), 2**70)],
)
def test_whole_numbers_are_read_exactly(text, number):
    assert whole_number(int, [Token(value=text)]) == number


@pytest.mark.parametrize("text", ["2.5", "x", "", "inf", "nan", "1e400", "²", "9" * 5000])
def test_everything_else_is_refused(text):
    with pytest.raises(ValueError, match="expected a whole number, such as 8192 or 1e6; got"):
        whole_number(int, [Token(value=text)])


def test_several():
    assert whole_numbers(list, [Token(value="1"), Token(value="64")]) == [1, 64]
