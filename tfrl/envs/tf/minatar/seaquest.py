"""MinAtar's Seaquest: a submarine saves divers, shoots enemies and must come up for air."""

from typing import ClassVar

import numpy as np
import tensorflow as tf

from tfrl import struct
from tfrl.envs.tf.minatar import seaquest_enemies as sea
from tfrl.envs.tf.minatar import seaquest_friends as friends
from tfrl.envs.tf.minatar.core import (
    DOWN,
    FIRE,
    GONE,
    LEFT,
    MOVE_X,
    MOVE_Y,
    NOOP,
    RIGHT,
    SIZE,
    UP,
    MinAtar,
    in_rows,
    moved,
    paint,
)
from tfrl.envs.tf.minatar.seaquest_friends import CAPACITY

OXYGEN = 200  # frames under water
SHOT_FRAMES = 5  # between two shots of the player
SPAWN_FRAMES = 20  # between two enemies, at the start
DIVER_FRAMES = 30  # between two divers
MOVE_FRAMES = 5  # between two moves of an enemy, less one, at the start
FASTEST = 2  # to which ramping may reduce them

_COLUMNS = np.arange(SIZE, dtype=np.int32)
# Several enemies may be in a cell, at most one for each frame between two of their moves (when
# they come at every frame, 3); so a column has three bits in a row, in which they are counted.
_WIDTH = 3
_DIGITS = (2 ** (_WIDTH * _COLUMNS)).astype(np.int32)


@struct.dataclass
class SeaquestGame(struct.Struct):
    """The state of Seaquest; int32 [B] where nothing else is said.

    Attributes:
      x: The column of the submarine's front.
      y: Its row, 0 (the surface) to 8.
      facing: Its direction, -1 or 1.
      oxygen: Frames that the air lasts.
      aboard: Divers aboard; -1 after surfacing with six, as in the package.
      surfaced: bool [B], whether it has stayed at the surface since it came up.
      shot_timer: Frames until it may fire again.
      spawn_frames: Frames between two enemies.
      spawn_timer: Frames until the next one.
      diver_timer: Frames until the next diver.
      move_frames: Frames between two moves of an enemy, less one.
      ramp_index: How often the difficulty has risen.
      bullets: The player's bullets.
      divers: The divers in the water.
      enemies: Fish and submarines.
    """

    x: tf.Tensor
    y: tf.Tensor
    facing: tf.Tensor
    oxygen: tf.Tensor
    aboard: tf.Tensor
    surfaced: tf.Tensor
    shot_timer: tf.Tensor
    spawn_frames: tf.Tensor
    spawn_timer: tf.Tensor
    diver_timer: tf.Tensor
    move_frames: tf.Tensor
    ramp_index: tf.Tensor
    bullets: friends.Bullets
    divers: friends.Divers
    enemies: sea.Enemies


@struct.logic_dataclass
class Seaquest(MinAtar):
    """Shoots fish and submarines, 1 each, and brings divers to the surface.

    To surface costs a diver and fills up the air; without one aboard it ends the game, and so do
    the end of the air, an enemy and its bullets. With six divers aboard it pays up to 10, by the
    air that is left. With ramping, each surfacing makes enemies come sooner, and every second one
    makes them faster.

    Source: see `MinAtar`.
    """

    channels: ClassVar = (
        "sub_front",
        "sub_back",
        "friendly_bullet",
        "trail",
        "enemy_bullet",
        "enemy_fish",
        "enemy_sub",
        "oxygen_gauge",
        "diver_gauge",
        "diver",
    )
    minimal_action_set: ClassVar = (NOOP, LEFT, UP, RIGHT, DOWN, FIRE)
    num_draws: ClassVar = 5

    def start(self, draws: tf.Tensor) -> SeaquestGame:
        """At the surface, full of air, alone."""

        def fill(number: int) -> tf.Tensor:
            return tf.fill([self.num_envs], number)

        return SeaquestGame(
            x=fill(5),
            y=fill(0),
            facing=fill(-1),
            oxygen=fill(OXYGEN),
            aboard=fill(0),
            surfaced=tf.ones([self.num_envs], tf.bool),
            shot_timer=fill(0),
            spawn_frames=fill(SPAWN_FRAMES),
            spawn_timer=fill(SPAWN_FRAMES),
            diver_timer=fill(DIVER_FRAMES),
            move_frames=fill(MOVE_FRAMES),
            ramp_index=fill(0),
            bullets=friends.no_bullets(self.num_envs),
            divers=friends.no_divers(self.num_envs),
            enemies=sea.no_enemies(self.num_envs),
        )

    def play(
        self, game: SeaquestGame, action: tf.Tensor, draws: tf.Tensor
    ) -> tuple[SeaquestGame, tf.Tensor, tf.Tensor]:
        """Newcomers, the player, its bullets, divers, enemies, and then air and surface.

        The draws are the three of `seaquest_enemies.spawn` and the two of
        `seaquest_friends.spawn_diver`.
        """
        due, diver_due = tf.equal(game.spawn_timer, 0), tf.equal(game.diver_timer, 0)
        enemies = sea.spawn(game.enemies, due, game.move_frames, draws[:, :3])
        divers = friends.spawn_diver(game.divers, diver_due, draws[:, 3:])

        x = moved(game.x, action, MOVE_X, 0, SIZE - 1)
        y = moved(game.y, action, MOVE_Y, 0, SIZE - 2)
        turn = tf.gather(MOVE_X, action)
        facing = tf.where(tf.equal(turn, 0), game.facing, turn)
        fires = tf.equal(action, FIRE) & tf.equal(game.shot_timer, 0)
        shot_timer = tf.where(fires, SHOT_FRAMES, game.shot_timer)

        bullets = friends.fire(game.bullets, fires, x, y, facing)
        enemies, hit = sea.shoot(enemies, bullets.x, bullets.y)
        bullets = bullets.replace(x=tf.where(hit, GONE, bullets.x))
        divers, aboard = friends.swim(divers, x, y, game.aboard)
        enemies, happened = sea.advance(enemies, (x, y), (bullets.x, bullets.y), game.move_frames)
        hit |= happened.shot
        bullets = bullets.replace(x=tf.where(happened.shot, GONE, bullets.x))

        after = game.replace(
            x=x,
            y=y,
            facing=facing,
            aboard=aboard,
            shot_timer=tf.maximum(shot_timer - 1, 0),
            spawn_timer=tf.where(due, game.spawn_frames, game.spawn_timer) - 1,
            diver_timer=tf.where(diver_due, DIVER_FRAMES, game.diver_timer) - 1,
            bullets=bullets,
            divers=divers,
            enemies=enemies,
        )
        after, bonus, drowned = self._surface(after)
        reward = tf.reduce_sum(tf.cast(hit, tf.int32), axis=-1) + bonus
        return after, reward, happened.touched | drowned

    def _surface(self, game: SeaquestGame) -> tuple[SeaquestGame, tf.Tensor, tf.Tensor]:
        """Air under water, and what happens on coming up: (game, reward, whether it is over)."""
        below = game.y > 0
        comes_up = ~below & ~game.surfaced
        saved = comes_up & tf.not_equal(game.aboard, 0)
        full = saved & tf.equal(game.aboard, CAPACITY)
        bonus = tf.where(full, game.oxygen * 10 // OXYGEN, 0)
        over = (game.oxygen <= 0) | (comes_up & ~saved)

        one = tf.cast(saved, tf.int32)
        after = game.replace(
            oxygen=tf.where(saved, OXYGEN, game.oxygen - tf.cast(below, tf.int32)),
            aboard=tf.where(full, 0, game.aboard) - one,
            surfaced=~below & (game.surfaced | saved),
        )
        if self.difficulty_ramping:
            rises = one * tf.cast((game.spawn_frames > 1) | (game.move_frames > FASTEST), tf.int32)
            faster = rises * tf.math.floormod(game.ramp_index, 2)
            after = after.replace(
                # Neither falls below its least value.
                move_frames=tf.maximum(game.move_frames - faster, FASTEST),
                spawn_frames=tf.maximum(game.spawn_frames - rises, 1),
                ramp_index=game.ramp_index + rises,
            )
        return after, bonus, over

    def observe(self, game: SeaquestGame) -> tf.Tensor:
        """All that is on the board, and in the bottom row the gauges."""
        enemies, divers = game.enemies, game.divers
        fish, sub, trail, bomb = tf.unstack(_rows(enemies.y, sea.columns(enemies)), axis=-1)
        diver, diver_trail = tf.unstack(_rows(divers.y, friends.diver_columns(divers)), axis=-1)
        player = tf.stack([game.x, game.x - game.facing], axis=-1)  # [B, 2]
        front, back = tf.unstack(
            in_rows(tf.repeat(game.y[:, tf.newaxis], 2, axis=1), _digit(player)), axis=-1
        )
        air = tf.maximum(game.oxygen, 0) * 10 // OXYGEN
        words = [
            front,
            back,
            _rows(game.bullets.y, game.bullets.x[:, tf.newaxis])[..., 0],
            tf.bitwise.bitwise_or(trail, diver_trail),
            bomb,
            fish,
            sub,
            _gauge(tf.zeros_like(air), air),
            _gauge(9 - game.aboard, tf.fill(tf.shape(air), 9)),
            diver,
        ]
        return paint(tf.stack(words, axis=-1), _WIDTH)


def _digit(columns: tf.Tensor) -> tf.Tensor:
    """Marks columns, int32 of any shape, in numbers of a digit of `_WIDTH` bits for each."""
    inside = tf.clip_by_value(columns, 0, SIZE - 1)
    digit = tf.bitwise.left_shift(np.int32(1), _WIDTH * inside)
    return tf.where(tf.equal(inside, columns), digit, 0)


def _rows(y: tf.Tensor, columns: tf.Tensor) -> tf.Tensor:
    """Counts things in their cells.

    Args:
      y: int32 [B, N], rows.
      columns: int32 [B, P, N], for each of P channels.

    Returns:
      int32 [B, 10, P], rows of digits.
    """
    row = tf.equal(y[:, tf.newaxis], _COLUMNS[:, np.newaxis])  # [B, 10, N]
    digits = _digit(columns)[:, tf.newaxis]  # [B, 1, P, N]
    return tf.reduce_sum(tf.where(row[:, :, tf.newaxis, :], digits, 0), axis=-1)


def _gauge(first: tf.Tensor, end: tf.Tensor) -> tf.Tensor:
    """Marks the columns from `first` to before `end`, int32 [B] each, in row 9: int32 [B, 10]."""
    lit = (_COLUMNS >= first[:, tf.newaxis]) & (_COLUMNS < end[:, tf.newaxis])
    row = tf.reduce_sum(tf.where(lit, _DIGITS, 0), axis=-1)
    return tf.pad(row[:, tf.newaxis], [[0, 0], [SIZE - 1, 0]])
