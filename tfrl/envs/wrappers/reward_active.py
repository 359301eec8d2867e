"""Pays agents only for steps that they took part in."""

import tensorflow as tf

from tfrl import struct
from tfrl.envs.core import Wrapper
from tfrl.types import EnvState, Nest


@struct.logic_dataclass
class RewardActive(Wrapper):
    """Sets the reward of an inactive agent to 0, whatever the environment pays it.

    `tfrl.envs.MultiAgentEnv` asks for that anyway; this holds one to it that comes from elsewhere.
    On either side of the autoreset; without `info["agents"]` it changes nothing.
    """

    def step(self, state: EnvState, action: Nest) -> EnvState:
        """Takes one step in every environment."""
        new = self.env.step(state, action)
        agents = new.info.get("agents")
        if agents is None:
            return new
        reward = {name: tf.where(agents[name]["active"], r, 0.0) for name, r in new.reward.items()}
        return new.replace(reward=reward)
