"""Rescales actions from a common range to the bounds of the task."""

import numpy as np
import tensorflow as tf

from tfrl import specs, struct
from tfrl.envs.core import Wrapper
from tfrl.envs.wrappers.base import map_leaves, require_number
from tfrl.errors import UserError
from tfrl.types import EnvState, Nest


@struct.logic_dataclass
class ActionRescale(Wrapper):
    """Takes actions in [low, high] and maps them affinely to the bounds of the task.

      task_action = task_low + (action - low) (task_high - task_low) / (high - low)

    Nothing is clipped. Leaves that are not floating point stay as they are. On either side of the
    autoreset.

    Attributes:
      env: An environment whose floating point actions have finite bounds.
      low: Lower end of the range that actions are given in.
      high: Its upper end.
    """

    low: float = -1.0
    high: float = 1.0

    def __post_init__(self) -> None:
        """Checks the range and the task's bounds."""
        require_number("ActionRescale.low", self.low)
        require_number("ActionRescale.high", self.high, above=self.low)
        for path, spec in struct.paths(self.env.action_spec).items():
            if spec.dtype.is_floating and not np.isfinite(specs.bounds(spec)).all():
                raise UserError(
                    f"action {path}",
                    expected="finite bounds to rescale to",
                    got=f"[{specs.bounds(spec)[0].min():g}, {specs.bounds(spec)[1].max():g}]",
                    remedy="Leave out ActionRescale, or give the task's action bounds.",
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
