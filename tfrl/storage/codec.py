"""Converts logic objects to descriptions in JSON types, and back.

An agent is a frozen dataclass of numbers, strings, specs, networks and schedules, which describe it
completely. An object without a description (a lambda, a Keras model, a tensor) is an error that
names its path. Building calls the constructors of dataclasses, and accepts only registered classes
and functions (`tfrl.loadable`). It imports nothing by name and uses no pickle and no eval.

None, bools, ints, strings, finite floats and lists describe themselves; any other object is
`{"kind": ..., ...}`.
"""

import dataclasses
import enum
import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from tfrl import specs, tf_private
from tfrl.errors import UserError
from tfrl.loading import UnknownNameError, is_named, name_of, resolve, resolve_enum

Description = Any

_SPECS: dict[str, type] = {
    "tf.TensorSpec": tf.TensorSpec,
    "tf.BoundedTensorSpec": tf_private.BoundedTensorSpec,
    "BoundedTensorSpec": specs.BoundedTensorSpec,
    "DiscreteSpec": specs.DiscreteSpec,
    "MultiDiscreteSpec": specs.MultiDiscreteSpec,
    "BinarySpec": specs.BinarySpec,
}
_SPEC_NAMES = {cls: name for name, cls in _SPECS.items()}

_REMEDY = "Pass the object itself, as in from_checkpoint(path, modules=...)."


def describe(obj: Any, name: str = "object") -> Description:
    """Describes an object, so that `build` makes an equal one.

    Args:
      obj: A dataclass (`struct.dataclass`, `struct.logic_dataclass` or a plain one) with fields of
        numbers, strings, enums, dtypes, shapes, specs, arrays, functions and classes that can be
        imported by name, and tuples, lists, dicts and dataclasses of these; or any of these.
      name: The name of the object in messages.

    Returns:
      Nested dicts and lists of JSON types.

    Raises:
      UserError: For an object without a description; it names the path.
    """
    if obj is None or type(obj) in (bool, int, str):
        return obj
    if type(obj) is float:
        return obj if math.isfinite(obj) else {"kind": "float", "value": str(obj)}
    if type(obj) is list:
        return [describe(x, f"{name}/{i}") for i, x in enumerate(obj)]
    # Exact types: a named tuple or a subclass of dict would come back as its base class.
    if type(obj) is tuple:
        return {"kind": "tuple", "items": [describe(x, f"{name}/{i}") for i, x in enumerate(obj)]}
    if type(obj) is dict:
        return {"kind": "dict", **_describe_items(obj, name)}
    if type(obj) in _SPEC_NAMES:
        arguments = describe(obj.__reduce__()[1], name)
        return {"kind": "spec", "class": _SPEC_NAMES[type(obj)], "arguments": arguments}
    for base, kind, content in _DESCRIBERS:
        if isinstance(obj, base):
            return {"kind": kind, **content(obj, name)}
    if is_named(obj):
        return {"kind": "name", "name": _name(obj, name)}
    if "__dataclass_fields__" in vars(type(obj)):
        return {"kind": "object", **_describe_fields(obj, name)}
    raise _undescribable(name, f"a {type(obj).__module__}.{type(obj).__qualname__}")


def build(description: Description, name: str = "object") -> Any:
    """Builds the object of a description.

    Args:
      description: The result of `describe`, also after a round trip through JSON.
      name: The name of the object in messages.

    Raises:
      UserError: The description is malformed, names a class or function that is not registered, or
        has unknown or missing fields.
    """
    try:
        return _build(description, name)
    except RecursionError as error:
        raise _unbuildable(name, "a description that is nested too deeply") from error


def _build(description: Description, name: str) -> Any:
    if description is None or isinstance(description, bool | int | float | str):
        return description
    if isinstance(description, list):
        return [_build(x, f"{name}/{i}") for i, x in enumerate(description)]
    kind = description.get("kind") if isinstance(description, Mapping) else None
    if not isinstance(kind, str) or kind not in _BUILDERS:
        raise _unbuildable(name, f"a description of kind {kind!r}")
    try:
        return _BUILDERS[kind](description, name)
    except UserError:
        raise
    except UnknownNameError as error:
        raise _unbuildable(name, str(error)) from error
    except Exception as error:  # any error of a class for arguments from a file
        raise _unbuildable(name, f"a description that fails with {error!r}") from error


# Names and dataclasses.


def _name(obj: Any, name: str) -> str:
    try:
        return name_of(obj)
    except UnknownNameError as error:
        raise _undescribable(name, str(error)) from error


def _describe_fields(obj: Any, name: str) -> dict[str, Any]:
    fields = {
        f.name: describe(getattr(obj, f.name), f"{name}/{f.name}")
        for f in dataclasses.fields(obj)
        if f.init  # other fields follow from these
    }
    return {"class": _name(type(obj), name), "fields": fields}


def _build_named(content: Mapping[str, Any], name: str) -> Any:
    return resolve(content["name"])


def _build_object(content: Mapping[str, Any], name: str) -> Any:
    cls = resolve(content["class"])
    if not isinstance(cls, type) or "__dataclass_fields__" not in vars(cls):
        raise UnknownNameError(f"{content['class']} is not a dataclass")
    known = {f.name: f for f in dataclasses.fields(cls) if f.init}
    fields = content["fields"]
    unknown = sorted(set(fields) - set(known))
    missing = [n for n, f in known.items() if n not in fields and _required(f)]
    if unknown or missing:
        raise _unbuildable(
            name,
            f"{content['class']} with unknown fields {unknown}, missing fields {missing}; the "
            "class has changed since",
        )
    return cls(**{n: _build(v, f"{name}/{n}") for n, v in fields.items()})


def _required(field: Any) -> bool:
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING


def _build_enum(content: Mapping[str, Any], name: str) -> Any:
    return resolve_enum(content["class"])[content["name"]]


# Collections, arrays and TensorFlow's types.


def _describe_items(obj: dict[Any, Any], name: str) -> dict[str, Any]:
    pairs = [[describe(k, f"{name} (a key)"), describe(v, f"{name}/{k}")] for k, v in obj.items()]
    return {"items": pairs}


def _describe_array(obj: Any, name: str) -> dict[str, Any]:
    array = np.asarray(obj)
    if array.dtype.kind not in "biuf":
        raise _undescribable(name, f"an array of dtype {array.dtype}")
    head = {"dtype": array.dtype.name, "shape": list(array.shape)}
    flat = array.reshape(-1)
    # Bounds of images repeat one number.
    if flat.size > 1 and np.all(flat == flat[0]):
        return {**head, "fill": describe(flat[0].item(), name)}
    return {**head, "values": [describe(x, name) for x in flat.tolist()]}


def _build_array(content: Mapping[str, Any], name: str) -> np.ndarray:
    shape, dtype = tuple(content["shape"]), np.dtype(content["dtype"])
    if "fill" in content:
        return np.full(shape, _build(content["fill"], name), dtype)
    return np.array([_build(x, name) for x in content["values"]], dtype).reshape(shape)


def _describe_shape(obj: tf.TensorShape, name: str) -> dict[str, Any]:
    return {"sizes": None if obj.rank is None else obj.as_list()}


def _build_spec(content: Mapping[str, Any], name: str) -> Any:
    return _SPECS[content["class"]](*_build(content["arguments"], name))


_Describer = Callable[[Any, str], dict[str, Any]]
_Builder = Callable[[Mapping[str, Any], str], Any]

_DESCRIBERS: tuple[tuple[Any, str, _Describer], ...] = (
    (enum.Enum, "enum", lambda o, n: {"class": _name(type(o), n), "name": o.name}),
    (np.ndarray, "array", _describe_array),
    (np.generic, "number", _describe_array),
    (np.dtype, "numpy_dtype", lambda o, n: {"name": o.name}),
    (tf.DType, "dtype", lambda o, n: {"name": o.name}),
    (tf.TensorShape, "shape", _describe_shape),
)

_BUILDERS: dict[str, _Builder] = {
    "float": lambda c, n: float(c["value"]),
    "enum": _build_enum,
    "tuple": lambda c, n: tuple(_build(x, f"{n}/{i}") for i, x in enumerate(c["items"])),
    "dict": lambda c, n: {_build(k, n): _build(v, f"{n}/{k}") for k, v in c["items"]},
    "array": _build_array,
    "number": lambda c, n: _build_array(c, n)[()],
    "numpy_dtype": lambda c, n: np.dtype(c["name"]),
    "dtype": lambda c, n: tf.as_dtype(c["name"]),
    "shape": lambda c, n: tf.TensorShape(c["sizes"]),
    "spec": _build_spec,
    "name": _build_named,
    "object": _build_object,
}


def _undescribable(name: str, got: str) -> UserError:
    return UserError(
        name,
        expected="a serializable object: numbers, strings, specs, dataclasses of these, functions "
        "and classes of a module",
        got=got,
        remedy=_REMEDY,
    )


def _unbuildable(name: str, got: str) -> UserError:
    return UserError(
        f"description of {name}",
        expected="a description that this version can build",
        got=got,
        remedy=_REMEDY,
    )
