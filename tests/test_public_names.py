"""The public face: every promised name is there, and nothing else is."""

import inspect

import softcarry as sc

NAMES = {
    "Carry",
    "CarryStack",
    "Logprobs",
    "Moments",
    "NormalisedCarry",
    "RowStream",
    "SoftcarryError",
    "Subject",
    "TopK",
    "__version__",
    "attention",
    "attention_carry",
    "audit",
    "conventions",
    "get_num_threads",
    "log_softmax",
    "logprobs",
    "logsumexp",
    "merge_output_into",
    "merge_outputs",
    "merge_outputs_ragged",
    "merge_ragged",
    "numerics",
    "online_normalizer",
    "recurrence",
    "set_num_threads",
    "softmax",
    "softmax_topk",
}


def test_all_is_the_snapshot():
    assert set(sc.__all__) == NAMES


def test_every_name_resolves_and_is_documented():
    for name in NAMES - {"__version__", "conventions"}:
        assert inspect.getdoc(getattr(sc, name)), name


def test_numerics_names_resolve_and_are_documented():
    for name in sc.numerics.__all__:
        value = getattr(sc.numerics, name)
        assert inspect.getdoc(value), name


def test_an_unknown_name_is_an_attribute_error():
    import pytest

    with pytest.raises(AttributeError, match="no attribute 'attentoin'"):
        sc.attentoin  # noqa: B018


def test_no_module_bears_the_name_of_a_public_object():
    """`sc.audit` is a function: a submodule of that name would replace it on import."""
    import importlib.util

    for name in NAMES - {"numerics", "__version__"}:
        assert importlib.util.find_spec(f"softcarry.{name}") is None, name
