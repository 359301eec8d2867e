"""CartPole-v1 in TensorFlow: the same task as Gymnasium's."""

import math

import numpy as np
import tensorflow as tf

from tfrl import seeding, specs, struct
from tfrl.envs import rendering
from tfrl.envs.core import Env, initial_state
from tfrl.types import EnvState

GRAVITY = 9.8  # m/s^2
MASS_CART = 1.0  # kg
MASS_POLE = 0.1  # kg
MASS = MASS_CART + MASS_POLE  # kg
HALF_LENGTH = 0.5  # m, of the pole
FORCE = 10.0  # N
TAU = 0.02  # s between steps
X_LIMIT = 2.4  # m
THETA_LIMIT = 12 * 2 * math.pi / 360  # rad
START = 0.05  # every start value is uniform in [-START, START)
MAX_EPISODE_STEPS = 500

_POLE = MASS_POLE * HALF_LENGTH / MASS
_LIMITS = (X_LIMIT, math.inf, THETA_LIMIT, math.inf)


@struct.logic_dataclass
class CartPole(Env):
    """Balances a pole on a cart that is pushed left (0) or right (1); a bare environment.

    The state is the observation, float32 [B, 4]: position (m), velocity (m/s), angle (rad, 0 is
    upright) and angular velocity (rad/s). A start is uniform in [-0.05, 0.05). The reward is 1 at
    every step, the terminating one included; termination is |position| > 2.4 or |angle| > 12
    degrees, seen at the successor. What a step from an ended state does is undefined, as in
    Gymnasium: the autoreset layer never takes one that counts.

    Source: Barto, Sutton and Anderson (1983), "Neuronlike adaptive elements that can solve
    difficult learning control problems"; constants and Euler integration as in
    https://gymnasium.farama.org/environments/classic_control/cart_pole/.

    Attributes:
      num_envs: B.
      sutton_barto_reward: True for a reward of 0, and -1 at the terminating step.
    """

    num_envs: int = 1
    sutton_barto_reward: bool = False

    @property
    def obs_spec(self) -> specs.BoundedTensorSpec:
        """float32 [4]; the bounds are twice the limits, so that failing states lie inside."""
        high = np.array([2 * limit for limit in _LIMITS], np.float32)
        return specs.BoundedTensorSpec([4], tf.float32, -high, high)

    @property
    def action_spec(self) -> specs.DiscreteSpec:
        """0 pushes left, 1 pushes right."""
        return specs.DiscreteSpec(2)

    def reset(self, key: tf.Tensor) -> EnvState:
        """Starts an episode in every environment."""
        obs = seeding.uniform(key, [self.num_envs, 4], -START, START)
        return initial_state(self, env_state=obs, obs=obs)

    def step(self, state: EnvState, action: tf.Tensor) -> EnvState:
        """Pushes the cart for 0.02 s; `action` is an integer [B]."""
        physics = state.env_state + _change(state.env_state, action)  # [B, 4]
        termination = tf.reduce_any(tf.abs(physics) > _LIMITS, axis=-1)
        return EnvState(
            env_state=physics,
            obs=physics,
            reward=self._reward(termination),
            termination=termination,
            truncation=tf.zeros([self.num_envs], tf.bool),
            info={},
        )

    def _reward(self, termination: tf.Tensor) -> tf.Tensor:
        if self.sutton_barto_reward:
            return -tf.cast(termination, tf.float32)
        return tf.ones([self.num_envs], tf.float32)

    def render(self, state: EnvState, index: int = 0) -> np.ndarray:
        """Draws environment `index` with Gymnasium's renderer, 400 x 600."""
        physics = np.asarray(state.env_state[index], np.float64)
        return rendering.draw("CartPole-v1", state=physics)


def _change(physics: tf.Tensor, action: tf.Tensor) -> tf.Tensor:
    """The change over one Euler step, [B, 4]; constants are folded, so that ops are few.

    With f the force over the mass, m the pole's mass over the mass and l half the pole's length:
    temp = f + m l thetadot^2 sin(theta);
    theta'' = (g sin(theta) - cos(theta) temp) / (l (4/3 - m cos(theta)^2));
    x'' = temp - m l theta'' cos(theta). The code's temp, xacc and thetaacc are times TAU.
    """
    _, velocity, theta, spin = tf.unstack(physics, axis=-1)  # each [B]
    cos, sin = tf.cos(theta), tf.sin(theta)
    push = tf.cast(action, tf.float32) * (2 * TAU * FORCE / MASS) - (TAU * FORCE / MASS)
    temp = push + (TAU * _POLE) * (spin * spin * sin)
    thetaacc = ((TAU * GRAVITY) * sin - cos * temp) / (
        (HALF_LENGTH * 4 / 3) - (HALF_LENGTH * MASS_POLE / MASS) * (cos * cos)
    )
    xacc = temp - _POLE * (thetaacc * cos)
    return tf.stack([TAU * velocity, xacc, TAU * spin, thetaacc], axis=-1)
