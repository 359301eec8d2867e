"""Models and optimizers of Keras 3, which `tf.keras` is from TensorFlow 2.16 on.

It is not imported here: where a program has an object of it, it is there. `stateless_call` gives a
model values in the place of its variables (`keras.StatelessScope`, as `Model.stateless_call` does);
random layers keep the seeds of their draws in variables too, and so draw from a key. Meanwhile
Keras' random functions are replaced by ones whose bits are the same in a graph and in XLA.
"""

import contextlib
import importlib
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from tfrl import seeding
from tfrl.errors import UserError

Nest = Any
_LOCK = threading.RLock()


def module() -> Any:
    """Returns Keras 3 where the program has imported it, and None elsewhere."""
    keras = sys.modules.get("keras")
    is_3 = str(getattr(keras, "__version__", "")).startswith("3.")
    return keras if is_3 and hasattr(keras, "Model") else None


def is_a(value: Any, name: str) -> bool:
    """Whether a value is an object of Keras 3, such as of `"Model"` or `"losses.Loss"`."""
    kind = _class(name)
    return kind is not None and isinstance(value, kind)


def is_class(value: Any, name: str) -> bool:
    """Whether a value is a class of Keras 3, or a subclass of one."""
    kind = _class(name)
    return kind is not None and isinstance(value, type) and issubclass(value, kind)


def _class(name: str) -> Any:
    part_of = module()
    for part in name.split("."):
        part_of = getattr(part_of, part, None)
    return part_of


def check_backend() -> None:
    """Refuses models that compute by another library than TensorFlow.

    Raises:
      UserError: Saying how to choose it.
    """
    backend = module().config.backend()
    if backend != "tensorflow":
        raise UserError(
            "Keras model",
            expected="Keras 3 on TensorFlow",
            got=f"Keras 3 on {backend}",
            remedy="Set KERAS_BACKEND=tensorflow before the program imports keras.",
        )


def layers_of(model: Any) -> list[Any]:
    """Returns the layers inside a model, at every depth."""
    layers = []
    for layer in getattr(model, "layers", ()):
        layers += [layer, *layers_of(layer)]
    return layers


def weights(model: Any) -> tuple[list[Any], list[Any]]:
    """Returns the trainable variables of a model, and the others without seeds and metrics."""
    return list(model.trainable_variables), list(model.non_trainable_weights)


def _seed_states(model: Any) -> list[Any]:
    own = {id(v) for v in model.non_trainable_weights}
    rest = [v for v in model.non_trainable_variables if id(v) not in own]
    return [v for v in rest if v.name == "seed_generator_state"]


def stateless_call(
    model: Any, values: Sequence[tf.Tensor], x: Nest, training: bool, key: tf.Tensor | None
) -> tuple[Nest, list[tf.Tensor]]:
    """Returns the output, and the values of `weights(model)[1]` after the call.

    Args:
      model: Built.
      values: Those of `weights(model)`, one list after the other.
      x: Inputs with one batch axis.
      training: Handed on to the model.
      key: For the random layers.

    Raises:
      UserError: For draws without a key, or from Keras' global generator.
    """
    trainable, state = weights(model)
    seeds = _seed_states(model)
    mapping = list(zip([*trainable, *state], values, strict=True))
    if key is not None:
        mapping += [(v, _seed(seeding.fold_in(key, i + 1), v)) for i, v in enumerate(seeds)]
    with module().StatelessScope(state_mapping=mapping) as scope, _own_draws():
        output = model(x, training=training)
        after = [scope.get_current_value(v) for v in state]
        drawn = [v for v in seeds if scope.get_current_value(v) is not None]
        known = {id(v) for v in (*trainable, *state, *seeds, *model.non_trainable_variables)}
        others = [place for place in scope.state_mapping if place not in known]
    if key is None and drawn:
        raise UserError(
            "key",
            expected="an int32 key, since the Keras model draws random numbers in training",
            got="None",
            remedy="Call apply(params, x, training=True, key=tfrl.seeding.fold_in(key, step)).",
        )
    if others:
        raise UserError(
            "Keras model",
            expected="layers that change only their own variables",
            got="a layer that uses Keras' global generator or changes another layer's variable",
            remedy="Set self.seed = keras.random.SeedGenerator() in the layer and pass "
            "seed=self.seed to its draws.",
        )
    return output, after


def _uniform(key: tf.Tensor, shape: Any, minval: Any, maxval: Any, dtype: Any) -> tf.Tensor:
    return tf.cast(seeding.uniform(key, shape, minval, maxval), dtype)


def _normal(key: tf.Tensor, shape: Any, mean: Any, stddev: Any, dtype: Any) -> tf.Tensor:
    return tf.cast(mean + stddev * seeding.normal(key, shape), dtype)


@contextlib.contextmanager
def _own_draws() -> Iterator[None]:
    """Makes Keras' random functions of this thread draw as `seeding` does.

    Those that are left draw by TensorFlow's own operations, whose bits XLA changes.
    """
    random = importlib.import_module("keras.src.backend.tensorflow.random")
    floatx, me = module().config.floatx, threading.get_ident()

    def key(seed: Any) -> tf.Tensor:
        return random._cast_seed(random.draw_seed(seed))

    def uniform(
        shape: Any, minval: Any = 0.0, maxval: Any = 1.0, dtype: Any = None, seed: Any = None
    ) -> tf.Tensor:
        return _uniform(key(seed), shape, minval, maxval, dtype or floatx())

    def normal(
        shape: Any, mean: Any = 0.0, stddev: Any = 1.0, dtype: Any = None, seed: Any = None
    ) -> tf.Tensor:
        return _normal(key(seed), shape, mean, stddev, dtype or floatx())

    def dropout(inputs: tf.Tensor, rate: Any, noise_shape: Any = None, seed: Any = None) -> Any:
        shape = random._get_concrete_noise_shape(inputs, noise_shape)
        keep = seeding.uniform(key(seed), shape) >= tf.cast(rate, tf.float32)
        scale = tf.cast(1.0 / (1.0 - tf.cast(rate, tf.float32)), inputs.dtype)
        return inputs * tf.where(keep, scale, tf.zeros([], inputs.dtype))

    def of_this_thread(mine: Callable[..., Any], usual: Callable[..., Any]) -> Callable[..., Any]:
        def draw(*args: Any, **kwargs: Any) -> Any:
            return (mine if threading.get_ident() == me else usual)(*args, **kwargs)

        return draw

    replaced: dict[str, Callable[..., Any]] = {
        "uniform": uniform,
        "normal": normal,
        "dropout": dropout,
    }
    with _LOCK:
        usual = {name: getattr(random, name) for name in replaced}
        try:
            for name, mine in replaced.items():
                setattr(random, name, of_this_thread(mine, usual[name]))
            yield
        finally:
            for name, function in usual.items():
                setattr(random, name, function)


def _seed(key: tf.Tensor, variable: Any) -> tf.Tensor:
    return tf.cast(tf.bitcast(key, tf.uint32), variable.dtype)


def optimizer_config(optimizer: Any) -> dict[str, Any]:
    """Returns the settings of an optimizer that Keras 2 has too.

    Raises:
      UserError: For one that Keras 2 has not.
    """
    config = dict(optimizer.get_config())
    for name in ("loss_scale_factor", "gradient_accumulation_steps"):
        if config.pop(name, None) is not None:
            raise UserError(
                f"{type(optimizer).__name__} of Keras 3",
                expected=f"{name}=None",
                got=f"an optimizer with {name}",
                remedy="Leave it out, or use an optimizer from tfrl.learning.optimizers.",
            )
    return config
