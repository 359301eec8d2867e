"""Functions and classes by the name under which any program can import them."""

import importlib
import re
import types
from typing import Any

_NAME = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*")


class UnknownNameError(Exception):
    """What has no such name, or a name under which there is nothing; the message says why."""


def is_named(value: Any) -> bool:
    """Tells whether a value is a Python function or a class, the kinds that may have a name."""
    return isinstance(value, types.FunctionType | type)


def name_of(value: Any) -> str:
    """Returns `module:qualified.name` of a module-level function or of a class.

    Raises:
      UnknownNameError: It is a lambda, was made inside a function, or its name leads elsewhere.
    """
    name = f"{value.__module__}:{value.__qualname__}"
    if "<lambda>" in name:
        raise UnknownNameError("a lambda, which has no name")
    if "<locals>" in name:
        raise UnknownNameError(f"{value.__qualname__}, which was made inside a function")
    try:
        found = resolve(name)
    except UnknownNameError as error:
        raise UnknownNameError(f"{name}, which cannot be imported") from error
    if found is not value:
        raise UnknownNameError(f"an object whose name {name} leads to another one")
    return name


def resolve(name: str) -> Any:
    """Imports the function or class of a name.

    Importing a module runs it, as gin files and entry points do; nothing is called and nothing is
    evaluated.

    Raises:
      UnknownNameError: The name is malformed, leads nowhere, or to something of another kind.
    """
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise UnknownNameError(f"{name!r} is no name of the form module:name")
    module, _, qualified = name.partition(":")
    try:
        found: Any = importlib.import_module(module)
        for part in qualified.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as error:
        raise UnknownNameError(f"{name} is not there ({error})") from error
    if not is_named(found):
        raise UnknownNameError(f"{name} is neither a Python function nor a class")
    return found
