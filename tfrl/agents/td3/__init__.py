"""Twin delayed deep deterministic policy gradient, and DDPG."""

from tfrl.agents.td3.agent import DDPG, TD3

__all__ = ["DDPG", "TD3"]
