"""Environments: the protocol, the registry, wrappers, and environments written in TensorFlow."""

from tfrl.envs import testing
from tfrl.envs.adapters.pettingzoo import make_pettingzoo
from tfrl.envs.checker import check_env
from tfrl.envs.core import Autoreset, Env, Wrapper
from tfrl.envs.multi_agent import MultiAgentEnv
from tfrl.envs.registry import env_ids, make_env, register, register_suite
from tfrl.envs.tf import cartpole, pendulum, relay
from tfrl.envs.vectorize import vectorize

register("tf:CartPole-v1", cartpole.CartPole, max_episode_steps=cartpole.MAX_EPISODE_STEPS)
register("tf:Pendulum-v1", pendulum.Pendulum, max_episode_steps=pendulum.MAX_EPISODE_STEPS)
register("tf:Relay-v0", relay.Relay, max_episode_steps=relay.MAX_EPISODE_STEPS)
register("testing:Chain", testing.Chain, max_episode_steps=100)
register("testing:ConstantReward", testing.ConstantReward)
register("testing:Identity", testing.Identity)
register("testing:MemoryRecall", testing.MemoryRecall)
register("testing:Scripted", testing.ScriptedEnv)
register_suite("pettingzoo", make_pettingzoo)

__all__ = [
    "Autoreset",
    "Env",
    "MultiAgentEnv",
    "Wrapper",
    "check_env",
    "env_ids",
    "make_env",
    "register",
    "register_suite",
    "testing",
    "vectorize",
]
