"""`make_env` and its registries: suites, and the tasks of suites with device environments."""

import functools
import importlib
import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from tfrl import checks, struct
from tfrl._version import __version__
from tfrl.envs.core import Autoreset, Env
from tfrl.envs.host import on_host
from tfrl.envs.wrappers.action_mask import ActionMask, gives_mask, info_spec
from tfrl.envs.wrappers.episode import EPISODE_INFO, Episode
from tfrl.errors import UserError, did_you_mean, nearest
from tfrl.loading import import_code

# maker(task, num_envs=, autoreset=, max_episode_steps=, wrappers=, outer_wrappers=, **kwargs)
SuiteMaker = Callable[..., Any]
WrapperFn = Callable[[Env], Env]

_GENERAL = ("num_envs", "autoreset", "max_episode_steps", "wrappers", "outer_wrappers")
NO_LIMIT = -1


@struct.logic_dataclass
class Task(struct.Struct):
    """A registered task.

    Attributes:
      constructor: `constructor(num_envs=..., **kwargs)` gives the bare environment.
      max_episode_steps: The task's own time limit in frames, or None.
    """

    constructor: Callable[..., Env]
    max_episode_steps: int | None = None


_SUITES: dict[str, SuiteMaker] = {}
_TASKS: dict[str, dict[str, Task]] = {}
_SHIPPED = "tfrl.envs.suites"  # registers what comes with the library


def _shipped() -> None:
    """Registers the library's environments, before any lookup or registration."""
    importlib.import_module(_SHIPPED)  # a no-op during its own import


def make_env(
    env_id: str,
    num_envs: int = 1,
    autoreset: Autoreset | str = "SAME_STEP",
    max_episode_steps: int | None = None,
    wrappers: Sequence[WrapperFn] = (),
    outer_wrappers: Sequence[WrapperFn] = (),
    **kwargs: Any,
) -> Any:
    """Makes a batch of environments with time limit, episode statistics and autoreset.

    Args:
      env_id: `suite:task`, for example `tf:CartPole-v1`.
      num_envs: Number of environments in the batch.
      autoreset: The behaviour at an episode end: a mode of `Autoreset`, or its name.
      max_episode_steps: Steps after which an episode is truncated; None for the task's own limit,
        -1 for none. The task's own limit counts frames: an action repeat of k divides it by k. This
        argument counts steps.
      wrappers: Functions `Env -> Env`, applied to the bare environment in order, inside time limit
        and autoreset.
      outer_wrappers: Functions `Env -> Env`, applied outside time limit and autoreset.
      **kwargs: Arguments of the task, or of its suite: `info_fields=("success",)` names numbers of
        `info`; their means over the last steps of episodes are metrics of a run.

    Returns:
      The environment.

    Raises:
      UserError: For an unknown suite, task or argument (with the nearest names), for a missing
        argument of the task, for wrappers that are not a sequence of functions, and for sizes out
        of range.
    """
    _shipped()
    suite, task = _split_id(env_id)
    if suite not in _SUITES:
        raise _unknown_suite(suite, task)
    return _SUITES[suite](
        task,
        num_envs=check_num_envs(num_envs),
        autoreset=Autoreset.parse(autoreset),
        max_episode_steps=check_limit(max_episode_steps),
        wrappers=_check_wrappers("wrappers", wrappers),
        outer_wrappers=_check_wrappers("outer_wrappers", outer_wrappers),
        **kwargs,
    )


def register_suite(suite: str, maker: SuiteMaker) -> None:
    """Registers a suite, the part of an id before the colon.

    Args:
      suite: Its name.
      maker: `maker(task, num_envs=, autoreset=, max_episode_steps=, wrappers=, outer_wrappers=,
        **kwargs)` returns the environment with all layers; `max_episode_steps` is None for the
        task's own limit and -1 for none.

    Raises:
      UserError: If the name is taken or contains a colon.
    """
    _shipped()
    if not suite or ":" in suite:
        raise UserError("suite name", expected="a name without a colon", got=repr(suite))
    if suite in _SUITES:
        raise UserError(
            f"suite {suite}",
            expected="an unregistered name",
            got="a second registration",
        )
    _SUITES[suite] = maker


def register(
    env_id: str, constructor: Callable[..., Env], max_episode_steps: int | None = None
) -> None:
    """Registers a task of device environments; creates the suite if it is new.

    Args:
      env_id: `suite:task`.
      constructor: `constructor(num_envs=..., **kwargs)` gives the bare environment.
      max_episode_steps: The task's own time limit in frames, or None.

    Raises:
      UserError: If the id is taken, or its suite does not have registered tasks.
    """
    _shipped()
    suite, task = _split_id(env_id)
    if suite not in _SUITES:
        register_suite(suite, functools.partial(_make_registered, suite))
        _TASKS[suite] = {}
    if suite not in _TASKS or task in _TASKS[suite]:
        raise UserError(
            f"environment {env_id}",
            expected="an unregistered id in a suite of registered tasks",
            got="a second registration" if suite in _TASKS else f"suite {suite}",
        )
    _TASKS[suite][task] = Task(constructor=constructor, max_episode_steps=max_episode_steps)


def env_ids() -> list[str]:
    """Returns the ids of all registered tasks."""
    _shipped()
    return sorted(f"{suite}:{task}" for suite, tasks in _TASKS.items() for task in tasks)


def unknown_task(suite: str, task: str, known: Iterable[str]) -> UserError:
    """Returns the error for an unknown task of a suite."""
    known = sorted(known)
    return UserError(
        f"environment {suite}:{task}",
        expected=f"a task of the suite {suite}",
        got=repr(task),
        remedy=did_you_mean(task, known),
    )


def check_num_envs(num_envs: Any) -> int:
    """Returns `num_envs` as an int of at least 1, or raises a UserError."""
    return checks.at_least("num_envs", num_envs, 1)


def check_limit(max_episode_steps: Any) -> int | None:
    """Returns None, -1 or an int of at least 1, or raises a UserError."""
    if max_episode_steps == NO_LIMIT:
        return NO_LIMIT
    remedy = "Pass the maximum number of steps, -1 for no limit, or None for the task's limit."
    return checks.at_least("max_episode_steps", max_episode_steps, 1, optional=True, remedy=remedy)


def finish(
    env: Env,
    *,
    autoreset: Autoreset,
    max_episode_steps: int | None,
    task_limit: int | None,
    wrappers: Sequence[WrapperFn] = (),
    outer_wrappers: Sequence[WrapperFn] = (),
    info_fields: Sequence[str] = (),
) -> Env:
    """Adds wrappers, time limit, statistics and autoreset to a bare environment, in order.

    Args:
      env: A bare environment.
      autoreset: The mode.
      max_episode_steps: As in `make_env`.
      task_limit: The task's own limit in frames, or None.
      wrappers: Inside the autoreset.
      outer_wrappers: Outside the autoreset.
      info_fields: See `Env.info_fields`.

    Raises:
      UserError: The `info` of a device environment has no such field.
    """
    for wrap in wrappers:
        env = checks.instance(
            "what a wrapper of make_env returns", wrap(env), Env, "an environment"
        )
    if gives_mask(env):
        env = ActionMask(env=env)
    if max_episode_steps is None:
        limit = _limit_in_steps(task_limit, env.action_repeat)
    else:
        limit = None if max_episode_steps == NO_LIMIT else max_episode_steps
    env = Episode(env=env, mode=autoreset, limit=limit, info=tuple(info_fields))
    for wrap in outer_wrappers:
        env = wrap(env)
    if info_fields and not on_host(env):
        _check_info_fields(env, info_fields)
    return env


def _check_info_fields(env: Env, info_fields: Sequence[str]) -> None:
    own = sorted(set(info_spec(env)) - {*EPISODE_INFO})
    unknown = [name for name in info_fields if name not in own]
    if unknown:
        remedy = did_you_mean(unknown[0], own) if own else ""
        if unknown[0] in EPISODE_INFO[2:]:
            remedy = "It is a metric without info_fields."
        raise UserError(
            f"info_fields of {env.unwrapped!r}",
            expected=f"names in the task's info, which has {', '.join(own) or 'none'}",
            got=", ".join(unknown),
            remedy=remedy,
        )


def _limit_in_steps(frames: int | None, repeat: int) -> int | None:
    if frames is None or frames % repeat == 0:
        return frames and frames // repeat
    below = next(k for k in range(repeat, 0, -1) if frames % k == 0)
    above = next(k for k in range(repeat, frames + 1) if frames % k == 0)
    raise UserError(
        "action repeat",
        expected=f"a divisor of the task's limit of {frames} frames",
        got=str(repeat),
        remedy=f"Use {below} or {above}, or set max_episode_steps, which counts steps.",
    )


def _make_registered(
    suite: str,
    task: str,
    *,
    num_envs: int,
    autoreset: Autoreset,
    max_episode_steps: int | None,
    wrappers: Sequence[WrapperFn],
    outer_wrappers: Sequence[WrapperFn],
    info_fields: Sequence[str] = (),
    **kwargs: Any,
) -> Env:
    if task not in _TASKS[suite]:
        raise unknown_task(suite, task, _TASKS[suite])
    entry = _TASKS[suite][task]
    check_kwargs(f"{suite}:{task}", entry.constructor, kwargs)
    return finish(
        entry.constructor(num_envs=num_envs, **kwargs),
        autoreset=autoreset,
        max_episode_steps=max_episode_steps,
        task_limit=entry.max_episode_steps,
        wrappers=wrappers,
        outer_wrappers=outer_wrappers,
        info_fields=checks.strings(f"info_fields of {suite}:{task}", info_fields),
    )


def import_task(name: str, module: str, remedy: str = "") -> Any:
    """Imports the module in an environment's id; a missing one is a UserError.

    Args:
      name: The environment's id.
      module: The module's path.
      remedy: Where to find the module.
    """
    try:
        return import_code(module, f"environment {name}")
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise  # an import of the module itself failed
        raise UserError(
            f"environment {name}",
            expected="an installed module",
            got=f"no module named {error.name}",
            remedy=remedy or "Install it, or add its folder to PYTHONPATH.",
        ) from error


def unknown_argument(
    env_id: str, unknown: str, own: Iterable[str], general: Iterable[str]
) -> UserError:
    """Returns the error for an unknown argument of a task and its suite."""
    own, general = sorted(own), sorted(general)
    return UserError(
        f"make_env({env_id!r})",
        expected=f"arguments of the task ({', '.join(own) or 'none'}) or of make_env "
        f"({', '.join(general)})",
        got=unknown,
        remedy=did_you_mean(unknown, close)
        if (close := nearest(unknown, [*own, *general]))
        else "",
    )


def check_kwargs(env_id: str, constructor: Callable[..., Any], kwargs: dict[str, Any]) -> None:
    """Raises a UserError for unknown or missing arguments of the constructor."""
    parameters = inspect.signature(constructor).parameters
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    named = {n: p for n, p in parameters.items() if n != "num_envs" and p.kind not in variadic}
    known = sorted(named)
    unknown = sorted(set(kwargs) - set(known))
    takes_any = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values())
    if unknown and not takes_any:
        raise unknown_argument(env_id, unknown[0], known, _GENERAL)
    required = [n for n, p in named.items() if p.default is inspect.Parameter.empty]
    missing = [n for n in required if n not in kwargs]
    if missing:
        raise UserError(
            f"make_env({env_id!r})",
            expected=f"the arguments that the task requires ({', '.join(required)})",
            got=f"no {', '.join(missing)}",
            remedy=f"Pass {' and '.join(f'{n}=...' for n in missing)} to make_env.",
        )


def _check_wrappers(name: str, wrappers: Any) -> tuple[WrapperFn, ...]:
    """Returns wrappers as a tuple; a UserError unless they are a sequence of functions."""
    if isinstance(wrappers, Sequence) and all(callable(w) for w in wrappers):
        return tuple(wrappers)
    raise UserError(
        name,
        expected="a sequence of functions Env -> Env",
        got=repr(wrappers),
        remedy=f"Pass a tuple, also for one function: {name}=(function,).",
    )


def _split_id(env_id: Any) -> tuple[str, str]:
    if isinstance(env_id, str) and ":" in env_id:
        suite, _, task = env_id.partition(":")
        return suite, task
    close = nearest_ids(str(env_id))
    raise UserError(
        "env_id",
        expected="suite:task, for example tf:CartPole-v1",
        got=repr(env_id),
        remedy=f"Did you mean {' or '.join(close)}?" if close else _suites_sentence(),
    )


def nearest_ids(task: str) -> list[str]:
    """Returns the ids of registered tasks with names similar to `task`."""
    tasks = {name for names in _TASKS.values() for name in names}
    close = nearest(task, tasks, count=1)
    return [i for name in close for i in env_ids() if i.partition(":")[2] == name]


def _suites_sentence() -> str:
    return f"tfrl {__version__} has the suites {', '.join(sorted(_SUITES))}."


def _unknown_suite(suite: str, task: str) -> UserError:
    close = [f"{name}:{task}" for name in nearest(suite, _SUITES)]
    # A suite with the task is preferred to one with an equally close name.
    close = [i for i in close if i in env_ids()] or close or nearest_ids(task)
    remedy = f"Did you mean {' or '.join(close)}?" if close else "Choose one of them."
    return UserError(
        f"environment suite {suite!r}",
        expected=f"one of the suites of tfrl {__version__}: {', '.join(sorted(_SUITES))}",
        got=f"{suite}:{task}",
        remedy=remedy,
    )
