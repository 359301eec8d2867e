"""Wrappers of actions: clipped, repeated, rescaled."""

from typing import Any

import numpy as np
import tensorflow as tf

from tfrl import checks, specs, struct
from tfrl.envs.core import Wrapper, carrying, where_rows
from tfrl.envs.wrappers.base import map_leaves, require_bare
from tfrl.errors import UserError
from tfrl.types import EnvState, Nest


@struct.logic_dataclass
class ActionClip(Wrapper):
    """Takes any real action and clips it to the bounds of the wrapped environment.

    As Gymnasium's ClipAction: the action spec becomes unbounded. Leaves that are not floating point
    are unchanged. On either side of the autoreset.
    """

    @property
    def action_spec(self) -> Nest:
        """The wrapped environment's, floating point leaves without bounds."""
        return tf.nest.map_structure(
            lambda s: tf.TensorSpec(s.shape, s.dtype, s.name) if s.dtype.is_floating else s,
            self.env.action_spec,
        )

    def step(self, state: EnvState, action: Nest) -> EnvState:
        """Takes one step in every environment."""
        return self.env.step(state, map_leaves(_clip, self.env.action_spec, action))


def _clip(spec: tf.TensorSpec, action: tf.Tensor) -> tf.Tensor:
    if not spec.dtype.is_floating:
        return action
    low, high = specs.bounds(spec)
    return tf.clip_by_value(action, low, high)


@struct.logic_dataclass
class ActionRepeat(Wrapper):
    """Repeats every action `repeat` times and sums the rewards; an end stops the repetition.

    Only inside the autoreset. Observation, flags and info are those of the last frame; but flags of
    `info["agents"]` are True if they were in any of the frames. Counters of frames multiply steps
    by `action_repeat`.

    Attributes:
      env: A bare environment.
      repeat: Frames per step.
    """

    repeat: int

    def __post_init__(self) -> None:
        """Checks the side and the number."""
        require_bare(self, "Above the autoreset it sums rewards of two episodes.")
        checks.at_least("ActionRepeat.repeat", self.repeat, 1)

    @property
    def action_repeat(self) -> int:
        """Frames of the task that one step takes."""
        return self.repeat * self.env.action_repeat

    def step(self, state: EnvState, action: Nest) -> EnvState:
        """Takes one step, of up to `repeat` frames, in every environment."""
        state = self.env.step(state, action)
        for _ in range(self.repeat - 1):
            ended = tf.logical_or(state.termination, state.truncation)
            new = self.env.step(carrying(state.env_state), action)
            total = tf.nest.map_structure(tf.add, state.reward, new.reward)
            new = new.replace(reward=total, info=_joined(state.info, new.info))
            state = where_rows(ended, state, new)
        return state


def _joined(before: dict[str, Any], info: dict[str, Any]) -> dict[str, Any]:
    """With several agents, the union over frames of active and end flags."""
    if "agents" not in info:
        return info
    joined = tf.nest.map_structure(tf.logical_or, before["agents"], info["agents"])
    return {**info, "agents": joined}


@struct.logic_dataclass
class ActionRescale(Wrapper):
    """Takes actions in [low, high] and maps them affinely to the bounds of the task.

      task_action = task_low + (action - low) (task_high - task_low) / (high - low)

    It does not clip. Leaves that are not floating point are unchanged. On either side of the
    autoreset.

    Attributes:
      env: An environment whose floating point actions have finite bounds.
      low: Lower end of the action range.
      high: Its upper end.
    """

    low: float = -1.0
    high: float = 1.0

    def __post_init__(self) -> None:
        """Checks the range and the task's bounds."""
        checks.number("ActionRescale.low", self.low)
        checks.number("ActionRescale.high", self.high, self.low, closed=False)
        for path, spec in struct.paths(self.env.action_spec).items():
            if spec.dtype.is_floating and not np.isfinite(specs.bounds(spec)).all():
                raise UserError(
                    f"action {path}",
                    expected="finite bounds for ActionRescale",
                    got=f"[{specs.bounds(spec)[0].min():g}, {specs.bounds(spec)[1].max():g}]",
                    remedy="Remove ActionRescale, or set the task's action bounds.",
                )

    @property
    def action_spec(self) -> Nest:
        """The wrapped environment's, floating point leaves in [low, high]."""
        return tf.nest.map_structure(
            lambda s: (
                specs.BoundedTensorSpec(s.shape, s.dtype, self.low, self.high, s.name)
                if s.dtype.is_floating
                else s
            ),
            self.env.action_spec,
        )

    def step(self, state: EnvState, action: Nest) -> EnvState:
        """Takes one step in every environment."""
        return self.env.step(state, map_leaves(self._rescale, self.env.action_spec, action))

    def _rescale(self, spec: tf.TensorSpec, action: tf.Tensor) -> tf.Tensor:
        if not spec.dtype.is_floating:
            return action
        task_low, task_high = (b.astype(np.float64) for b in specs.bounds(spec))
        scale = (task_high - task_low) / (self.high - self.low)
        shift = task_low - self.low * scale
        return action * tf.constant(scale, spec.dtype) + tf.constant(shift, spec.dtype)
