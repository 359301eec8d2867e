"""MinAtar's Freeway: a chicken crosses eight lanes of traffic."""

from typing import ClassVar

import numpy as np
import tensorflow as tf

from tfrl import struct
from tfrl.envs.tf.minatar.core import (
    DOWN,
    MOVE_Y,
    NOOP,
    SIZE,
    UP,
    MinAtar,
    bit,
    choose,
    in_rows,
    paint,
)

LANES = 8  # the rows 1 to 8, a car each
MOVE_FRAMES = 3  # between two moves of the chicken
TIME_LIMIT = 2500  # frames that an episode may exceed by one
COLUMN = 4  # of the chicken
# Frames from one move of a car to the next, with the sign of its direction; drawn uniformly.
SPEEDS = np.array([-5, -4, -3, -2, -1, 1, 2, 3, 4, 5], np.int32)


@struct.dataclass
class FreewayGame(struct.Struct):
    """The state of Freeway.

    Attributes:
      y: int32 [B], the chicken's row.
      move_timer: int32 [B], frames until it may move again.
      time_left: int32 [B], frames until the end.
      columns: int32 [B, 8], the car of each lane.
      speeds: int32 [B, 8], of `SPEEDS`.
      timers: int32 [B, 8], frames until each car moves.
    """

    y: tf.Tensor
    move_timer: tf.Tensor
    time_left: tf.Tensor
    columns: tf.Tensor
    speeds: tf.Tensor
    timers: tf.Tensor


@struct.logic_dataclass
class Freeway(MinAtar):
    """Brings a chicken across the road, 1 each time; a car sends it back to the start.

    The chicken moves at most every third frame. After each crossing all cars get new speeds and
    directions. The game is over after 2501 frames, as in the package, where the time is part of
    the game: it is a termination, which the observation does not announce. There is no ramping.

    Source: see `MinAtar`.
    """

    channels: ClassVar = ("chicken", "car", "speed1", "speed2", "speed3", "speed4", "speed5")
    minimal_action_set: ClassVar = (NOOP, UP, DOWN)
    num_start_draws: ClassVar = LANES
    num_draws: ClassVar = LANES

    def start(self, draws: tf.Tensor) -> FreewayGame:
        """Puts the cars to the left end of their lanes; the draws are their speeds."""
        speeds = _speeds(draws)
        return FreewayGame(
            y=tf.fill([self.num_envs], SIZE - 1),
            move_timer=tf.fill([self.num_envs], MOVE_FRAMES),
            time_left=tf.fill([self.num_envs], TIME_LIMIT),
            columns=tf.zeros_like(speeds),
            speeds=speeds,
            timers=tf.abs(speeds),
        )

    def play(
        self, game: FreewayGame, action: tf.Tensor, draws: tf.Tensor
    ) -> tuple[FreewayGame, tf.Tensor, tf.Tensor]:
        """Moves the chicken, then the cars; the draws are the speeds after a crossing."""
        move = tf.gather(MOVE_Y, action)
        ready = tf.equal(game.move_timer, 0)
        y = tf.where(ready, tf.minimum(game.y + move, SIZE - 1), game.y)
        move_timer = tf.where(ready & tf.not_equal(move, 0), MOVE_FRAMES, game.move_timer)

        crossed = y <= 0
        y = tf.where(crossed, SIZE - 1, y)
        renewed = crossed[:, tf.newaxis]
        speeds = tf.where(renewed, _speeds(draws), game.speeds)
        timers = tf.where(renewed, tf.abs(speeds), game.timers)

        # Only the car of the chicken's lane can hit it, before its move or after it.
        moves = tf.equal(timers, 0)
        columns = tf.where(
            moves, tf.math.floormod(game.columns + tf.sign(speeds), SIZE), game.columns
        )
        near = tf.equal(game.columns, COLUMN) | tf.equal(columns, COLUMN)
        lane = tf.equal(y[:, tf.newaxis], np.arange(1, LANES + 1, dtype=np.int32))
        hit = tf.reduce_any(near & lane, axis=-1)

        time_left = game.time_left - 1
        after = FreewayGame(
            y=tf.where(hit, SIZE - 1, y),
            move_timer=tf.maximum(move_timer - 1, 0),
            time_left=time_left,
            columns=columns,
            speeds=speeds,
            timers=tf.where(moves, tf.abs(speeds), timers - 1),
        )
        return after, crossed, time_left < 0

    def observe(self, game: FreewayGame) -> tf.Tensor:
        """Chicken, cars, and behind each car a mark in the channel of its speed."""
        trail = bit(tf.math.floormod(game.columns - tf.sign(game.speeds), SIZE))  # [B, 8]
        kinds = tf.equal(tf.abs(game.speeds)[..., tf.newaxis], np.arange(1, 6, dtype=np.int32))
        marks = tf.where(kinds, trail[..., tf.newaxis], 0)  # [B, 8, 5]
        road = tf.concat([bit(game.columns)[..., tf.newaxis], marks], axis=-1)
        here = tf.fill(tf.shape(game.y), 2**COLUMN)
        chicken = in_rows(game.y[:, tf.newaxis], here[:, tf.newaxis])
        return paint(tf.concat([chicken, tf.pad(road, [[0, 0], [1, 1], [0, 0]])], axis=-1))


def _speeds(draws: tf.Tensor) -> tf.Tensor:
    """Uniform draws [B, 8] to speeds."""
    return tf.gather(SPEEDS, choose(draws, len(SPEEDS)))
