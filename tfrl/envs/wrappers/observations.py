"""Wrappers of observations: cast, flattened, stacked, with ids and central states."""

from typing import Any

import numpy as np
import tensorflow as tf

from tfrl import checks, specs, struct
from tfrl.envs.action_masks import join_mask, split_mask
from tfrl.envs.core import Wrapper, carrying
from tfrl.envs.multi_agent import MultiAgentEnv, agent_ids
from tfrl.envs.wrappers.base import (
    ObservationWrapper,
    StatefulWrapper,
    WrapperState,
    require_bare,
)
from tfrl.errors import UserError
from tfrl.types import EnvState, Nest

PADDINGS = ("reset", "zero")


@struct.logic_dataclass
class ObservationCast(ObservationWrapper):
    """Casts every leaf of the observation; on either side of the autoreset.

    Attributes:
      env: An environment.
      dtype: The numeric dtype of every leaf; bounds are cast with it.
    """

    dtype: tf.DType = tf.float32

    def __post_init__(self) -> None:
        """Checks the dtype."""
        if not isinstance(self.dtype, tf.DType) or not (
            self.dtype.is_floating or self.dtype.is_integer
        ):
            raise UserError(
                "ObservationCast.dtype", expected="a numeric tf.DType", got=repr(self.dtype)
            )

    @property
    def obs_spec(self) -> Nest:
        """The wrapped environment's, with the new dtype."""
        return tf.nest.map_structure(self._cast_spec, self.env.obs_spec)

    def _cast_spec(self, spec: tf.TensorSpec) -> tf.TensorSpec:
        if spec.dtype == self.dtype:
            return spec
        low, high = (np.asarray(b, np.float64) for b in specs.bounds(spec))
        if spec.dtype.is_floating and not (np.isfinite(low).any() or np.isfinite(high).any()):
            return tf.TensorSpec(spec.shape, self.dtype, spec.name)
        if self.dtype.is_integer:
            low, high = np.maximum(low, self.dtype.min), np.minimum(high, self.dtype.max)
        kind = self.dtype.as_numpy_dtype
        low, high = low.astype(kind), high.astype(kind)
        return specs.BoundedTensorSpec(spec.shape, self.dtype, low, high, spec.name)

    def observe(self, obs: Nest) -> Nest:
        """Casts a batch of observations."""
        return tf.nest.map_structure(lambda x: tf.cast(x, self.dtype), obs)


@struct.logic_dataclass
class ObservationFlatten(ObservationWrapper):
    """Flattens an observation to one vector [B, D]; on either side of the autoreset.

    Leaves follow each other in the order of `tf.nest` (dict keys sorted). Discrete and
    multi-discrete leaves become one-hot, as in Gymnasium's FlattenObservation. The dtype is the
    common dtype of the leaves if there is one and none is discrete, else float32. An action mask
    stays separate.
    """

    @property
    def obs_spec(self) -> Nest:
        """The spec of the vector."""
        rest, mask = split_mask(self.env.obs_spec)
        return join_mask(flat_spec(rest), mask)

    def observe(self, obs: Nest) -> Nest:
        """Flattens a batch of observations."""
        rest, mask = split_mask(obs)
        return join_mask(flat(split_mask(self.env.obs_spec)[0], rest), mask)


def flat_spec(spec: Nest) -> specs.BoundedTensorSpec:
    """Returns the spec of the vector that `flat` makes."""
    bounds = [_flat_bounds(s) for s in tf.nest.flatten(spec)]
    low, high = (np.concatenate([b[i] for b in bounds]) for i in (0, 1))
    dtype = _dtype(spec)
    kind = dtype.as_numpy_dtype
    return specs.BoundedTensorSpec([low.size], dtype, low.astype(kind), high.astype(kind))


def flat(spec: Nest, values: Nest) -> tf.Tensor:
    """Makes one vector [B, D] of a nest of values [B, ...]; see `ObservationFlatten`."""
    dtype = _dtype(spec)
    leaves = zip(tf.nest.flatten(spec), tf.nest.flatten(values), strict=True)
    parts = [_flat(s, x, dtype) for s, x in leaves]
    return parts[0] if len(parts) == 1 else tf.concat(parts, axis=-1)


def _dtype(spec: Nest) -> tf.DType:
    leaves = tf.nest.flatten(spec)
    dtypes = {s.dtype for s in leaves}
    if len(dtypes) > 1 or any(_counts(s) is not None for s in leaves):
        return tf.float32
    return dtypes.pop()


def _counts(spec: tf.TensorSpec) -> tuple[np.ndarray, np.ndarray] | None:
    """Smallest values and numbers of values of a (multi-)discrete leaf, each flat; else None."""
    if not isinstance(spec, specs.DiscreteSpec | specs.MultiDiscreteSpec):
        return None
    low, high = (b.astype(np.int64).ravel() for b in specs.bounds(spec))
    return low, high - low + 1


def _flat_bounds(spec: tf.TensorSpec) -> tuple[np.ndarray, np.ndarray]:
    counts = _counts(spec)
    if counts is not None:
        size = int(counts[1].sum())
        return np.zeros(size), np.ones(size)
    low, high = specs.bounds(spec)
    return low.ravel(), high.ravel()


def _flat(spec: tf.TensorSpec, x: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    counts = _counts(spec)
    flat = tf.reshape(x, [x.shape[0], -1])  # [B, d]
    if counts is None:
        return tf.cast(flat, dtype)
    low, numbers = counts
    index = tf.cast(flat, tf.int64) - low
    hot = [tf.one_hot(index[:, i], int(n), dtype=dtype) for i, n in enumerate(numbers)]
    return hot[0] if len(hot) == 1 else tf.concat(hot, axis=-1)


@struct.logic_dataclass
class ObservationStack(StatefulWrapper):
    """Stacks the last `num` observations, newest last; only below the autoreset.

    History is cleared at the start of every episode, and `final_obs` has the history of the episode
    that ended.

    Attributes:
      env: A bare environment.
      num: Number of observations.
      concat: False for a new first axis, [num, ...], as Gymnasium's FrameStackObservation; True to
        join them along the last axis (channels of images, elements of vectors).
      padding: Padding before the first observation: copies of it ("reset") or zeros ("zero").
    """

    num: int
    concat: bool = False
    padding: str = "reset"

    def __post_init__(self) -> None:
        """Checks the side, the number and the padding."""
        require_bare(self, "Above the autoreset the history mixes two episodes.")
        checks.at_least("ObservationStack.num", self.num, 1)
        checks.one_of("ObservationStack.padding", self.padding, PADDINGS)

    @property
    def obs_spec(self) -> Nest:
        """The wrapped environment's, stacked."""
        return tf.nest.map_structure(self._stack_spec, self.env.obs_spec)

    def _stack_spec(self, spec: tf.TensorSpec) -> specs.BoundedTensorSpec:
        low, high = (self._stack_array([b] * self.num) for b in specs.bounds(spec))
        if self.padding == "zero":
            low, high = np.minimum(low, 0), np.maximum(high, 0)
        kind = spec.dtype.as_numpy_dtype
        low, high = low.astype(kind), high.astype(kind)
        return specs.BoundedTensorSpec(low.shape, spec.dtype, low, high, spec.name)

    def _stack_array(self, parts: list[np.ndarray]) -> np.ndarray:
        if self.concat:
            return np.concatenate([np.atleast_1d(p) for p in parts], axis=-1)
        return np.stack(parts)

    def _frames(self, obs: tf.Tensor) -> tf.Tensor:
        """[B, 1, ...], or at least [B, 1] to be joined along the last axis."""
        if not self.concat:
            return obs[:, tf.newaxis]
        return obs[:, tf.newaxis] if obs.shape.rank == 1 else obs

    def reset(self, key: tf.Tensor) -> EnvState:
        """Starts an episode in every environment."""

        def fill(obs: tf.Tensor) -> tf.Tensor:
            newest = self._frames(obs)
            oldest = newest if self.padding == "reset" else tf.zeros_like(newest)
            return tf.concat([oldest] * (self.num - 1) + [newest], axis=self._axis)

        state = self.env.reset(key)
        return self._with(state, tf.nest.map_structure(fill, state.obs))

    def step(self, state: EnvState, action: Nest) -> EnvState:
        """Takes one step in every environment."""

        def push(history: tf.Tensor, obs: tf.Tensor) -> tf.Tensor:
            newest = self._frames(obs)
            if self.concat:
                kept = history[..., newest.shape[-1] :]
            else:
                kept = history[:, 1:]
            return tf.concat([kept, newest], axis=self._axis)

        new = self.env.step(carrying(state.env_state.inner), action)
        return self._with(new, tf.nest.map_structure(push, state.env_state.own, new.obs))

    @property
    def _axis(self) -> int:
        return -1 if self.concat else 1

    def _with(self, state: EnvState, history: Nest) -> EnvState:
        carried = WrapperState(inner=state.env_state, own=history)
        return state.replace(env_state=carried, obs=history)


@struct.logic_dataclass
class AgentId(ObservationWrapper):
    """Appends a one-hot agent id to each agent's observation, for shared policies.

    Each observation becomes one float32 vector: its leaves as in `ObservationFlatten`, then the
    one-hot id; an action mask stays separate. On either side of the autoreset.

    Source: "parameter sharing" with agent indication, Terry et al. 2020,
    https://arxiv.org/abs/2005.13625.
    """

    def __post_init__(self) -> None:
        """Checks that there are several agents."""
        require_agents("AgentId", self.env)

    @property
    def obs_spec(self) -> dict[str, Nest]:
        """One vector per agent."""
        ids = require_agents("AgentId", self.env)
        specs = {}
        for name in ids:
            rest, mask = split_mask(self.env.obs_spec[name])
            specs[name] = join_mask(with_id(rest, len(ids)), mask)
        return specs

    def observe(self, obs: Nest) -> dict[str, Nest]:
        """Appends the ids."""
        ids = require_agents("AgentId", self.env)
        by_agent = {}
        for i, name in enumerate(ids):
            spec, _ = split_mask(self.env.obs_spec[name])
            rest, mask = split_mask(obs[name])
            by_agent[name] = join_mask(append_id(float_vector(spec, rest), i, len(ids)), mask)
        return by_agent


def require_agents(wrapper: str, env: Nest) -> tuple[str, ...]:
    """Returns the agent ids of an environment; a UserError for a single agent."""
    ids = agent_ids(env)
    if ids is not None:
        return ids
    raise UserError(
        wrapper,
        expected="an environment with several agents (tfrl.envs.MultiAgentEnv)",
        got=f"{type(env.unwrapped).__name__}, which has one agent",
    )


def with_id(spec: Nest, count: int) -> specs.BoundedTensorSpec:
    """Returns the float32 spec of an observation vector with a one-hot id of size `count`."""
    vector = flat_spec(spec)
    low, high = specs.bounds(vector)
    low, high = (np.asarray(x, np.float32) for x in (low, high))
    return specs.BoundedTensorSpec(
        [low.size + count],
        tf.float32,
        np.concatenate([low, np.zeros(count, np.float32)]),
        np.concatenate([high, np.ones(count, np.float32)]),
    )


def float_vector(spec: Nest, values: Nest) -> tf.Tensor:
    """Returns observations [B, ...] as float32 [B, D]."""
    return tf.cast(flat(spec, values), tf.float32)


def append_id(vector: tf.Tensor, index: int, count: int) -> tf.Tensor:
    """Returns float32 [B, D + count]: a vector and the one-hot code of `index`."""
    code = tf.broadcast_to(tf.one_hot(index, count), [vector.shape[0], count])
    return tf.concat([vector, code], axis=-1)


@struct.logic_dataclass
class CentralState(Wrapper):
    """Gives each agent `{"own": its observation, "state": the global state and its one-hot id}`.

    The global state is the environment's `info["state"]` if it has one, else the concatenated
    observations of all agents, in order; one float32 vector as in `ObservationFlatten`. An action
    mask is a third item. Policies use "own", a centralised critic "state":
    `PPO(obs_key="own", value_obs_key="state")`. Only below the autoreset, so that `final_obs` has
    both too.

    Source: Yu et al. 2022 (MAPPO, "agent-specific global state"), https://arxiv.org/abs/2103.01955.
    """

    def __post_init__(self) -> None:
        """Checks the side, and that there are several agents."""
        require_bare(self, "Above the autoreset it mixes states of two episodes.")
        require_agents("CentralState", self.env)

    @property
    def obs_spec(self) -> dict[str, Any]:
        """Two items per agent."""
        ids, spec = self._ids(), self._state_spec()
        specs = {}
        for name in ids:
            rest, mask = split_mask(self.env.obs_spec[name])
            specs[name] = join_mask({"own": rest, "state": with_id(spec, len(ids))}, mask)
        return specs

    def reset(self, key: tf.Tensor) -> EnvState:
        """Starts an episode in every environment."""
        return self._mapped(self.env.reset(key))

    def step(self, state: EnvState, action: Nest) -> EnvState:
        """Takes one step in every environment."""
        return self._mapped(self.env.step(state, action))

    def _ids(self) -> tuple[str, ...]:
        return require_agents("CentralState", self.env)

    def _task_state_spec(self) -> Nest:
        task = self.env.unwrapped
        return task.state_spec if isinstance(task, MultiAgentEnv) else None

    def _state_spec(self) -> Nest:
        spec = self._task_state_spec()
        if spec is not None:
            return spec
        return [split_mask(self.env.obs_spec[name])[0] for name in self._ids()]

    def _mapped(self, state: EnvState) -> EnvState:
        ids, spec = self._ids(), self._state_spec()
        if self._task_state_spec() is None:
            central = [split_mask(state.obs[name])[0] for name in ids]
        else:
            central = state.info["state"]
        vector = float_vector(spec, central)  # [B, S]
        obs = {}
        for i, name in enumerate(ids):
            rest, mask = split_mask(state.obs[name])
            obs[name] = join_mask({"own": rest, "state": append_id(vector, i, len(ids))}, mask)
        return state.replace(obs=obs)
