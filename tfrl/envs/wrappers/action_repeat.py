"""Repeats every action: frame skip."""

from typing import Any

import tensorflow as tf

from tfrl import struct
from tfrl.envs.core import Wrapper, carrying, where_rows
from tfrl.envs.wrappers.base import require_bare, require_count
from tfrl.types import EnvState, Nest


@struct.logic_dataclass
class ActionRepeat(Wrapper):
    """Takes every action `repeat` times; the rewards add up, and an end stops the repetition.

    Below the autoreset only. Observation, flags and info are those of the last frame taken; but a
    flag of `info["agents"]`, of several agents, is True if it was in one of the frames. Counters of
    frames multiply steps by `action_repeat`.

    Attributes:
      env: A bare environment.
      repeat: Frames of one step.
    """

    repeat: int

    def __post_init__(self) -> None:
        """Checks the side and the number."""
        require_bare(self, "Above the autoreset it would add rewards of two episodes.")
        require_count("ActionRepeat.repeat", self.repeat)

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
    """Of several agents, who took part in any of the frames and who ended in any of them."""
    if "agents" not in info:
        return info
    joined = tf.nest.map_structure(tf.logical_or, before["agents"], info["agents"])
    return {**info, "agents": joined}
