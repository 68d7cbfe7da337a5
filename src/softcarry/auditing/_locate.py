"""From what a user names to a subject: a callable, a known name, or module:function."""

import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any

from softcarry.auditing._calling import one_line
from softcarry.auditing.subject import Subject
from softcarry.auditing.subjects import load_subject
from softcarry.errors import SubjectError


def resolve(target: Any) -> Subject:
    """Return the subject that a target stands for.

    Parameters
    ----------
    target : Subject or callable or str
        A string is the name of a known subject, or "module:function", where the function may also be a
        ``Subject`` or an attribute of an attribute ("module:Class.method").

    Returns
    -------
    Subject

    Raises
    ------
    SubjectError
        If the name is unknown (with the closest known one), the module does not import, or holds no such
        callable.

    Examples
    --------
    >>> resolve("math:hypot").name
    'math:hypot'
    """
    if isinstance(target, Subject):
        return target
    if not isinstance(target, str):
        return Subject(target)
    if ":" not in target and not target.endswith(".py"):
        return load_subject(target)
    found = _import(target, "a kernel(q, k, v, ...)")
    if isinstance(found, Subject):
        return found
    return Subject(_callable(found, target, "a kernel(q, k, v, ...) or a Subject"), name=target)


def find_function(spec: str, expected: str) -> Callable[..., Any]:
    """Return the function that "module:function" names.

    Parameters
    ----------
    spec : str
        "module:function", or "module:Class.method".
    expected : str
        What it is meant to be, for messages.

    Returns
    -------
    callable

    Raises
    ------
    SubjectError
        If the module does not import, or holds no such callable.

    Examples
    --------
    >>> find_function("math:hypot", "a function of two numbers")(3, 4)
    5.0
    """
    return _callable(_import(spec, expected), spec, expected)


def _callable(found: Any, spec: str, expected: str) -> Callable[..., Any]:
    if not callable(found):
        msg = f"{spec!r} is of type {type(found).__name__}; expected {expected}"
        raise SubjectError(msg)
    return found


def _import(spec, expected):
    module_name, _, path = spec.partition(":")
    if module_name.endswith(".py") or "/" in module_name:
        stem = module_name.removesuffix(".py").rpartition("/")[2]
        msg = (
            f"a subject is named module:function, not by a file; got {spec!r}: "
            f"{stem}:{path or 'function'} names it from the folder that holds it"
        )
        raise SubjectError(msg)
    if not module_name or not path:
        msg = f"a subject outside the known ones is named module:function; got {spec!r}"
        raise SubjectError(msg)
    try:
        found = import_module(module_name)
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        if isinstance(error, ModuleNotFoundError) and error.name == module_name.partition(".")[0]:
            msg = (
                f"there is no module {module_name!r} to import {spec!r} from; "
                "run from the folder that holds it, or install it"
            )
        else:
            msg = f"importing {module_name!r} for {spec!r} raised {one_line(error)}"
        raise SubjectError(msg) from error
    for name in path.split("."):
        if not hasattr(found, name):
            where = getattr(sys.modules[module_name], "__file__", None) or module_name
            msg = f"{where} has no {path!r}; expected {expected} of that name"
            raise SubjectError(msg)
        found = getattr(found, name)
    return found
