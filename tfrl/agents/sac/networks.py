"""The actor of SAC, for continuous and for discrete actions."""

from typing import Any

from tfrl import distributions, networks
from tfrl.agents.off_policy.networks import default_torso
from tfrl.types import Nest


def make_actor(
    torso: networks.Torso | None,
    obs_spec: Nest,
    action_spec: Any,
    hidden: tuple[int, ...],
    obs_key: str | None,
    **log_std: float,
) -> networks.PolicyNetwork:
    """A categorical policy, or a squashed Gaussian whose scale is the network's.

    Args:
      torso: The torso; None for a ReLU MLP (the Nature-CNN for an image).
      obs_spec: The nest of specs of what the network sees.
      action_spec: One Discrete action, or the unit vector of the continuous ones.
      hidden: Sizes of the default MLP's layers.
      obs_key: The item of the observation that the default torso takes.
      **log_std: Bounds of the Gaussian's log_std.
    """
    floats = action_spec.dtype.is_floating
    distribution = distributions.make_distribution(
        action_spec, squash=floats, state_dependent_std=floats, **(log_std if floats else {})
    )
    torso = torso or default_torso(obs_spec, hidden, obs_key)
    return networks.PolicyNetwork(torso=torso, distribution=distribution)
