"""The Q-network of DQN."""

from typing import Any

from tfrl import networks
from tfrl.agents import network_checks
from tfrl.agents.off_policy.networks import default_torso
from tfrl.errors import UserError
from tfrl.types import Nest

DEFAULT_HIDDEN = (64, 64)


def default_network(
    torso: networks.Torso | None,
    obs_spec: Nest,
    num_actions: int,
    *,
    dueling: bool,
    hidden: tuple[int, ...] | None,
    obs_key: str | None,
) -> networks.Network:
    """A head over a torso; by default a ReLU MLP, for an image the Nature-CNN.

    Args:
      torso: The torso; None for the default.
      obs_spec: The nest of specs of the network's input.
      num_actions: How many actions.
      dueling: Whether the head is a dueling one.
      hidden: Sizes of the default MLP's layers; None for 64, 64.
      obs_key: The item of the observation that the default torso takes.
    """
    if torso is None:
        hidden = DEFAULT_HIDDEN if hidden is None else hidden
        torso = default_torso(obs_spec, hidden, obs_key)
    kind = networks.DuelingQNetwork if dueling else networks.QNetwork
    return kind(torso=torso, num_actions=num_actions)


def check_network(owner: str, network: Any, num_actions: int) -> None:
    """Checks that a network argument of an agent is a Q-network for its actions.

    Raises:
      UserError: For a Keras model, a bare torso, a network with memory, and a network of another
        number of actions.
    """
    expected = f"a tfrl.networks network with {num_actions} outputs, one an action"
    remedy = (
        "Give QNetwork(torso=..., num_actions=...); a Keras model becomes a torso as "
        "KerasNetwork(model_fn=make_model, spec=env.obs_spec)."
    )
    proper = isinstance(network, networks.Network) and not isinstance(network, networks.Torso)
    outputs = getattr(network, "num_actions", num_actions)
    if not proper or outputs != num_actions:
        got = f"{outputs} outputs" if proper else type(network).__name__
        remedy = network_checks.origin_remedy(network, "q") or remedy
        raise UserError(f"{owner}.q", expected=expected, got=got, remedy=remedy)
    if network.recurrent:
        raise UserError(
            f"{owner}.q",
            expected=f"a network without memory: {owner} learns from single transitions",
            got=f"{type(network).__name__}, which is recurrent",
            remedy="Leave the recurrent layer out, or let PPO learn with memory='lstm'.",
        )
