"""MinAtar's Space Invaders: a cannon against a block of aliens that comes down."""

from typing import ClassVar

import numpy as np
import tensorflow as tf

from tfrl import struct
from tfrl.envs.tf.minatar.core import (
    FIRE,
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

SHOT_FRAMES = 5  # between two shots of the cannon
ALIEN_SHOT_FRAMES = 10  # between two shots of the aliens
MOVE_FRAMES = 12  # between two moves of the aliens, at the start
FASTEST = 6  # lower limit under ramping

_BLOCK = np.array([0b0011111100] * 4 + [0] * 6, np.int32)  # a fresh wave, rows of bits
_ROWS = np.arange(SIZE, dtype=np.int32)[:, np.newaxis]  # [10, 1]
_COLUMNS = np.arange(SIZE, dtype=np.int32)
_BITS = (2**_COLUMNS).astype(np.int32)


@struct.dataclass
class SpaceInvadersGame(struct.Struct):
    """The state of Space Invaders.

    Attributes:
      x: int32 [B], the cannon's column, in row 9.
      shot_timer: int32 [B], frames until it may fire again.
      direction: int32 [B], of the aliens, -1 or 1.
      move_frames: int32 [B], frames between two moves of the aliens, if they are many.
      move_timer: int32 [B], frames until the next one.
      alien_shot_timer: int32 [B], frames until an alien fires.
      ramp_index: int32 [B], how often the difficulty has risen.
      bullets: int32 [B, 10], the cannon's, rows of bits.
      bombs: int32 [B, 10], the aliens' bullets, rows of bits.
      aliens: int32 [B, 10], rows of bits.
    """

    x: tf.Tensor
    shot_timer: tf.Tensor
    direction: tf.Tensor
    move_frames: tf.Tensor
    move_timer: tf.Tensor
    alien_shot_timer: tf.Tensor
    ramp_index: tf.Tensor
    bullets: tf.Tensor
    bombs: tf.Tensor
    aliens: tf.Tensor


@struct.logic_dataclass
class SpaceInvaders(MinAtar):
    """Shoots aliens, 1 each; the game is over when an alien or its bullet reaches the cannon.

    The block of aliens goes sideways, and at a side down by a row. The fewer there are, the faster
    they are; with ramping each new wave also starts faster. Every tenth frame the lowest alien of
    the column next to the cannon fires. Nothing is random but sticky actions.

    Source: see `MinAtar`.
    """

    channels: ClassVar = (
        "cannon",
        "alien",
        "alien_left",
        "alien_right",
        "friendly_bullet",
        "enemy_bullet",
    )
    minimal_action_set: ClassVar = (NOOP, LEFT, RIGHT, FIRE)

    def start(self, draws: tf.Tensor) -> SpaceInvadersGame:
        """A fresh wave, which begins by going left."""

        def fill(number: int) -> tf.Tensor:
            return tf.fill([self.num_envs], number)

        nothing = tf.zeros([self.num_envs, SIZE], tf.int32)
        return SpaceInvadersGame(
            x=fill(5),
            shot_timer=fill(0),
            direction=fill(-1),
            move_frames=fill(MOVE_FRAMES),
            move_timer=fill(MOVE_FRAMES),
            alien_shot_timer=fill(ALIEN_SHOT_FRAMES),
            ramp_index=fill(0),
            bullets=nothing,
            bombs=nothing,
            aliens=tf.tile(_BLOCK[np.newaxis], [self.num_envs, 1]),
        )

    def play(
        self, game: SpaceInvadersGame, action: tf.Tensor, draws: tf.Tensor
    ) -> tuple[SpaceInvadersGame, tf.Tensor, tf.Tensor]:
        """The cannon's move, all bullets' moves, the aliens' move and shot, and the hits."""
        x = moved(game.x, action, MOVE_X, 0, SIZE - 1)
        column = bit(x)  # [B]
        fires = tf.equal(action, FIRE) & tf.equal(game.shot_timer, 0)
        shot_timer = tf.where(fires, SHOT_FRAMES, game.shot_timer)
        # A new bullet leaves row 9 at once; what was in row 0 is gone.
        muzzle = tf.where(fires, column, 0)[:, tf.newaxis]
        bullets = tf.concat([game.bullets[:, 1:-1], muzzle, tf.zeros_like(muzzle)], axis=1)
        bombs = tf.concat([tf.zeros_like(muzzle), game.bombs[:, :-1]], axis=1)

        moves = tf.equal(game.move_timer, 0)
        aliens, direction, landed = _march(game.aliens, game.direction, moves)
        # Bombs and aliens hit the cannon in row 9; aliens before their move and after it.
        dangers = _or(_or(bombs[:, -1], game.aliens[:, -1]), aliens[:, -1])
        over = (_and(dangers, column) > 0) | landed

        shoots = tf.equal(game.alien_shot_timer, 0)
        bombs = _or(bombs, tf.where(shoots[:, tf.newaxis], _lowest_near(aliens, x), 0))
        hits = _and(aliens, bullets)
        left = aliens - hits
        cleared = tf.reduce_all(tf.equal(left, 0), axis=-1)
        rises = cleared & (game.move_frames > FASTEST) & self.difficulty_ramping
        rises = tf.cast(rises, tf.int32)
        after = SpaceInvadersGame(
            x=x,
            shot_timer=tf.maximum(shot_timer - 1, 0),
            direction=direction,
            move_frames=game.move_frames - rises,
            move_timer=tf.where(
                moves, tf.minimum(_count(aliens), game.move_frames), game.move_timer
            )
            - 1,
            alien_shot_timer=tf.where(shoots, ALIEN_SHOT_FRAMES, game.alien_shot_timer) - 1,
            ramp_index=game.ramp_index + rises,
            bullets=bullets - hits,
            bombs=bombs,
            aliens=tf.where(cleared[:, tf.newaxis], _BLOCK, left),
        )
        return after, _count(hits), over

    def observe(self, game: SpaceInvadersGame) -> tf.Tensor:
        """Cannon, aliens, aliens again in the channel of their direction, and bullets."""
        leftward = (game.direction < 0)[:, tf.newaxis]
        bottom = tf.fill([tf.shape(game.x)[0], 1], SIZE - 1)
        aliens = game.aliens
        left, right = tf.where(leftward, aliens, 0), tf.where(leftward, 0, aliens)
        others = tf.stack([aliens, left, right, game.bullets, game.bombs], axis=-1)
        cannon = in_rows(bottom, bit(game.x)[:, tf.newaxis])
        return paint(tf.concat([cannon, others], axis=-1))


_and, _or = tf.bitwise.bitwise_and, tf.bitwise.bitwise_or


def _count(words: tf.Tensor) -> tf.Tensor:
    """Counts the bits of rows [B, 10]: int32 [B]."""
    return tf.reduce_sum(tf.cast(tf.raw_ops.PopulationCount(x=words), tf.int32), axis=-1)


def _march(
    aliens: tf.Tensor, direction: tf.Tensor, moves: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Moves the aliens where `moves` [B]: sideways, or at a side down, turning around.

    Args:
      aliens: int32 [B, 10], rows of bits.
      direction: int32 [B].
      moves: bool [B].

    Returns:
      The aliens and their direction after it, and whether some would go below row 9, bool [B].
    """
    leftward = (direction < 0)[:, tf.newaxis]
    side = tf.where(leftward, 1, 2 ** (SIZE - 1))  # [B, 1]
    at_side = tf.reduce_any(_and(aliens, side) > 0, axis=-1)
    descends = moves & at_side
    landed = descends & (aliens[:, -1] > 0)
    # Column x is bit x, so that the bits are in reverse order of the written columns.
    sideways = tf.where(leftward, tf.bitwise.right_shift(aliens, 1), _and(2 * aliens, FULL))
    after = tf.where(at_side[:, tf.newaxis], tf.roll(aliens, 1, axis=1), sideways)
    after = tf.where(moves[:, tf.newaxis], after, aliens)
    return after, tf.where(descends, -direction, direction), landed


def _lowest_near(aliens: tf.Tensor, x: tf.Tensor) -> tf.Tensor:
    """Marks the lowest alien of the column nearest to `x`, the left one of two as near.

    Args:
      aliens: int32 [B, 10], rows of bits.
      x: int32 [B].

    Returns:
      int32 [B, 10], rows of bits.
    """
    there = _and(aliens[:, :, tf.newaxis], _BITS) > 0  # [B, 10, 10]
    lowest = tf.reduce_max(tf.where(there, _ROWS, -1), axis=1)  # [B, 10]; -1 of an empty column
    ahead = _COLUMNS - x[:, tf.newaxis]  # [B, 10]
    distance = 2 * tf.abs(ahead) + tf.cast(ahead > 0, tf.int32)  # no two are equal
    distance = tf.where(lowest < 0, 4 * SIZE, distance)
    nearest = tf.equal(distance, tf.reduce_min(distance, axis=-1, keepdims=True))
    row = tf.where(nearest, lowest, -1)
    return tf.reduce_sum(tf.where(tf.equal(row[:, tf.newaxis, :], _ROWS), _BITS, 0), axis=-1)
