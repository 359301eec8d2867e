"""The items of Reverb's tables are exactly those of a replay in plain Python."""

from unittest import mock

import pytest
import tensorflow as tf
from absl.testing import parameterized

from tests.replay import oracle
from tests.replay.reverb import helpers
from tfrl.replay.reverb import TableConfig, dataset

CHUNKS = (1, 2, 6, 7, 18, 19, 30, 60)  # adds of T = 1, 1, 4, 1, 11, ...
CASES = (
    ("one_step", {"n_step": 1}),
    ("n_step", {"n_step": 3}),
    ("long_n_step", {"n_step": 9}),
    ("prioritized_one_step", {"n_step": 1, "kind": "prioritized"}),
    ("prioritized_n_step", {"n_step": 3, "kind": "prioritized"}),
    ("one_step_in_columns", {"n_step": 1, "packed": False}),
    ("n_step_in_columns", {"n_step": 3, "kind": "prioritized", "packed": False}),
    ("sequences", {"sequence_length": 4, "sequence_period": 2}),
    ("sequences_apart", {"sequence_length": 3}),
    ("dense_sequences", {"sequence_length": 4, "sequence_period": 1, "kind": "prioritized"}),
    ("episodes", {"episode_length": 12}),
)


class ItemsTest(parameterized.TestCase):
    def buffer(self, num_envs=2, **options):
        buffer = helpers.maker(num_envs, **options).init()
        self.addCleanup(buffer.close)
        return buffer

    def check(self, buffer, expected, table=None):
        wanted = sorted(expected.all(), key=helpers.first_obs)
        assert int(buffer.size(table)) == len(wanted)
        found = helpers.read_all(buffer, table)
        helpers.close_to(sorted(found.values(), key=helpers.first_obs), wanted)

    @parameterized.named_parameters(*CASES)
    @pytest.mark.variants(3)
    def test_items_of_all_autoreset_modes(self, options):
        self.check_all_modes(options)

    def check_all_modes(self, options):
        buffer = self.buffer(**options)
        for mode in helpers.MODES:
            helpers.begin_anew(buffer)
            expected = helpers.Expected(buffer.replay.table(), 2)
            helpers.add_all(buffer, helpers.streams(mode, 2, 60), expected, CHUNKS)
            self.check(buffer, expected)
            buffer.cut()
            expected.cut()
            self.check(buffer, expected)

    @parameterized.named_parameters(
        ("sequences", {"sequence_length": 4, "sequence_period": 2}),
        ("episodes", {"episode_length": 12}),
    )
    @pytest.mark.variants(1)
    def test_large_sequences(self, options):
        """They are padded one by one."""
        with mock.patch.object(dataset, "_LARGE_BYTES", 0):
            self.check_all_modes(options)

    @parameterized.named_parameters(
        ("n_step", {"n_step": 4}),
        ("in_columns", {"n_step": 4, "kind": "prioritized", "packed": False}),
        ("sequences", {"sequence_length": 5, "sequence_period": 2}),
        ("episodes", {"episode_length": 20}),
    )
    def test_a_cut_truncates_what_goes_on(self, options):
        buffer = self.buffer(**options)
        streams = helpers.streams("SAME_STEP", 2, 40, [(11, "trunc"), (3, "term")])
        expected = helpers.Expected(buffer.replay.table(), 2)
        for start in range(0, 30, 3):
            buffer.add(oracle.trajectory(streams, start, start + 3))
            expected.add(streams, start, start + 3)
            for _ in range(2):  # the second time nothing goes on
                buffer.cut()
                expected.cut()
                assert int(buffer.size()) == len(expected.all())
        self.check(buffer, expected)

    def test_each_complete_item_is_there_at_once(self):
        buffer = self.buffer(n_step=3)
        streams, expected = helpers.streams("SAME_STEP", 2, 20), None
        expected = helpers.Expected(buffer.replay.table(), 2)
        for t in range(20):
            buffer.add(oracle.trajectory(streams, t, t + 1))
            expected.add(streams, t, t + 1)
            assert int(buffer.size()) == len(expected.all()), t

    def test_eager_tensors_and_many_rows(self):
        buffer = self.buffer(num_envs=3, n_step=2)
        streams = helpers.streams("NEXT_STEP", 3, 400)
        rows = oracle.trajectory(streams, 0, 400)
        buffer.add(tf.nest.map_structure(tf.constant, rows))
        expected = helpers.Expected(buffer.replay.table(), 3)
        expected.add(streams, 0, 400)
        assert 800 < len(expected.all()) <= 1000
        self.check(buffer, expected)

    def test_a_long_episode_without_an_end(self):
        buffer = self.buffer(num_envs=1, sequence_length=4, sequence_period=3)
        streams = helpers.streams("SAME_STEP", 1, 400, [(500, "term")])
        expected = helpers.Expected(buffer.replay.table(), 1)
        helpers.add_all(buffer, streams, expected, range(40, 401, 40))
        buffer.cut()
        expected.cut()
        self.check(buffer, expected)

    def test_several_tables_of_one_stream(self):
        tables = (
            TableConfig(name="uniform"),
            TableConfig(name="first", kind="fifo", n_step=1),
            TableConfig(name="chunks", kind="prioritized", sequence_length=4, sequence_period=2),
            TableConfig(name="more", n_step=5),
        )
        buffer = self.buffer(num_envs=1, n_step=3, tables=tables, timeout=1.0)
        streams = helpers.streams("NEXT_STEP", 1, 60)
        expected = {t.name: helpers.Expected(t, 1) for t in buffer.replay.table_configs}
        for start in range(0, 60, 5):
            buffer.add(oracle.trajectory(streams, start, start + 5))
            for one in expected.values():
                one.add(streams, start, start + 5)
        buffer.flush()
        for name in ("uniform", "chunks", "more"):
            self.check(buffer, expected[name], name)
        wanted = expected["first"].all()
        helpers.close_to(helpers.take(buffer, len(wanted), "first"), wanted)

    def test_the_oldest_items_go_first(self):
        buffer = self.buffer(num_envs=1, capacity=10)
        streams = helpers.streams("SAME_STEP", 1, 60)
        expected = helpers.Expected(buffer.replay.table(), 1)
        helpers.add_all(buffer, streams, expected, (60,))
        found = helpers.read_all(buffer)
        wanted = expected.all()[-10:]
        helpers.close_to(sorted(found.values(), key=helpers.first_obs), wanted)
