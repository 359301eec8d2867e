"""Calls a Keras model as a pure function of its variables' values.

Inside a graph every read of a `tf.Variable` goes through methods of the variable object, and so
does every assignment. `Template.call` puts methods in their place, on the variables of a model that
nobody else uses, which give tensors and take notes of assignments: the traced operations depend on
the tensors alone. Gradients, XLA and distribution then need nothing special, since no variable is
left in the graph. Eager calls go through a `tf.function`, because eager kernels read the memory of
a variable without asking the object.
"""

import contextlib
import random
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfrl import seeding, specs, struct
from tfrl.errors import UserError
from tfrl.networks.core import Nest, Params, Torso, fold


class _Value:
    """The value of one variable during a call; its methods stand in for the variable's."""

    def __init__(self, variable: tf.Variable, value: tf.Tensor):
        self.variable = variable
        self.value = value
        self.methods: dict[str, Callable[..., Any]] = {
            "_read_variable_op": lambda no_copy=False: self.value,
            "sparse_read": lambda indices, name=None: tf.gather(self.value, indices),
            "gather_nd": lambda indices, name=None: tf.gather_nd(self.value, indices),
            "assign": lambda value, *args, **kwargs: self._set(value),
            "assign_add": lambda delta, *args, **kwargs: self._set(self.value + self._like(delta)),
            "assign_sub": lambda delta, *args, **kwargs: self._set(self.value - self._like(delta)),
        }

    def _like(self, value: Any) -> tf.Tensor:
        return tf.convert_to_tensor(value, self.variable.dtype)

    def _set(self, value: Any) -> tf.Tensor:
        self.value = self._like(value)
        return self.value


class _Draws:
    """Keras' RandomGenerator methods with philox draws from one key."""

    def __init__(self, key: tf.Tensor | None):
        self._key = key
        self._count = 0
        self.methods: dict[str, Callable[..., Any]] = {
            "dropout": self._dropout,
            "make_legacy_seed": lambda: None,
            "make_seed_for_stateless_op": self._next,
            "random_normal": self._normal,
            "random_uniform": self._uniform,
            "truncated_normal": self._truncated,
        }

    def _next(self) -> tf.Tensor:
        if self._key is None:
            error = UserError(
                "key",
                expected="an int32 key, since the Keras model draws random numbers in training",
                got="None",
                remedy="Call apply(params, x, training=True, key=tfrl.seeding.fold_in(key, step)).",
            )
            error._keras_call_info_injected = True  # type: ignore[attr-defined]  # pass as it is
            raise error
        self._count += 1
        return seeding.fold_in(self._key, self._count)

    def _dropout(self, inputs: tf.Tensor, rate: Any, noise_shape: Any = None) -> tf.Tensor:
        shape = tf.shape(inputs) if noise_shape is None else noise_shape
        keep = seeding.uniform(self._next(), shape) >= tf.cast(rate, tf.float32)
        scale = tf.cast(1.0 / (1.0 - tf.cast(rate, tf.float32)), inputs.dtype)
        return inputs * tf.where(keep, scale, tf.zeros([], inputs.dtype))

    def _uniform(
        self,
        shape: Any,
        minval: Any = 0.0,
        maxval: Any = None,
        dtype: Any = None,
        nonce: Any = None,
    ) -> tf.Tensor:
        high = 1.0 if maxval is None else maxval
        return tf.cast(seeding.uniform(self._next(), shape, minval, high), dtype or tf.float32)

    def _normal(
        self, shape: Any, mean: Any = 0.0, stddev: Any = 1.0, dtype: Any = None, nonce: Any = None
    ) -> tf.Tensor:
        return tf.cast(mean + stddev * seeding.normal(self._next(), shape), dtype or tf.float32)

    def _truncated(
        self, shape: Any, mean: Any = 0.0, stddev: Any = 1.0, dtype: Any = None, nonce: Any = None
    ) -> tf.Tensor:
        return tf.random.stateless_truncated_normal(
            shape, self._next(), mean, stddev, dtype or tf.float32, alg=seeding.ALG
        )


@contextlib.contextmanager
def _methods(owners: Sequence[tuple[Any, dict[str, Callable[..., Any]]]]) -> Iterator[None]:
    """Gives objects other methods for a while, past their own `__setattr__`."""
    for owner, methods in owners:
        owner.__dict__.update(methods)
    try:
        yield
    finally:
        for owner, methods in owners:
            for name in methods:
                del owner.__dict__[name]


@contextlib.contextmanager
def read_as(
    variables: Sequence[tf.Variable], values: Sequence[tf.Tensor]
) -> Iterator[Callable[[], list[tf.Tensor]]]:
    """Lets variables, of anything, be read as values while their operations are traced.

    For code inside a graph. Assignments are noted and change no variable.

    Args:
      variables: Each once, none of a strategy.
      values: Like them.

    Yields:
      A function that returns the values as they are then.
    """
    current = [_Value(v, value) for v, value in zip(variables, values, strict=True)]
    with _methods([(c.variable, c.methods) for c in current]):
        yield lambda: [c.value for c in current]


@contextlib.contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Makes Keras' initialisers draw from a seed, and restores the global states that they use."""
    from keras.src import backend

    python, numpy = random.getstate(), np.random.get_state()
    keras = getattr(backend._SEED_GENERATOR, "generator", None)
    random.seed(seed)
    np.random.seed(seed % 2**32)
    backend._SEED_GENERATOR.generator = random.Random(seed)  # nosec B311
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)
        backend._SEED_GENERATOR.generator = keras


def build(model_fn: Callable[[], tf.keras.Model], spec: Nest) -> tuple[tf.keras.Model, Nest]:
    """Makes a model and its variables.

    Returns:
      The model, and the nest of specs of its output for one input, without batch axis.
    """
    if tf.distribute.has_strategy():
        raise UserError(
            "KerasNetwork",
            expected="to be made outside of a distribution strategy's scope",
            got=f"a {type(tf.distribute.get_strategy()).__name__}",
            remedy="Make the agent before entering strategy.scope().",
        )
    with tf.init_scope():
        model = model_fn()
        if not isinstance(model, tf.keras.Model):
            raise UserError(
                "model_fn",
                expected="a function without arguments that returns a tf.keras.Model",
                got=repr(model),
            )
        # The second size tells a Sequential that the batch axis varies; else it would run its
        # layers once more, and draw random numbers, at the first other size.
        for size in (1, 2):
            zeros = specs.zeros(spec, (size,))
            output = model(zeros, training=False)
    compiled = [m for m in model.submodules if _is_function(getattr(m, "call", None))]
    if compiled or _is_function(model.call):
        raise UserError(
            "Keras model",
            expected="plain `call` methods",
            got=f"one decorated with tf.function in {(compiled or [model])[0].name}",
            remedy="Take the decorator away; what uses the network is compiled as a whole.",
        )
    return model, tf.nest.map_structure(lambda y: tf.TensorSpec(y.shape[1:], y.dtype), output)


def _is_function(value: Any) -> bool:
    return isinstance(value, tf.types.experimental.PolymorphicFunction)


def plain(variable: Any) -> tf.Variable:
    """Returns the variable inside a mixed-precision wrapper."""
    return getattr(variable, "_variable", variable)


class Template:
    """A model whose own variables never change: it gives shapes, and the operations to trace.

    A model may have a method `draws_from(key)`: the context in which its call is traced, for layers
    that draw past Keras. The key may be None.
    """

    def __init__(self, model: tf.keras.Model, output: Nest):
        self.output = output
        self.model = model
        self.trainable = [plain(v) for v in model.trainable_variables]
        self.state = [plain(v) for v in model.non_trainable_variables]
        self._generators = [
            m._random_generator for m in model.submodules if hasattr(m, "_random_generator")
        ]
        self._lock = threading.RLock()
        self._eager = tf.function(self._traced)

    def call(
        self, values: Sequence[tf.Tensor], x: Nest, training: bool, key: tf.Tensor | None
    ) -> tuple[Nest, list[tf.Tensor]]:
        """Returns the output, and the values of `state` after the call.

        Args:
          values: Those of `trainable` and then of `state`.
          x: Inputs with one batch axis.
          training: Handed on to the model.
          key: For the random layers.
        """
        run = self._eager if tf.executing_eagerly() else self._traced
        return run([tf.convert_to_tensor(v) for v in values], x, training, key)

    def _traced(
        self, values: list[tf.Tensor], x: Nest, training: bool, key: tf.Tensor | None
    ) -> tuple[Nest, list[tf.Tensor]]:
        variables = [*self.trainable, *self.state]
        current = [_Value(v, value) for v, value in zip(variables, values, strict=True)]
        draws = _Draws(key).methods
        owners = [(c.variable, c.methods) for c in current]
        owners += [(generator, draws) for generator in self._generators]
        draws_from = getattr(self.model, "draws_from", contextlib.nullcontext)
        with self._lock, _methods(owners), draws_from(key):
            output = self.model(x, training=training)
        return output, [c.value for c in current[len(self.trainable) :]]


@struct.logic_dataclass
class KerasNetwork(Torso):
    """A `tf.keras.Model` (functional, sequential or subclassed) as `init` and `apply`.

    Parameters are `{"params": {...}, "state": {...}}`: the trainable weights, and the others, such
    as the moving statistics of BatchNormalization, with names like "000_kernel" that do not depend
    on how many layers Keras has named before. No gradient flows to `state` and no optimizer has
    it; losses call `apply_training`, and the Learner writes back the `state` that it returns.
    Random layers (Dropout, GaussianNoise, ...) draw from the key that is given, the same bits on
    every path.

    Not seen: regularisation losses of layers, and what a layer of the user's own draws from
    `tf.random` directly. `call` methods must not be decorated with tf.function.

    Attributes:
      model_fn: Makes the model, without arguments; networks with the same function are equal.
      spec: The nest of specs of one input, as the model takes it.
      template: The model that is traced; its own variables are never used.
    """

    model_fn: Callable[[], tf.keras.Model]
    spec: Nest
    template: Template = struct.derived()

    def __post_init__(self) -> None:
        """Makes the model and its variables once."""
        self.template = Template(*build(self.model_fn, self.spec))

    def output_size(self, spec: Nest) -> int:
        """Returns the size of the model's output.

        Raises:
          UserError: If it is not one vector.
        """
        output = self.template.output
        if not specs.is_spec(output) or output.shape.rank != 1:
            raise UserError(
                "Keras model",
                expected="one output of shape [batch, features], to be a torso",
                got=repr(output),
            )
        return output.shape[0]

    def init(self, key: tf.Tensor, spec: Nest = None) -> Params:
        """Makes parameters with the model's own initialisers, seeded by the key; eagerly only.

        Args:
          key: int32 [2].
          spec: Must equal `self.spec`, or be None.
        """
        if spec is not None and spec != self.spec:
            raise UserError(
                "spec", expected=f"that of the KerasNetwork, {self.spec!r}", got=repr(spec)
            )
        words = tf.get_static_value(key)
        if words is None:
            raise UserError(
                "KerasNetwork.init",
                expected="to be called outside of tf.function: Keras initialises variables",
                got="a key whose value is not known while tracing",
            )
        low, high = (int(w) % 2**32 for w in words)
        with seeded(low + (high << 32)):
            model, _ = build(self.model_fn, self.spec)
        return {
            "params": _named([plain(v) for v in model.trainable_variables]),
            "state": _named([plain(v) for v in model.non_trainable_variables]),
        }

    def apply(
        self, params: Params, x: Nest, training: bool = False, key: tf.Tensor | None = None
    ) -> Any:
        """Returns the model's output for inputs `[..., *spec shape]`.

        Args:
          params: As from `init`; or stacked on a leading axis P, which `x` then has too.
          x: The inputs.
          training: The mode of layers such as Dropout and BatchNormalization.
          key: int32 [2]; needed if layers draw random numbers in this mode.
        """
        return self.apply_with_updates(params, x, training, key)[0]

    def apply_training(self, params: Params, x: Nest, key: tf.Tensor) -> tuple[Any, Params]:
        """Returns the output in training mode, and the parameters with the new `state`."""
        output, state = self.apply_with_updates(params, x, training=True, key=key)
        return output, {**params, "state": state}

    def apply_with_updates(
        self, params: Params, x: Nest, training: bool = True, key: tf.Tensor | None = None
    ) -> tuple[Any, dict[str, tf.Tensor]]:
        """Returns the output and the new `state`; arguments as for `apply`.

        The new parameters are `{**params, "state": state}`.
        """
        first = [*params["params"].values(), *params["state"].values()][:1]
        rank = [v.shape.rank for v in [*self.template.trainable, *self.template.state][:1]]
        if [p.shape.rank for p in first] == rank:
            return self._apply_one(params, x, training, key)
        size = first[0].shape[0]
        members = [
            self._apply_one(
                tf.nest.map_structure(lambda p, i=i: p[i], params),
                tf.nest.map_structure(lambda v, i=i: v[i], x),
                training,
                None if key is None else seeding.fold_in(key, i),
            )
            for i in range(size)
        ]
        return struct.stack(members)

    def _apply_one(
        self, params: Params, x: Nest, training: bool, key: tf.Tensor | None
    ) -> tuple[Any, dict[str, tf.Tensor]]:
        tf.nest.assert_same_structure(self.spec, x, check_types=False)
        folded = [
            fold(tf.convert_to_tensor(v), s.shape.rank, False)
            for v, s in zip(tf.nest.flatten(x), tf.nest.flatten(self.spec), strict=True)
        ]
        restore = folded[0][1]
        flat = tf.nest.pack_sequence_as(self.spec, [v for v, _ in folded])
        output, after = self.call(params, flat, training, key)
        return tf.nest.map_structure(restore, output), after

    def call(
        self, params: Params, x: Nest, training: bool, key: tf.Tensor | None
    ) -> tuple[Any, dict[str, tf.Tensor]]:
        """Calls the model on inputs as they are, with what leading axes it takes itself.

        Args:
          params: As from `init`, not stacked.
          x: The inputs; `apply` gives the model one batch axis, here there may be others.
          training: As of `apply`.
          key: As of `apply`.

        Returns:
          The output, and the new `state`.
        """
        trainable = [params["params"][name] for name in sorted(params["params"])]
        names = sorted(params["state"])
        state = [tf.stop_gradient(params["state"][name]) for name in names]
        output, after = self.template.call([*trainable, *state], x, training, key)
        return output, {n: tf.stop_gradient(v) for n, v in zip(names, after, strict=True)}


def _named(variables: list[tf.Variable]) -> dict[str, tf.Tensor]:
    """Names by position and role: Keras' own count the layers that a process has made."""
    return {
        f"{i:03d}_{v.name.split(':')[0].split('/')[-1]}": tf.convert_to_tensor(v)
        for i, v in enumerate(variables)
    }
