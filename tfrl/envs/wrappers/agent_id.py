"""Tells every agent who it is."""

import numpy as np
import tensorflow as tf

from tfrl import specs, struct
from tfrl.envs.action_masks import join_mask, split_mask
from tfrl.envs.multi_agent import agent_ids
from tfrl.envs.wrappers.base import ObservationWrapper
from tfrl.envs.wrappers.observation_flatten import flat, flat_spec
from tfrl.errors import UserError
from tfrl.types import Nest


@struct.logic_dataclass
class AgentId(ObservationWrapper):
    """Appends a one-hot agent id to each agent's observation, so that a shared policy may differ.

    Each observation becomes one float32 vector: its leaves as `ObservationFlatten` lays them out,
    then as many numbers as there are agents; an action mask stays beside it. On either side of the
    autoreset.

    Source: "parameter sharing" with agent indication, Terry et al. 2020,
    https://arxiv.org/abs/2005.13625.
    """

    def __post_init__(self) -> None:
        """Checks that there are several agents."""
        require_agents("AgentId", self.env)

    @property
    def obs_spec(self) -> dict[str, Nest]:
        """One vector an agent."""
        ids = require_agents("AgentId", self.env)
        found = {}
        for name in ids:
            seen, mask = split_mask(self.env.obs_spec[name])
            found[name] = join_mask(with_id(seen, len(ids)), mask)
        return found

    def observe(self, obs: Nest) -> dict[str, Nest]:
        """Appends the ids."""
        ids = require_agents("AgentId", self.env)
        found = {}
        for i, name in enumerate(ids):
            spec, _ = split_mask(self.env.obs_spec[name])
            seen, mask = split_mask(obs[name])
            found[name] = join_mask(append_id(float_vector(spec, seen), i, len(ids)), mask)
        return found


def require_agents(wrapper: str, env: Nest) -> tuple[str, ...]:
    """Returns the agent ids of an environment; one with a single agent is a UserError."""
    ids = agent_ids(env)
    if ids is not None:
        return ids
    raise UserError(
        wrapper,
        expected="an environment with several agents (tfrl.envs.MultiAgentEnv)",
        got=f"{type(env.unwrapped).__name__}, which has one",
        remedy="Leave the wrapper out.",
    )


def with_id(spec: Nest, count: int) -> specs.BoundedTensorSpec:
    """Returns the float32 spec of an observation as a vector with `count` numbers of an id."""
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
