"""MinAtar's Asterix: enemies and gold cross the board in eight rows."""

from typing import ClassVar

import tensorflow as tf

from tfrl import struct
from tfrl.envs.tf.minatar.core import (
    DOWN,
    GONE,
    LEFT,
    MOVE_X,
    MOVE_Y,
    NOOP,
    RIGHT,
    SIZE,
    UP,
    MinAtar,
    bit,
    choose,
    in_rows,
    moved,
    paint,
)

ROWS = 8  # the rows 1 to 8, each with place for one enemy or treasure
RAMP_FRAMES = 100
SPAWN_FRAMES = 10  # at the start
MOVE_FRAMES = 5  # at the start


@struct.dataclass
class AsterixGame(struct.Struct):
    """The state of Asterix; all int32 [B] but the last three.

    Attributes:
      x: The player's column.
      y: The player's row, 1 to 8.
      spawn_frames: Frames between two newcomers.
      spawn_timer: Frames until the next one.
      move_frames: Frames between two moves of all others.
      move_timer: Frames until the next one.
      ramp_timer: Frames until the difficulty rises.
      ramp_index: How often it has risen.
      columns: int32 [B, 8], where each row's enemy or gold is; GONE for none.
      directions: int32 [B, 8], -1 or 1.
      gold: bool [B, 8], whether it is gold.
    """

    x: tf.Tensor
    y: tf.Tensor
    spawn_frames: tf.Tensor
    spawn_timer: tf.Tensor
    move_frames: tf.Tensor
    move_timer: tf.Tensor
    ramp_timer: tf.Tensor
    ramp_index: tf.Tensor
    columns: tf.Tensor
    directions: tf.Tensor
    gold: tf.Tensor


@struct.logic_dataclass
class Asterix(MinAtar):
    """Collects gold, 1 each, and flees from enemies: to touch one ends the game.

    Newcomers enter from either side in a free row, one in three is gold. With ramping, newcomers
    come sooner and sooner, and every second time they also move faster.

    Source: see `MinAtar`.
    """

    channels: ClassVar = ("player", "enemy", "trail", "gold")
    minimal_action_set: ClassVar = (NOOP, LEFT, UP, RIGHT, DOWN)
    num_draws: ClassVar = 3

    def start(self, draws: tf.Tensor) -> AsterixGame:
        """Puts the player into the middle of an empty board."""

        def fill(number: int) -> tf.Tensor:
            return tf.fill([self.num_envs], number)

        return AsterixGame(
            x=fill(5),
            y=fill(5),
            spawn_frames=fill(SPAWN_FRAMES),
            spawn_timer=fill(SPAWN_FRAMES),
            move_frames=fill(MOVE_FRAMES),
            move_timer=fill(MOVE_FRAMES),
            ramp_timer=fill(RAMP_FRAMES),
            ramp_index=fill(0),
            columns=tf.fill([self.num_envs, ROWS], GONE),
            directions=tf.ones([self.num_envs, ROWS], tf.int32),
            gold=tf.zeros([self.num_envs, ROWS], tf.bool),
        )

    def play(
        self, game: AsterixGame, action: tf.Tensor, draws: tf.Tensor
    ) -> tuple[AsterixGame, tf.Tensor, tf.Tensor]:
        """A newcomer, the player's move, and the move of the others.

        The draws: whether a newcomer comes from the left (below 1/2), whether it is gold (below
        1/3), and in which of the free rows it comes.
        """
        spawns = tf.equal(game.spawn_timer, 0)
        columns, directions, gold = _spawn(game, spawns, draws)
        x = moved(game.x, action, MOVE_X, 0, SIZE - 1)
        y = moved(game.y, action, MOVE_Y, 1, ROWS)

        # The player meets what it steps onto, and then what moves onto it. Only one row counts.
        moves = tf.equal(game.move_timer, 0)
        here = tf.one_hot(y - 1, ROWS, True, False, dtype=tf.bool)  # [B, 8]
        target = x[:, tf.newaxis]
        met = here & tf.equal(columns, target)
        columns = tf.where(met & gold, GONE, columns)
        columns = columns + tf.where(moves[:, tf.newaxis], directions, 0)
        met_again = here & tf.equal(columns, target) & moves[:, tf.newaxis]
        off = (columns < 0) | (columns >= SIZE)
        columns = tf.where(off | (met_again & gold), GONE, columns)
        touched = met | met_again

        after = self._ramped(
            game.replace(
                x=x,
                y=y,
                spawn_timer=tf.where(spawns, game.spawn_frames, game.spawn_timer) - 1,
                move_timer=tf.where(moves, game.move_frames, game.move_timer) - 1,
                columns=columns,
                directions=directions,
                gold=gold,
            )
        )
        # A second contact with a met enemy gives no reward under either rule.
        reward = tf.reduce_sum(tf.cast(touched & gold, tf.int32), axis=-1)
        return after, reward, tf.reduce_any(touched & ~gold, axis=-1)

    def _ramped(self, game: AsterixGame) -> AsterixGame:
        """Counts down to the next level, and begins it."""
        if not self.difficulty_ramping:
            return game
        unfinished = (game.spawn_frames > 1) | (game.move_frames > 1)
        waits = game.ramp_timer >= 0
        rises = tf.cast(unfinished & ~waits, tf.int32)
        faster = rises * tf.math.floormod(game.ramp_index, 2)
        return game.replace(
            # Neither falls below 1.
            move_frames=tf.maximum(game.move_frames - faster, 1),
            spawn_frames=tf.maximum(game.spawn_frames - rises, 1),
            ramp_index=game.ramp_index + rises,
            ramp_timer=tf.where(
                unfinished,
                tf.where(waits, game.ramp_timer - 1, RAMP_FRAMES),
                game.ramp_timer,
            ),
        )

    def observe(self, game: AsterixGame) -> tf.Tensor:
        """Player, enemies, where enemies and gold come from, and gold."""
        there = bit(game.columns)  # [B, 8]
        trail = bit(game.columns - game.directions)
        enemies, gold = tf.where(game.gold, 0, there), tf.where(game.gold, there, 0)
        others = tf.pad(tf.stack([enemies, trail, gold], axis=-1), [[0, 0], [1, 1], [0, 0]])
        player = in_rows(game.y[:, tf.newaxis], bit(game.x)[:, tf.newaxis])
        return paint(tf.concat([player, others], axis=-1))


def _spawn(
    game: AsterixGame, spawns: tf.Tensor, draws: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Puts a newcomer into one of the free rows where `spawns` [B]; nothing if none is free.

    Args:
      game: The game.
      spawns: bool [B].
      draws: float32 [B, 3]: from the left, gold, which row.

    Returns:
      `columns`, `directions` and `gold` after it, [B, 8] each.
    """
    empty = game.columns < 0
    rank = tf.cumsum(tf.cast(empty, tf.int32), axis=-1)  # a free row's number, from 1 on
    chosen = choose(draws[:, 2], rank[:, -1]) + 1
    new = empty & tf.equal(rank, chosen[:, tf.newaxis]) & spawns[:, tf.newaxis]
    left = draws[:, :1] < 1 / 2  # [B, 1]
    return (
        tf.where(new, tf.where(left, 0, SIZE - 1), game.columns),
        tf.where(new, tf.where(left, 1, -1), game.directions),
        tf.where(new, draws[:, 1:2] < 1 / 3, game.gold),
    )
