"""The suite `tf_agents`: TF-Agents' PyEnvironments and TFEnvironments."""

import functools
import importlib
import inspect
from collections.abc import Callable, Sequence
from typing import Any

from tfrl import checks
from tfrl.compat.tf_agents_backend import TFAgentsBackend, TimeStepSource
from tfrl.envs.adapters.tf_agents_specs import Splitter
from tfrl.envs.core import Autoreset
from tfrl.envs.host import refuse_cached
from tfrl.envs.host_env import HostEnv
from tfrl.envs.host_wrappers import refuse_device_wrappers, reward_wrappers
from tfrl.envs.registry import check_kwargs, import_task, unknown_argument
from tfrl.errors import UserError, nearest
from tfrl.loading import import_code

_SUITES = "tf_agents.environments"
# The number of names that `load` of a suite takes, if more than one.
_PARTS = {"suite_dm_control": 2}
# The same tasks in maintained packages.
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
      task: The part of the id after `tf_agents:`.
      env: The user's function, or None.

    Returns:
      A function of the task's arguments.

    Raises:
      UserError: For an unknown task, and for missing packages.
    """
    name = f"tf_agents:{task}"
    if env is not None:
        expected = "a function that creates an environment, since evaluations need their own"
        checks.function(f"env of {name}", env, expected, remedy="Pass env=lambda: MyEnvironment().")
        return env
    suite, _, inside = task.partition("/")
    if suite.startswith("suite_") and inside:
        if ":" in inside:  # gym imports the module before the colon
            import_code(inside.partition(":")[0], f"environment {name}")
        return _loader(name, suite, inside)
    module, _, path = task.rpartition(":")
    if module and path:
        return _function(name, module, path)
    remedy = (
        f"Did you mean tf_agents:suite_gym/{task}?" if _gym_has(task) else "Use one of these forms."
    )
    raise UserError(f"environment {name}", expected=_FORMS, got=repr(task), remedy=remedy)


def _function(name: str, module: str, path: str) -> Callable[..., Any]:
    """Returns a user's function."""
    result: Any = import_task(name, module)
    for part in path.split("."):
        if not hasattr(result, part):
            close = nearest(part, [n for n in dir(result) if not n.startswith("_")])
            raise UserError(
                name,
                expected=f"a function of {module} after the last colon",
                got=path,
                remedy=f"Did you mean {close[0]}?"
                if close
                else "Check the definitions of the module.",
            )
        result = getattr(result, part)
    return find(name.partition(":")[2], result)


def _loader(name: str, suite: str, inside: str) -> Callable[..., Any]:
    """Returns the `load` function of a suite for one of its tasks."""
    module = _import(name, suite)
    available = getattr(module, "is_available", lambda: True)
    if not available():
        raise _missing(name, suite, "a failed import")
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
    remedy = "Install them with -c constraints.txt to keep TensorFlow's pins."
    if instead is not None:
        remedy = f"Use the suite gymnasium, for example {instead}."
    return UserError(name, expected=f"the packages that {suite} requires", got=got, remedy=remedy)


def _check_gym(name: str, suite: str, task: str) -> None:
    """Raises for a task that gym, the base of TF-Agents' suites, has not registered."""
    import gym

    try:
        gym.spec(task)
    except gym.error.Error as error:
        if suite in _INSTEAD:
            raise _missing(name, suite, f"no {task} in gym {gym.__version__}") from error
        close = nearest(task, [spec.id for spec in gym.envs.registry.all()])
        raise UserError(
            f"environment {name}",
            expected=f"a task of gym {gym.__version__}, which {suite} uses",
            got=repr(task),
            remedy=f"Did you mean {close[0]}?"
            if close
            else "Use the suite gymnasium for newer tasks.",
        ) from error


def _gym_has(task: str) -> bool:
    import gym

    try:
        return gym.spec(task) is not None
    except gym.error.Error:
        return False


# Arguments of a function that come from make_env.
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

    A user's function is called for every environment of the batch. It may return a batched
    environment, if its size divides `num_envs`. A function with an argument `num_envs` is called
    once.

    Args:
      task: `suite_gym/CartPole-v1`, a task for `load` of a suite of `tf_agents.environments`;
        `module:function`, a user's function; or any name, with `env`.
      num_envs: The number of environments (B).
      autoreset: NEXT_STEP, DISABLED, or SAME_STEP, which needs environments that can be reset one
        by one: environments without a batch axis, BatchedPyEnvironment and ParallelPyEnvironment.
      max_episode_steps: See `make_env`; at most the environments' own limit.
      wrappers: Functions `PyEnvironment -> PyEnvironment` around each environment.
      outer_wrappers: `RewardScale`, `RewardClip` and `RewardNormalize` only.
      env: A function that returns a PyEnvironment or a TFEnvironment.
      action_mask: The path of the action mask in the observation, for example `"mask"`; or a
        function that splits an observation into the rest and the mask, like TF-Agents'
        `observation_and_action_constraint_splitter`.
      **kwargs: Arguments of `load`, or of the function.

    Raises:
      UserError: For an unknown task or argument (with the nearest names), missing packages, specs
        without an equivalent here, and contradictory arguments.
    """
    name = f"tf_agents:{task}"
    refuse_cached(name, autoreset)
    _check_mask_argument(name, action_mask)
    remedy = "Pass functions PyEnvironment -> PyEnvironment as wrappers."
    rewards = reward_wrappers(name, outer_wrappers, remedy)
    make = find(task, env)
    _check_kwargs(name, make, kwargs)
    expected = "functions PyEnvironment -> PyEnvironment"
    refuse_device_wrappers(name, wrappers, expected, "tf_agents.environments.wrappers")
    source = TimeStepSource(
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
    """Makes an environment and applies its wrappers."""
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
            remedy="Pass a path such as action_mask='mask'.",
        )


def _check_kwargs(name: str, make: Callable[..., Any], kwargs: dict[str, Any]) -> None:
    """Raises for unknown or missing arguments of the function."""
    parameters = inspect.signature(make).parameters.values()
    own = {p.name for p in parameters if p.kind is not inspect.Parameter.VAR_KEYWORD}
    unknown = sorted(set(kwargs) - own)
    if unknown and not any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters):
        raise unknown_argument(name, unknown[0], own - _GENERAL, ("action_mask", "env"))
    check_kwargs(name, make, kwargs)
