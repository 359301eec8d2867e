"""Converts environments to Gymnasium: a single one to `Env`, several to `VectorEnv`."""

from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import tensorflow as tf
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_space

from tfrl import checks, seeding, specs
from tfrl.envs.backend import check_action
from tfrl.envs.core import Autoreset, Env, where_rows
from tfrl.envs.host_env import HostEnv, task_name
from tfrl.envs.multi_agent import MultiAgentEnv
from tfrl.errors import UserError
from tfrl.nest_packing import collector
from tfrl.traces import counted_separately
from tfrl.types import EnvState, Nest

# Gymnasium's default.
_OWN = ("final_obs", "autoreset")
_MODES: dict[Autoreset | None, AutoresetMode] = {
    Autoreset.NEXT_STEP: AutoresetMode.NEXT_STEP,
    Autoreset.SAME_STEP: AutoresetMode.SAME_STEP,
    Autoreset.SAME_STEP_CACHED: AutoresetMode.SAME_STEP,
    Autoreset.DISABLED: AutoresetMode.DISABLED,
}
_RENDER_MODES = (None, "rgb_array")


def as_gymnasium(
    env: Env, *, vector: bool | None = None, render_mode: str | None = None
) -> "GymnasiumEnv | GymnasiumVectorEnv":
    """Converts an environment to Gymnasium.

    Args:
      env: A device or host environment with an autoreset mode, from `tfrl.make_env`. It is used,
        not copied.
      vector: Whether to make a `gymnasium.vector.VectorEnv`; None if there are several
        environments.
      render_mode: None or "rgb_array", which copies a host environment.

    Returns:
      A `gymnasium.Env` of one environment, with Gymnasium's episode ends in any autoreset mode; or
      a `gymnasium.vector.VectorEnv` with the mode of `env` as `metadata["autoreset_mode"]`.

    Raises:
      UserError: For another number of environments, several agents, or a bare environment.
    """
    checks.one_of("render_mode", render_mode, _RENDER_MODES)
    if not isinstance(env, Env) or env.autoreset is None:
        raise UserError(
            "as_gymnasium",
            expected="an environment with an autoreset mode",
            got=f"a bare {type(env).__name__}" if isinstance(env, Env) else f"{env!r:.60}",
            remedy="Create it with tfrl.make_env.",
        )
    if isinstance(env.unwrapped, MultiAgentEnv):
        raise _several_rewards()
    vector = env.num_envs > 1 if vector is None else vector
    if not vector and env.num_envs != 1:
        raise UserError(
            "as_gymnasium(vector=False)",
            expected="one environment",
            got=f"{env.num_envs} environments",
            remedy="Pass env.with_num_envs(1), or vector=True.",
        )
    if render_mode is not None and isinstance(env, HostEnv):
        env = env.copy(render=True)
    return GymnasiumVectorEnv(env, render_mode) if vector else GymnasiumEnv(env, render_mode)


class _EnvStepper:
    """Steps an environment with NumPy inputs and outputs, and holds its state."""

    def __init__(self, env: Env):
        self.env = env
        self.state: Any = None
        self._host = isinstance(env, HostEnv)
        self._name = task_name(env)
        self._collect_action = collector(env.action_spec, f"action for {self._name}")
        wrapped: Any = (lambda f: f) if self._host else _compiled
        self._reset: Callable[[Any], EnvState] = wrapped(env.reset)
        self._step: Callable[[EnvState, Nest], EnvState] = wrapped(env.step)
        self._merge = wrapped(lambda rows, a, b: where_rows(rows, a, b))
        self._spaces = (specs.to_space(env.obs_spec), specs.to_space(env.action_spec))

    @property
    def spaces(self) -> tuple[gymnasium.Space, gymnasium.Space]:
        """The spaces of one observation and of one action."""
        return self._spaces

    @property
    def metadata(self) -> dict[str, Any]:
        fps = getattr(self.env, "render_fps", None) or getattr(self.env.unwrapped, "fps", None)
        return {"render_modes": ["rgb_array"], "render_fps": int(fps or 30)}

    def reset(self, seed: int, rows: np.ndarray | None = None) -> EnvState:
        """Starts episodes, optionally only in some rows."""
        fresh = self._reset(seed if self._host else seeding.key(seed))
        if rows is not None and self.state is not None:
            if self._host:
                raise UserError(
                    "reset(options={'reset_mask': ...})",
                    expected="an environment on the device",
                    got=f"{self.env!r}, which resets all rows together",
                    remedy="Create it with autoreset='SAME_STEP' or 'NEXT_STEP'.",
                )
            mask = np.asarray(rows)
            if mask.dtype != bool or mask.shape != (self.env.num_envs,):
                raise UserError(
                    "reset(options={'reset_mask': ...})",
                    expected=f"bool of shape [{self.env.num_envs}]",
                    got=f"{mask.dtype} of shape {list(mask.shape)}",
                    remedy="Pass terminations | truncations.",
                )
            fresh = self._merge(tf.constant(mask), fresh, self.state)
        return self._kept(fresh)

    def step(self, action: Nest, *, single: bool = False) -> EnvState:
        """Takes a step with actions `[B, ...]`, or with one action.

        Raises:
          UserError: For an action out of its spec.
        """
        if self.state is None:
            raise gymnasium.error.ResetNeeded("Call reset() before step().")
        return self._kept(self._step(self.state, self._checked(action, single)))

    def _checked(self, action: Nest, single: bool) -> Nest:
        """The actions as arrays, or as tensors for the device; a leaf may be a list or a tuple."""
        env, leaves = self.env, list[Any]()
        self._collect_action(action, leaves)
        arrays = [_numbers(self._name, x) for x in leaves]
        arrays = [x[np.newaxis] for x in arrays] if single else arrays
        nest = tf.nest.pack_sequence_as(env.action_spec, arrays)
        # A large float64 becomes infinite, which the check refuses.
        with np.errstate(over="ignore"):
            nest = tf.nest.map_structure(_as_floats, env.action_spec, nest)
        check_action(self._name, env.action_spec, nest, env.num_envs)
        nest = tf.nest.map_structure(
            lambda spec, x: x.astype(spec.dtype.as_numpy_dtype), env.action_spec, nest
        )
        return nest if self._host else tf.nest.map_structure(tf.constant, nest)

    def _kept(self, state: EnvState) -> EnvState:
        """Stores a state, and returns it in NumPy without the task's state."""
        self.state = state
        shown = state.replace(env_state=None)
        if self._host:
            return shown
        return tf.nest.map_structure(lambda x: x.numpy(), shown)

    def render(self, index: int) -> np.ndarray:
        return np.asarray(self.env.render(self.state, index))

    def close(self) -> None:
        if isinstance(self.env, HostEnv):
            self.env.close()


def _as_floats(spec: tf.TensorSpec, x: np.ndarray) -> np.ndarray:
    """Numbers for a floating spec in its dtype; bools for a whole number as 0 and 1."""
    if spec.dtype.is_floating and x.dtype.kind in "iuf":
        return x.astype(spec.dtype.as_numpy_dtype)
    return x.astype(np.int8) if x.dtype.kind == "b" and spec.dtype.is_integer else x


def _numbers(name: str, leaf: Any) -> np.ndarray:
    try:
        array = np.asarray(leaf)
    except ValueError:  # lists of different lengths
        array = np.asarray(None)
    if array.dtype.kind not in "biuf":
        raise UserError(
            f"action for {name}",
            expected="numbers, in lists of equal length",
            got=f"{leaf!r:.60}",
            remedy="Pass actions that match env.action_space.",
        )
    return array


def _compiled(fn: Callable[..., Any]) -> Any:
    return tf.function(counted_separately(fn), autograph=False)


def _info(state: EnvState) -> dict[str, Any]:
    return {name: x for name, x in state.info.items() if name not in _OWN}


def _row(space: gymnasium.Space, nest: Nest, index: int) -> Any:
    """One row of an observation in the space's form."""
    if isinstance(space, gymnasium.spaces.Dict):
        return {name: _row(part, nest[name], index) for name, part in space.items()}
    if isinstance(space, gymnasium.spaces.Tuple):
        return tuple(_row(part, x, index) for part, x in zip(space.spaces, nest, strict=True))
    value = nest[index]
    if isinstance(space, gymnasium.spaces.Discrete):
        return np.dtype(space.dtype).type(value)
    return np.array(value, space.dtype)


class GymnasiumEnv(gymnasium.Env):
    """One environment of this library as `gymnasium.Env`; see `as_gymnasium`."""

    def __init__(self, env: Env, render_mode: str | None = None):
        """Takes an environment of one row."""
        self._player = _EnvStepper(env)
        self.observation_space, self.action_space = self._player.spaces
        self.metadata = self._player.metadata
        self.render_mode = render_mode

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Starts an episode."""
        super().reset(seed=seed, options=options)
        state = self._player.reset(int(self.np_random.integers(2**31)))
        return self._obs_and_info(state.obs, state)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Takes a step; an episode's last step returns the terminal observation."""
        state = self._player.step(action, single=True)
        if np.ndim(state.reward) != 1:
            raise _several_rewards()
        obs, info = self._obs_and_info(state.info["final_obs"], state)
        ends = bool(state.termination[0]), bool(state.truncation[0])
        return obs, float(state.reward[0]), *ends, info

    def _obs_and_info(self, obs: Nest, state: EnvState) -> tuple[Any, dict[str, Any]]:
        info = tf.nest.map_structure(lambda x: x[0], _info(state))
        return _row(self.observation_space, obs, 0), info

    def render(self) -> Any:
        """Renders the environment, uint8 RGB `[H, W, 3]`; None without a render mode."""
        return self._player.render(0) if self.render_mode else None

    def close(self) -> None:
        """Frees environments on the host."""
        self._player.close()


class GymnasiumVectorEnv(gymnasium.vector.VectorEnv):
    """Environments of this library as `gymnasium.vector.VectorEnv`; see `as_gymnasium`."""

    def __init__(self, env: Env, render_mode: str | None = None):
        """Takes the environments."""
        self._player = _EnvStepper(env)
        self.num_envs = env.num_envs
        self.single_observation_space, self.single_action_space = self._player.spaces
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.action_space = batch_space(self.single_action_space, self.num_envs)
        self._mode = _MODES[env.autoreset]
        self.metadata = {**self._player.metadata, "autoreset_mode": self._mode}
        self.render_mode = render_mode

    def reset(
        self,
        *,
        seed: int | list[int | None] | None = None,
        options: dict[str, Any] | None = None,
    ) -> tuple[Any, dict[str, Any]]:
        """Starts an episode in every environment; a list of seeds is combined."""
        if isinstance(seed, (list, tuple)):
            known = [x for x in seed if x is not None]
            seed = int(np.random.SeedSequence(known).generate_state(1)[0]) if known else None
        super().reset(seed=seed)
        rows = (options or {}).get("reset_mask")
        state = self._player.reset(int(self.np_random.integers(2**31)), rows)
        return self._obs(state.obs), _info(state)

    def step(self, actions: Any) -> tuple[Any, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        """Takes a step in every environment."""
        state = self._player.step(actions)
        if np.ndim(state.reward) != 1:
            raise _several_rewards()
        info, ended = _info(state), state.termination | state.truncation
        if self._mode is AutoresetMode.SAME_STEP and ended.any():
            final = np.full(self.num_envs, None, object)
            for i in np.flatnonzero(ended):
                final[i] = _row(self.single_observation_space, state.info["final_obs"], int(i))
            info = {**info, "final_obs": final, "_final_obs": ended}
            info |= {"final_info": _info(state), "_final_info": ended}
        return self._obs(state.obs), state.reward, state.termination, state.truncation, info

    def _obs(self, obs: Nest) -> Any:
        """A batch of observations in the dtypes of its space."""

        def cast(space: gymnasium.Space, x: Nest) -> Any:
            if isinstance(space, gymnasium.spaces.Dict):
                return {name: cast(part, x[name]) for name, part in space.items()}
            if isinstance(space, gymnasium.spaces.Tuple):
                return tuple(cast(part, y) for part, y in zip(space.spaces, x, strict=True))
            return np.array(x, space.dtype)

        return cast(self.observation_space, obs)

    def render(self) -> Any:
        """Draws the environments, a tuple of uint8 RGB `[H, W, 3]`; None without a render mode."""
        if self.render_mode is None:
            return None
        return tuple(self._player.render(i) for i in range(self.num_envs))

    def close_extras(self, **kwargs: Any) -> None:
        """Frees environments on the host."""
        self._player.close()


def _several_rewards() -> UserError:
    return UserError(
        "as_gymnasium",
        expected="single-agent environments with one reward per step",
        got="several rewards per step, of agents or objectives",
        remedy="Pass a single-agent environment.",
    )
