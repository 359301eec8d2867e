"""Evaluation divided among the replicas of a strategy."""

from typing import Any

import tensorflow as tf

from tfrl import seeding
from tfrl.distribute.replicas import Replicas
from tfrl.evaluation.evaluator import Evaluator, compiled
from tfrl.evaluation.result import EvaluationResult
from tfrl.traces import counted_separately, logic_key, traces_of
from tfrl.types import Nest


def evaluate_on_replicas(
    evaluator: Evaluator, replicas: Replicas, agent_state: Nest, key: tf.Tensor, num_episodes: int
) -> EvaluationResult:
    """Runs episodes on every replica; compiled once per evaluator and number of episodes.

    Args:
      evaluator: The evaluator of one replica, with its share of the episodes.
      replicas: The replicas.
      agent_state: Values.
      key: int32 [2].
      num_episodes: Number of episodes to use.
    """
    notes = traces_of(logic_key((evaluator, replicas.strategy))).notes
    if "run" not in notes:
        notes["run"] = _compiled(evaluator, replicas)
    played = tf.nest.map_structure(lambda x: x[:num_episodes], notes["run"](agent_state, key))
    return evaluator.result(played)


def _compiled(evaluator: Evaluator, replicas: Replicas) -> Any:
    mode = evaluator.compile
    play: Any = evaluator.run if mode == "eager" else compiled(evaluator.run, mode)

    def own(agent_state: Nest, key: tf.Tensor) -> Nest:
        return replicas.gather(play(agent_state, seeding.fold_in(key, replicas.index())))

    def everywhere(agent_state: Nest, key: tf.Tensor) -> Nest:
        episodes = replicas.any_replica(replicas.run(own, agent_state, key))  # [R, episodes]
        return tf.nest.map_structure(lambda x: tf.reshape(x, [-1, *x.shape[2:]]), episodes)

    if mode == "eager":
        return everywhere
    return tf.function(counted_separately(everywhere), autograph=False)
