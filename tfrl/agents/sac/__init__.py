"""Soft actor-critic."""

from tfrl.agents.sac.agent import SAC

__all__ = ["SAC"]
