"""The records that all parts of the library share."""

import functools
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import tensorflow as tf

from tfrl import checks, struct

Nest = Any


@struct.dataclass
class Trajectory(struct.Struct):
    """Steps of experience, time-major `[T, B, ...]` or with other leading axes.

    Every field may be omitted: None is an empty subtree. `actions`, `rewards`, `dones` and `extras`
    are EvoRL's names, see `SampleBatch`.

    Attributes:
      obs: o_t, a nest.
      action: a_t, a nest.
      reward: r_t for that action, float32 `[T, B]`, or a dict of them.
      next_obs: The true successor o_{t+1}: the terminal observation, never the reset one.
      termination: bool `[T, B]`; the episode ended in a terminal state at this step.
      truncation: bool `[T, B]`; the episode was truncated at this step.
      valid: bool `[T, B]`; False for autoreset rows and for rows frozen after an episode end.
        Losses, statistics and counters ignore invalid rows. None: all are valid.
      policy_extras: The agent's `ActionOutput.extras`, a nest.
      env_extras: The requested `info` fields of the environment, a dict.
    """

    obs: Nest = None
    action: Nest = None
    reward: Nest = None
    next_obs: Nest = None
    termination: Any = None
    truncation: Any = None
    valid: Any = None
    policy_extras: Nest = None
    env_extras: Nest = None

    @property
    def actions(self) -> Nest:
        """`action`."""
        return self.action

    @property
    def rewards(self) -> Nest:
        """`reward`."""
        return self.reward

    @property
    def dones(self) -> Any:
        """Whether the episode ended at this step, in either way; None if unknown."""
        ends = [x for x in (self.termination, self.truncation) if x is not None]
        return functools.reduce(tf.logical_or, ends) if ends else None

    @property
    def extras(self) -> struct.TensorDict:
        """`{"policy_extras": ..., "env_extras": ...}`, without omitted fields."""
        result = {"policy_extras": self.policy_extras, "env_extras": self.env_extras}
        return struct.TensorDict({name: x for name, x in result.items() if x is not None})


def SampleBatch(  # noqa: N802  EvoRL's record
    obs: Nest = None,
    actions: Nest = None,
    rewards: Nest = None,
    next_obs: Nest = None,
    dones: Any = None,
    extras: Mapping[str, Nest] | None = None,
) -> Trajectory:
    """Returns a `Trajectory` from the fields of EvoRL's `SampleBatch`, all optional.

    Args:
      obs: o_t.
      actions: a_t.
      rewards: r_t, or a dict of them.
      next_obs: o_{t+1}.
      dones: bool; becomes `termination`: only `Trajectory` has truncations.
      extras: `policy_extras` and `env_extras`.
    """
    extras = dict(extras or {})
    checks.known("extras of a SampleBatch", extras, ("policy_extras", "env_extras"))
    if dones is not None:
        dones = tf.cast(dones, tf.bool)
    return Trajectory(
        obs=obs, action=actions, reward=rewards, next_obs=next_obs, termination=dones, **extras
    )


def obs_of(record: Nest) -> Nest:
    """Returns the observation of a `Trajectory`; other arguments are observations."""
    return record.obs if isinstance(record, Trajectory) else record


@struct.dataclass
class EnvState(struct.Struct):
    """The state of a batch of environments; every leaf is `[B, ...]` except keys.

    Attributes:
      env_state: The environment's own state, a nest; reset keys live here.
      obs: The observation to act on next, a nest `[B, ...]`.
      reward: float32 `[B]` (or a dict of them) of the step that led here; 0 after a reset.
      termination: bool `[B]` of that step.
      truncation: bool `[B]` of that step.
      info: A dict: `final_obs` (the true successor, at every step), `autoreset` (bool `[B]`,
        invalid rows), `episode_return` (float32 `[B]`) and `episode_length` (int32 `[B]`), which
        are valid in the last row of an episode, and items of the environment.
    """

    env_state: Nest
    obs: Nest
    reward: Nest
    termination: tf.Tensor
    truncation: tf.Tensor
    info: dict[str, Any]


@struct.dataclass
class ActionOutput(struct.Struct):
    """An agent's output: actions `[B, ...]`, the next recurrent carry, and extras.

    Attributes:
      action: A nest that matches the action spec.
      carry: The recurrent state after this step, or None.
      extras: A dict to store with the step, such as `log_prob`.
    """

    action: Nest
    carry: Nest = None
    extras: Nest = None


# action_fn(agent_state, obs, key, carry) -> ActionOutput
ActionFn = Callable[..., ActionOutput]


class ComputesActions(Protocol):
    """What `rollout` needs of an agent; a recurrent one also has `initial_carry(batch_size)`."""

    def compute_actions(
        self, state: Any, obs: Nest, key: tf.Tensor, carry: Nest = None
    ) -> ActionOutput:
        """Returns exploring actions, see `tfrl.agents.Agent`."""


class EvaluatesActions(Protocol):
    """What evaluations need of an agent; a recurrent one also has `initial_carry(batch_size)`."""

    def evaluate_actions(
        self, state: Any, obs: Nest, key: tf.Tensor, carry: Nest = None
    ) -> ActionOutput:
        """Returns greedy actions, see `tfrl.agents.Agent`."""


class ActingAgent(ComputesActions, EvaluatesActions, Protocol):
    """An agent that acts, in training and in evaluations, on specified observations."""

    @property
    def obs_spec(self) -> Nest:
        """The nest of specs of one observation."""

    @property
    def action_spec(self) -> Nest:
        """The nest of specs of one action."""


class ReplayAgent(ActingAgent, Protocol):
    """An agent that learns from replayed items of up to `n_step` steps."""

    @property
    def n_step(self) -> int:
        """Steps of an item."""

    @property
    def discount(self) -> float:
        """The discount factor of an item's summed rewards."""


@struct.dataclass
class AgentState(struct.Struct):
    """The changing part of an agent; leaves are tensors or tf.Variables.

    Attributes:
      params: A dict of named groups (`policy`, `value`; `actor`, `critic`, `log_alpha`).
      target_params: Target networks of some groups of `params`, or None.
      normalizer: Observation statistics, or None.
      extra: Other state of an agent, or None.
    """

    params: dict[str, Any]
    target_params: Nest = None
    normalizer: Nest = None
    extra: Nest = None


@struct.dataclass
class Transition(struct.Struct):
    """Items of a replay buffer to bootstrap from after k <= n steps; leaves `[N, ...]`.

    The value target is always `reward + discount * V(next_obs)`.

    Attributes:
      obs: o_t, a nest.
      action: a_t, a nest.
      reward: float32 `[N]`, the sum of gamma^j r_{t+j} over j < k.
      next_obs: o_{t+k}, the true successor: the terminal observation, never the reset one.
      discount: float32 `[N]`, gamma^k; 0 if the last of the k steps terminated (but not if it was
        truncated).
      extras: A dict of the stored `policy_extras` and `env_extras` of step t, or None.
      weight: float32 `[N]`, importance weights of prioritised sampling; None for uniform.
      index: int64 `[N]`, the item's number in its buffer, for `update_priorities`; or None.
    """

    obs: Nest
    action: Nest
    reward: tf.Tensor
    next_obs: Nest
    discount: tf.Tensor
    extras: Nest = None
    weight: tf.Tensor | None = None
    index: tf.Tensor | None = None


@struct.dataclass
class Sequences(struct.Struct):
    """Items of a replay buffer, each consecutive steps of one episode.

    Attributes:
      steps: Leaves `[N, L, ...]`, batch-major. Rows after an episode end are invalid: rewards,
        actions, flags and extras are zeros there, observations repeat the episode's last frame. The
        last step of an unfinished episode is truncated.
      state_in: The recurrent state stored with the first step, leaves `[N, ...]`, or None.
      weight: float32 `[N]`, importance weights of prioritised sampling; None for uniform.
      index: int64 `[N]`, the item's number in its buffer, for `update_priorities`; or None.
    """

    steps: Trajectory
    state_in: Nest = None
    weight: tf.Tensor | None = None
    index: tf.Tensor | None = None
