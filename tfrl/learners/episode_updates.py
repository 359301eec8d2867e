"""Updates from episodes: batches by the connector pipeline, observation statistics."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

from tfrl import struct
from tfrl.distribute.replicas import Replicas
from tfrl.distribute.statistics import merge_over_replicas
from tfrl.episodes import MultiAgentEpisode, SingleAgentEpisode
from tfrl.errors import UserError
from tfrl.learners import batches as batches_lib
from tfrl.types import Nest, Trajectory

if TYPE_CHECKING:
    from tfrl.learners.learner import Learner


def batches_of(learner: Learner, episodes: Sequence[Any]) -> tuple[dict[str, Nest], dict[str, Any]]:
    """Runs the learner connector pipeline over episodes.

    Returns:
      `{module_id: rows}`, and the connectors' shared data: metrics, the episodes of each module.
    """
    from tfrl.learners.connectors import MODULES_TO_TRAIN, default_learner_pipeline

    episodes = as_episodes(episodes)
    # A function `policies_to_train` is called once there are rows.
    asked_later = callable(learner.policies_to_train)
    trained = [
        m
        for m, module in learner.modules.items()
        if (module.updates if asked_later else learner.should_module_be_updated(m))
    ]
    if learner.learner_connector is None:
        own = {m: learner.modules[m] for m in trained}
        learner.learner_connector = default_learner_pipeline(own)
    shared_data: dict[str, Any] = {MODULES_TO_TRAIN: trained}
    batches = learner.learner_connector(
        modules=learner.modules,
        states={m: learner.module_state(m) for m in learner.modules},
        batch={},
        episodes=episodes,
        shared_data=shared_data,
    )
    return batches, shared_data


def as_episodes(episodes: Any) -> list[Any]:
    """Returns the episodes as a list, at least one of them with a step."""
    kinds = (SingleAgentEpisode, MultiAgentEpisode)
    if isinstance(episodes, kinds):
        episodes = [episodes]
    listed = list(episodes) if isinstance(episodes, Iterable) else [episodes]
    wrong = sorted({type(e).__name__ for e in listed if not isinstance(e, kinds)})
    if wrong:
        raise UserError(
            "episodes",
            expected="SingleAgentEpisodes and MultiAgentEpisodes",
            got=", ".join(wrong),
            remedy="Create them from a rollout with SingleAgentEpisode.from_trajectory.",
        )
    if not sum(len(e) for e in listed):
        raise batches_lib.empty("episodes")
    return listed


def observe_episodes(learner: Learner, episodes: Mapping[str, Sequence[Any]]) -> None:
    """Merges the observations of episodes into the modules' normalisers.

    Called after the update, so that the losses use the behaviour statistics. All processes'
    observations are merged.

    Args:
      learner: The `Learner`, whose variables change.
      episodes: `{module_id: [SingleAgentEpisode, ...]}`.
    """
    for module_id, own in episodes.items():
        module, state = learner.modules[module_id], learner.module_state(module_id)
        if state.normalizer is None or not hasattr(module, "update_normalizer"):
            continue
        before = struct.values(state)
        after = module.update_normalizer(before, _joined(own))
        common = _common(learner.replicas, before.normalizer, after.normalizer)
        learner.assign(module_id, before, after.replace(normalizer=common))


def _joined(episodes: Sequence[Any]) -> Trajectory:
    """All steps as one trajectory `[T, 1, ...]`, padded to a power of two with invalid rows."""
    parts = [episode.to_trajectory() for episode in episodes if len(episode)]
    steps = sum(part.reward.shape[0] for part in parts)
    missing = (1 << max(3, (steps - 1).bit_length())) - steps

    def join(*leaves: Any) -> tf.Tensor:
        joined = np.concatenate([np.asarray(x) for x in leaves])
        return tf.constant(np.pad(joined, [(0, missing)] + [(0, 0)] * (joined.ndim - 1)))

    joined = tf.nest.map_structure(join, *parts)
    return joined.replace(valid=tf.range(steps + missing)[:, tf.newaxis] < steps)


def _common(replicas: Replicas, before: Any, after: Any) -> Any:
    if replicas.num_workers == 1:
        return after

    def merge(before: Any, after: Any) -> Any:
        # The replicas of one process have the same episodes: use the first.
        first = replicas.local_index() == 0
        own = tf.nest.map_structure(lambda b, a: tf.where(first, a, b), before, after)
        return merge_over_replicas(replicas, before, own)

    return replicas.any_replica(replicas.run_traced(merge, before, after))
