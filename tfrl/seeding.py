"""One seed, named stateless streams: philox keys that are the same bits on every path.

A key is an int32 tensor of shape [2]. Every draw of the library comes from a key through
the integers of `tf.random.stateless_uniform` with `alg="philox"`, which are the same bits in eager,
graph and XLA, on every device (its floats are not). They are drawn here by the operations beneath
it, of which a draw takes 5 instead of 16, and one where XLA has nothing to do with it. Keys are
never reused: derive children with `split`, `fold_in` or `stream`.

Keys by row, int32 [B, 2], draw by row: `uniform(keys, [B, 3])`. Row i depends on key i only, so an
environment has the same outcomes in every batch. These draws hash the keys with integer operations:
they are the numbers of SplitMix64 (Steele, Lea and Flood 2014,
https://doi.org/10.1145/2660193.2660195) with the key as its seed.
"""

import contextlib
import math
import zlib
from typing import Any

import numpy as np
import tensorflow as tf

from tfrl.errors import UserError
from tfrl.xla import may_be_xla

ALG = "philox"
_PHILOX = 1  # as the operations call it
_FOLD = (0x3C6EF372, 0x1BD11BDA)
_SCRAMBLE = 0x02461E293EC8F720  # the key by which TensorFlow makes key and counter of a seed
# SplitMix64: the step of its state, and shifts and factors of its mix.
_GAMMA = 0x9E3779B97F4A7C15
_MIX = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))


def key(seed: int | tf.Tensor) -> tf.Tensor:
    """Makes a key from a seed.

    Args:
      seed: A Python int (its low 64 bits count) or an integer scalar tensor.

    Returns:
      An int32 tensor of shape [2].
    """
    if isinstance(seed, int | np.integer) and not isinstance(seed, bool):
        seed = int(seed)
        bits = seed % 2**64
        words = [bits & 0xFFFFFFFF, bits >> 32]
        return tf.constant([w - 2**32 if w >= 2**31 else w for w in words], tf.int32)
    if not (tf.is_tensor(seed) and seed.dtype.is_integer and seed.shape.rank == 0):
        raise UserError(
            "seed",
            expected="an integer, or a scalar integer tensor",
            got=repr(seed),
            remedy="Pass an integer such as 0.",
        )
    return _words(seed)


def as_key(key_or_seed: Any) -> tf.Tensor:
    """Returns the key int32 [2] of a key or a seed.

    Raises:
      UserError: For anything else.
    """
    if isinstance(key_or_seed, int | np.integer) and not isinstance(key_or_seed, bool):
        return key(key_or_seed)
    got = repr(key_or_seed)
    with contextlib.suppress(TypeError, ValueError):
        tensor = tf.convert_to_tensor(key_or_seed)
        if tensor.dtype.is_integer and tensor.shape == [2]:
            return tf.cast(tensor, tf.int32)
        got = f"{tensor.dtype.name} of shape {tuple(tensor.shape)}"
    raise UserError(
        "key",
        expected="an int32 tensor of shape [2], or a seed",
        got=got,
        remedy="Create a key with tfrl.seeding.key(0), or leave it out.",
    )


def _words(data: Any) -> tf.Tensor:
    """The low and high 32-bit words of an integer as int32 [..., 2]."""
    return tf.bitcast(tf.cast(data, tf.int64), tf.int32)


def split(key: tf.Tensor, num: int = 2) -> tf.Tensor:
    """Makes `num` independent keys out of one.

    Args:
      key: int32 [2].
      num: How many keys (static).

    Returns:
      int32 [num, 2]; unpack with `tf.unstack` or by iterating over a Python range.
    """
    return uniform_bits(key, [num, 2], tf.int32)


def fold_in(key: tf.Tensor, data: int | tf.Tensor) -> tf.Tensor:
    """Makes the child key number `data` of a key; different numbers give different keys.

    Args:
      key: int32 [2].
      data: An integer scalar (an iteration, a replica, an environment index); 64 bits count.

    Returns:
      int32 [2].
    """
    number = globals()["key"](data) if isinstance(data, int) else _words(data)
    return tf.bitwise.bitwise_xor(_children(key), number)


def _children(key: tf.Tensor) -> tf.Tensor:
    """What all children of a key are made of, int32 [2]."""
    # Apart from the draws of the key itself, of which `split` and the others make use.
    folded = tf.bitwise.bitwise_xor(key, tf.constant(_FOLD, tf.int32))
    return uniform_bits(folded, [2], tf.int32)


def stream(key: tf.Tensor, name: str) -> tf.Tensor:
    """Makes the named stream of a key, the same in every process and version.

    Args:
      key: int32 [2].
      name: A name such as "rollout" or "minibatch".

    Returns:
      int32 [2].
    """
    return streams(key, (name,))[name]


def streams(key: tf.Tensor, names: tuple[str, ...] | list[str]) -> dict[str, tf.Tensor]:
    """Makes `{name: stream(key, name)}`."""
    children = _children(key)
    number = globals()["key"]
    return {
        name: tf.bitwise.bitwise_xor(children, number(zlib.crc32(name.encode()))) for name in names
    }


def next_keys(keys: tf.Tensor) -> tf.Tensor:
    """Returns the keys of the next step, int32 [B, 2], for draws by row.

    It counts in the high word, since `fold_in` numbers rows in the low one: no two rows and steps
    have the same key. The draws of adjacent keys are independent.
    """
    return keys + tf.constant([0, 1], tf.int32)


def uniform(key: tf.Tensor, shape: Any, minval: Any = 0.0, maxval: Any = 1.0) -> tf.Tensor:
    """Draws float32 uniforms from `minval` to `maxval`, the same bits everywhere.

    Made of 24 random bits each, because TensorFlow's own conversion of bits to floats differs
    between its kernels and XLA.

    Args:
      key: int32 [2], or keys by row [B, 2].
      shape: Shape of the result; [B, ...] by row.
      minval: Least value, a number or a tensor that broadcasts.
      maxval: Bound of the values, likewise; reached only by rounding, never in [0, 1).
    """
    if isinstance(minval, float) and isinstance(maxval, float) and minval == -maxval:
        bits = tf.bitwise.right_shift(uniform_bits(key, shape, tf.int32), 8)  # [-2^23, 2^23)
        return (tf.cast(bits, tf.float32) + 0.5) * 2.0**-23 * maxval
    bits = tf.bitwise.right_shift(uniform_bits(key, shape), tf.constant(8, tf.uint32))
    if isinstance(minval, float) and isinstance(maxval, float) and (minval, maxval) == (0.0, 1.0):
        return tf.cast(bits, tf.float32) * 2.0**-24
    # In float64 the product is exact, so that XLA's fused multiply-add rounds as others do.
    low, high = tf.cast(minval, tf.float32), tf.cast(maxval, tf.float32)
    width = tf.cast(high - low, tf.float64)
    unit = tf.cast(bits, tf.float64) * 2.0**-24
    return tf.cast(tf.cast(low, tf.float64) + width * unit, tf.float32)


def normal(key: tf.Tensor, shape: Any) -> tf.Tensor:
    """Draws float32 standard normals, within +-6.3.

      z = sqrt(2) erfinv(u), u uniform in (-1, 1) with 32 bits

    In float64, because the implementations of erfinv differ in their last bits, which then round
    to the same float32 (none differed in 2 million between eager and XLA).

    Args:
      key: int32 [2], or keys by row [B, 2].
      shape: Shape of the result; [B, ...] by row.
    """
    return normal_of(uniform_bits(key, shape, tf.int32))


def normal_of(bits: tf.Tensor) -> tf.Tensor:
    """Returns the float32 standard normals that `normal` makes of random bits, int32."""
    u = (tf.cast(bits, tf.float64) + 0.5) * 2.0**-31
    return tf.cast(math.sqrt(2.0) * tf.math.erfinv(u), tf.float32)


def randint(key: tf.Tensor, shape: Any, minval: Any, maxval: Any) -> tf.Tensor:
    """Draws int32 uniforms in [minval, maxval); keys [B, 2] draw by row."""
    minval, maxval = (tf.cast(x, tf.int32) for x in (minval, maxval))
    if _by_row(key):
        width = tf.cast(maxval - minval, tf.uint32)
        return minval + tf.cast(uniform_bits(key, shape) % width, tf.int32)
    if not may_be_xla():
        return tf.raw_ops.StatelessRandomUniformInt(
            shape=_shape(shape), seed=key, minval=minval, maxval=maxval
        )
    own, counter = _key_and_counter(key)
    return tf.raw_ops.StatelessRandomUniformIntV2(
        shape=_shape(shape), key=own, counter=counter, alg=_PHILOX, minval=minval, maxval=maxval
    )


def uniform_bits(key: tf.Tensor, shape: Any, dtype: tf.DType = tf.uint32) -> tf.Tensor:
    """Draws integers with all bits random; keys [B, 2] draw by row.

    `dtype` is int32, uint32, int64 or uint64.
    """
    if _by_row(key):
        return _bits_by_row(key, list(shape), dtype)
    if not may_be_xla():
        return tf.raw_ops.StatelessRandomUniformFullInt(shape=_shape(shape), seed=key, dtype=dtype)
    own, counter = _key_and_counter(key)
    return tf.raw_ops.StatelessRandomUniformFullIntV2(
        shape=_shape(shape), key=own, counter=counter, alg=_PHILOX, dtype=dtype
    )


def _by_row(key: tf.Tensor) -> bool:
    """Whether these are keys by row."""
    return tf.TensorShape(key.shape).rank == 2


def _bits_by_row(keys: tf.Tensor, shape: list[int], dtype: tf.DType) -> tf.Tensor:
    """Draws the numbers 1, 2, ... of SplitMix64 from each row's seed; of 64 bits the high ones."""
    rows, *rest = shape
    numbers = np.arange(1, math.prod(rest) + 1, dtype=np.uint64).reshape(rest)
    seeds = tf.reshape(tf.bitcast(keys, tf.uint64), [rows] + [1] * len(rest))
    bits = seeds + tf.constant(numbers * np.uint64(_GAMMA))
    for shift, factor in _MIX:
        bits = _xor_shifted(bits, shift) * tf.constant(np.uint64(factor))
    bits = _xor_shifted(bits, 31)
    if dtype.size == 4:
        bits = tf.bitwise.right_shift(bits, tf.constant(np.uint64(32)))
    return tf.cast(bits, dtype)


def _xor_shifted(bits: tf.Tensor, shift: int) -> tf.Tensor:
    shifted = tf.bitwise.right_shift(bits, tf.constant(np.uint64(shift)))
    return tf.bitwise.bitwise_xor(bits, shifted)


def _key_and_counter(key: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Key, uint64 [1], and counter, uint64 [2], as `tf.random.stateless_uniform` makes them.

    The operations that take a seed make the same inside, but for those of XLA, which extend
    negative words without their sign: other bits than everywhere else.
    """
    mixed = tf.raw_ops.StatelessRandomUniformFullIntV2(
        shape=[2],
        key=tf.constant(np.array([_SCRAMBLE], np.uint64)),
        counter=tf.cast(key, tf.uint64),
        alg=_PHILOX,
        dtype=tf.uint64,
    )
    # An array: of these two numbers in a list TensorFlow makes floats first, with NumPy 2.
    low_is_zero = tf.constant(np.array([0, 2**64 - 1], np.uint64))
    return mixed[:1], tf.bitwise.bitwise_and(mixed, low_is_zero)


def _shape(shape: Any) -> Any:
    """A shape as the operations take it."""
    return shape.as_list() if isinstance(shape, tf.TensorShape) else shape
