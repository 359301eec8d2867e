"""Compiled functions that belong to logic: traced once for all states of equal logic.

The first call traces a function, with that state's variables as captured inputs. A call for another
state passes the handles of that state's variables instead. TensorFlow then only processes handles,
which is faster than variables as arguments, and objects that capture their own variables (a Keras
optimizer) need no changes.
"""

import collections
import dataclasses
import functools
import numbers
import pathlib
import threading
import types
import weakref
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfrl import tf_private

Variables = Mapping[str, tf.Variable]

# Number of logics with cached traces; the least recently used is evicted.
_KEPT = 32
_all: collections.OrderedDict[Hashable, "Traces"] = collections.OrderedDict()
_lock = threading.Lock()


class Traces:
    """The traces of one logic.

    Attributes:
      functions: `{name: TracedFunction}`.
      notes: Facts found by tracing: names of metrics, compile modes.
    """

    def __init__(self) -> None:
        """Starts without traces."""
        self.functions: dict[Hashable, TracedFunction] = {}
        self.notes: dict[Hashable, Any] = {}

    def bound(
        self, name: Hashable, make: Callable[[], Any], args: Any, variables: Variables
    ) -> "BoundFunction":
        """Returns a function over the variables of a state; traces it at the first call.

        Args:
          name: The function's name, with everything besides the logic that its trace depends on.
          make: Makes the `tf.function` over these variables if there is no trace.
          args: Arguments for the trace.
          variables: All variables that the function may use, by path.
        """
        name = (name, specs_of(args))
        traced = self.functions.get(name)
        if traced is None:
            traced = TracedFunction(make().get_concrete_function(*args), variables)
            if traced.is_shareable:
                self.functions[name] = traced
        return traced.bound(variables)


def traces_of(key: Hashable) -> Traces:
    """Returns the traces for a `logic_key`."""
    with _lock:
        traces = _all.setdefault(key, Traces())
        _all.move_to_end(key)
        while len(_all) > _KEPT:
            _all.popitem(last=False)
    return traces


def forget_all() -> None:
    """Removes all cached traces."""
    with _lock:
        _all.clear()


class TracedFunction:
    """A trace, and the path of the variable behind each captured input."""

    def __init__(self, concrete: Any, variables: Variables):
        """Finds the variables behind the captured inputs.

        Args:
          concrete: A concrete function that captures some of the variables.
          variables: By path.
        """
        self._concrete = concrete
        paths = {id(handle): place for place, handle in _handles(variables).items()}
        self._captured = list(self._concrete.captured_inputs)
        self._places = [paths.get(id(x)) for x in self._captured]
        # Other captures may belong to the state too: a constant from a seed, a table.
        self.is_shareable = None not in self._places
        if self.is_shareable:
            captured = set(self._places)
            for path, variable in variables.items():
                if path in captured:
                    _empty_with(variable, variable.handle)
            self._captured = []

    def bound(self, variables: Variables) -> "BoundFunction":
        """Returns the function over the variables of a state."""
        captured = self._captured
        if self.is_shareable:
            handles = _handles(variables)
            captured = [handles[place] for place in self._places]  # type: ignore[index]
        return BoundFunction(self._concrete, captured)


class BoundFunction:
    """A trace over the variables of one state."""

    def __init__(self, concrete: Any, captured: list[tf.Tensor]):
        """Takes a concrete function and replacements for its captured inputs."""
        self._concrete, self._captured = concrete, captured

    def __call__(self, *args: Any) -> Any:
        """Calls it with arguments of the traced structure."""
        leaves = tf.nest.flatten(args, expand_composites=True)
        return self.flat([x for x in leaves if tf.is_tensor(x)])

    def flat(self, leaves: Sequence[tf.Tensor]) -> Any:
        """Calls it with the tensors of the arguments."""
        return tf_private.call_flat(self._concrete, leaves, self._captured)

    def direct(self) -> Callable[[Sequence[tf.Tensor]], list[tf.Tensor]]:
        """Returns `flat` without TensorFlow's checks of each tensor, for functions of lists."""
        return tf_private.direct_call(self._concrete, self._captured)


def counted_separately(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a copy of a function whose traces TensorFlow counts separately.

    TensorFlow warns if most of the last calls of a function were traces. It identifies functions by
    their code. So it counts the methods of several objects, or the closures created for them, as
    one function, and five learners trained once each look like one that always retraces. Callables
    without code are identified by object. TensorFlow still warns of a single function that always
    retraces.

    Args:
      fn: A method or a closure, for one `tf.function`.
    """
    own = functools.partial(fn)
    named = getattr(fn, "func", fn)  # graphs keep its name
    own.__name__ = getattr(named, "__name__", type(named).__name__)  # type: ignore[attr-defined]
    return own


def specs_of(args: Any) -> Hashable:
    """Returns a key of the arguments' structure, shapes and dtypes."""
    leaves = tf.nest.flatten(args, expand_composites=True)
    form = tf.nest.map_structure(lambda x: 0, args, expand_composites=True)
    return str(form), tuple((str(x.shape), x.dtype) if hasattr(x, "dtype") else x for x in leaves)


def _handles(variables: Variables) -> dict[str, Any]:
    """The handles of variables by path; a variable of several replicas has several."""
    handles = {}
    for path, variable in variables.items():
        several = getattr(variable, "values", None)
        if several is None:
            handles[path] = variable.handle
        else:
            handles.update({f"{path}@{i}": v.handle for i, v in enumerate(several)})
    return handles


def _empty_with(variable: Any, handle: Any) -> None:
    """Frees a handle's memory together with its variable, since the trace keeps the handle."""

    def empty() -> None:
        with tf.init_scope():
            nothing = tf.zeros([0], variable_dtype)
            tf.raw_ops.AssignVariableOp(resource=handle, value=nothing)

    variable_dtype = variable.dtype
    weakref.finalize(variable, empty).atexit = False


class _Same:
    """Equal to another `_Same` of the same object; holds it weakly."""

    def __init__(self, value: Any):
        self._hash = id(value)
        try:
            self._value: Callable[[], Any] = weakref.ref(value)
        except TypeError:
            self._value = lambda: value

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        mine = self._value()
        return isinstance(other, _Same) and mine is not None and mine is other._value()


def class_settings(cls: type) -> dict[str, Any]:
    """Returns the attributes of a class and its bases that are values: neither code nor Python's.

    They count as settings of an object, since a user may change them between two objects.
    """
    settings: dict[str, Any] = {}
    for base in reversed(cls.__mro__):
        settings.update({name: x for name, x in vars(base).items() if _is_setting(name, x)})
    for name in [name for name, x in settings.items() if isinstance(x, cls)]:
        del settings[name]  # such as a default object
    return settings


def _is_setting(name: str, value: Any) -> bool:
    described = callable(value) or hasattr(value, "__get__")
    return not (described or name.startswith(("__", "_tfrl_")) or name == "_abc_impl")


def _functions_of(cls: type) -> Hashable:
    """Returns the functions of a class, one of which a user may replace between two objects."""
    kinds = (types.FunctionType, staticmethod, classmethod, property, functools.cached_property)
    return tuple(x for base in cls.__mro__ for x in vars(base).values() if isinstance(x, kinds))


def logic_key(value: Any) -> Hashable:
    """Returns a key that is equal for objects of equal logic (fields, items, functions).

    For an object with a method `logic`, its result is the key. Objects without a definition of
    equality equal only themselves.
    """
    if value is None or isinstance(value, str | bytes | numbers.Number):
        return type(value), repr(value)  # 1, 1.0 and True are equal
    if isinstance(value, range | slice | pathlib.PurePath):
        return type(value), repr(value)
    if isinstance(value, set | frozenset):
        return type(value), frozenset(map(logic_key, value))
    if isinstance(value, Mapping):
        return type(value), tuple((logic_key(k), logic_key(v)) for k, v in value.items())
    if isinstance(value, tuple | list):
        return type(value), tuple(map(logic_key, value))
    if isinstance(value, functools.partial):
        return "partial", logic_key(value.func), logic_key(value.args), logic_key(value.keywords)
    if isinstance(value, types.MethodType):
        return "method", value.__func__, logic_key(value.__self__)
    if isinstance(value, np.ndarray | np.generic):
        return "array", str(value.dtype), np.shape(value), value.tobytes()
    if isinstance(value, tf.Tensor) and not tf.is_symbolic_tensor(value) and value.dtype.size:
        return "tensor", logic_key(value.numpy())
    if isinstance(value, tf.TypeSpec | tf.DType | tf.TensorShape | np.dtype):
        return type(value), _bounds(value), value
    if isinstance(value, type):
        return value
    if callable(getattr(type(value), "logic", None)):
        return type(value), _functions_of(type(value)), logic_key(value.logic())
    if dataclasses.is_dataclass(value) and type(value).__eq__ is not object.__eq__:
        names = class_settings(type(value)).keys() | {f.name for f in dataclasses.fields(value)}
        if hasattr(type(value), "__tf_flatten__"):  # of `tfrl.struct`: derived from the others
            names -= {f.name for f in dataclasses.fields(value) if not f.init}
        else:  # `__post_init__` may set any attribute
            names |= getattr(value, "__dict__", {}).keys()
        settings = tuple((n, logic_key(getattr(value, n))) for n in sorted(names))
        return type(value), _functions_of(type(value)), settings
    if isinstance(value, types.SimpleNamespace):
        return type(value), logic_key(vars(value))
    return _Same(value)


def _bounds(spec: Any) -> Hashable:
    bounds = (getattr(spec, name, None) for name in ("minimum", "maximum"))
    return tuple(None if x is None else np.asarray(x).tobytes() for x in bounds)
