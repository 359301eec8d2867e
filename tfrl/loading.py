"""What a file may name: classes and functions of descriptions, and modules of configurations.

A checkpoint of a Learner describes its modules in JSON, classes and functions by name. A name is
looked up in a registry and nowhere else: nothing is ever imported because a checkpoint names it.

A configuration names modules: by `import` lines, and in environment ids such as
`gymnasium:module:Name-v0`. One that comes out of a run folder may name those only that the caller
has named too, see `distrust`.
"""

import enum
import importlib
import types
from typing import Any, TypeVar

from tfrl.errors import UserError

T = TypeVar("T")

_loadable: dict[str, Any] = {}

# Modules whose classes stand in another one since files have named them.
_MOVED = {
    "tfrl.distributions.heads": "tfrl.distributions.factory",
    "tfrl.networks.critics": "tfrl.networks.heads",
    "tfrl.networks.impala": "tfrl.networks.conv",
    "tfrl.networks.keras_adapter": "tfrl.networks.keras",
    "tfrl.networks.observations": "tfrl.networks.factory",
    "tfrl.networks.state_action": "tfrl.networks.factory",
}

# The file whose names are not trusted, and the modules that the caller has named.
_distrusted: str | None = None
_trusted: set[str] = set()
# How a program lets a run folder import modules.
_remedy = _ARGUMENT = "pass allow_code=True."
_FLAG = "pass --allow_code or import the module in your own --gin_file."


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
        raise UnknownNameError(f"a {type(value).__name__}, which is not a function or class")
    name = f"{value.__module__}:{value.__qualname__}"
    if "<lambda>" in name:
        raise UnknownNameError("a lambda, which has no name")
    if "<locals>" in name:
        raise UnknownNameError(f"{value.__qualname__}, which is defined inside a function")
    return name


def resolve(name: Any) -> Any:
    """Returns the registered class or function of a name.

    Raises:
      UnknownNameError: Nothing of that name is registered.
    """
    module, _, qualname = str(name).partition(":")
    obj = _loadable.get(f"{_MOVED.get(module, module)}:{qualname}")
    if obj is None:
        raise UnknownNameError(
            f"the name {name!r}, which is not registered here; if it is your own code, import it "
            f"and call tfrl.loadable({str(name).rpartition(':')[2]}) first"
        )
    return obj


def resolve_enum(name: Any) -> type[enum.Enum]:
    """Returns the registered Enum of a name.

    Raises:
      UnknownNameError: There is none.
    """
    obj = resolve(name)
    if not isinstance(obj, type) or not issubclass(obj, enum.Enum):
        raise UnknownNameError(f"{name}, which is not an Enum")
    return obj


def distrust(source: str | None) -> None:
    """Lets only those modules be imported by name that the caller has named before.

    Args:
      source: The file, for messages; None to trust names again, and to forget the modules.
    """
    global _distrusted
    _distrusted = source
    if source is None:
        _trusted.clear()


def say_flags(in_binary: bool) -> None:
    """Sets whether messages name the flags of a binary, in the place of arguments."""
    global _remedy
    _remedy = _FLAG if in_binary else _ARGUMENT


def distrusted() -> str | None:
    """Returns the file that `distrust` was given, or None."""
    return _distrusted


def trust(*modules: str) -> None:
    """Lets modules be imported whatever names them: the caller has named them."""
    _trusted.update(modules)


def import_code(module: str, thing: str) -> types.ModuleType:
    """Imports a module that a configuration names, which runs it.

    Args:
      module: Its name.
      thing: What names it, for the message.

    Raises:
      UserError: The configuration is out of a run folder, and the caller has not named the module.
      ImportError: As Python's import.
    """
    if _distrusted is None:
        _trusted.add(module)
    elif module not in _trusted:
        raise UserError(
            thing,
            expected=f"no code in {_distrusted}, since it may come from an untrusted source",
            got=f"the Python module {module!r}, which would be imported and run",
            remedy=f"If you trust the folder, {_remedy}",
        )
    return importlib.import_module(module)
