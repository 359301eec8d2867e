"""The networks that PPO makes when it is given none."""

from tfrl import distributions, networks
from tfrl.types import Nest


def default_policy(action_spec: Nest, hidden: tuple[int, ...]) -> networks.PolicyNetwork:
    """A tanh MLP with orthogonal weights (gain sqrt 2, last layer 0.01) and a free log-std.

    Source: Huang et al. 2022, details 2 and of continuous actions 1 to 4,
    https://iclr-blog-track.github.io/2022/03/25/ppo-implementation-details/.
    """
    return networks.PolicyNetwork(
        torso=networks.MLP(hidden=hidden),
        distribution=distributions.make_distribution(action_spec),
    )


def default_value(hidden: tuple[int, ...]) -> networks.ValueNetwork:
    """The same torso with a linear head of gain 1."""
    return networks.ValueNetwork(torso=networks.MLP(hidden=hidden))
