"""The torso for an observation spec."""

from typing import Any

import tensorflow as tf

from tfrl import specs, struct
from tfrl.errors import UserError, did_you_mean
from tfrl.networks.conv import NatureCNN
from tfrl.networks.core import Nest, Torso
from tfrl.networks.impala import ImpalaCNN
from tfrl.networks.mlp import MLP
from tfrl.networks.observations import ObservationTorso

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
      hidden: Sizes of the dense layers; a CNN takes one. None for the network's default.
      activation: None for the network's default, as the following.
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
    if kind not in _KINDS:
        raise UserError(
            "kind of torso",
            expected=f"auto or one of {', '.join(_KINDS)}",
            got=repr(kind),
            remedy=did_you_mean(str(kind), [*_KINDS, "auto"]),
        )
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
            expected="one image, or no image",
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
                "hidden",
                expected="one size: a CNN has one dense layer",
                got=repr(hidden),
                remedy="Give for example (512,).",
            )
        options["hidden"] = hidden[0]
    return options
