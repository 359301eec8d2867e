"""The suites `jax/brax`, `jax/gymnax` and `jax/jumanji`."""

import functools
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfrl import checks, specs
from tfrl.envs.adapters.jax import versions
from tfrl.envs.adapters.jax.bridge import JaxEnv, JaxTask, as_nest, fit_spec
from tfrl.envs.core import Autoreset, Env
from tfrl.envs.registry import finish, make_env, unknown_argument, unknown_task
from tfrl.errors import UserError
from tfrl.traces import logic_key
from tfrl.types import Nest

_GENERAL = (
    *("num_envs", "autoreset", "max_episode_steps", "wrappers", "outer_wrappers"),
    "info_fields",
)
# Cache of tasks: equal ids and arguments share one task, which is converted once.
_task_cache: dict[Hashable, tuple[JaxTask, int | None]] = {}
_KEPT = 64

BRAX_EPISODE_LENGTH = 1000  # of `brax.envs.create`
_NO_LIMIT = 2**31 - 1  # steps


def _make_suite(
    suite: str,
    build: Callable[..., tuple[JaxTask, int | None]],
    task: str,
    *,
    num_envs: int,
    autoreset: Autoreset,
    max_episode_steps: int | None,
    wrappers: Sequence[Callable[[Env], Env]],
    outer_wrappers: Sequence[Callable[[Env], Env]],
    info_fields: Sequence[str] = (),
    **kwargs: Any,
) -> Env:
    """Makes `<suite>:<task>`.

    Args:
      suite: The suite's name.
      build: `build(id, task, **kwargs) -> (JaxTask, limit in steps or None)`.
      task: The part of the id after the colon.
      num_envs: B.
      autoreset: The mode.
      max_episode_steps: See `make_env`.
      wrappers: See `make_env`.
      outer_wrappers: See `make_env`.
      info_fields: See `make_env`: names of Brax's metrics, gymnax's info, jumanji's extras.
      **kwargs: Arguments of the library's own environment.

    Raises:
      UserError: For an unknown task or argument, and a missing or incompatible JAX.
    """
    key = logic_key((suite, task, kwargs))
    if key not in _task_cache:
        if len(_task_cache) >= _KEPT:
            del _task_cache[next(iter(_task_cache))]
        _task_cache[key] = build(f"{suite}:{task}", task, **kwargs)
    jax_task, limit = _task_cache[key]
    return finish(
        JaxEnv(task=jax_task, num_envs=num_envs),
        autoreset=autoreset,
        max_episode_steps=max_episode_steps,
        task_limit=limit,
        wrappers=wrappers,
        outer_wrappers=outer_wrappers,
        info_fields=checks.strings(f"info_fields of {suite}:{task}", info_fields),
    )


def _construct(env_id: str, make: Callable[..., Any], kwargs: dict[str, Any]) -> Any:
    """Calls a library's constructor; an unknown argument is a UserError."""
    try:
        return make(**kwargs)
    except TypeError as error:
        _, separator, rest = str(error).partition("got an unexpected keyword argument '")
        if not separator:
            raise
        raise unknown_argument(env_id, rest.partition("'")[0], (), _GENERAL) from error
    except ValueError as error:
        raise UserError(
            f"make_env({env_id!r})",
            expected="arguments of the library's environment",
            got=f"the error {str(error)!r}",
        ) from error


def _known(suite: str, task: str, tasks: Iterable[str]) -> None:
    if task not in tasks:
        raise unknown_task(suite, task, tasks)


# Brax.


def brax_task(env: Any, name: str = "") -> JaxTask:
    """Returns the task of a Brax environment without Brax's wrappers.

    Actions lie within the control range of the actuators. `info` has Brax's metrics.

    Args:
      env: A `brax.envs.Env`.
      name: Its name in messages; by default its class.
    """
    jax = versions.load("jax")

    def reset(key: Any) -> Any:
        state = env.reset(key)
        return state, state.obs, state.metrics

    def step(state: Any, action: Any) -> Any:
        new = env.step(state, action)
        never = jax.numpy.zeros((), bool)
        return new, new.obs, new.reward, new.done > 0, never, new.metrics

    @functools.cache
    def renderer() -> tuple[Any, Any]:
        # `env.render` would rebuild it in every call, which takes most of its time.
        mujoco = versions.load("mujoco")
        return mujoco.Renderer(env.sys.mj_model), mujoco.MjData(env.sys.mj_model)

    def render(state: Any) -> np.ndarray:
        drawing, data = renderer()
        data.qpos, data.qvel = state.pipeline_state.q, state.pipeline_state.qd
        versions.load("mujoco").mj_forward(env.sys.mj_model, data)
        drawing.update_scene(data)
        return drawing.render()

    def scene(states: list[Any]) -> str:
        if hasattr(env.sys, "dt"):
            shown = env.sys.replace(dt=float(env.dt))
        else:  # since Brax 0.10.5
            shown = env.sys.tree_replace({"opt.timestep": float(env.dt)})
        html = versions.load("brax.io.html")
        return html.render(shown, [x.pipeline_state for x in states], colab=False)

    name = name or type(env.unwrapped).__name__
    shapes = jax.eval_shape(lambda key: as_nest(env.reset(key).obs), jax.random.PRNGKey(0))
    low, high = np.asarray(env.sys.actuator.ctrl_range, np.float32).T
    return JaxTask(
        name=name,
        reset=reset,
        step=step,
        obs_spec=fit_spec(name, None, shapes),
        action_spec=specs.BoundedTensorSpec([env.action_size], tf.float32, low, high),
        render=render,
        scene=scene,
        source=env,
    )


def _build_brax(env_id: str, task: str, **kwargs: Any) -> tuple[JaxTask, int]:
    envs = versions.load("brax.envs")
    _known("jax/brax", task, envs._envs)
    env = _construct(env_id, functools.partial(envs.get_environment, task), kwargs)
    return brax_task(env, env_id), BRAX_EPISODE_LENGTH


make_brax = functools.partial(_make_suite, "jax/brax", _build_brax)


# gymnax.

# In these tasks the time limit is part of the task, so it terminates. In the others gymnax's
# `done` mixes time limit and termination, so gymnax's limit is removed and `Episode` truncates.
_FIXED_LENGTH = ("-bsuite", "Bandit-misc")


def _build_gymnax(env_id: str, task: str, **kwargs: Any) -> tuple[JaxTask, int | None]:
    """A task of gymnax; arguments are its parameters or those of its constructor."""
    gymnax = versions.load("gymnax")
    jax = versions.load("jax")
    _known("jax/gymnax", task, gymnax.registered_envs)
    of_params = [n for n in kwargs if hasattr(gymnax.make(task)[1], n)]
    fields = {n: kwargs.pop(n) for n in of_params}
    env, params = _construct(env_id, functools.partial(gymnax.make, task), kwargs)
    params = params.replace(**fields)
    limit = None
    if not task.endswith(_FIXED_LENGTH):
        limit = int(params.max_steps_in_episode)
        params = params.replace(max_steps_in_episode=_NO_LIMIT)

    def reset(key: Any) -> Any:
        reset_key, step_key = jax.random.split(key)
        obs, state = env.reset_env(reset_key, params)
        return (state, step_key), obs, {}

    def step(state: Any, action: Any) -> Any:
        state, key = state
        key, step_key = jax.random.split(key)
        obs, state, reward, done, info = env.step_env(step_key, state, action, params)
        if hasattr(env, "is_truncated"):  # since gymnax 1.0, `done` is only termination
            done = jax.numpy.logical_or(done, env.is_truncated(state, params))
        return (state, key), obs, reward, done, jax.numpy.zeros((), bool), info

    shapes = jax.eval_shape(lambda key: as_nest(reset(key)[1]), jax.random.PRNGKey(0))
    jax_task = JaxTask(
        name=env_id,
        reset=reset,
        step=step,
        obs_spec=fit_spec(env_id, None, shapes),
        action_spec=_gymnax_action(env.action_space(params)),
        source=(env, params),
    )
    return jax_task, limit


make_gymnax = functools.partial(_make_suite, "jax/gymnax", _build_gymnax)


def _gymnax_action(space: Any) -> Nest:
    """Converts an action space of gymnax; bounds of observation spaces are unreliable."""
    if hasattr(space, "spaces"):
        if isinstance(space.spaces, dict):
            return {k: _gymnax_action(s) for k, s in space.spaces.items()}
        return tuple(map(_gymnax_action, space.spaces))
    if hasattr(space, "n"):
        return specs.DiscreteSpec(space.n, dtype=tf.int32)
    return _bounded(space.shape, tf.as_dtype(space.dtype), space.low, space.high)


def _bounded(shape: tuple[int, ...], dtype: tf.DType, low: Any, high: Any) -> Any:
    low, high = (np.broadcast_to(np.asarray(x, dtype.as_numpy_dtype), shape) for x in (low, high))
    return specs.BoundedTensorSpec(shape, dtype, low, high)


# jumanji.


def _build_jumanji(env_id: str, task: str, **kwargs: Any) -> tuple[JaxTask, None]:
    """A task of jumanji: a last step with discount 0 terminates, another one truncates."""
    jumanji = versions.load("jumanji")
    jax = versions.load("jax")
    jnp = jax.numpy
    _known("jax/jumanji", task, jumanji.registered_environments())
    env = _construct(env_id, functools.partial(jumanji.make, task), kwargs)
    example = jax.eval_shape(lambda key: env.reset(key)[1], jax.random.PRNGKey(0))
    mask = getattr(example.observation, "action_mask", None)
    nvec: Any = getattr(env.action_spec, "num_values", None)
    nvec = None if nvec is None else np.asarray(nvec)
    # A mask over all combinations of a MultiDiscrete does not factorise: use one Discrete.
    joint = mask is not None and nvec is not None and nvec.ndim == 1 and mask.shape == tuple(nvec)
    fits = (
        mask is not None
        and nvec is not None
        and (joint or mask.shape == (*nvec.shape, int(nvec.max())))
    )

    def observe(timestep: Any) -> Nest:
        obs = as_nest(timestep.observation)
        if joint:
            obs["action_mask"] = obs["action_mask"].reshape(-1)
        elif mask is not None and not fits:
            obs["mask"] = obs.pop("action_mask")
        return obs

    def reset(key: Any) -> Any:
        state, timestep = env.reset(key)
        return state, observe(timestep), timestep.extras

    def step(state: Any, action: Any) -> Any:
        if joint:
            action = jnp.stack(jnp.unravel_index(action, tuple(nvec))).astype(jnp.int32)
        state, timestep = env.step(state, action)
        ended, terminal = timestep.last(), jnp.max(timestep.discount) == 0
        reward = jnp.sum(timestep.reward)  # summed over agents
        end = (ended & terminal, ended & ~terminal)
        return state, observe(timestep), reward, *end, timestep.extras

    shapes = jax.eval_shape(lambda key: reset(key)[1], jax.random.PRNGKey(0))
    if joint:
        action_spec = specs.DiscreteSpec(int(nvec.prod()), dtype=tf.int32)
    else:
        action_spec = _jumanji_spec(env.action_spec)
    jax_task = JaxTask(
        name=env_id,
        reset=reset,
        step=step,
        obs_spec=fit_spec(env_id, None, shapes),
        action_spec=action_spec,
        source=env,
    )
    return jax_task, None


make_jumanji = functools.partial(_make_suite, "jax/jumanji", _build_jumanji)


def _jumanji_spec(spec: Any) -> Any:
    """Converts a leaf of jumanji's action spec to a tfrl spec."""
    dtype = tf.as_dtype(spec.dtype)
    counts = getattr(spec, "num_values", None)
    if counts is None:
        return _bounded(spec.shape, dtype, spec.minimum, spec.maximum)
    if not spec.shape:
        return specs.DiscreteSpec(int(counts), dtype=dtype)
    return specs.MultiDiscreteSpec(np.asarray(counts), dtype=dtype)


# Names from EvoRL.


def BraxAdapter(env: Any, num_envs: int = 1) -> JaxEnv:
    """Returns a Brax environment as a bare environment of tensors.

    Args:
      env: A `brax.envs.Env` without Brax's wrappers.
      num_envs: B.
    """
    return JaxEnv(task=brax_task(env), num_envs=num_envs)


def create_wrapped_brax_env(
    env_name: str,
    *,
    episode_length: int = BRAX_EPISODE_LENGTH,
    parallel: int = 1,
    autoreset_mode: Autoreset | str = Autoreset.SAME_STEP,
    **kwargs: Any,
) -> Env:
    """Returns `make_env(f"jax/brax:{env_name}")`, with EvoRL's argument names.

    Args:
      env_name: Brax's name, such as `"ant"`.
      episode_length: Time limit of an episode in steps.
      parallel: Number of environments (B).
      autoreset_mode: A mode of `Autoreset`, or its name.
      **kwargs: Arguments of Brax's environment, such as `backend`.
    """
    return make_env(
        f"jax/brax:{env_name}",
        parallel,
        autoreset_mode,
        max_episode_steps=episode_length,
        **kwargs,
    )
