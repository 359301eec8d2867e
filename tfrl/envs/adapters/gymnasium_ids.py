"""Finds a task in Gymnasium's registry, and says what is missing."""

import importlib
import importlib.util
import inspect
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import gymnasium
from gymnasium.envs import registration
from gymnasium.envs.registration import EnvSpec

from tfrl import extras
from tfrl.errors import UserError, did_you_mean, nearest
from tfrl.loading import import_code

_ALE = "ale_py"
# The suite's own arguments.
GENERAL = ("vectorization", "render_mode", "info_fields", "timeout", "double_buffer")
_UNEXPECTED = re.compile(r"unexpected keyword argument '(\w+)'")


def find_spec(task: str) -> EnvSpec:
    """Returns what Gymnasium's registry has of a task.

    Args:
      task: `Name-v0`, `namespace/Name-v0` or `module:Name-v0`; without a version, the newest.

    Raises:
      UserError: If the module or the task is unknown (with the nearest names), or the package of
        the task is not installed.
    """
    module, _, env_id = task.rpartition(":")
    if module:
        _import(task, module)
    if env_id.startswith("ALE/"):
        extras.require(_ALE, "atari")
    elif env_id not in gymnasium.registry and importlib.util.find_spec(_ALE):
        importlib.import_module(_ALE)  # it has names without a namespace too
    try:
        namespace, name, version = registration.parse_env_id(env_id)
    except gymnasium.error.Error as error:
        raise _unknown(task, env_id) from error
    if version is None and env_id not in gymnasium.registry:
        version = registration.find_highest_version(namespace, name)
        env_id = registration.get_env_id(namespace, name, version)
    if env_id not in gymnasium.registry:
        raise _unknown(task, env_id)
    return gymnasium.registry[env_id]


def _import(task: str, module: str) -> None:
    try:
        import_code(module, f"environment gymnasium:{task}")
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise  # something that the module itself needs
        raise UserError(
            f"gymnasium:{task}",
            expected="a module that is installed before the colon of module:Name-v0",
            got=f"no module named {error.name}",
            remedy="Install it, or put its folder on PYTHONPATH.",
        ) from error


def _unknown(task: str, env_id: str) -> UserError:
    known = list(gymnasium.registry)
    # ALE's names have a namespace, and are known only where it is installed.
    close = nearest(env_id, known) or nearest(f"ALE/{env_id}", known)
    remedy = did_you_mean(env_id, close) if close else ""
    return UserError(
        f"environment gymnasium:{task}",
        expected="a task of Gymnasium's registry",
        got=repr(env_id),
        remedy=remedy or "Give module:Name-v0 if a module of yours registers it when imported.",
    )


def require_packages(name: str, spec: EnvSpec) -> None:
    """Raises a UserError with the install command if the task's simulator is missing."""
    entry_point = spec.entry_point
    if isinstance(entry_point, str) and entry_point.startswith("gymnasium.envs.mujoco"):
        extras.require("mujoco", "mujoco")
    if isinstance(entry_point, str) and entry_point.startswith(f"{_ALE}."):
        extras.require("cv2", "atari")


def load(entry_point: Any) -> Callable[..., Any]:
    """Returns the function or class of an entry point."""
    if isinstance(entry_point, str):
        return registration.load_env_creator(entry_point)
    return entry_point


def check_kwargs(name: str, spec: EnvSpec, kwargs: Iterable[str], general: Iterable[str]) -> None:
    """Raises a UserError for arguments that the task does not have.

    Args:
      name: The environment's id.
      spec: Of the task.
      kwargs: Names of the arguments given.
      general: Names of arguments that every environment of the suite has.
    """
    if spec.entry_point is None:
        return
    try:
        parameters = inspect.signature(load(spec.entry_point)).parameters
    except (ImportError, gymnasium.error.DependencyNotInstalled):
        return  # it is said where the environment is made
    if any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values()):
        return
    unknown = sorted(set(kwargs) - set(parameters))
    if unknown:
        own = sorted(set(parameters) - {"render_mode"})  # those of its registration too
        raise unknown_argument(name, unknown[0], own, general)


def unknown_argument(
    name: str, unknown: str, own: Iterable[str], general: Iterable[str]
) -> UserError:
    """Returns the error for an argument that neither the task nor the suite has."""
    own, general = sorted(own), sorted(general)
    close = nearest(unknown, [*own, *general])
    return UserError(
        f"make_env({name!r})",
        expected=f"arguments of the task ({', '.join(own) or 'none'}) or of the suite "
        f"({', '.join(general)})",
        got=unknown,
        remedy=f"Did you mean {close[0]}?" if close else "Leave it out.",
    )


def _names(spec: EnvSpec) -> set[str]:
    """The arguments of a task, also those that its class hands on to those below it."""
    make: Any = load(spec.entry_point)
    kinds: Any = make.__mro__ if isinstance(make, type) else (make,)
    found: set[str] = set(spec.kwargs)
    for kind in kinds:
        if kind is object or isinstance(kind, type) and "__init__" not in vars(kind):
            continue
        parameters = inspect.signature(kind).parameters.values()
        found |= {p.name for p in parameters if p.kind is not p.VAR_KEYWORD}
    return found - {"render_mode", "args"}


def explained(
    name: str, error: Exception, kwargs: Mapping[str, Any], spec: EnvSpec | None = None
) -> Exception:
    """Returns what to raise for an error that making an environment has raised.

    A missing package and an argument that only the environment itself refuses are mistakes of the
    user's; everything else stays as it is.
    """
    if isinstance(error, gymnasium.error.DependencyNotInstalled):
        return UserError(
            name,
            expected="the packages that the task needs",
            got=str(error),
            remedy="Install them with -c constraints.txt, so that TensorFlow's pins hold.",
        )
    found = _UNEXPECTED.search(str(error)) if isinstance(error, TypeError) else None
    if found is not None and found[1] in kwargs:
        own = _names(spec) if spec is not None and spec.entry_point is not None else set()
        if own - {found[1]}:
            return unknown_argument(name, found[1], own, GENERAL)
        return UserError(
            f"make_env({name!r})",
            expected="arguments of the task",
            got=found[1],
            remedy="Leave it out, or see the task's page for its arguments.",
        )
    return error
