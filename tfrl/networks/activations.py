"""Activations by name, so that networks can be compared by value."""

from collections.abc import Callable

import tensorflow as tf

from tfrl.errors import UserError, did_you_mean

_ACTIVATIONS: dict[str, Callable[[tf.Tensor], tf.Tensor]] = {
    "elu": tf.nn.elu,
    "gelu": tf.nn.gelu,
    "identity": lambda x: x,
    "leaky_relu": tf.nn.leaky_relu,
    "relu": tf.nn.relu,
    "selu": tf.nn.selu,
    "sigmoid": tf.sigmoid,
    "silu": lambda x: x * tf.sigmoid(x),
    "softplus": tf.nn.softplus,
    "swish": lambda x: x * tf.sigmoid(x),
    "tanh": tf.tanh,
}


def activation(name: str) -> Callable[[tf.Tensor], tf.Tensor]:
    """Returns the activation function of a name.

    Raises:
      UserError: For an unknown name; the nearest are suggested.
    """
    if name not in _ACTIVATIONS:
        raise UserError(
            "activation",
            expected=f"one of {', '.join(_ACTIVATIONS)}",
            got=repr(name),
            remedy=did_you_mean(str(name), _ACTIVATIONS),
        )
    return _ACTIVATIONS[name]
