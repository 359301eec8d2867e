"""Time limit, statistics and all autoreset modes against a NumPy simulator with scripted ends."""

import numpy as np
import pytest
import tensorflow as tf

from tests.envs.device_checks import check_ways_agree
from tfrl import seeding
from tfrl.envs.core import Autoreset, carrying
from tfrl.envs.testing import ScriptedEnv
from tfrl.envs.wrappers import Episode
from tfrl.errors import UserError

# Name, columns, limit, steps. A column is the script of one environment, from the top of every
# episode: e terminates, u is truncated by the task, b both, a dot nothing.
CASES = (
    ("one_row_no_end", ("...",), None, 1),
    ("one_row_end", ("e",), None, 1),
    ("one_environment", ("..e",), None, 8),
    ("end_on_the_last_row", ("...e", "..u."), None, 4),
    ("two_ends_in_a_row", ("e", "u", "b"), None, 5),
    ("termination_truncation_both", ("..e.", "..u.", "..b.", "...."), None, 9),
    ("limit_alone", ("..........", "....e....."), 3, 10),
    ("limit_and_termination_at_once", ("..e..", "..u.."), 3, 7),
    ("limit_of_one", ("...", "e.."), 1, 4),
    ("no_end_at_all", ("..", ".."), None, 7),
)


def make(columns, mode, limit):
    rows = list(zip(*columns, strict=True))
    env = ScriptedEnv(
        num_envs=len(columns),
        rewards=tuple(
            tuple(t + 1 + 10.0 * i for i in range(len(columns))) for t in range(len(rows))
        ),
        terminations=tuple(tuple(c in "eb" for c in row) for row in rows),
        truncations=tuple(tuple(c in "ub" for c in row) for row in rows),
    )
    return Episode(env=env, mode=mode, limit=limit)


class Simulator:
    """One environment and one mode, written as plainly as possible.

    Starts are numbered: number 0 is the reset's, every further one is a new start. A row is
    (t, start) of obs and of final_obs, reward, termination, truncation, autoreset, return, length.
    """

    def __init__(self, column, index, mode, limit):
        self.column, self.index, self.mode, self.limit = column, index, mode, limit
        self.start, self.starts = 0, 1
        self.restart(0)
        self.over = None

    def restart(self, start):
        self.t, self.total, self.start = 0, 0.0, start

    def next_start(self):
        if self.mode is Autoreset.SAME_STEP_CACHED:
            return 0
        self.starts += 1
        return self.starts - 1

    def step(self):
        if self.over is not None and self.mode is Autoreset.DISABLED:
            obs, _, _, term, trunc, _, total, length = self.over
            return (obs, obs, 0.0, term, trunc, True, total, length)
        if self.over is not None and self.mode is Autoreset.NEXT_STEP:
            self.over = None
            self.restart(self.next_start())
            obs = (0, self.start)
            return (obs, obs, 0.0, False, False, True, 0.0, 0)
        row = self.t % len(self.column)
        reward = row + 1 + 10.0 * self.index
        self.t, self.total = self.t + 1, self.total + reward
        term = self.column[row] in "eb"
        trunc = self.column[row] in "ub" or self.t == self.limit
        final = obs = (self.t, self.start)
        told = (reward, term, trunc, False, self.total, self.t)
        if term or trunc:
            if self.mode in (Autoreset.SAME_STEP, Autoreset.SAME_STEP_CACHED):
                self.restart(self.next_start())
                obs = (0, self.start)
            else:
                self.over = (obs, final, *told)
        return (obs, final, *told)


def rows_of(env, steps):
    """Drives the environment in one loop; what a row shows, [T, B, ...]."""

    def run(key):
        state = env.reset(key)
        first = state.obs
        rows = []
        for _ in range(steps):
            state = env.step(state, tf.zeros([env.num_envs], tf.int64))
            info = state.info
            rows.append(
                (state.obs, info["final_obs"], state.reward, state.termination, state.truncation)
                + (info["autoreset"], info["episode_return"], info["episode_length"])
            )
        return first, [tf.stack(c) for c in zip(*rows, strict=True)]

    return run


@pytest.mark.parametrize("mode", list(Autoreset), ids=lambda m: m.name)
@pytest.mark.parametrize("case", CASES, ids=lambda c: c[0])
def test_all_modes_follow_the_simulator(case, mode):
    _, columns, limit, steps = case
    env = make(columns, mode, limit)
    first, got = rows_of(env, steps)(seeding.key(7))
    got = [g.numpy() for g in got]
    for i, column in enumerate(columns):
        simulator = Simulator(column, i, mode, limit)
        expected = [simulator.step() for _ in range(steps)]
        values = {0: first[i, 1].numpy()}  # start number -> the value that was drawn for it
        for t, row in enumerate(expected):
            for name, k in (("obs", 0), ("final_obs", 1)):
                step, start = row[k]
                assert got[k][t, i, 0] == step, (name, t, i)
                assert got[k][t, i, 1] == values.setdefault(start, got[k][t, i, 1]), (name, t, i)
            shown = tuple(got[k][t, i] for k in range(2, 8))
            assert shown == row[2:], (t, i)
        assert len(set(values.values())) == len(values), "every start is drawn anew"


def test_starts_differ_between_environments_and_keys():
    env = make(("e",) * 16, Autoreset.SAME_STEP, None)
    seen = set()
    for seed in range(2):
        first, (obs, *_) = rows_of(env, 5)(seeding.key(seed))
        seen |= set(first[:, 1].numpy().tolist()) | set(obs[:, :, 1].numpy().ravel().tolist())
    assert len(seen) == 2 * 6 * 16


def test_the_key_determines_everything():
    env = make(("..e", "u.."), Autoreset.NEXT_STEP, None)
    a, b = (tf.nest.flatten(rows_of(env, 6)(seeding.key(3))) for _ in range(2))
    for x, y in zip(a, b, strict=True):
        np.testing.assert_array_equal(x, y)


@pytest.mark.parametrize("mode", list(Autoreset), ids=lambda m: m.name)
@pytest.mark.variants(2)
def test_eager_graph_and_xla_are_equal(mode):
    check_ways_agree(make(("..e.", "u...", "...b"), mode, 3), 6)


@pytest.mark.parametrize("mode", list(Autoreset), ids=lambda m: m.name)
def test_the_state_is_a_loop_variable_and_traces_once(mode):
    env = make(("..e.", "u..."), mode, 3)
    traces = []

    @tf.function
    def run(state):
        traces.append(1)

        def body(t, state):
            return t + 1, env.step(state, tf.zeros([2], tf.int64))

        return tf.while_loop(lambda t, _: t < 5, body, (tf.constant(0), state))[1]

    a = run(run(env.reset(seeding.key(0))))
    stepped = env.reset(seeding.key(0))
    for _ in range(10):
        stepped = env.step(stepped, tf.zeros([2], tf.int64))
    for x, y in zip(tf.nest.flatten(a), tf.nest.flatten(stepped), strict=True):
        np.testing.assert_array_equal(x, y)
    assert len(traces) == 1


@pytest.mark.parametrize("mode", list(Autoreset), ids=lambda m: m.name)
def test_a_step_reads_env_state_only(mode):
    env = make(("..e.", "u..."), mode, 3)
    state = env.reset(seeding.key(0))
    for _ in range(5):
        bare = env.step(carrying(state.env_state), tf.zeros([2], tf.int64))
        state = env.step(state, tf.zeros([2], tf.int64))
        for x, y in zip(tf.nest.flatten(state), tf.nest.flatten(bare), strict=True):
            np.testing.assert_array_equal(x, y)


def test_mode_limit_and_inner_state():
    env = make(("..",), Autoreset.SAME_STEP, 5)
    assert env.autoreset is Autoreset.SAME_STEP and env.max_episode_steps == 5
    assert env.unwrapped is env.env
    state = env.reset(seeding.key(0))
    np.testing.assert_array_equal(env.inner_state(state).env_state, state.obs)


def test_a_second_layer_is_an_error():
    env = make(("..",), Autoreset.SAME_STEP, 5)
    with pytest.raises(UserError) as error:
        Episode(env=env, mode=Autoreset.DISABLED)
    assert str(error.value) == (
        "autoreset: expected a bare environment, got an environment with autoreset SAME_STEP. Add "
        "the layer only once; tfrl.make_env already adds it."
    )


@pytest.mark.parametrize("limit", [0, -1, 2.5, True])
def test_a_wrong_limit_is_an_error(limit):
    with pytest.raises(
        UserError, match="max_episode_steps: expected a whole number of at least 1 or None"
    ):
        make(("..",), Autoreset.SAME_STEP, limit)


def test_a_mode_by_name():
    env = make(("..",), "disabled", None)
    assert env.autoreset is Autoreset.DISABLED
    assert env.reset(seeding.key(0)).env_state.last is not None
    with pytest.raises(UserError, match="Did you mean NEXT_STEP"):
        make(("..",), "NEXTSTEP", None)
