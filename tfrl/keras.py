"""All that the library knows of Keras: the only module that imports it.

`api` is Keras' own package, `tf.keras`. The functions below hide what depends on the Keras in use:
types, losses, seeds and the variables of optimizers. `StatelessModel` is a model as a pure function
of its variables' values.

Inside a graph every read of a `tf.Variable` goes through methods of the variable object, and so
does every assignment. `StatelessModel.call` replaces these methods, on the variables of a model
that nothing else uses, by ones that return tensors and record assignments: the traced operations
depend on the tensors alone. Gradients, XLA and distribution then need nothing special, since no
variable is left in the graph. Eager calls go through a `tf.function`, because eager kernels read
the memory of a variable without its object.
"""

import contextlib
import importlib
import pathlib
import random
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow import keras as api

from tfrl import seeding, specs
from tfrl.errors import UserError

__all__ = [
    "StatelessModel",
    "allow_raise",
    "api",
    "apply_gradients",
    "build",
    "build_slots",
    "counts_in_python",
    "folder",
    "fresh",
    "initial_rate",
    "is_layer",
    "is_loss",
    "is_loss_class",
    "is_model",
    "is_optimizer",
    "is_used",
    "legacy_adam",
    "loss_of_rows",
    "loss_names",
    "named_loss",
    "named_variables",
    "optimizer_variables",
    "read_as",
    "seed_all",
    "seeded",
    "sums_rows",
    "tf_variable",
]

Nest = Any


# Types, variables and seeds.


def is_model(value: Any) -> bool:
    """Whether a value is a Keras model."""
    return isinstance(value, api.Model)


def is_layer(value: Any) -> bool:
    """Whether a value is a Keras layer, such as a model."""
    return isinstance(value, api.layers.Layer)


def folder() -> str:
    """Returns the folder of Keras' sources."""
    package = importlib.import_module(api.__name__.partition(".")[0])
    return str(pathlib.Path(package.__file__ or "").parent)


def allow_raise(error: Exception) -> Exception:
    """Returns an error that Keras passes on from a layer's call without text of its own."""
    error._keras_call_info_injected = True  # type: ignore[attr-defined]
    return error


def tf_variable(variable: Any) -> tf.Variable:
    """Returns the variable inside a mixed-precision wrapper."""
    return getattr(variable, "_variable", variable)


def named_variables(variables: Sequence[Any]) -> dict[str, tf.Variable]:
    """Names variables by position and role: `000_kernel`, `001_bias`, ...

    Keras' own names count the layers that a process made before.
    """
    return {f"{i:03d}_{v.name.split(':')[0].split('/')[-1]}": v for i, v in enumerate(variables)}


def seed_all(seed: int) -> None:
    """Sets the global seeds of Python, NumPy, TensorFlow and Keras."""
    api.utils.set_random_seed(seed)


@contextlib.contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Makes Keras' initialisers draw from a seed, and restores the global states that they use."""
    from keras.src import backend

    python, numpy = random.getstate(), np.random.get_state()
    generator = getattr(backend._SEED_GENERATOR, "generator", None)
    random.seed(seed)
    np.random.seed(seed % 2**32)
    backend._SEED_GENERATOR.generator = random.Random(seed)  # nosec B311
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)
        backend._SEED_GENERATOR.generator = generator


# Losses.


def is_loss(loss_fn: Any) -> bool:
    """Whether a function or object is one of Keras' losses, or a subclass' object."""
    module = str(getattr(loss_fn, "__module__", ""))
    return isinstance(loss_fn, api.losses.Loss) or module.startswith("keras.")


def is_loss_class(value: Any) -> bool:
    """Whether a value is a class of losses in place of an object."""
    return isinstance(value, type) and issubclass(value, api.losses.Loss)


def named_loss(name: str) -> Any:
    """Returns the loss of a name such as "mse".

    Raises:
      ValueError: Keras has none of this name.
    """
    return api.losses.get(name)


def loss_names() -> list[str]:
    """Returns the names that `named_loss` takes."""
    return [name for name in dir(api.losses) if name[0].isalpha()]


def sums_rows(loss: Any) -> bool:
    """Whether a loss object sums over rows, where the others take a mean."""
    return isinstance(loss, api.losses.Loss) and loss.reduction == api.losses.Reduction.SUM


def loss_of_rows(loss: Any) -> Callable[[Any, Any], Any]:
    """Returns `(y_true, y_pred) -> loss of each row` of a loss object or function."""
    return loss.call if isinstance(loss, api.losses.Loss) else loss  # type: ignore[no-any-return]


# Optimizers, new and legacy.


def is_optimizer(value: Any) -> bool:
    """Whether a value is a Keras optimizer, new or legacy."""
    return isinstance(value, api.optimizers.legacy.Optimizer | api.optimizers.Optimizer)


def legacy_adam(learning_rate: float, epsilon: float) -> Any:
    """Returns Keras' Adam of the class before Keras 2.11, one fused kernel a variable."""
    return api.optimizers.legacy.Adam(learning_rate, epsilon=epsilon)


def fresh(optimizer: Any) -> Any:
    """Returns an optimizer of the same settings that has not been used."""
    return type(optimizer).from_config(optimizer.get_config())


def optimizer_logic(chosen: Any) -> Any:
    """Returns what the steps of a Keras optimizer depend on; anything else as it is.

    Without its learning rate, which is a variable.
    """
    if not is_optimizer(chosen):
        return chosen
    config = {k: v for k, v in chosen.get_config().items() if k != "learning_rate"}
    return type(chosen), config


def is_used(optimizer: Any) -> bool:
    """Whether an optimizer has been built for variables."""
    if _is_legacy(optimizer):
        return bool(optimizer.variables())
    return bool(getattr(optimizer, "_built", False))


def counts_in_python(optimizer: Any) -> bool:
    """Whether an optimizer keeps a step's value in Python, so that a trace freezes it."""
    return isinstance(optimizer, api.optimizers.Nadam)


def initial_rate(optimizer: Any) -> Any:
    """Returns an optimizer's learning rate as it holds it: a number, a variable or a schedule."""
    if _is_legacy(optimizer):
        return optimizer._hyper.get("learning_rate")
    return optimizer._learning_rate


def build_slots(
    optimizer: Any, params: Sequence[tf.Variable]
) -> list[tuple[str, tf.Variable, tf.Variable]]:
    """Makes the variables that an optimizer keeps for parameters.

    Returns:
      Triples of a name such as "m", the parameter and the optimizer's variable.
    """
    if _is_legacy(optimizer):
        optimizer._create_all_weights(params)  # the legacy class's own name for build
        names = optimizer.get_slot_names()
        return [(n, p, optimizer.get_slot(p, n)) for p in params for n in names]
    with _recorded(optimizer) as slots:
        optimizer.build(list(params))
    return slots


def optimizer_variables(optimizer: Any) -> list[tf.Variable]:
    """Returns the variables that an optimizer lists."""
    listed = getattr(optimizer, "variables", [])
    return list(listed() if callable(listed) else listed)


def apply_gradients(optimizer: Any, pairs: Sequence[tuple[tf.Tensor, tf.Variable]]) -> None:
    """Takes one step with gradients as they are, without a sum over replicas."""
    if _is_legacy(optimizer):
        optimizer.apply_gradients(pairs, experimental_aggregate_gradients=False)
    else:
        optimizer.apply_gradients(pairs, skip_gradients_aggregation=True)


def _is_legacy(optimizer: Any) -> bool:
    return isinstance(optimizer, api.optimizers.legacy.Optimizer)


@contextlib.contextmanager
def _recorded(optimizer: Any) -> Iterator[list[tuple[str, tf.Variable, tf.Variable]]]:
    """Records `add_variable_from_reference`, by which every new optimizer adds slots."""
    add = optimizer.add_variable_from_reference
    slots: list[tuple[str, tf.Variable, tf.Variable]] = []

    def add_and_record(model_variable: Any, variable_name: str, *args: Any, **kwargs: Any) -> Any:
        variable = add(model_variable, variable_name, *args, **kwargs)
        slots.append((variable_name, model_variable, variable))
        return variable

    optimizer.__dict__["add_variable_from_reference"] = add_and_record
    try:
        yield slots
    finally:
        del optimizer.__dict__["add_variable_from_reference"]


# Models as pure functions.


class _Value:
    """The value of one variable during a call; its methods replace the variable's."""

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
            raise allow_raise(error)
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
    """Replaces methods of objects for a while, past their own `__setattr__`."""
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

    For code inside a graph. Assignments are recorded and change no variable.

    Args:
      variables: Each once, none of a strategy.
      values: Like them.

    Yields:
      A function that returns the values as they are then.
    """
    current = [_Value(v, value) for v, value in zip(variables, values, strict=True)]
    with _methods([(c.variable, c.methods) for c in current]):
        yield lambda: [c.value for c in current]


def build(model_fn: Callable[[], api.Model], spec: Nest) -> tuple[api.Model, Nest]:
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
        if not is_model(model):
            raise UserError(
                "model_fn",
                expected="a function without arguments that returns a tf.keras.Model",
                got=repr(model),
                remedy="Pass the function, not the model.",
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


class StatelessModel:
    """A model whose own variables never change: it supplies shapes and the operations to trace.

    A model may have a method `draws_from(key)`: the context in which its call is traced, for layers
    that draw past Keras. The key may be None.
    """

    def __init__(self, model: api.Model, output: Nest):
        self.output = output
        self.model = model
        self.trainable = [tf_variable(v) for v in model.trainable_variables]
        self.state = [tf_variable(v) for v in model.non_trainable_variables]
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
