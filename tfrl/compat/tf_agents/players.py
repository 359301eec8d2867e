"""Players step an environment for a `PyEnvironment`: batched time steps in NumPy."""

import abc
from typing import Any

import numpy as np
import tensorflow as tf
from tf_agents.trajectories import TimeStep

from tfrl import seeding
from tfrl.compat.tf_agents.trajectories import time_step
from tfrl.envs.core import Autoreset, Env, carrying
from tfrl.envs.host_env import HostEnv
from tfrl.errors import UserError
from tfrl.traces import counted_separately
from tfrl.types import EnvState, Nest


class Player(abc.ABC):
    """Plays the episodes of an environment, one after another.

    Attributes:
      env: The environment.
      info: The `info` of the last state, in NumPy.
    """

    def __init__(self, env: Env, seed: int, discount: float):
        """Does not reset yet.

        Args:
          env: The environment.
          seed: The seed of the first reset.
          discount: See `time_steps.time_step`.
        """
        self.env = env
        self.info: dict[str, Any] = {}
        self._discount = discount
        self.seed(seed)

    def seed(self, seed: int) -> None:
        """Sets the seed of the next reset."""
        self._seed, self._resets = int(seed), 0

    def reset(self) -> TimeStep:
        """Starts an episode in every environment."""
        number, self._resets = self._resets, self._resets + 1
        return self._begin(self._seed if number == 0 else _later(self._seed, number))

    @abc.abstractmethod
    def _begin(self, key: Any) -> TimeStep:
        """Starts episodes from an int seed or from a key."""

    @abc.abstractmethod
    def step(self, action: Nest) -> TimeStep:
        """Takes a step; rows after an end begin an episode instead."""

    @abc.abstractmethod
    def render(self, index: int) -> np.ndarray:
        """Renders environment `index`."""

    @abc.abstractmethod
    def close(self) -> None:
        """Frees the resources."""


def _later(seed: int, number: int) -> tf.Tensor:
    """Returns the key of a later reset."""
    return seeding.fold_in(seeding.key(seed), number)


class DevicePlayer(Player):
    """Plays a device environment, by one compiled call per step."""

    def __init__(self, env: Env, seed: int, discount: float):
        """Compiles nothing before the first call."""
        super().__init__(env, seed, discount)
        self._state: Any = None
        self._reset = tf.function(
            counted_separately(lambda key: self._outputs(env.reset(key))), autograph=False
        )
        self._step = tf.function(
            counted_separately(
                lambda inner, action: self._outputs(env.step(carrying(inner), action))
            ),
            autograph=False,
        )

    def _outputs(self, state: EnvState) -> tuple[Nest, TimeStep, dict[str, Any]]:
        check_reward(state.reward)
        info = {name: value for name, value in state.info.items() if name != "final_obs"}
        return state.env_state, time_step(state, self.env.obs_spec, self._discount), info

    def _begin(self, key: Any) -> TimeStep:
        key = key if tf.is_tensor(key) else seeding.key(key)
        return self._keep(self._reset(key))

    def step(self, action: Nest) -> TimeStep:
        """Takes a step."""
        return self._keep(self._step(self._state, as_tensors(action, self.env.action_spec)))

    def _keep(self, outputs: tuple[Nest, TimeStep, dict[str, Any]]) -> TimeStep:
        self._state, step, info = outputs
        step, self.info = tf.nest.map_structure(lambda x: x.numpy(), (step, info))
        return step

    def render(self, index: int) -> np.ndarray:
        """Renders environment `index`."""
        return self.env.render(carrying(self._state), index)

    def close(self) -> None:
        """Drops the state."""
        self._state = None


class HostEnvPlayer(Player):
    """Plays a `HostEnv` with autoreset NEXT_STEP, or one environment of any mode."""

    env: HostEnv

    def __init__(self, env: HostEnv, seed: int, discount: float):
        """Stores the environment."""
        super().__init__(env, seed, discount)
        self._state: Any = None
        self._over = False  # whether the last time step of the single environment was returned

    def _begin(self, key: Any) -> TimeStep:
        self._over = False
        return self._keep(self.env.reset(key))

    def step(self, action: Nest) -> TimeStep:
        """Takes a step; without NEXT_STEP, returns the first time step after an end."""
        if self._over:
            self._over = False
            return self._start()
        state = self.env.step(self._state, action)
        if self.env.autoreset is Autoreset.NEXT_STEP:
            return self._keep(state)
        self._over = bool(state.termination[0] | state.truncation[0])
        return self._keep(state, state.info["final_obs"])

    def _start(self) -> TimeStep:
        """Returns the first time step of the episode after an end."""
        if self.env.autoreset is Autoreset.DISABLED:
            return self.reset()
        no, none = np.zeros(1, bool), np.zeros(1, np.float32)
        info = {
            **self._state.info,
            "autoreset": ~no,
            "episode_return": none,
            "episode_length": np.zeros(1, np.int32),
        }
        begun = self._state.replace(reward=none, termination=no, truncation=no, info=info)
        return self._keep(begun)

    def _keep(self, state: EnvState, obs: Nest = None) -> TimeStep:
        self._state = state
        self.info = {name: value for name, value in state.info.items() if name != "final_obs"}
        shown = state if obs is None else state.replace(obs=obs)
        return time_step(shown, self.env.obs_spec, self._discount)

    def render(self, index: int) -> np.ndarray:
        """Renders environment `index`, if the environments were created for rendering."""
        return self.env.render(self._state, index)

    def close(self) -> None:
        """Closes the environments."""
        self.env.close()


def make_player(env: Env, seed: int, discount: float) -> Player:
    """Returns the player of an environment."""
    if isinstance(env, HostEnv):
        return HostEnvPlayer(env, seed, discount)
    return DevicePlayer(env, seed, discount)


def as_tensors(action: Nest, action_spec: Nest) -> Nest:
    """Returns actions as tensors of the specs' dtypes, in the specs' structure."""
    pairs = zip(tf.nest.flatten(action), tf.nest.flatten(action_spec), strict=True)
    leaves = [tf.convert_to_tensor(a, spec.dtype) for a, spec in pairs]
    return tf.nest.pack_sequence_as(action_spec, leaves)


def check_reward(reward: Nest) -> None:
    """Raises a UserError for a nest of rewards."""
    if tf.nest.is_nested(reward):
        raise UserError(
            "reward for TF-Agents",
            expected="one number per step",
            got=f"a nest, {tf.nest.map_structure(lambda r: r.shape, reward)}",
            remedy="Sum the rewards in a wrapper.",
        )
