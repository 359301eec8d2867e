"""Agents: static logic over an AgentState; one folder an algorithm."""

from tfrl.agents.a2c import A2C
from tfrl.agents.actor_critic import ActorCritic
from tfrl.agents.core import Agent, OwnUpdate, Update
from tfrl.agents.dqn import DQN
from tfrl.agents.impala import Impala
from tfrl.agents.multi_agent import MultiAgent
from tfrl.agents.off_policy import OffPolicy
from tfrl.agents.ppo import PPO
from tfrl.agents.random import RandomAgent
from tfrl.agents.reinforce import Reinforce
from tfrl.agents.sac import SAC
from tfrl.agents.td3 import DDPG, TD3

__all__ = [
    "A2C",
    "DDPG",
    "DQN",
    "PPO",
    "SAC",
    "TD3",
    "ActorCritic",
    "Agent",
    "Impala",
    "MultiAgent",
    "OffPolicy",
    "OwnUpdate",
    "RandomAgent",
    "Reinforce",
    "Update",
]
