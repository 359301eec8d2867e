"""The networks that PPO makes when it is given none."""

from typing import Any

from tfrl import distributions, networks
from tfrl.errors import UserError
from tfrl.types import Nest


def _torso(obs_spec: Nest, hidden: tuple[int, ...], obs_key: str | None) -> networks.Torso:
    """An MLP of `hidden` units, or for an image the Nature-CNN with its own sizes."""
    whole = networks.ObservationTorso(obs_spec=obs_spec, body=networks.MLP(), obs_key=obs_key)
    image = networks.is_image(whole.choose(obs_spec))
    return networks.make_torso(obs_spec, obs_key=obs_key, hidden=None if image else hidden)


def default_policy(
    obs_spec: Nest, action_spec: Nest, hidden: tuple[int, ...], obs_key: str | None = None
) -> networks.PolicyNetwork:
    """A tanh MLP with orthogonal weights (gain sqrt 2, last layer 0.01) and a free log-std.

    Source: Huang et al. 2022, details 2 and of continuous actions 1 to 4,
    https://iclr-blog-track.github.io/2022/03/25/ppo-implementation-details/.
    """
    return networks.PolicyNetwork(
        torso=_torso(obs_spec, hidden, obs_key),
        distribution=distributions.make_distribution(action_spec),
    )


def default_value(
    obs_spec: Nest, hidden: tuple[int, ...], obs_key: str | None = None
) -> networks.ValueNetwork:
    """The same torso with a linear head of gain 1."""
    return networks.ValueNetwork(torso=_torso(obs_spec, hidden, obs_key))


def check_network(name: str, network: Any, head: str) -> None:
    """Checks that a network given to PPO is one with a head.

    Args:
      name: "policy" or "value".
      network: What was given.
      head: How to make a network with a head from a torso, as code.

    Raises:
      UserError: For a Keras model, a bare torso, or anything else that is no network.
    """
    if isinstance(network, networks.Network) and not isinstance(network, networks.Torso):
        return
    raise UserError(
        f"PPO.{name}",
        expected=f"a tfrl.networks network that ends in a {name}",
        got=type(network).__name__,
        remedy="A Keras model becomes one as the torso, given as a function that makes it: "
        f"{name}={head}.",
    )
