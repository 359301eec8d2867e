"""The items of a buffer are exactly those of a replay in plain Python, whatever is added."""

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized

from tests.replay import oracle
from tfrl import seeding
from tfrl.replay import InGraphReplay

ACTION = tf.TensorSpec([], tf.int64)
# Of at most 60 items each is in a draw of so many, but for a chance of 60 exp(-1500 / 60).
MANY = 1500
EPISODES = [(5, "term"), (1, "trunc"), (4, "trunc"), (7, "both"), (1, "term"), (2, "trunc")]


class Compared:
    """A buffer and oracles that are added the same; traced once for all streams."""

    def __init__(self, num_envs, per_env, stack=1, **options):
        self.stack, self.num_envs = stack, num_envs
        self.replay = InGraphReplay(
            obs_spec=tf.TensorSpec([stack], tf.float32),
            action_spec=ACTION,
            capacity=per_env * num_envs,
            num_envs=num_envs,
            discount=0.9,
            frame_stack=stack,
            **options,
        )
        self.buffer = self.replay.init()
        self.empty = self.buffer.state_values()
        self._add = tf.function(self.buffer.add, autograph=False)
        self._draw = tf.function(
            lambda: self.buffer.sample(seeding.key(3), MANY, 0.5), autograph=False
        )

    def start(self, streams):
        self.streams, self.at = streams, 0
        self.buffer.load_values(self.empty)
        options = (self.replay.n_step, 0.9, self.replay.sequence_length, self.replay.period)
        sizes = (self.replay.steps_per_env, self.replay.frames_per_env)
        self.oracles = [oracle.Oracle(*sizes, *options, self.stack) for _ in streams]

    def add(self, length):
        stop = self.at + length
        self._add(oracle.trajectory(self.streams, self.at, stop, self.stack))
        for stream, one in zip(self.streams, self.oracles, strict=True):
            one.add(stream[self.at : stop])
        self.at = stop

    def cut(self):
        self.buffer.cut()
        for one in self.oracles:
            one.cut()

    def wanted(self):
        return {
            number * self.num_envs + env: item
            for env, one in enumerate(self.oracles)
            for number, item in one.items().items()
        }

    def found(self):
        drawn = self._draw()
        indices, rows = np.unique(drawn.index.numpy(), return_index=True)
        drawn = tf.nest.map_structure(lambda x: tf.gather(x, rows), drawn)
        read = self._transitions if self.replay.sequence_length is None else self._sequences
        return dict(zip(indices.tolist(), read(drawn), strict=True))

    def _transitions(self, drawn):
        parts = (drawn.obs, drawn.action, drawn.reward, drawn.next_obs, drawn.discount)
        return zip(*(x.numpy() for x in parts), strict=True)

    def _sequences(self, drawn):
        steps = drawn.steps
        names = ("obs", "action", "reward", "next_obs", "termination", "truncation")
        columns = [getattr(steps, name).numpy() for name in names]
        valid = steps.valid.numpy()
        lengths = valid.sum(axis=1)
        np.testing.assert_array_equal(valid, np.arange(valid.shape[1]) < lengths[:, None])
        for column in (columns[1], columns[2], columns[4], columns[5]):
            np.testing.assert_array_equal(column * ~valid, np.zeros_like(column))
        # Behind the end the last frame stands still.
        last = columns[3][np.arange(len(lengths)), lengths - 1]
        still = np.where(valid, last[:, None, -1], columns[3][..., -1])
        np.testing.assert_array_equal(still, np.broadcast_to(last[:, None, -1], still.shape))
        for i, length in enumerate(lengths):
            yield tuple(tuple(c[i, j] for c in columns) for j in range(length))

    def check(self):
        """Compares sizes, and every item: number, content, stacks of frames."""
        wanted = self.wanted()
        assert int(self.buffer.size()) == len(wanted), (self.at, len(wanted))
        if not wanted:
            return
        found = self.found()
        assert sorted(found) == sorted(wanted), self.at
        starts = {row.obs: row.start for stream in self.streams for row in stream if row.valid}
        wants, gots = [], []
        for index, item in wanted.items():
            one = self.replay.sequence_length is None
            steps, drawn = ([item], [found[index]]) if one else (item, found[index])
            assert len(steps) == len(drawn)
            for want, got in zip(steps, drawn, strict=True):
                first = starts[want[0]]
                frames = [self.frames(want[i], first) for i in (0, 3)]
                wants.append([*frames[0], *want[1:3], *frames[1], *want[4:]])
                gots.append([*got[0], *got[1:3], *got[3], *got[4:]])
        np.testing.assert_allclose(gots, wants, rtol=1e-6)

    def frames(self, newest, first):
        return [max(newest - age, first) for age in range(self.stack - 1, -1, -1)]


def streams(mode, num_envs, length, episodes=EPISODES):
    shifted = [episodes[i % len(episodes) :] + episodes[: i % len(episodes)] for i in range(9)]
    return [oracle.script(shifted[b], mode, length, 1000 * b) for b in range(num_envs)]


CASES = (
    # name, B, steps of a ring, T, options
    ("one_step", 2, 10, 3, {}),
    ("one_env", 1, 12, 1, {"n_step": 3}),
    ("one_row", 3, 10, 1, {"n_step": 2}),
    ("n_step", 2, 11, 4, {"n_step": 3}),
    ("long_n_step", 2, 9, 5, {"n_step": 9}),
    ("more_rows_than_the_ring", 2, 7, 25, {"n_step": 3}),
    ("room_for_all_frames", 2, 10, 4, {"n_step": 2, "frames_per_step": 2.0}),
    ("prioritized", 2, 10, 4, {"n_step": 3, "kind": "prioritized"}),
    ("prioritized_one_row", 1, 8, 1, {"kind": "prioritized"}),
    ("prioritized_many_rows", 2, 7, 25, {"n_step": 4, "kind": "prioritized"}),
    ("stacks", 2, 12, 4, {"n_step": 3, "stack": 4, "frames_per_step": 1.5}),
    ("sequences", 2, 12, 4, {"sequence_length": 4, "sequence_period": 2}),
    ("sequences_apart", 2, 12, 3, {"sequence_length": 3}),
    ("dense_sequences", 2, 9, 1, {"sequence_length": 4, "sequence_period": 1}),
    (
        "sequences_of_stacks",
        1,
        12,
        5,
        {"sequence_length": 5, "sequence_period": 3, "stack": 2, "kind": "prioritized"},
    ),
)


class ItemsTest(parameterized.TestCase):
    @parameterized.named_parameters(*CASES)
    @pytest.mark.variants(5)
    def test_items_of_all_autoreset_modes(self, num_envs, per_env, length, options):
        compared = Compared(num_envs, per_env, **options)
        for mode in oracle.MODES:
            compared.start(streams(mode, num_envs, 60))
            compared.check()
            for _ in range(60 // length):
                compared.add(length)
                compared.check()

    @parameterized.named_parameters(
        ("n_step", {"n_step": 4}),
        ("prioritized", {"n_step": 4, "kind": "prioritized"}),
        ("sequences", {"sequence_length": 5, "sequence_period": 2}),
    )
    def test_a_cut_truncates_what_goes_on(self, options):
        compared = Compared(2, 14, **options)
        compared.start(streams("SAME_STEP", 2, 40, [(11, "trunc"), (3, "term")]))
        for _ in range(10):
            compared.add(3)
            compared.cut()
            compared.check()
            compared.cut()  # nothing goes on
            compared.check()

    def test_rows_without_a_step_change_nothing(self):
        compared = Compared(2, 10, n_step=2, kind="prioritized")
        compared.start(streams("DISABLED", 2, 40, [(4, "term")]))
        compared.add(5)
        before = compared.buffer.state_values()
        compared.add(5)
        for path, value in compared.buffer.state_values().items():
            np.testing.assert_array_equal(value, before[path], err_msg=path)


_PROPERTY = {}


def property_case(name):
    """Traced once: examples differ in their streams only."""
    options = {
        "n_step": {"n_step": 3, "kind": "prioritized"},
        "uniform": {"n_step": 2, "stack": 3, "frames_per_step": 1.3},
        "sequences": {"sequence_length": 4, "sequence_period": 3},
    }[name]
    if name not in _PROPERTY:
        _PROPERTY[name] = Compared(2, 11, **options)
    return _PROPERTY[name]


@hypothesis.settings(
    max_examples=25, deadline=None, derandomize=True, phases=[hypothesis.Phase.generate]
)
@hypothesis.given(
    name=st.sampled_from(["n_step", "uniform", "sequences"]),
    mode=st.sampled_from(oracle.MODES),
    episodes=st.lists(
        st.tuples(st.integers(1, 15), st.sampled_from(["term", "trunc", "both"])),
        min_size=1,
        max_size=6,
    ),
    cuts=st.sets(st.integers(0, 9), max_size=3),
)
def test_items_of_any_streams(name, mode, episodes, cuts):
    compared = property_case(name)
    compared.start(streams(mode, 2, 50, episodes))
    for i in range(10):
        compared.add(5)
        if i in cuts:
            compared.cut()
        compared.check()
