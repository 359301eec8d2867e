"""The four rooms of Sutton, Precup and Singh in TensorFlow."""

from typing import Any

import numpy as np
import tensorflow as tf

from tfrl import checks, seeding, specs, struct
from tfrl.envs.core import Env, initial_state
from tfrl.envs.tf import grid_picture
from tfrl.errors import UserError
from tfrl.types import EnvState

MAX_EPISODE_STEPS = 500
UP, RIGHT, DOWN, LEFT = range(4)
MOVES = np.array([[-1, 0], [0, 1], [1, 0], [0, -1]])  # row, column
SIZE = 13
MAP = (
    "#############",
    "#     #     #",
    "#     #     #",
    "#           #",
    "#     #     #",
    "#     #     #",
    "## ####     #",
    "#     ### ###",
    "#     #     #",
    "#     #     #",
    "#           #",
    "#     #     #",
    "#############",
)
WALLS = np.array([[c == "#" for c in row] for row in MAP])
CELLS = np.argwhere(~WALLS)  # [104, 2], the open cells; the state counts them row by row
NUM_CELLS = len(CELLS)
_NUMBER = np.cumsum(~WALLS.ravel()).reshape(SIZE, SIZE) - 1  # of an open cell


def _next_cells() -> np.ndarray:
    """int32 [NUM_CELLS * 4]: the cell after each move, the same one where a wall is in the way."""
    to = CELLS[:, np.newaxis] + MOVES  # [104, 4, 2]
    row, column = to[..., 0], to[..., 1]
    stays = np.arange(NUM_CELLS)[:, np.newaxis]
    return np.where(WALLS[row, column], stays, _NUMBER[row, column]).astype(np.int32).ravel()


_NEXT = _next_cells()
_PLACES = ((CELLS - 6) / 5).astype(np.float32)  # [104, 2] in [-1, 1]
_FLAT = (CELLS[:, 0] * SIZE + CELLS[:, 1]).astype(np.int32)  # [104], cells of the whole map
_IMAGE = np.stack([WALLS, 0 * WALLS, 0 * WALLS], axis=-1).astype(np.float32).ravel()


@struct.logic_dataclass
class FourRooms(Env):
    """Walks through four rooms to a goal, up (0), right (1), down (2) or left (3); a bare task.

    The map has 13 x 13 cells, counted (row, column) from the top left, with walls around and
    between four rooms, and four hallways: (3, 6), (6, 2), (7, 9) and (10, 6). A move goes in the
    chosen direction with probability `success_prob`, and in each of the other three with a third of
    the rest. A wall stops a move. Reaching the goal has reward 1 and terminates the episode; all
    other rewards are 0.

    The observation is float32 [B, 4]: row and column of the agent, then of the goal, each as
    (index - 6) / 5 in [-1, 1]. With `image` it is float32 [B, 13, 13, 3] instead, 0 or 1: walls,
    the agent, the goal.

    Map, moves and their probabilities follow the paper; goal, starts and limit (500 steps) follow
    gymnax's FourRooms-misc, but starts are random by default and never at the goal. The
    observations differ: gymnax gives the plain indices, and an image without the goal.

    Source: Sutton, Precup and Singh (1999), "Between MDPs and semi-MDPs", the rooms example,
    https://doi.org/10.1016/S0004-3702(99)00052-1;
    https://github.com/RobertTLange/gymnax/blob/main/gymnax/environments/misc/rooms.py.

    Attributes:
      num_envs: B.
      success_prob: Probability that a move goes in the chosen direction.
      start: (row, column); None draws it at each reset, any open cell but the goal.
      goal: (row, column); None draws it at each reset, any open cell but the start.
      image: Observe an image instead of positions.
    """

    num_envs: int = 1
    success_prob: float = 2.0 / 3.0
    start: tuple[int, int] | None = None
    goal: tuple[int, int] | None = (8, 9)
    image: bool = False

    def __post_init__(self) -> None:
        """Checks the probability and the cells."""
        checks.probability("FourRooms.success_prob", self.success_prob)
        places = {n: p for n, p in (("start", self.start), ("goal", self.goal)) if p is not None}
        numbers = [_number(name, place) for name, place in places.items()]
        if len(numbers) == 2 and numbers[0] == numbers[1]:
            raise UserError(
                "FourRooms.start",
                expected="a cell other than the goal",
                got=f"the goal, {self.start}",
            )

    @property
    def obs_spec(self) -> specs.BoundedTensorSpec:
        """float32 [4], positions of agent and goal; with `image` float32 [13, 13, 3]."""
        if self.image:
            return specs.BoundedTensorSpec([SIZE, SIZE, 3], tf.float32, 0.0, 1.0)
        return specs.BoundedTensorSpec([4], tf.float32, -1.0, 1.0)

    @property
    def action_spec(self) -> specs.DiscreteSpec:
        """0 goes up, 1 right, 2 down, 3 left."""
        return specs.DiscreteSpec(4)

    def reset(self, key: tf.Tensor) -> EnvState:
        """Starts an episode in every environment."""
        keys = seeding.split(key, self.num_envs + 2)
        cell, goal = self._places(keys[0], keys[1])
        game: dict[str, Any] = {"cell": cell, "goal": goal}
        if self.success_prob < 1:
            game["key"] = keys[2:]
        return initial_state(self, env_state=game, obs=self._observe(cell, goal))

    def _places(self, start_key: tf.Tensor, goal_key: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Cells of the start and of the goal, int32 [B] each; never the same."""
        if self.start is not None:
            cell = self._everywhere("start", self.start)
            if self.goal is None:
                return cell, _other_cell(goal_key, cell)
            return cell, self._everywhere("goal", self.goal)
        if self.goal is None:
            goal = seeding.randint(goal_key, [self.num_envs], 0, NUM_CELLS)
        else:
            goal = self._everywhere("goal", self.goal)
        return _other_cell(start_key, goal), goal

    def _everywhere(self, name: str, place: tuple[int, int]) -> tf.Tensor:
        """The cell `place` in every environment, int32 [B]."""
        return tf.fill([self.num_envs], _number(name, place))

    def step(self, state: EnvState, action: tf.Tensor) -> EnvState:
        """Walks one cell; `action` is an integer [B]."""
        game, way = state.env_state, tf.cast(action, tf.int32)
        new: dict[str, Any] = {"goal": game["goal"]}
        if self.success_prob < 1:
            turn, new["key"] = self._turn(game["key"])
            way = tf.bitwise.bitwise_and(way + turn, 3)  # modulo 4
        new["cell"] = tf.gather(_NEXT, 4 * game["cell"] + way)
        arrived = tf.equal(new["cell"], new["goal"])
        return EnvState(
            env_state=new,
            obs=self._observe(new["cell"], new["goal"]),
            reward=tf.cast(arrived, tf.float32),
            termination=arrived,
            truncation=tf.zeros([self.num_envs], tf.bool),
            info={},
        )

    def _turn(self, keys: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """The move's deviation in quarter turns, int32 [B], and the next step's keys."""
        u = seeding.uniform(keys, [self.num_envs, 1])
        third = (1.0 - self.success_prob) / 3
        above = np.array([self.success_prob + k * third for k in range(3)], np.float32)
        turn = tf.reduce_sum(tf.cast(u >= above, tf.int32), axis=-1)
        return turn, seeding.next_keys(keys)

    def _observe(self, cell: tf.Tensor, goal: tf.Tensor) -> tf.Tensor:
        if not self.image:
            return tf.concat([tf.gather(_PLACES, cell), tf.gather(_PLACES, goal)], axis=-1)
        # Flat images: a cell's channels are neighbours, and agents are never in a wall.
        agent, target = (
            tf.one_hot(3 * tf.gather(_FLAT, c) + channel, _IMAGE.size)
            for channel, c in ((1, cell), (2, goal))
        )
        return tf.reshape(_IMAGE + agent + target, [self.num_envs, SIZE, SIZE, 3])

    def render(self, state: EnvState, index: int = 0) -> np.ndarray:
        """Draws the rooms of environment `index` as uint8 RGB."""
        colors = grid_picture.floor(SIZE, SIZE)
        colors[WALLS] = grid_picture.WALL
        colors[tuple(CELLS[int(state.env_state["goal"][index])])] = grid_picture.GOAL
        colors[tuple(CELLS[int(state.env_state["cell"][index])])] = grid_picture.AGENT
        return grid_picture.draw(colors)


def _number(name: str, place: Any) -> int:
    """The number of the open cell (row, column)."""
    is_place = isinstance(place, tuple | list) and len(place) == 2
    is_place = is_place and all(isinstance(i, int | np.integer) and 0 <= i < SIZE for i in place)
    if not is_place or WALLS[tuple(place)]:
        raise UserError(
            f"FourRooms.{name}",
            expected="(row, column) of an open cell from the top left, or None for a random cell",
            got=f"{place!r}, a wall" if is_place else repr(place),
            remedy="Use an open cell such as the hallways (3, 6), (6, 2), (7, 9) and (10, 6).",
        )
    return int(_NUMBER[tuple(place)])


def _other_cell(key: tf.Tensor, taken: tf.Tensor) -> tf.Tensor:
    """Draws open cells, int32 [B], uniform over all but `taken`."""
    drawn = seeding.randint(key, taken.shape, 0, NUM_CELLS - 1)
    return drawn + tf.cast(drawn >= taken, tf.int32)
