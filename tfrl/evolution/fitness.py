"""Fitness shaping: weights of candidates by their fitness."""

from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf

from tfrl.ops.ranking import centered_ranks

# shaping(fitness [P], -inf ranks last) -> float32 [P]
FitnessShaping = Callable[[tf.Tensor], tf.Tensor]

__all__ = [
    "FitnessShaping",
    "centered_ranks",
    "finite",
    "fitness_metrics",
    "log_utilities",
    "lost_warning",
    "mean_of_finite",
    "standardized",
]


def mean_of_finite(values: tf.Tensor) -> tf.Tensor:
    """Returns the mean of the finite values of a float32 tensor, scalar; NaN without any."""
    known = tf.math.is_finite(values)
    number = tf.reduce_sum(tf.cast(known, tf.float32))
    return tf.reduce_sum(tf.where(known, values, 0.0)) / number


def fitness_metrics(fitness: tf.Tensor) -> tuple[dict[str, tf.Tensor], tf.Tensor]:
    """Returns metrics of a generation's fitness, and the index of the fittest.

    Args:
      fitness: float32 [P]; members with non-finite fitness are lost and do not count.

    Returns:
      `{name: float32 scalar}`: `fitness_best`, `fitness_mean`, `fitness_std`, `lost_members`; and
      the index, int64 scalar.
    """
    known = tf.math.is_finite(fitness)
    number = tf.reduce_sum(tf.cast(known, tf.float32))
    best = tf.argmax(tf.where(known, fitness, -float("inf")))
    mean = mean_of_finite(fitness)
    variance = tf.reduce_sum(tf.where(known, tf.square(fitness - mean), 0.0)) / number
    metrics = {
        "fitness_best": tf.where(known, fitness, -float("inf"))[best],
        "fitness_mean": mean,
        "fitness_std": tf.sqrt(variance),
        "lost_members": tf.cast(tf.size(fitness), tf.float32) - number,
    }
    return metrics, best


def lost_warning(row: Mapping[str, Any]) -> str | None:
    """Returns a warning about the lost members and episodes of a generation's metrics, or None."""
    lost, own = row.get("lost_members", 0.0), row.get("lost_agent_episodes", 0.0)
    if own and not lost:
        return (
            f"episodes of the agent lost at {int(row['env_steps']):,} env steps: {own:.0f}. Their "
            "environment has failed, or a number was not finite. Their steps are not stored; the "
            "metric lost_agent_episodes counts them."
        )
    if not lost:
        return None
    return (
        f"members lost at {int(row['env_steps']):,} env steps: {lost:.0f}. Their fitness is not "
        "finite, or their environment has failed. They rank last in their generation, and a "
        "generation of lost members alone leaves the search as it was; the metric lost_members "
        "counts them."
    )


def finite(fitness: tf.Tensor) -> tf.Tensor:
    """Replaces non-finite fitness with the least finite one; 0 if none is finite.

    Args:
      fitness: float32 [P].
    """
    known = tf.math.is_finite(fitness)
    least = tf.reduce_min(tf.where(known, fitness, float("inf")))
    least = tf.where(tf.reduce_any(known), least, 0.0)
    return tf.where(known, fitness, least)


def standardized(fitness: tf.Tensor) -> tf.Tensor:
    """Standardizes fitness to mean 0 and standard deviation 1: (f - mean(f)) / (std(f) + 1e-8).

    Args:
      fitness: float32 [P]; -inf counts as the worst finite fitness.
    """
    fitness = finite(fitness)
    centred = fitness - tf.reduce_mean(fitness)
    return centred / (tf.math.reduce_std(fitness) + 1e-8)


def log_utilities(fitness: tf.Tensor) -> tf.Tensor:
    """Returns the utilities of natural evolution strategies, which sum to 0.

      u_k = max(0, log(P / 2 + 1) - log(k)) / sum - 1 / P,  k = 1 the best

    Source: Wierstra et al. 2014, section 3.1, http://jmlr.org/papers/v15/wierstra14a.html.

    Args:
      fitness: float32 [P]; candidates of equal fitness are ranked in their order.
    """
    size = fitness.shape[0]
    place = tf.argsort(tf.argsort(fitness, direction="DESCENDING", stable=True)) + 1
    raw = tf.maximum(0.0, tf.math.log(size / 2.0 + 1.0) - tf.math.log(tf.cast(place, tf.float32)))
    return raw / tf.reduce_sum(raw) - 1.0 / size
