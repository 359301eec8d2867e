"""Time limits and frame rates that environments of TF-Agents have themselves."""

from typing import Any

from tf_agents.environments.batched_py_environment import BatchedPyEnvironment
from tf_agents.environments.gym_wrapper import GymWrapper
from tf_agents.environments.wrappers import PyEnvironmentBaseWrapper, TimeLimit

from tfrl.envs.backend import Backend


def own_limit(env: Any) -> int | None:
    """Returns the steps after which an environment of TF-Agents truncates its episodes itself.

    TF-Agents' TimeLimit, gym's below a GymWrapper, and `max_episode_steps` of an environment that
    says so are known; with wrappers that repeat actions between, episodes are shorter.
    """
    found = []
    while env is not None:
        if isinstance(env, BatchedPyEnvironment):
            env = env.envs[0]
        if isinstance(env, TimeLimit):
            found.append(int(env.duration))
        inside = env.wrapped_env() if isinstance(env, PyEnvironmentBaseWrapper) else None
        if isinstance(env, GymWrapper):
            found += _gym_limits(env.gym)
        elif inside is None:
            told = getattr(env, "max_episode_steps", None)
            found += [told] if isinstance(told, int) else []
        env = inside
    return min(found, default=None)


def _gym_limits(env: Any) -> list[int]:
    """The limits of gym's wrappers around an environment."""
    from gym import Wrapper
    from gym.wrappers import TimeLimit as GymTimeLimit

    found = []
    while isinstance(env, Wrapper):
        if isinstance(env, GymTimeLimit) and env._max_episode_steps is not None:
            found.append(int(env._max_episode_steps))
        env = env.env
    return found


def frames_per_second(env: Any) -> float:
    """Frames per second as gym's environments tell them."""
    metadata = getattr(env, "metadata", None)
    told = metadata.get("render_fps") if isinstance(metadata, dict) else None
    return float(told or Backend.render_fps)
