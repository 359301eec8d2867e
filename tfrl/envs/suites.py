"""The environments that ship with tfrl; imported at the registry's first use."""

import importlib
from typing import Any

from tfrl import extras
from tfrl.envs import testing
from tfrl.envs.adapters.pettingzoo import make_pettingzoo
from tfrl.envs.registry import SuiteMaker, register, register_suite
from tfrl.envs.tf import (
    acrobot,
    cartpole,
    catch,
    deep_sea,
    four_rooms,
    masked,
    memory,
    minatar,
    mountain_car,
    pendulum,
    relay,
)


def lazy(module: str, maker: str) -> SuiteMaker:
    """Returns the maker of a suite that imports its adapter and library at first use.

    Args:
      module: The adapter's module in `tfrl.envs.adapters`.
      maker: The name of the function in it.
    """

    def make(task: str, **kwargs: Any) -> Any:
        return getattr(importlib.import_module(f"tfrl.envs.adapters.{module}"), maker)(
            task, **kwargs
        )

    return make


def _make_tf_agents(task: str, **kwargs: Any) -> Any:
    extras.require_tf_agents(f"environment tf_agents:{task}")
    # By name, since compat/ is a higher layer, and only compat/ imports TF-Agents.
    suite = importlib.import_module("tfrl.compat.tf_agents_suite")
    return suite.make_tf_agents(task, **kwargs)


register("tf:Acrobot-v1", acrobot.Acrobot, max_episode_steps=acrobot.MAX_EPISODE_STEPS)
register("tf:CartPole-v1", cartpole.CartPole, max_episode_steps=cartpole.MAX_EPISODE_STEPS)
register("tf:Catch", catch.Catch, max_episode_steps=catch.MAX_EPISODE_STEPS)
register("tf:DeepSea", deep_sea.DeepSea, max_episode_steps=deep_sea.MAX_EPISODE_STEPS)
register("tf:FourRooms", four_rooms.FourRooms, max_episode_steps=four_rooms.MAX_EPISODE_STEPS)
register("tf:Masked", masked.Masked, max_episode_steps=masked.MAX_EPISODE_STEPS)
register("tf:Memory", memory.Memory, max_episode_steps=memory.MAX_EPISODE_STEPS)
register(
    "tf:MountainCar-v0",
    mountain_car.MountainCar,
    max_episode_steps=mountain_car.MAX_EPISODE_STEPS,
)
register(
    "tf:MountainCarContinuous-v0",
    mountain_car.MountainCarContinuous,
    max_episode_steps=mountain_car.CONTINUOUS_MAX_EPISODE_STEPS,
)
register("tf:Pendulum-v1", pendulum.Pendulum, max_episode_steps=pendulum.MAX_EPISODE_STEPS)
register("tf:Relay-v0", relay.Relay, max_episode_steps=relay.MAX_EPISODE_STEPS)
register("tf:Asterix-MinAtar", minatar.Asterix)
register("tf:Breakout-MinAtar", minatar.Breakout)
register("tf:Freeway-MinAtar", minatar.Freeway)
register("tf:Seaquest-MinAtar", minatar.Seaquest)
register("tf:SpaceInvaders-MinAtar", minatar.SpaceInvaders)
register("testing:Chain", testing.Chain, max_episode_steps=100)
register("testing:ConstantReward", testing.ConstantReward)
register("testing:Identity", testing.Identity)
register("testing:MemoryRecall", testing.MemoryRecall)
register("testing:Scripted", testing.ScriptedEnv)
register_suite("pettingzoo", make_pettingzoo)
register_suite("gymnasium", lazy("gymnasium", "make_gymnasium"))
register_suite("envpool", lazy("envpool", "make_envpool"))
register_suite("tf_agents", _make_tf_agents)
for _library in ("brax", "gymnax", "jumanji"):
    register_suite(f"jax/{_library}", lazy("jax.suites", f"make_{_library}"))
