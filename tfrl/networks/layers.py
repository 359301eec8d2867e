"""Dense layers, activations and initializers."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tfrl import checks, seeding
from tfrl.networks.core import Params

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
Initializer = Callable[[tf.Tensor, Sequence[int], float], tf.Tensor]
_NORM_EPSILON = 1e-5


def activation(name: str) -> Callable[[tf.Tensor], tf.Tensor]:
    """Returns the activation function of a name.

    Raises:
      UserError: For an unknown name; the nearest are suggested.
    """
    checks.one_of("activation", name, _ACTIVATIONS)
    return _ACTIVATIONS[name]


def fan_in(shape: Sequence[int]) -> int:
    """Returns the number of inputs per output of a kernel `[..., in, out]`."""
    return math.prod(shape[:-1])


def orthogonal(key: tf.Tensor, shape: Sequence[int], scale: float = 1.0) -> tf.Tensor:
    """Draws a uniformly random kernel with orthogonal columns (or rows, if fewer).

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
    checks.one_of("kernel_init", name, _INITIALIZERS)
    return _INITIALIZERS[name]


def init_dense(
    key: tf.Tensor, size_in: int, size_out: int, kernel_init: str, scale: float
) -> Params:
    """Makes `{"kernel": [size_in, size_out], "bias": [size_out]}`, the bias 0."""
    kernel = initializer(kernel_init)(seeding.stream(key, "kernel"), (size_in, size_out), scale)
    return {"kernel": kernel, "bias": tf.zeros([size_out])}


def dense(params: Params, x: tf.Tensor) -> tf.Tensor:
    """Returns x W + b as one matmul.

    Args:
      params: kernel `[in, out]` and bias `[out]`, or both with a leading axis P.
      x: `[N, in]`, or `[P, N, in]` if the parameters are stacked.
    """
    y = tf.matmul(x, params["kernel"])
    if params["kernel"].shape.rank == 2:
        return tf.nn.bias_add(y, params["bias"])
    return y + tf.expand_dims(params["bias"], 1)


def init_norm(size: int) -> Params:
    """Makes `{"scale": ones [size], "offset": zeros [size]}`."""
    return {"scale": tf.ones([size]), "offset": tf.zeros([size])}


def layer_norm(params: Params, x: tf.Tensor) -> tf.Tensor:
    """Returns scale (x - mean) / sqrt(variance + 1e-5) + offset over the last axis.

    Source: Ba et al. 2016, https://arxiv.org/abs/1607.06450.

    Args:
      params: scale and offset `[F]`, or `[P, F]`.
      x: `[N, F]`, or `[P, N, F]` if the parameters are stacked.
    """
    centred = x - tf.reduce_mean(x, axis=-1, keepdims=True)
    variance = tf.reduce_mean(tf.square(centred), axis=-1, keepdims=True)
    scale, offset = params["scale"], params["offset"]
    if scale.shape.rank == 2:
        scale, offset = tf.expand_dims(scale, 1), tf.expand_dims(offset, 1)
    return centred * tf.math.rsqrt(variance + _NORM_EPSILON) * scale + offset


def init_conv(
    key: tf.Tensor, size: int, channels_in: int, channels_out: int, kernel_init: str, scale: float
) -> Params:
    """Makes `{"kernel": [size, size, in, out], "bias": [out]}`, the bias 0."""
    shape = (size, size, channels_in, channels_out)
    kernel = initializer(kernel_init)(seeding.stream(key, "kernel"), shape, scale)
    return {"kernel": kernel, "bias": tf.zeros([channels_out])}


def conv(params: Params, x: tf.Tensor, stride: int, padding: str) -> tf.Tensor:
    """Convolves images; members of a population run one after the other.

    Args:
      params: kernel `[k, k, in, out]` and bias `[out]`, or both with a leading axis P.
      x: `[N, H, W, in]`, or `[P, N, H, W, in]` if the parameters are stacked.
      stride: The step in both directions.
      padding: "VALID" or "SAME".
    """
    kernel, bias = params["kernel"], params["bias"]
    if kernel.shape.rank == 5:
        members = zip(tf.unstack(x), tf.unstack(kernel), tf.unstack(bias), strict=True)
        return tf.stack([_conv(i, k, b, stride, padding) for i, k, b in members])
    return _conv(x, kernel, bias, stride, padding)


def _conv(x: tf.Tensor, kernel: Any, bias: Any, stride: int, padding: str) -> tf.Tensor:
    return tf.nn.bias_add(tf.nn.conv2d(x, kernel, stride, padding), bias)


def max_pool(x: tf.Tensor, size: int, stride: int) -> tf.Tensor:
    """Max-pools `[..., H, W, C]` with padding SAME."""
    lead = x.shape.rank - 3
    if lead == 1:
        return tf.nn.max_pool2d(x, size, stride, "SAME")
    y = tf.nn.max_pool2d(tf.reshape(x, [-1, *x.shape[lead:]]), size, stride, "SAME")
    return tf.reshape(y, tf.concat([tf.shape(x)[:lead], y.shape[1:]], 0))


def pixels(x: tf.Tensor, channels_first: bool) -> tf.Tensor:
    """Returns images as float32 `[..., H, W, C]`; uint8 is scaled from 0..255 to 0..1."""
    scaled = tf.cast(x, tf.float32)
    if x.dtype == tf.uint8:
        scaled *= 1.0 / 255.0
    if channels_first:
        rank = x.shape.rank
        scaled = tf.transpose(scaled, [*range(rank - 3), rank - 2, rank - 1, rank - 3])
    return scaled


def image_shape(shape: Sequence[int], channels_first: bool) -> tuple[int, int, int]:
    """Returns (H, W, C) of the shape of one image."""
    a, b, c = shape
    return (b, c, a) if channels_first else (a, b, c)
