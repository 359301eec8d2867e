"""The base of evolution strategies: a Gaussian with a mean, and its draws."""

import math

import tensorflow as tf

from tfrl import checks, seeding, struct
from tfrl.evolution.core import EvoOptimizer
from tfrl.xla import in_xla


@struct.dataclass
class MeanState(struct.Struct):
    """The mean, float32 [D]."""

    mean: tf.Tensor


@struct.logic_dataclass
class EvolutionStrategy(EvoOptimizer):
    """A search that moves a Gaussian; its state has the `mean`, float32 [D]."""

    def centre(self, search: MeanState) -> tf.Tensor:
        """Returns the mean."""
        return search.mean


def directions(key: tf.Tensor, pop_size: int, size: int, *, mirrored: bool) -> tf.Tensor:
    """Draws standard normals [P, D]; if mirrored, row P / 2 + i is minus row i."""
    if not mirrored:
        return seeding.normal(key, [pop_size, size])
    bits = seeding.uniform_bits(key, [pop_size // 2, size], tf.int32)
    if in_xla() and pop_size % 4 == 0:
        # XLA would compute the normals of both halves again; it stores the result of a loop.
        blocks = tf.reshape(bits, [2, pop_size // 4, size])
        drawn = tf.map_fn(seeding.normal_of, blocks, fn_output_signature=tf.float32)
        half = tf.reshape(drawn, [pop_size // 2, size])
    else:
        half = seeding.normal_of(bits)
    return tf.concat([half, -half], axis=0)


def default_pop_size(num_params: int) -> int:
    """Returns the usual population size of CMA-ES, Sep-CMA-ES, SNES and xNES, 4 + floor(3 log D).

    Source: Hansen 2016, equation 48, https://arxiv.org/abs/1604.00772.

    Args:
      num_params: The elements of one candidate, D.
    """
    return 4 + math.floor(3 * math.log(checks.at_least("num_params", num_params, 1)))
