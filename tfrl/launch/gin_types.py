"""Whether a literal of a gin file fits the annotation of the parameter that it is bound to."""

import collections.abc
import enum
import inspect
import sys
import types
import typing
from collections.abc import Callable
from typing import Any, Literal, Union

_SEQUENCES: tuple[type, ...] = (
    list,
    tuple,
    collections.abc.Sequence,
    collections.abc.Iterable,
    collections.abc.Collection,
)
_MAPPINGS: tuple[type, ...] = (dict, collections.abc.Mapping)


def mismatch(function: Callable[..., Any], parameter: str, value: Any) -> str | None:
    """Compares a value with the annotation of a parameter.

    Lists stand for tuples and the other way round, an int for a float (a bool for neither), the
    name or value of a member for an enum. The default itself always fits.

    Args:
      function: The function or class that has the parameter.
      parameter: The name of the parameter.
      value: A literal without references.

    Returns:
      What is expected, in words, or None when the value fits or the parameter says nothing.
    """
    found = inspect.signature(function).parameters.get(parameter)
    if found is None or found.annotation is inspect.Parameter.empty:
        return None
    if value is None and found.default is None:
        return None
    annotation = _evaluate(function, found.annotation)
    return None if fits(value, annotation) else describe(annotation)


def _evaluate(function: Callable[..., Any], annotation: Any) -> Any:
    """Evaluates an annotation that is text; one that names nothing at run time says nothing."""
    if not isinstance(annotation, str):
        return annotation
    scope = vars(sys.modules[function.__module__])
    try:
        # The text of an annotation in a module that is imported, never of a file that is read.
        return eval(annotation, dict(scope))  # nosec B307
    except (NameError, AttributeError):  # Imported for type checkers only.
        return Any


def fits(value: Any, annotation: Any) -> bool:
    """Returns whether a literal fits an annotation; an unknown kind of annotation always fits."""
    if annotation is None or annotation is type(None):
        return value is None
    origin, args = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Annotated:
        return fits(value, args[0])
    if origin in (Union, types.UnionType):
        return any(fits(value, arg) for arg in args)
    if origin is Literal:
        return any(value == arg and type(value) is type(arg) for arg in args)
    if hasattr(annotation, "__supertype__"):  # NewType
        return fits(value, annotation.__supertype__)
    if origin is collections.abc.Callable or annotation is collections.abc.Callable:
        return callable(value)
    kind = origin or annotation
    if kind in (Any, object) or not isinstance(kind, type):
        return True
    return _fits_class(value, kind, args)


def _fits_class(value: Any, kind: type, args: tuple[Any, ...]) -> bool:
    # A gin file has no NumPy: Python's numbers stand for NumPy's, and nested lists for arrays.
    # Where an annotation is NumPy's, somebody has imported it; `--help` must not.
    numpy: Any = sys.modules.get("numpy")
    if kind is float or numpy and issubclass(kind, numpy.floating):
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    if kind is int or numpy and issubclass(kind, numpy.integer):
        return isinstance(value, int) and not isinstance(value, bool)
    if numpy and kind is numpy.ndarray:
        return isinstance(value, (int, float, list, tuple))
    if kind in _SEQUENCES:
        return isinstance(value, (list, tuple)) and _fit_items(value, kind, args)
    if kind in _MAPPINGS:
        keys_and_values = args or (Any, Any)
        return isinstance(value, dict) and all(
            fits(k, keys_and_values[0]) and fits(v, keys_and_values[1]) for k, v in value.items()
        )
    if issubclass(kind, enum.Enum):
        return isinstance(value, kind) or any(value in (m.name, m.value) for m in kind)
    if getattr(kind, "_is_protocol", False):
        return True
    return isinstance(value, kind)


def _fit_items(value: Any, kind: type, args: tuple[Any, ...]) -> bool:
    if not args:
        return True
    if kind is tuple and not (len(args) == 2 and args[1] is Ellipsis):
        return len(value) == len(args) and all(map(fits, value, args))
    return all(fits(item, args[0]) for item in value)


def describe(annotation: Any) -> str:
    """Returns an annotation in words."""
    if annotation is None or annotation is type(None):
        return "None"
    origin, args = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Annotated:
        return describe(args[0])
    if origin in (Union, types.UnionType):
        return " or ".join(describe(arg) for arg in args)
    if origin is Literal:
        return f"one of {', '.join(map(repr, args))}"
    if origin is collections.abc.Callable or annotation is collections.abc.Callable:
        return "a reference such as @name"
    if isinstance(annotation, type) and issubclass(annotation, enum.Enum):
        return f"one of {', '.join(repr(member.name) for member in annotation)}"
    if origin is not None:
        return str(annotation).replace("typing.", "").replace("collections.abc.", "")
    return getattr(annotation, "__name__", str(annotation))
