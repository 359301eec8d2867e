"""Catch in TensorFlow: the same task as bsuite's."""

import numpy as np
import tensorflow as tf

from tfrl import checks, seeding, specs, struct
from tfrl.envs.core import Env, initial_state
from tfrl.envs.tf import grid_picture
from tfrl.types import EnvState

MAX_EPISODE_STEPS = 1000  # no episode is as long: it ends after rows - 1 steps
LEFT, STAY, RIGHT = 0, 1, 2


@struct.logic_dataclass
class Catch(Env):
    """Moves a paddle under a falling ball, left (0), not at all (1) or right (2); a bare task.

    The ball starts in the top row, in a column drawn at each reset, and falls one row a step. The
    paddle starts in the middle of the bottom row (column columns // 2) and stops at the walls. The
    paddle moves first, then the ball falls; when the ball is in the bottom row the episode
    terminates, with the reward 1 if the paddle is there and -1 if not. All other rewards are 0.
    The observation is the board, float32 [B, rows, columns]: 1 where the ball or the paddle is.
    The best return is 1, if the paddle has time to get everywhere (rows > columns // 2).

    Source: Osband et al. (2020), "Behaviour Suite for Reinforcement Learning",
    https://arxiv.org/abs/1908.03568; rules as in
    https://github.com/google-deepmind/bsuite/blob/main/bsuite/environments/catch.py.

    Attributes:
      num_envs: B.
      rows: Rows of the board; an episode takes rows - 1 steps.
      columns: Columns of the board.
    """

    num_envs: int = 1
    rows: int = 10
    columns: int = 5

    def __post_init__(self) -> None:
        """Checks the size of the board."""
        checks.at_least("Catch.columns", self.columns, 1)
        checks.at_least("Catch.rows", self.rows, 2, maximum=MAX_EPISODE_STEPS)

    @property
    def obs_spec(self) -> specs.BoundedTensorSpec:
        """float32 [rows, columns], 0 or 1."""
        return specs.BoundedTensorSpec([self.rows, self.columns], tf.float32, 0.0, 1.0)

    @property
    def action_spec(self) -> specs.DiscreteSpec:
        """0 goes left, 1 stays, 2 goes right."""
        return specs.DiscreteSpec(3)

    def reset(self, key: tf.Tensor) -> EnvState:
        """Throws the ball in every environment."""
        row = tf.zeros([self.num_envs], tf.int32)
        ball = seeding.randint(key, [self.num_envs], 0, self.columns)
        paddle = tf.fill([self.num_envs], self.columns // 2)
        return initial_state(
            self,
            env_state={"row": row, "ball": ball, "paddle": paddle},
            obs=self._observe(row, ball, paddle),
        )

    def step(self, state: EnvState, action: tf.Tensor) -> EnvState:
        """Moves the paddle, then drops the ball by one row; `action` is an integer [B]."""
        ball = state.env_state["ball"]
        paddle = state.env_state["paddle"] + (tf.cast(action, tf.int32) - 1)
        paddle = tf.clip_by_value(paddle, 0, self.columns - 1)
        row = state.env_state["row"] + 1
        termination = row >= self.rows - 1
        prize = 2.0 * tf.cast(tf.equal(paddle, ball), tf.float32) - 1.0
        return EnvState(
            env_state={"row": row, "ball": ball, "paddle": paddle},
            obs=self._observe(row, ball, paddle),
            reward=tf.cast(termination, tf.float32) * prize,
            termination=termination,
            truncation=tf.zeros([self.num_envs], tf.bool),
            info={},
        )

    def _observe(self, row: tf.Tensor, ball: tf.Tensor, paddle: tf.Tensor) -> tf.Tensor:
        size = self.rows * self.columns
        bottom = (self.rows - 1) * self.columns
        # After the end, one_hot gives zeros for a place below the board.
        board = tf.maximum(
            tf.one_hot(row * self.columns + ball, size), tf.one_hot(bottom + paddle, size)
        )
        return tf.reshape(board, [self.num_envs, self.rows, self.columns])

    def render(self, state: EnvState, index: int = 0) -> np.ndarray:
        """Draws the board of environment `index` as uint8 RGB."""
        row, ball, paddle = (int(state.env_state[n][index]) for n in ("row", "ball", "paddle"))
        colors = grid_picture.floor(self.rows, self.columns)
        colors[self.rows - 1, paddle] = grid_picture.AGENT
        if row < self.rows:
            colors[row, ball] = grid_picture.ITEM
        return grid_picture.draw(colors)
