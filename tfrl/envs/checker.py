"""`check_env`: finds what is wrong with an environment, and says what to do about it."""

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from tfrl import seeding, specs, struct
from tfrl.envs.checker_masks import MaskContract, check_static
from tfrl.envs.contract import Contract
from tfrl.envs.core import Env, Wrapper, carrying
from tfrl.envs.host_env import HostEnv
from tfrl.envs.multi_agent_contract import (
    MultiAgentContract,
    check_agent_specs,
    check_agents,
)
from tfrl.envs.registry import check_num_envs
from tfrl.errors import UserError
from tfrl.types import EnvState, Nest

INFO = {"autoreset": tf.bool, "episode_length": tf.int32}
MAX_STARTS = 32  # among two starts alone, a correct task fails once in 2^32


def check_env(env: Any, steps: int = 200, seed: int = 0, stochastic: bool = True) -> None:
    """Checks an environment against its protocol, by running it with random actions.

    Of a device environment: specs; structure, shapes and dtypes of what reset and step return,
    which must be the same; end flags; bounds and finiteness of observations and rewards; that a key
    determines everything and another key something else; that `step` reads `env_state` only; that
    it compiles; masks of actions, which the random ones keep to; and for an environment with an
    autoreset mode the whole contract of that mode over `steps` steps. Where there are several
    agents (`MultiAgentEnv`): their dicts, and who takes part and ends when.

    Of one on the host, a `HostEnv`, a `gymnasium.Env` or a `gymnasium.vector.VectorEnv`: spaces,
    signatures, types, dtypes, bounds, finiteness; that a seed determines the episodes and another
    one gives others; masks of actions; that observations are not overwritten; and that the declared
    autoreset mode is what happens. It is left open. Infinite bounds of actions, and other things
    that are allowed but seldom meant, are logged as warnings.

    Args:
      env: A bare device environment, one with an autoreset mode, or one on the host.
      steps: How many steps to take.
      seed: Of the keys and the random actions.
      stochastic: False for a task whose episodes do not depend on the key.

    Raises:
      UserError: For the first thing that is wrong.
    """
    check_on_host = _check_on_host(env)
    if check_on_host is not None:
        check_on_host(env, steps, seed, stochastic)
        return
    if not isinstance(env, Env):
        raise UserError(
            "check_env",
            expected="a device environment (tfrl.envs.Env)",
            got=type(env).__name__,
            remedy="Derive it from Env, or give it through a registered suite; a gymnasium.Env "
            "and a gymnasium.vector.VectorEnv can be checked too.",
        )
    key = seeding.key(seed)
    _check_specs(env)
    first = env.reset(seeding.stream(key, "reset"))
    _check_state(env, first, "reset")
    _check_fresh(first)
    masks = MaskContract(env)
    masks.check(first, "reset")
    action = masks.sample(first, seeding.stream(key, "action"))
    second = env.step(first, action)
    _check_state(env, second, "step")
    _check_same_structure(first, second)
    _check_keys(env, first, second, action, key, stochastic)
    _check_reads_env_state_only(env, first, second, action)
    step = _compiled_step(env, first, action)
    check_static(env, first, step, action)
    _check_steps(env, first, step, key, steps, stochastic)


def _check_on_host(env: Any) -> Callable[..., None] | None:
    """The check of a kind of environments on the host, or None."""
    if isinstance(env, HostEnv):
        from tfrl.envs.checker_host import check_host

        return check_host
    if isinstance(env, Env):
        return None
    import gymnasium

    if isinstance(env, gymnasium.Env):
        from tfrl.envs.checker_gymnasium import check_gymnasium

        return check_gymnasium
    if isinstance(env, gymnasium.vector.VectorEnv):
        from tfrl.envs.checker_vector import check_vector

        return check_vector
    return None


def _check_specs(env: Env) -> None:
    check_num_envs(env.num_envs)
    for name, spec in (("obs_spec", env.obs_spec), ("action_spec", env.action_spec)):
        leaves = struct.paths(spec)
        bad = {p: s for p, s in leaves.items() if not specs.is_spec(s)}
        bad.update(
            {p: s for p, s in leaves.items() if p not in bad and not s.shape.is_fully_defined()}
        )
        if bad or not leaves:
            path, leaf = next(iter(bad.items()), (".", None))
            raise UserError(
                f"{name} {path}",
                expected="a TensorSpec with a static shape (of one environment)",
                got=repr(leaf),
                remedy="Describe every leaf by tfrl.specs.BoundedTensorSpec or tf.TensorSpec.",
            )
    check_agent_specs(env)


def _check_state(env: Env, state: Any, where: str) -> None:
    """Checks structure, shapes and dtypes of a state."""
    if not isinstance(state, EnvState):
        raise UserError(
            f"what {where} returns",
            expected="an EnvState",
            got=type(state).__name__,
            remedy="Return tfrl.types.EnvState(env_state=..., obs=..., ...).",
        )
    size = env.num_envs
    _check_nest(f"{where}: obs", state.obs, env.obs_spec, size)
    for path, reward in struct.paths({"reward": state.reward}).items():
        _check_leaf(f"{where}: {path}", reward, tf.TensorSpec([size], tf.float32))
    for name in ("termination", "truncation"):
        _check_leaf(f"{where}: {name}", getattr(state, name), tf.TensorSpec([size], tf.bool))
    for path, value, spec in check_agents(env, state, where):
        _check_leaf(f"{where}: {path}", value, spec)
    if env.autoreset is None:
        _check_rows(env, state, where)
        return
    missing = [n for n in ("final_obs", "episode_return", *INFO) if n not in state.info]
    if missing:
        raise UserError(
            f"{where}: info",
            expected="final_obs, autoreset, episode_return and episode_length",
            got=f"no {', '.join(missing)}",
            remedy="Leave autoreset to tfrl.make_env, which adds them.",
        )
    _check_nest(f"{where}: info/final_obs", state.info["final_obs"], env.obs_spec, size)
    for name, dtype in INFO.items():
        _check_leaf(f"{where}: info/{name}", state.info[name], tf.TensorSpec([size], dtype))


def _check_nest(thing: str, values: Nest, spec: Nest, size: int) -> None:
    got, expected = struct.paths(values), struct.paths(spec)
    if list(got) != list(expected):
        raise UserError(
            thing,
            expected=f"the leaves of the spec: {', '.join(expected)}",
            got=", ".join(got) or "none",
            remedy="Make spec and values the same nest.",
        )
    for path, leaf in expected.items():
        name = thing if path == "." else f"{thing}/{path}"
        _check_leaf(name, got[path], tf.TensorSpec([size, *leaf.shape], leaf.dtype))


def _check_leaf(thing: str, value: Any, spec: tf.TensorSpec) -> None:
    if not tf.is_tensor(value):
        got = f"{value!r} of type {type(value).__name__}"
    elif value.dtype != spec.dtype or value.shape != spec.shape:
        got = f"{value.dtype.name} {value.shape.as_list()}"
    else:
        return
    raise UserError(
        thing,
        expected=f"a tensor {spec.dtype.name} {spec.shape.as_list()}",
        got=got,
        remedy="Cast or reshape it; every leaf has the batch axis [num_envs] first.",
    )


def _check_rows(env: Env, state: EnvState, where: str) -> None:
    for path, leaf in struct.paths(state.env_state).items():
        shape = tf.convert_to_tensor(leaf).shape
        if shape.rank == 0 or shape[0] != env.num_envs:
            raise UserError(
                f"{where}: env_state/{path}",
                expected=f"a leading axis of num_envs = {env.num_envs}",
                got=f"shape {shape.as_list()}",
                remedy="Keep one row an environment, keys too ([num_envs, 2]), so that episodes "
                "can be reset one by one.",
            )


def _check_fresh(state: EnvState) -> None:
    flags = {"termination": state.termination, "truncation": state.truncation}
    for path, leaf in struct.paths({"reward": state.reward, **flags}).items():
        if np.any(leaf.numpy()):
            raise UserError(
                f"reset: {path}",
                expected="0 or False in every environment, since no step was taken",
                got=str(leaf.numpy().tolist()),
                remedy="Use tfrl.envs.core.initial_state to make the state of a reset.",
            )


def _check_same_structure(first: EnvState, second: EnvState) -> None:
    a, b = struct.paths(first), struct.paths(second)
    for path in [*a, *b]:
        x, y = (_describe(s.get(path)) for s in (a, b))
        if x != y:
            raise UserError(
                f"state/{path}",
                expected=f"the same from step as from reset, {x}",
                got=y,
                remedy="Return the same leaves, shapes and dtypes from both, so that steps can "
                "be looped over.",
            )


def _describe(value: Any) -> str:
    if value is None:
        return "nothing"
    value = tf.convert_to_tensor(value)
    return f"{value.dtype.name} {value.shape.as_list()}"


def _difference(a: Nest, b: Nest) -> str | None:
    """The path of the first leaf that differs, or None."""
    others = struct.paths(b)
    for path, x in struct.paths(a).items():
        x, y = np.asarray(x), np.asarray(others[path])
        nan = np.issubdtype(x.dtype, np.floating)
        if not np.array_equal(x, y, equal_nan=nan):
            return path
    return None


def _check_keys(
    env: Env, first: EnvState, second: EnvState, action: Nest, key: tf.Tensor, stochastic: bool
) -> None:
    again = env.reset(seeding.stream(key, "reset"))
    repeated = env.step(first, action)
    for name, a, b in (("reset", first, again), ("step", second, repeated)):
        path = _difference(a, b)
        if path is not None:
            raise UserError(
                f"{name}: {path}",
                expected="the same result from the same key, state and action",
                got="another one at the second call",
                remedy="Draw random numbers only from keys (tfrl.seeding), never from "
                "tf.random.uniform or numpy.random.",
            )
    if stochastic:
        _check_starts(env, first, seeding.stream(key, "other"))


def _check_starts(env: Env, first: EnvState, key: tf.Tensor) -> None:
    """Checks that starts differ between keys and rows.

    With few different starts some are equal by chance, so that only many equal ones are a fault.
    """
    task = _of_task(env, first)
    keys_differ, rows_differ = False, env.num_envs == 1 or _rows_differ(task, env.num_envs)
    for i in range(MAX_STARTS):
        if keys_differ and rows_differ:
            return
        other = _of_task(env, env.reset(seeding.fold_in(key, i)))
        keys_differ = keys_differ or _difference(task, other) is not None
        rows_differ = rows_differ or _rows_differ(other, env.num_envs)
    if not keys_differ:
        raise UserError(
            "reset",
            expected="another start from another key",
            got="the same state",
            remedy="Draw the start from the key; for a task with one start only, call "
            "check_env(env, stochastic=False).",
        )
    if not rows_differ:
        raise UserError(
            "reset",
            expected="different starts in the environments of a batch",
            got=f"the same row {env.num_envs} times",
            remedy="Draw with shape [num_envs, ...] from the key.",
        )


def _rows_differ(nest: Nest, size: int) -> bool:
    """Whether a leaf with a row an environment has two different rows."""
    leaves = [np.asarray(x) for x in tf.nest.flatten(nest)]
    return any(np.any(x[:1] != x) for x in leaves if x.ndim and len(x) == size)


def _of_task(env: Env, state: EnvState) -> tuple[Nest, Nest]:
    """The bare environment's own state and the observation: keys of wrappers do not count."""
    obs = state.obs
    while isinstance(env, Wrapper):
        state, env = env.inner_state(state), env.env
    return state.env_state, obs


def _check_reads_env_state_only(env: Env, first: EnvState, second: EnvState, action: Nest) -> None:
    remedy = "Keep in env_state all that a step needs; wrappers change the other fields."
    try:
        path = _difference(second, env.step(carrying(first.env_state), action))
    except (TypeError, ValueError, AttributeError, KeyError) as error:
        raise UserError(
            "step",
            expected="to read state.env_state only",
            got=f"{type(error).__name__} without the other fields ({error})",
            remedy=remedy,
        ) from error
    if path is not None:
        raise UserError(
            f"step: {path}",
            expected="to depend on state.env_state only",
            got="another value without the other fields of the state",
            remedy=remedy,
        )


def _compiled_step(env: Env, state: EnvState, action: Nest) -> Any:
    """Returns the step as a tf.function, after a try; it must compile."""
    step = tf.function(env.step, autograph=False)
    try:
        step(state, action)
    except Exception as error:  # whatever a user's code raises while it is traced
        raise UserError(
            "step in tf.function",
            expected="to compile",
            got=f"{type(error).__name__}: {str(error).strip().splitlines()[0]}",
            remedy="Use TensorFlow operations only: no .numpy(), no Python `if` on a tensor.",
        ) from error
    return step


def _check_steps(
    env: Env, state: EnvState, step: Any, key: tf.Tensor, steps: int, stochastic: bool
) -> None:
    _check_values(env, state, "reset")
    contract = None if env.autoreset is None else Contract(env, state, key, stochastic)
    agents = MultiAgentContract(env, state)
    masks = MaskContract(env)
    masks.check(state, "reset")
    stream = seeding.stream(key, "actions")
    for t in range(steps):
        state = step(state, masks.sample(state, seeding.fold_in(stream, t)))
        _check_values(env, state, f"step {t + 1}")
        masks.check(state, f"step {t + 1}")
        agents.check(state, f"step {t + 1}")
        if contract is not None:
            contract.check(state, t + 1)
        elif np.any(state.termination.numpy() | state.truncation.numpy()):
            state = env.reset(seeding.fold_in(seeding.stream(key, "again"), t))


def _check_values(env: Env, state: EnvState, where: str) -> None:
    observed = {"obs": state.obs}
    if env.autoreset is not None:
        observed["info/final_obs"] = state.info["final_obs"]
    for name, obs in observed.items():
        for path, spec in struct.paths(env.obs_spec).items():
            leaf = struct.paths(obs)[path]
            thing = f"{where}: {name}" + ("" if path == "." else f"/{path}")
            _check_finite(thing, leaf.numpy())
            _check_bounds(thing, leaf.numpy(), spec)
    for path, reward in struct.paths({"reward": state.reward}).items():
        _check_finite(f"{where}: {path}", reward.numpy())


def _check_finite(thing: str, value: np.ndarray) -> None:
    bad = ~np.isfinite(value) if np.issubdtype(value.dtype, np.floating) else np.zeros(1, bool)
    if bad.any():
        raise UserError(
            thing,
            expected="finite values",
            got=_listed(value, bad),
            remedy="Look for a division by 0, a logarithm of 0 or an overflow.",
        )


def _check_bounds(thing: str, value: np.ndarray, spec: tf.TensorSpec) -> None:
    if spec.dtype.is_bool or not spec.dtype.is_floating and not spec.dtype.is_integer:
        return
    low, high = specs.bounds(spec)
    bad = (value < low) | (value > high)
    if bad.any():
        raise UserError(
            thing,
            expected=f"values in [{low.min()}, {high.max()}], the bounds of obs_spec",
            got=_listed(value, bad),
            remedy="Correct the value, or widen the bounds of the spec.",
        )


def _listed(value: np.ndarray, bad: np.ndarray) -> str:
    """All bad indices with their values."""
    return ", ".join(f"{value[tuple(i)]} at {i.tolist()}" for i in np.argwhere(bad))
