"""DeepSea in TensorFlow: the same task as bsuite's."""

import functools
from typing import Any

import numpy as np
import tensorflow as tf

from tfrl import checks, seeding, specs, struct
from tfrl.envs.core import Env, initial_state
from tfrl.envs.tf import grid_picture
from tfrl.errors import UserError
from tfrl.types import EnvState

MAX_EPISODE_STEPS = 1000  # no episode is longer: it ends after `size` steps


@struct.logic_dataclass
class DeepSea(Env):
    """Dives from the top left of a square to its bottom right, where a treasure is; a bare task.

    A test of exploration. Each step sinks one row, and moves one column to the right or to the
    left, not beyond the walls. Which of the two actions is "right" differs from cell to cell. A
    move to the right costs unscaled_move_cost / size; one from the last column, which only constant
    moves to the right reach in time, is paid 1. The episode terminates after `size` steps.

    If not deterministic, a move to the right stays in its column with probability 1 / size (and is
    paid and costs as if it had not), and standard normal noise is added to the reward of the step
    from the last row, in the first and in the last column.

    The observation is float32 [B, size, size], 1 at the cell and 0 elsewhere; all 0 after the end.
    Always going right is best while it pays: with d = 1 / size, or d = 0 if deterministic,

      J = (1 - d)^(size - 1) - unscaled_move_cost / size * sum_{k < size} (1 - d)^k

    (an agent that was held back once goes left from there at no cost), 0.99 by default. bsuite's
    figure for the stochastic version charges all moves, (1 - d)^(size - 1) - unscaled_move_cost,
    which is a little less.

    Source: Osband et al. (2019), "Deep Exploration via Randomized Value Functions",
    https://arxiv.org/abs/1703.07608, and Osband et al. (2020), https://arxiv.org/abs/1908.03568;
    rules as in https://github.com/google-deepmind/bsuite/blob/main/bsuite/environments/deep_sea.py.

    Attributes:
      num_envs: B.
      size: Rows and columns of the square.
      deterministic: Whether every move succeeds and rewards have no noise.
      unscaled_move_cost: Total cost of an episode's moves to the right.
      mapping_seed: Draws which action is "right" in which cell, as bsuite does from this seed; None
        makes it 1 in every cell, bsuite's `randomize_actions=False`.
    """

    num_envs: int = 1
    size: int = 10
    deterministic: bool = True
    unscaled_move_cost: float = 0.01
    mapping_seed: int | None = 42

    def __post_init__(self) -> None:
        """Checks the arguments."""
        checks.at_least("DeepSea.size", self.size, 2, maximum=MAX_EPISODE_STEPS)
        checks.number("DeepSea.unscaled_move_cost", self.unscaled_move_cost, 0)
        _check_seed(self.mapping_seed)

    @property
    def obs_spec(self) -> specs.BoundedTensorSpec:
        """float32 [size, size], one-hot; zeros after the end."""
        return specs.BoundedTensorSpec([self.size, self.size], tf.float32, 0.0, 1.0)

    @property
    def action_spec(self) -> specs.DiscreteSpec:
        """Two actions; which of them goes right is up to the cell."""
        return specs.DiscreteSpec(2)

    @property
    def action_mapping(self) -> np.ndarray:
        """The action that goes right in each cell, int32 [size, size]."""
        if self.mapping_seed is None:
            return np.ones([self.size, self.size], np.int32)
        return _drawn_mapping(self.size, self.mapping_seed)

    def optimal_return(self) -> float:
        """Returns the best expected return: J of the docstring, or 0 where the moves cost more."""
        stay = 1.0 if self.deterministic else 1.0 - 1.0 / self.size
        moves = sum(stay**k for k in range(self.size))
        return max(0.0, stay ** (self.size - 1) - self.unscaled_move_cost / self.size * moves)

    def reset(self, key: tf.Tensor) -> EnvState:
        """Starts an episode in every environment, always at the top left."""
        zeros = tf.zeros([self.num_envs], tf.int32)
        game: dict[str, Any] = {"row": zeros, "column": zeros}
        if not self.deterministic:
            game["key"] = seeding.split(key, self.num_envs)
        return initial_state(self, env_state=game, obs=self._observe(zeros, zeros))

    def step(self, state: EnvState, action: tf.Tensor) -> EnvState:
        """Sinks one row; `action` is an integer [B]."""
        game, last = state.env_state, self.size - 1
        row, column = game["row"], game["column"]
        # A step after the end, below the square, reads the last cell, without effect.
        cell = tf.minimum(row * self.size + column, self.size * self.size - 1)
        right = tf.equal(tf.cast(action, tf.int32), tf.gather(self.action_mapping.ravel(), cell))
        treasure = tf.cast(right & tf.equal(column, last), tf.float32)
        reward = treasure - (self.unscaled_move_cost / self.size) * tf.cast(right, tf.float32)
        move = 2 * tf.cast(right, tf.int32) - 1
        new: dict[str, Any] = {"row": row + 1}
        if not self.deterministic:
            held, noise, new["key"] = self._chance(game["key"])
            move = tf.where(right & held, 0, move)
            at_ends = tf.equal(row, last) & (tf.equal(column, 0) | tf.equal(column, last))
            reward += tf.where(at_ends, noise, 0.0)
        new["column"] = tf.clip_by_value(column + move, 0, last)
        return EnvState(
            env_state=new,
            obs=self._observe(new["row"], new["column"]),
            reward=reward,
            termination=new["row"] >= self.size,
            truncation=tf.zeros([self.num_envs], tf.bool),
            info={},
        )

    def _chance(self, keys: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Held-back environments (bool [B]), noise (float32 [B]), and the next step's keys."""
        wind, noise = tf.unstack(seeding.uniform_bits(keys, [self.num_envs, 2], tf.int32), axis=1)
        held = wind < 2**32 // self.size - 2**31  # with probability 1 / size
        return held, seeding.normal_of(noise), seeding.next_keys(keys)

    def _observe(self, row: tf.Tensor, column: tf.Tensor) -> tf.Tensor:
        # one_hot gives zeros for a cell below the square.
        board = tf.one_hot(row * self.size + column, self.size * self.size)
        return tf.reshape(board, [self.num_envs, self.size, self.size])

    def render(self, state: EnvState, index: int = 0) -> np.ndarray:
        """Draws the square of environment `index` as uint8 RGB."""
        row, column = (int(state.env_state[n][index]) for n in ("row", "column"))
        colors = grid_picture.floor(self.size, self.size)
        colors[-1, -1] = grid_picture.GOAL
        if row < self.size:
            colors[row, column] = grid_picture.AGENT
        return grid_picture.draw(colors)


def _check_seed(seed: Any) -> None:
    is_int = isinstance(seed, int | np.integer) and not isinstance(seed, bool)
    if seed is None or is_int and 0 <= seed < 2**32:
        return
    raise UserError(
        "DeepSea.mapping_seed",
        expected="an int from 0 to 2^32 - 1, or None for action 1 as right in every cell",
        got=repr(seed),
    )


@functools.cache
def _drawn_mapping(size: int, seed: int) -> np.ndarray:
    """The draw of bsuite; NumPy promises that this generator never changes."""
    mapping = np.random.RandomState(seed).binomial(1, 0.5, [size, size]).astype(np.int32)
    mapping.flags.writeable = False  # it is shared
    return mapping
