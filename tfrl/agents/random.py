"""An agent that acts uniformly at random within the action spec's bounds: the baseline to beat."""

import tensorflow as tf

from tfrl import specs, struct
from tfrl.agents.core import Agent
from tfrl.types import ActionOutput, AgentState, Nest


@struct.logic_dataclass
class RandomAgent(Agent):
    """Draws every action uniformly; it has no parameters and does not learn.

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
        return ActionOutput(action=specs.sample(self.action_spec, key, [batch]), carry=carry)

    evaluate_actions = compute_actions
