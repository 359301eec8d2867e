"""Environments written in TensorFlow, natively batched: the suite `tf`."""

from tfrl.envs.tf.cartpole import CartPole
from tfrl.envs.tf.pendulum import Pendulum

__all__ = ["CartPole", "Pendulum"]
