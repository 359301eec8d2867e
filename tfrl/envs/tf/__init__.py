"""Environments written in TensorFlow, natively batched: the suite `tf`."""

from tfrl.envs.tf.cartpole import CartPole
from tfrl.envs.tf.pendulum import Pendulum
from tfrl.envs.tf.relay import Relay

__all__ = ["CartPole", "Pendulum", "Relay"]
