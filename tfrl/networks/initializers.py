"""Initialisers of kernels, from philox keys.

`lecun_uniform` is the same bits in eager, graph and XLA. The others agree to float32 accuracy: the
normals that they begin with differ in the last places, and so do the QR kernels, which therefore
work in float64.
"""

import math
from collections.abc import Callable, Sequence

import tensorflow as tf

from tfrl import seeding
from tfrl.errors import UserError, did_you_mean

Initializer = Callable[[tf.Tensor, Sequence[int], float], tf.Tensor]


def fan_in(shape: Sequence[int]) -> int:
    """Returns how many inputs one output of a kernel `[..., in, out]` has."""
    return math.prod(shape[:-1])


def orthogonal(key: tf.Tensor, shape: Sequence[int], scale: float = 1.0) -> tf.Tensor:
    """Draws a kernel with orthogonal columns (rows, if there are fewer), uniformly among these.

    Q^T Q = scale^2 I, for the kernel as a matrix `[prod(shape[:-1]), shape[-1]]`.

    Source: Saxe et al. 2014, https://arxiv.org/abs/1312.6120; for the signs, Mezzadri 2007,
    https://arxiv.org/abs/math-ph/0609050.

    Args:
      key: int32 [2].
      shape: The kernel's shape, the output axis last.
      scale: The gain.

    Returns:
      float32 of `shape`.
    """
    rows, columns = fan_in(shape), shape[-1]
    tall = (max(rows, columns), min(rows, columns))
    q, r = tf.linalg.qr(tf.cast(seeding.normal(key, tall), tf.float64))
    diagonal = tf.linalg.diag_part(r)
    q *= tf.where(diagonal < 0, tf.constant(-1.0, tf.float64), tf.constant(1.0, tf.float64))
    if rows < columns:
        q = tf.transpose(q)
    return tf.reshape(tf.cast(scale * q, tf.float32), shape)


def lecun_normal(key: tf.Tensor, shape: Sequence[int], scale: float = 1.0) -> tf.Tensor:
    """Draws from N(0, scale^2 / fan_in).

    Source: LeCun et al. 1998, section 4.6, http://yann.lecun.com/exdb/publis/pdf/lecun-98b.pdf.
    """
    return seeding.normal(key, shape) * (scale / math.sqrt(fan_in(shape)))


def lecun_uniform(key: tf.Tensor, shape: Sequence[int], scale: float = 1.0) -> tf.Tensor:
    """Draws from U(-a, a) with a = scale sqrt(3 / fan_in), of variance scale^2 / fan_in."""
    limit = scale * math.sqrt(3.0 / fan_in(shape))
    return seeding.uniform(key, shape, -limit, limit)


_INITIALIZERS: dict[str, Initializer] = {
    "lecun_normal": lecun_normal,
    "lecun_uniform": lecun_uniform,
    "orthogonal": orthogonal,
}


def initializer(name: str) -> Initializer:
    """Returns the initialiser of a name, a function of key, shape and scale.

    Raises:
      UserError: For an unknown name; the nearest are suggested.
    """
    if name not in _INITIALIZERS:
        raise UserError(
            "kernel_init",
            expected=f"one of {', '.join(_INITIALIZERS)}",
            got=repr(name),
            remedy=did_you_mean(str(name), _INITIALIZERS),
        )
    return _INITIALIZERS[name]
