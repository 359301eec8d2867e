"""The default networks of the off-policy agents."""

from collections.abc import Callable
from typing import Any

from tfrl import networks, specs
from tfrl.agents import network_checks
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
    """Critics of an observation and an action, or with `num_actions` of an observation alone.

    Args:
      torso: The torso, which takes the critics' input; None for a ReLU MLP.
      obs_spec: The nest of specs of the networks' input.
      num_actions: How many discrete actions; None for continuous ones.
      hidden: Sizes of the default MLP's layers.
      obs_key: The item of the observation that the default torso takes.
      network: A full critic, which replaces the torso; or None.
      head: Makes one critic of a torso; None from it for one of a single value (for each action).
      **ensemble: Fields of `CriticEnsemble`.
    """
    if network is not None:
        return networks.CriticEnsemble(network=network, num_actions=num_actions, **ensemble)
    default = critic_torso if num_actions is None else default_torso
    torso = torso or default(obs_spec, hidden, obs_key)
    whole = head(torso)
    if whole is not None:
        return networks.CriticEnsemble(network=whole, num_actions=num_actions, **ensemble)
    return networks.CriticEnsemble(torso=torso, num_actions=num_actions, **ensemble)


def check_critic(agent: Any, network: networks.Network, seen: Nest) -> None:
    """Raises a UserError for a critic network that gives something else than the agent takes."""
    given = (type(agent).__name__, network, seen)
    normalize, name = agent.normalize_obs, "critic_network"
    if agent.discrete:
        number = specs.num_actions(agent.action_spec)
        network_checks.check_action_values(*given, number, normalize, name)
    else:
        network_checks.check_value(*given, normalize, name, agent.unit_actions.spec)
