"""The batch of on-policy losses, and its construction from a rollout."""

import dataclasses
from collections.abc import Mapping

import tensorflow as tf

from tfrl import struct
from tfrl.errors import UserError
from tfrl.types import Nest, Trajectory

# Items with one row per sequence of any length.
_NOT_PER_STEP = ("state_in", "seq_lens")


@struct.dataclass
class PolicyBatch(struct.Struct):
    """Rows for the loss of an on-policy agent.

    With memory a row is a sequence: N is `[S, T]` below.

    Attributes:
      obs: Observations `[N, ...]`, normalised by the behaviour statistics.
      action: Actions, `[N, ...]`.
      log_prob: float32 `[N]`, under the behaviour policy and its normaliser.
      advantage: float32 `[N]`.
      value_target: float32 `[N]`.
      value: float32 `[N]`, V(o_t) when the rows were collected.
      mask: bool `[N]`, the valid rows, or None for all.
      state_in: The recurrent state before a sequence, leaves `[S, ...]`, or None.
      starts: bool `[S, T]`, the first steps of episodes, or None for none.
    """

    obs: Nest
    action: Nest
    log_prob: tf.Tensor
    advantage: tf.Tensor
    value_target: tf.Tensor
    value: tf.Tensor
    mask: tf.Tensor | None = None
    state_in: Nest = None
    starts: tf.Tensor | None = None


def rows(nest: Nest) -> Nest:
    """Makes rows `[T * B, ...]` of leaves `[T, B, ...]`."""
    return tf.nest.map_structure(
        lambda x: tf.reshape(x, [x.shape[0] * x.shape[1], *x.shape[2:]]), nest
    )


def sequences(nest: Nest, length: int) -> Nest:
    """Makes sequences `[T / length * B, length, ...]` of leaves `[T, B, ...]`."""

    def cut(x: tf.Tensor) -> tf.Tensor:
        steps, batch, *rest = x.shape
        chunks = tf.reshape(x, [steps // length, length, batch, *rest])
        axes = [0, 2, 1, *range(3, chunks.shape.rank)]
        return tf.reshape(tf.transpose(chunks, axes), [steps // length * batch, length, *rest])

    return tf.nest.map_structure(cut, nest)


def swapped(x: tf.Tensor) -> tf.Tensor:
    """Exchanges the two leading axes."""
    return tf.transpose(x, [1, 0, *range(2, x.shape.rank)])


def time_major(batch: Nest) -> Nest:
    """Makes leaves `[T, S, ...]` of `[S, T, ...]`, except items with one row per sequence."""
    if isinstance(batch, Mapping):
        names = list(batch)
    else:
        names = [f.name for f in dataclasses.fields(batch)]
    values = {n: batch[n] if isinstance(batch, Mapping) else getattr(batch, n) for n in names}
    changed = {
        n: tf.nest.map_structure(swapped, x)
        for n, x in values.items()
        if n not in _NOT_PER_STEP and x is not None
    }
    return batch.replace(**changed)


def first_of_each(nest: Nest, length: int) -> Nest:
    """Takes the first step of each sequence, leaves `[T / length * B, ...]`."""
    return rows(tf.nest.map_structure(lambda x: x[::length], nest))


def episode_starts(trajectory: Trajectory) -> tf.Tensor:
    """Tells which rows `[T, B]` begin an episode inside the rollout.

    Never the first row: its stored carry is already right.
    """
    breaks = tf.logical_or(trajectory.termination, trajectory.truncation)
    if trajectory.valid is not None:  # an autoreset row precedes the first of an episode
        breaks = tf.logical_or(breaks, tf.logical_not(trajectory.valid))
    return tf.concat([tf.zeros_like(breaks[:1]), breaks[:-1]], 0)


def check_length(name: str, length: int | None, steps: int) -> int:
    """Returns the length of the parts of a rollout; None means all of it.

    Raises:
      UserError: If it does not divide the steps of the rollout.
    """
    length = steps if length is None else length
    if steps % length:
        fits = [n for n in range(1, steps + 1) if steps % n == 0]
        near = sorted(sorted(fits, key=lambda n: abs(n - length))[:2])
        raise UserError(
            name,
            expected=f"a divisor of the {steps} steps of a rollout",
            got=length,
            remedy=f"The nearest divisors are {' and '.join(map(str, near))}.",
        )
    return length
