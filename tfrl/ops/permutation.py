"""Keyed pseudo-random permutations without a sort.

A Feistel network permutes the pairs (l, r) of Z_a x Z_b by rounds l += f(r) mod a and
r += f(l) mod b, for any function f; with a b >= n as near to n as possible, and with cycle walking
for the few images beyond n, it permutes 0..n-1. Small sizes, for which the network is visibly
non-uniform, use a sort.
"""

import math

import numpy as np
import tensorflow as tf

from tfrl import checks, seeding

# At this size a sort is as fast as the network, and uniform.
_SORT_UP_TO = 256
_ROUNDS = 8
# Maximum difference of the network's halves, so that each round still mixes.
_LARGEST_ASPECT = 8
# Shifts and factors of the 32-bit mix.
_MIX = ((16, 0x7FEB352D), (15, 0x846CA68B))


def permutation(key: tf.Tensor, n: int) -> tf.Tensor:
    """Makes a pseudo-random permutation of 0..n-1, the same bits in eager, graph and XLA.

    Source: Black and Rogaway 2002, sections 4 and 5 (generalised Feistel network and cycle
    walking), https://web.cs.ucdavis.edu/~rogaway/papers/subset.pdf; the round function is a
    32-bit mix after https://github.com/skeeto/hash-prospector.

    Args:
      key: int32 [2].
      n: Size, from 1 to 2^31 - 1 (static).

    Returns:
      int32 [n].

    Raises:
      UserError: When n is out of range.
    """
    checks.at_least("n", n, 1, maximum=2**31 - 1)
    if tf.executing_eagerly():  # a hundred small operations would take milliseconds
        return tf.constant(_on_host(key, n), tf.int32)
    if n <= _SORT_UP_TO:
        bits = seeding.uniform_bits(key, [n], tf.int32)
        return tf.argsort(bits, direction="DESCENDING")  # Ascending would negate the least int32.
    return tf.cast(_feistel_permutation(key, n), tf.int32)


def _feistel_permutation(key: tf.Tensor, n: int) -> tf.Tensor:
    """uint32 [n]: the network on a domain of a b >= n, walked into 0..n-1."""
    sizes = _domain(n)
    size = sizes[0] * sizes[1]
    round_keys = tf.unstack(seeding.uniform_bits(key, [_ROUNDS], tf.uint32))
    images = _encrypt(_uint_range(0, size), round_keys, sizes)
    if size == n:
        return images
    # A row whose image z is >= n takes the end of the walk from z. There are at most size - n such
    # z: walk these, and write the result to the row of each. A z whose preimage is beyond n belongs
    # to no row, and its cycle may not reach below n: it starts at 0, an end, and its write is cut
    # off.
    outside = _uint_range(n, size)
    limit = tf.constant(n, tf.uint32)
    came_from = _decrypt(outside, round_keys, sizes)
    start = tf.where(came_from < limit, outside, tf.zeros_like(outside))

    def walk(z: tf.Tensor) -> tuple[tf.Tensor]:
        return (tf.where(z >= limit, _encrypt(z, round_keys, sizes), z),)

    (inside,) = tf.while_loop(lambda z: tf.reduce_any(z >= limit), walk, (start,))
    # int32 here: GPUs have no scatter of uint32.
    walked = tf.tensor_scatter_nd_update(
        tf.cast(images, tf.int32),
        tf.cast(came_from, tf.int32)[:, tf.newaxis],
        tf.cast(inside, tf.int32),
    )
    return walked[:n]


def _on_host(key: tf.Tensor, n: int) -> np.ndarray:
    """`permutation` in NumPy."""
    if n <= _SORT_UP_TO:
        bits = seeding.uniform_bits(key, [n], tf.int32).numpy().astype(np.int64)
        return np.argsort(-bits, kind="stable")
    a, b = (np.uint32(size) for size in _domain(n))
    round_keys = seeding.uniform_bits(key, [_ROUNDS], tf.uint32).numpy()

    def mixed(x: np.ndarray) -> np.ndarray:
        for shift, factor in _MIX:
            x = (x ^ (x >> np.uint32(shift))) * np.uint32(factor)
        return x ^ (x >> np.uint32(16))

    def encrypted(x: np.ndarray) -> np.ndarray:
        left, right = x // b, x % b
        for i, k in enumerate(round_keys):
            if i % 2 == 0:
                left = (left + mixed(right ^ k) % a) % a
            else:
                right = (right + mixed(left ^ k) % b) % b
        return left * b + right

    images = encrypted(np.arange(n, dtype=np.uint32))
    while len(beyond := np.flatnonzero(images >= n)):
        images[beyond] = encrypted(images[beyond])
    return images


def _domain(n: int) -> tuple[int, int]:
    """The nearly square factors (a, b) with the smallest product >= n."""
    root = math.isqrt(n - 1) + 1
    lowest = max(2, math.isqrt(n // _LARGEST_ASPECT))
    return min(((a, -(-n // a)) for a in range(root, lowest - 1, -1)), key=lambda ab: ab[0] * ab[1])


def _uint_range(start: int, stop: int) -> tf.Tensor:
    return tf.cast(tf.range(start, stop, dtype=tf.int64), tf.uint32)


def _mix(x: tf.Tensor) -> tf.Tensor:
    """A 32-bit bijection: each input bit flips about half of the output bits."""
    for shift, factor in _MIX:
        x = tf.bitwise.bitwise_xor(x, tf.bitwise.right_shift(x, tf.constant(shift, tf.uint32)))
        x = x * tf.constant(factor, tf.uint32)
    return tf.bitwise.bitwise_xor(x, tf.bitwise.right_shift(x, tf.constant(16, tf.uint32)))


def _mod(x: tf.Tensor, size: int) -> tf.Tensor:
    """The remainder by `size`; by a mask for a power of two, which is twice as fast."""
    if size & (size - 1) == 0:
        return tf.bitwise.bitwise_and(x, tf.constant(size - 1, tf.uint32))
    return tf.math.floormod(x, tf.constant(size, tf.uint32))


def _round(half: tf.Tensor, round_key: tf.Tensor, modulus: int) -> tf.Tensor:
    """The value that a round adds to the other half."""
    return _mod(_mix(tf.bitwise.bitwise_xor(half, round_key)), modulus)


def _encrypt(x: tf.Tensor, round_keys: list[tf.Tensor], sizes: tuple[int, int]) -> tf.Tensor:
    """The network on uint32 x < a b."""
    a, b = sizes
    left = tf.math.floordiv(x, tf.constant(b, tf.uint32))
    right = x - left * b
    for i, k in enumerate(round_keys):
        if i % 2 == 0:
            left = _mod(left + _round(right, k, a), a)
        else:
            right = _mod(right + _round(left, k, b), b)
    return left * b + right


def _decrypt(x: tf.Tensor, round_keys: list[tf.Tensor], sizes: tuple[int, int]) -> tf.Tensor:
    """The inverse of `_encrypt`."""
    a, b = sizes
    left = tf.math.floordiv(x, tf.constant(b, tf.uint32))
    right = x - left * b
    for i, k in reversed(list(enumerate(round_keys))):
        if i % 2 == 0:
            left = _mod(left + (a - _round(right, k, a)), a)
        else:
            right = _mod(right + (b - _round(left, k, b)), b)
    return left * b + right
