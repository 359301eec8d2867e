"""The default networks of agents."""

from collections.abc import Callable
from typing import Any

from tfrl import distributions, networks
from tfrl.types import Nest


def sees_image(obs_spec: Nest, obs_key: str | None) -> bool:
    """Tells whether the default torso takes one image: all of the observation, or its item."""
    torso = networks.ObservationTorso(obs_spec=obs_spec, body=networks.MLP(), obs_key=obs_key)
    return networks.is_image(torso.choose(obs_spec))


def default_torso(
    obs_spec: Nest, hidden: tuple[int, ...], obs_key: str | None = None, activation: str = "tanh"
) -> networks.Torso:
    """An MLP of `hidden` units with orthogonal weights of gain sqrt 2; the Nature-CNN for an image.

    Source: Huang et al. 2022, detail 2,
    https://iclr-blog-track.github.io/2022/03/25/ppo-implementation-details/.

    Args:
      obs_spec: The nest of specs of the network's input.
      hidden: Layer sizes of the MLP; the Nature-CNN has fixed sizes.
      obs_key: The item of the observation that it takes; None for all of it.
      activation: The MLP's activation.
    """
    if sees_image(obs_spec, obs_key):
        return networks.make_torso(obs_spec, obs_key=obs_key)
    return networks.make_torso(
        obs_spec, obs_key=obs_key, hidden=tuple(hidden), activation=activation
    )


def default_policy(
    torso: networks.Torso, action_spec: Nest, squash: bool, init_log_std: float
) -> networks.PolicyNetwork:
    """A linear head of gain 0.01; for continuous actions with a state-independent log-std.

    Source: Huang et al. 2022, detail 2 and of continuous actions 1 to 4,
    https://iclr-blog-track.github.io/2022/03/25/ppo-implementation-details/.
    """
    distribution = distributions.make_distribution(
        action_spec, squash=squash, init_log_std=init_log_std
    )
    return networks.PolicyNetwork(torso=torso, distribution=distribution)


def with_memory(torso: networks.Torso, cell: str | None, size: int) -> networks.Torso:
    """Adds a recurrent cell after a torso, unless `cell` is None."""
    if cell is None:
        return torso
    return networks.RecurrentTorso(body=torso, cell=cell, size=size)


def critic_torso(obs_spec: Nest, hidden: tuple[int, ...], obs_key: str | None) -> networks.Torso:
    """A ReLU MLP over observation and action; an image goes through the Nature-CNN first.

    Args:
      obs_spec: The nest of specs of the network's input.
      hidden: Sizes of the MLP's layers.
      obs_key: The item of the observation that it takes; None for all of it.
    """
    if sees_image(obs_spec, obs_key):
        encoder = networks.make_torso(obs_spec, obs_key=obs_key)
    else:  # without layers: it flattens, encodes and concatenates
        encoder = networks.make_torso(obs_spec, obs_key=obs_key, hidden=())
    body = networks.MLP(hidden=tuple(hidden), activation="relu")
    return networks.StateActionTorso(encoder=encoder, body=body)


def make_critic(
    torso: networks.Torso | None,
    obs_spec: Nest,
    num_actions: int | None,
    hidden: tuple[int, ...],
    obs_key: str | None,
    network: networks.Network | None = None,
    head: Callable[[networks.Torso], networks.Network | None] = lambda torso: None,
    **ensemble: Any,
) -> networks.CriticEnsemble:
    """Critics Q(o, a), or with `num_actions` Q(o, .).

    Args:
      torso: The torso, which takes the critics' input; None for a ReLU MLP.
      obs_spec: The nest of specs of the networks' input.
      num_actions: Number of discrete actions; None for continuous ones.
      hidden: Sizes of the default MLP's layers.
      obs_key: The item of the observation that the default torso takes.
      network: A full critic, which replaces the torso; or None.
      head: Makes one critic from a torso, or returns None for a single value (per action).
      **ensemble: Fields of `CriticEnsemble`.
    """
    if network is not None:
        return networks.CriticEnsemble(network=network, num_actions=num_actions, **ensemble)
    if torso is None and num_actions is None:
        torso = critic_torso(obs_spec, hidden, obs_key)
    torso = torso or default_torso(obs_spec, hidden, obs_key, "relu")
    critic = head(torso)
    if critic is not None:
        return networks.CriticEnsemble(network=critic, num_actions=num_actions, **ensemble)
    return networks.CriticEnsemble(torso=torso, num_actions=num_actions, **ensemble)
