"""FourRooms against a plain walk on its map, the odds of its moves, and where it starts."""

import collections

import numpy as np
import pytest
import tensorflow as tf

import tfrl
from tests.envs.checker_fakes import checked
from tfrl import seeding, specs
from tfrl.envs.core import carrying
from tfrl.envs.tf import grid_picture
from tfrl.envs.tf.four_rooms import CELLS, DOWN, LEFT, MOVES, NUM_CELLS, RIGHT, UP, WALLS, FourRooms
from tfrl.errors import UserError


def number(place):
    return int(np.flatnonzero((np.array(place) == CELLS).all(axis=1))[0])


def plain_move(place, way):
    """One certain move on the map, for (row, column)."""
    row, column = place[0] + MOVES[way][0], place[1] + MOVES[way][1]
    return tuple(place) if WALLS[row, column] else (row, column)


def standing(cells, goal, **more):
    goals = np.full(len(cells), number(goal), np.int32)
    return carrying({"cell": tf.constant(cells, tf.int32), "goal": tf.constant(goals), **more})


def distances(goal):
    """Steps to the goal from every cell, breadth first."""
    found, queue = {tuple(goal): 0}, collections.deque([tuple(goal)])
    while queue:
        place = queue.popleft()
        for way in range(4):
            near = plain_move(place, way)
            if near not in found:
                found[near] = found[place] + 1
                queue.append(near)
    return found


def test_the_map_has_four_rooms_and_four_hallways():
    # Rooms of 5 x 5, 6 x 5, 5 x 5 and 4 x 5 cells, and the hallways.
    assert NUM_CELLS == 25 + 30 + 25 + 20 + 4 == (~WALLS).sum()
    assert len(distances((8, 9))) == NUM_CELLS  # all are connected
    without = {tuple(c) for c in CELLS} - {(3, 6), (6, 2), (7, 9), (10, 6)}
    sizes = []
    while without:  # flood fill
        room, queue = set(), [without.pop()]
        while queue:
            place = queue.pop()
            room.add(place)
            near = {plain_move(place, way) for way in range(4)} & without
            without -= near
            queue += near
        sizes.append(len(room))
    assert sorted(sizes) == [20, 25, 25, 30]


def test_certain_moves_from_every_cell():
    cells, ways = (x.ravel() for x in np.indices([NUM_CELLS, 4]))
    env = FourRooms(num_envs=len(cells), success_prob=1.0)
    new = env.step(standing(cells, (8, 9)), tf.constant(ways))
    places = [plain_move(CELLS[c], w) for c, w in zip(cells, ways, strict=True)]
    np.testing.assert_array_equal(CELLS[new.env_state["cell"]], places)
    arrived = np.array([p == (8, 9) for p in places])
    assert arrived.sum() == 4  # from its four neighbours
    np.testing.assert_array_equal(new.termination, arrived)
    np.testing.assert_array_equal(new.reward, arrived.astype(np.float32))
    goal = np.tile([0.4, 0.6], [len(cells), 1])  # ((8, 9) - 6) / 5
    expected = np.concatenate([(np.array(places) - 6) / 5, goal], axis=1)
    np.testing.assert_allclose(new.obs, expected, atol=1e-6)


def test_moves_by_hand():
    env = FourRooms(num_envs=5, success_prob=1.0)
    places = [(3, 5), (1, 1), (7, 9), (6, 2), (5, 7)]
    state = standing([number(p) for p in places], (8, 9))
    new = env.step(state, tf.constant([RIGHT, UP, DOWN, LEFT, DOWN]))
    # Into a hallway; against the outer wall; from a hallway onto the goal; against walls.
    after = [(3, 6), (1, 1), (8, 9), (6, 2), (6, 7)]
    np.testing.assert_array_equal(CELLS[new.env_state["cell"]], after)
    np.testing.assert_array_equal(new.reward, [0, 0, 1, 0, 0])


@pytest.mark.parametrize("success_prob", [2 / 3, 0.4, 0.0])
def test_moves_go_astray_with_their_odds(success_prob):
    # From the middle of a room every way leads to another cell.
    count = 20_000
    env = FourRooms(num_envs=count, success_prob=success_prob)
    keys = env.reset(seeding.key(0)).env_state["key"]
    state = standing([number((3, 3))] * count, (8, 9), key=keys)
    for way in range(4):
        state = env.step(
            standing([number((3, 3))] * count, (8, 9), key=keys), tf.fill([count], way)
        )
        keys = state.env_state["key"]
        moves = CELLS[state.env_state["cell"]] - [3, 3]
        for other in range(4):
            expected = success_prob if other == way else (1 - success_prob) / 3
            share = (moves == MOVES[other]).all(axis=1).mean()
            deviation = np.sqrt(expected * (1 - expected) / count)
            assert abs(share - expected) <= 4 * deviation


def test_the_shortest_way_is_found_in_its_length():
    env = FourRooms(num_envs=64, success_prob=1.0, goal=None)
    step, state = tf.function(env.step), env.reset(seeding.key(0))
    goals = CELLS[state.env_state["goal"]]
    starts = CELLS[state.env_state["cell"]]
    far = [distances(g) for g in goals]
    best = [f[tuple(s)] for f, s in zip(far, starts, strict=True)]
    arrival = np.zeros(64, int)
    for t in range(1, max(best) + 1):
        places = CELLS[state.env_state["cell"]]
        ways = [
            min(range(4), key=lambda w, f=f, p=p: f[plain_move(p, w)])
            for f, p in zip(far, places, strict=True)
        ]
        state = step(state, tf.constant(ways))
        arrival = np.where((arrival == 0) & (state.reward.numpy() == 1), t, arrival)
    np.testing.assert_array_equal(arrival, best)


def test_starts():
    def drawn(**kwargs):
        state = FourRooms(num_envs=8000, **kwargs).reset(seeding.key(0)).env_state
        return state["cell"].numpy(), state["goal"].numpy()

    expected = 8000 / 103  # 103 cells are left
    cell, goal = drawn()
    assert set(goal) == {number((8, 9))} and number((8, 9)) not in cell
    counts = np.bincount(cell, minlength=NUM_CELLS)
    assert (counts > 0).sum() == 103
    assert np.abs(counts[counts > 0] - expected).max() < 4.5 * np.sqrt(expected)
    cell, goal = drawn(goal=(7, 9))
    assert len(set(cell)) == 103 and set(goal) == {number((7, 9))} and number((7, 9)) not in cell
    cell, goal = drawn(start=(1, 1))
    assert set(cell) == {number((1, 1))} and set(goal) == {number((8, 9))}
    cell, goal = drawn(start=(np.int64(1), np.int32(1)), goal=None)
    assert set(cell) == {number((1, 1))} and len(set(goal) - set(cell)) == 103
    cell, goal = drawn(goal=None)
    assert len(set(cell)) == len(set(goal)) == 104 and (cell != goal).all()
    assert abs(np.corrcoef(cell, goal)[0, 1]) < 4 / np.sqrt(8000)


def test_the_image_shows_walls_agent_and_goal():
    env = FourRooms(num_envs=3, image=True, goal=None)
    state = env.reset(seeding.key(0))
    assert env.obs_spec == specs.BoundedTensorSpec([13, 13, 3], tf.float32, 0.0, 1.0)
    for i, image in enumerate(state.obs.numpy()):
        np.testing.assert_array_equal(image[..., 0], WALLS)
        for channel, name in ((1, "cell"), (2, "goal")):
            place = CELLS[int(state.env_state[name][i])]
            np.testing.assert_array_equal(np.argwhere(image[..., channel]), [place])


def test_specs_and_limit():
    env = tfrl.make_env("tf:FourRooms", 2)
    assert env.obs_spec == specs.BoundedTensorSpec([4], tf.float32, -1.0, 1.0)
    assert env.action_spec == specs.DiscreteSpec(4)
    assert env.max_episode_steps == 500


@pytest.mark.parametrize(
    ("mode", "kwargs"),
    [("NEXT_STEP", {"success_prob": 1.0}), ("DISABLED", {"image": True, "goal": None})],
)
def test_it_follows_the_protocol(mode, kwargs):
    env = tfrl.make_env("tf:FourRooms", 3, mode, max_episode_steps=7, **kwargs)
    assert checked(env, steps=20).any(axis=0).all()


def test_the_picture():
    env = tfrl.make_env("tf:FourRooms", 2, start=(4, 1))
    picture = env.render(env.reset(seeding.key(0)), 1)
    assert (picture.shape, picture.dtype) == ((13 * 32, 13 * 32, 3), np.uint8)
    np.testing.assert_array_equal(picture[4 * 32 + 16, 32 + 16], grid_picture.AGENT)
    np.testing.assert_array_equal(picture[8 * 32 + 16, 9 * 32 + 16], grid_picture.GOAL)
    np.testing.assert_array_equal(picture[16, 16], grid_picture.WALL)
    np.testing.assert_array_equal(picture[3 * 32 + 16, 6 * 32 + 16], grid_picture.FLOOR)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"success_prob": 1.5},
            "FourRooms.success_prob: expected a number of at least 0 and at most 1, got 1.5. Pass "
            "a finite number.",
        ),
        (
            {"goal": (0, 3)},
            "FourRooms.goal: expected (row, column) of an open cell from the top left, or None "
            "for a random cell, got (0, 3), a wall. Use an open cell such as the hallways (3, 6), "
            "(6, 2), (7, 9) and (10, 6).",
        ),
        (
            {"start": (4, 13)},
            "FourRooms.start: expected (row, column) of an open cell from the top left, or None "
            "for a random cell, got (4, 13). Use an open cell such as the hallways (3, 6), (6, "
            "2), (7, 9) and (10, 6).",
        ),
        (
            {"start": (8, 9)},
            "FourRooms.start: expected a cell other than the goal, got the goal, (8, 9).",
        ),
    ],
)
def test_messages(changes, message):
    with pytest.raises(UserError) as error:
        FourRooms(**changes)
    assert str(error.value) == message
