"""Functional networks: `init(key, spec) -> params` and `apply(params, x)`.

Parameters are nested dicts of float32 tensors or Variables. Every network works on `[B, ...]`, on
`[T, B, ...]`, and with parameters stacked on a leading population axis P on `[P, B, ...]` and
`[P, T, B, ...]`.
"""

from tfrl.networks.actor_critic import ActorCriticNetwork
from tfrl.networks.conv import NatureCNN
from tfrl.networks.core import Network, Torso, init_population, split_leaves
from tfrl.networks.critics import CriticEnsemble
from tfrl.networks.factory import is_image, make_torso
from tfrl.networks.heads import DuelingQNetwork, PolicyNetwork, QNetwork, ValueNetwork
from tfrl.networks.impala import ImpalaCNN
from tfrl.networks.keras_adapter import KerasNetwork
from tfrl.networks.mlp import MLP, Linear
from tfrl.networks.observations import ObservationTorso
from tfrl.networks.recurrent import RecurrentTorso
from tfrl.networks.state_action import StateActionTorso

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
