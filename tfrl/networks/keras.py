"""A user's Keras model as a network."""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfrl import keras, seeding, specs, struct
from tfrl.errors import UserError
from tfrl.networks.core import Nest, Params, Torso, fold


@struct.logic_dataclass
class KerasNetwork(Torso):
    """A `tf.keras.Model` (functional, sequential or subclassed) as `init` and `apply`.

    Parameters are `{"params": {...}, "state": {...}}`: the trainable weights, and the others, such
    as the moving statistics of BatchNormalization, with names like "000_kernel" that do not depend
    on Keras' global name counters. No gradient flows to `state` and no optimizer trains it; losses
    call `apply_training`, and the Learner writes back the `state` that it returns. Random layers
    (Dropout, GaussianNoise, ...) draw from the key argument, the same bits on every path.

    Not supported: regularisation losses of layers, and custom layers that draw from `tf.random`.
    `call` methods must not be decorated with tf.function.

    Attributes:
      model_fn: A function without arguments that makes the model; networks with the same function
        are equal.
      spec: The nest of specs of one input, as the model takes it.
      template: The model that is traced; its own variables are never used.
    """

    model_fn: Callable[[], keras.api.Model]
    spec: Nest
    template: keras.StatelessModel = struct.derived()

    def __post_init__(self) -> None:
        """Makes the model and its variables once."""
        self.template = keras.StatelessModel(*keras.build(self.model_fn, self.spec))

    def output_size(self, spec: Nest) -> int:
        """Returns the size of the model's output.

        Raises:
          UserError: If it is not one vector.
        """
        output = self.template.output
        if not specs.is_spec(output) or output.shape.rank != 1:
            raise UserError(
                "Keras model",
                expected="one output of shape [batch, features] for a torso",
                got=repr(output),
                remedy="Flatten the output in the model.",
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
                "spec",
                expected=f"the spec of the KerasNetwork, {self.spec!r}",
                got=repr(spec),
                remedy="Create the network with the spec of the same environment.",
            )
        words = tf.get_static_value(key)
        if words is None:
            raise UserError(
                "KerasNetwork.init",
                expected="a call outside tf.function, since Keras initializes variables",
                got="a key whose value is not known while tracing",
                remedy="Create the parameters eagerly and pass them in.",
            )
        low, high = (int(w) % 2**32 for w in words)
        with keras.seeded(low + (high << 32)):
            model, _ = keras.build(self.model_fn, self.spec)
        trainable, state = keras.weights(model)
        return {
            "params": _named([keras.tf_variable(v) for v in trainable]),
            "state": _named([keras.tf_variable(v) for v in state]),
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
        """Calls the model on unchanged inputs, with the model's own leading axes.

        Args:
          params: As from `init`, not stacked.
          x: The inputs; `apply` passes one batch axis, but here there may be others.
          training: See `apply`.
          key: See `apply`.

        Returns:
          The output, and the new `state`.
        """
        trainable = [params["params"][name] for name in sorted(params["params"])]
        names = sorted(params["state"])
        state = [tf.stop_gradient(params["state"][name]) for name in names]
        output, after = self.template.call([*trainable, *state], x, training, key)
        return output, {n: tf.stop_gradient(v) for n, v in zip(names, after, strict=True)}


def _named(variables: list[tf.Variable]) -> dict[str, tf.Tensor]:
    return {name: tf.convert_to_tensor(v) for name, v in keras.named_variables(variables).items()}
