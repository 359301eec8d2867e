"""Agents: static logic over an AgentState; one folder an algorithm."""

from tfrl.agents.core import Agent, Update
from tfrl.agents.multi_agent import MultiAgent
from tfrl.agents.ppo import PPO
from tfrl.agents.random import RandomAgent

__all__ = ["PPO", "Agent", "MultiAgent", "RandomAgent", "Update"]
