"""An agent that acts uniformly at random within the action spec's bounds: the baseline to beat."""

import tensorflow as tf

from tfrl import distributions, specs, struct
from tfrl.agents.core import Agent
from tfrl.envs.action_masks import split_mask
from tfrl.types import ActionOutput, AgentState, Nest


@struct.logic_dataclass
class RandomAgent(Agent):
    """Draws every action uniformly; it has no parameters and does not learn.

    Where the observation has an item `action_mask`, uniformly among the valid actions.

    Attributes:
      obs_spec: The nest of specs of one observation.
      action_spec: The nest of specs of one action.
    """

    obs_spec: Nest
    action_spec: Nest

    def init(self, key: tf.Tensor) -> AgentState:
        """Returns a state without parameters."""
        return AgentState(params={})

    def compute_actions(
        self, state: AgentState, obs: Nest, key: tf.Tensor, carry: Nest = None
    ) -> ActionOutput:
        """Returns uniform actions for a batch `[B, ...]` of observations."""
        batch = tf.nest.flatten(obs)[0].shape[0]
        _, mask = split_mask(obs)
        if mask is None:
            return ActionOutput(action=specs.sample(self.action_spec, key, [batch]), carry=carry)
        uniform = distributions.make_distribution(self.action_spec)
        logits = tf.zeros([batch, uniform.num_outputs])
        return ActionOutput(action=uniform.build(logits, mask=mask).sample(key), carry=carry)

    evaluate_actions = compute_actions
