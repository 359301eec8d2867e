"""TF-Agents' networks as policies, value networks, Q-networks and torsos of this library."""

import tensorflow as tf

from tfrl import distributions, networks, specs, struct
from tfrl.agents.network_checks import num_actions
from tfrl.compat.tf_agents import distributions as their_distributions
from tfrl.compat.tf_agents.network_base import (
    MakeNetwork,
    Params,
    TFAgentsNetwork,
    output_spec,
)
from tfrl.envs.action_masks import split_mask
from tfrl.errors import UserError
from tfrl.types import Nest


def from_tf_agents_network(
    make_network: MakeNetwork, obs_spec: Nest, action_spec: Nest = None
) -> networks.Network:
    """Converts a TF-Agents network to a network of this library.

    The kind of the result depends on the network's output:

    * distributions, with an `action_spec`: a policy network, for `PPO(policy=...)` and its like;
    * a vector with a number for each action, with an `action_spec`: a Q-network, for `DQN(q=...)`;
    * actions, with an `action_spec` of Boxes: an actor, for `TD3(actor_network=...)` and DDPG;
    * one number, without an `action_spec`: a value network, for `PPO(value=...)`. With the tuple
      (observation, action) as input it is a critic, for `SAC(critic_network=...)`, TD3 and DDPG,
      which pass actions as one vector in [-1, 1];
    * a vector, without an `action_spec`: a torso, for all agents. The torso of a critic takes the
      tuple (observation, action), so `obs_spec` is a tuple of both specs.

    Initialisers draw from the key of `init`, random layers from the key of `apply_training`;
    `permanent` dropout draws without a key in `apply`. Regularisation losses of layers are ignored.

    Args:
      make_network: Makes the network from TF-Agents' specs: `make_network(obs_spec)`, or
        `make_network(obs_spec, action_spec)` with an `action_spec`. It may be a class of TF-Agents
        or a `functools.partial` of one.
      obs_spec: The nest of specs of one observation. An item `action_mask` is left out: agents
        take it from the observation. Floats are float32.
      action_spec: The nest of specs of one action; see above.

    Raises:
      UserError: For objects other than TF-Agents networks, for other outputs, and for a recurrent
        network that does not reset its state at a FIRST step type.
    """
    fields = {"make_network": make_network, "spec": split_mask(obs_spec)[0]}
    output = output_spec(**fields, action_spec=action_spec)
    vector = specs.is_spec(output) and output.shape.rank == 1
    if action_spec is None:
        if vector:
            return TFAgentsTorso(**fields)
        if specs.is_spec(output) and output.shape.rank == 0:
            return TFAgentsValue(**fields)
        raise _refused("one number or one vector per observation", output)
    if isinstance(output, tuple) and all(isinstance(leaf, dict) for leaf in output):
        return TFAgentsPolicy(**fields, action_spec=action_spec)
    number = num_actions(action_spec)
    if vector and output.shape[0] == number:
        return TFAgentsQNetwork(**fields, action_spec=action_spec, num_actions=number)
    if _is_action(output, action_spec):
        return TFAgentsActor(**fields, action_spec=action_spec)
    wanted = "distributions of actions"
    if number:
        raise _refused(f"{wanted}, or one value for each of {number} actions", output)
    remedy = (
        "Leave out action_spec for torsos (networks of observations, such as EncodingNetwork) and "
        "critics (networks of the tuple (obs_spec, action_spec))."
    )
    wanted += ", or actions if action_spec is not one Discrete action"
    raise _refused(wanted, output, remedy)


def _refused(
    expected: str,
    output: Nest,
    remedy: str = "Pass action_spec for policies and Q-networks, and leave it out for values and "
    "torsos.",
) -> UserError:
    return UserError("TF-Agents network", expected=expected, got=repr(output), remedy=remedy)


def _is_action(output: Nest, spec: Nest) -> bool:
    """Whether an output has the form of an action of Boxes."""
    try:
        tf.nest.assert_same_structure(output, spec, check_types=False)
    except (TypeError, ValueError):
        return False
    pairs = zip(tf.nest.flatten(output), tf.nest.flatten(spec), strict=True)
    return all(x.shape == s.shape and x.dtype.is_floating and s.dtype.is_floating for x, s in pairs)


@struct.logic_dataclass
class TFAgentsActor(TFAgentsNetwork):
    """A TF-Agents network that returns actions within their bounds, e.g. `ActorNetwork`."""


@struct.logic_dataclass
class TFAgentsTorso(TFAgentsNetwork, networks.Torso):
    """A TF-Agents network that returns a vector, for example `EncodingNetwork`."""

    def output_size(self, spec: Nest) -> int:
        """Returns the number of output features."""
        return self.output.shape[0]


@struct.logic_dataclass
class TFAgentsValue(TFAgentsNetwork):
    """A TF-Agents network that returns one number, for example `ValueNetwork`."""


@struct.logic_dataclass
class TFAgentsQNetwork(TFAgentsNetwork):
    """A TF-Agents network that returns a value for each action, for example `QNetwork`.

    Attributes:
      num_actions: The number of actions.
    """

    num_actions: int = 0


@struct.logic_dataclass
class TFAgentsPolicy(TFAgentsNetwork):
    """A TF-Agents network that returns distributions, e.g. `ActorDistributionNetwork`.

    Attributes:
      distribution: Checks action masks.
    """

    distribution: distributions.ActionDistribution = struct.derived()

    def __post_init__(self) -> None:
        """Makes the network once."""
        super().__post_init__()
        self.distribution = distributions.make_distribution(self.action_spec)

    def _distribution(self, parameters: Nest, mask: Nest) -> distributions.Distribution:
        masks = self.distribution.check_mask(mask)
        return their_distributions.distribution(parameters, self.action_spec, masks)

    def apply(self, params: Params, x: Nest, mask: Nest = None) -> distributions.Distribution:
        """Returns the distribution; see `PolicyNetwork.apply`."""
        return self._distribution(super().apply(params, x), mask)

    def apply_training(
        self, params: Params, x: Nest, key: tf.Tensor, mask: Nest = None
    ) -> tuple[distributions.Distribution, Params]:
        """Returns the distribution in training mode, and the parameters after the call."""
        result, after = super().apply_training(params, x, key)
        return self._distribution(result, mask), after

    def step(
        self, params: Params, x: Nest, carry: Nest = None, mask: Nest = None
    ) -> tuple[distributions.Distribution, Nest]:
        """Takes one step of an episode; see `Network.step`."""
        if not self.recurrent:
            return self.apply(params, x, mask), carry
        result, after = super().step(params, x, carry)
        return self._distribution(result, mask), after

    def unroll(
        self,
        params: Params,
        x: Nest,
        carry: Nest,
        starts: tf.Tensor,
        key: tf.Tensor | None,
        mask: Nest = None,
    ) -> tuple[distributions.Distribution, Params]:
        """Runs over sequences; see `Network.unroll`."""
        if not self.recurrent:
            if key is None:
                return self.apply(params, x, mask), params
            return self.apply_training(params, x, key, mask)
        result, after = super().unroll(params, x, carry, starts, key)
        return self._distribution(result, mask), after
