"""Pareto dominance: fronts, crowding distance, and the knee of a front."""

from typing import Any

import tensorflow as tf

from tfrl import checks


def _objectives(name: str, fitness: Any) -> tf.Tensor:
    """Returns the fitness of many objectives in float32."""
    checks.rank(f"fitness of {name}", fitness, 2)
    return tf.cast(tf.convert_to_tensor(fitness), tf.float32)


def non_dominated_ranks(fitness: tf.Tensor) -> tf.Tensor:
    """Ranks candidates by fronts: 0 for non-dominated candidates, 1 for the next front, ...

    a dominates b if it is as good in every objective and better in one. The comparison of all pairs
    takes O(P^2 M) and each front O(P^2).

    Source: Deb et al. 2002, section III-A, https://doi.org/10.1109/4235.996017.

    Args:
      fitness: float32 [P, M].

    Returns:
      int32 [P].
    """
    fitness = _objectives("non_dominated_ranks", fitness)
    size = fitness.shape[0]
    one, other = fitness[:, None], fitness[None]
    dominates = tf.reduce_all(one >= other, axis=2) & tf.reduce_any(one > other, axis=2)
    dominates = tf.cast(dominates, tf.float32)  # [P, P], row over column

    def peel(rank: tf.Tensor, ranks: tf.Tensor, left: tf.Tensor) -> tuple[tf.Tensor, ...]:
        dominators = tf.linalg.matvec(dominates, tf.cast(left, tf.float32), transpose_a=True)
        front = left & (dominators < 0.5)
        return rank + 1, tf.where(front, rank, ranks), left & ~front

    _, ranks, _ = tf.while_loop(
        lambda rank, ranks, left: tf.reduce_any(left),
        peel,
        (tf.constant(0), tf.zeros([size], tf.int32), tf.ones([size], tf.bool)),
        maximum_iterations=size,
    )
    return ranks


def pareto_front(fitness: tf.Tensor) -> tf.Tensor:
    """Returns which candidates are finite and non-dominated.

    Args:
      fitness: float32 [P, M].

    Returns:
      bool [P].
    """
    fitness = _objectives("pareto_front", fitness)
    known = tf.reduce_all(tf.math.is_finite(fitness), axis=1)
    ranked = tf.where(known[:, None], fitness, -float("inf"))
    return known & (non_dominated_ranks(ranked) == 0)


def crowding_distance(fitness: tf.Tensor, ranks: tf.Tensor | None = None) -> tf.Tensor:
    """Returns the crowding distance of each candidate within its front.

      d_i = sum_m (f_m(next) - f_m(previous)) / (max f_m - min f_m)

    It is infinite at the ends of a front, and so for a front of one or two candidates. An objective
    that is constant over the front counts 0.

    Source: Deb et al. 2002, section III-B, https://doi.org/10.1109/4235.996017.

    Args:
      fitness: float32 [P, M].
      ranks: int32 [P], the front of each candidate; None for one front.

    Returns:
      float32 [P].
    """
    fitness = _objectives("crowding_distance", fitness)
    size = fitness.shape[0]
    ranks = tf.zeros([size], tf.int32) if ranks is None else tf.convert_to_tensor(ranks)
    checks.leading_shape("ranks of crowding_distance", ranks, [size], "the fitness")
    members = tf.gather(tf.math.unsorted_segment_sum(tf.ones([size]), ranks, size), ranks)
    distance = tf.zeros([size])
    for objective in tf.unstack(fitness, axis=1):
        distance += _gaps(objective, ranks)
    return tf.where(members <= 2, float("inf"), distance)


def _gaps(f: tf.Tensor, ranks: tf.Tensor) -> tf.Tensor:
    """Returns the relative gap between each candidate's neighbours in one objective, [P]."""
    size = f.shape[0]
    order = tf.argsort(-f, stable=True)
    order = tf.gather(order, tf.argsort(tf.gather(ranks, order), stable=True))  # front by front
    f, ranks_sorted = tf.gather(f, order), tf.gather(ranks, order)
    greatest = tf.gather(tf.math.unsorted_segment_max(f, ranks_sorted, size), ranks_sorted)
    least = tf.gather(tf.math.unsorted_segment_min(f, ranks_sorted, size), ranks_sorted)
    width = greatest - least
    new_front = ranks_sorted[1:] != ranks_sorted[:-1]
    is_end = tf.concat([[True], new_front], 0) | tf.concat([new_front, [True]], 0)
    gap = tf.concat([f[:1], f[:-1]], 0) - tf.concat([f[1:], f[-1:]], 0)
    gap = tf.where(is_end, float("inf"), gap / tf.where(width > 0, width, 1.0))
    differs = (width > 0) & tf.math.is_finite(width)  # a front may have only -inf
    gap = tf.where(differs, gap, 0.0)
    return tf.gather(gap, tf.argsort(order))


def knee_point(fitness: tf.Tensor) -> tf.Tensor:
    """Returns the index of the knee of the front, a compromise between the objectives.

    The knee is the candidate of the front with the greatest sum of the objectives, each scaled to
    0..1 over the front. The index is 0 if no candidate is finite.

    Args:
      fitness: float32 [P, M].

    Returns:
      int64 scalar.
    """
    fitness = _objectives("knee_point", fitness)
    front = pareto_front(fitness)[:, None]
    least = tf.reduce_min(tf.where(front, fitness, float("inf")), axis=0)
    greatest = tf.reduce_max(tf.where(front, fitness, -float("inf")), axis=0)
    width = tf.where(greatest > least, greatest - least, 1.0)
    scaled = tf.where(front, (fitness - least) / width, -1.0)
    return tf.argmax(tf.reduce_sum(scaled, axis=1))
