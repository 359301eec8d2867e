"""MountainCar-v0 and MountainCarContinuous-v0 in TensorFlow: the same tasks as Gymnasium's."""

from typing import ClassVar

import numpy as np
import tensorflow as tf

from tfrl import seeding, specs, struct
from tfrl.envs import rendering
from tfrl.envs.core import Env, initial_state
from tfrl.types import EnvState

MIN_POSITION = -1.2  # m, an inelastic wall
MAX_POSITION = 0.6  # m
MAX_SPEED = 0.07  # m a step
GOAL_POSITION = 0.5  # m
FORCE = 0.001  # m a step^2
GRAVITY = 0.0025  # m a step^2
START = (-0.6, -0.4)  # m; a start is uniform between them, at rest
MAX_EPISODE_STEPS = 200


@struct.logic_dataclass
class MountainCar(Env):
    """Drives a car out of a valley, left (0), not at all (1) or right (2); a bare environment.

    The motor is too weak for the hill, so the car has to swing. The state is the observation,
    float32 [B, 2]: position (m) and velocity (m a step). A start is uniform in [-0.6, -0.4), at
    rest. The reward is -1 at every step, the terminating one included; termination is
    position >= 0.5 and velocity >= goal_velocity, seen at the successor.

    Source: Moore (1990), "Efficient Memory-based Learning for Robot Control"; constants as in
    https://gymnasium.farama.org/environments/classic_control/mountain_car/.

    Attributes:
      num_envs: B.
      goal_velocity: The least velocity at the goal, m a step.
    """

    num_envs: int = 1
    goal_velocity: float = 0.0

    gymnasium_id: ClassVar[str] = "MountainCar-v0"

    @property
    def obs_spec(self) -> specs.BoundedTensorSpec:
        """float32 [2]: position, velocity."""
        return observation_spec()

    @property
    def action_spec(self) -> specs.DiscreteSpec:
        """0 drives left, 1 rolls, 2 drives right."""
        return specs.DiscreteSpec(3)

    def reset(self, key: tf.Tensor) -> EnvState:
        """Starts an episode in every environment."""
        obs = start(key, self.num_envs)
        return initial_state(self, env_state=obs, obs=obs)

    def step(self, state: EnvState, action: tf.Tensor) -> EnvState:
        """Drives for one step; `action` is an integer [B]."""
        push = tf.cast(action, tf.float32) * FORCE - FORCE
        position, velocity = roll(state.env_state, push)
        goal = tf.logical_and(position >= GOAL_POSITION, velocity >= self.goal_velocity)
        physics = tf.stack([position, velocity], axis=-1)  # [B, 2]
        return EnvState(
            env_state=physics,
            obs=physics,
            reward=-tf.ones([self.num_envs]),
            termination=goal,
            truncation=tf.zeros([self.num_envs], tf.bool),
            info={},
        )

    def render(self, state: EnvState, index: int = 0) -> np.ndarray:
        """Draws environment `index` with Gymnasium's renderer, 400 x 600."""
        physics = np.asarray(state.env_state[index], np.float64)
        return rendering.draw(self.gymnasium_id, state=physics)


def observation_spec() -> specs.BoundedTensorSpec:
    """float32 [2]: position and velocity, between the walls and the greatest speeds."""
    low = np.array([MIN_POSITION, -MAX_SPEED], np.float32)
    high = np.array([MAX_POSITION, MAX_SPEED], np.float32)
    return specs.BoundedTensorSpec([2], tf.float32, low, high)


def start(key: tf.Tensor, num_envs: int) -> tf.Tensor:
    """Draws start states, float32 [B, 2]."""
    position = seeding.uniform(key, [num_envs], *START)
    return tf.stack([position, tf.zeros_like(position)], axis=-1)


def roll(physics: tf.Tensor, push: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Rolls the car for one step on the hill sin(3 x), which the continuous task has too.

      v' = clip(v + push - 0.0025 cos(3 x)),  x' = clip(x + v'),  v' = 0 where it hits the left wall

    Args:
      physics: float32 [B, 2], position and velocity.
      push: float32 [B], the motor's acceleration, m a step^2.

    Returns:
      The new position and velocity, float32 [B] each.
    """
    position, velocity = tf.unstack(physics, axis=-1)
    velocity = velocity + (push - GRAVITY * tf.cos(3 * position))
    velocity = tf.clip_by_value(velocity, -MAX_SPEED, MAX_SPEED)
    position = tf.clip_by_value(position + velocity, MIN_POSITION, MAX_POSITION)
    velocity = tf.where(position <= MIN_POSITION, tf.nn.relu(velocity), velocity)
    return position, velocity


MAX_FORCE = 1.0
POWER = 0.0015  # m a step^2 at the greatest force
CONTINUOUS_GOAL_POSITION = 0.45  # m; that of MountainCar-v0 is 0.5
GOAL_REWARD = 100.0
ACTION_COST = 0.1
CONTINUOUS_MAX_EPISODE_STEPS = 999


@struct.logic_dataclass
class MountainCarContinuous(MountainCar):
    """Drives a car out of a valley with a force between -1 and 1; a bare environment.

    The hill, the state (which is the observation) and the starts are those of `MountainCar`. The
    reward is 100 at the terminating step, less 0.1 action^2 at every step; termination is
    position >= 0.45 and velocity >= goal_velocity, seen at the successor. As in Gymnasium, the
    motor gets the action clipped to its bounds while the cost is that of the action as given: put
    `ActionClip` around the task where a policy goes beyond them.

    Source: Moore (1990), "Efficient Memory-based Learning for Robot Control"; constants as in
    https://gymnasium.farama.org/environments/classic_control/mountain_car_continuous/.
    """

    gymnasium_id: ClassVar[str] = "MountainCarContinuous-v0"

    @property
    def action_spec(self) -> specs.BoundedTensorSpec:
        """float32 [1]: the force, negative to the left."""
        return specs.BoundedTensorSpec([1], tf.float32, -MAX_FORCE, MAX_FORCE)

    def step(self, state: EnvState, action: tf.Tensor) -> EnvState:
        """Drives for one step; `action` is float32 [B, 1]."""
        force = action[:, 0]  # [B]
        push = POWER * tf.clip_by_value(force, -MAX_FORCE, MAX_FORCE)
        position, velocity = roll(state.env_state, push)
        goal = tf.logical_and(position >= CONTINUOUS_GOAL_POSITION, velocity >= self.goal_velocity)
        physics = tf.stack([position, velocity], axis=-1)  # [B, 2]
        return EnvState(
            env_state=physics,
            obs=physics,
            reward=GOAL_REWARD * tf.cast(goal, tf.float32) - ACTION_COST * (force * force),
            termination=goal,
            truncation=tf.zeros([self.num_envs], tf.bool),
            info={},
        )
