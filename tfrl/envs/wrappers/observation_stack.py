"""Stacks the last observations."""

import numpy as np
import tensorflow as tf

from tfrl import specs, struct
from tfrl.envs.core import carrying
from tfrl.envs.wrappers.base import StatefulWrapper, WrapperState, require_bare, require_count
from tfrl.errors import UserError
from tfrl.types import EnvState, Nest

PADDINGS = ("reset", "zero")


@struct.logic_dataclass
class ObservationStack(StatefulWrapper):
    """Observes the last `num` observations, the newest last; below the autoreset only.

    History is cleared at the start of every episode, and `final_obs` has the history of the episode
    that ended.

    Attributes:
      env: A bare environment.
      num: How many observations.
      concat: False for a new first axis, [num, ...], as Gymnasium's FrameStackObservation; True to
        join them along the last axis (channels of images, elements of vectors).
      padding: What stands before the first observation: copies of it ("reset") or zeros ("zero").
    """

    num: int
    concat: bool = False
    padding: str = "reset"

    def __post_init__(self) -> None:
        """Checks the side, the number and the padding."""
        require_bare(self, "Above the autoreset the history would mix two episodes.")
        require_count("ObservationStack.num", self.num)
        if self.padding not in PADDINGS:
            raise UserError(
                "ObservationStack.padding",
                expected=f"one of {', '.join(PADDINGS)}",
                got=repr(self.padding),
                remedy="Choose one of them.",
            )

    @property
    def obs_spec(self) -> Nest:
        """The wrapped environment's, stacked."""
        return tf.nest.map_structure(self._stack_spec, self.env.obs_spec)

    def _stack_spec(self, spec: tf.TensorSpec) -> specs.BoundedTensorSpec:
        low, high = (self._stack_array([b] * self.num) for b in specs.bounds(spec))
        if self.padding == "zero":
            low, high = np.minimum(low, 0), np.maximum(high, 0)
        kind = spec.dtype.as_numpy_dtype
        low, high = low.astype(kind), high.astype(kind)
        return specs.BoundedTensorSpec(low.shape, spec.dtype, low, high, spec.name)

    def _stack_array(self, parts: list[np.ndarray]) -> np.ndarray:
        if self.concat:
            return np.concatenate([np.atleast_1d(p) for p in parts], axis=-1)
        return np.stack(parts)

    def _frames(self, obs: tf.Tensor) -> tf.Tensor:
        """[B, 1, ...], or at least [B, 1] to be joined along the last axis."""
        if not self.concat:
            return obs[:, tf.newaxis]
        return obs[:, tf.newaxis] if obs.shape.rank == 1 else obs

    def reset(self, key: tf.Tensor) -> EnvState:
        """Starts an episode in every environment."""

        def fill(obs: tf.Tensor) -> tf.Tensor:
            newest = self._frames(obs)
            oldest = newest if self.padding == "reset" else tf.zeros_like(newest)
            return tf.concat([oldest] * (self.num - 1) + [newest], axis=self._axis)

        state = self.env.reset(key)
        return self._with(state, tf.nest.map_structure(fill, state.obs))

    def step(self, state: EnvState, action: Nest) -> EnvState:
        """Takes one step in every environment."""

        def push(history: tf.Tensor, obs: tf.Tensor) -> tf.Tensor:
            newest = self._frames(obs)
            if self.concat:
                kept = history[..., newest.shape[-1] :]
            else:
                kept = history[:, 1:]
            return tf.concat([kept, newest], axis=self._axis)

        new = self.env.step(carrying(state.env_state.inner), action)
        return self._with(new, tf.nest.map_structure(push, state.env_state.own, new.obs))

    @property
    def _axis(self) -> int:
        return -1 if self.concat else 1

    def _with(self, state: EnvState, history: Nest) -> EnvState:
        carried = WrapperState(inner=state.env_state, own=history)
        return state.replace(env_state=carried, obs=history)
