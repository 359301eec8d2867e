"""Plays an exact number of episodes and keeps every step of them."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from tfrl import struct
from tfrl.evaluation.evaluator import Evaluator
from tfrl.evaluation.result import EvaluationResult
from tfrl.rollout.episode import EpisodeTotals, episode_totals, eval_rollout_episode
from tfrl.types import Trajectory


@dataclasses.dataclass(frozen=True)
class CollectedEpisodes:
    """Episodes with their statistics, all in numpy.

    Attributes:
      result: Returns, lengths and statistics; the same as `Evaluator.evaluate` gives.
      episodes: One Trajectory per episode, leaves [length, ...], every row valid.
      padded: All episodes as one Trajectory, leaves [T, N, ...], with `valid` False after the end.
    """

    result: EvaluationResult
    episodes: list[Trajectory]
    padded: Trajectory


@struct.logic_dataclass
class EpisodeCollector(Evaluator):
    """An `Evaluator` that also returns the trajectories.

    `collect` plays the very episodes that `evaluate` plays for the same key.

    Attributes:
      env_extra_fields: Names of `info` fields to be stored in `Trajectory.env_extras`.
    """

    env_extra_fields: tuple[str, ...] = ()

    def collect(self, agent_state: Any, key: tf.Tensor) -> CollectedEpisodes:
        """Plays `num_episodes` episodes and brings them to the host, round by round.

        Args:
          agent_state: The agent's state; leaves may be tensors or tf.Variables.
          key: int32 [2].
        """
        agent_state = struct.values(agent_state)
        rounds = []
        for index in range(self.num_rounds):
            played = self._compiled_round(agent_state, key, tf.constant(index))
            rounds.append(tf.nest.map_structure(lambda x: x.numpy(), played))
        count = self.num_episodes

        def join(axis: int, nests: list[Any]) -> Any:
            def one(*xs: np.ndarray) -> np.ndarray:
                return np.take(np.concatenate(xs, axis=axis), range(count), axis=axis)

            return tf.nest.map_structure(one, *nests)

        padded = join(1, [trajectory for trajectory, _ in rounds])
        totals = join(0, [totals for _, totals in rounds])
        lengths = totals.episode_lengths
        return CollectedEpisodes(
            result=EvaluationResult.of(totals.discounted_returns, lengths),
            episodes=[_episode(padded, i, int(n)) for i, n in enumerate(lengths)],
            padded=padded,
        )

    def run_round(
        self, agent_state: Any, key: tf.Tensor, index: tf.Tensor
    ) -> tuple[Trajectory, EpisodeTotals]:
        """Plays round number `index`; a pure function for eager, graph and XLA."""
        reset_key, step_key = self.round_keys(key, index)
        trajectory = eval_rollout_episode(
            self.played_env,
            self.agent,
            self.start(reset_key),
            agent_state,
            step_key,
            self.episode_limit,
            self.env_extra_fields,
            self.action_fn,
        )
        return trajectory, episode_totals(trajectory, self.discount)

    @functools.cached_property
    def _compiled_round(self) -> Callable[..., Any]:
        return self.compiled(lambda *args: self.run_round(*args))


def _episode(padded: Trajectory, index: int, length: int) -> Trajectory:
    """Episode number `index` of [T, N, ...], cut to its length."""
    return tf.nest.map_structure(lambda x: x[:length, index].copy(), padded)
