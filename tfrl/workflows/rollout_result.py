"""The result of a rollout: experience, statistics, metrics and counts."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from tfrl import struct
from tfrl.agents.core import Agent
from tfrl.distribute.replicas import Replicas
from tfrl.distribute.statistics import merge_over_replicas
from tfrl.envs.wrappers.rewards import OUTLIER
from tfrl.metrics.accumulator import EPISODE_METRICS, OBS_OUTLIERS, OUTLIERS, REWARD_OUTLIERS
from tfrl.types import EnvState, Nest, Trajectory

# Whether a rollout would have made the statistics of observations non-finite.
NONFINITE_STATISTICS = "nonfinite/statistics"


@struct.dataclass
class RolloutResult(struct.Struct):
    """What the rollout stage gives to the update.

    Attributes:
      batch: Rows for the learner, or experience for a replay buffer.
      normalizer: The agent's statistics with this experience merged in, or None.
      metrics: `{name: float32 scalar}` of the rollout.
      counts: `{name: int64 scalar}`: `env_steps` (valid rows) and `episodes` that ended.
      env_state: The environments after the rollout.
      carry: The recurrent state after it, or None.
    """

    batch: Nest
    normalizer: Nest
    metrics: dict[str, tf.Tensor]
    counts: dict[str, tf.Tensor]
    env_state: EnvState | None = None
    carry: Nest = None


def episode_metrics(
    trajectory: Trajectory, info_fields: Sequence[str]
) -> tuple[dict[str, tf.Tensor], tf.Tensor]:
    """Returns means over the episodes that ended in a rollout, and the number of these.

    Args:
      trajectory: `[T, B, ...]`.
      info_fields: Names in `info` whose values at ends are metrics too.

    Returns:
      `{name: float32 scalar}`, zeros without an episode; and an int64 scalar.
    """
    ended = (trajectory.termination | trajectory.truncation) & trajectory.valid
    ends = tf.cast(ended, tf.float32)
    count, extras = tf.reduce_sum(ends), trajectory.env_extras
    some = tf.maximum(count, 1.0)
    lengths = tf.cast(extras["episode_length"], tf.float32)
    # Several agents have the return of their team.
    returns = tf.add_n(tf.nest.flatten(extras["episode_return"]))
    metrics = {
        "episode_return": tf.reduce_sum(ends * returns) / some,
        "episode_length": tf.reduce_sum(ends * lengths) / some,
    }
    for name in info_fields:
        at_ends = tf.where(ended, tf.cast(extras[name], tf.float32), 0.0)
        metrics[f"episode_{name}"] = tf.reduce_sum(at_ends) / some
    return metrics, tf.cast(count, tf.int64)


def outlier_metrics(
    agent: Agent, agent_state: Nest, trajectory: Trajectory
) -> dict[str, tf.Tensor]:
    """Returns how many observations and rewards the running statistics have clipped."""
    obs = getattr(agent, "count_outliers", lambda *_: None)(agent_state, trajectory)
    rewards = (trajectory.env_extras or {}).get(OUTLIER)
    counts = {
        OBS_OUTLIERS: obs,
        REWARD_OUTLIERS: None if rewards is None else tf.math.count_nonzero(rewards),
    }
    return {n: tf.cast(x, tf.float32) for n, x in counts.items() if x is not None}


def finite_statistics(before: Nest, after: Nest) -> tuple[Nest, dict[str, tf.Tensor]]:
    """Returns `after`, or `before` if `after` is not finite; and a metric that says so, 1 or 0."""
    leaves = [x for x in tf.nest.flatten(after) if x.dtype.is_floating]
    finite = tf.reduce_all([tf.reduce_all(tf.math.is_finite(x)) for x in leaves])
    kept = tf.nest.map_structure(lambda x, y: tf.where(finite, x, y), after, before)
    return kept, {NONFINITE_STATISTICS: tf.cast(~finite, tf.float32)}


def merge_results(
    replicas: Replicas,
    out: RolloutResult,
    normalizer: Nest,
    env_state: Nest,
    info_fields: Sequence[str],
) -> RolloutResult:
    """Returns a replica's result with the counts, metrics and statistics of all replicas.

    Args:
      replicas: The replicas; called on each of them.
      out: The result of one.
      normalizer: The statistics before the rollout.
      env_state: The environments before the rollout; None where they are not merged.
      info_fields: As of `episode_metrics`.
    """
    counts = replicas.sum(out.counts)
    shares = {}
    for name in ("env_steps", "episodes"):
        own = tf.cast(out.counts[name], tf.float32)
        shares[name] = own / tf.maximum(tf.cast(counts[name], tf.float32), 1.0)
    of_episodes = {*EPISODE_METRICS, *map("episode_{}".format, info_fields)}
    weighted = {
        name: x
        if name in OUTLIERS  # counts
        else x * shares["episodes" if name in of_episodes else "env_steps"]
        for name, x in out.metrics.items()
    }
    return out.replace(
        counts=counts,
        metrics=replicas.sum(weighted),
        normalizer=merge_over_replicas(replicas, normalizer, out.normalizer),
        env_state=merge_over_replicas(replicas, env_state, out.env_state),
    )
