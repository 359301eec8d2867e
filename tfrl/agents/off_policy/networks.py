"""The default networks of the off-policy agents."""

from typing import Any

from tfrl import networks
from tfrl.agents.actor_critic.networks import sees_image
from tfrl.types import Nest

DEFAULT_HIDDEN = (256, 256)


def default_torso(obs_spec: Nest, hidden: tuple[int, ...], obs_key: str | None) -> networks.Torso:
    """A ReLU MLP of `hidden` units; for an image the Nature-CNN with its own sizes."""
    if sees_image(obs_spec, obs_key):
        return networks.make_torso(obs_spec, obs_key=obs_key)
    return networks.make_torso(obs_spec, obs_key=obs_key, hidden=tuple(hidden), activation="relu")


def critic_torso(obs_spec: Nest, hidden: tuple[int, ...], obs_key: str | None) -> networks.Torso:
    """A ReLU MLP over observation and action; an image goes through the Nature-CNN first.

    Args:
      obs_spec: The nest of specs of what the network sees.
      hidden: Sizes of the MLP's layers.
      obs_key: The item of the observation that it takes; None for all of it.
    """
    if sees_image(obs_spec, obs_key):
        encoder = networks.make_torso(obs_spec, obs_key=obs_key)
    else:  # without layers: what flattens, encodes and concatenates
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
    **ensemble: Any,
) -> networks.CriticEnsemble:
    """Critics of an observation and an action, or with `num_actions` of an observation alone.

    Args:
      torso: The torso, which takes what the critics take; None for a ReLU MLP.
      obs_spec: The nest of specs of what the networks see.
      num_actions: How many discrete actions; None for continuous ones.
      hidden: Sizes of the default MLP's layers.
      obs_key: The item of the observation that the default torso takes.
      network: One critic whole, in the place of a torso; or None.
      **ensemble: Fields of `CriticEnsemble`.
    """
    if network is not None:
        return networks.CriticEnsemble(network=network, num_actions=num_actions, **ensemble)
    default = critic_torso if num_actions is None else default_torso
    torso = torso or default(obs_spec, hidden, obs_key)
    return networks.CriticEnsemble(torso=torso, num_actions=num_actions, **ensemble)
