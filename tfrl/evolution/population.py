"""Plays a whole population's episodes: each member acts in separate environments."""

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tfrl import struct
from tfrl.envs.core import Env
from tfrl.envs.host_env import HostEnv
from tfrl.envs.host_wrappers import normalizes_rewards
from tfrl.envs.wrappers.episode import Episode
from tfrl.errors import UserError
from tfrl.rollout import eval_rollout_episode, fast_eval_rollout_episode
from tfrl.rollout.episode import EpisodeTotals, episode_limit, episode_totals
from tfrl.rollout.scan import scan
from tfrl.traces import logic_key, traces_of
from tfrl.types import ActionOutput, EnvState, EvaluatesActions, Nest


@struct.logic_dataclass
class PopulationActing(struct.Struct):
    """Acts for P members in P x E environments; member p has rows p E to (p + 1) E - 1.

    The agent's parameters have the leading axis P, and its observations are `[P, E, ...]`.

    Attributes:
      agent: The agent.
      num_members: P.
    """

    agent: EvaluatesActions
    num_members: int

    def initial_carry(self, batch_size: int) -> Nest:
        """Returns the initial recurrent state `[P E, ...]`."""
        initial = getattr(self.agent, "initial_carry", None)
        return None if initial is None else initial(batch_size)

    def evaluate_actions(
        self, state: Nest, obs: Nest, key: tf.Tensor, carry: Nest = None
    ) -> ActionOutput:
        """Returns the actions `[P E, ...]` of observations `[P E, ...]`."""
        output = self.agent.evaluate_actions(
            state, self._per_member(obs), key, self._per_member(carry)
        )
        return ActionOutput(action=_joined(output.action), carry=_joined(output.carry))

    def _per_member(self, nest: Nest) -> Nest:
        """Reshapes rows `[P E, ...]` to `[P, E, ...]`."""

        def reshape(x: tf.Tensor) -> tf.Tensor:
            return tf.reshape(x, [self.num_members, -1, *x.shape[1:]])

        return None if nest is None else tf.nest.map_structure(reshape, nest)


def _joined(nest: Nest) -> Nest:
    """Reshapes rows `[P, E, ...]` to `[P E, ...]`."""

    def joined(x: tf.Tensor) -> tf.Tensor:
        return tf.reshape(x, [-1, *x.shape[2:]])

    return None if nest is None else tf.nest.map_structure(joined, nest)


@struct.dataclass
class Played(struct.Struct):
    """The episodes of a population.

    Attributes:
      totals: Returns and lengths of the episodes, leaves `[P, E]`.
      obs: The recorded observations `[P E, T, ...]`, or None.
      valid: bool [P E, T], which observations belong to the episodes.
    """

    totals: EpisodeTotals
    obs: Nest = None
    valid: tf.Tensor | None = None


def bare(env: Env) -> Env:
    """Returns the environment without its autoreset layer, which costs time.

    It keeps the layer if another wrapper is above it, and on the host. Without autoreset, steps
    after the end of an episode do not count.
    """
    return env.env if isinstance(env, Episode) and not isinstance(env, HostEnv) else env


def start_states(env: Env, key: tf.Tensor, num_members: int, *, common: bool) -> EnvState:
    """Starts an episode in every environment, `[P E, ...]`.

    Args:
      env: The P x E environments.
      key: int32 [2].
      num_members: P.
      common: Whether all members start from the same states (common random numbers).
    """
    if not common:
        return env.reset(key)
    episodes = env.num_envs // num_members
    state = env.with_num_envs(episodes).reset(key)

    def repeated(x: tf.Tensor, by_env: bool) -> tf.Tensor:
        return tf.tile(x, [num_members] + [1] * (x.shape.rank - 1)) if by_env else x

    return tf.nest.map_structure(repeated, state, leaves_by_env(env))


def play_population(
    env: Env,
    agent: EvaluatesActions,
    env_state: EnvState,
    with_params: Callable[[Nest], Any],
    population: Nest,
    key: tf.Tensor,
    *,
    block: int | None = None,
    discount: float | None = None,
    length: int | None = None,
    records: bool = False,
) -> Played:
    """Plays an episode in every environment.

    Args:
      env: P x E environments, see `PopulationActing`.
      agent: The agent.
      env_state: The start of the episodes, from `start_states`.
      with_params: Returns the agent's state with parameters that have a leading axis.
      population: The parameters of the members, leaves `[P, ...]`.
      key: int32 [2].
      block: The number of members that play together, one block after the other; all members if it
        is None or does not divide P.
      discount: The discount of `discounted_returns`; None for no discounted returns.
      length: The most steps of an episode; `env.max_episode_steps` if None.
      records: Whether to record the observations.
    """
    members = tf.nest.flatten(population)[0].shape[0]
    size = members if block is None or members % block else block
    number, total = members // size, env.num_envs
    length = episode_limit(env, length, name="length")
    own_env = bare(env.with_num_envs(total // number))
    acting = PopulationActing(agent=agent, num_members=size)

    def play(population: Nest, env_state: EnvState) -> Played:
        args = (own_env, acting, env_state, with_params(population), key, length)
        if not records:
            totals, _ = fast_eval_rollout_episode(*args, discount=discount)
            return Played(totals=_by_member(totals, size))
        trajectory, _ = eval_rollout_episode(*args)
        return Played(
            totals=_by_member(episode_totals(trajectory, discount), size),
            obs=tf.nest.map_structure(_batch_major, trajectory.obs),
            valid=_batch_major(trajectory.valid),
        )

    if number == 1:
        return play(population, env_state)

    def of_block(i: tf.Tensor) -> Played:
        def own(x: tf.Tensor) -> tf.Tensor:  # for x[i], XLA would pad all of x
            return tf.gather(tf.reshape(x, [number, -1, *x.shape[1:]]), i)

        start = tf.nest.map_structure(
            lambda x, each: own(x) if each else x, env_state, leaves_by_env(bare(env))
        )
        return play(tf.nest.map_structure(own, population), start)

    _, episodes = scan(lambda carry, i: (carry, of_block(i)), (), number)
    return tf.nest.map_structure(lambda x: tf.reshape(x, [-1, *x.shape[2:]]), episodes)


def state_form(env: Env, num_envs: int) -> EnvState:
    """Returns the state of `num_envs` device environments as a nest of `tf.TensorSpec`."""
    env = env.with_num_envs(num_envs)
    notes = traces_of(logic_key(env)).notes
    if "state_form" not in notes:
        with tf.Graph().as_default():
            state = env.reset(tf.zeros([2], tf.int32))
        specs = tf.nest.map_structure(lambda x: tf.TensorSpec(x.shape, x.dtype), state)
        notes["state_form"] = specs
    return notes["state_form"]


def leaves_by_env(env: Env) -> Nest:
    """Returns which leaves of the state have a row for each environment, a nest of bools."""
    return tf.nest.map_structure(
        lambda x, other: x.shape != other.shape, state_form(env, 3), state_form(env, 5)
    )


def _by_member(totals: EpisodeTotals, members: int) -> EpisodeTotals:
    """Reshapes totals `[P E]` to `[P, E]`."""
    return tf.nest.map_structure(lambda x: tf.reshape(x, [members, -1]), totals)


def _batch_major(x: tf.Tensor) -> tf.Tensor:
    """Transposes rows `[T, B, ...]` to `[B, T, ...]`."""
    return tf.transpose(x, [1, 0, *range(2, x.shape.rank)])


def fitness_of(
    totals: EpisodeTotals, *, discounted: bool, objectives: Sequence[str] = ()
) -> tf.Tensor:
    """Returns the mean returns over the episodes: float32 `[P]`, or `[P, M]` for M objectives.

    Args:
      totals: Leaves `[P, E]`.
      discounted: Whether to use discounted returns.
      objectives: Names of rewards, one objective each, for a dict of rewards.

    Raises:
      UserError: If the rewards do not match the objectives.
    """
    returns = totals.discounted_returns if discounted else totals.episode_returns
    names = sorted(returns) if isinstance(returns, dict) else []
    if not objectives and not names:
        return tf.reduce_mean(returns, axis=-1)
    check_objectives(objectives, names)
    means = [tf.reduce_mean(returns[name], axis=-1) for name in objectives]
    return means[0] if len(means) == 1 else tf.stack(means, axis=-1)


def check_rewards(env: Env) -> None:
    """Checks that the fitness of a member does not depend on the others.

    Raises:
      UserError: For an environment with `RewardNormalize`.
    """
    if normalizes_rewards(env):
        raise UserError(
            "outer_wrappers",
            expected="rewards that do not depend on other environments: they are the fitness",
            got="RewardNormalize, with moments over all environments",
            remedy="Remove RewardNormalize; searches rank the returns.",
        )


def check_objectives(objectives: Sequence[str], names: Sequence[str]) -> None:
    """Checks objectives against the names of the rewards, which are empty for one reward.

    Raises:
      UserError: If they do not match.
    """
    if bool(objectives) == bool(names) and set(objectives) <= set(names):
        return
    raise UserError(
        "objectives",
        expected=f"names of rewards: {', '.join(names)}" if names else "() for one reward",
        got=repr(tuple(objectives)),
        remedy="Use the environment's reward names as objectives; on the host also fields of info, "
        "with make_env(info_fields=...).",
    )
