"""The environment protocol for device environments, and the base of wrappers.

An environment is an immutable object of logic (`struct.logic_dataclass`); the `EnvState` holds its
state and is passed in and returned, so that a step can be compiled, looped over, saved and
replayed. All environments are natively batched: every leaf has a leading axis `[B]`.
"""

import abc
import dataclasses
import enum
import pathlib
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import tensorflow as tf

from tfrl import struct
from tfrl.errors import UserError, did_you_mean
from tfrl.loading import loadable
from tfrl.types import EnvState, Nest


@loadable
class Autoreset(enum.Enum):
    """The behaviour at the end of an episode.

    Attributes:
      NEXT_STEP: The step that ends an episode returns its terminal observation; the next step
        ignores its action and returns the first observation of a new episode. That row is invalid.
      SAME_STEP: The step that ends an episode returns the first observation of a new episode as
        `obs`, and the terminal one as `info["final_obs"]`. Every row is valid.
      SAME_STEP_CACHED: As SAME_STEP, but each environment reuses the start state of its first
        episode: fastest, but without new random starts.
      DISABLED: The state freezes after the end. Frozen rows are invalid, with reward 0 and
        unchanged end flags.
    """

    NEXT_STEP = "NEXT_STEP"
    SAME_STEP = "SAME_STEP"
    SAME_STEP_CACHED = "SAME_STEP_CACHED"
    DISABLED = "DISABLED"

    @classmethod
    def parse(cls, mode: "Autoreset | str") -> "Autoreset":
        """Returns the mode of an enum member or of its name in any case."""
        if isinstance(mode, cls):
            return mode
        names = [m.name for m in cls]
        if isinstance(mode, str) and mode.upper() in names:
            return cls[mode.upper()]
        raise UserError(
            "autoreset",
            expected=f"one of {', '.join(names)}",
            got=repr(mode),
            remedy=did_you_mean(str(mode).upper(), names),
        )


class BatchedEnv(Protocol):
    """What a rollout needs of environments; every `Env` has it."""

    @property
    def num_envs(self) -> int:
        """The number of environments in the batch (B)."""

    @property
    def autoreset(self) -> Autoreset | None:
        """The autoreset mode; None for a bare environment."""

    def step(self, state: EnvState, action: Nest) -> EnvState:
        """Steps every environment once."""


class Env(abc.ABC):
    """A batch of environments as pure functions of their state.

    `step` reads only `state.env_state`: the other fields are results, which wrappers may change.
    Every leaf of a bare environment's `env_state` has the leading axis [B] (a key is int32 [B, 2]),
    so that rows can be reset individually.

    A *bare* environment (`autoreset` is None) implements only the task: `step` returns the true
    successor; a step after an end may return anything. `tfrl.make_env` adds time limit, episode
    statistics and autoreset, which `rollout` requires.
    """

    @property
    @abc.abstractmethod
    def obs_spec(self) -> Nest:
        """The nest of TensorSpec / BoundedTensorSpec of one observation, without batch axis."""

    @property
    @abc.abstractmethod
    def action_spec(self) -> Nest:
        """The nest of TensorSpec / BoundedTensorSpec of one action, without batch axis."""

    @property
    @abc.abstractmethod
    def num_envs(self) -> int:
        """The number of environments in the batch (B)."""

    @property
    def max_episode_steps(self) -> int | None:
        """Steps after which an episode is truncated, or None."""
        return None

    @property
    def action_repeat(self) -> int:
        """Frames of the task per step."""
        return 1

    @property
    def info_fields(self) -> tuple[str, ...]:
        """Names in `info` whose values at episode ends are metrics of a run."""
        return ()

    @property
    def autoreset(self) -> Autoreset | None:
        """The autoreset mode; None for a bare environment."""
        return None

    @property
    def steps_in_xla(self) -> bool:
        """Whether XLA also compiles a step in graph mode."""
        return False

    @property
    def unwrapped(self) -> "Env":
        """The environment below all wrappers."""
        return self

    def with_num_envs(self, num_envs: int) -> "Env":
        """Returns the same task and wrappers with another number of environments.

        Under a strategy every replica steps a part of them. The default is `replace(num_envs=)`,
        for a `logic_dataclass` with that field.

        Raises:
          UserError: If the environment does not support it.
        """
        if num_envs == self.num_envs:
            return self
        me: Any = self
        replaceable = dataclasses.is_dataclass(me) and hasattr(me, "replace")
        if replaceable and "num_envs" in {f.name for f in dataclasses.fields(me)}:
            return me.replace(num_envs=num_envs)
        raise UserError(
            f"{type(self).__name__}.with_num_envs",
            expected="a logic_dataclass with the field num_envs, or a method with_num_envs",
            got=f"a {type(self).__name__} of {self.num_envs} environments without them",
            remedy="Add one of them, so that replicas of a strategy can share the environments.",
        )

    @abc.abstractmethod
    def reset(self, key: tf.Tensor) -> EnvState:
        """Starts an episode in every environment.

        Args:
          key: int32 [2], see `tfrl.seeding`.

        Returns:
          A state with reward 0 and both end flags False, with the structure, shapes and dtypes of
          `step`'s result.
        """

    @abc.abstractmethod
    def step(self, state: EnvState, action: Nest) -> EnvState:
        """Takes one step in every environment.

        Args:
          state: The state to step from.
          action: A nest `[B, ...]` that matches `action_spec`.
        """

    def render(self, state: EnvState, index: int = 0) -> np.ndarray:
        """Draws environment `index` as a uint8 RGB array [H, W, 3]; on the host, not compiled.

        Raises:
          NotImplementedError: If the environment has no renderer.
        """
        raise NotImplementedError(f"{type(self).__name__} has no renderer")

    @property
    def has_scenes(self) -> bool:
        """Whether `write_scene` is supported."""
        return False

    def write_scene(self, states: Sequence[EnvState], path: pathlib.Path) -> None:
        """Writes the states of environment 0 as an interactive 3D page.

        Args:
          states: The states, outside of compiled code.
          path: The file, .html.
        """
        raise NotImplementedError(f"{type(self).__name__} has no scenes")


@struct.logic_dataclass
class Wrapper(Env):
    """Forwards everything to `env`; subclasses override methods."""

    env: Env

    @property
    def obs_spec(self) -> Nest:
        """The wrapped environment's."""
        return self.env.obs_spec

    @property
    def action_spec(self) -> Nest:
        """The wrapped environment's."""
        return self.env.action_spec

    @property
    def num_envs(self) -> int:
        """The wrapped environment's."""
        return self.env.num_envs

    def with_num_envs(self, num_envs: int) -> "Env":
        """Returns the wrapper around the environment with another number of environments."""
        if num_envs == self.num_envs:
            return self
        return self.replace(env=self.env.with_num_envs(num_envs))  # type: ignore[attr-defined]

    @property
    def max_episode_steps(self) -> int | None:
        """The wrapped environment's."""
        return self.env.max_episode_steps

    @property
    def action_repeat(self) -> int:
        """The wrapped environment's."""
        return self.env.action_repeat

    @property
    def info_fields(self) -> tuple[str, ...]:
        """The wrapped environment's."""
        return self.env.info_fields

    @property
    def autoreset(self) -> Autoreset | None:
        """The wrapped environment's."""
        return self.env.autoreset

    @property
    def unwrapped(self) -> Env:
        """The environment below all wrappers."""
        return self.env.unwrapped

    def reset(self, key: tf.Tensor) -> EnvState:
        """Starts an episode in every environment."""
        return self.env.reset(key)

    def step(self, state: EnvState, action: Nest) -> EnvState:
        """Takes one step in every environment."""
        return self.env.step(state, action)

    def inner_state(self, state: EnvState) -> EnvState:
        """Returns the wrapped environment's state from the wrapper's.

        A wrapper with its own state overrides this; renderers use it to reach the task's state.
        """
        return state

    def render(self, state: EnvState, index: int = 0) -> np.ndarray:
        """Draws environment `index` through the wrapped environment."""
        return self.env.render(self.inner_state(state), index)

    @property
    def has_scenes(self) -> bool:
        """The wrapped environment's."""
        return self.env.has_scenes

    def write_scene(self, states: Sequence[EnvState], path: pathlib.Path) -> None:
        """Writes the scene of the wrapped environment."""
        self.env.write_scene([self.inner_state(state) for state in states], path)


def initial_state(env: Env, *, env_state: Nest, obs: Nest, info: Nest = None) -> EnvState:
    """Returns the state after a reset of a bare environment: reward 0, both end flags False."""
    shape = [env.num_envs]
    return EnvState(
        env_state=env_state,
        obs=obs,
        reward=tf.zeros(shape, tf.float32),
        termination=tf.zeros(shape, tf.bool),
        truncation=tf.zeros(shape, tf.bool),
        info=info or {},
    )


def carrying(env_state: Nest) -> EnvState:
    """Returns a state with only `env_state`, which is all that `Env.step` reads."""
    nothing: Any = None
    return EnvState(
        env_state=env_state,
        obs=None,
        reward=None,
        termination=nothing,
        truncation=nothing,
        info={},
    )


def where_rows(mask: tf.Tensor, a: Any, b: Any) -> Any:
    """Takes each row of the batch from nest `a` where `mask` [B] is True, else from nest `b`."""
    done: dict[tuple[int, int], tf.Tensor] = {}  # select a repeated tensor once

    def choose(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        if x is y:
            return x
        pair = (id(x), id(y))
        if pair not in done:
            # The only select that takes whole rows by a mask [B], without broadcasting.
            done[pair] = tf.raw_ops.Select(condition=mask, x=x, y=y)
        return done[pair]

    return tf.nest.map_structure(choose, a, b)
