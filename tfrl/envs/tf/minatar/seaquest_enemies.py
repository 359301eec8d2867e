"""The fish and submarines of Seaquest, with the bullets of the submarines.

All are in one array of slots, used in turn. That is exact, because a slot is needed again only when
what was in it has left the board: an enemy crosses it in 10 (move frames + 1) frames, which is 30
when newcomers come at every frame, and earlier in the game far fewer are on the board. A submarine
fires every 11 frames, and its bullet crosses the board in 10: one bullet a slot is enough.
"""

import numpy as np
import tensorflow as tf

from tfrl import struct
from tfrl.envs.tf.minatar.core import GONE, SIZE, choose

SHOT_FRAMES = 10  # between two shots of a submarine, less one
SLOTS = 30


@struct.dataclass
class Enemies(struct.Struct):
    """Fish and submarines; all int32 [B, N] but `sub` and `next_slot`.

    Attributes:
      x: Columns; GONE for none.
      y: Rows, 1 to 8. All enemies of a row have the same direction.
      direction: -1 or 1.
      sub: bool [B, N], whether it is a submarine.
      move_timer: Frames until it moves.
      shot_timer: Frames until it fires; of a fish without effect.
      bomb: The column of its bullet, in the same row and direction; GONE for none.
      next_slot: int32 [B], the slot of the next newcomer, so that the oldest enemy is there.
    """

    x: tf.Tensor
    y: tf.Tensor
    direction: tf.Tensor
    sub: tf.Tensor
    move_timer: tf.Tensor
    shot_timer: tf.Tensor
    bomb: tf.Tensor
    next_slot: tf.Tensor


@struct.dataclass
class Advance(struct.Struct):
    """What happened in `advance`.

    Attributes:
      shot: bool [B, M], which of the player's bullets an enemy ran into.
      touched: bool [B], whether an enemy or a bullet of one was on the player.
    """

    shot: tf.Tensor
    touched: tf.Tensor


def no_enemies(num_envs: int) -> Enemies:
    """Returns empty slots."""
    gone, zeros = tf.fill([num_envs, SLOTS], GONE), tf.zeros([num_envs, SLOTS], tf.int32)
    return Enemies(
        x=gone,
        y=zeros,
        direction=zeros,
        sub=tf.zeros([num_envs, SLOTS], tf.bool),
        move_timer=zeros,
        shot_timer=zeros,
        bomb=gone,
        next_slot=tf.zeros([num_envs], tf.int32),
    )


def spawn(enemies: Enemies, due: tf.Tensor, move_frames: tf.Tensor, draws: tf.Tensor) -> Enemies:
    """Adds a newcomer where `due`, unless its row has an enemy of the other direction.

    Args:
      enemies: Those on the board.
      due: bool [B].
      move_frames: int32 [B], frames until it moves.
      draws: float32 [B, 3]: from the left (below 1/2), a submarine (below 1/3), which row.
    """
    direction = tf.where(draws[:, :1] < 1 / 2, 1, -1)  # [B, 1]
    y = 1 + choose(draws[:, 2:3], 8)
    against = tf.equal(enemies.y, y) & tf.not_equal(enemies.direction, direction)
    comes = due & ~tf.reduce_any(against & (enemies.x >= 0), axis=-1)  # [B]
    slot = tf.equal(enemies.next_slot[:, tf.newaxis], np.arange(SLOTS, dtype=np.int32))
    new = slot & comes[:, tf.newaxis]
    return Enemies(
        x=tf.where(new, tf.where(direction > 0, 0, SIZE - 1), enemies.x),
        y=tf.where(new, y, enemies.y),
        direction=tf.where(new, direction, enemies.direction),
        sub=tf.where(new, draws[:, 1:2] < 1 / 3, enemies.sub),
        move_timer=tf.where(new, move_frames[:, tf.newaxis], enemies.move_timer),
        shot_timer=tf.where(new, SHOT_FRAMES, enemies.shot_timer),
        bomb=tf.where(new, GONE, enemies.bomb),
        next_slot=tf.math.floormod(enemies.next_slot + tf.cast(comes, tf.int32), SLOTS),
    )


def shoot(enemies: Enemies, x: tf.Tensor, y: tf.Tensor) -> tuple[Enemies, tf.Tensor]:
    """Lets bullets that have moved hit one enemy each: a fish first, and the oldest first.

    Args:
      enemies: Those on the board.
      x: int32 [B, M], columns of bullets, no two in the same cell.
      y: int32 [B, M], their rows.

    Returns:
      The enemies that are left, and which bullets hit, bool [B, M].
    """
    match = _at_cells(enemies, x, y)
    age = np.arange(SLOTS, dtype=np.int32) - enemies.next_slot[:, tf.newaxis]
    order = tf.math.floormod(age, SLOTS) + tf.where(enemies.sub, SLOTS, 0)
    order = tf.where(match, order[:, tf.newaxis, :], 2 * SLOTS)  # [B, M, N]
    first = match & tf.equal(order, tf.reduce_min(order, axis=-1, keepdims=True))
    left = tf.where(tf.reduce_any(first, axis=1), GONE, enemies.x)
    return enemies.replace(x=left), tf.reduce_any(match, axis=-1)


def _at_cells(enemies: Enemies, x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
    """Which enemies [N] are at which cells [M]: bool [B, M, N]."""
    same_x = tf.equal(x[:, :, tf.newaxis], enemies.x[:, tf.newaxis])
    same_y = tf.equal(y[:, :, tf.newaxis], enemies.y[:, tf.newaxis])
    return same_x & same_y & (enemies.x >= 0)[:, tf.newaxis]


def advance(
    enemies: Enemies,
    player: tuple[tf.Tensor, tf.Tensor],
    bullets: tuple[tf.Tensor, tf.Tensor],
    move_frames: tf.Tensor,
) -> tuple[Enemies, Advance]:
    """Moves enemies and their bullets, and lets submarines fire.

    Args:
      enemies: Those on the board.
      player: Its column and row, int32 [B] each.
      bullets: Columns and rows of the player's, int32 [B, M] each.
      move_frames: int32 [B], frames between two moves of an enemy.

    Returns:
      The enemies that are left, and what happened.
    """
    player_x = player[0][:, tf.newaxis]  # [B, 1]
    in_row = tf.equal(enemies.y, player[1][:, tf.newaxis])
    alive = enemies.x >= 0
    moves = alive & tf.equal(enemies.move_timer, 0)
    x = enemies.x + tf.where(moves, enemies.direction, 0)
    touches = tf.equal(enemies.x, player_x) | tf.equal(x, player_x)

    # An enemy runs into a bullet only by moving, and not where the player is.
    may_hit = moves & ~(in_row & tf.equal(x, player_x))
    ran = _at_cells(enemies.replace(x=x), *bullets) & may_hit[:, tf.newaxis]
    # What is hit in this frame still fires, and so does what leaves the board (to no effect).
    fires = alive & enemies.sub & tf.equal(enemies.shot_timer, 0)
    fired = tf.where(fires, x, enemies.bomb)
    bomb = fired + enemies.direction
    touches |= tf.equal(fired, player_x) | tf.equal(bomb, player_x)

    dead = tf.reduce_any(ran, axis=1) | _off(x)
    after = enemies.replace(
        x=tf.where(dead, GONE, x),
        move_timer=tf.where(moves, move_frames[:, tf.newaxis], enemies.move_timer - 1),
        shot_timer=tf.where(tf.equal(enemies.shot_timer, 0), SHOT_FRAMES, enemies.shot_timer - 1),
        bomb=tf.where(_off(bomb), GONE, bomb),
    )
    happened = Advance(
        shot=tf.reduce_any(ran, axis=-1), touched=tf.reduce_any(touches & in_row, axis=-1)
    )
    return after, happened


def _off(x: tf.Tensor) -> tf.Tensor:
    return (x < 0) | (x >= SIZE)


def columns(enemies: Enemies) -> tf.Tensor:
    """Returns the columns int32 [B, 4, N] of what is seen: fish, submarine, trail, bullet."""
    fish, sub = tf.where(enemies.sub, GONE, enemies.x), tf.where(enemies.sub, enemies.x, GONE)
    return tf.stack([fish, sub, enemies.x - enemies.direction, enemies.bomb], axis=1)
