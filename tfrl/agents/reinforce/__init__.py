"""REINFORCE with a baseline."""

from tfrl.agents.reinforce.agent import Reinforce

__all__ = ["Reinforce"]
