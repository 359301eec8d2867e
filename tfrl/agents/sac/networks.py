"""The actor of SAC, for continuous and for discrete actions."""

from typing import TYPE_CHECKING, Any

import tensorflow as tf

from tfrl import distributions, networks, seeding, specs, struct
from tfrl.agents import network_checks
from tfrl.agents.default_networks import default_torso
from tfrl.errors import UserError
from tfrl.types import Nest

if TYPE_CHECKING:
    from tfrl.agents.sac.agent import SAC


def make_actor(
    torso: networks.Torso | None,
    obs_spec: Nest,
    action_spec: Any,
    hidden: tuple[int, ...],
    obs_key: str | None,
    **log_std: float,
) -> networks.PolicyNetwork:
    """A categorical policy, or a squashed Gaussian with state-dependent scale.

    Args:
      torso: The torso; None for a ReLU MLP (the Nature-CNN for an image).
      obs_spec: The nest of specs of the network's input.
      action_spec: One Discrete action, or the unit vector of continuous actions.
      hidden: Sizes of the default MLP's layers.
      obs_key: The item of the observation that the default torso takes.
      **log_std: Bounds of the Gaussian's log_std.
    """
    floats = action_spec.dtype.is_floating
    distribution = distributions.make_distribution(
        action_spec, squash=floats, state_dependent_std=floats, **(log_std if floats else {})
    )
    torso = torso or default_torso(obs_spec, hidden, obs_key, "relu")
    return networks.PolicyNetwork(torso=torso, distribution=distribution)


@struct.logic_dataclass
class UnitPolicy(networks.Network):
    """Adapts a network of squashed Gaussians within action bounds to [-1, 1].

    Attributes:
      network: Observations to a distribution of actions of the spec.
    """

    network: networks.Network

    def init(self, key: tf.Tensor, spec: Nest) -> dict[str, Any]:
        """Makes the network's parameters."""
        return self.network.init(key, spec)

    def apply(self, params: dict[str, Any], x: Nest, mask: Nest = None) -> Any:
        """Returns a squashed Gaussian over vectors `[..., A]` of all action elements."""
        return unit_gaussian(self.network.apply(params, x))

    def apply_training(
        self, params: dict[str, Any], x: Nest, key: tf.Tensor, mask: Nest = None
    ) -> tuple[Any, dict[str, Any]]:
        """Returns the Gaussian in training mode, and the parameters after the call."""
        output, after = self.network.apply_training(params, x, key)
        return unit_gaussian(output), after


def unit_gaussian(output: Any) -> distributions.SquashedGaussian | None:
    """Returns squashed Gaussians of all leaves as one over [-1, 1]; None for others.

    tanh gives the unit vector for any bounds, so only the bounds change.
    """
    parts = output.parts if isinstance(output, distributions.Joint) else (output,)
    if not all(isinstance(part, distributions.SquashedGaussian) for part in parts):
        return None
    loc = tf.concat([part.loc for part in parts], -1)
    log_std = tf.concat([tf.broadcast_to(part.log_std, tf.shape(part.loc)) for part in parts], -1)
    size = loc.shape[-1]
    return distributions.SquashedGaussian(
        loc=loc, log_std=log_std, low=(-1.0,) * size, high=(1.0,) * size
    )


def full_actor(agent: "SAC", network: networks.Network, input_spec: Nest) -> networks.Network:
    """Checks a full actor and returns it in SAC's form.

    Args:
      agent: The agent, `SAC`.
      network: Its `actor_network`.
      input_spec: The nest of specs of the network's input.

    Raises:
      UserError: It does not output a policy for the actions; for Boxes, not squashed Gaussians.
    """
    name = f"{type(agent).__name__}.actor_network"
    network_checks.check_policy(name, network, input_spec, agent.action_spec, agent.normalize_obs)
    if agent.discrete:
        return network
    outputs: list[Any] = []

    with tf.init_scope():
        params = network.init(seeding.key(0), input_spec)

        def trace() -> None:
            outputs.append(network.apply(params, specs.zeros(input_spec, (1,))))
            outputs.append(unit_gaussian(outputs[0]))

        tf.function(trace, autograph=False).get_concrete_function()
    if outputs[1] is None:
        raise UserError(
            name,
            expected="squashed Gaussians, whose actions lie within the bounds",
            got=f"{type(outputs[0]).__name__} of {type(network).__name__}",
            remedy="Use make_distribution(..., squash=True), or TF-Agents' "
            "ActorDistributionNetwork "
            "with continuous_projection_net=TanhNormalProjectionNetwork.",
        )
    return UnitPolicy(network=network)
