"""The default networks of on-policy agents."""

from collections.abc import Sequence
from typing import Any

from tfrl import distributions, networks
from tfrl.agents import network_checks
from tfrl.errors import UserError
from tfrl.types import Nest

DEFAULT_HIDDEN = (64, 64)


def sees_image(obs_spec: Nest, obs_key: str | None) -> bool:
    """Tells whether the default torso takes one image: all of the observation, or its item."""
    whole = networks.ObservationTorso(obs_spec=obs_spec, body=networks.MLP(), obs_key=obs_key)
    return networks.is_image(whole.choose(obs_spec))


def default_torso(
    obs_spec: Nest, hidden: tuple[int, ...] | None, obs_key: str | None = None
) -> networks.Torso:
    """A tanh MLP of `hidden` units (None: 64, 64) with orthogonal weights of gain sqrt 2.

    For an image the Nature-CNN with its own sizes; `check_hidden` refuses others.

    Source: Huang et al. 2022, detail 2,
    https://iclr-blog-track.github.io/2022/03/25/ppo-implementation-details/.
    """
    sizes = DEFAULT_HIDDEN if hidden is None else tuple(hidden)
    if sees_image(obs_spec, obs_key):
        return networks.make_torso(obs_spec, obs_key=obs_key)
    return networks.make_torso(obs_spec, obs_key=obs_key, hidden=sizes)


def check_hidden(
    owner: str, hidden: Any, given: str | None, obs_spec: Nest, obs_keys: Sequence[str | None]
) -> None:
    """Checks the sizes of the default torsos' layers, and that there is an MLP to have them.

    Args:
      owner: The name of the agent's class.
      hidden: The argument; None passes.
      given: The argument that replaces the default torsos, with its verb ("a torso is"); None if
        there is none.
      obs_spec: The nest of specs of the networks' input.
      obs_keys: The item that each default torso takes; None for all of the observation.

    Raises:
      UserError: For anything but a tuple of sizes, and for sizes that nothing would have.
    """
    if hidden is None:
        return
    thing, got = f"{owner}.hidden", repr(hidden)
    whole = isinstance(hidden, tuple | list)
    if not whole or any(not isinstance(h, int) or isinstance(h, bool) or h < 1 for h in hidden):
        raise UserError(
            thing,
            expected="None or a tuple of sizes, each an int of at least 1",
            got=got,
            remedy="(64, 64) makes two layers, (64,) one.",
        )
    if given is not None:
        raise UserError(
            thing,
            expected=f"None where {given} given",
            got=got,
            remedy="It would have no effect; put the sizes into what is given, as in "
            "make_torso(spec, hidden=(64, 64)).",
        )
    if all(sees_image(obs_spec, key) for key in obs_keys):
        raise UserError(
            thing,
            expected="None for images: the Nature-CNN has sizes of its own",
            got=got,
            remedy="For another dense layer give torso=make_torso(env.obs_spec, hidden=(256,)).",
        )


def default_policy(torso: networks.Torso, action_spec: Nest, squash: bool) -> networks.Network:
    """A linear head of gain 0.01, for continuous actions with a free log-std.

    Source: Huang et al. 2022, detail 2 and of continuous actions 1 to 4,
    https://iclr-blog-track.github.io/2022/03/25/ppo-implementation-details/.
    """
    return networks.PolicyNetwork(
        torso=torso, distribution=distributions.make_distribution(action_spec, squash=squash)
    )


def with_memory(torso: networks.Torso, cell: str | None, size: int) -> networks.Torso:
    """Puts a recurrent cell after a torso, unless `cell` is None."""
    if cell is None:
        return torso
    return networks.RecurrentTorso(body=torso, cell=cell, size=size)


def check_network(owner: str, name: str, network: Any, head: str) -> None:
    """Checks that a network argument of an agent is one with a head.

    Args:
      owner: The name of the agent's class.
      name: "policy" or "value".
      network: The argument.
      head: How to make a network with a head from a torso, as code.

    Raises:
      UserError: For a Keras model, a bare torso, or anything else that is no network.
    """
    if isinstance(network, networks.Network) and not isinstance(network, networks.Torso):
        return
    remedy = (
        f"A Keras model becomes one as the torso, given as a function that makes it: {name}={head}."
    )
    raise UserError(
        f"{owner}.{name}",
        expected=f"a tfrl.networks network that ends in a {name}",
        got=type(network).__name__,
        remedy=network_checks.origin_remedy(network, name) or remedy,
    )


def check_used(owner: str, unused: dict[str, tuple[Any, str]]) -> None:
    """Raises a UserError for the first of `{field: (value, the argument that replaces it)}`."""
    for name, (value, given) in unused.items():
        raise UserError(
            f"{owner}.{name}",
            expected=f"its default where {given} given",
            got=repr(value),
            remedy="It would have no effect; put it into what is given, as in "
            "make_torso(spec, obs_key=...) and make_distribution(spec, squash=True).",
        )
