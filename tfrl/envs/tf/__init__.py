"""Environments written in TensorFlow, natively batched: the suite `tf`."""

from tfrl.envs.tf.acrobot import Acrobot
from tfrl.envs.tf.cartpole import CartPole
from tfrl.envs.tf.catch import Catch
from tfrl.envs.tf.deep_sea import DeepSea
from tfrl.envs.tf.four_rooms import FourRooms
from tfrl.envs.tf.masked import Masked
from tfrl.envs.tf.memory import Memory
from tfrl.envs.tf.mountain_car import MountainCar, MountainCarContinuous
from tfrl.envs.tf.pendulum import Pendulum
from tfrl.envs.tf.relay import Relay

__all__ = [
    "Acrobot",
    "CartPole",
    "Catch",
    "DeepSea",
    "FourRooms",
    "Masked",
    "Memory",
    "MountainCar",
    "MountainCarContinuous",
    "Pendulum",
    "Relay",
]
