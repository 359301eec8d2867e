"""The torso for an observation spec."""

from typing import Any

import tensorflow as tf

from tfrl import checks, seeding, specs, struct
from tfrl.errors import UserError, did_you_mean
from tfrl.networks.conv import ImpalaCNN, NatureCNN
from tfrl.networks.core import Nest, Params, Torso
from tfrl.networks.mlp import MLP, features


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
      obs_key: Use only this item of a Dict observation ("a/b" for a nested one); None for all
        leaves, concatenated in `tf.nest` order.
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
        """Returns the item `obs_key` of a nest of observations or specs, or all of it."""
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
        """Whether the body takes the unflattened observation: an image for a CNN."""
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
                "spec", expected=f"the spec of the torso, {self.obs_spec!r}", got=repr(spec)
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


@struct.logic_dataclass
class StateActionTorso(Torso):
    """Encodes the observation, then applies a body to the features and the action together.

    It takes the tuple (observation, action); the action is any nest of float vectors.

    Attributes:
      encoder: Observations to features: `make_torso(obs_spec)` for images; with `hidden=()` flat
        observations go into the body unchanged.
      body: Features and action to features.
    """

    encoder: Torso
    body: Torso

    def _body_spec(self, spec: Nest) -> tf.TensorSpec:
        obs, action = spec
        return tf.TensorSpec([self.encoder.output_size(obs) + specs.flat_dim(action)], tf.float32)

    def output_size(self, spec: Nest) -> int:
        """Returns that of the body."""
        return self.body.output_size(self._body_spec(spec))

    def init(self, key: tf.Tensor, spec: Nest) -> Params:
        """Makes `{"encoder", "body"}`.

        Args:
          key: int32 [2].
          spec: The tuple (observation spec, action spec).
        """
        return {
            "encoder": self.encoder.init(seeding.stream(key, "encoder"), spec[0]),
            "body": self.body.init(seeding.stream(key, "body"), self._body_spec(spec)),
        }

    def apply(self, params: Params, x: Nest) -> tf.Tensor:
        """Returns the body's output for (observations, actions) `[..., *spec shape]`."""
        obs, action = x
        hidden = self.encoder.apply(params["encoder"], obs)
        return self.body.apply(params["body"], features((hidden, action)))

    def apply_training(self, params: Params, x: Nest, key: tf.Tensor) -> tuple[tf.Tensor, Params]:
        """Returns the output with both parts in training mode, and the parameters after."""
        obs, action = x
        keys = seeding.streams(key, ("encoder", "body"))
        hidden, encoder = self.encoder.apply_training(params["encoder"], obs, keys["encoder"])
        y, body = self.body.apply_training(params["body"], features((hidden, action)), keys["body"])
        return y, {"encoder": encoder, "body": body}


_KINDS: dict[str, type[Any]] = {"mlp": MLP, "nature_cnn": NatureCNN, "impala_cnn": ImpalaCNN}


def is_image(spec: Any) -> bool:
    """Tells whether a leaf is an image: uint8 of rank 3."""
    return specs.is_spec(spec) and spec.dtype == tf.uint8 and spec.shape.rank == 3


def _channels_first(spec: tf.TensorSpec) -> bool:
    """Images have fewer channels (or stacked frames) than rows or columns."""
    first, _, last = spec.shape.as_list()
    return first < last


def make_torso(
    obs_spec: Nest,
    kind: str = "auto",
    obs_key: str | None = None,
    one_hot: bool = True,
    hidden: tuple[int, ...] | None = None,
    activation: str | None = None,
    kernel_init: str | None = None,
    kernel_scale: float | None = None,
    layer_norm: bool = False,
) -> Torso:
    """Makes the torso that fits an observation spec.

    Args:
      obs_spec: A spec or a nest of specs.
      kind: "mlp", "nature_cnn", "impala_cnn", or "auto": the Nature-CNN for one image (uint8 of
        rank 3), else an MLP.
      obs_key: Take this item of a Dict observation only.
      one_hot: Encode Discrete and MultiDiscrete leaves as one-hot vectors.
      hidden: Sizes of the dense layers; a CNN has one. None for the network's default.
      activation: None for the network's default; also below.
      kernel_init: "orthogonal", "lecun_normal" or "lecun_uniform".
      kernel_scale: The gain of the initialiser.
      layer_norm: Layer normalisation in an MLP.

    Raises:
      UserError: For an unknown kind or key, or a kind that does not fit the spec.
    """
    # The torso's own check of the key has the message.
    chosen = ObservationTorso(obs_spec=obs_spec, body=MLP(), obs_key=obs_key).choose(obs_spec)
    if kind == "auto":
        kind = _auto(chosen)
    checks.one_of("kind of torso", kind, ["auto", *_KINDS])
    options: dict[str, Any] = {
        "hidden": hidden,
        "activation": activation,
        "kernel_init": kernel_init,
        "kernel_scale": kernel_scale,
    }
    options = {name: value for name, value in options.items() if value is not None}
    if kind == "mlp":
        options["layer_norm"] = layer_norm
    else:
        options.update(_image_options(chosen, hidden))
    return ObservationTorso(
        obs_spec=obs_spec, body=_KINDS[kind](**options), obs_key=obs_key, one_hot=one_hot
    )


def _auto(chosen: Nest) -> str:
    if is_image(chosen):
        return "nature_cnn"
    images = [path for path, leaf in struct.paths(chosen).items() if is_image(leaf)]
    if images:
        raise UserError(
            "observation",
            expected="at most one image",
            got=f"images {', '.join(images)} among other items",
            remedy=f"Choose one with obs_key={images[0]!r}, or make_torso(kind='mlp') for all.",
        )
    return "mlp"


def _image_options(chosen: Nest, hidden: tuple[int, ...] | None) -> dict[str, Any]:
    if not specs.is_spec(chosen) or chosen.shape.rank != 3:
        raise UserError(
            "observation",
            expected="one image of rank 3 for a CNN",
            got=repr(chosen),
            remedy="Choose one with obs_key=..., or use kind='mlp'.",
        )
    options: dict[str, Any] = {"channels_first": _channels_first(chosen)}
    if hidden is not None:
        if len(hidden) != 1:
            raise UserError(
                "hidden", expected="one size: a CNN has one dense layer", got=repr(hidden)
            )
        options["hidden"] = hidden[0]
    return options
