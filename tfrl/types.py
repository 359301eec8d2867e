"""The shared records. Every part of the library uses these names and no others."""

from typing import Any

import tensorflow as tf

from tfrl import struct

Nest = Any


@struct.dataclass
class Trajectory(struct.Struct):
    """Steps of experience, time-major `[T, B, ...]` (or any leading axes they are cut to).

    Attributes:
      obs: o_t, a nest.
      action: a_t, a nest.
      reward: r_t for that action, float32 `[T, B]`, or a dict of them.
      next_obs: The true successor o_{t+1}: the terminal observation, never the reset one.
      termination: bool `[T, B]`; the episode ended in a terminal state at this step.
      truncation: bool `[T, B]`; the episode was cut at this step.
      valid: bool `[T, B]`; False for a row that exists only because of an autoreset, or is frozen
        after an end. Invalid rows count in no loss, statistic or counter.
      policy_extras: What the agent put into `ActionOutput.extras`, a nest.
      env_extras: The `info` fields of the environment that were asked for, a dict.
    """

    obs: Nest
    action: Nest
    reward: Nest
    next_obs: Nest
    termination: tf.Tensor
    truncation: tf.Tensor
    valid: tf.Tensor
    policy_extras: Nest = None
    env_extras: Nest = None


@struct.dataclass
class EnvState(struct.Struct):
    """The state of a batch of environments, every leaf `[B, ...]` but the keys.

    Attributes:
      env_state: The environment's own state, a nest; reset keys live here.
      obs: The observation to act on next, a nest `[B, ...]`.
      reward: float32 `[B]` (or a dict of them) of the step that led here; 0 after a reset.
      termination: bool `[B]` of that step.
      truncation: bool `[B]` of that step.
      info: A dict: `final_obs` (the true successor, at every step), `autoreset` (bool `[B]`, rows
        that are invalid), `episode_return` (float32 `[B]`) and `episode_length` (int32 `[B]`),
        which hold at the row where an episode ends, and what the environment adds.
    """

    env_state: Nest
    obs: Nest
    reward: Nest
    termination: tf.Tensor
    truncation: tf.Tensor
    info: dict[str, Any]


@struct.dataclass
class ActionOutput(struct.Struct):
    """What an agent answers: actions `[B, ...]`, the next recurrent carry, and extras.

    Attributes:
      action: A nest that matches the action spec.
      carry: The recurrent state after this step, or None.
      extras: A dict to be stored with the step, such as `log_prob`.
    """

    action: Nest
    carry: Nest = None
    extras: Nest = None


@struct.dataclass
class AgentState(struct.Struct):
    """All of an agent that changes; leaves are tensors or tf.Variables.

    Attributes:
      params: A dict of named groups (`policy`, `value`; `actor`, `critic`, `log_alpha`).
      target_params: Like some of `params`, for target networks, or None.
      normalizer: Observation statistics, or None.
      extra: Anything else that an agent carries, or None.
    """

    params: dict[str, Any]
    target_params: Nest = None
    normalizer: Nest = None
    extra: Nest = None


@struct.dataclass
class Transition(struct.Struct):
    """Items of a replay buffer to bootstrap from after k <= n steps; leaves `[N, ...]`.

    The target of a value is `reward + discount * V(next_obs)`, whatever ended the item.

    Attributes:
      obs: o_t, a nest.
      action: a_t, a nest.
      reward: float32 `[N]`, the sum of gamma^j r_{t+j} over j < k.
      next_obs: o_{t+k}, the true successor: the terminal observation, never the reset one.
      discount: float32 `[N]`, gamma^k; 0 where the last of the k steps terminated (and not where it
        was truncated).
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
    """Items of a replay buffer that are consecutive steps of one episode each.

    Attributes:
      steps: Leaves `[N, L, ...]`, batch-major. Rows behind an episode's end are not valid: rewards,
        actions, flags and extras are zeros there, observations repeat the episode's last frame. The
        last step of an episode that was left unfinished is truncated.
      state_in: The recurrent state stored with the first step, leaves `[N, ...]`, or None.
      weight: float32 `[N]`, importance weights of prioritised sampling; None for uniform.
      index: int64 `[N]`, the item's number in its buffer, for `update_priorities`; or None.
    """

    steps: Trajectory
    state_in: Nest = None
    weight: tf.Tensor | None = None
    index: tf.Tensor | None = None
