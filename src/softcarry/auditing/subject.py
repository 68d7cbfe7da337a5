"""The subject: a kernel under audit, and what calls alone can't tell about it."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from softcarry.errors import OptionError, SubjectError

if TYPE_CHECKING:
    from softcarry.numerics import CarryModel

ARRAYS = ("torch", "numpy", "jax")
LAYOUTS = ("bhtd", "bthd")
DTYPES = ("float64", "float32", "bfloat16", "float16")
ALIASES = {
    "mask": ("mask", "attn_mask"),
    "causal": ("causal", "is_causal"),
    "scale": ("scale",),
    "softcap": ("softcap", "logits_soft_cap"),
    "window": ("window", "window_size"),
    "kv_lengths": ("kv_lengths",),
    "dropout": ("dropout", "dropout_p"),
    "sinks": ("sinks",),
    "splits": ("splits", "num_splits"),
}
"""The options that the audit knows, each with the keywords under which kernels take it.

mask: (b, h, tq, tk) or what broadcasts to it, boolean (True = attend) or added to the scores. causal: bool.
scale: float. softcap: float c, for c · tanh(s / c) before masks. window: (left, right), how many keys before
and after the diagonal of the causal mask are seen, None for all. kv_lengths: (b,) integers, keys at or beyond
are not seen. dropout: probability with which a weight is set to 0. sinks: (h,) scores of keys without value.
splits: int, into how many pieces the keys are cut, whose carries are merged.
"""


@dataclass(frozen=True)
class Subject:
    """A kernel, seen only through calls, with what can't be found out by calling.

    Parameters
    ----------
    kernel : callable
        ``kernel(q, k, v, **options)`` returning the output, or ``(output, lse)``. q is (b, h, tq, d), k is
        (b, h, tk, d), v is (b, h, tk, dv), the output (b, h, tq, dv), the lse (b, h, tq).
    name : str, optional
        Default: the kernel's own name.
    arrays : {"torch", "numpy", "jax"}, optional
        The library whose arrays the kernel takes. By default they are tried; see ``softcarry.audit``.
    layout : {"bhtd", "bthd"}
        Axes of q, k, v and the output.
    dtypes : iterable of str
        The dtypes to audit: "float64", "float32", "bfloat16", "float16".
    options : iterable of str or mapping, optional
        The options that the kernel takes, of "mask", "causal", "scale", "softcap", "window", "kv_lengths",
        "dropout", "sinks" and "splits" or the aliases in ``ALIASES``; a mapping gives the keyword for each.
        The default reads the signature. Masks are handed over as booleans, True = attend, or as floats in the
        kernel's dtype, to be added to the scores.
    lse : {"e", "2"}, optional
        Unit of a returned lse: natural log or log2. Undeclared, it is taken for natural, and check LSE says
        whether it is.
    control : bool
        True for a kernel that is known to be wrong and shows what failure looks like: an audit's exit code
        does not count it.
    carry : CarryModel or mapping, optional
        What the kernel's carry is declared to be made of; a mapping gives one for each dtype.
    causal : {"bottom-right", "top-left"}, optional
        Alignment of the causal mask where tq ≠ tk. Undeclared, it is read off one call.
    masks : {"any", "additive"}
        "additive" says that the kernel's own interface takes only masks that are added, and booleans are
        turned into 0 and −inf for it: such a mask can't hide a NaN, and is not asked to.
    device : str
        Where the arrays of torch or JAX are put, such as "cuda"; "" is the library's own default.

    Raises
    ------
    SubjectError
        If the kernel can't be called.
    OptionError
        If another argument is none of the above.

    Examples
    --------
    >>> def mean_of_values(q, k, v, *, is_causal=False): ...
    >>> subject = Subject(mean_of_values, arrays="numpy")
    >>> subject.name, subject.keywords
    ('mean_of_values', {'causal': 'is_causal'})
    """

    kernel: Callable[..., Any]
    name: str = ""
    arrays: str | None = None
    layout: str = "bhtd"
    dtypes: tuple[str, ...] = ("float32",)
    options: Iterable[str] | Mapping[str, str] | None = None
    lse: str | None = None
    control: bool = False
    carry: "CarryModel | Mapping[str, CarryModel] | None" = None
    causal: str | None = None
    masks: str = "any"
    device: str = ""

    def __post_init__(self) -> None:
        if not callable(self.kernel):
            msg = f"a subject is a callable kernel(q, k, v, ...); got {type(self.kernel).__name__}"
            raise SubjectError(msg)
        if isinstance(self.kernel, type):
            msg = (
                f"a subject is a callable kernel(q, k, v, ...); got the class {self.kernel.__name__}: "
                "hand over an instance of it"
            )
            raise SubjectError(msg)
        if not isinstance(self.name, str):
            msg = f"the name of a subject is a string; got {type(self.name).__name__}"
            raise OptionError(msg)
        _one_of("arrays", self.arrays, (None, *ARRAYS))
        _one_of("layout", self.layout, LAYOUTS)
        _one_of("lse", self.lse, (None, "e", "2"))
        _one_of("masks", self.masks, ("any", "additive"))
        _one_of("causal", self.causal, (None, "bottom-right", "top-left"))
        if not isinstance(self.device, str):
            msg = f"the device of a subject is a string such as 'cuda'; got {type(self.device).__name__}"
            raise OptionError(msg)
        if self.device and self.arrays == "numpy":
            msg = f"NumPy arrays stay in the memory of the processor; got device {self.device!r}"
            raise OptionError(msg)
        dtypes = (self.dtypes,) if isinstance(self.dtypes, str) else _strings("dtypes", self.dtypes)
        for dtype in dtypes:
            _one_of("a dtype", dtype, DTYPES)
        if not dtypes:
            msg = f"a subject has at least one dtype, of {', '.join(DTYPES)}; got none"
            raise OptionError(msg)
        object.__setattr__(self, "dtypes", dtypes)
        object.__setattr__(self, "name", self.name or _name_of(self.kernel))
        object.__setattr__(self, "_keywords", _keywords(self.kernel, self.options))
        if self.carry is not None:
            _check_carry(self.carry)

    @property
    def keywords(self) -> dict[str, str]:
        """The options that the kernel takes, each with its keyword."""
        return dict(self._keywords)  # pyright: ignore[reportAttributeAccessIssue]

    @property
    def may_take_more(self) -> bool:
        """Whether the options were read off a signature that does not name all of them, or is not there."""
        parameters = _parameters(self.kernel)
        return self.options is None and (parameters is None or _is_open(parameters))

    @property
    def source(self) -> dict[str, Any] | None:
        """The kernel's {"file": ..., "line": ...}, if it lies in the current folder."""
        import inspect
        from pathlib import Path

        target = self.kernel if inspect.isroutine(self.kernel) else type(self.kernel)
        try:
            plain = inspect.unwrap(target)
            file = Path(inspect.getsourcefile(plain) or "").resolve().relative_to(Path.cwd())
            line = inspect.getsourcelines(plain)[1]
        except (OSError, TypeError, ValueError):  # compiled, from a notebook, or from elsewhere
            return None
        return {"file": file.as_posix(), "line": max(line, 1)}

    def carry_in(self, dtype: str) -> "CarryModel | None":
        """Return the declared carry for inputs of ``dtype``, or None."""
        return self.carry.get(dtype) if isinstance(self.carry, Mapping) else self.carry


def _one_of(what, value, choices):
    if value not in choices:
        legal = ", ".join(repr(choice) for choice in choices)
        msg = f"{what} of a subject is one of {legal}; got {value!r}"
        raise OptionError(msg)


def _name_of(kernel):
    name = getattr(kernel, "__name__", None)
    return name if isinstance(name, str) and name else type(kernel).__name__


def _keywords(kernel, options):
    if options is None:
        return _keywords_in_signature(kernel)
    if isinstance(options, Mapping):
        pairs = dict(options)
        _strings("options", pairs.values())
    else:
        options = (options,) if isinstance(options, str) else _strings("options", options)
        pairs = {_meaning(keyword): keyword for keyword in options}
    for meaning in pairs:
        _one_of("an option", meaning, tuple(ALIASES))
    return pairs


def _meaning(keyword):
    for meaning, keywords in ALIASES.items():
        if keyword in keywords:
            return meaning
    return keyword


def _strings(what, values):
    values = tuple(values) if isinstance(values, Iterable) else (values,)
    for value in values:
        if not isinstance(value, str):
            msg = f"the {what} of a subject are strings; got {value!r}"
            raise OptionError(msg)
    return values


def _check_carry(carry):
    from softcarry.numerics import CarryModel

    models = carry if isinstance(carry, Mapping) else {DTYPES[0]: carry}
    for dtype, model in models.items():
        _one_of("a dtype in the carry", dtype, DTYPES)
        if not isinstance(model, CarryModel):
            msg = f"the carry of a subject is a CarryModel, or one for each dtype; got {type(model).__name__}"
            raise OptionError(msg)


def _parameters(kernel):
    """Return the parameters of a kernel, or None where it has no signature."""
    import inspect

    try:
        parameters = inspect.signature(kernel).parameters
        # A torch.nn.Module takes anything and hands it on to its forward.
        if _is_open(parameters) and callable(getattr(kernel, "forward", None)):
            parameters = inspect.signature(kernel.forward).parameters
    except (TypeError, ValueError):  # compiled functions need not have a signature
        return None
    return parameters


def _is_open(parameters):
    return any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())


def _keywords_in_signature(kernel):
    parameters = _parameters(kernel) or {}
    named = [name for name, parameter in parameters.items() if parameter.kind is not parameter.VAR_KEYWORD]
    found = {}
    for meaning, keywords in ALIASES.items():
        taken = [keyword for keyword in keywords if keyword in named[3:]]
        if taken:
            found[meaning] = taken[0]
    return found
