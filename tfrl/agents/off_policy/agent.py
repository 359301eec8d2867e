"""The base class of off-policy agents: statistics, target networks, random actions, checks."""

import abc
import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import tensorflow as tf

from tfrl import checks, struct
from tfrl.agents.core import NormalizingAgent
from tfrl.agents.random import RandomAgent
from tfrl.agents.rows import check_rows
from tfrl.checks import Bound
from tfrl.errors import UserError
from tfrl.ops import statistics
from tfrl.types import ActionOutput, AgentState, Nest, Transition

# Required and optional columns of transitions.
COLUMNS = ("obs", "action", "reward", "next_obs", "discount")
_MORE = ("extras", "weight", "index", "mask")
_TYPICAL = "Give one finite number. Typical: discount 0.99, tau 0.005 (1 for a copy), obs_clip 10."


@struct.dataclass
class MaskedTransition(Transition):
    """Transitions with a mask.

    Attributes:
      mask: bool `[N]`; False for invalid rows, None if all are valid.
    """

    mask: tf.Tensor | None = None


def transition_of(
    owner: str, columns: Mapping[str, Nest], needed: tuple[str, ...] = COLUMNS
) -> MaskedTransition:
    """Turns a dict of columns into transitions; ignores other columns.

    Args:
      owner: What learns from them, for messages.
      columns: Columns with the names of the fields of `Transition`.
      needed: Required columns; missing others are None.

    Raises:
      UserError: For missing columns; it lists all.
    """
    missing = [name for name in needed if name not in columns]
    if missing:
        raise UserError(
            f"the batch of {owner}",
            expected=f"the columns {', '.join(needed)}",
            got=f"{', '.join(sorted(map(str, columns)))}, without {', '.join(missing)}",
        )
    known: dict[str, Any] = {name: columns.get(name) for name in (*COLUMNS, *_MORE)}
    return MaskedTransition(**known)


# The state's count of learner steps, if only some of them update target networks.
LEARNER_STEPS = "learner_steps"


def polyak_update(target: Nest, params: Nest, tau: float | tf.Tensor) -> Nest:
    """Polyak-averages target parameters.

      target + tau (params - target)

    Source: Lillicrap et al. 2016, algorithm 1, https://arxiv.org/abs/1509.02971; with tau = 1 the
    copy of Mnih et al. 2015, https://doi.org/10.1038/nature14236.

    Args:
      target: A nest of tensors.
      params: A nest like it.
      tau: The Polyak factor, above 0 and at most 1.

    Returns:
      A nest like `target`; leaves that are not floats, such as counts, are copied.
    """
    if not tf.is_tensor(tau) and tau == 1:
        return params
    return tf.nest.map_structure(
        lambda t, p: t + tau * (p - t) if p.dtype.is_floating else p, target, params
    )


def copy_params(params: Nest) -> Nest:
    """Returns a copy of the parameters as tensors, for initial targets."""
    return tf.nest.map_structure(tf.identity, params)


@struct.logic_dataclass
class OffPolicy(NormalizingAgent):
    """An agent that learns from replayed transitions; subclasses define the losses.

    Its losses take a `tfrl.types.Transition` of rows `[N, ...]`, as
    `prepare_minibatch` returns it. The target of a row is

      reward + discount * bootstrap(next_obs)

    where the reward is the sum of `n_step` discounted rewards and the row's discount is gamma^k, or
    0 if the item ends by a termination. So losses do not use n or gamma: `n_step` and `discount`
    are arguments of the replay buffer.

    A call of the Learner is one learner step: target networks are updated once after it.

    Attributes:
      obs_spec: The nest of specs of one observation.
      action_spec: The nest of specs of one action.
      hidden: Layer sizes of the default networks; None for 256, 256 (DQN: 64, 64).
      obs_key: The item of a Dict observation that the default networks take ("a/b" for a nested
        one); None for all of it.
      discount: gamma, for the replay buffer.
      n_step: Steps of an item, for the replay buffer.
      tau: Polyak factor of target updates; 1 for a copy.
      normalize_obs: Whether observations are normalised by running statistics; replayed ones use
        the current statistics.
      obs_clip: Clipping bound of normalised observations.
      hyperparameters: Names of settings, among `in_state`, that become leaves of the state
        (`extra`), so that members of a population may differ in them. "discount" requires `n_step`
        of 1, since a replay buffer sums rewards with its own discount.
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
    hyperparameters: tuple[str, ...] = ()

    learns_from_replay = True
    in_state: ClassVar[tuple[str, ...]] = ("discount", "tau")

    def __post_init__(self) -> None:
        """Checks the numbers and the flags."""
        owner = type(self).__name__
        for field in dataclasses.fields(self):
            if field.type in (bool, "bool"):
                checks.boolean(f"{owner}.{field.name}", getattr(self, field.name))
        for name, bound in self.bounds().items():
            checks.number(f"{owner}.{name}", getattr(self, name), *bound, remedy=_TYPICAL)
        checks.at_least(f"{owner}.n_step", self.n_step, 1)
        checks.sizes(f"{owner}.hidden", self.hidden, optional=True)
        self.check_hyperparameters()
        if "discount" in self.hyperparameters and (self.n_step > 1 or not self.discount):
            raise UserError(
                f"{owner}.hyperparameters with 'discount'",
                expected="n_step=1 and a discount above 0",
                got=f"n_step={self.n_step}, discount={self.discount:g}",
                remedy="Leave 'discount' out, or set n_step=1: the replay buffer sums n-step "
                "rewards with its own discount.",
            )

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
        """Learner steps between target updates."""

    def targets_due(self, learner_steps: tf.Tensor) -> tf.Tensor:
        """Whether targets are updated after this number of learner steps; a bool."""
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
          target_groups: Groups with target networks.
          extra: Other items of the state.
        """
        extra = {
            **(extra or {}),
            **{name: tf.constant(self.start_of(name), tf.float32) for name in self.hyperparameters},
        }
        if self.target_period > 1:
            extra[LEARNER_STEPS] = tf.constant(0, tf.int64)
        return AgentState(
            params=params,
            target_params={g: copy_params(params[g]) for g in target_groups},
            normalizer=statistics.init(self.obs_spec) if self.normalize_obs else None,
            extra=extra or None,
        )

    def start_of(self, name: str) -> float:
        """Returns the initial value of a hyperparameter."""
        return float(getattr(self, name))

    def on_update_metrics(self, state: AgentState, metrics: dict[str, tf.Tensor]) -> AgentState:
        """Counts learner steps, if target updates need them."""
        if self.target_period == 1:
            return state
        return state.replace(extra={**state.extra, LEARNER_STEPS: state.extra[LEARNER_STEPS] + 1})

    def after_update_due(self, state: AgentState, timesteps: tf.Tensor) -> tf.Tensor | None:
        """Whether the target networks are updated; always with a period of 1."""
        return None if self.target_period == 1 else self.targets_due(state.extra[LEARNER_STEPS])

    def after_update(self, state: AgentState, timesteps: tf.Tensor) -> AgentState:
        """Updates the target networks."""
        params = {g: state.params[g] for g in state.target_params}
        tau = self.setting(state, "tau")
        return state.replace(target_params=polyak_update(state.target_params, params, tau))

    def prepare_minibatch(
        self, state: AgentState, batch: Nest, all_reduce_sum: Callable[[Nest], Nest]
    ) -> Nest:
        """Returns transitions in the losses' form, once for all updates of a learner step.

        Observations are normalised by the current statistics, and actions converted by
        `network_action`. A dict of columns has the names of a `Transition`.
        """
        if isinstance(batch, Mapping):
            batch = transition_of(type(self).__name__, batch)
        check_rows(
            type(self).__name__,
            batch,
            obs=self.obs_spec,
            action=self.action_spec,
            next_obs=self.obs_spec,
            numbers=("reward", "discount", "weight"),
            flags=("mask",),
        )
        if "discount" in self.hyperparameters:  # of single steps: 0 after a termination
            goes_on = batch.discount > 0.0
            own = self.setting(state, "discount") * tf.ones_like(batch.discount)
            batch = batch.replace(discount=tf.where(goes_on, own, 0.0))
        return batch.replace(
            obs=self.normalized(state, batch.obs),
            next_obs=self.normalized(state, batch.next_obs),
            action=self.network_action(batch.action),
        )

    @abc.abstractmethod
    def network_action(self, action: Nest) -> tf.Tensor:
        """Returns actions of the action spec in the losses' form."""

    # Acting and priorities.

    def random_actions(
        self, state: AgentState, obs: Nest, key: tf.Tensor, carry: Nest = None
    ) -> ActionOutput:
        """Draws uniform valid actions, to fill a replay buffer.

        The arguments are those of `compute_actions`, so a rollout accepts it as `action_fn`.
        """
        random = RandomAgent(obs_spec=self.obs_spec, action_spec=self.action_spec)
        return random.compute_actions(state, obs, key, carry)

    @abc.abstractmethod
    def td_errors(self, state: AgentState, batch: Nest, key: tf.Tensor) -> tf.Tensor:
        """Returns |target - Q(o, a)| of every row, for priorities.

        Args:
          state: The state before the update, values.
          batch: A `Transition` from the replay buffer, rows `[N, ...]`.
          key: int32 [2]; the key of the first loss gives that loss's random numbers.

        Returns:
          float32 `[N]`, without a gradient.
        """

    def _prepared(self, state: AgentState, batch: Nest) -> Nest:
        """`prepare_minibatch` outside the Learner."""
        return self.prepare_minibatch(state, batch, lambda x: x)
