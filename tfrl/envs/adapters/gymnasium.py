"""The suite `gymnasium`: any environment of Gymnasium's registry, Atari and MuJoCo included."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

from tfrl.envs.adapters import gymnasium_ids
from tfrl.envs.adapters.gymnasium_atari import ENTRY_POINT, AtariOptions
from tfrl.envs.adapters.gymnasium_backend import GymnasiumBackend
from tfrl.envs.adapters.gymnasium_vector import VECTORIZATIONS, Source
from tfrl.envs.core import Autoreset, Env
from tfrl.envs.host import refuse_cached
from tfrl.envs.host_env import HostEnv
from tfrl.envs.host_halves import buffered
from tfrl.envs.host_wrappers import split_wrappers
from tfrl.errors import UserError, did_you_mean

_ATARI_OWN = ("frameskip", "obs_type", "sound_obs")  # what the preprocessing has to choose


def make_gymnasium(
    task: str,
    *,
    num_envs: int,
    autoreset: Autoreset,
    max_episode_steps: int | None,
    wrappers: Sequence[Callable[..., Any]] = (),
    outer_wrappers: Sequence[Callable[..., Any]] = (),
    vectorization: str = "auto",
    render_mode: str | None = None,
    info_fields: Sequence[str] = (),
    atari: bool = True,
    timeout: float = 60.0,
    double_buffer: bool = False,
    **kwargs: Any,
) -> HostEnv:
    """Makes `gymnasium:<id>`, for example `gymnasium:HalfCheetah-v5`.

    Args:
      task: An id of Gymnasium's registry; `module:Name-v0` imports the module first.
      num_envs: How many (B).
      autoreset: NEXT_STEP, SAME_STEP or DISABLED.
      max_episode_steps: As of `make_env`.
      wrappers: Functions `gymnasium.Env -> gymnasium.Env` around each environment, below the time
        limit that is given here and above the task's own.
      outer_wrappers: Functions `gymnasium.vector.VectorEnv -> gymnasium.vector.VectorEnv`; and
        above them and the statistics of episodes `RewardScale`, `RewardClip`, `RewardNormalize`.
      vectorization: `native`, the task's own vector environment; `sync`, one environment after
        another; `async`, each in a spawned process; `auto`, native where it can do what is asked,
        else sync.
      render_mode: As of `gymnasium.make`.
      info_fields: Names of numbers in `info` that each state's `info` shall have, float32 `[B]`;
        0 where an environment gives none.
      atari: False to leave the frames of Atari games as they are, else see `AtariOptions`, whose
        fields are further arguments.
      timeout: Seconds that the processes of `async` may take for the start, a reset or a step.
      double_buffer: Whether two halves of the batch are stepped in turn: with `async` one half
        steps while the policy acts for the other.
      **kwargs: Arguments of the task.

    Raises:
      UserError: For an unknown id or argument (with the nearest names), a package that is missing,
        a space that has no spec, and what cannot be combined.
    """
    name = f"gymnasium:{task}"
    _check_options(name, autoreset, vectorization, info_fields, timeout)
    _check_wrappers(name, wrappers)
    rewards, outer_wrappers = split_wrappers(outer_wrappers)
    spec = gymnasium_ids.find_spec(task)
    gymnasium_ids.require_packages(name, spec)
    options = _atari_options(name, spec.entry_point, atari, kwargs)
    gymnasium_ids.check_kwargs(name, spec, kwargs, _general(options))
    source = Source(
        name=name,
        spec=spec,
        kwargs=kwargs,
        autoreset=autoreset,
        max_episode_steps=max_episode_steps,
        wrappers=tuple(wrappers),
        outer_wrappers=tuple(outer_wrappers),
        vectorization=vectorization,
        render_mode=render_mode,
        info_fields=tuple(info_fields),
        atari=options,
        timeout=timeout,
    )
    return buffered(
        name, lambda n: HostEnv(GymnasiumBackend(source, n), autoreset), num_envs, double_buffer
    ).wrapped(rewards)


def _general(options: AtariOptions | None) -> list[str]:
    """The names of the suite's own arguments."""
    names = list(gymnasium_ids.GENERAL)
    return names if options is None else [*names, "atari", *AtariOptions.names()]


def _check_options(
    name: str, autoreset: Autoreset, vectorization: str, info_fields: Any, timeout: float
) -> None:
    refuse_cached(name, autoreset)
    if vectorization not in VECTORIZATIONS:
        raise UserError(
            f"vectorization of {name}",
            expected=f"one of {', '.join(VECTORIZATIONS)}",
            got=repr(vectorization),
            remedy=did_you_mean(str(vectorization), VECTORIZATIONS),
        )
    if isinstance(info_fields, str) or not all(isinstance(n, str) for n in info_fields):
        raise UserError(
            f"info_fields of {name}",
            expected="a sequence of names",
            got=repr(info_fields),
            remedy="Give a tuple, also for one name: info_fields=('lives',).",
        )
    if isinstance(timeout, bool) or not isinstance(timeout, int | float) or not timeout > 0:
        raise UserError(
            f"timeout of {name}",
            expected="a number of seconds above 0",
            got=repr(timeout),
            remedy="Give the longest time that a reset or a step may take.",
        )


def _check_wrappers(name: str, wrappers: Sequence[Callable[..., Any]]) -> None:
    """Refuses wrappers of device environments."""
    for wrapper in wrappers:
        parts: list[Any] = [wrapper]
        if isinstance(wrapper, functools.partial):
            parts = [wrapper.func, *wrapper.args]
        device = [p for p in parts if isinstance(p, type) and issubclass(p, Env)]
        if device:
            raise UserError(
                f"wrappers of {name}",
                expected="functions gymnasium.Env -> gymnasium.Env",
                got=f"{device[0].__name__}, a wrapper of device environments",
                remedy="Take the one of gymnasium.wrappers that does the same; RewardScale, "
                "RewardClip and RewardNormalize may be outer_wrappers.",
            )


def _atari_options(
    name: str, entry_point: Any, atari: bool, kwargs: dict[str, Any]
) -> AtariOptions | None:
    """Takes the options of the preprocessing out of the arguments, if there is any."""
    if entry_point != ENTRY_POINT or not atari:
        return None
    taken = [k for k in _ATARI_OWN if k in kwargs]
    if taken:
        raise UserError(
            f"make_env({name!r})",
            expected="frames that the preprocessing skips, scales and stacks itself",
            got=f"{taken[0]}={kwargs[taken[0]]!r}",
            remedy="Give frame_skip=." if taken[0] == "frameskip" else "Give atari=False with it.",
        )
    return AtariOptions(**{n: kwargs.pop(n) for n in AtariOptions.names() if n in kwargs})
