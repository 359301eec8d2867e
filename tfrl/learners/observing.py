"""Observation statistics of modules that are trained on episodes."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfrl import struct
from tfrl.distribute.statistics import merge_over_replicas
from tfrl.types import Trajectory


def observe_episodes(learner: Any, episodes: Mapping[str, Sequence[Any]]) -> None:
    """Merges the observations of episodes into the normalisers of the modules that have one.

    Called after the update, so that the losses see what the behaviour policy saw. Processes merge
    what each of them has seen.

    Args:
      learner: The `Learner`, whose variables change.
      episodes: `{module_id: [SingleAgentEpisode, ...]}`.
    """
    for module_id, own in episodes.items():
        module, state = learner.modules[module_id], learner.module_state(module_id)
        if state.normalizer is None or not hasattr(module, "observe"):
            continue
        before = struct.values(state)
        after = module.observe(before, _joined(own))
        common = _common(learner.replicas, before.normalizer, after.normalizer)
        learner.assign(module_id, before, after.replace(normalizer=common))


def _joined(episodes: Sequence[Any]) -> Trajectory:
    """All steps as one trajectory `[T, 1, ...]`, filled up to a power of two with invalid rows."""
    parts = [episode.to_trajectory() for episode in episodes if len(episode)]
    steps = sum(part.reward.shape[0] for part in parts)
    missing = (1 << max(3, (steps - 1).bit_length())) - steps

    def join(*leaves: Any) -> tf.Tensor:
        whole = np.concatenate([np.asarray(x) for x in leaves])
        return tf.constant(np.pad(whole, [(0, missing)] + [(0, 0)] * (whole.ndim - 1)))

    joined = tf.nest.map_structure(join, *parts)
    return joined.replace(valid=tf.range(steps + missing)[:, tf.newaxis] < steps)


def _common(replicas: Any, before: Any, after: Any) -> Any:
    if replicas.num_workers == 1:
        return after

    def merge(before: Any, after: Any) -> Any:
        # The replicas of one process have seen the same episodes: the first one counts.
        first = replicas.local_index() == 0
        own = tf.nest.map_structure(lambda b, a: tf.where(first, a, b), before, after)
        return merge_over_replicas(replicas, before, own)

    return replicas.first(replicas.run_once(merge, before, after))
