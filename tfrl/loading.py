"""What a file may name: the registry of classes and functions that descriptions are built from.

A checkpoint of a Learner describes its modules in JSON, classes and functions by name. A name is
looked up here and nowhere else: nothing is ever imported because a file names it.
"""

import enum
import types
from typing import Any, TypeVar

T = TypeVar("T")

_loadable: dict[str, Any] = {}


class UnknownNameError(Exception):
    """What has no name, or a name that is not registered; the message says why."""


def loadable(obj: T) -> T:
    """Allows files to name a class or function, as a decorator or called.

    The library's own records and logic are registered where they are defined. Register what you
    wrote yourself, in the program that loads: whoever writes the file may then have it called with
    any arguments that a description can hold.

    Args:
      obj: A class, or a function of a module.

    Returns:
      The same object.

    Raises:
      UnknownNameError: It has no name under which another program could find it.
    """
    _loadable[name_of(obj)] = obj
    return obj


def register_library_class(cls: type) -> None:
    """Registers a class of the library's own; any other is left to `loadable`."""
    if cls.__module__.split(".")[0] == __name__.split(".")[0]:
        _loadable[f"{cls.__module__}:{cls.__qualname__}"] = cls


def is_named(value: Any) -> bool:
    """Tells whether a value is a Python function or a class, the kinds that may have a name."""
    return isinstance(value, types.FunctionType | type)


def name_of(value: Any) -> str:
    """Returns `module:qualified.name` of a function of a module, or of a class.

    Raises:
      UnknownNameError: It is a lambda, was made inside a function, or is none of both.
    """
    if not is_named(value):
        raise UnknownNameError(f"a {type(value).__name__}, which is no function and no class")
    name = f"{value.__module__}:{value.__qualname__}"
    if "<lambda>" in name:
        raise UnknownNameError("a lambda, which has no name")
    if "<locals>" in name:
        raise UnknownNameError(f"{value.__qualname__}, which was made inside a function")
    return name


def resolve(name: Any) -> Any:
    """Returns the registered class or function of a name.

    Raises:
      UnknownNameError: Nothing of that name is registered.
    """
    found = _loadable.get(name) if isinstance(name, str) else None
    if found is None:
        raise UnknownNameError(
            f"the name {name!r}, which is not loadable here; if that is code of yours, import it "
            f"and call tfrl.loadable({str(name).rpartition(':')[2]}) before"
        )
    return found


def resolve_enum(name: Any) -> type[enum.Enum]:
    """Returns the registered Enum of a name.

    Raises:
      UnknownNameError: There is none.
    """
    found = resolve(name)
    if not isinstance(found, type) or not issubclass(found, enum.Enum):
        raise UnknownNameError(f"{name}, which is no Enum")
    return found
