"""Messages from the collectors of a distributed run to its learner."""

from typing import Any, Protocol

import tensorflow as tf

from tfrl import struct
from tfrl.ops import statistics
from tfrl.types import Nest, Trajectory
from tfrl.workflows.rollout_result import RolloutResult
from tfrl.workflows.run_state import State

# A policy extra of an item: the learner steps of the parameters that chose its action.
POLICY_VERSION = "policy_version"


class WaitEndedError(Exception):
    """A signal asks this process to end while it waits for other processes."""


@struct.dataclass
class Collected(struct.Struct):
    """The experience of all collectors since the last query.

    Attributes:
      env_steps: int64 scalar, items of the replay table.
      episodes: int64 scalar, episodes that have ended.
      episode_return: float32 scalar, their mean return; arbitrary without any.
      episode_length: float32 scalar, their mean length; arbitrary without any.
      metrics: float32 scalars by name, of the collectors.
      obs_statistics: The `RunningStatistics` of the observations; None for an agent without them.
    """

    env_steps: Any
    episodes: Any
    episode_return: Any
    episode_length: Any
    metrics: Any
    obs_statistics: Nest = None

    def as_result(self, normalizer: Nest) -> RolloutResult:
        """Converts it to the result of a rollout whose experience is in the buffer already.

        Args:
          normalizer: The agent's statistics of earlier observations.
        """
        if self.obs_statistics is not None:
            obs = tf.nest.map_structure(tf.convert_to_tensor, self.obs_statistics)
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
    """Rollouts of several collectors, for a workflow that learns from each rollout once.

    Attributes:
      trajectory: The `Trajectory` of all of them, `[T, B, ...]`.
      metrics: float32 scalars by name, of the collectors.
    """

    trajectory: Trajectory
    metrics: Any


class Collectors(Protocol):
    """The collectors of a run, as its workflow sees them.

    Attributes:
      wait_seconds: How long a call may wait for them.
    """

    wait_seconds: float = 0.0

    def begin(self, state: State) -> None:
        """Called with the state before each call of several iterations."""

    def end_call(self) -> None:
        """Called after each call of several iterations; the learner may evaluate or save then."""

    def play(self, agent_state: Nest, *, waits: bool) -> Nest:
        """Returns the collectors' experience since the last call, in the place of a rollout.

        The result is a `Collected` if experience goes to a replay buffer, else `CollectedRollouts`.

        Args:
          agent_state: The agent's state; it is published to the collectors at intervals.
          waits: Whether to wait for new experience.
        """

    def blank(self) -> Nest:
        """Returns a `Trajectory` of zeros with the shapes of `play`'s; None without one."""
        return None

    def finish(self, state: State) -> None:
        """Tells the collectors that the run has ended."""

    def close(self) -> None:
        """Ends the connections."""
