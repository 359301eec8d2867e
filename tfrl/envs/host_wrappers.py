"""Splits wrappers of host environments, and removes reward wrappers."""

import functools
from collections.abc import Iterable
from typing import Any

import numpy as np
import tensorflow as tf

from tfrl.envs.backend import Backend, Step
from tfrl.envs.core import Autoreset, Env, Wrapper
from tfrl.envs.host_env import HostEnv, Wrapping
from tfrl.envs.host_rewards import Normalized
from tfrl.envs.wrappers.base import RewardWrapper
from tfrl.envs.wrappers.rewards import RewardNormalize, RewardSparse
from tfrl.errors import UserError
from tfrl.types import Nest


class _Nothing(Backend):
    """Dummy environments to classify wrappers."""

    name, num_envs, info_spec = "nothing", 1, {}
    obs_spec, action_spec = tf.TensorSpec([1]), tf.TensorSpec([1])

    def __init__(self, autoreset: Autoreset):
        self.autoreset = autoreset

    def reset(self, seeds: np.ndarray) -> Step:
        raise NotImplementedError

    def send(self, action: Nest) -> None:
        raise NotImplementedError

    def receive(self) -> Step:
        raise NotImplementedError

    def copy(
        self, num_envs: int, render: bool = False, autoreset: Autoreset | None = None
    ) -> Backend:
        raise NotImplementedError

    def close(self) -> None:
        return


def split_wrappers(wrappers: Iterable[Wrapping]) -> tuple[list[Wrapping], list[Wrapping]]:
    """Splits the wrappers of device environments, for `HostEnv.wrapped`, from all others.

    Args:
      wrappers: Functions from environments to environments.

    Returns:
      The wrappers of device environments, and the others.
    """
    ours: list[Wrapping] = []
    others: list[Wrapping] = []
    for wrapper in wrappers:
        probe = HostEnv(_Nothing(Autoreset.SAME_STEP), Autoreset.SAME_STEP)
        try:
            wrapped = wrapper(probe)
        except Exception:  # noqa: BLE001  (other wrappers raise various errors here)
            wrapped = None
        (ours if isinstance(wrapped, Wrapper) else others).append(wrapper)
    return ours, others


def reward_wrappers(name: str, wrappers: Iterable[Wrapping], remedy: str) -> list[Wrapping]:
    """Returns the outer wrappers, which may only be tfrl's reward wrappers."""
    ours, others = split_wrappers(wrappers)
    if others:
        raise UserError(
            f"outer_wrappers of {name}",
            expected="RewardScale, RewardClip or RewardNormalize",
            got=f"unsupported wrappers ({len(others)})",
            remedy=remedy,
        )
    return ours


def refuse_device_wrappers(name: str, wrappers: Iterable[Any], expected: str, library: str) -> None:
    """Raises a UserError for a device environment's wrapper among another library's."""
    for wrapper in wrappers:
        parts: list[Any] = [wrapper]
        if isinstance(wrapper, functools.partial):
            parts = [wrapper.func, *wrapper.args]
        for part in parts:
            if isinstance(part, type) and issubclass(part, Env):
                raise UserError(
                    f"wrappers of {name}",
                    expected=expected,
                    got=f"{part.__name__}, a wrapper of device environments",
                    remedy=f"Use the equivalent wrapper of {library}, or pass RewardScale, "
                    "RewardClip or RewardNormalize as outer_wrappers.",
                )


def normalizes_rewards(env: Env) -> bool:
    """Returns whether `RewardNormalize` is among the wrappers of an environment."""
    if isinstance(env, HostEnv):
        return any(isinstance(reward, Normalized) for reward in env.rewards)
    return isinstance(env, Wrapper) and (
        isinstance(env, RewardNormalize) or normalizes_rewards(env.env)
    )


def with_task_rewards(env: Env) -> Env:
    """Returns the environment without the wrappers above its autoreset that change rewards.

    They only change rewards for learning: `info["episode_return"]` has the task's rewards, and
    evaluations should too. A wrapper below the autoreset is part of the task.

    Args:
      env: An environment with an autoreset mode.
    """
    if isinstance(env, HostEnv):
        return env.with_task_rewards()
    if not isinstance(env, Wrapper) or env.env.autoreset is None:
        return env
    inner = with_task_rewards(env.env)
    if isinstance(env, RewardWrapper | RewardSparse | RewardNormalize):
        return inner
    outer: Any = env
    return env if inner is env.env else outer.replace(env=inner)
