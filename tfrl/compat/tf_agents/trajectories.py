"""Converts trajectories of this library to TF-Agents' trajectories and transitions, and back.

Both index steps equally: row t has o_t, a_t and the outcome. They differ at ends of episodes.
TF-Agents stores frames: o_{t+1} is the observation of the next frame. So the last step of an
episode is followed by a boundary frame (LAST, followed by FIRST) with the terminal observation.
Here every row has its successor, and the invalid row of autoreset NEXT_STEP is the boundary frame.
So T rows are T frames, and one more frame has the successor of the last row.
"""

from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from tf_agents.trajectories import PolicyStep, StepType, TimeStep
from tf_agents.trajectories import Trajectory as Frames
from tf_agents.trajectories import Transition as FramePair
from tf_agents.trajectories import time_step as time_step_lib

from tfrl.compat.tf_agents import specs
from tfrl.compat.tf_agents.specs import plain
from tfrl.envs.action_masks import split_mask
from tfrl.errors import UserError
from tfrl.types import EnvState, Nest, Trajectory, Transition

FIRST, MID, LAST = (np.int32(kind) for kind in (StepType.FIRST, StepType.MID, StepType.LAST))


class Seen(NamedTuple):
    """The content of a time step, leaves `[B, ...]`, or without this axis for one environment.

    Attributes:
      obs: A nest of observations.
      reward: The reward of the last step; 0 at the start of an episode.
      termination: bool; the episode ended in a terminal state.
      truncation: bool; the episode was truncated.
      first: bool; the time step begins an episode. After an end this row is not a step.
    """

    obs: Nest
    reward: Any
    termination: Any
    truncation: Any
    first: Any


def from_time_step(step: TimeStep) -> Seen:
    """Converts a time step of TF-Agents to the terms of this library.

    Args:
      step: A time step of tensors or NumPy arrays, batched or not.

    Returns:
      The content; an end with discount 0 is a termination, any other end a truncation.
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
    """Converts a state of environments with autoreset NEXT_STEP to a time step.

    The step type is FIRST at the start of an episode, LAST at its end, else MID. The discount is 0
    at a termination, 1 at FIRST, and `discount` at all other steps, including truncations.

    Args:
      state: The result of `reset` or `step`, of tensors or NumPy arrays `[B, ...]`; or the result
        of `from_time_step`.
      obs_spec: The nest of specs of one observation.
      discount: The discount of steps that do not terminate; above 0.

    Returns:
      A batched time step of the same kind: int32, float32 and float32 `[B]`, and observations.
    """
    lib: Any = tf if tf.is_tensor(state.reward) else np
    # Only a row that begins an episode has length 0, after a reset or an autoreset.
    first = state.first if isinstance(state, Seen) else state.info["episode_length"] == 0
    zero, one, usual = np.array([0.0, 1.0, discount], np.float32)
    last = state.termination | state.truncation
    step_type = lib.where(first, FIRST, lib.where(last, LAST, MID))
    reward = lib.where(first, zero, state.reward)
    factor = lib.where(first, one, lib.where(state.termination, zero, usual))
    return TimeStep(step_type, reward, factor, observation(state.obs, obs_spec))


def observation(obs: Nest, obs_spec: Nest) -> Nest:
    """Returns observations as a nest of dicts and tuples, like the specs."""
    return tf.nest.pack_sequence_as(specs.plain(obs_spec), tf.nest.flatten(obs))


def time_step_spec(obs_spec: Nest) -> TimeStep:
    """Returns the array specs of a time step.

    Args:
      obs_spec: The nest of specs of one observation.
    """
    return time_step_lib.time_step_spec(specs.array_spec(obs_spec, "observation"))


def split_action_mask(obs: Nest) -> tuple[Nest, Nest]:
    """Splits an observation, or its spec, from its action mask.

    Use it as `observation_and_action_constraint_splitter` of TF-Agents' agents and policies, for
    observations with the item `action_mask`.

    Args:
      obs: A nest of observations or of specs.

    Returns:
      The network's input, and the mask.
    """
    return split_mask(obs)


def to_trajectory(
    steps: Trajectory,
    *,
    discount: float = 1.0,
    first: Any = None,
    policy_info: Nest = None,
    time_major: bool = True,
) -> Frames:
    """Converts T steps to T + 1 frames of TF-Agents, batch-major.

    An end that is both a termination and a truncation becomes a termination. The last frame shows
    the successor of the last row: it repeats the last action and policy info, and its reward (0),
    discount (1) and next step type are placeholders. TF-Agents mostly ignores them, but behavioural
    cloning learns the action (leave the frame out), and PPO's normaliser counts the reward.

    Args:
      steps: Leaves `[T, B, ...]`, of tensors or NumPy arrays, of autoreset NEXT_STEP or DISABLED;
        or of one episode each, as in `Sequences`.
      discount: The discount of steps that do not terminate; above 0.
      first: bool `[B]` or scalar: whether row 0 begins an episode. None reads
        `env_extras["episode_length"]` if recorded, else it is False.
      policy_info: The policy info, leaves like those of `steps`; None for `steps.policy_extras`.
      time_major: False for leaves `[B, T, ...]`.

    Returns:
      A TF-Agents Trajectory `[B, T + 1, ...]` of the same kind of arrays.

    Raises:
      UserError: For an end that the next row does not show, as in experience of SAME_STEP. Inside a
        `tf.function` this cannot be checked, and the frames are wrong.
    """
    steps = steps if time_major else _swapped(steps)
    _check_boundaries(steps)
    ended = steps.termination | steps.truncation
    step_type = _step_types(steps, _begins(steps, first))  # [T, B]
    # Two invalid rows, or an invalid row with flags, are padding: no episode begins there.
    before = _concat([steps.valid[:1] | True, steps.valid])[-2]
    shows_end = ended[-1] | ~(before | steps.valid[-1])
    final = _where(shows_end, LAST, _where(steps.valid[-1], MID, FIRST))
    step_type = _concat([step_type, final[None]])
    after_final = _where(shows_end, FIRST, MID)
    info = steps.policy_extras if policy_info is None else policy_info
    frames = Frames(
        step_type=step_type,
        observation=_with_last(plain(steps.obs), plain(steps.next_obs)),
        action=_with_last(plain(steps.action)),
        policy_info=() if info is None else _with_last(plain(info)),
        next_step_type=_concat([step_type[1:], after_final[None]]),
        reward=_padded(_rewards(steps), 0.0),
        discount=_padded(_discounts(steps, discount), 1.0),
    )
    return _swapped(frames)


def to_transitions(
    steps: Trajectory | Transition, gamma: float = 1.0, *, first: Any = None
) -> FramePair:
    """Converts steps, or items of a replay buffer, to TF-Agents' transitions, for any autoreset.

    TF-Agents' losses multiply `next_time_step.discount` by their gamma. So the discount of an item
    of k steps is gamma^(k - 1), as in `AsNStepTransition`, which gives the same targets. An invalid
    row becomes a transition from LAST to FIRST, like a boundary frame. DQN masks these; SAC and TD3
    do not, so leave invalid rows out for them.

    Args:
      steps: A Trajectory, leaves `[T, B, ...]`, for T * B transitions of one step; or a
        Transition, leaves `[N, ...]`.
      gamma: The discount of a Transition, above 0.
      first: See `to_trajectory`.

    Returns:
      A TF-Agents Transition, leaves `[T * B, ...]` or `[N, ...]`, of the same kind of arrays.
      Reward and discount of `time_step` are unused zeros. An item's step types are MID, but LAST
      after a termination.

    Raises:
      UserError: Unless gamma is above 0.
    """
    if isinstance(steps, Transition):
        return _items(steps, gamma)
    ended = steps.valid & (steps.termination | steps.truncation)
    next_step_type = _where(steps.valid, _where(ended, LAST, MID), FIRST)
    pair = _pair(
        steps,
        _step_types(steps, _begins(steps, first)),
        next_step_type,
        _rewards(steps),
        _discounts(steps, 1.0),
        steps.policy_extras,
    )
    return tf.nest.map_structure(_merged, pair)


def from_trajectory(trajectory: Frames, *, time_major: bool = True) -> Trajectory:
    """Converts T + 1 frames of TF-Agents to T steps in the form of autoreset NEXT_STEP.

    Boundary frames become invalid rows. An end with discount 0 is a termination, any other end a
    truncation; the discounts themselves are dropped.

    Args:
      trajectory: A TF-Agents Trajectory `[B, T + 1, ...]` with its boundary frames, of tensors or
        NumPy arrays.
      time_major: False for leaves `[B, T, ...]`.

    Returns:
      A trajectory, leaves `[T, B, ...]`, of the same kind of arrays. Policy info becomes
      `policy_extras`; `env_extras` is None.

    Raises:
      UserError: For fewer than two frames; for an end without a boundary frame (not checked inside
        a `tf.function`).
    """
    _check_frames(trajectory)
    steps = steps_of(trajectory)
    return _swapped(steps) if time_major else steps


def steps_of(trajectory: Frames) -> Trajectory:
    """Converts frames `[B, T + 1, ...]` to rows `[B, T, ...]`; see `from_trajectory`."""
    now = tf.nest.map_structure(lambda x: x[:, :-1], trajectory)
    after = tf.nest.map_structure(lambda x: x[:, 1:], trajectory.observation)
    valid = now.step_type != LAST
    ends = valid & (now.next_step_type == LAST)
    terminal = now.discount == 0.0
    has_info = bool(tf.nest.flatten(now.policy_info))
    return Trajectory(
        obs=now.observation,
        action=now.action,
        reward=now.reward,
        next_obs=after,
        termination=ends & terminal,
        truncation=ends & ~terminal,
        valid=valid,
        policy_extras=now.policy_info if has_info else None,
    )


def _items(items: Transition, gamma: float) -> FramePair:
    if not gamma > 0.0:
        raise UserError(
            "gamma",
            expected="a number above 0, the discount of TF-Agents' losses",
            got=gamma,
            remedy="Pass the discount of the items.",
        )
    terminal = items.discount == 0.0
    mid = _where(terminal, MID, MID)  # [N]
    info = (items.extras or {}).get("policy_extras")
    discount = items.discount / np.float32(gamma)
    return _pair(items, mid, _where(terminal, LAST, MID), items.reward, discount, info)


def _pair(
    steps: Any, step_type: Any, next_step_type: Any, reward: Nest, discount: Any, info: Nest
) -> FramePair:
    nothing = tf.nest.map_structure(_zeros_like, reward)
    return FramePair(
        time_step=TimeStep(step_type, nothing, _zeros_like(discount), plain(steps.obs)),
        action_step=PolicyStep(plain(steps.action), (), () if info is None else plain(info)),
        next_time_step=TimeStep(next_step_type, reward, discount, plain(steps.next_obs)),
    )


def _begins(steps: Trajectory, first: Any) -> Any:
    """Returns whether row 0 begins an episode, bool [B]."""
    if first is None:
        length = (steps.env_extras or {}).get("episode_length")
        # The length includes the row's step.
        first = False if length is None else length[0] == 1
    return steps.valid[0] & first


def _step_types(steps: Trajectory, begins: Any) -> Any:
    """Returns the step types of rows, int32 [T, B]; `begins` [B] is for row 0."""
    over = ~steps.valid | steps.termination | steps.truncation
    begins = _concat([begins[None], over[:-1]])
    return _where(steps.valid, _where(begins, FIRST, MID), LAST)


def _rewards(steps: Trajectory) -> Nest:
    return tf.nest.map_structure(lambda r: _where(steps.valid, r, _zeros_like(r)), steps.reward)


def _discounts(steps: Trajectory, discount: float) -> Any:
    usual = _where(steps.valid, np.float32(discount), np.float32(1.0))
    return _where(steps.valid & steps.termination, np.float32(0.0), usual)


def _check_boundaries(steps: Trajectory) -> None:
    ended = steps.valid & (steps.termination | steps.truncation)
    missing = _known(ended[:-1] & steps.valid[1:])
    if missing is not None and missing.any():
        t, b = np.argwhere(missing)[0]
        raise UserError(
            "to_trajectory",
            expected="an invalid row with the terminal observation after each end, since "
            "TF-Agents' frames have no next observation",
            got=f"an end in row {t} of environment {b}, and a step in row {t + 1}",
            remedy="Collect with autoreset='NEXT_STEP', or use to_transitions.",
        )


def _check_frames(trajectory: Frames) -> None:
    shape = trajectory.step_type.shape
    if len(shape) != 2 or shape[1] is not None and shape[1] < 2:
        raise UserError(
            "from_trajectory",
            expected="a TF-Agents Trajectory of leaves [B, T + 1, ...] with at least two frames",
            got=f"step_type of shape {list(shape)}",
            remedy="Pass frames with batch and time axes, whose last frame is the next "
            "observation.",
        )
    is_step = trajectory.step_type[:, :-1] != LAST
    ends = is_step & (trajectory.next_step_type[:, :-1] == LAST)
    missing = _known(ends & (trajectory.step_type[:, 1:] != LAST))
    if missing is not None and missing.any():
        b, t = np.argwhere(missing)[0]
        raise UserError(
            "from_trajectory",
            expected="a boundary frame, whose step type is LAST, after each end",
            got=f"an end in frame {t} of row {b}, and a new episode in frame {t + 1}",
            remedy="Store the boundary frames, which TF-Agents' drivers pass to observers.",
        )


# TensorFlow's functions for tensors, NumPy's for arrays.


def _known(x: Any) -> np.ndarray | None:
    """Returns the value of an array or an eager tensor; None while tracing."""
    return tf.get_static_value(x) if tf.is_tensor(x) else np.asarray(x)


def _where(condition: Any, x: Any, y: Any) -> Any:
    return tf.where(condition, x, y) if tf.is_tensor(condition) else np.where(condition, x, y)


def _zeros_like(x: Any) -> Any:
    return tf.zeros_like(x) if tf.is_tensor(x) else np.zeros_like(x)


def _concat(parts: list[Any]) -> Any:
    return (tf.concat if tf.is_tensor(parts[0]) else np.concatenate)(parts, axis=0)


def _with_last(nest: Nest, after: Nest = None) -> Nest:
    """Appends to rows [T, ...] the last row of `after`, by default of `nest`."""
    after = nest if after is None else after
    return tf.nest.map_structure(lambda x, y: _concat([x, y[-1:]]), nest, after)


def _padded(nest: Nest, value: float) -> Nest:
    """Appends to rows [T, ...] a row of a single value."""
    return tf.nest.map_structure(
        lambda x: _concat([x, _zeros_like(x[-1:]) + np.asarray(value).astype(_dtype(x))]), nest
    )


def _dtype(x: Any) -> Any:
    return x.dtype.as_numpy_dtype if tf.is_tensor(x) else x.dtype


def _swapped(nest: Nest) -> Nest:
    """Swaps the two leading axes of every leaf."""

    def swap(x: Any) -> Any:
        if not tf.is_tensor(x):
            return np.swapaxes(x, 0, 1)
        return tf.transpose(x, [1, 0, *range(2, x.shape.rank)])

    return tf.nest.map_structure(swap, nest)


def _merged(x: Any) -> Any:
    """Merges the two leading axes."""
    if not tf.is_tensor(x):
        return np.reshape(x, (-1, *x.shape[2:]))
    return tf.reshape(x, tf.concat([[-1], tf.shape(x)[2:]], axis=0))
