"""The suite `envpool`: environments in C++ threads, of the EnvPool package."""

import math
import numbers
from collections.abc import Callable, Sequence
from typing import Any

from tfrl import extras
from tfrl.envs.adapters.envpool_backend import EnvPoolBackend
from tfrl.envs.core import Autoreset
from tfrl.envs.host import refuse_cached
from tfrl.envs.host_env import HostEnv
from tfrl.envs.host_halves import buffered
from tfrl.envs.host_wrappers import split_wrappers
from tfrl.errors import UserError, did_you_mean, nearest

# What the library gives itself, or what would break a batch; each with what to do instead.
_OWN = {
    "batch_size": "All environments are stepped together.",
    "env_seed": "Seeds are given by reset.",
    "env_type": "It is always gymnasium.",
    "gym_reset_return_info": "It is always True.",
    "max_num_players": "Environments with several players are not supported.",
    "render_mode": "env.copy(render=True) gives environments that can be drawn.",
    "seed": "Seeds are given by reset.",
}


def make_envpool(
    task: str,
    *,
    num_envs: int,
    autoreset: Autoreset,
    max_episode_steps: int | None,
    wrappers: Sequence[Callable[..., Any]] = (),
    outer_wrappers: Sequence[Callable[..., Any]] = (),
    info_fields: Sequence[str] = (),
    double_buffer: bool = False,
    **kwargs: Any,
) -> HostEnv:
    """Makes `envpool:<id>`, for example `envpool:Pong-v5`.

    EnvPool seeds environments only when it makes them: `reset` makes them anew, and is reproducible
    for it. An episode that terminates in the very step in which its time is up is reported as
    truncated, since EnvPool does not tell the two apart. Frames `[C, H, W]` become `[H, W, C]`.

    Args:
      task: An id of `envpool.list_all_envs()`.
      num_envs: How many (B).
      autoreset: NEXT_STEP (EnvPool's own), SAME_STEP (by resets of single environments), or
        DISABLED.
      max_episode_steps: As of `make_env`.
      wrappers: None: there is no Python around an environment.
      outer_wrappers: `RewardScale`, `RewardClip` and `RewardNormalize` only.
      info_fields: Names of numbers in `info` that each state's `info` shall have, float32 `[B]`.
      double_buffer: Whether two halves of the batch are stepped in turn, one in EnvPool's threads
        while the policy acts for the other.
      **kwargs: EnvPool's own options of the task, for example `num_threads`, `episodic_life`,
        `reward_clip`, `repeat_action_probability`.

    Raises:
      UserError: If EnvPool is not installed, for an unknown task or option (with the nearest
        names), for wrappers, and for a mode that it cannot do.
    """
    name = f"envpool:{task}"
    extras.require("envpool", "envpool")
    import envpool

    refuse_cached(name, autoreset)
    rewards, others = split_wrappers(outer_wrappers)
    if wrappers or others:
        raise UserError(
            f"{'wrappers' if wrappers else 'outer_wrappers'} of {name}",
            expected="none: EnvPool's environments are stepped in C++",
            got=f"{len(wrappers or others)} of them",
            remedy="Use EnvPool's own options, or the suite gymnasium.",
        )
    known = envpool.list_all_envs()
    if task not in known:
        raise UserError(
            f"environment {name}",
            expected=f"one of the {len(known)} tasks of envpool.list_all_envs()",
            got=repr(task),
            remedy=did_you_mean(task, near) if (near := nearest(task, known)) else "See there.",
        )
    config = envpool.make_spec(task).config
    _check_options(name, config._fields, kwargs, max_episode_steps)
    _check_values(name, config, kwargs)
    mode = Autoreset.SAME_STEP if autoreset is Autoreset.SAME_STEP else Autoreset.NEXT_STEP

    def make(size: int) -> HostEnv:
        backend = EnvPoolBackend(
            task,
            size,
            autoreset=mode,
            max_episode_steps=max_episode_steps,
            info_fields=tuple(info_fields),
            options=kwargs,
        )
        return HostEnv(backend, autoreset)

    return buffered(name, make, num_envs, double_buffer).wrapped(rewards)


def _check_values(name: str, config: Any, kwargs: dict[str, Any]) -> None:
    """Refuses values that would end in C++, where a mistake may kill the process."""
    at_least_one = ("frame_skip", "img_height", "img_width", "stack_num", "max_episode_steps")
    for option, value in kwargs.items():
        usual = getattr(config, option)
        integral = isinstance(value, numbers.Integral) and not isinstance(value, bool)
        if isinstance(usual, bool):
            fits, expected = isinstance(value, bool), "True or False"
        elif isinstance(usual, int):
            low = 1 if option in at_least_one else -1 if usual < 0 else 0
            fits, expected = integral and value >= low, f"a whole number of at least {low}"
        elif isinstance(usual, float):
            real = isinstance(value, numbers.Real) and not isinstance(value, bool)
            fits, expected = real and math.isfinite(value), "a finite number"
        elif isinstance(usual, str):
            fits, expected = isinstance(value, str), "a string"
        else:
            continue
        if option == "repeat_action_probability" and fits:
            fits, expected = 0 <= value <= 1, "a probability from 0 to 1"
        if not fits:
            raise UserError(
                f"make_env({name!r}): {option}",
                expected=expected,
                got=repr(value),
                remedy=f"EnvPool's default is {usual!r}.",
            )


def _check_options(
    name: str, fields: Sequence[str], kwargs: dict[str, Any], limit: int | None
) -> None:
    """Refuses options that the task does not have, and those that are not the user's."""
    taken = sorted(set(kwargs) & set(_OWN))
    if taken:
        raise UserError(
            f"make_env({name!r})",
            expected=f"options of the task; {taken[0]} is not the user's to give",
            got=f"{taken[0]}={kwargs[taken[0]]!r}",
            remedy=_OWN[taken[0]],
        )
    hidden = {*_OWN, "base_path", "num_envs", "max_episode_steps", "reward_threshold"}
    own = sorted(set(fields) - hidden)
    unknown = sorted(set(kwargs) - set(own))
    if unknown:
        close = nearest(unknown[0], [*own, "info_fields", "double_buffer"])
        raise UserError(
            f"make_env({name!r})",
            expected=f"options of the task ({', '.join(own)}) or info_fields",
            got=unknown[0],
            remedy=f"Did you mean {close[0]}?" if close else "Leave it out.",
        )
    if limit is not None and "max_episode_steps" not in fields:
        raise UserError(
            f"max_episode_steps of {name}",
            expected="None: the task has no such option",
            got=limit,
            remedy="Leave it out.",
        )
