"""Fitness shaping: weights of a generation's candidates by their fitness."""

from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf

from tfrl.ops.ranking import centered_ranks

# shaping(fitness [P], -inf for the last) -> float32 [P]
FitnessShaping = Callable[[tf.Tensor], tf.Tensor]

__all__ = [
    "FitnessShaping",
    "centered_ranks",
    "finite",
    "fitness_metrics",
    "lost_warning",
    "log_utilities",
    "standardized",
]


def fitness_metrics(fitness: tf.Tensor) -> tuple[dict[str, tf.Tensor], tf.Tensor]:
    """Returns what a generation tells of its fitness, and the place of the fittest.

    Args:
      fitness: float32 [P]; who has a number that is not finite is lost, and does not count.

    Returns:
      `{name: float32 scalar}`: `fitness_best`, `fitness_mean`, `fitness_std`, `lost_members`; and
      int64 scalar.
    """
    known = tf.math.is_finite(fitness)
    number = tf.reduce_sum(tf.cast(known, tf.float32))
    best = tf.argmax(tf.where(known, fitness, -float("inf")))
    mean = tf.reduce_sum(tf.where(known, fitness, 0.0)) / number
    variance = tf.reduce_sum(tf.where(known, tf.square(fitness - mean), 0.0)) / number
    metrics = {
        "fitness_best": tf.where(known, fitness, -float("inf"))[best],
        "fitness_mean": mean,
        "fitness_std": tf.sqrt(variance),
        "lost_members": tf.cast(tf.size(fitness), tf.float32) - number,
    }
    return metrics, best


def lost_warning(row: Mapping[str, Any]) -> str | None:
    """Returns what to say of a generation's row of metrics that has lost members, or None."""
    lost = row.get("lost_members", 0.0)
    if not lost:
        return None
    return (
        f"members lost at {int(row['env_steps']):,} env steps: {lost:.0f}. Their fitness is not "
        "finite, or their environment has failed. They are the last of their generation; the "
        "metric lost_members counts them."
    )


def finite(fitness: tf.Tensor) -> tf.Tensor:
    """The fitness itself, with the least finite one in place of -inf; 0 where none is finite.

    Args:
      fitness: float32 [P].
    """
    known = tf.math.is_finite(fitness)
    least = tf.reduce_min(tf.where(known, fitness, float("inf")))
    least = tf.where(tf.reduce_any(known), least, 0.0)
    return tf.where(known, fitness, least)


def standardized(fitness: tf.Tensor) -> tf.Tensor:
    """Fitness of mean 0 and standard deviation 1: (f - mean(f)) / (std(f) + 1e-8).

    Args:
      fitness: float32 [P]; a candidate at -inf counts as the worst finite one.
    """
    fitness = finite(fitness)
    centred = fitness - tf.reduce_mean(fitness)
    return centred / (tf.math.reduce_std(fitness) + 1e-8)


def log_utilities(fitness: tf.Tensor) -> tf.Tensor:
    """Utilities of natural evolution strategies: they sum to 0, and the better half has the most.

      u_k = max(0, log(P / 2 + 1) - log(k)) / sum - 1 / P,  k = 1 the best

    Source: Wierstra et al. 2014, section 3.1, http://jmlr.org/papers/v15/wierstra14a.html.

    Args:
      fitness: float32 [P]; candidates of equal fitness are ranked in their order.
    """
    size = fitness.shape[0]
    place = tf.argsort(tf.argsort(fitness, direction="DESCENDING", stable=True)) + 1
    raw = tf.maximum(0.0, tf.math.log(size / 2.0 + 1.0) - tf.math.log(tf.cast(place, tf.float32)))
    return raw / tf.reduce_sum(raw) - 1.0 / size
