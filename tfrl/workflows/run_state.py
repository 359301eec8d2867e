"""The state of a run: one nest of values."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from tfrl import seeding, struct
from tfrl.ops._rows import where
from tfrl.types import Nest

# The counters in each row of metrics, in the order of `RunMetrics.counters`.
ROW_COUNTERS = ("iterations", "env_steps", "episodes", "learner_steps")


@struct.dataclass
class RunMetrics(struct.Struct):
    """The counters of a run, and metrics of its last episodes.

    Attributes:
      iterations: int64, iterations so far.
      env_steps: int64, valid agent steps so far.
      episodes: int64, episodes that have ended.
      evaluations: int64, evaluations so far; each plays different episodes.
      episode_return: float32, mean return of the last iteration with ended episodes; NaN before.
      episode_length: float32, mean length of the same episodes in agent steps; NaN before.
      learner: `{name: int64}` of the learner: "learner_steps", "skipped_steps", "env_steps" (for
        its schedules), "weights_seq_no"; and "key", int32 [2].
      learning_start: int64, for a run with a replay buffer: env steps at which the updates begin;
        -1 once they have begun.
    """

    iterations: tf.Tensor
    env_steps: tf.Tensor
    episodes: tf.Tensor
    evaluations: tf.Tensor
    episode_return: tf.Tensor
    episode_length: tf.Tensor
    learner: dict[str, Any]
    learning_start: Any = None

    @classmethod
    def start(cls) -> RunMetrics:
        """Returns the counters of a fresh run."""
        zero, nan = tf.constant(0, tf.int64), tf.constant(np.nan, tf.float32)
        counts = dict.fromkeys(("iterations", "env_steps", "episodes", "evaluations"), zero)
        return cls(**counts, episode_return=nan, episode_length=nan, learner={})

    def counted(
        self,
        env_steps: Any,
        episodes: Any = 0,
        episode_return: Any = np.nan,
        episode_length: Any = np.nan,
    ) -> RunMetrics:
        """Returns the counters after one more iteration.

        Args:
          env_steps: Valid agent steps of the iteration.
          episodes: Episodes that ended in it.
          episode_return: Their mean return; ignored without ended episodes.
          episode_length: Their mean length; ignored without ended episodes.
        """
        episodes = tf.cast(episodes, tf.int64)
        some = episodes > 0
        return self.replace(
            iterations=self.iterations + 1,
            env_steps=self.env_steps + tf.cast(env_steps, tf.int64),
            episodes=self.episodes + episodes,
            episode_return=where(some, tf.cast(episode_return, tf.float32), self.episode_return),
            episode_length=where(some, tf.cast(episode_length, tf.float32), self.episode_length),
        )

    def counters(self) -> tf.Tensor:
        """Returns the `ROW_COUNTERS`, int64 [4]."""
        learner_steps = self.learner.get("learner_steps", tf.constant(0, tf.int64))
        if isinstance(learner_steps, tf.Variable):
            learner_steps = learner_steps.read_value()
        counts = [self.iterations, self.env_steps, self.episodes]
        return tf.stack([*counts, tf.identity(learner_steps)])


@struct.dataclass
class State(struct.Struct):
    """Everything that changes in a run: one nest, whose leaves are tensors or tf.Variables.

    `setup` of a workflow creates variables for the leaves that training changes in place. States
    can be copied leaf by leaf and stacked (`struct.stack`). Every method of a workflow but
    `OffPolicyWorkflow.iterate` also takes a state of tensors: it continues over new variables.

    Attributes:
      key: int32 [2]; iteration i draws from `fold_in(key, i)`.
      metrics: Counters.
      agent_state: The AgentState, or `{module_id: AgentState}` of an agent of several policies.
      opt_state: `{optimizer_name: {path: leaf}}`, or these by module id; see `LearnerState`.
      env_state: The state of the environments; for environments on the host their last outputs.
      replay_buffer_state: `{path: leaf}` of a replay buffer in the graph; else empty.
      carry: The recurrent state of the agent, or None.
      prefetched: Within a call of a runner, the next iteration's batch and the keys of its update
        and rollout, if drawn ahead. None outside of calls.
    """

    key: tf.Tensor
    metrics: RunMetrics
    agent_state: Nest
    opt_state: Any
    env_state: Nest
    replay_buffer_state: Any
    carry: Nest = None
    prefetched: Nest = None

    def iteration_key(self, ahead: int | tf.Tensor = 0) -> tf.Tensor:
        """Returns the key of the next iteration, int32 [2]; or of one `ahead` of it."""
        return seeding.fold_in(self.key, self.metrics.iterations + ahead)


def keys_of(key: tf.Tensor) -> list[tf.Tensor]:
    """Splits the key of an iteration: for its rollout, and for its update."""
    return tf.unstack(seeding.split(key, 2))
