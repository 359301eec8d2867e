"""All that the library knows of Keras: the only module that imports it.

`api` is Keras 2: `tf.keras` of TensorFlow 2.15, and the package `tf_keras` from 2.16 on, where
`tf.keras` is Keras 3; `PACKAGE` is the package's name. The functions below hide what depends on the
Keras in use: types, losses, seeds and the variables of optimizers. Models, losses and optimizers of
a program's own may be of Keras 3 too (`keras3.py`). `StatelessModel` is a model as a pure function
of its variables' values.

`StatelessModel.call` replaces the methods by which the variables of a model that nothing else uses
are read and assigned (`tf_private.TracedValue`): the traced operations depend on tensors alone.
Gradients, XLA and distribution then need nothing special, since no variable is left in the graph.
Eager calls go through a `tf.function`, because eager kernels read the memory of a variable without
its object.
"""

import contextlib
import importlib
import numbers
import pathlib
import random
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfrl import keras3, seeding, specs
from tfrl.errors import UserError
from tfrl.tf_private import TracedValue

if tuple(map(int, tf.__version__.split(".")[:2])) < (2, 16):
    from tensorflow import keras as api

    PACKAGE = "keras"
else:
    # Imported by itself: TF_USE_LEGACY_KERAS=1, which makes it tf.keras, is for the program to set.
    import tf_keras as api

    PACKAGE = "tf_keras"

__all__ = [
    "PACKAGE",
    "StatelessModel",
    "allow_raise",
    "api",
    "apply_gradients",
    "converted",
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
    "weights",
]

Nest = Any


# Types, variables and seeds.


def is_model(value: Any) -> bool:
    """Whether a value is a Keras model."""
    return isinstance(value, api.Model) or keras3.is_a(value, "Model")


def is_layer(value: Any) -> bool:
    """Whether a value is a Keras layer, such as a model."""
    return isinstance(value, api.layers.Layer) or keras3.is_a(value, "Layer")


def folder() -> str:
    """Returns the folder of Keras' sources."""
    package = importlib.import_module(PACKAGE)
    return str(pathlib.Path(package.__file__ or "").parent)


def allow_raise(error: Exception) -> Exception:
    """Returns an error that Keras passes on from a layer's call without text of its own."""
    error._keras_call_info_injected = True  # type: ignore[attr-defined]
    return error


def tf_variable(variable: Any) -> tf.Variable:
    """Returns the variable inside a mixed-precision wrapper, or inside a variable of Keras 3."""
    if keras3.is_a(variable, "Variable"):
        return variable.value
    return getattr(variable, "_variable", variable)


def weights(model: Any) -> tuple[list[Any], list[Any]]:
    """Returns the trainable variables of a model and the others, as Keras has them."""
    if keras3.is_a(model, "Model"):
        return keras3.weights(model)
    return list(model.trainable_variables), list(model.non_trainable_variables)


def named_variables(variables: Sequence[Any]) -> dict[str, tf.Variable]:
    """Names variables by position and role: `000_kernel`, `001_bias`, ...

    Keras' own names count the layers that a process made before.
    """
    return {f"{i:03d}_{v.name.split(':')[0].split('/')[-1]}": v for i, v in enumerate(variables)}


def seed_all(seed: int) -> None:
    """Sets the global seeds of Python, NumPy, TensorFlow and Keras."""
    api.utils.set_random_seed(seed)
    if keras := keras3.module():
        keras.utils.set_random_seed(seed)


@contextlib.contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Makes Keras' initialisers draw from a seed, and restores the global states that they use."""
    backend = importlib.import_module(f"{PACKAGE}.src.backend")
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
    return _is_loss_object(loss_fn) or module.startswith(("keras.", "tf_keras."))


def is_loss_class(value: Any) -> bool:
    """Whether a value is a class of losses in place of an object."""
    is_2 = isinstance(value, type) and issubclass(value, api.losses.Loss)
    return is_2 or keras3.is_class(value, "losses.Loss")


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
    return _is_loss_object(loss) and loss.reduction == api.losses.Reduction.SUM


def loss_of_rows(loss: Any) -> Callable[[Any, Any], Any]:
    """Returns `(y_true, y_pred) -> loss of each row` of a loss object or function."""
    return loss.call if _is_loss_object(loss) else loss


def _is_loss_object(value: Any) -> bool:
    return isinstance(value, api.losses.Loss) or keras3.is_a(value, "losses.Loss")


# Optimizers, new and legacy.


def is_optimizer(value: Any) -> bool:
    """Whether a value is a Keras optimizer, new, legacy or of Keras 3."""
    kinds = (api.optimizers.legacy.Optimizer, api.optimizers.Optimizer)
    return isinstance(value, kinds) or keras3.is_a(value, "optimizers.Optimizer")


def converted(optimizer: Any) -> Any:
    """Returns an optimizer of Keras 3 as one of Keras 2 with the same settings; others as they are.

    Raises:
      UserError: For settings or a class that Keras 2 has not.
    """
    if not keras3.is_a(optimizer, "optimizers.Optimizer"):
        return optimizer
    name = type(optimizer).__name__
    kind = getattr(api.optimizers, name, None)
    if kind is None or type(optimizer) is not getattr(keras3.module().optimizers, name, None):
        raise UserError(
            f"{name} of Keras 3",
            expected="an optimizer that Keras 2 also provides",
            got=f"a {type(optimizer).__module__}.{name}",
            remedy=f"Use one from tfrl.learning.optimizers or {PACKAGE}.optimizers.",
        )
    return kind.from_config(keras3.optimizer_config(optimizer))


def legacy_adam(learning_rate: float, epsilon: float) -> Any:
    """Returns Keras' Adam of the class before Keras 2.11, one fused kernel a variable."""
    return api.optimizers.legacy.Adam(learning_rate, epsilon=epsilon)


def fresh(optimizer: Any) -> Any:
    """Returns an optimizer of the same settings that has not been used."""
    if keras3.is_a(optimizer, "optimizers.Optimizer"):
        return converted(optimizer)
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
    return bool(getattr(optimizer, "_built", False) or getattr(optimizer, "built", False))


def counts_in_python(optimizer: Any) -> bool:
    """Whether an optimizer keeps a step's value in Python, so that a trace freezes it."""
    return isinstance(optimizer, api.optimizers.Nadam) or keras3.is_a(optimizer, "optimizers.Nadam")


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
        hyper = optimizer._hyper
        fixed = [n for n, x in hyper.items() if isinstance(x, numbers.Number)]
        optimizer._create_all_weights(params)  # the legacy class's own name for build
        # Constants in place of variables, which no state contains: traces can be shared.
        hyper.update({n: float(hyper[n].numpy()) for n in fixed if n != "learning_rate"})
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


class _RandomGenerator:
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
    current = [TracedValue(v, value) for v, value in zip(variables, values, strict=True)]
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
            expected="construction outside a distribution strategy's scope",
            got=f"a {type(tf.distribute.get_strategy()).__name__}",
            remedy="Create the agent before entering strategy.scope().",
        )
    with tf.init_scope():
        model = model_fn()
        if keras3.is_a(model, "Model"):
            keras3.check_backend()
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
    inner = keras3.layers_of(model) if keras3.is_a(model, "Model") else model.submodules
    compiled = [m for m in inner if _is_function(getattr(m, "call", None))]
    if compiled or _is_function(model.call):
        raise UserError(
            "Keras model",
            expected="plain `call` methods",
            got=f"a `call` decorated with tf.function in {(compiled or [model])[0].name}",
            remedy="Remove the decorator; the caller of the network is compiled as a whole.",
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
        trainable, state = weights(model)
        self.trainable = [tf_variable(v) for v in trainable]
        self.state = [tf_variable(v) for v in state]
        self._is_3 = keras3.is_a(model, "Model")
        inner = () if self._is_3 else model.submodules
        self._generators = [m._random_generator for m in inner if hasattr(m, "_random_generator")]
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
        if self._is_3:
            with self._lock:
                return keras3.stateless_call(self.model, values, x, training, key)
        variables = [*self.trainable, *self.state]
        current = [TracedValue(v, value) for v, value in zip(variables, values, strict=True)]
        draws = _RandomGenerator(key).methods
        owners = [(c.variable, c.methods) for c in current]
        owners += [(generator, draws) for generator in self._generators]
        draws_from = getattr(self.model, "draws_from", contextlib.nullcontext)
        with self._lock, _methods(owners), draws_from(key):
            output = self.model(x, training=training)
        return output, [c.value for c in current[len(self.trainable) :]]
