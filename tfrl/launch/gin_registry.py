"""Access to gin's registry and configuration beyond its public interface.

gin-config is pinned to 0.5. Only this file uses gin's private names.
"""

import ast
import collections.abc
import enum
import inspect
import re
import sys
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Literal, Union

from gin import config, selector_map

from tfrl.errors import UserError, did_you_mean, nearest

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

    A list fits a tuple and vice versa, an int fits a float (a bool fits neither), and the name or
    value of a member fits an enum. The default value always fits.

    Args:
      function: The function or class of the parameter.
      parameter: The name of the parameter.
      value: A literal without references.

    Returns:
      The expected type in words; None if the value fits or the parameter has no annotation.
    """
    result = inspect.signature(function).parameters.get(parameter)
    if result is None or result.annotation is inspect.Parameter.empty:
        return None
    if value is None and result.default is None:
        return None
    annotation = _evaluate(function, result.annotation)
    return None if fits(value, annotation) else describe(annotation)


def _evaluate(function: Callable[..., Any], annotation: Any) -> Any:
    """Evaluates a string annotation; returns Any for names that do not exist at run time."""
    if not isinstance(annotation, str):
        return annotation
    scope = vars(sys.modules[function.__module__])
    try:
        # The annotation of an imported module, never text from a file.
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
    # In gin files, Python numbers fit NumPy scalars, and nested lists fit arrays. `--help` must not
    # import NumPy; a NumPy annotation implies that it is imported.
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


class _OursFirst(selector_map.SelectorMap):
    """Prefers tfrl's configurables where TF-Agents registers the same name."""

    def matching_selectors(self, partial_selector: str) -> list[str]:
        """Returns the selectors that match a name."""
        result: list[str] = super().matching_selectors(partial_selector)
        ours = [selector for selector in result if not selector.startswith("tf_agents.")]
        return ours or result


config._REGISTRY.__class__ = _OursFirst

# Gin's built-in selectors, which users write as %macro and %constant.
_BUILTIN = ("gin.macro", "gin.constant", "gin.singleton")

UNKNOWN = object()


def search_path() -> list[str]:
    """Returns the folders that gin searches for files."""
    return config._LOCATION_PREFIXES


def _all() -> Iterator[config.Configurable]:
    for selector, configurable in config._REGISTRY.items():
        if selector not in _BUILTIN:
            yield configurable


def _minimal(selector: str) -> str:
    return config._REGISTRY.minimal_selector(selector)


def find(selector: str, where: str, prefix: str = "") -> config.Configurable:
    """Finds the configurable that a user named.

    Args:
      selector: Its name, with enough module parts to be unique.
      where: The place of the name, for the message.
      prefix: `"@"` for a reference.

    Returns:
      gin's record of the configurable.

    Raises:
      UserError: No configurable or several match.
    """
    matches = config._REGISTRY.matching_selectors(selector)
    if len(matches) == 1:
        return config._REGISTRY[matches[0]]
    known = [_minimal(c.selector) for c in _all()]
    raise UserError(
        f"Gin name {prefix}{selector} ({where})",
        expected="the name of one configurable",
        got="an ambiguous name" if matches else "an unknown name",
        remedy=f"Write {' or '.join(sorted(matches))}."
        if matches
        else did_you_mean(selector, known),
    )


def parameters(configurable: config.Configurable) -> list[str]:
    """Returns the names of the parameters that may be bound."""
    names = [
        name
        for name, parameter in inspect.signature(configurable.wrapped).parameters.items()
        if parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
        and name not in ("self", "cls")
    ]
    if configurable.allowlist:
        names = [n for n in names if n in configurable.allowlist]
    return [n for n in names if n not in (configurable.denylist or ())]


def bindable_names() -> list[str]:
    """Returns every `name.parameter` that may be bound."""
    return [f"{_minimal(c.selector)}.{name}" for c in _all() for name in parameters(c)]


def check_parameter(selector: str, parameter: str, where: str) -> None:
    """Checks that a configurable has a parameter.

    Args:
      selector: Name of the configurable.
      parameter: Name of the parameter.
      where: The place of the binding, for the message.

    Raises:
      UserError: There is no such configurable, or it has no such parameter.
    """
    matches = config._REGISTRY.matching_selectors(selector)
    if not matches:
        _raise_unknown(selector, parameter, where)
    known = parameters(find(selector, where))
    if parameter not in known:
        raise UserError(
            f"Gin binding {selector}.{parameter} ({where})",
            expected=f"a parameter of {selector}",
            got=f"'{parameter}'",
            remedy=did_you_mean(parameter, known)
            if known
            else f"{selector} has no parameters to bind.",
        )


def _raise_unknown(selector: str, parameter: str, where: str) -> None:
    known = [_minimal(c.selector) for c in _all()]
    full_name = nearest(f"{selector}.{parameter}", bindable_names())
    close = nearest(selector, known)
    with_parameter = [f"{name}.{parameter}" for name in close]
    exact = [name for name in with_parameter if name in bindable_names()]
    suggestion = exact or (close and [f"{close[0]}.*"]) or full_name
    raise UserError(
        f"Gin binding {selector}.{parameter} ({where})",
        expected="the name of a configurable before the dot",
        got=f"'{selector}', which is unknown",
        remedy=f"Did you mean {' or '.join(suggestion)}?"
        if suggestion
        else did_you_mean(selector, known),
    )


def operative_config() -> str:
    """Returns gin's text of the used bindings, without the unbound defaults of TF-Agents.

    A reader of the text may not have imported TF-Agents, so gin would not know these names.
    """
    for key in list(config._OPERATIVE_CONFIG):
        if key[1].startswith("tf_agents.") and key not in config._CONFIG:
            del config._OPERATIVE_CONFIG[key]
    return str(config.operative_config_str())


def is_constant(name: str) -> bool:
    """Returns whether `%name` is one of gin's constants."""
    return bool(config._CONSTANTS.matching_selectors(name))


def bound() -> dict[tuple[str, str], dict[str, Any]]:
    """Returns the bindings by (scope, selector); macros and constants are left out."""
    return {key: dict(v) for key, v in config._CONFIG.items() if key[1] not in _BUILTIN}


# {(scope, selector, parameter): the selector that it inherits the binding from}
_inherited: dict[tuple[str, str, str], str] = {}


def inherit() -> None:
    """Makes subclasses inherit the bindings of their base classes, unless bound themselves.

    If several bases bind a parameter, the first in the method resolution order counts. The
    operative configuration shows the bindings under the subclass.
    """
    _inherited.clear()
    own = bound()
    by_class = {_class(config._REGISTRY[s]): s for _, s in own if _class(config._REGISTRY[s])}
    for configurable in list(_all()):
        known = parameters(configurable)
        theirs = {p for (_, s), values in own.items() if s == configurable.selector for p in values}
        for base in inspect.getmro(_class(configurable) or object)[1:]:
            selector = by_class.get(base)
            for (scope, s), values in own.items() if selector else ():
                for parameter in values if s == selector else ():
                    key = (scope, configurable.selector, parameter)
                    if parameter in known and parameter not in theirs and key not in _inherited:
                        _inherited[key] = s
                        bind(scope, configurable.selector, parameter, values[parameter])


def bind(scope: str, selector: str, parameter: str, value: Any) -> None:
    """Binds a parameter; replaces an earlier binding."""
    config.bind_parameter(f"{scope + '/' if scope else ''}{selector}.{parameter}", value)


def _class(configurable: config.Configurable) -> type | None:
    """Returns the class of a configurable, None for a function."""
    result = inspect.unwrap(configurable.wrapped)
    return result if isinstance(result, type) else None


def without_references(value: Any, other: Callable[[Any], Any] = lambda _: UNKNOWN) -> Any:
    """Replaces macros with their values, and other references with the result of `other`."""
    if isinstance(value, config.ConfigurableReference):
        if value.configurable.selector == "gin.macro":
            macro = config._CONFIG.get(value.config_key, {})
            return without_references(macro["value"], other) if "value" in macro else UNKNOWN
        return other(value)
    if isinstance(value, Mapping):
        return {
            without_references(k, other): without_references(v, other) for k, v in value.items()
        }
    if isinstance(value, (list, tuple)):
        return type(value)(without_references(item, other) for item in value)
    return value


def is_plain(value: Any) -> bool:
    """Returns whether a value has no `UNKNOWN` part."""
    if isinstance(value, Mapping):
        return all(is_plain(k) and is_plain(v) for k, v in value.items())
    if isinstance(value, (list, tuple)):
        return all(is_plain(item) for item in value)
    return value is not UNKNOWN


def binding_name(scope: str, selector: str, parameter: str) -> str:
    """Returns `scope/name.parameter` with the shortest unique name of the configurable."""
    return f"{scope + '/' if scope else ''}{_minimal(selector)}.{parameter}"


def unused() -> list[str]:
    """Returns the unused bindings, in the form of `binding_name`.

    A binding that a subclass inherits counts as used if the subclass has used it.
    """
    unread = _unread()
    served = {
        (scope, owner, name)
        for (scope, selector, name), owner in _inherited.items()
        if (scope, selector, name) not in unread
    }
    return sorted(binding_name(*key) for key in unread - served if key not in _inherited)


def _unread() -> set[tuple[str, str, str]]:
    """Returns the unused bindings (scope, selector, parameter)."""
    with config._OPERATIVE_CONFIG_LOCK:
        read = [(scope.split("/"), s, set(v)) for (scope, s), v in config._OPERATIVE_CONFIG.items()]
    result = set()
    for (scope, selector), values in bound().items():
        parts = scope.split("/") if scope else []
        for name in values:
            # A binding in scope a/b applies to every call within a/b.
            if not any(
                s == selector and p[: len(parts)] == parts and name in v for p, s, v in read
            ):
                result.add((scope, selector, name))
    return result


def values() -> dict[str, Any]:
    """Returns every used binding as `{name: value}`, without macros.

    References in values stay gin's references.
    """
    unread = _unread()
    return {
        binding_name(scope, selector, parameter): without_references(value, lambda x: x)
        for (scope, selector), bindings in bound().items()
        for parameter, value in bindings.items()
        if (scope, selector, parameter) not in unread
    }


def with_same_macro(name: str, selects: Callable[[str], bool]) -> set[str]:
    """Returns the names of bindings to the macro of a binding; empty without a macro.

    Args:
      name: The binding.
      selects: Takes the configurable's selector; returns whether its bindings count.
    """
    macros = {
        binding_name(scope, selector, parameter): (value.config_key, selects(selector))
        for (scope, selector), bindings in bound().items()
        for parameter, value in bindings.items()
        if isinstance(value, config.ConfigurableReference)
        and value.configurable.selector == "gin.macro"
    }
    own = macros.get(name, (None, False))[0]
    return {n for n, (macro, selected) in macros.items() if selected and macro == own}


def configuration() -> dict[str, str]:
    """Returns every used binding as `{name: gin's text of the value}`, without macros."""
    return {name: repr(value) for name, value in values().items()}


def completed(configuration: Mapping[str, str], names: Iterable[str]) -> dict[str, str]:
    """Adds the values of unbound names to a configuration.

    The value is the one without the scope, or else the default of the parameter. A name that this
    version does not have is left out.

    Args:
      configuration: The result of `configuration`.
      names: Names, for example `eval/make_env.num_envs`.
    """
    result = dict(configuration)
    for name in names:
        if name in result:
            continue
        scope, _, plain = name.rpartition("/")
        parts = scope.split("/")
        outer = ["/".join([*parts[:n], plain]) for n in range(len(parts) - 1, 0, -1)]
        value = next((configuration[n] for n in [*outer, plain] if n in configuration), None)
        value = _default(plain) if value is None else value
        if value is not None:
            result[name] = value
    return result


def as_written(configuration: Mapping[str, str], before: Mapping[str, str]) -> dict[str, str]:
    """Returns a configuration with equal values written as before: 0.0 for 0, () for [].

    Args:
      configuration: The result of `configuration`.
      before: Another configuration; a name that is bound only there is `completed`.
    """
    return {
        name: before[name] if name in before and equal_texts(value, before[name]) else value
        for name, value in completed(configuration, before).items()
    }


def equal_texts(text: str, other: str) -> bool:
    """Whether two values in gin's text are equal: 1 equals 1.0, but True does not equal 1."""
    try:
        return _comparable(ast.literal_eval(text)) == _comparable(ast.literal_eval(other))
    except (ValueError, SyntaxError):  # references
        return text == other


def _comparable(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return tuple(map(_comparable, value))
    if isinstance(value, dict):
        return {_comparable(key): _comparable(x) for key, x in value.items()}
    return (bool, value) if isinstance(value, bool) else value


def differing(configuration: Mapping[str, str]) -> list[tuple[str, str, str]]:
    """Returns (name, value, default) of the bindings that differ from their default, as gin's text.

    Args:
      configuration: The result of `configuration`.
    """
    differences = []
    for name, value in sorted(configuration.items()):
        default = _default(name.rpartition("/")[2])
        if default is None or not equal_texts(value, default):
            differences.append((name, value, "none" if default is None else default))
    return differences


def _default(name: str) -> str | None:
    """Returns the default of `configurable.parameter` as gin's text; None without a default."""
    selector, _, parameter = name.rpartition(".")
    matches = config._REGISTRY.matching_selectors(selector)
    if len(matches) != 1:
        return None
    signature = inspect.signature(config._REGISTRY[matches[0]].wrapped)
    result = signature.parameters.get(parameter)
    return None if result is None or result.default is result.empty else repr(result.default)


# Messages of Python and gin for a call that lacks arguments.
_MISSING_ARGUMENTS = re.compile(
    r"^(?P<name>\w+)(?:\.__init__)?\(\) missing \d+ required .*?arguments?: (?P<missing>[^\n]+)"
)
_REQUIRED_BINDINGS = re.compile(
    r"^Required bindings for `(?:[^`]*[/.])?(?P<name>\w+)` not provided in config: "
    r"\[(?P<missing>[^\n]+)\]"
)


def missing_bindings(error: Exception) -> list[str]:
    """Parses the missing bindings from the error of a configurable's call.

    Args:
      error: The error of the call.

    Returns:
      `name.parameter` of each; empty for any other error.
    """
    match = _MISSING_ARGUMENTS.match(str(error)) or _REQUIRED_BINDINGS.match(str(error))
    if match is None:
        return []
    # Python names the function or class, which may have another name in gin.
    names = [_minimal(c.selector) for c in _all() if match["name"] in (c.name, c.wrapped.__name__)]
    if len(names) != 1:
        return []
    return [f"{names[0]}.{p}" for p in re.findall(r"'(\w+)'", match["missing"])]
