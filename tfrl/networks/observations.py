"""From any nest of observations to the input of a torso."""

import tensorflow as tf

from tfrl import specs, struct
from tfrl.errors import UserError, did_you_mean
from tfrl.networks.core import Nest, Params, Torso
from tfrl.networks.mlp import features


def _encoded_size(spec: tf.TensorSpec, one_hot: bool) -> int:
    if one_hot and isinstance(spec, specs.DiscreteSpec):
        return spec.num_values
    if one_hot and isinstance(spec, specs.MultiDiscreteSpec):
        return int(spec.nvec.sum())
    return specs.flat_dim(spec)


def _encode(x: tf.Tensor, spec: tf.TensorSpec, one_hot: bool) -> tf.Tensor:
    """Returns float32 `[..., F]` of one leaf `[..., *spec shape]`."""
    x = tf.convert_to_tensor(x)
    if one_hot and isinstance(spec, specs.DiscreteSpec):
        return tf.one_hot(tf.cast(x, tf.int64) - spec.start, spec.num_values)
    rank, flat = spec.shape.rank, specs.flat_dim(spec)
    if rank == 0:
        x = x[..., tf.newaxis]
    elif rank > 1:
        lead = x.shape.rank - rank
        x = tf.ensure_shape(
            tf.reshape(x, tf.concat([tf.shape(x)[:lead], [flat]], 0)), [*x.shape[:lead], flat]
        )
    if one_hot and isinstance(spec, specs.MultiDiscreteSpec):
        index = tf.cast(x, tf.int64) - spec.start.reshape(-1)
        counts = spec.nvec.reshape(-1).tolist()
        return tf.concat([tf.one_hot(index[..., i], n) for i, n in enumerate(counts)], -1)
    return tf.cast(x, tf.float32)


@struct.logic_dataclass
class ObservationTorso(Torso):
    """Chooses, flattens, encodes and concatenates observations, then applies a torso.

    Attributes:
      obs_spec: The nest of specs of one observation.
      body: The torso that takes the result.
      obs_key: Take this item of a Dict observation ("a/b" for a nested one) and leave the rest;
        None for all leaves, concatenated in `tf.nest` order.
      one_hot: Encode Discrete and MultiDiscrete leaves as one-hot vectors, not as numbers.
    """

    obs_spec: Nest
    body: Torso
    obs_key: str | None = None
    one_hot: bool = True

    def __post_init__(self) -> None:
        """Checks that the key exists."""
        self.choose(self.obs_spec)

    def choose(self, nest: Nest) -> Nest:
        """Returns the item `obs_key` of a nest of observations or specs; all of it without key."""
        for name in self.obs_key.split("/") if self.obs_key is not None else ():
            if not isinstance(nest, dict) or name not in nest:
                known = list(nest) if isinstance(nest, dict) else []
                raise UserError(
                    "obs_key",
                    expected="the name of an item of the observation",
                    got=repr(self.obs_key),
                    remedy=did_you_mean(name, known) if known else "The observation has no items.",
                )
            nest = nest[name]
        return nest

    def _as_it_is(self) -> bool:
        """Whether the body takes the observation unflattened: an image for a CNN."""
        spec = self.choose(self.obs_spec)
        return self.body.input_rank > 1 and specs.is_spec(spec)

    def _body_spec(self) -> tf.TensorSpec:
        spec = self.choose(self.obs_spec)
        if self._as_it_is():
            return spec
        size = sum(_encoded_size(s, self.one_hot) for s in tf.nest.flatten(spec))
        return tf.TensorSpec([size], tf.float32)

    def output_size(self, spec: Nest) -> int:
        """Returns that of the body."""
        return self.body.output_size(self._body_spec())

    def init(self, key: tf.Tensor, spec: Nest = None) -> Params:
        """Makes the body's parameters.

        Args:
          key: int32 [2].
          spec: Must equal `obs_spec`, or be None.
        """
        if spec is not None and spec != self.obs_spec:
            raise UserError(
                "spec",
                expected=f"that of the torso, {self.obs_spec!r}",
                got=repr(spec),
                remedy="Make the torso with the specs of the same environment.",
            )
        return self.body.init(key, self._body_spec())

    def apply(self, params: Params, x: Nest) -> tf.Tensor:
        """Returns the body's output for observations `[..., *obs_spec shape]`."""
        return self.body.apply(params, self._body_input(x))

    def apply_training(self, params: Params, x: Nest, key: tf.Tensor) -> tuple[tf.Tensor, Params]:
        """Returns the body's output in training mode, and its parameters after the call."""
        return self.body.apply_training(params, self._body_input(x), key)

    def _body_input(self, x: Nest) -> tf.Tensor:
        spec, x = self.choose(self.obs_spec), self.choose(x)
        if self._as_it_is():
            return x
        tf.nest.assert_same_structure(spec, x, check_types=False)
        leaves = zip(tf.nest.flatten(x), tf.nest.flatten(spec), strict=True)
        return features([_encode(v, s, self.one_hot) for v, s in leaves])
