"""Pays the rewards of an episode at its end."""

import tensorflow as tf

from tfrl import struct
from tfrl.envs.core import carrying, where_rows
from tfrl.envs.wrappers.base import StatefulWrapper, WrapperState, require_autoreset
from tfrl.types import EnvState, Nest


@struct.logic_dataclass
class RewardSparse(StatefulWrapper):
    """Pays 0, and at the step that ends an episode the sum of its rewards.

    Above the autoreset only: there it sees time limits too.
    """

    def __post_init__(self) -> None:
        """Checks the side."""
        require_autoreset(self, "Below it an episode that the time limit cuts would never be paid.")

    def reset(self, key: tf.Tensor) -> EnvState:
        """Starts an episode in every environment."""
        state = self.env.reset(key)
        return state.replace(env_state=WrapperState(inner=state.env_state, own=state.reward))

    def step(self, state: EnvState, action: Nest) -> EnvState:
        """Takes one step in every environment."""
        new = self.env.step(carrying(state.env_state.inner), action)
        total = tf.nest.map_structure(tf.add, state.env_state.own, new.reward)
        nothing = tf.nest.map_structure(tf.zeros_like, total)
        ended = tf.logical_or(new.termination, new.truncation)
        # Rows that are no steps have reward 0 after a total of 0: they pay nothing either.
        paid = where_rows(ended, total, nothing)
        owed = where_rows(ended, nothing, total)
        return new.replace(env_state=WrapperState(inner=new.env_state, own=owed), reward=paid)
