"""An agent with uniformly random actions within the action spec: a baseline."""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfrl import distributions, specs, struct
from tfrl.agents.core import Agent
from tfrl.envs.action_masks import split_mask
from tfrl.errors import UserError
from tfrl.types import ActionOutput, AgentState, Nest


@struct.dataclass
class Specs(struct.Struct):
    """The specs of an agent constructed without specs; a nest without leaves."""

    obs_spec: Nest = struct.field(static=True)
    action_spec: Nest = struct.field(static=True)


@struct.logic_dataclass
class RandomAgent(Agent):
    """Draws every action uniformly; it has no parameters and does not learn.

    If the observation has an item `action_mask`, it draws among the valid actions. Without specs in
    the constructor, it takes them in `init(obs_spec, action_spec, key)` and stores them in its
    state.

    Attributes:
      obs_spec: The nest of specs of one observation.
      action_spec: The nest of specs of one action.
    """

    obs_spec: Nest = None
    action_spec: Nest = None

    def init(self, key: tf.Tensor) -> AgentState:
        """Returns a state without parameters."""
        if self.action_spec is None:
            raise UserError(
                "RandomAgent().init",
                expected="the specs, since its constructor received none",
                got="only a key",
                remedy="Call init(env.obs_spec, env.action_spec, key).",
            )
        return AgentState(params={})

    def init_of(
        self, init: Callable[..., Any], obs_spec: Nest, action_spec: Nest, key: tf.Tensor
    ) -> AgentState:
        """Returns a state with the specs."""
        if self.action_spec is not None:
            return super().init_of(init, obs_spec, action_spec, key)
        return AgentState(params={}, extra=Specs(obs_spec=obs_spec, action_spec=action_spec))

    def compute_actions(
        self, state: AgentState, obs: Nest, key: tf.Tensor, carry: Nest = None
    ) -> ActionOutput:
        """Returns uniform actions for a batch `[B, ...]` of observations."""
        spec = state.extra.action_spec if self.action_spec is None else self.action_spec
        batch = tf.nest.flatten(obs)[0].shape[0]
        _, mask = split_mask(obs)
        if mask is None:
            return ActionOutput(action=specs.sample(spec, key, [batch]), carry=carry)
        uniform = distributions.make_distribution(spec)
        logits = tf.zeros([batch, uniform.num_outputs])
        return ActionOutput(action=uniform.build(logits, mask=mask).sample(key), carry=carry)

    evaluate_actions = compute_actions
