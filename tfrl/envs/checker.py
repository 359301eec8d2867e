"""`check_env`: finds problems of an environment and their remedies."""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from tfrl import seeding, specs, struct
from tfrl.distributions.factory import make_distribution, masks_by_path
from tfrl.envs.action_masks import MASK, split_mask
from tfrl.envs.checker_values import (
    check_bounds,
    check_finite,
    check_mask,
    check_starts,
    difference,
    sample_actions,
)
from tfrl.envs.contract import Contract, MultiAgentContract, check_agent_specs, check_agents
from tfrl.envs.core import Autoreset, Env, Wrapper, carrying
from tfrl.envs.host_env import HostEnv
from tfrl.envs.multi_agent import agent_ids
from tfrl.envs.registry import check_num_envs
from tfrl.errors import UserError
from tfrl.traces import counted_separately
from tfrl.types import EnvState, Nest

# Rows with ignored actions need no valid action.
_IGNORES = (Autoreset.NEXT_STEP, Autoreset.DISABLED, None)


@dataclasses.dataclass
class _Mask:
    """A mask in a state.

    Attributes:
      name: Its location, for messages.
      agent: Its agent; None with a single agent.
      spec: The nest of specs of one action.
      leaves: `{path in the action: mask [B, ...]}`.
    """

    name: str
    agent: str | None
    spec: Nest
    leaves: dict[str, Any]

    def named(self) -> dict[str, str]:
        """`{path in the action: name}`."""
        return {p: self.name if p == "." else f"{self.name}/{p}" for p in self.leaves}


def _masks(env: Env, state: EnvState) -> list[_Mask]:
    """All masks of a state: in the observation (of each agent), and in info."""
    if agent_ids(env) is not None:
        return [
            _Mask(f"obs/{a}/{MASK}", a, env.action_spec[a], masks_by_path(mask))
            for a, mask in ((a, split_mask(state.obs[a])[1]) for a in env.action_spec)
            if mask is not None
        ]
    masks = {"obs": split_mask(state.obs)[1], "info": (state.info or {}).get(MASK)}
    return [
        _Mask(f"{where}/{MASK}", None, env.action_spec, masks_by_path(mask))
        for where, mask in masks.items()
        if mask is not None
    ]


class MaskContract:
    """Checks the masks of an environment and raises a UserError for invalid ones.

    Call `check` with the states in order. `sample` draws only valid actions, since the effect of
    others is undefined.
    """

    def __init__(self, env: Env):
        """Takes the environment."""
        self._env = env
        self._last: dict[str, np.ndarray] = {}
        self._ended = np.zeros(env.num_envs, bool)

    def check(self, state: EnvState, where: str) -> None:
        """Checks shapes, dtypes and values; `where` is for messages."""
        masks = _masks(self._env, state)
        if not masks:
            return
        now: dict[str, np.ndarray] = {}
        for mask in masks:
            _check_form(self._env, mask, where, static=False)
            rows = self._acting(state, mask)
            for path, name in mask.named().items():
                value = mask.leaves[path].numpy()
                check_mask(f"{where}: {name}", _spec_of(mask, path), value.astype(bool), rows)
                now[name] = value
        self._check_agree(now, where)
        self._check_frozen(now, where)
        self._last, self._ended = now, _ended(state)

    def _acting(self, state: EnvState, mask: _Mask) -> np.ndarray:
        """Rows, bool [B], whose next action is used, according to the state."""
        acting = np.ones(self._env.num_envs, bool)
        if self._env.autoreset in _IGNORES:
            acting = ~_ended(state)
        flags = (state.info or {}).get("agents")
        if mask.agent is None or flags is None or not self._last:
            return acting
        own = {name: flag.numpy() for name, flag in flags[mask.agent].items()}
        return acting & own["active"] & ~own["termination"] & ~own["truncation"]

    def _check_agree(self, now: dict[str, np.ndarray], where: str) -> None:
        """Checks that info and observation agree, if both have the mask."""
        for name, value in now.items():
            other = now.get(name.replace(f"info/{MASK}", f"obs/{MASK}", 1), value)
            if not np.array_equal(value, other):
                raise UserError(
                    f"{where}: {name}",
                    expected=f"the mask of the observation, obs/{MASK}",
                    got=f"a different mask in rows {_rows(value != other)}",
                    remedy="Return the valid actions at obs in only one of them.",
                )

    def _check_frozen(self, now: dict[str, np.ndarray], where: str) -> None:
        """Checks that ended rows keep their last mask, under DISABLED."""
        if self._env.autoreset is not Autoreset.DISABLED:
            return
        for name, value in now.items():
            before = self._last.get(name, value)
            over = self._ended.reshape(-1, *[1] * (value.ndim - 1))
            if np.any(over & (value != before)):
                raise UserError(
                    f"{where} under DISABLED: {name}",
                    expected="the mask of the last step in ended rows",
                    got=f"a different mask in rows {_rows(over & (value != before))}",
                    remedy="Freeze the mask together with the observation, as tfrl.make_env does.",
                )

    def sample(self, state: EnvState, key: tf.Tensor) -> Nest:
        """Draws valid actions for a state's masks.

        Args:
          state: A checked state.
          key: int32 [2].

        Returns:
          The nest of a batch of actions, tensors.
        """
        env = self._env
        masks = {mask.agent: mask for mask in _masks(env, state)}
        drawn = specs.sample(env.action_spec, key, [env.num_envs])
        rng = np.random.default_rng(np.asarray(key).view(np.uint32))
        for agent, mask in masks.items():
            acting = self._acting(state, mask)
            leaves = struct.paths(drawn if agent is None else drawn[agent])
            for path, value in mask.leaves.items():
                spec = _spec_of(mask, path)
                free = ~acting.reshape(-1, *[1] * (value.shape.rank - 1))
                action = sample_actions(spec, rng, env.num_envs, value.numpy().astype(bool) | free)
                leaves[path] = tf.constant(action, spec.dtype)
            packed = tf.nest.pack_sequence_as(mask.spec, list(leaves.values()))
            drawn = packed if agent is None else {**drawn, agent: packed}
        return drawn


def check_static(env: Env, first: EnvState, step: Any, action: Nest) -> None:
    """Checks that the masks have static shapes when reset and step are traced.

    Args:
      env: The environment.
      first: The state of a reset.
      step: `env.step` as a tf.function.
      action: A batch of actions.
    """
    if not _masks(env, first):
        return
    reset = tf.function(env.reset, autograph=False)
    traced = {
        "reset": reset.get_concrete_function(tf.TensorSpec([2], tf.int32)),
        "step": step.get_concrete_function(first, action),
    }
    for name, graph in traced.items():
        for mask in _masks(env, graph.structured_outputs):
            _check_form(env, mask, f"{name} in tf.function", static=True)


def _check_form(env: Env, mask: _Mask, where: str, static: bool) -> None:
    """Checks that each mask matches a part of the action, in shape and dtype."""
    heads = {h.path: h for h in make_distribution(mask.spec).heads}
    unknown = sorted(set(mask.leaves) - {p for p, h in heads.items() if h.mask_shape is not None})
    for path in unknown:
        raise UserError(
            f"{where}: {mask.named()[path]}",
            expected="masks of discrete actions only",
            got=f"a mask for {heads[path].spec!r}"
            if path in heads
            else f"a mask for the unknown action {path}",
            remedy="Use the nest of the action, with None for leaves that cannot be masked.",
        )
    for path, name in mask.named().items():
        value, shape = mask.leaves[path], [env.num_envs, *(heads[path].mask_shape or ())]
        fits = value.shape.as_list() == shape and (value.dtype.is_bool or value.dtype.is_integer)
        if not fits:
            remedy = "Return True for each valid value of the action, and False for the rest."
            if static:
                remedy = "Set the shape with tf.ensure_shape, so that a loop can run the steps."
            raise UserError(
                f"{where}: {name}",
                expected=f"a tensor bool {shape}",
                got=f"{value.dtype.name} {value.shape.as_list()}",
                remedy=remedy,
            )
        if value.dtype.is_integer and not static and not np.isin(value.numpy(), (0, 1)).all():
            raise UserError(
                f"{where}: {name}",
                expected="only 0 and 1 in an integer mask",
                got=", ".join(map(str, np.setdiff1d(value.numpy(), (0, 1)).tolist())),
            )


def _spec_of(mask: _Mask, path: str) -> Any:
    return struct.paths(mask.spec)[path]


def _ended(state: EnvState) -> np.ndarray:
    return state.termination.numpy() | state.truncation.numpy()


def _rows(different: np.ndarray) -> list[int]:
    return np.flatnonzero(different.reshape(len(different), -1).any(axis=1)).tolist()


INFO = {"autoreset": tf.bool, "episode_length": tf.int32}


def check_env(env: object, steps: int = 200, seed: int = 0, stochastic: bool = True) -> None:
    """Checks an environment against its protocol, by running it with random actions.

    For a device environment: specs; structure, shapes and dtypes of the results of reset and step,
    which must agree; end flags; bounds and finiteness of observations and rewards; that a key
    determines everything and another key gives another result; that `step` reads only `env_state`;
    that it compiles; masks of actions, which the random ones keep to; and for an environment with
    an autoreset mode the whole contract of that mode over `steps` steps. With several agents
    (`MultiAgentEnv`): their dicts, and their active and end flags.

    For a host environment, a `HostEnv`, a `gymnasium.Env` or a `gymnasium.vector.VectorEnv`:
    spaces, signatures, types, dtypes, bounds, finiteness; that a seed determines the episodes and
    another one gives others; action masks; that observations are not overwritten; and that the
    behaviour matches the declared autoreset mode. It is not closed. Infinite action bounds, and
    other allowed but usually unintended things, are logged as warnings.

    Args:
      env: A bare device environment, one with an autoreset mode, or a host environment.
      steps: Number of steps.
      seed: The seed of the keys and the random actions.
      stochastic: False for a task whose episodes do not depend on the key.

    Raises:
      UserError: For the first problem.
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
            remedy="Derive it from Env, or create it with make_env; check_env also accepts a "
            "gymnasium.Env or a gymnasium.vector.VectorEnv.",
        )
    key = seeding.key(seed)
    check_specs(env)
    first = env.reset(seeding.stream(key, "reset"))
    _check_state(env, first, "reset")
    check_fresh(first)
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


def _check_on_host(env: object) -> Callable[..., None] | None:
    """The check of a kind of host environment, or None."""
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
        from tfrl.envs.checker_gymnasium import check_vector

        return check_vector
    return None


def check_specs(env: Env) -> None:
    """Checks the number of environments and the specs of one."""
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
                expected="a TensorSpec with the static shape of a single environment",
                got=repr(leaf),
                remedy="Describe each leaf by a tfrl.specs.BoundedTensorSpec or tf.TensorSpec.",
            )
    check_agent_specs(env)


def _check_state(env: Env, state: Any, where: str) -> None:
    """Checks structure, shapes and dtypes of a state."""
    if not isinstance(state, EnvState):
        raise UserError(
            f"return value of {where}", expected="an EnvState", got=type(state).__name__
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
            remedy="Use tfrl.make_env, whose autoreset adds them.",
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
        remedy="Cast or reshape it; each leaf has the leading batch axis [num_envs].",
    )


def _check_rows(env: Env, state: EnvState, where: str) -> None:
    for path, leaf in struct.paths(state.env_state).items():
        shape = tf.convert_to_tensor(leaf).shape
        if shape.rank == 0 or shape[0] != env.num_envs:
            raise UserError(
                f"{where}: env_state/{path}",
                expected=f"a leading axis of num_envs = {env.num_envs}",
                got=f"shape {shape.as_list()}",
                remedy="Keep one row per environment, also of keys ([num_envs, 2]), so that "
                "environments can be reset individually.",
            )


def check_fresh(state: EnvState) -> None:
    """Checks that the state of a reset has no reward and no end."""
    flags = {"termination": state.termination, "truncation": state.truncation}
    for path, leaf in struct.paths({"reward": state.reward, **flags}).items():
        if np.any(leaf):
            raise UserError(
                f"reset: {path}",
                expected="0 or False in every environment before the first step",
                got=str(np.asarray(leaf).tolist()),
                remedy="Build the state of a device environment with tfrl.envs.core.initial_state.",
            )


def _check_same_structure(first: EnvState, second: EnvState) -> None:
    a, b = struct.paths(first), struct.paths(second)
    for path in [*a, *b]:
        x, y = (_describe(s.get(path)) for s in (a, b))
        if x != y:
            raise UserError(
                f"state/{path}",
                expected=f"the same leaf from step as from reset, {x}",
                got=y,
                remedy="Return the same leaves, shapes and dtypes from both, so that a loop can "
                "run the steps.",
            )


def _describe(value: Any) -> str:
    if value is None:
        return "nothing"
    value = tf.convert_to_tensor(value)
    return f"{value.dtype.name} {value.shape.as_list()}"


def _check_keys(
    env: Env, first: EnvState, second: EnvState, action: Nest, key: tf.Tensor, stochastic: bool
) -> None:
    again = env.reset(seeding.stream(key, "reset"))
    repeated = env.step(first, action)
    for name, a, b in (("reset", first, again), ("step", second, repeated)):
        differs = difference(a, b, exact=True)
        if differs is not None:
            raise UserError(
                f"{name}: {differs[0]}",
                expected="the same result from the same key, state and action",
                got="a different result from the second call",
                remedy="Draw random numbers only from keys (tfrl.seeding), never from "
                "tf.random.uniform or numpy.random.",
            )
    if stochastic:
        other = seeding.stream(key, "other")
        check_starts(
            "reset",
            env.num_envs,
            _of_task(env, first),
            lambda i: _of_task(env, env.reset(seeding.fold_in(other, i - 1))),
            "Draw each row's start from the key, with shape [num_envs, ...]",
        )


def _of_task(env: Env, state: EnvState) -> tuple[Nest, Nest]:
    """The bare environment's state and the observation, without keys of wrappers."""
    obs = state.obs
    while isinstance(env, Wrapper):
        state, env = env.inner_state(state), env.env
    return state.env_state, obs


def _check_reads_env_state_only(env: Env, first: EnvState, second: EnvState, action: Nest) -> None:
    remedy = "Keep all data of a step in env_state, since wrappers change the other fields."
    try:
        differs = difference(second, env.step(carrying(first.env_state), action), exact=True)
    except (TypeError, ValueError, AttributeError, KeyError) as error:
        raise UserError(
            "step",
            expected="a step that reads only state.env_state",
            got=f"{type(error).__name__} without the other fields ({error})",
            remedy=remedy,
        ) from error
    if differs is not None:
        raise UserError(
            f"step: {differs[0]}",
            expected="a result that depends only on state.env_state",
            got="a different value without the other fields of the state",
            remedy=remedy,
        )


def _compiled_step(env: Env, state: EnvState, action: Nest) -> Any:
    """Returns the step as a tf.function, after a check that it compiles."""
    step = tf.function(counted_separately(env.step), autograph=False)
    try:
        step(state, action)
    except Exception as error:  # user code may raise anything while traced
        raise UserError(
            "step in tf.function",
            expected="a step that compiles",
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
            check_finite(thing, leaf.numpy())
            check_bounds(thing, leaf.numpy(), spec)
    for path, reward in struct.paths({"reward": state.reward}).items():
        check_finite(f"{where}: {path}", reward.numpy())
