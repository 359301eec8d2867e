"""Pendulum-v1 in TensorFlow: the same task as Gymnasium's."""

import math

import numpy as np
import tensorflow as tf

from tfrl import seeding, specs, struct
from tfrl.envs import rendering
from tfrl.envs.core import Env, initial_state
from tfrl.types import EnvState

MAX_SPEED = 8.0  # rad/s
MAX_TORQUE = 2.0  # N m
DT = 0.05  # s between steps
MASS = 1.0  # kg
LENGTH = 1.0  # m
START_SPEED = 1.0  # rad/s; a start is uniform in angle and in [-1, 1) rad/s
MAX_EPISODE_STEPS = 200


@struct.logic_dataclass
class Pendulum(Env):
    """Swings a pendulum up and holds it, by a torque too small to lift it; a bare environment.

    The state is float32 [B, 3]: angle (rad, 0 is upright, not wrapped), angular velocity (rad/s)
    and the last torque (N m, for the renderer; NaN after a reset). The observation is
    (cos, sin, angular velocity). The reward, of the state before the step, is
    -(angle^2 + 0.1 velocity^2 + 0.001 torque^2) with the angle in [-pi, pi); the task never
    terminates.

    Source: https://gymnasium.farama.org/environments/classic_control/pendulum/.

    Attributes:
      num_envs: B.
      g: Acceleration of gravity, m/s^2.
    """

    num_envs: int = 1
    g: float = 10.0

    @property
    def obs_spec(self) -> specs.BoundedTensorSpec:
        """float32 [3]: cosine, sine, angular velocity."""
        high = np.array([1.0, 1.0, MAX_SPEED], np.float32)
        return specs.BoundedTensorSpec([3], tf.float32, -high, high)

    @property
    def action_spec(self) -> specs.BoundedTensorSpec:
        """float32 [1]: the torque."""
        return specs.BoundedTensorSpec([1], tf.float32, -MAX_TORQUE, MAX_TORQUE)

    def reset(self, key: tf.Tensor) -> EnvState:
        """Starts an episode in every environment."""
        unit = seeding.uniform(key, [self.num_envs, 2], -1.0, 1.0)
        physics = unit * (math.pi, START_SPEED)
        theta, speed = tf.unstack(physics, axis=-1)
        torque = tf.fill([self.num_envs], math.nan)
        return initial_state(
            self,
            env_state=tf.stack([theta, speed, torque], axis=-1),
            obs=tf.stack([tf.cos(theta), tf.sin(theta), speed], axis=-1),
        )

    def step(self, state: EnvState, action: tf.Tensor) -> EnvState:
        """Applies a torque, [B, 1], clipped to the bounds, for 0.05 s."""
        theta, speed, _ = tf.unstack(state.env_state, axis=-1)  # each [B]
        torque = tf.clip_by_value(action[:, 0], -MAX_TORQUE, MAX_TORQUE)
        wrapped = tf.math.floormod(theta + math.pi, 2 * math.pi) - math.pi
        cost = wrapped * wrapped + 0.1 * (speed * speed) + 0.001 * (torque * torque)
        gravity, drive = 3 * self.g / (2 * LENGTH) * DT, 3 / (MASS * LENGTH**2) * DT
        speed = speed + (gravity * tf.sin(theta) + drive * torque)
        speed = tf.clip_by_value(speed, -MAX_SPEED, MAX_SPEED)
        theta = theta + speed * DT
        never = tf.zeros([self.num_envs], tf.bool)
        return EnvState(
            env_state=tf.stack([theta, speed, torque], axis=-1),
            obs=tf.stack([tf.cos(theta), tf.sin(theta), speed], axis=-1),
            reward=-cost,
            termination=never,
            truncation=never,
            info={},
        )

    def render(self, state: EnvState, index: int = 0) -> np.ndarray:
        """Draws environment `index` with Gymnasium's renderer, 500 x 500."""
        theta, speed, torque = np.asarray(state.env_state[index], np.float64)
        last_u = None if np.isnan(torque) else torque
        return rendering.draw("Pendulum-v1", state=np.array([theta, speed]), last_u=last_u)
