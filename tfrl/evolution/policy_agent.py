"""An agent with only a policy, for searches."""

from typing import Any

import tensorflow as tf

from tfrl import distributions, networks, struct
from tfrl.agents.core import NormalizingAgent
from tfrl.agents.default_networks import default_torso, with_memory
from tfrl.envs.action_masks import split_mask
from tfrl.loading import loadable
from tfrl.ops import statistics
from tfrl.types import ActionOutput, AgentState, Nest

# The group of parameters that a search changes.
POLICY = "policy"


@loadable
@struct.logic_dataclass
class PolicyAgent(NormalizingAgent):
    """A policy for any action space, without training by gradients.

    It takes the mode of its distribution: the best of discrete actions, or tanh of the network's
    output, scaled to the bounds of a Box. Its parameters may have a leading axis [P], the members
    of a population, for observations `[P, B, ...]`.

    Attributes:
      obs_spec: The nest of specs of one observation.
      action_spec: The nest of specs of one action; Boxes have finite bounds.
      hidden: Units of the layers of the MLP (an image has the Nature-CNN instead).
      activation: The activation of the MLP.
      torso: Replaces the MLP.
      memory: "gru" or "lstm" after the torso; None for none.
      memory_size: Units of the memory.
      normalize_obs: Whether observations are normalised by statistics.
      obs_clip: The bound of normalised observations.
    """

    obs_spec: Nest
    action_spec: Nest
    hidden: tuple[int, ...] = (16, 16)
    activation: str = "tanh"
    torso: networks.Torso | None = None
    memory: str | None = None
    memory_size: int = 32
    normalize_obs: bool = False
    obs_clip: float = 10.0
    network: networks.PolicyNetwork = struct.derived()

    def __post_init__(self) -> None:
        """Makes the network."""
        input_spec, mask = split_mask(self.obs_spec)
        torso = self.torso or default_torso(input_spec, self.hidden, activation=self.activation)
        distribution = distributions.make_distribution(self.action_spec, squash=True)
        if mask is not None:
            distribution.check_mask(mask)
        self.network = networks.PolicyNetwork(
            torso=with_memory(torso, self.memory, self.memory_size), distribution=distribution
        )

    def init(self, key: tf.Tensor) -> AgentState:
        """Makes fresh parameters, the group `policy`, and empty statistics."""
        params = self.network.init(key, split_mask(self.obs_spec)[0])
        # The search leaves out parameters that affect only the spread of sampled actions.
        spread = params.pop("distribution", {})
        return AgentState(
            params={POLICY: params},
            normalizer=statistics.init(self.obs_spec) if self.normalize_obs else None,
            extra={"distribution": spread} if spread else None,
        )

    def initial_carry(self, batch_size: int) -> Nest:
        """Returns the initial recurrent state `[B, ...]`; None without memory."""
        return self.network.initial_carry(batch_size)

    def _act(self, state: AgentState, obs: Nest, carry: Nest) -> tuple[Any, Nest]:
        inputs, mask = split_mask(self.normalized(state, obs))
        params = {**state.params[POLICY], **(state.extra or {})}
        return self.network.step(params, inputs, carry, mask)

    def compute_actions(
        self, state: AgentState, obs: Nest, key: tf.Tensor, carry: Nest = None
    ) -> ActionOutput:
        """Samples actions from the distribution."""
        policy, after = self._act(state, obs, carry)
        return ActionOutput(action=policy.sample(key), carry=after)

    def evaluate_actions(
        self, state: AgentState, obs: Nest, key: tf.Tensor, carry: Nest = None
    ) -> ActionOutput:
        """Takes the mode of the distribution."""
        policy, after = self._act(state, obs, carry)
        return ActionOutput(action=policy.mode(), carry=after)
