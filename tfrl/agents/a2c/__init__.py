"""Advantage actor-critic."""

from tfrl.agents.a2c.agent import A2C

__all__ = ["A2C"]
