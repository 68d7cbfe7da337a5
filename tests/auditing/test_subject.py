"""What a Subject reads off a kernel, and what it refuses."""

import functools

import pytest

from softcarry.auditing.subject import Subject
from softcarry.errors import OptionError, SoftcarryError, SubjectError
from softcarry.numerics import CarryModel


def ours(q, k, v, *, mask=None, causal=False, scale=None): ...


def torch_style(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False): ...


def scaled(q, k, v, scale): ...


def anything(*args, **keywords): ...


class Kernel:
    def __call__(self, q, k, v, *, mask=None): ...

    def method(self, q, k, v, causal=False): ...


class Compiled(Kernel):
    """Without a signature that can be read, as torch's own functions are."""

    __signature__ = "none"


class Module:
    """Called as torch.nn.Module is."""

    def __call__(self, *args, **keywords): ...

    def forward(self, q, k, v, mask=None): ...


@pytest.mark.parametrize(
    ("kernel", "keywords"),
    [
        (ours, {"mask": "mask", "causal": "causal", "scale": "scale"}),
        (torch_style, {"mask": "attn_mask", "dropout": "dropout_p", "causal": "is_causal"}),
        (scaled, {"scale": "scale"}),
        (lambda q, k, v, num_splits=1: None, {"splits": "num_splits"}),
        (anything, {}),
        (Kernel(), {"mask": "mask"}),
        (Kernel().method, {"causal": "causal"}),
        (Module(), {"mask": "mask"}),
        (functools.partial(ours, scale=1.0), {"mask": "mask", "causal": "causal", "scale": "scale"}),
        (print, {}),
    ],
)
def test_options_come_from_the_signature(kernel, keywords):
    assert Subject(kernel).keywords == keywords


def test_options_can_be_declared():
    assert Subject(anything, options=["attn_mask", "causal"]).keywords == {
        "mask": "attn_mask",
        "causal": "causal",
    }
    assert Subject(anything, options={"mask": "bias"}).keywords == {"mask": "bias"}
    assert Subject(ours, options=()).keywords == {}


def test_names_come_from_the_kernel():
    assert Subject(ours).name == "ours"
    assert Subject(Kernel()).name == "Kernel"
    assert Subject(functools.partial(ours)).name == "partial"
    assert Subject(ours, name="mine").name == "mine"


def test_one_dtype_may_be_a_string():
    assert Subject(ours, dtypes="bfloat16").dtypes == ("bfloat16",)


def test_a_carry_may_be_declared_for_each_dtype():
    narrow = CarryModel(l_format="bfloat16")
    subject = Subject(ours, carry={"bfloat16": narrow})
    assert subject.carry_in("bfloat16") is narrow
    assert subject.carry_in("float32") is None
    assert Subject(ours, carry=narrow).carry_in("float32") is narrow


@pytest.mark.parametrize(
    ("subject", "more"),
    [
        (Subject(ours), False),
        (Subject(anything), True),
        (Subject(Compiled()), True),
        (Subject(Module()), False),
        (Subject(anything, options=["mask"]), False),
    ],
)
def test_a_signature_may_leave_options_open(subject, more):
    assert subject.may_take_more is more


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"arrays": "cupy"}, ("arrays", "'torch'", "'cupy'")),
        ({"layout": "thd"}, ("layout", "'bhtd'", "'thd'")),
        ({"dtypes": ("float32", "int8")}, ("dtype", "'float16'", "'int8'")),
        ({"dtypes": ()}, ("dtype", "at least one")),
        ({"lse": "10"}, ("lse", "'2'", "'10'")),
        ({"causal": "left"}, ("causal", "'top-left'", "'left'")),
        ({"options": ["alibi"]}, ("option", "'mask'", "'alibi'")),
        ({"device": 0}, ("device", "'cuda'", "int")),
        ({"device": "cuda", "arrays": "numpy"}, ("NumPy", "'cuda'")),
        ({"options": 3}, ("options", "strings", "3")),
        ({"options": {"mask": 3}}, ("options", "strings", "3")),
        ({"dtypes": 3}, ("dtypes", "strings", "3")),
        ({"name": 3}, ("name", "string", "int")),
        ({"carry": "narrow"}, ("carry", "CarryModel", "str")),
        ({"carry": {"float32": "narrow"}}, ("carry", "CarryModel", "str")),
        ({"carry": {"int8": CarryModel()}}, ("dtype in the carry", "'float16'", "'int8'")),
    ],
)
def test_unknown_arguments_are_refused_in_one_line(arguments, words):
    with pytest.raises(OptionError) as caught:
        Subject(ours, **arguments)
    message = str(caught.value)
    assert all(word in message for word in words), message
    assert "\n" not in message


def test_what_is_not_callable_is_refused():
    with pytest.raises(SubjectError, match="got int"):
        Subject(3)
    with pytest.raises(SubjectError, match="got the class Kernel: hand over an instance"):
        Subject(Kernel)
    assert issubclass(SubjectError, SoftcarryError)
