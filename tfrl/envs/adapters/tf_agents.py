"""The suite `tf_agents`: PyEnvironments and TFEnvironments of TF-Agents."""

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any

from tfrl.envs.adapters import tf_agents_ids
from tfrl.envs.adapters.gymnasium_ids import unknown_argument
from tfrl.envs.adapters.tf_agents_backend import Source, TFAgentsBackend
from tfrl.envs.adapters.tf_agents_specs import Splitter
from tfrl.envs.core import Autoreset, Env
from tfrl.envs.host import refuse_cached
from tfrl.envs.host_env import HostEnv
from tfrl.envs.host_wrappers import split_wrappers
from tfrl.envs.registry import check_kwargs
from tfrl.errors import UserError

# Arguments of a function that are those of make_env.
_GENERAL = {"num_envs", "max_episode_steps"}


def make_tf_agents(
    task: str,
    *,
    num_envs: int,
    autoreset: Autoreset,
    max_episode_steps: int | None,
    wrappers: Sequence[Callable[..., Any]] = (),
    outer_wrappers: Sequence[Callable[..., Any]] = (),
    env: Callable[..., Any] | None = None,
    action_mask: str | Splitter | None = None,
    **kwargs: Any,
) -> HostEnv:
    """Makes `tf_agents:<task>`, for example `tf_agents:suite_gym/CartPole-v1`.

    A function of the user's is called for every environment of the batch. It may return a batched
    environment, whose size then has to divide `num_envs`; one with an argument `num_envs` is called
    once.

    Args:
      task: `suite_gym/CartPole-v1`, what `load` of a suite of `tf_agents.environments` makes;
        `module:function`, a function of the user's; or any name, with `env`.
      num_envs: How many (B).
      autoreset: NEXT_STEP, DISABLED, or SAME_STEP, which needs environments that can be reset one
        by one: those without a batch axis, BatchedPyEnvironment and ParallelPyEnvironment.
      max_episode_steps: As of `make_env`; at most the limit that the environments have themselves.
      wrappers: Functions `PyEnvironment -> PyEnvironment` around each environment.
      outer_wrappers: `RewardScale`, `RewardClip` and `RewardNormalize` only.
      env: A function that returns a PyEnvironment or a TFEnvironment.
      action_mask: The path of the action mask in the observation, such as `"mask"`; or a function
        from an observation to the rest and the mask, as TF-Agents' agents take as
        `observation_and_action_constraint_splitter`.
      **kwargs: Arguments of `load`, or of the function.

    Raises:
      UserError: For an unknown task or argument (with the nearest names), packages that are
        missing, specs that have no equal here, and what cannot be combined.
    """
    name = f"tf_agents:{task}"
    refuse_cached(name, autoreset)
    _check_mask_argument(name, action_mask)
    rewards, others = split_wrappers(outer_wrappers)
    if others:
        raise UserError(
            f"outer_wrappers of {name}",
            expected="RewardScale, RewardClip or RewardNormalize",
            got=f"{len(others)} others",
            remedy="Give functions PyEnvironment -> PyEnvironment as wrappers.",
        )
    make = tf_agents_ids.find(task, env)
    _check_kwargs(name, make, kwargs)
    _check_wrappers(name, wrappers)
    source = Source(
        name=name,
        make=functools.partial(_wrapped, functools.partial(make, **kwargs), tuple(wrappers)),
        takes_size="num_envs" in inspect.signature(make).parameters,
        limit=max_episode_steps,
        action_mask=action_mask,
    )
    same_step = autoreset is Autoreset.SAME_STEP
    mode = Autoreset.SAME_STEP if same_step else Autoreset.NEXT_STEP
    return HostEnv(TFAgentsBackend(source, num_envs, mode), autoreset).wrapped(rewards)


def _wrapped(make: Callable[..., Any], wrappers: Sequence[Callable[..., Any]], **size: int) -> Any:
    """Makes an environment and puts its wrappers around it."""
    env = make(**size)
    for wrap in wrappers:
        env = wrap(env)
    return env


def _check_mask_argument(name: str, action_mask: Any) -> None:
    if action_mask is not None and not isinstance(action_mask, str) and not callable(action_mask):
        raise UserError(
            f"action_mask of {name}",
            expected="the path of the mask in the observation, or a function obs -> (rest, mask)",
            got=repr(action_mask),
            remedy="Give for example action_mask='mask'.",
        )


def _check_kwargs(name: str, make: Callable[..., Any], kwargs: dict[str, Any]) -> None:
    """Refuses arguments that the function does not have, or that are missing."""
    parameters = inspect.signature(make).parameters.values()
    own = {p.name for p in parameters if p.kind is not inspect.Parameter.VAR_KEYWORD}
    unknown = sorted(set(kwargs) - own)
    if unknown and not any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters):
        raise unknown_argument(name, unknown[0], own - _GENERAL, ("action_mask", "env"))
    check_kwargs(name, make, kwargs)


def _check_wrappers(name: str, wrappers: Sequence[Callable[..., Any]]) -> None:
    """Refuses wrappers of device environments."""
    for wrapper in wrappers:
        kind = wrapper.func if isinstance(wrapper, functools.partial) else wrapper
        if isinstance(kind, type) and issubclass(kind, Env):
            raise UserError(
                f"wrappers of {name}",
                expected="functions PyEnvironment -> PyEnvironment",
                got=f"{kind.__name__}, a wrapper of device environments",
                remedy="Take one of tf_agents.environments.wrappers; RewardScale, RewardClip and "
                "RewardNormalize may be outer_wrappers.",
            )
