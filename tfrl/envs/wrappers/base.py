"""Base classes of wrappers: checks of their side, and maps of one part of a state."""

import abc
from typing import Any

import tensorflow as tf

from tfrl import struct
from tfrl.envs.core import Autoreset, Wrapper, where_rows
from tfrl.errors import UserError
from tfrl.types import EnvState, Nest


@struct.dataclass
class WrapperState(struct.Struct):
    """The state of a stateful wrapper.

    Attributes:
      inner: The wrapped environment's `env_state`.
      own: The wrapper's own.
    """

    inner: Nest
    own: Nest


@struct.logic_dataclass
class StatefulWrapper(Wrapper):
    """A wrapper whose `env_state` is a `WrapperState`."""

    def inner_state(self, state: EnvState) -> EnvState:
        """Returns the wrapped environment's state."""
        return state.replace(env_state=state.env_state.inner)


def require_bare(wrapper: Wrapper, why: str) -> None:
    """Raises a UserError if the wrapper is above the autoreset."""
    if wrapper.env.autoreset is not None:
        name = type(wrapper).__name__
        raise UserError(
            name,
            expected="a bare environment to wrap (below time limit and autoreset)",
            got=f"an environment with autoreset {wrapper.env.autoreset.name}",
            remedy=f"{why} Pass it to make_env: wrappers=(lambda env: {name}(env=env, ...),).",
        )


def require_autoreset(wrapper: Wrapper, why: str) -> None:
    """Raises a UserError if the wrapper is below the autoreset."""
    if wrapper.env.autoreset is None:
        name = type(wrapper).__name__
        raise UserError(
            name,
            expected="an environment with an autoreset mode to wrap",
            got=f"the bare {type(wrapper.env.unwrapped).__name__}",
            remedy=f"{why} Wrap the result of make_env, or pass "
            f"outer_wrappers=(lambda env: {name}(env=env, ...),).",
        )


@struct.logic_dataclass
class ObservationWrapper(Wrapper):
    """Maps every observation with a pure function; on either side of the autoreset."""

    @abc.abstractmethod
    def observe(self, obs: Nest) -> Nest:
        """Maps a batch of observations [B, ...]."""

    def reset(self, key: tf.Tensor) -> EnvState:
        """Starts an episode in every environment."""
        return self._mapped(self.env.reset(key))

    def step(self, state: EnvState, action: Nest) -> EnvState:
        """Takes one step in every environment."""
        return self._mapped(self.env.step(state, action))

    def _mapped(self, state: EnvState) -> EnvState:
        obs = self.observe(state.obs)
        if "final_obs" not in state.info:
            return state.replace(obs=obs)
        same = state.info["final_obs"] is state.obs
        final = obs if same else self.observe(state.info["final_obs"])
        return state.replace(obs=obs, info={**state.info, "final_obs": final})


@struct.logic_dataclass
class RewardWrapper(Wrapper):
    """Maps every reward with a pure function; on either side of the autoreset.

    Rewards of rows that are not steps (resets, invalid rows) stay 0. Below the autoreset the
    episode statistics count the mapped reward, above it the task's own.
    """

    @abc.abstractmethod
    def pay(self, reward: tf.Tensor) -> tf.Tensor:
        """Maps rewards [B]."""

    def step(self, state: EnvState, action: Nest) -> EnvState:
        """Takes one step in every environment."""
        new = self.env.step(state, action)
        reward = tf.nest.map_structure(self.pay, new.reward)
        if self.env.autoreset in (Autoreset.NEXT_STEP, Autoreset.DISABLED):
            reward = where_rows(new.info["autoreset"], new.reward, reward)
        return new.replace(reward=reward)


def map_leaves(fn: Any, spec: Nest, values: Nest) -> Nest:
    """Applies `fn(leaf_spec, value)` leaf by leaf; specs may differ in kind."""
    leaves = [fn(s, v) for s, v in zip(tf.nest.flatten(spec), tf.nest.flatten(values), strict=True)]
    return tf.nest.pack_sequence_as(spec, leaves)
