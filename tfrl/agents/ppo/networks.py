"""The networks that PPO makes when it is given none."""

from tfrl import distributions, networks
from tfrl.types import Nest


def _torso(obs_spec: Nest, hidden: tuple[int, ...]) -> networks.Torso:
    """An MLP of `hidden` units, or for an image the Nature-CNN with its own sizes."""
    image = networks.is_image(obs_spec)
    return networks.make_torso(obs_spec, hidden=None if image else hidden)


def default_policy(
    obs_spec: Nest, action_spec: Nest, hidden: tuple[int, ...]
) -> networks.PolicyNetwork:
    """A tanh MLP with orthogonal weights (gain sqrt 2, last layer 0.01) and a free log-std.

    Source: Huang et al. 2022, details 2 and of continuous actions 1 to 4,
    https://iclr-blog-track.github.io/2022/03/25/ppo-implementation-details/.
    """
    return networks.PolicyNetwork(
        torso=_torso(obs_spec, hidden),
        distribution=distributions.make_distribution(action_spec),
    )


def default_value(obs_spec: Nest, hidden: tuple[int, ...]) -> networks.ValueNetwork:
    """The same torso with a linear head of gain 1."""
    return networks.ValueNetwork(torso=_torso(obs_spec, hidden))
