"""States of environments as TF-Agents' time steps."""

from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from tf_agents.trajectories import StepType, TimeStep
from tf_agents.trajectories import time_step as time_step_lib

from tfrl.compat.tf_agents import specs
from tfrl.envs.action_masks import split_mask
from tfrl.types import EnvState, Nest

FIRST, MID, LAST = (np.int32(kind) for kind in (StepType.FIRST, StepType.MID, StepType.LAST))


class Seen(NamedTuple):
    """What a time step tells, leaves `[B, ...]` or, of one environment, without that axis.

    Attributes:
      obs: A nest of observations.
      reward: Of the step that led here; 0 where an episode begins.
      termination: bool; the episode ended in a terminal state.
      truncation: bool; the episode was cut.
      first: bool; the time step begins an episode. After an end that row is not a step.
    """

    obs: Nest
    reward: Any
    termination: Any
    truncation: Any
    first: Any


def from_time_step(step: TimeStep) -> Seen:
    """Tells what a time step of TF-Agents says, in the terms of this library.

    Args:
      step: A time step, of tensors or of NumPy arrays, batched or not.

    Returns:
      An episode that ended with discount 0 terminated, with any other it was truncated.
    """
    last, terminal = step.step_type == LAST, step.discount == 0.0
    return Seen(
        obs=specs.plain(step.observation),
        reward=step.reward,
        termination=last & terminal,
        truncation=last & ~terminal,
        first=step.step_type == FIRST,
    )


def time_step(state: EnvState | Seen, obs_spec: Nest, discount: float = 1.0) -> TimeStep:
    """Turns a state of environments with autoreset NEXT_STEP into a time step.

    FIRST where an episode begins, LAST where it ends, else MID. The discount is 0 where the
    episode terminates, `discount` at all other steps, truncations included, and 1 at FIRST.

    Args:
      state: What `reset` or `step` returned, of tensors or of NumPy arrays `[B, ...]`; or what
        `from_time_step` told.
      obs_spec: The nest of specs of one observation.
      discount: What is not an end by termination; above 0.

    Returns:
      A batched time step of the same kind: int32, float32 and float32 `[B]`, and observations.
    """
    lib: Any = tf if tf.is_tensor(state.reward) else np
    # Only a row that begins an episode has length 0: after a reset, and after an autoreset.
    first = state.first if isinstance(state, Seen) else state.info["episode_length"] == 0
    zero, one, usual = np.array([0.0, 1.0, discount], np.float32)
    last = state.termination | state.truncation
    step_type = lib.where(first, FIRST, lib.where(last, LAST, MID))
    reward = lib.where(first, zero, state.reward)
    factor = lib.where(first, one, lib.where(state.termination, zero, usual))
    return TimeStep(step_type, reward, factor, observation(state.obs, obs_spec))


def observation(obs: Nest, obs_spec: Nest) -> Nest:
    """Returns observations as a nest of dicts and tuples, of which the specs are made too."""
    return tf.nest.pack_sequence_as(specs.plain(obs_spec), tf.nest.flatten(obs))


def time_step_spec(obs_spec: Nest) -> TimeStep:
    """Returns the array specs of a time step.

    Args:
      obs_spec: The nest of specs of one observation.
    """
    return time_step_lib.time_step_spec(specs.array_spec(obs_spec, "observation"))


def split_action_mask(obs: Nest) -> tuple[Nest, Nest]:
    """Parts an observation, or its spec, from its action mask.

    It is what TF-Agents' agents and policies take as `observation_and_action_constraint_splitter`
    for environments whose observation has the item `action_mask`.

    Args:
      obs: A nest of observations or of specs.

    Returns:
      What the network sees, and the mask.
    """
    return split_mask(obs)
