"""Agents: static logic over an AgentState; one folder an algorithm."""

from tfrl.agents.a2c import A2C
from tfrl.agents.actor_critic import ActorCritic
from tfrl.agents.core import Agent, Update
from tfrl.agents.impala import Impala
from tfrl.agents.multi_agent import MultiAgent
from tfrl.agents.ppo import PPO
from tfrl.agents.random import RandomAgent
from tfrl.agents.reinforce import Reinforce

__all__ = [
    "A2C",
    "PPO",
    "ActorCritic",
    "Agent",
    "Impala",
    "MultiAgent",
    "RandomAgent",
    "Reinforce",
    "Update",
]
