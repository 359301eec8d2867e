"""Deep Q-networks."""

from tfrl.agents.dqn.agent import DQN

__all__ = ["DQN"]
