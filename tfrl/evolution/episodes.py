"""Whole episodes as experience, of a population or of an exploring agent."""

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from tfrl import seeding, struct
from tfrl.envs.core import Env
from tfrl.envs.env_calls import LOST
from tfrl.envs.host_env import HostEnv
from tfrl.evolution.population import bare
from tfrl.rollout import eval_rollout_episode
from tfrl.types import ActionFn, EnvState, EvaluatesActions, Nest, Trajectory


@struct.dataclass
class Episodes(struct.Struct):
    """N episodes, one per column.

    Attributes:
      trajectory: Leaves `[T, N, ...]`; `valid` is True up to the end of each episode. The last
        valid row is a termination or a truncation.
      lost: bool [N], whether the environment has failed or a number was not finite.
    """

    trajectory: Trajectory
    lost: tf.Tensor

    @classmethod
    def of(cls, played: Trajectory) -> "Episodes":
        """Returns the episodes of a trajectory of `eval_rollout_episode`."""
        fields = ("obs", "action", "reward", "next_obs", "termination", "truncation", "valid")
        trajectory = Trajectory(**{name: getattr(played, name) for name in fields})
        # An episode without an end in the last row was truncated by the step limit.
        ends = trajectory.termination[-1] | trajectory.truncation[-1]
        last = trajectory.truncation[-1] | (trajectory.valid[-1] & ~ends)
        truncation = tf.concat([trajectory.truncation[:-1], last[tf.newaxis]], axis=0)
        failed = (played.env_extras or {}).get(LOST, tf.zeros(truncation.shape))
        bad = (failed > 0.0) | _not_finite(trajectory)
        return cls(
            trajectory=trajectory.replace(truncation=truncation),
            lost=tf.reduce_any(bad & trajectory.valid, axis=0),
        )

    def kept(self) -> Trajectory:
        """Returns the trajectory with lost episodes marked as invalid."""
        return self.trajectory.replace(valid=self.trajectory.valid & ~self.lost)


def _not_finite(trajectory: Trajectory) -> tf.Tensor:
    """Returns bool [T, N], whether a row has a non-finite number."""
    nests = (trajectory.obs, trajectory.action, trajectory.reward, trajectory.next_obs)
    floats = [x for x in tf.nest.flatten(nests) if x.dtype.is_floating]
    rows = [tf.reduce_any(~tf.math.is_finite(x), axis=range(2, x.shape.rank)) for x in floats]
    return tf.reduce_any(tf.stack(rows), axis=0)


def play_episodes(
    env: Env,
    agent: EvaluatesActions,
    env_state: EnvState,
    agent_state: Nest,
    key: tf.Tensor,
    action_fn: ActionFn | None = None,
) -> Episodes:
    """Plays an episode in every environment on the device.

    Args:
      env: N environments with a step limit T.
      agent: An agent, or `PopulationActing`.
      env_state: The start of the episodes: a reset of `bare(env)`.
      agent_state: The agent's state.
      key: int32 [2].
      action_fn: The agent's action function; `evaluate_actions` if None.
    """
    length = env.max_episode_steps
    played, _ = eval_rollout_episode(
        bare(env), agent, env_state, agent_state, key, length, action_fn=action_fn
    )
    return Episodes.of(played)


def play_episodes_on_host(
    env: HostEnv,
    agent: EvaluatesActions,
    state_of: Callable[[np.ndarray], Any],
    seeds: np.ndarray,
    key: tf.Tensor,
    action_fn: ActionFn | None = None,
) -> Episodes:
    """Plays N episodes in W environments on the host, W at a time.

    Args:
      env: The W environments.
      agent: An agent, or `PopulationActing` of W members.
      state_of: Returns the agent's state for episodes of these numbers, int64 [W].
      seeds: int64 [N], the episodes' seeds.
      key: int32 [2].
      action_fn: See `play_episodes`.
    """
    rounds = []
    for i in range(-(-seeds.size // env.num_envs)):
        # The last round is padded with the last episode.
        job = np.minimum(i * env.num_envs + np.arange(env.num_envs), seeds.size - 1)
        start = env.begin(seeds[job])
        fields = (LOST,) if LOST in start.info else ()
        played, _ = eval_rollout_episode(
            env,
            agent,
            start,
            state_of(job),
            seeding.fold_in(key, i),
            env.max_episode_steps,
            env_extra_fields=fields,
            action_fn=action_fn,
        )
        rounds.append(Episodes.of(played))
    joined = join_episodes(rounds)
    return Episodes(
        trajectory=tf.nest.map_structure(lambda x: x[:, : seeds.size], joined.trajectory),
        lost=joined.lost[: seeds.size],
    )


def join_episodes(parts: list[Episodes]) -> Episodes:
    """Concatenates the episodes of all parts, which must have equal lengths T."""
    trajectories = [part.trajectory for part in parts]
    return Episodes(
        trajectory=tf.nest.map_structure(lambda *xs: tf.concat(xs, axis=1), *trajectories),
        lost=tf.concat([part.lost for part in parts], axis=0),
    )


def in_one_column(trajectory: Trajectory) -> Trajectory:
    """Concatenates episodes `[T, N, ...]` along time, `[N T, 1, ...]`."""

    def column(x: Nest) -> tf.Tensor:
        rest = x.shape[2:]
        batch_major = tf.transpose(x, [1, 0, *range(2, x.shape.rank)])
        return tf.reshape(batch_major, [x.shape[0] * x.shape[1], 1, *rest])

    return tf.nest.map_structure(column, trajectory)
