"""The rewards of the task, whatever training pays."""

from typing import Any

from tfrl.envs.core import Env, Wrapper
from tfrl.envs.host_env import HostEnv
from tfrl.envs.wrappers.base import RewardWrapper
from tfrl.envs.wrappers.reward_normalize import RewardNormalize
from tfrl.envs.wrappers.reward_sparse import RewardSparse


def with_task_rewards(env: Env) -> Env:
    """Returns the environment without the wrappers above its autoreset that change rewards.

    What they pay is for learning: `info["episode_return"]` is the task's with them too, and so
    should an evaluation be. A wrapper below the autoreset belongs to the task.

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
