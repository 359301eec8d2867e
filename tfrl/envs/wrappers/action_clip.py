"""Clips actions to the bounds of the task."""

import tensorflow as tf

from tfrl import specs, struct
from tfrl.envs.core import Wrapper
from tfrl.envs.wrappers.base import map_leaves
from tfrl.types import EnvState, Nest


@struct.logic_dataclass
class ActionClip(Wrapper):
    """Takes any real action and clips it to the bounds of the wrapped environment.

    As Gymnasium's ClipAction: the action spec has no bounds any more. Leaves that are not floating
    point stay as they are. On either side of the autoreset.
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
