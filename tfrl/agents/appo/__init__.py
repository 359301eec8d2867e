"""APPO: PPO's surrogate on V-trace's targets, for asynchronous collectors."""

from tfrl.agents.appo.agent import APPO

__all__ = ["APPO"]
