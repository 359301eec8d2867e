"""The five games of MinAtar, each a pure function of state, action and random outcomes."""

from tfrl.envs.tf.minatar.asterix import Asterix
from tfrl.envs.tf.minatar.breakout import Breakout
from tfrl.envs.tf.minatar.core import MinAtar, MinAtarState
from tfrl.envs.tf.minatar.freeway import Freeway
from tfrl.envs.tf.minatar.seaquest import Seaquest
from tfrl.envs.tf.minatar.space_invaders import SpaceInvaders

__all__ = [
    "Asterix",
    "Breakout",
    "Freeway",
    "MinAtar",
    "MinAtarState",
    "Seaquest",
    "SpaceInvaders",
]
