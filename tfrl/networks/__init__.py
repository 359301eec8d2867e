"""Functional networks: `init(key, spec) -> params` and `apply(params, x)`.

Parameters are nested dicts of float32 tensors or Variables. Every network works on `[B, ...]`, on
`[T, B, ...]`, and with parameters stacked on a leading population axis P on `[P, B, ...]` and
`[P, T, B, ...]`.
"""

from tfrl.networks.actor_critic import ActorCriticNetwork
from tfrl.networks.conv import ImpalaCNN, NatureCNN
from tfrl.networks.core import Network, Torso, init_population, split_leaves
from tfrl.networks.factory import ObservationTorso, StateActionTorso, is_image, make_torso
from tfrl.networks.heads import (
    CriticEnsemble,
    DuelingQNetwork,
    PolicyNetwork,
    QNetwork,
    ValueNetwork,
)
from tfrl.networks.keras import KerasNetwork
from tfrl.networks.mlp import MLP, Linear
from tfrl.networks.recurrent import RecurrentTorso

__all__ = [
    "MLP",
    "ActorCriticNetwork",
    "CriticEnsemble",
    "DuelingQNetwork",
    "ImpalaCNN",
    "KerasNetwork",
    "Linear",
    "NatureCNN",
    "Network",
    "ObservationTorso",
    "PolicyNetwork",
    "QNetwork",
    "RecurrentTorso",
    "StateActionTorso",
    "Torso",
    "ValueNetwork",
    "init_population",
    "is_image",
    "make_torso",
    "split_leaves",
]
