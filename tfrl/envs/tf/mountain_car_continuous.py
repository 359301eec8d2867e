"""MountainCarContinuous-v0 in TensorFlow: the same task as Gymnasium's."""

import numpy as np
import tensorflow as tf

from tfrl import specs, struct
from tfrl.envs import rendering
from tfrl.envs.core import Env, initial_state
from tfrl.envs.tf import mountain_car
from tfrl.types import EnvState

MAX_FORCE = 1.0
POWER = 0.0015  # m a step^2 at the greatest force
GOAL_POSITION = 0.45  # m; that of MountainCar-v0 is 0.5
GOAL_REWARD = 100.0
ACTION_COST = 0.1
MAX_EPISODE_STEPS = 999


@struct.logic_dataclass
class MountainCarContinuous(Env):
    """Drives a car out of a valley with a force between -1 and 1; a bare environment.

    The hill, the state (which is the observation) and the starts are those of `MountainCar`. The
    reward is 100 at the terminating step, less 0.1 action^2 at every step; termination is
    position >= 0.45 and velocity >= goal_velocity, seen at the successor. As in Gymnasium, the
    motor gets the action clipped to its bounds while the cost is that of the action as given: put
    `ActionClip` around the task where a policy goes beyond them.

    Source: Moore (1990), "Efficient Memory-based Learning for Robot Control"; constants as in
    https://gymnasium.farama.org/environments/classic_control/mountain_car_continuous/.

    Attributes:
      num_envs: B.
      goal_velocity: The least velocity at the goal, m a step.
    """

    num_envs: int = 1
    goal_velocity: float = 0.0

    @property
    def obs_spec(self) -> specs.BoundedTensorSpec:
        """float32 [2]: position, velocity."""
        return mountain_car.observation_spec()

    @property
    def action_spec(self) -> specs.BoundedTensorSpec:
        """float32 [1]: the force, negative to the left."""
        return specs.BoundedTensorSpec([1], tf.float32, -MAX_FORCE, MAX_FORCE)

    def reset(self, key: tf.Tensor) -> EnvState:
        """Starts an episode in every environment."""
        obs = mountain_car.start(key, self.num_envs)
        return initial_state(self, env_state=obs, obs=obs)

    def step(self, state: EnvState, action: tf.Tensor) -> EnvState:
        """Drives for one step; `action` is float32 [B, 1]."""
        given = action[:, 0]  # [B]
        push = POWER * tf.clip_by_value(given, -MAX_FORCE, MAX_FORCE)
        position, velocity = mountain_car.roll(state.env_state, push)
        goal = tf.logical_and(position >= GOAL_POSITION, velocity >= self.goal_velocity)
        physics = tf.stack([position, velocity], axis=-1)  # [B, 2]
        return EnvState(
            env_state=physics,
            obs=physics,
            reward=GOAL_REWARD * tf.cast(goal, tf.float32) - ACTION_COST * (given * given),
            termination=goal,
            truncation=tf.zeros([self.num_envs], tf.bool),
            info={},
        )

    def render(self, state: EnvState, index: int = 0) -> np.ndarray:
        """Draws environment `index` with Gymnasium's renderer, 400 x 600."""
        physics = np.asarray(state.env_state[index], np.float64)
        return rendering.draw("MountainCarContinuous-v0", state=physics)
