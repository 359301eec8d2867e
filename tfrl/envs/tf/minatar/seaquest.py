"""MinAtar's Seaquest: a submarine saves divers, shoots enemies and must come up for air."""

from typing import ClassVar

import numpy as np
import tensorflow as tf

from tfrl import struct
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
    choose,
    in_rows,
    moved,
    paint,
)

SUBMARINE_SHOT_FRAMES = 10  # between two shots of a submarine, less one
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
class Moved(struct.Struct):
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
        shot_timer=tf.where(new, SUBMARINE_SHOT_FRAMES, enemies.shot_timer),
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
) -> tuple[Enemies, Moved]:
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
    # Enemies that are hit or leave the board in this frame still fire (without effect after
    # leaving).
    fires = alive & enemies.sub & tf.equal(enemies.shot_timer, 0)
    fired = tf.where(fires, x, enemies.bomb)
    bomb = fired + enemies.direction
    touches |= tf.equal(fired, player_x) | tf.equal(bomb, player_x)

    dead = tf.reduce_any(ran, axis=1) | _off(x)
    after = enemies.replace(
        x=tf.where(dead, GONE, x),
        move_timer=tf.where(moves, move_frames[:, tf.newaxis], enemies.move_timer - 1),
        shot_timer=tf.where(
            tf.equal(enemies.shot_timer, 0), SUBMARINE_SHOT_FRAMES, enemies.shot_timer - 1
        ),
        bomb=tf.where(_off(bomb), GONE, bomb),
    )
    happened = Moved(
        shot=tf.reduce_any(ran, axis=-1), touched=tf.reduce_any(touches & in_row, axis=-1)
    )
    return after, happened


def _off(x: tf.Tensor) -> tf.Tensor:
    return (x < 0) | (x >= SIZE)


def columns(enemies: Enemies) -> tf.Tensor:
    """Returns the visible columns int32 [B, 4, N]: fish, submarine, trail, bullet."""
    fish, sub = tf.where(enemies.sub, GONE, enemies.x), tf.where(enemies.sub, enemies.x, GONE)
    return tf.stack([fish, sub, enemies.x - enemies.direction, enemies.bomb], axis=1)


CAPACITY = 6  # divers aboard
DIVER_MOVE_FRAMES = 5  # between two moves of a diver, less one


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
    timer = tf.fill(tf.shape(left), DIVER_MOVE_FRAMES)
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
        move_timer=tf.where(moves, DIVER_MOVE_FRAMES, divers.move_timer - 1),
    )
    return left, aboard + tf.reduce_sum(tf.cast(taken, tf.int32), axis=-1)


def diver_columns(divers: Divers) -> tf.Tensor:
    """Returns the visible columns int32 [B, 2, 2] of each diver: itself, trail."""
    return tf.stack([divers.x, divers.x - divers.direction], axis=1)


OXYGEN = 200  # frames under water
SHOT_FRAMES = 5  # between two shots of the player
SPAWN_FRAMES = 20  # between two enemies, at the start
DIVER_FRAMES = 30  # between two divers
MOVE_FRAMES = 5  # between two moves of an enemy, less one, at the start
FASTEST = 2  # lower limit under ramping

_COLUMNS = np.arange(SIZE, dtype=np.int32)
# Several enemies may be in a cell, at most one for each frame between two of their moves (when
# they come at every frame, 3); so a column has three bits in a row, in which they are counted.
_WIDTH = 3
_DIGITS = (2 ** (_WIDTH * _COLUMNS)).astype(np.int32)


@struct.dataclass
class SeaquestGame(struct.Struct):
    """The state of Seaquest; int32 [B] unless stated otherwise.

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
    bullets: Bullets
    divers: Divers
    enemies: Enemies


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
            bullets=no_bullets(self.num_envs),
            divers=no_divers(self.num_envs),
            enemies=no_enemies(self.num_envs),
        )

    def play(
        self, game: SeaquestGame, action: tf.Tensor, draws: tf.Tensor
    ) -> tuple[SeaquestGame, tf.Tensor, tf.Tensor]:
        """Newcomers, the player, its bullets, divers, enemies, and then air and surface.

        The draws are the three of `seaquest_enemies.spawn` and the two of
        `seaquest_friends.spawn_diver`.
        """
        due, diver_due = tf.equal(game.spawn_timer, 0), tf.equal(game.diver_timer, 0)
        enemies = spawn(game.enemies, due, game.move_frames, draws[:, :3])
        divers = spawn_diver(game.divers, diver_due, draws[:, 3:])

        x = moved(game.x, action, MOVE_X, 0, SIZE - 1)
        y = moved(game.y, action, MOVE_Y, 0, SIZE - 2)
        turn = tf.gather(MOVE_X, action)
        facing = tf.where(tf.equal(turn, 0), game.facing, turn)
        fires = tf.equal(action, FIRE) & tf.equal(game.shot_timer, 0)
        shot_timer = tf.where(fires, SHOT_FRAMES, game.shot_timer)

        bullets = fire(game.bullets, fires, x, y, facing)
        enemies, hit = shoot(enemies, bullets.x, bullets.y)
        bullets = bullets.replace(x=tf.where(hit, GONE, bullets.x))
        divers, aboard = swim(divers, x, y, game.aboard)
        enemies, happened = advance(enemies, (x, y), (bullets.x, bullets.y), game.move_frames)
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
        fish, sub, trail, bomb = tf.unstack(_rows(enemies.y, columns(enemies)), axis=-1)
        diver, diver_trail = tf.unstack(_rows(divers.y, diver_columns(divers)), axis=-1)
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
