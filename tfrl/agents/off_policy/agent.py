"""The base class of off-policy agents: statistics, target networks, random play, checks."""

import abc
from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf

from tfrl import struct
from tfrl.agents.actor_critic.numbers import Bound
from tfrl.agents.core import Agent
from tfrl.agents.off_policy.checks import (
    check_count,
    check_flags,
    check_number,
    check_rows,
    transition_of,
)
from tfrl.agents.random import RandomAgent
from tfrl.envs.action_masks import MASK, split_mask
from tfrl.ops import statistics
from tfrl.types import ActionOutput, AgentState, Nest, Trajectory

# Where a state counts its learner steps, if target networks move in some of them only.
LEARNER_STEPS = "learner_steps"


def polyak_update(target: Nest, params: Nest, tau: float) -> Nest:
    """Moves target parameters towards others.

      target + tau (params - target)

    Source: Lillicrap et al. 2016, algorithm 1, https://arxiv.org/abs/1509.02971; with tau = 1 the
    copy of Mnih et al. 2015, https://doi.org/10.1038/nature14236.

    Args:
      target: A nest of tensors.
      params: A nest like it.
      tau: The share of the way, above 0 and at most 1.

    Returns:
      A nest like `target`; leaves that are not floats, such as counts, are copied.
    """
    if tau == 1:
        return params
    return tf.nest.map_structure(
        lambda t, p: t + tau * (p - t) if p.dtype.is_floating else p, target, params
    )


def copy_params(params: Nest) -> Nest:
    """Returns the parameters as tensors of their own, for the start."""
    return tf.nest.map_structure(tf.identity, params)


@struct.logic_dataclass
class OffPolicy(Agent):
    """An agent that learns from replayed transitions; subclasses define the losses.

    Its losses take a `tfrl.types.Transition` of rows `[N, ...]`, as
    `prepare_minibatch` returns it. The target of a row is

      reward + discount * bootstrap(next_obs)

    where the reward is the sum of `n_step` discounted rewards and the row's discount is gamma^k, 0
    where the item ends by a termination. So no loss has n or gamma: `n_step` and `discount` are
    arguments of the replay buffer.

    A call of the Learner is one learner step: target networks move once after it.

    Attributes:
      obs_spec: The nest of specs of one observation.
      action_spec: The nest of specs of one action.
      hidden: Units of the default networks' layers; None for 256, 256 (DQN: 64, 64).
      obs_key: The item of a Dict observation that the default networks take ("a/b" for a nested
        one); None for all of it.
      discount: gamma, for the replay buffer.
      n_step: Steps of an item, for the replay buffer.
      tau: The share of the way that target networks go when they move; 1 for a copy.
      normalize_obs: Whether observations are normalised by running statistics, replayed ones by
        those of the moment.
      obs_clip: Bound of a normalised observation.
    """

    obs_spec: Nest
    action_spec: Nest
    hidden: tuple[int, ...] | None = None
    obs_key: str | None = None
    discount: float = 0.99
    n_step: int = 1
    tau: float = 0.005
    normalize_obs: bool = False
    obs_clip: float = 10.0

    learns_from_replay = True

    def __post_init__(self) -> None:
        """Checks the numbers and the flags."""
        check_flags(self)
        for name, bound in self.bounds().items():
            check_number(type(self).__name__, name, getattr(self, name), bound)
        check_count(type(self).__name__, "n_step", self.n_step)

    def bounds(self) -> dict[str, Bound]:
        """Returns the bounds of every number."""
        return {
            "discount": Bound(0, 1),
            "tau": Bound(0, 1, closed=False),
            "obs_clip": Bound(0, closed=False),
        }

    # State.

    @property
    @abc.abstractmethod
    def target_period(self) -> int:
        """Target networks move once in so many learner steps."""

    def targets_due(self, learner_steps: tf.Tensor) -> tf.Tensor:
        """Whether they move after so many learner steps; a bool."""
        return tf.equal(learner_steps % self.target_period, 0)

    def made_state(
        self,
        params: dict[str, Any],
        target_groups: tuple[str, ...],
        extra: dict[str, tf.Tensor] | None = None,
    ) -> AgentState:
        """Returns the state of fresh parameters.

        Args:
          params: The groups.
          target_groups: Those that have target networks.
          extra: What else the state carries.
        """
        extra = dict(extra or {})
        if self.target_period > 1:
            extra[LEARNER_STEPS] = tf.constant(0, tf.int64)
        return AgentState(
            params=params,
            target_params={g: copy_params(params[g]) for g in target_groups},
            normalizer=statistics.init(self.obs_spec) if self.normalize_obs else None,
            extra=extra or None,
        )

    def adapt(self, state: AgentState, metrics: dict[str, tf.Tensor]) -> AgentState:
        """Counts the learner steps, where the target networks go by them."""
        if self.target_period == 1:
            return state
        return state.replace(extra={**state.extra, LEARNER_STEPS: state.extra[LEARNER_STEPS] + 1})

    def after_update_due(self, state: AgentState, timesteps: tf.Tensor) -> tf.Tensor | None:
        """Whether the target networks move; always with a period of 1."""
        return None if self.target_period == 1 else self.targets_due(state.extra[LEARNER_STEPS])

    def after_update(self, state: AgentState, timesteps: tf.Tensor) -> AgentState:
        """Moves the target networks."""
        params = {g: state.params[g] for g in state.target_params}
        return state.replace(target_params=polyak_update(state.target_params, params, self.tau))

    # Observations.

    def normalized(self, state: AgentState, obs: Nest) -> Nest:
        """Returns observations as the networks see them, action masks still among them."""
        if not self.normalize_obs:
            return obs
        found = statistics.normalize(state.normalizer, obs, clip=self.obs_clip)
        # A mask of floats is not normalised.
        return found if split_mask(obs)[1] is None else {**found, MASK: obs[MASK]}

    def observe(self, state: AgentState, trajectory: Trajectory) -> AgentState:
        """Merges the observations of new experience into the statistics."""
        if not self.normalize_obs:
            return state
        merged = statistics.update(state.normalizer, trajectory.obs, mask=trajectory.valid)
        return state.replace(normalizer=merged)

    def count_outliers(self, state: AgentState, trajectory: Trajectory) -> tf.Tensor | None:
        """Returns how many values `observe` takes as others than they are."""
        if not self.normalize_obs:
            return None
        return statistics.count_outliers(state.normalizer, trajectory.obs, mask=trajectory.valid)

    def prepare_minibatch(
        self, state: AgentState, batch: Nest, all_reduce_sum: Callable[[Nest], Nest]
    ) -> Nest:
        """Returns transitions as the losses take them, computed once for all updates of a step.

        Observations are normalised by the statistics of the moment, and actions are as the
        networks see them, see `network_action`. A dict of columns is named as a `Transition`.
        """
        if isinstance(batch, Mapping):
            batch = transition_of(type(self).__name__, batch)
        check_rows(type(self).__name__, batch, obs=self.obs_spec, next_obs=self.obs_spec)
        return batch.replace(
            obs=self.normalized(state, batch.obs),
            next_obs=self.normalized(state, batch.next_obs),
            action=self.network_action(batch.action),
        )

    @abc.abstractmethod
    def network_action(self, action: Nest) -> tf.Tensor:
        """Returns actions of the action spec as the losses take them."""

    # Acting and priorities.

    def random_actions(
        self, state: AgentState, obs: Nest, key: tf.Tensor, carry: Nest = None
    ) -> ActionOutput:
        """Draws actions uniformly among the valid ones, to fill a replay buffer with.

        The arguments are those of `compute_actions`, so that a rollout takes it as `action_fn`.
        """
        random = RandomAgent(obs_spec=self.obs_spec, action_spec=self.action_spec)
        return random.compute_actions(state, obs, key, carry)

    @abc.abstractmethod
    def td_errors(self, state: AgentState, batch: Nest, key: tf.Tensor) -> tf.Tensor:
        """Returns |target - Q(o, a)| of every row, from which priorities are computed.

        Args:
          state: The state before the update, values.
          batch: A `Transition` as the replay buffer gives it, rows `[N, ...]`.
          key: int32 [2]; with the key of the first loss, the numbers of that loss.

        Returns:
          float32 `[N]`, without a gradient.
        """

    def _prepared(self, state: AgentState, batch: Nest) -> Nest:
        """As the losses take it, outside of the Learner."""
        return self.prepare_minibatch(state, batch, lambda x: x)
