"""MinAtar's Breakout: a paddle, a ball that flies along diagonals, and three rows of bricks."""

from typing import ClassVar

import numpy as np
import tensorflow as tf

from tfrl import struct
from tfrl.envs.tf.minatar.core import (
    FULL,
    LEFT,
    MOVE_X,
    NOOP,
    RIGHT,
    SIZE,
    MinAtar,
    bit,
    in_rows,
    moved,
    paint,
)

WALL = np.array([1, 2, 3], np.int32)  # the rows of the bricks


@struct.dataclass
class BreakoutGame(struct.Struct):
    """The state of Breakout; int32 [B] unless stated otherwise.

    Attributes:
      paddle: Its column, in row 9.
      x: The ball's column.
      y: The ball's row.
      dx: The ball's direction, -1 or 1 columns a frame.
      dy: Its direction in rows, -1 or 1.
      last_x: The ball's column a frame ago.
      last_y: Its row a frame ago.
      strike: bool [B], whether the ball was in a brick in the last frame: then it breaks no other.
      bricks: int32 [B, 3], the rows 1 to 3 as bits.
    """

    paddle: tf.Tensor
    x: tf.Tensor
    y: tf.Tensor
    dx: tf.Tensor
    dy: tf.Tensor
    last_x: tf.Tensor
    last_y: tf.Tensor
    strike: tf.Tensor
    bricks: tf.Tensor


@struct.logic_dataclass
class Breakout(MinAtar):
    """Breaks bricks with a ball, 1 each; the game is over when the ball passes the paddle.

    The ball starts at the left or the right end of the lowest row of bricks, on its way down. It
    flies along diagonals and is reflected by sides, ceiling and bricks. The paddle throws it up if
    it was straight above, and back along its way if it comes down on the paddle from the side. When
    the ball comes down and no brick is left, a new wall stands. There is no ramping.

    Source: see `MinAtar`.
    """

    channels: ClassVar = ("paddle", "ball", "trail", "brick")
    minimal_action_set: ClassVar = (NOOP, LEFT, RIGHT)
    num_start_draws: ClassVar = 1

    def start(self, draws: tf.Tensor) -> BreakoutGame:
        """Puts the ball at one side; the draw is that side, right from 0.5 on."""
        right = tf.cast(draws[:, 0] >= 0.5, tf.int32)
        x, y = 9 * right, tf.fill([self.num_envs], 3)
        return BreakoutGame(
            paddle=tf.fill([self.num_envs], 4),
            x=x,
            y=y,
            dx=1 - 2 * right,
            dy=tf.ones_like(x),
            last_x=x,
            last_y=y,
            strike=tf.zeros([self.num_envs], tf.bool),
            bricks=tf.fill([self.num_envs, len(WALL)], FULL),
        )

    def play(
        self, game: BreakoutGame, action: tf.Tensor, draws: tf.Tensor
    ) -> tuple[BreakoutGame, tf.Tensor, tf.Tensor]:
        """Moves the paddle, then the ball, which obstacles turn."""
        paddle = moved(game.paddle, action, MOVE_X, 0, SIZE - 1)
        free = game.x + game.dx
        x = tf.clip_by_value(free, 0, SIZE - 1)
        dx = tf.where(tf.equal(x, free), game.dx, -game.dx)
        y = game.y + game.dy

        # One of four: the ceiling, a brick, the row of the paddle, nothing.
        ceiling = y < 0
        here = tf.bitwise.bitwise_and(game.bricks, bit(x)[:, tf.newaxis])  # [B, 3]
        met = tf.where(tf.equal(y[:, tf.newaxis], WALL), here, 0)
        inside = tf.reduce_any(met > 0, axis=-1)
        breaks = inside & ~game.strike
        low = tf.equal(y, SIZE - 1)
        above = tf.equal(game.x, paddle)  # where the ball came from
        corner = low & ~above & tf.equal(x, paddle)
        returned = (low & above) | corner
        cleared = low & tf.reduce_all(tf.equal(game.bricks, 0), axis=-1)
        bricks = game.bricks - tf.where(breaks[:, tf.newaxis], met, 0)
        after = BreakoutGame(
            paddle=paddle,
            x=x,
            y=tf.where(breaks | returned, game.y, tf.maximum(y, 0)),
            dx=tf.where(corner, -dx, dx),
            dy=tf.where(ceiling | breaks | returned, -game.dy, game.dy),
            last_x=game.x,
            last_y=game.y,
            strike=inside,
            bricks=tf.where(cleared[:, tf.newaxis], FULL, bricks),
        )
        return after, tf.cast(breaks, tf.float32), low & ~returned

    def observe(self, game: BreakoutGame) -> tf.Tensor:
        """Paddle, ball, trail and bricks."""
        bottom = tf.fill(tf.shape(game.y), SIZE - 1)
        rows = tf.stack([bottom, game.y, game.last_y], axis=-1)  # [B, 3]
        columns = tf.stack([game.paddle, game.x, game.last_x], axis=-1)
        bricks = tf.pad(game.bricks, [[0, 0], [WALL[0], SIZE - 1 - WALL[-1]]])
        words = [in_rows(rows, bit(columns)), bricks[..., tf.newaxis]]
        return paint(tf.concat(words, axis=-1))
