"""What a learner is told by the collectors of a distributed run."""

from typing import Any, Protocol

import tensorflow as tf

from tfrl import struct
from tfrl.ops import statistics
from tfrl.types import Nest, Trajectory
from tfrl.workflows.rollout_result import RolloutResult
from tfrl.workflows.run_state import State

# The policy extra of an item: the learner steps behind the parameters that chose its action.
POLICY_VERSION = "policy_version"


@struct.dataclass
class Collected(struct.Struct):
    """What all collectors have played since they were asked last.

    Attributes:
      env_steps: int64 scalar, items of the replay table.
      episodes: int64 scalar, those that have ended.
      episode_return: float32 scalar, their mean; 0 without any.
      episode_length: float32 scalar, likewise.
      metrics: float32 scalars by name, of the collectors.
      seen: The `RunningStatistics` of the observations; None for an agent that keeps none.
    """

    env_steps: Any
    episodes: Any
    episode_return: Any
    episode_length: Any
    metrics: Any
    seen: Nest = None

    def as_result(self, normalizer: Nest) -> RolloutResult:
        """Returns it as a rollout whose experience is in the buffer already.

        Args:
          normalizer: The agent's statistics of observations before it.
        """
        if self.seen is not None:
            obs = tf.nest.map_structure(tf.convert_to_tensor, self.seen)
            normalizer = statistics.merge(normalizer, obs)
        return RolloutResult(
            batch=None,
            normalizer=normalizer,
            metrics={
                "episode_return": tf.identity(self.episode_return),
                "episode_length": tf.identity(self.episode_length),
                **{name: tf.identity(value) for name, value in self.metrics.items()},
            },
            counts={
                "env_steps": tf.identity(self.env_steps),
                "episodes": tf.identity(self.episodes),
            },
            env_state=None,
        )


@struct.dataclass
class CollectedRollouts(struct.Struct):
    """Rollouts of several collectors, for a workflow that learns from each once.

    Attributes:
      trajectory: The `Trajectory` of all of them, `[T, B, ...]`.
      metrics: float32 scalars by name, of the collectors.
    """

    trajectory: Trajectory
    metrics: Any


class Collectors(Protocol):
    """What a workflow asks of the collectors of its run.

    Attributes:
      wait_seconds: How long a call may wait for them.
    """

    wait_seconds: float = 0.0

    def begin(self, state: State) -> None:
        """Called with the state before each call of several iterations."""

    def play(
        self, agent_state: Any, env_state: Nest, carry: Nest, key: tf.Tensor, *, waits: bool
    ) -> tuple[Nest, Nest, Nest]:
        """Returns what was played since the last call, in the place of a rollout.

        A `Collected` where experience goes to a replay buffer, else `CollectedRollouts`.

        Args:
          agent_state: The agent's, to be handed to the collectors now and then.
          env_state: As in a rollout; given back.
          carry: Likewise.
          key: Ignored.
          waits: Whether to wait until something was played.
        """

    def blank(self) -> Nest:
        """Returns a `Trajectory` of zeros like those that `play` returns; None for others."""
        return None

    def finish(self, state: State) -> None:
        """Tells them that the run has ended."""

    def close(self) -> None:
        """Ends the connections."""
