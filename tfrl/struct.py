"""Frozen dataclasses as nests, a dict with attribute access, and arithmetic on nests.

A `struct.dataclass` is TensorFlow's pytree dataclass with static fields: it goes through
`tf.nest`, `tf.function` (argument and result), `tf.while_loop`, `tf.data` and `strategy.run`.
Fields are nests of tensors unless declared `field(static=True)`; a None field is an empty subtree.
A new value never retraces a `tf.function`; a new static field does.

A `struct.logic_dataclass` is the same for objects that hold logic (agents, environments,
evaluators, optimizers): its fields are static unless declared otherwise, its `__post_init__` may
set the fields declared with `derived()`, and two of them with equal fields are equal.
"""

import builtins
import dataclasses
import functools
import inspect
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeVar

import numpy as np
import tensorflow as tf
from typing_extensions import Self, dataclass_transform

from tfrl.errors import UserError
from tfrl.loading import register_library_class

T = TypeVar("T")
Nest = Any

_STATIC = "tfrl_static"
_DERIVED = "tfrl_derived"
_BUILDING = "_tfrl_building"
_EMPTY = "_tfrl_empty"


def field(*, static: bool | None = None, **kwargs: Any) -> Any:
    """Declares a field; like `dataclasses.field` with one more argument.

    Args:
      static: True for a value that is part of the trace (a number, a string, a spec, a function),
        False for a nest of tensors, None for the class's default.
      **kwargs: Arguments of `dataclasses.field`.
    """
    metadata = dict(kwargs.pop("metadata", None) or {})
    if static is not None:
        metadata[_STATIC] = static
    return dataclasses.field(metadata=metadata, **kwargs)


def derived(*, init: Literal[False] = False) -> Any:
    """Declares a field of a `logic_dataclass` that its `__post_init__` computes and sets.

    Args:
      init: Always False; tells type checkers that the field is not an argument.
    """
    return dataclasses.field(
        init=init, repr=False, compare=False, metadata={_STATIC: True, _DERIVED: True}
    )


class _Derived:
    """Derived values inside metadata; always equal, since the other fields determine them."""

    def __init__(self, values: tuple[Any, ...]):
        self.values = values

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Derived)

    def __hash__(self) -> int:
        return 0

    def __repr__(self) -> str:
        return "derived"


@dataclasses.dataclass(frozen=True)
class _Metadata:
    """The key of a trace: static values with their types, and the empty fields."""

    static: tuple[Any, ...]
    types: tuple[Any, ...]
    empty: tuple[bool, ...]
    derived: _Derived


@dataclasses.dataclass(frozen=True)
class _Layout:
    """Names of the fields of a class by kind."""

    static: tuple[str, ...]
    dynamic: tuple[str, ...]
    derived: tuple[str, ...]


def _types_of(value: Any) -> Any:
    """The types inside a static value, since 1 == 1.0 == True would otherwise share a trace."""
    if isinstance(value, tuple | list):
        return (type(value), tuple(_types_of(v) for v in value))
    if isinstance(value, Mapping):
        return (type(value), tuple((k, _types_of(v)) for k, v in value.items()))
    return type(value)


def _check_static(owner: type, name: str, value: Any) -> None:
    """Rejects arrays and tensors as static values: `==` cannot distinguish their traces."""
    if isinstance(value, np.ndarray | tf.Tensor | tf.Variable):
        raise TypeError(
            f"{owner.__name__}.{name} is a static field: expected a Python value that can be "
            f"compared, got {type(value).__name__}. Pass numbers as tuples, or declare the field "
            "with static=False."
        )
    if isinstance(value, tuple | list):
        for v in value:
            _check_static(owner, name, v)
    elif isinstance(value, Mapping):
        for v in value.values():
            _check_static(owner, name, v)


def _as_leaf(value: Any) -> Any:
    """Python numbers in dynamic fields become 0-d arrays: as literals they would retrace."""
    kind = type(value)
    if kind is dict or kind is TensorDict:
        return kind({k: _as_leaf(v) for k, v in value.items()})
    if kind in (tuple, list):
        return kind(_as_leaf(v) for v in value)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return kind(*(_as_leaf(v) for v in value))
    if kind is bool:
        return np.asarray(value)
    if kind is int:
        return np.asarray(value, np.int32 if -(2**31) <= value < 2**31 else np.int64)
    if kind is float:
        return np.asarray(value, np.float32)
    return value


def _flatten(self: Any) -> tuple[_Metadata, tuple[Any, ...]]:
    layout: _Layout = type(self)._tfrl_layout
    values = [_as_leaf(getattr(self, n)) for n in layout.dynamic]
    static = tuple(getattr(self, n) for n in layout.static)
    # Autograph temporarily fills the leaves of a nest with None: these are not empty fields.
    empty = self.__dict__.get(_EMPTY, tuple(v is None for v in values))
    metadata = _Metadata(
        static=static,
        types=tuple(_types_of(v) for v in static),
        empty=empty,
        derived=_Derived(tuple(getattr(self, n) for n in layout.derived)),
    )
    return metadata, tuple(v for v, e in zip(values, empty, strict=True) if not e)


def _unflatten(cls: type, metadata: _Metadata, components: tuple[Any, ...]) -> Any:
    layout: _Layout = cls._tfrl_layout  # type: ignore[attr-defined]
    self: Any = object.__new__(cls)
    object.__setattr__(self, _EMPTY, metadata.empty)
    rest = iter(components)
    for name, empty in zip(layout.dynamic, metadata.empty, strict=True):
        object.__setattr__(self, name, None if empty else next(rest))
    for name, value in zip(layout.static, metadata.static, strict=True):
        object.__setattr__(self, name, value)
    for name, value in zip(layout.derived, metadata.derived.values, strict=True):
        object.__setattr__(self, name, value)
    return self


def _replace(self: Any, **changes: Any) -> Any:
    """Returns a copy with the named fields changed."""
    known = [f.name for f in dataclasses.fields(self) if f.init]
    unknown = sorted(set(changes) - set(known))
    if unknown:
        raise TypeError(
            f"{type(self).__name__}.replace: expected fields among {known}, got {unknown}."
        )
    return type(self)(**{n: changes.get(n, getattr(self, n)) for n in known})


def _setattr(self: Any, name: str, value: Any) -> None:
    building = self.__dict__.get(_BUILDING, False)
    layout: _Layout = type(self)._tfrl_layout
    if building and (name in layout.derived or _unset(self, name)):
        object.__setattr__(self, name, value)
        return
    what = "only fields declared with derived() may be set, in __post_init__" if building else ""
    raise dataclasses.FrozenInstanceError(
        f"cannot assign to {type(self).__name__}.{name}: the object is immutable"
        + (f"; {what}" if what else "; use .replace(...)")
    )


def _unset(self: Any, name: str) -> bool:
    layout: _Layout = type(self)._tfrl_layout
    return name not in self.__dict__ and name in (*layout.static, *layout.dynamic)


def _delattr(self: Any, name: str) -> None:
    raise dataclasses.FrozenInstanceError(f"cannot delete {type(self).__name__}.{name}")


def _eq(self: Any, other: object) -> Any:
    if self is other:
        return True
    if type(self) is not type(other):
        return NotImplemented
    mine, others = self.__tf_flatten__(), other.__tf_flatten__()  # type: ignore[attr-defined]
    return not mine[1] and not others[1] and mine[0] == others[0]


def _hash(self: Any) -> int:
    return hash(type(self))


def _wrap_init(cls: type, own_init: bool) -> None:
    """Checks static values after `__init__`, and opens derived fields during it."""
    init = cls.__init__  # type: ignore[misc]
    layout: _Layout = cls._tfrl_layout  # type: ignore[attr-defined]
    # Without other logic, one update of __dict__ replaces the generated function: host environments
    # make a record at every step.
    simple = not (own_init or layout.derived or hasattr(cls, "__post_init__"))
    every = frozenset((*layout.static, *layout.dynamic)) if simple else None

    @functools.wraps(init)
    def checked_init(self: Any, *args: Any, **kwargs: Any) -> None:
        if type(self) is cls and not args and kwargs.keys() == every:
            self.__dict__.update(kwargs)
        else:
            object.__setattr__(self, _BUILDING, True)
            try:
                init(self, *args, **kwargs)
            finally:
                object.__delattr__(self, _BUILDING)
        layout: _Layout = type(self)._tfrl_layout
        for name in layout.static:
            _check_static(type(self), name, getattr(self, name))
        for name in layout.derived:
            if name not in self.__dict__:
                raise TypeError(
                    f"{type(self).__name__}.{name} is declared with derived() and "
                    "__post_init__ did not set it."
                )

    # For code that reads parameters without following wrappers, such as gin.
    checked_init.__signature__ = inspect.signature(init)  # type: ignore[attr-defined]
    cls.__init__ = checked_init  # type: ignore[misc]


def _build(cls: type[T], *, static_default: bool) -> type[T]:
    # frozen=True would refuse the derived fields; our own __setattr__ freezes instead.
    own_init = "__init__" in cls.__dict__
    cls = dataclasses.dataclass(kw_only=True, eq=False)(cls)
    static, dynamic, derived_names = [], [], []
    for f in dataclasses.fields(cls):  # type: ignore[arg-type]
        if f.metadata.get(_DERIVED):
            derived_names.append(f.name)
        elif f.metadata.get(_STATIC, static_default):
            static.append(f.name)
        else:
            dynamic.append(f.name)
    namespace: Any = cls
    namespace._tfrl_layout = _Layout(tuple(static), tuple(dynamic), tuple(derived_names))
    namespace.__tf_flatten__ = _flatten
    namespace.__tf_unflatten__ = classmethod(_unflatten)
    namespace.__setattr__ = _setattr
    namespace.__delattr__ = _delattr
    if "__eq__" not in cls.__dict__:
        namespace.__eq__ = _eq
        namespace.__hash__ = _hash
    if getattr(cls, "replace", Struct.replace) is Struct.replace:
        namespace.replace = _replace
    _wrap_init(cls, own_init)
    register_library_class(cls)
    return cls


class Struct:
    """Typing aid: a base that declares `replace`; every decorated class has it, base or not."""

    def replace(self, **changes: Any) -> Self:
        """Returns a copy with the named fields changed."""
        return _replace(self, **changes)


@dataclass_transform(kw_only_default=True, frozen_default=True, field_specifiers=(field,))
def dataclass(cls: type[T]) -> type[T]:
    """Makes a frozen, keyword-only dataclass that is a nest.

    Fields are nests of tensors unless declared with `field(static=True)`. Instances have
    `.replace(**changes)`. Equality is identity, unless no field holds a tensor.

    Args:
      cls: A class with annotated fields.

    Returns:
      The same class as a nest.

    Raises:
      TypeError: At construction, when a static field is given an array or a tensor.
    """
    return _build(cls, static_default=False)


@dataclass_transform(kw_only_default=True, field_specifiers=(field, derived))
def logic_dataclass(cls: type[T]) -> type[T]:
    """Makes an immutable object of logic: fields are static unless declared `static=False`.

    `__post_init__` may set the fields declared with `derived()`; `.replace(...)` recomputes them.
    Objects with equal fields are equal and share traces.

    Args:
      cls: A class with annotated fields.

    Returns:
      The same class as a nest (without leaves if all fields are static).
    """
    return _build(cls, static_default=True)


def _converted(value: Any) -> Any:
    """A value in the form stored in a TensorDict."""
    if isinstance(value, Mapping) and not isinstance(value, TensorDict):
        return TensorDict(value)
    if type(value) in (tuple, list):
        return type(value)(_converted(v) for v in value)
    return _as_leaf(value)


class TensorDict(dict):
    """A dict whose items are attributes too, nested dicts included.

    `d.x = value` works outside compiled code; inside a `tf.function` use `d.replace(x=value)`,
    because an assignment there would change the object only while tracing.
    """

    def __init__(self, *args: Any, **kwargs: Any):
        """Takes the arguments of `dict`; nested mappings become TensorDicts."""
        super().__init__()
        for key, value in dict(*args, **kwargs).items():
            self[key] = value

    def __missing__(self, key: Any) -> Any:
        """Raises a KeyError with a reference to the dict, like an AttributeError's `obj`."""
        error: Any = KeyError(key)
        error.obj = self
        raise error

    def __setitem__(self, key: Any, value: Any) -> None:
        """Sets an item; mappings become TensorDicts, numbers 0-d arrays (they would retrace)."""
        super().__setitem__(key, _converted(value))

    def __or__(self, other: Mapping[str, Any]) -> "TensorDict":  # type: ignore[override]
        """Returns a TensorDict of both; items of `other` take precedence."""
        return TensorDict({**self, **other})

    def __ior__(self, other: Any) -> "TensorDict":  # type: ignore[misc]
        """Like `update`."""
        self.update(other)
        return self

    def __getattr__(self, name: str) -> Any:
        """Returns the item `name`."""
        # Dunder names are probed by tf.function's argument tracing and must look missing.
        if name.startswith("__") or name not in self:
            known = sorted(map(str, self))
            raise AttributeError(f"TensorDict has no item {name!r}; it has {known}")
        return self[name]

    def __setattr__(self, name: str, value: Any) -> None:
        """Sets the item `name`; an error inside compiled code or for names of dict methods."""
        if hasattr(dict, name) or name == "replace":
            raise AttributeError(
                f"cannot assign TensorDict.{name}: it is a method. Set the item with "
                f"d[{name!r}] = ... and read it with d[{name!r}]."
            )
        if tf.inside_function():
            raise AttributeError(
                f"cannot assign TensorDict.{name} inside a tf.function: the assignment would "
                "happen only while tracing. Use .replace(...)."
            )
        self[name] = value

    def __delattr__(self, name: str) -> None:
        """Deletes the item `name`."""
        if name not in self:
            raise AttributeError(name)
        del self[name]

    def setdefault(self, key: Any, default: Any = None) -> Any:
        """Like `dict.setdefault`, nested mappings converted."""
        if key not in self:
            self[key] = default
        return self[key]

    def update(self, *args: Any, **kwargs: Any) -> None:
        """Like `dict.update`, nested mappings converted."""
        for key, value in dict(*args, **kwargs).items():
            self[key] = value

    def copy(self) -> "TensorDict":
        """Returns a shallow copy."""
        return TensorDict(self)

    def replace(self, **changes: Any) -> "TensorDict":
        """Returns a copy with the named items changed or added."""
        return TensorDict({**self, **changes})


def add(a: Nest, b: Nest) -> Nest:
    """Returns a + b, leaf by leaf."""
    return tf.nest.map_structure(lambda x, y: x + y, a, b)


def subtract(a: Nest, b: Nest) -> Nest:
    """Returns a - b, leaf by leaf."""
    return tf.nest.map_structure(lambda x, y: x - y, a, b)


def scale(nest: Nest, factor: Any) -> Nest:
    """Returns every leaf times `factor` (a scalar, or a tensor that broadcasts to each leaf)."""
    return tf.nest.map_structure(lambda x: x * tf.cast(factor, x.dtype), nest)


def slice(nest: Nest, start: Any, stop: Any) -> Nest:  # noqa: A001  (the field's word)
    """Returns rows `start` to `stop` of the leading axis of every leaf."""
    return tf.nest.map_structure(lambda x: x[start:stop], nest)


def take(nest: Nest, indices: Any) -> Nest:
    """Returns the rows `indices` of the leading axis of every leaf; one index drops the axis."""
    return tf.nest.map_structure(lambda x: tf.gather(x, indices), nest)


def stack(nests: Sequence[Nest]) -> Nest:
    """Stacks equal nests along a new leading axis.

    Raises:
      UserError: For none, and for nests of different structure or shapes.
    """
    try:
        return tf.nest.map_structure(lambda *xs: tf.stack(xs), *nests)
    except (TypeError, ValueError, tf.errors.InvalidArgumentError) as error:
        raise UserError(
            "the nests to stack",
            expected="a list of nests of one structure, with equal shapes and dtypes",
            got=_difference(nests),
        ) from error


def _difference(nests: Any) -> str:
    """Words for what keeps nests from being stacked."""
    if not isinstance(nests, Sequence) or not nests:
        return "an empty list" if isinstance(nests, Sequence) else type(nests).__name__
    first = {path: (x.shape, x.dtype) for path, x in paths(values(nests[0])).items()}
    for nest in nests[1:]:
        other = {path: (x.shape, x.dtype) for path, x in paths(values(nest)).items()}
        for path in sorted(first.keys() | other.keys()):
            if first.get(path) != other.get(path):
                a, b = (
                    "none" if x is None else f"{x[0]} {x[1].name}"
                    for x in (first.get(path), other.get(path))
                )
                return f"{a} and {b} at {path}"
    return "other kinds of containers"


def concat(nests: Sequence[Nest]) -> Nest:
    """Concatenates equal nests along their leading axis."""
    return tf.nest.map_structure(lambda *xs: tf.concat(xs, axis=0), *nests)


def values(nest: Nest) -> Nest:
    """Returns the nest with every tf.Variable as a tensor; None stays None."""
    return None if nest is None else tf.nest.map_structure(tf.convert_to_tensor, nest)


def paths(nest: Nest, prefix: str = "") -> dict[str, Any]:
    """Flattens a nest into `{path: leaf}`, paths joined by "/", in `tf.nest` order.

    Dict keys, dataclass field names and sequence positions make the path; static fields and None
    are left out. It names leaves in error messages, checkpoints and digests.
    """
    leaves: dict[str, Any] = {}
    if nest is None:
        return leaves
    items: builtins.list[tuple[str, Any]]
    if hasattr(type(nest), "_tfrl_layout"):
        items = [(n, getattr(nest, n)) for n in type(nest)._tfrl_layout.dynamic]
    elif isinstance(nest, Mapping):
        items = [(str(k), nest[k]) for k in sorted(nest)]
    elif isinstance(nest, tuple) and hasattr(nest, "_fields"):
        items = [(n, getattr(nest, n)) for n in nest._fields]
    elif isinstance(nest, tuple | list):
        items = [(str(i), v) for i, v in enumerate(nest)]
    else:
        return {prefix or ".": nest}
    for name, value in items:
        leaves.update(paths(value, f"{prefix}/{name}" if prefix else name))
    return leaves
