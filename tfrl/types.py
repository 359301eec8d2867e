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
