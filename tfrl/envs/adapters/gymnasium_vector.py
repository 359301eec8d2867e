"""Creates vector environments of a Gymnasium task: native, in this process or in others."""

import dataclasses
import functools
import importlib
import importlib.util
import inspect
import logging
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import gymnasium
from gymnasium.envs import registration
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv

from tfrl import extras
from tfrl.envs.adapters.gymnasium_async import ProcessVectorEnv
from tfrl.envs.adapters.gymnasium_env import NO_LIMIT, AtariOptions, EnvFactory
from tfrl.envs.core import Autoreset
from tfrl.envs.env_calls import env_error
from tfrl.envs.registry import import_task, unknown_argument
from tfrl.errors import UserError, did_you_mean, nearest

_ALE = "ale_py"
# The suite's own arguments.
GENERAL = (
    "vectorization",
    "render_mode",
    "info_fields",
    "timeout",
    "double_buffer",
    "max_wait_time",
)
_UNEXPECTED = re.compile(r"unexpected keyword argument '(\w+)'")


def find_spec(task: str) -> EnvSpec:
    """Returns the entry of a task in Gymnasium's registry.

    Args:
      task: `Name-v0`, `namespace/Name-v0` or `module:Name-v0`; without a version, the newest.

    Raises:
      UserError: If the module or the task is unknown (with the nearest names), or the package of
        the task is not installed.
    """
    module, _, env_id = task.rpartition(":")
    if module:
        import_task(f"gymnasium:{task}", module)
    if env_id.startswith("ALE/"):
        extras.require(_ALE, "atari")
    elif env_id not in gymnasium.registry and importlib.util.find_spec(_ALE):
        importlib.import_module(_ALE)  # registers names without a namespace too
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


def _unknown(task: str, env_id: str) -> UserError:
    known = list(gymnasium.registry)
    # ALE's names have a namespace, and are registered only if ALE is installed.
    close = nearest(env_id, known) or nearest(f"ALE/{env_id}", known)
    remedy = did_you_mean(env_id, close) if close else ""
    return UserError(
        f"environment gymnasium:{task}",
        expected="a task of Gymnasium's registry",
        got=repr(env_id),
        remedy=remedy or "Use module:Name-v0 if importing your module registers the task.",
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
    """Raises a UserError for unknown arguments of a task.

    Args:
      name: The environment's id.
      spec: The task's.
      kwargs: Names of the given arguments.
      general: Names of the arguments of every environment of the suite.
    """
    if spec.entry_point is None:
        return
    try:
        parameters = inspect.signature(load(spec.entry_point)).parameters
    except (ImportError, gymnasium.error.DependencyNotInstalled):
        return  # construction reports it
    if any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values()):
        return
    unknown = sorted(set(kwargs) - set(parameters))
    if unknown:
        own = sorted(set(parameters) - {"render_mode"})  # with those of its registration
        raise unknown_argument(name, unknown[0], own, general)


def _names(spec: EnvSpec) -> set[str]:
    """The arguments of a task, with those that its class passes to its base classes."""
    make: Any = load(spec.entry_point)
    kinds: Any = make.__mro__ if isinstance(make, type) else (make,)
    names: set[str] = set(spec.kwargs)
    for kind in kinds:
        if kind is object or isinstance(kind, type) and "__init__" not in vars(kind):
            continue
        parameters = inspect.signature(kind).parameters.values()
        names |= {p.name for p in parameters if p.kind is not p.VAR_KEYWORD}
    return names - {"render_mode", "args"}


def explained(
    name: str, error: Exception, kwargs: Mapping[str, Any], spec: EnvSpec | None = None
) -> Exception:
    """Returns the error to raise for an exception of an environment's constructor.

    A missing package and an argument that the constructor refuses become UserErrors; other
    exceptions stay unchanged.
    """
    if isinstance(error, gymnasium.error.DependencyNotInstalled):
        return UserError(
            name,
            expected="the packages that the task requires",
            got=str(error),
            remedy="Install them with -c constraints.txt to keep TensorFlow's pins.",
        )
    match = _UNEXPECTED.search(str(error)) if isinstance(error, TypeError) else None
    if match is not None and match[1] in kwargs:
        own = _names(spec) if spec is not None and spec.entry_point is not None else set()
        if own - {match[1]}:
            return unknown_argument(name, match[1], own, GENERAL)
        return UserError(
            f"make_env({name!r})",
            expected="arguments of the task",
            got=match[1],
            remedy="Leave it out, or check the task's documentation for its arguments.",
        )
    return error


VECTORIZATIONS = ("auto", "native", "sync", "async")
# A reset of one of their environments drops the step of the others: `next_state` is computed from
# the state before the step. Source: gymnasium/envs/functional_jax_env.py of gymnasium 1.3.0.
_WRONG = "gymnasium.envs.phys2d."
_HUGE = 2**31 - 1
_DEBUG = "Reproduce it with gymnasium.make and the same arguments and wrappers."

OuterWrapper = Callable[[VectorEnv], VectorEnv]


@dataclasses.dataclass(frozen=True)
class VectorSource:
    """Everything needed to create any number of environments of a task.

    Attributes:
      name: The id, `gymnasium:task`.
      spec: The task, of Gymnasium's registry.
      kwargs: Its arguments.
      autoreset: NEXT_STEP, SAME_STEP, or DISABLED for the fastest.
      max_episode_steps: See `make_env`.
      wrappers: Around each environment.
      outer_wrappers: Around the vector environment.
      vectorization: One of `VECTORIZATIONS`.
      render_mode: See `gymnasium.make`.
      info_fields: Names of numbers in `info`.
      atari: Preprocessing of frames, or None.
      timeout: Time limit of a call to a process, in seconds.
      tolerant: Whether an environment's exception ends its episode, see `LostEpisode`.
    """

    name: str
    spec: EnvSpec
    kwargs: Mapping[str, Any]
    autoreset: Autoreset
    max_episode_steps: int | None
    wrappers: tuple[Callable[..., Any], ...]
    outer_wrappers: tuple[OuterWrapper, ...]
    vectorization: str
    render_mode: str | None
    info_fields: tuple[str, ...]
    atari: AtariOptions | None
    timeout: float
    tolerant: bool = False

    @property
    def limit(self) -> int | None:
        """Time limit of an episode in steps, or None."""
        if self.atari is not None:
            every = {**self.spec.kwargs, **self.kwargs}
            return self.atari.max_episode_steps(every, self.max_episode_steps)
        if self.max_episode_steps is None:
            return self.spec.max_episode_steps
        return None if self.max_episode_steps == NO_LIMIT else self.max_episode_steps


@dataclasses.dataclass
class Made:
    """A vector environment with its properties.

    Attributes:
      vector: The vector environment.
      mode: Its declared autoreset mode.
      native: Whether it steps all environments itself.
      stepped: "native", "sync" or "async", with the reason against "native" if that was tried.
    """

    vector: VectorEnv
    mode: AutoresetMode
    native: bool
    stepped: str = "native"


def make_vector(source: VectorSource, num_envs: int) -> Made:
    """Creates a vector of `num_envs` environments with its outer wrappers.

    Raises:
      UserError: If `vectorization="native"` is unavailable, or an outer wrapper does not fit.
    """
    vector: Made | None = None
    why = ""
    try:
        if source.vectorization in ("auto", "native"):
            native = _native(source, num_envs)
            vector = native if isinstance(native, Made) else None
            if vector is None:
                _not_native(source, num_envs, str(native))
                why = f": {native}" if num_envs > 1 else ""
        if vector is None:
            vector = _of_singles(source, num_envs)
            vector.stepped += why
    except UserError:
        raise
    except Exception as error:
        better = explained(source.name, error, source.kwargs, source.spec)
        raise env_error(better, f"making {source.name}", _DEBUG) from error
    for wrapper in source.outer_wrappers:
        vector.vector = _wrapped(source, wrapper, vector)
    return vector


def declared_mode(vector: VectorEnv) -> AutoresetMode | None:
    """Returns the declared autoreset mode of a vector environment, or None.

    The attribute takes precedence: a class without its own metadata shares VectorEnv's dict, which
    other classes write to.
    """
    base = vector.unwrapped
    mode = getattr(base, "autoreset_mode", None)
    if mode is None and base.metadata is not VectorEnv.metadata:
        mode = base.metadata.get("autoreset_mode")
    if isinstance(mode, str):
        members = {name: m for m in AutoresetMode for name in (m.name, m.value)}
        mode = members.get(mode)
    return mode if isinstance(mode, AutoresetMode) else None


def _native(source: VectorSource, num_envs: int) -> Made | str:
    """The task's own vector environment, or the reason for its absence."""
    spec = source.spec
    if spec.vector_entry_point is None:
        return "the task has no native vector environment"
    if source.wrappers:
        return "wrappers apply to single environments"
    if spec.additional_wrappers:
        return "the task is registered with wrappers of single environments"
    if str(spec.vector_entry_point).startswith(_WRONG):
        return "its native vector environment pauses all environments while it resets one"
    make = load(spec.vector_entry_point)
    kwargs = _native_kwargs(source, make, num_envs)
    if isinstance(kwargs, str):
        return kwargs
    vector = make(num_envs=num_envs, **kwargs)
    mode = declared_mode(vector)
    # If the vector environment has no autoreset, the backend resets in the same step.
    left = source.autoreset is not Autoreset.NEXT_STEP and mode is AutoresetMode.DISABLED
    if mode in _modes(source.autoreset) or left:
        return Made(vector, mode, native=True)  # type: ignore[arg-type]
    vector.close()
    asked = source.autoreset.name
    if mode is None:
        return "its native vector environment does not declare its autoreset mode"
    return (
        f"its native vector environment resets by {mode.name}, not by {asked} (pass "
        f"autoreset={mode.name!r} to use it)"
    )


def _native_kwargs(source: VectorSource, make: Callable[..., Any], num_envs: int) -> Any:
    """Arguments of a vector entry point, or why it differs from single environments."""
    parameters = inspect.signature(make).parameters
    any_name = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values())
    kwargs = {**source.spec.kwargs, **source.kwargs}
    if source.render_mode is not None:
        kwargs["render_mode"] = source.render_mode
    if source.atari is not None:
        frames = source.atari.vector_kwargs(source.max_episode_steps)
        if frames is None:
            return (
                "ALE's vector environment handles a lost life differently (episodic_life, "
                "terminal_on_life_loss)"
            )
        if source.info_fields and source.autoreset is Autoreset.SAME_STEP:
            return "ALE's vector environment returns no info for the last step (info_fields)"
        kwargs.update(frames)
    elif source.limit is not None:
        kwargs["max_episode_steps"] = source.limit
    elif source.spec.max_episode_steps is not None:
        kwargs["max_episode_steps"] = _HUGE  # an unreachable count: no limit
    if "autoreset_mode" in parameters:
        kwargs["autoreset_mode"] = _modes(source.autoreset)[0]
    unknown = [] if any_name else sorted(set(kwargs) - set(parameters))
    if unknown:
        return f"its native vector environment has no argument {', '.join(unknown)}"
    return kwargs


def _modes(asked: Autoreset) -> tuple[AutoresetMode, ...]:
    """The vector modes that an autoreset can build on, the best first."""
    if asked is Autoreset.DISABLED:
        return AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP
    return (AutoresetMode[asked.name],)


def _not_native(source: VectorSource, num_envs: int, reason: str) -> None:
    """Logs why the environments are stepped one after another."""
    if source.vectorization == "native":
        raise UserError(
            f"vectorization of {source.name}",
            expected="a task whose native vector environment supports these options",
            got=f"'native', but {reason}",
            remedy="Pass vectorization='sync', or 'auto' to fall back to it.",
        )
    logging.getLogger(__name__).info(
        "%s: stepping %d environments sequentially (vectorization='sync'): %s.",
        source.name,
        num_envs,
        reason,
    )


def _of_singles(source: VectorSource, num_envs: int) -> Made:
    """Single environments, one after another or each in a process."""
    kwargs = dict(source.kwargs)
    if source.render_mode is not None:
        kwargs["render_mode"] = source.render_mode
    factory = EnvFactory(
        name=source.name,
        spec=source.spec,
        kwargs=kwargs,
        max_episode_steps=source.max_episode_steps,
        wrappers=source.wrappers,
        atari=source.atari,
        info_fields=source.info_fields,
        whole_info=bool(source.outer_wrappers),
        tolerant=source.tolerant,
    )
    mode = _modes(source.autoreset)[0]
    factories = [dataclasses.replace(factory, index=i) for i in range(num_envs)]
    copy = bool(source.outer_wrappers)  # wrappers may keep observations; the backend copies
    vector: VectorEnv
    if source.vectorization == "async":
        successor = functools.partial(dataclasses.replace, lost=True) if source.tolerant else None
        vector = ProcessVectorEnv(source.name, factories, mode, source.timeout, copy, successor)
    else:
        vector = SyncVectorEnv(factories, copy=copy, autoreset_mode=mode)
    stepped = "async" if source.vectorization == "async" else "sync"
    return Made(vector, mode, native=False, stepped=stepped)


def _wrapped(source: VectorSource, wrapper: OuterWrapper, vector: Made) -> VectorEnv:
    """Applies an outer wrapper; closes the environments on any error."""
    try:
        wrapped = wrapper(vector.vector)
    except BaseException as error:
        vector.vector.close()
        # Gymnasium's wrappers refuse the mode, before 1.4 without a message.
        named = isinstance(error, ValueError) and "autoreset_mode" in str(error)
        refused = isinstance(error, AssertionError) or named
        if not refused or vector.mode is not AutoresetMode.SAME_STEP:
            raise
        raise UserError(
            f"outer_wrappers of {source.name}",
            expected="wrappers that support SAME_STEP",
            got=f"{getattr(wrapper, '__name__', wrapper)!r}, which rejects it",
            remedy="Pass autoreset='NEXT_STEP', or use a single-environment wrapper in wrappers.",
        ) from error
    if isinstance(wrapped, VectorEnv):
        return wrapped
    vector.vector.close()
    raise UserError(
        f"outer_wrappers of {source.name}",
        expected="functions gymnasium.vector.VectorEnv -> gymnasium.vector.VectorEnv",
        got=f"a function that returns a {type(wrapped).__name__}",
        remedy="Pass wrappers of gymnasium.wrappers.vector here, and single-environment wrappers "
        "as wrappers.",
    )


def image(vector: VectorEnv, index: int) -> Any:
    """Renders one environment of a SyncVectorEnv."""
    singles: list[gymnasium.Env] = vector.unwrapped.envs
    return singles[index].render()
