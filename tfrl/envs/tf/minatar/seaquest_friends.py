"""The player's bullets and the divers of Seaquest: two slots of each, the older one first.

Two are enough: a bullet crosses the board in 10 frames and can be fired every 5, so that when a
third one comes, the first has left; a diver crosses it in 60 and one comes every 30.
"""

import tensorflow as tf

from tfrl import struct
from tfrl.envs.tf.minatar.core import GONE, SIZE, choose

CAPACITY = 6  # divers aboard
MOVE_FRAMES = 5  # between two moves of a diver, less one


@struct.dataclass
class Bullets(struct.Struct):
    """The player's bullets, int32 [B, 2] each. No two are ever in the same cell.

    Attributes:
      x: Columns; GONE for none.
      y: Rows.
      direction: -1 or 1.
    """

    x: tf.Tensor
    y: tf.Tensor
    direction: tf.Tensor


@struct.dataclass
class Divers(struct.Struct):
    """Divers, int32 [B, 2] each.

    Attributes:
      x: Columns; GONE for none.
      y: Rows.
      direction: -1 or 1.
      move_timer: Frames until it moves.
    """

    x: tf.Tensor
    y: tf.Tensor
    direction: tf.Tensor
    move_timer: tf.Tensor


def no_bullets(num_envs: int) -> Bullets:
    """Returns empty slots."""
    zeros = tf.zeros([num_envs, 2], tf.int32)
    return Bullets(x=tf.fill([num_envs, 2], GONE), y=zeros, direction=zeros)


def no_divers(num_envs: int) -> Divers:
    """Returns empty slots."""
    zeros = tf.zeros([num_envs, 2], tf.int32)
    return Divers(x=tf.fill([num_envs, 2], GONE), y=zeros, direction=zeros, move_timer=zeros)


def _pushed(slots: tf.Tensor, new: tf.Tensor, comes: tf.Tensor) -> tf.Tensor:
    """Puts `new` [B] behind the newer slot where `comes` [B, 1]; the older one is empty then."""
    return tf.where(comes, tf.stack([slots[:, 1], new], axis=-1), slots)


def fire(
    bullets: Bullets, fires: tf.Tensor, x: tf.Tensor, y: tf.Tensor, direction: tf.Tensor
) -> Bullets:
    """Adds a bullet at the player's place where `fires` [B], and moves all by a cell."""
    new = fires[:, tf.newaxis]
    direction = _pushed(bullets.direction, direction, new)
    x = _pushed(bullets.x, x, new) + direction
    off = (x < 0) | (x >= SIZE)
    return Bullets(x=tf.where(off, GONE, x), y=_pushed(bullets.y, y, new), direction=direction)


def spawn_diver(divers: Divers, due: tf.Tensor, draws: tf.Tensor) -> Divers:
    """Adds a diver where `due` [B]; the draws [B, 2]: from the left (below 1/2), which row."""
    comes = due[:, tf.newaxis]
    left = draws[:, 0] < 1 / 2
    timer = tf.fill(tf.shape(left), MOVE_FRAMES)
    return Divers(
        x=_pushed(divers.x, tf.where(left, 0, SIZE - 1), comes),
        y=_pushed(divers.y, 1 + choose(draws[:, 1], 8), comes),
        direction=_pushed(divers.direction, tf.where(left, 1, -1), comes),
        move_timer=_pushed(divers.move_timer, timer, comes),
    )


def swim(divers: Divers, x: tf.Tensor, y: tf.Tensor, aboard: tf.Tensor) -> tuple[Divers, tf.Tensor]:
    """Moves divers, and takes those aboard that the player meets before or after their move.

    Args:
      divers: Those in the water.
      x: int32 [B], the player's column.
      y: int32 [B], its row.
      aboard: int32 [B], how many divers it has.

    Returns:
      The divers that are left, and how many are aboard.
    """
    player = x[:, tf.newaxis]
    moves = tf.equal(divers.move_timer, 0)
    after = divers.x + tf.where(moves, divers.direction, 0)
    meets = tf.equal(divers.x, player) | tf.equal(after, player)
    meets &= tf.equal(divers.y, y[:, tf.newaxis])
    met = tf.cast(meets, tf.int32)
    # The newer one is taken first, if there is room for one only.
    before = tf.stack([met[:, 1], tf.zeros_like(x)], axis=-1)
    taken = meets & (aboard[:, tf.newaxis] + before < CAPACITY)
    gone = taken | (after < 0) | (after >= SIZE)
    left = divers.replace(
        x=tf.where(gone, GONE, after),
        move_timer=tf.where(moves, MOVE_FRAMES, divers.move_timer - 1),
    )
    return left, aboard + tf.reduce_sum(tf.cast(taken, tf.int32), axis=-1)


def diver_columns(divers: Divers) -> tf.Tensor:
    """Returns the columns int32 [B, 2, 2] of what is seen of each: itself, trail."""
    return tf.stack([divers.x, divers.x - divers.direction], axis=1)
