"""Acrobot-v1 in TensorFlow: the same task as Gymnasium's."""

import math

import numpy as np
import tensorflow as tf

from tfrl import checks, seeding, specs, struct
from tfrl.envs import rendering
from tfrl.envs.core import Env, initial_state
from tfrl.types import EnvState

# Both links: 1 kg, 1 m, the centre of mass in the middle, a moment of inertia of 1 kg m^2.
GRAVITY = 9.8  # m/s^2
DT = 0.2  # s between steps
TORQUE = 1.0  # N m
MAX_SPEEDS = (4 * math.pi, 9 * math.pi)  # rad/s
GOAL_HEIGHT = 1.0  # m above the fixed end
START = 0.1  # every start value is uniform in [-0.1, 0.1)
MAX_EPISODE_STEPS = 500
DYNAMICS = ("book", "nips")


@struct.dataclass
class AcrobotState(struct.Struct):
    """The state of an acrobot.

    Attributes:
      physics: float32 [B, 4]: the upper link's angle (rad, 0 hangs down), the lower one's against
        it, and their velocities (rad/s).
      key: int32 [B, 2], makes the noise of the torque; None where there is none.
    """

    physics: tf.Tensor
    key: tf.Tensor | None = None


@struct.logic_dataclass
class Acrobot(Env):
    """Swings two links up by the joint between them, with -1, 0 or 1 N m; a bare environment.

    The observation is float32 [B, 6]: cosine and sine of the first angle, those of the second, and
    both angular velocities. A start is uniform in [-0.1, 0.1) in all four. The reward is -1, and 0
    at the terminating step; termination is a free end more than 1 m above the fixed one,
    -cos(theta1) - cos(theta1 + theta2) > 1, seen at the successor. A step is one of the classical
    Runge-Kutta method over 0.2 s; then angles are wrapped to [-pi, pi] and velocities bounded.

    Source: Sutton (1996), "Generalization in Reinforcement Learning: Successful Examples Using
    Sparse Coarse Coding"; constants and integration as in
    https://gymnasium.farama.org/environments/classic_control/acrobot/.

    Attributes:
      num_envs: B.
      torque_noise_max: Greatest size of the uniform noise that is added to the torque, N m.
      book_or_nips: "book" for the dynamics of Sutton and Barto's book, "nips" for those printed in
        the paper, which lack a term.
    """

    num_envs: int = 1
    torque_noise_max: float = 0.0
    book_or_nips: str = "book"

    def __post_init__(self) -> None:
        """Checks the arguments."""
        remedy = "Pass the maximum torque noise in N m, or 0 for no noise."
        checks.number("Acrobot.torque_noise_max", self.torque_noise_max, 0, remedy=remedy)
        checks.one_of("Acrobot.book_or_nips", self.book_or_nips, DYNAMICS)

    @property
    def obs_spec(self) -> specs.BoundedTensorSpec:
        """float32 [6]: cosine and sine of either angle, and the velocities."""
        high = np.array([1.0, 1.0, 1.0, 1.0, *MAX_SPEEDS], np.float32)
        return specs.BoundedTensorSpec([6], tf.float32, -high, high)

    @property
    def action_spec(self) -> specs.DiscreteSpec:
        """0 applies -1 N m, 1 nothing, 2 applies 1 N m."""
        return specs.DiscreteSpec(3)

    def reset(self, key: tf.Tensor) -> EnvState:
        """Starts an episode in every environment."""
        physics = seeding.uniform(key, [self.num_envs, 4], -START, START)
        keys = None
        if self.torque_noise_max:
            keys = seeding.fold_in(seeding.stream(key, "torque"), tf.range(self.num_envs))
        angles, speeds = tf.split(physics, 2, axis=-1)
        obs, _ = _observe(angles, speeds)
        return initial_state(self, env_state=AcrobotState(physics=physics, key=keys), obs=obs)

    def step(self, state: EnvState, action: tf.Tensor) -> EnvState:
        """Applies a torque for 0.2 s; `action` is an integer [B]."""
        torque = tf.cast(action, tf.float32) * TORQUE - TORQUE
        noise, keys = self._noise(state.env_state.key)
        if noise is not None:
            torque = torque + noise
        angles, speeds = tf.split(state.env_state.physics, 2, axis=-1)  # [B, 2] each
        angles, speeds = _integrate(angles, speeds, torque, self.book_or_nips == "book")
        angles = angles - (2 * math.pi) * tf.round(angles * (0.5 / math.pi))
        limits = np.array(MAX_SPEEDS, np.float32)
        speeds = tf.clip_by_value(speeds, -limits, limits)
        obs, height = _observe(angles, speeds)
        termination = height > GOAL_HEIGHT
        return EnvState(
            env_state=AcrobotState(physics=tf.concat([angles, speeds], axis=-1), key=keys),
            obs=obs,
            reward=tf.cast(termination, tf.float32) - 1.0,
            termination=termination,
            truncation=tf.zeros([self.num_envs], tf.bool),
            info={},
        )

    def _noise(self, keys: tf.Tensor | None) -> tuple[tf.Tensor | None, tf.Tensor | None]:
        """The noise of the torque, float32 [B], and the keys of the next step."""
        if keys is None:
            return None, None
        high = float(self.torque_noise_max)
        noise = seeding.uniform(keys, [self.num_envs], -high, high)
        return noise, seeding.next_keys(keys)

    def render(self, state: EnvState, index: int = 0) -> np.ndarray:
        """Draws environment `index` with Gymnasium's renderer, 500 x 500."""
        physics = np.asarray(state.env_state.physics[index], np.float64)
        return rendering.draw("Acrobot-v1", state=physics)


def _observe(angles: tf.Tensor, speeds: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """The observation [B, 6] and the height of the free end [B]."""
    turned = tf.stack([tf.cos(angles), tf.sin(angles)], axis=-1)  # [B, 2, 2]
    turned = tf.reshape(turned, [-1, 4])
    cos1, sin1, cos2, sin2 = tf.unstack(turned, axis=-1)
    # -cos(theta1) - cos(theta1 + theta2), by the angle sum.
    height = sin1 * sin2 - cos1 * (1.0 + cos2)
    return tf.concat([turned, speeds], axis=-1), height


def _integrate(
    angles: tf.Tensor, speeds: tf.Tensor, torque: tf.Tensor, book: bool
) -> tuple[tf.Tensor, tf.Tensor]:
    """One Runge-Kutta step of order 4 over DT.

    For theta'' = f(theta, theta'), the stages of the angles are sums of those of the velocities,
    so that only f has to be computed four times.

    Args:
      angles: float32 [B, 2].
      speeds: float32 [B, 2].
      torque: float32 [B].
      book: Which dynamics.

    Returns:
      Angles and velocities after the step, not bounded.
    """
    half = DT / 2
    k1 = _acceleration(angles, speeds, torque, book)
    middle = angles + half * speeds
    k2 = _acceleration(middle, speeds + half * k1, torque, book)
    k3 = _acceleration(middle + (half * half) * k1, speeds + half * k2, torque, book)
    far = angles + DT * speeds
    k4 = _acceleration(far + (half * DT) * k2, speeds + DT * k3, torque, book)
    inner = k2 + k3
    angles = far + (DT * DT / 6) * (k1 + inner)
    return angles, speeds + (DT / 6) * (k1 + 2 * inner + k4)


def _acceleration(angles: tf.Tensor, speeds: tf.Tensor, torque: tf.Tensor, book: bool) -> tf.Tensor:
    """The angular accelerations, [B, 2], with all masses, lengths and inertias put in.

    With c, s of theta2, w the velocities, a the torque and g gravity:
    d1 = 3.5 + c;  d2 = 1.25 + c / 2;  phi2 = g/2 sin(theta1 + theta2);
    phi1 = 3g/2 sin(theta1) + phi2 - (w1 + w2 / 2) w2 s;
    theta2'' = (a + d2/d1 phi1 - w1^2 s / 2 - phi2) / (1.25 - d2^2 / d1);
    theta1'' = -(d2 theta2'' + phi1) / d1.
    The fraction of theta2'' is expanded by d1: its denominator becomes 2.8125 - c^2 / 4.
    """
    theta1, theta2 = tf.unstack(angles, axis=-1)  # [B] each
    speed1, speed2 = tf.unstack(speeds, axis=-1)
    cos, sin = tf.cos(theta2), tf.sin(theta2)
    d1, d2 = 3.5 + cos, 1.25 + 0.5 * cos
    phi2 = (GRAVITY / 2) * tf.sin(theta1 + theta2)
    phi1 = (1.5 * GRAVITY) * tf.sin(theta1) + phi2 - (speed1 + 0.5 * speed2) * (speed2 * sin)
    drive = torque - phi2
    if book:
        drive = drive - (0.5 * sin) * (speed1 * speed1)
    second = (d1 * drive + d2 * phi1) / (2.8125 - 0.25 * (cos * cos))
    return tf.stack([-(d2 * second + phi1) / d1, second], axis=-1)
