"""The base of MinAtar's games: actions, sticky actions, randomness, boards and rendering."""

import abc
import math
from typing import Any, ClassVar

import numpy as np
import tensorflow as tf

from tfrl import checks, seeding, specs, struct
from tfrl.envs.core import Env, initial_state
from tfrl.types import EnvState, Nest

SQUARE = 32  # pixels of a cell's side
# Weights of cosine and sine in red, green and blue for the rotation around the grey diagonal.
_COS = np.array([-0.14861, -0.29227, 1.97294])
_SIN = np.array([1.78277, -0.90649, 0.0])
_START, _ROTATIONS = 0.5, -1.5


def cubehelix(number: int) -> np.ndarray:
    """Returns colours of rising brightness that go around the colour wheel.

      rgb = x + x (1 - x) / 2 (c cos phi + s sin phi),  phi = 2 pi (start / 3 + rotations x)

    at `number` brightnesses x, equally spaced within (0, 1).

    Source: Green 2011, "A colour scheme for the display of astronomical intensity images",
    https://arxiv.org/abs/1108.5083.

    Args:
      number: Number of colours.

    Returns:
      uint8 RGB [number, 3].
    """
    x = np.linspace(0, 1, number + 2)[1:-1, np.newaxis]
    phi = 2 * math.pi * (_START / 3 + _ROTATIONS * x)
    rgb = x + x * (1 - x) / 2 * (_COS * np.cos(phi) + _SIN * np.sin(phi))
    return np.round(255 * np.clip(rgb, 0, 1)).astype(np.uint8)


def draw(board: np.ndarray) -> np.ndarray:
    """Draws a board; a cell with several things shows the last channel.

    Args:
      board: bool [H, W, C].

    Returns:
      uint8 RGB [32 H, 32 W, 3].
    """
    number = board.shape[-1]
    colors = np.concatenate([np.zeros([1, 3], np.uint8), cubehelix(number)])  # 0 is empty
    channels = (board * np.arange(1, number + 1)).max(axis=-1)
    return colors[channels].repeat(SQUARE, axis=0).repeat(SQUARE, axis=1)


SIZE = 10  # cells of a side of the board
ACTIONS = ("noop", "left", "up", "right", "down", "fire")
NOOP, LEFT, UP, RIGHT, DOWN, FIRE = range(len(ACTIONS))
MOVE_X = np.array([0, -1, 0, 1, 0, 0], np.int32)  # columns that an action moves by
MOVE_Y = np.array([0, 0, -1, 0, 1, 0], np.int32)  # rows that an action moves by
GONE = -10  # the column of things off the board
FULL = np.int32(2**SIZE - 1)  # a row with all bits set


@struct.dataclass
class MinAtarState(struct.Struct):
    """The state of a game.

    Attributes:
      game: The game's own state, with an axis [B] at every leaf.
      last_action: int32 [B], the action that the game took at the last step, of all six.
      key: int32 [B, 2], makes the random outcomes of the next steps.
    """

    game: Nest
    last_action: tf.Tensor
    key: tf.Tensor


@struct.logic_dataclass
class MinAtar(Env):
    """A game of MinAtar; a bare environment.

    The board has 10 x 10 cells; an observation is bool [10, 10, C], with a channel for each kind of
    thing on it. The six actions are those of all games: no-op, left, up, right, down, fire. With
    the probability `sticky_action_prob` the game repeats the action of the step before instead of
    taking the new one (at the first step of an episode: no-op).

    With equal random outcomes the games equal the package `minatar` step by step, with one
    difference: there the action to repeat survives a reset.

    A subclass implements its rules in three pure functions, `start`, `play` and `observe`. All
    randomness enters as uniform numbers, `num_start_draws` at a start and `num_draws` at a step, so
    that a game can also be played with given outcomes.

    Source: Young and Tian 2019, "MinAtar: An Atari-Inspired Testbed for Thorough and Reproducible
    Reinforcement Learning Experiments", https://arxiv.org/abs/1903.03176; the rules are those of
    version 1.0.15 of https://github.com/kenjyoung/MinAtar.

    Attributes:
      num_envs: B.
      sticky_action_prob: The probability that the last action is repeated.
      difficulty_ramping: Whether the game gets harder over time; without effect in Breakout and
        Freeway.
      minimal_actions: Whether to offer only the actions that have an effect in the game.
    """

    # Each game sets these.
    channels: ClassVar[tuple[str, ...]] = ()
    minimal_action_set: ClassVar[tuple[int, ...]] = ()
    num_start_draws: ClassVar[int] = 0
    num_draws: ClassVar[int] = 0

    num_envs: int = 1
    sticky_action_prob: float = 0.1
    difficulty_ramping: bool = True
    minimal_actions: bool = False

    def __post_init__(self) -> None:
        """Checks the probability."""
        prob = self.sticky_action_prob
        name = f"{type(self).__name__}.sticky_action_prob"
        checks.probability(name, prob, remedy="Pass 0.1 as in MinAtar, or 0 for no sticky actions.")

    # The rules of a game.

    @abc.abstractmethod
    def start(self, draws: tf.Tensor) -> Nest:
        """Returns the game at the start of an episode.

        Args:
          draws: float32 [B, num_start_draws], uniform in [0, 1).
        """

    @abc.abstractmethod
    def play(
        self, game: Nest, action: tf.Tensor, draws: tf.Tensor
    ) -> tuple[Nest, tf.Tensor, tf.Tensor]:
        """Plays one frame.

        Args:
          game: The game.
          action: int32 [B], of all six actions.
          draws: float32 [B, num_draws], uniform in [0, 1).

        Returns:
          The game after the frame, the reward (a number [B]), and whether the game is over,
          bool [B].
        """

    @abc.abstractmethod
    def observe(self, game: Nest) -> tf.Tensor:
        """Returns the board, bool [B, 10, 10, C]."""

    # The environment.

    @property
    def obs_spec(self) -> specs.BoundedTensorSpec:
        """Bool [10, 10, C]."""
        return specs.BoundedTensorSpec([SIZE, SIZE, len(self.channels)], tf.bool, False, True)

    @property
    def action_spec(self) -> specs.DiscreteSpec:
        """One of `action_set`, by its number in it."""
        return specs.DiscreteSpec(len(self.action_set))

    @property
    def action_set(self) -> tuple[int, ...]:
        """The available actions, as numbers of the six."""
        return self.minimal_action_set if self.minimal_actions else tuple(range(len(ACTIONS)))

    def reset(self, key: tf.Tensor) -> EnvState:
        """Starts a game in every environment."""
        game = self.start(self._uniform(key, self.num_start_draws))
        state = MinAtarState(
            game=game,
            last_action=tf.zeros([self.num_envs], tf.int32),
            key=seeding.fold_in(key, tf.range(self.num_envs)),
        )
        return initial_state(self, env_state=state, obs=self.observe(game))

    def step(self, state: EnvState, action: tf.Tensor) -> EnvState:
        """Plays one frame; `action` is an integer [B]."""
        before: MinAtarState = state.env_state
        draws = self._uniform(before.key, 1 + self.num_draws)
        action = self._sticky(tf.cast(action, tf.int32), before.last_action, draws[:, 0])
        game, reward, over = self.play(before.game, action, draws[:, 1:])
        key = seeding.next_keys(before.key)
        return EnvState(
            env_state=MinAtarState(game=game, last_action=action, key=key),
            obs=self.observe(game),
            reward=tf.cast(reward, tf.float32),
            termination=over,
            truncation=tf.zeros([self.num_envs], tf.bool),
            info={},
        )

    def _uniform(self, key: tf.Tensor, number: int) -> tf.Tensor:
        if number == 0:
            return tf.zeros([self.num_envs, 0])
        return seeding.uniform(key, [self.num_envs, number])

    def _sticky(self, action: tf.Tensor, last: tf.Tensor, draw: tf.Tensor) -> tf.Tensor:
        """The action that the game takes, of all six."""
        if self.minimal_actions:
            action = tf.gather(np.array(self.action_set, np.int32), action)
        if not self.sticky_action_prob:
            return action
        return tf.where(draw < self.sticky_action_prob, last, action)

    def render(self, state: EnvState, index: int = 0) -> np.ndarray:
        """Draws environment `index` in MinAtar's colours, 320 x 320."""
        game = tf.nest.map_structure(lambda x: x[index : index + 1], state.env_state.game)
        return draw(self.observe(game)[0].numpy())


# Boards as bits: a row of the board is one int32, in which bit x stands for column x. So a map of
# 100 cells is ten numbers, and things move by shifts; only the observation has all cells.


def bit(columns: tf.Tensor) -> tf.Tensor:
    """Marks columns in rows of bits.

    Args:
      columns: int32 of any shape, from -22 to 31; off the board or GONE for no mark.

    Returns:
      int32 of the same shape, 2^column, or 0 off the board.
    """
    # A shift modulo 32 never moves a column onto the board from outside.
    shift = tf.bitwise.bitwise_and(columns, 31)
    return tf.bitwise.bitwise_and(tf.bitwise.left_shift(np.int32(1), shift), FULL)


def in_rows(y: tf.Tensor, words: tf.Tensor) -> tf.Tensor:
    """Puts things into their rows, each on its own board.

    Args:
      y: int32 [B, P], rows.
      words: int32 [B, P], the contents of the rows.

    Returns:
      int32 [B, 10, P].
    """
    rows = np.arange(SIZE, dtype=np.int32)[:, np.newaxis]
    return tf.where(tf.equal(y[:, tf.newaxis, :], rows), words[:, tf.newaxis, :], 0)


def paint(words: tf.Tensor, width: int = 1) -> tf.Tensor:
    """Turns rows of bits into the observation.

    Args:
      words: int32 [B, 10, C], the rows of each channel.
      width: Bits per column; a column is marked if any of them is set.

    Returns:
      bool [B, 10, 10, C].
    """
    masks = (2**width - 1) * 2 ** (width * np.arange(SIZE, dtype=np.int32))
    masks = masks.astype(np.int32)[:, np.newaxis]  # [10, 1]
    return tf.not_equal(tf.bitwise.bitwise_and(words[:, :, tf.newaxis, :], masks), 0)


def moved(place: tf.Tensor, action: tf.Tensor, moves: np.ndarray, low: int, high: int) -> tf.Tensor:
    """Moves the player along one axis, within [low, high].

    Args:
      place: int32 [B].
      action: int32 [B], of all six.
      moves: int32 [6], by how much each action moves.
      low: The first allowed cell.
      high: The last allowed cell.
    """
    return tf.clip_by_value(place + tf.gather(moves, action), low, high)


def choose(draw: tf.Tensor, number: Any) -> tf.Tensor:
    """Turns uniform draws in [0, 1) into int32 uniform in 0 .. number - 1."""
    return tf.cast(draw * tf.cast(number, tf.float32), tf.int32)
