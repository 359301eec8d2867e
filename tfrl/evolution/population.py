"""Episodes of a whole population: each member acts in environments of its own."""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfrl import struct
from tfrl.envs.host_env import HostEnv
from tfrl.envs.wrappers.episode import Episode
from tfrl.errors import UserError
from tfrl.rollout import eval_rollout_episode, fast_eval_rollout_episode
from tfrl.rollout.episode import EpisodeTotals, episode_limit, episode_totals
from tfrl.types import ActionOutput, EnvState, Nest


@struct.logic_dataclass
class PopulationActing(struct.Struct):
    """Acts for P members in P x E environments, rows p E to (p + 1) E - 1 those of member p.

    The agent's parameters have the leading axis P, its observations are `[P, E, ...]`.

    Attributes:
      agent: The agent.
      num_members: P.
    """

    agent: Any
    num_members: int

    def initial_carry(self, batch_size: int) -> Nest:
        """Returns the recurrent state `[P E, ...]` of an episode's start."""
        initial = getattr(self.agent, "initial_carry", None)
        return None if initial is None else initial(batch_size)

    def evaluate_actions(
        self, state: Any, obs: Nest, key: tf.Tensor, carry: Nest = None
    ) -> ActionOutput:
        """Returns the actions `[P E, ...]` of observations `[P E, ...]`."""
        output = self.agent.evaluate_actions(state, self._apart(obs), key, self._apart(carry))
        return ActionOutput(action=_joined(output.action), carry=_joined(output.carry))

    def _apart(self, nest: Nest) -> Nest:
        """Rows `[P E, ...]` as `[P, E, ...]`."""

        def apart(x: tf.Tensor) -> tf.Tensor:
            return tf.reshape(x, [self.num_members, -1, *x.shape[1:]])

        return None if nest is None else tf.nest.map_structure(apart, nest)


def _joined(nest: Nest) -> Nest:
    """Rows `[P, E, ...]` as `[P E, ...]`."""

    def joined(x: tf.Tensor) -> tf.Tensor:
        return tf.reshape(x, [-1, *x.shape[2:]])

    return None if nest is None else tf.nest.map_structure(joined, nest)


@struct.dataclass
class Played(struct.Struct):
    """What a population played.

    Attributes:
      totals: Returns and lengths of the episodes, leaves `[P, E]`.
      obs: Where they are recorded, the observations `[P E, T, ...]`; else None.
      valid: bool [P E, T], which of them belong to the episodes.
    """

    totals: EpisodeTotals
    obs: Nest = None
    valid: tf.Tensor | None = None


def bare(env: Any) -> Any:
    """Returns the environment without autoreset where nothing is above it: it costs time.

    An episode that has ended is played on, and does not count. On the host it stays as it is.
    """
    return env.env if isinstance(env, Episode) and not isinstance(env, HostEnv) else env


def start_states(env: Any, key: tf.Tensor, num_members: int, *, common: bool) -> EnvState:
    """Starts an episode in every environment, `[P E, ...]`.

    Args:
      env: The P x E environments.
      key: int32 [2].
      num_members: P.
      common: Whether all members start alike: common random numbers.
    """
    if not common:
        return env.reset(key)
    episodes = env.num_envs // num_members
    state = env.with_num_envs(episodes).reset(key)

    def repeated(x: tf.Tensor) -> tf.Tensor:
        per_env = x.shape.rank > 0 and x.shape[0] == episodes
        return tf.tile(x, [num_members] + [1] * (x.shape.rank - 1)) if per_env else x

    return tf.nest.map_structure(repeated, state)


def play_population(
    env: Any,
    agent: Any,
    env_state: EnvState,
    agent_state: Any,
    key: tf.Tensor,
    num_members: int,
    *,
    discount: float | None = None,
    length: int | None = None,
    records: bool = False,
) -> Played:
    """Plays an episode in every environment.

    Args:
      env: P x E environments, see `PopulationActing`.
      agent: The agent.
      env_state: Where the episodes begin, as of `start_states`.
      agent_state: The agent's state, whose parameters of the policy have the leading axis P.
      key: int32 [2].
      num_members: P.
      discount: Asks for `discounted_returns`, if not None.
      length: The most steps of an episode; `env.max_episode_steps` if None.
      records: Whether the observations are recorded.
    """
    acting = PopulationActing(agent=agent, num_members=num_members)
    length = episode_limit(env, length, name="length")
    played = bare(env)
    args = (played, acting, env_state, agent_state, key, length)
    obs = valid = None
    if records:
        trajectory, _ = eval_rollout_episode(*args)
        totals = episode_totals(trajectory, discount)
        obs = tf.nest.map_structure(_batch_major, trajectory.obs)
        valid = _batch_major(trajectory.valid)
    else:
        totals, _ = fast_eval_rollout_episode(*args, discount=discount)
    apart = tf.nest.map_structure(lambda x: tf.reshape(x, [num_members, -1]), totals)
    return Played(totals=apart, obs=obs, valid=valid)


def _batch_major(x: tf.Tensor) -> tf.Tensor:
    """Rows `[T, B, ...]` as `[B, T, ...]`."""
    return tf.transpose(x, [1, 0, *range(2, x.shape.rank)])


def fitness_of(
    totals: EpisodeTotals, *, discounted: bool, objectives: Sequence[str] = ()
) -> tf.Tensor:
    """Returns the means over the episodes: float32 `[P]`, or `[P, M]` of M objectives.

    Args:
      totals: Leaves `[P, E]`.
      discounted: Whether discounted returns count.
      objectives: Names of rewards, each an objective, where the rewards are a dict.

    Raises:
      UserError: For rewards that do not fit.
    """
    returns = totals.discounted_returns if discounted else totals.episode_returns
    names = sorted(returns) if isinstance(returns, dict) else []
    if not objectives and not names:
        return tf.reduce_mean(returns, axis=-1)
    if not objectives or not set(objectives) <= set(names):
        raise UserError(
            "objectives",
            expected=f"names of rewards: {', '.join(names)}" if names else "() for one reward",
            got=repr(tuple(objectives)),
            remedy="Each named reward of the environment is an objective.",
        )
    return tf.stack([tf.reduce_mean(returns[name], axis=-1) for name in objectives], axis=-1)
