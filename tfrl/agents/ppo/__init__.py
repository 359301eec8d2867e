"""Proximal policy optimisation."""

from tfrl.agents.ppo.agent import PPO

__all__ = ["PPO"]
