"""Finds what makes the environments of a task of the suite `tf_agents`."""

import functools
import importlib
import inspect
from collections.abc import Callable
from typing import Any

from tfrl.errors import UserError, nearest
from tfrl.loading import import_code

_SUITES = "tf_agents.environments"
# What the names of a suite are made of, where `load` takes more than one.
_PARTS = {"suite_dm_control": 2}
# The same tasks in packages that are maintained.
_INSTEAD = {
    "suite_atari": "gymnasium:ALE/Pong-v5",
    "suite_mujoco": "gymnasium:HalfCheetah-v5",
}
_FORMS = (
    "suite_gym/CartPole-v1 (a suite of tf_agents.environments), module:function, or any name "
    "with env=function"
)


def find(task: str, env: Any = None) -> Callable[..., Any]:
    """Returns the function that makes environments.

    Args:
      task: What stands behind `tf_agents:`.
      env: The user's function, or None.

    Returns:
      A function of the task's arguments.

    Raises:
      UserError: For a task that is none, and where packages are missing.
    """
    name = f"tf_agents:{task}"
    if env is not None:
        if not callable(env):
            raise UserError(
                f"env of {name}",
                expected="a function that makes an environment: evaluations need others",
                got=repr(env),
                remedy="Give env=lambda: MyEnvironment().",
            )
        return env
    suite, _, inside = task.partition("/")
    if suite.startswith("suite_") and inside:
        if ":" in inside:  # gym imports what stands before it
            import_code(inside.partition(":")[0], f"environment {name}")
        return _loader(name, suite, inside)
    module, _, path = task.rpartition(":")
    if module and path:
        return _function(name, module, path)
    remedy = f"Did you mean tf_agents:suite_gym/{task}?" if _gym_has(task) else "Give one of them."
    raise UserError(f"environment {name}", expected=_FORMS, got=repr(task), remedy=remedy)


def _function(name: str, module: str, path: str) -> Callable[..., Any]:
    """Returns a function of the user's."""
    try:
        found: Any = import_code(module, f"environment {name}")
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise  # something that the module itself needs
        raise UserError(
            name,
            expected="a module that is installed before the last colon",
            got=f"no module named {error.name}",
            remedy="Install it, or put its folder on PYTHONPATH.",
        ) from error
    for part in path.split("."):
        if not hasattr(found, part):
            close = nearest(part, [n for n in dir(found) if not n.startswith("_")])
            raise UserError(
                name,
                expected=f"a function of {module} behind the last colon",
                got=path,
                remedy=f"Did you mean {close[0]}?" if close else "See what the module defines.",
            )
        found = getattr(found, part)
    return find(name.partition(":")[2], found)


def _loader(name: str, suite: str, inside: str) -> Callable[..., Any]:
    """Returns `load` of a suite for one of its tasks."""
    module = _import(name, suite)
    available = getattr(module, "is_available", lambda: True)
    if not available():
        raise _missing(name, suite, "none that can be imported")
    if "gym" in vars(module):
        _check_gym(name, suite, inside)
    count = _PARTS.get(suite, 1)
    parts = inside.split("/") if count > 1 else [inside]
    if len(parts) != count:
        names = list(inspect.signature(module.load).parameters)[:count]
        raise UserError(
            f"environment {name}",
            expected=f"{suite}/{'/'.join(names)}",
            got=repr(f"{suite}/{inside}"),
            remedy="Give both names.",
        )
    return functools.partial(module.load, *parts)


def _import(name: str, suite: str) -> Any:
    try:
        return importlib.import_module(f"{_SUITES}.{suite}")
    except ModuleNotFoundError as error:
        if error.name != f"{_SUITES}.{suite}":
            raise _missing(name, suite, f"no module named {error.name}") from error
        import pkgutil

        environments = importlib.import_module(_SUITES)
        known = [m.name for m in pkgutil.iter_modules(environments.__path__)]
        suites = [n for n in known if n.startswith("suite_") and not n.endswith("_test")]
        close = nearest(suite, suites)
        raise UserError(
            f"environment {name}",
            expected=f"a suite of {_SUITES} ({', '.join(suites)})",
            got=suite,
            remedy=f"Did you mean {close[0]}?" if close else "Choose one of them.",
        ) from error


def _missing(name: str, suite: str, got: str) -> UserError:
    instead = _INSTEAD.get(suite)
    remedy = "Install them with -c constraints.txt, so that TensorFlow's pins hold."
    if instead is not None:
        remedy = f"Such tasks are there in the suite gymnasium too, for example {instead}."
    return UserError(name, expected=f"the packages that {suite} needs", got=got, remedy=remedy)


def _check_gym(name: str, suite: str, task: str) -> None:
    """Refuses what gym, of which TF-Agents' suites are made, has not registered."""
    import gym

    try:
        gym.spec(task)
    except gym.error.Error as error:
        if suite in _INSTEAD:
            raise _missing(name, suite, f"no {task} in gym {gym.__version__}") from error
        close = nearest(task, [spec.id for spec in gym.envs.registry.all()])
        raise UserError(
            f"environment {name}",
            expected=f"a task of gym {gym.__version__}, of which {suite} is made",
            got=repr(task),
            remedy=f"Did you mean {close[0]}?"
            if close
            else "Newer tasks are in the suite gymnasium.",
        ) from error


def _gym_has(task: str) -> bool:
    import gym

    try:
        return gym.spec(task) is not None
    except gym.error.Error:
        return False
