"""Tables, their signatures and limits, and what a maker refuses."""

import re
import sys
import time

import pytest
import tensorflow as tf
from absl.testing import parameterized

from tests import forked
from tests.replay.reverb import helpers
from tfrl.errors import UserError
from tfrl.replay.reverb import TableConfig, tables
from tfrl.replay.reverb.tables import check_tables


def infos(replay):
    return {table.name: table.info for table in replay.make_tables()}


class SignatureTest(parameterized.TestCase):
    def test_n_step_items(self):
        replay = helpers.maker(
            n_step=3,
            policy_extras_spec={"log_prob": tf.TensorSpec([], tf.float32)},
        )
        got = {
            path: (tuple(s.shape), s.dtype.name)
            for path, s in infos(replay)["replay"].signature.items()
        }
        assert got == {
            "action": ((), "int64"),
            "discount": ((), "float32"),
            "next_obs": ((1,), "float32"),
            "obs": ((1,), "float32"),
            "policy_extras/log_prob": ((), "float32"),
            "reward": ((), "float32"),
        }

    def test_sequences(self):
        state = (tf.TensorSpec([4], tf.float32), tf.TensorSpec([5], tf.float32))
        replay = helpers.maker(sequence_length=8, policy_extras_spec={"state_in": state})
        got = {path: (s.shape.as_list(), s.dtype.name) for path, s in replay.signature().items()}
        assert got == {
            "action": ([None], "int64"),
            "flags": ([None], "uint8"),
            "obs": ([None, 1], "float32"),
            "reward": ([None], "float32"),
            "state_in/0": ([4], "float32"),
            "state_in/1": ([5], "float32"),
        }

    def test_bounded_specs_are_stored_as_plain_ones(self):
        action = tf.TensorSpec([2], tf.float32)
        replay = helpers.maker().replace(
            action_spec=tf.TensorSpec([2], tf.float32), obs_spec=tf.TensorSpec([3], tf.uint8)
        )
        assert replay.signature()["action"] == tf.TensorSpec(action.shape, action.dtype, "action")

    def test_tables_and_limits(self):
        tables = (
            TableConfig(name="a", capacity=50),
            TableConfig(name="b", kind="prioritized", alpha=0.5, min_size=10),
            TableConfig(name="c", kind="fifo", capacity=7),
            TableConfig(name="d", kind="lifo", capacity=8),
            TableConfig(name="e", samples_per_insert=4.0, min_size=5, tolerance=6.0),
        )
        found = infos(helpers.maker(tables=tables))
        assert [found[n].max_size for n in "abcde"] == [50, 1000, 7, 8, 1000]
        assert [found[n].max_times_sampled for n in "abcde"] == [0, 0, 1, 1, 0]
        assert found["b"].sampler_options.prioritized.priority_exponent == 0.5
        assert found["a"].sampler_options.HasField("uniform")
        assert found["c"].sampler_options.HasField("fifo")
        assert found["d"].sampler_options.HasField("lifo")
        assert [found[n].rate_limiter_info.min_size_to_sample for n in "abcde"] == [1, 10, 1, 1, 5]
        ratio = found["e"].rate_limiter_info
        # 5 items x 4 samples, 6 more or less
        assert (ratio.samples_per_insert, ratio.min_diff, ratio.max_diff) == (4.0, 14.0, 26.0)


class CheckTest(parameterized.TestCase):
    def test_the_same_tables_are_right(self):
        replay = helpers.maker(kind="prioritized", n_step=2)
        tables = infos(replay)
        check_tables(tables, replay)
        assert list(tables) == ["replay"]
        with pytest.raises(UserError, match="Reverb table 'replay': expected a table of this name"):
            check_tables({}, replay)

    @parameterized.named_parameters(
        (
            "dtype",
            {"obs_spec": tf.TensorSpec([1], tf.uint8)},
            "Reverb table 'replay', leaf next_obs: expected float32 [1], got uint8 [1].",
        ),
        (
            "shape",
            {"action_spec": tf.TensorSpec([2], tf.int64)},
            "Reverb table 'replay', leaf action: expected int64 [], got int64 [2].",
        ),
        (
            "missing",
            {"sequence_length": 3},
            "Reverb table 'replay', leaf action: expected int64 [], got int64 [?].",
        ),
        (
            "unknown",
            {"env_extras_spec": {"level": tf.TensorSpec([], tf.int32)}},
            "Reverb table 'replay', leaf env_extras/level: expected no such leaf, got int32 [].",
        ),
        (
            "capacity",
            {"capacity": 999},
            "Reverb table 'replay', capacity: expected 1000, got 999.",
        ),
        (
            "sampler",
            {"kind": "prioritized", "alpha": 0.5},
            "Reverb table 'replay', sampler: expected uniform, got "
            "prioritized (priority_exponent: 0.5).",
        ),
        (
            "min_size",
            {"min_size": 3},
            "Reverb table 'replay', min_size: expected 1, got 3.",
        ),
    )
    def test_a_difference_is_named(self, changed, message):
        asked = helpers.maker()
        other = infos(asked.replace(**changed))
        with pytest.raises(UserError, match=re.escape(message)):
            check_tables(other, asked)

    def test_a_restored_limiter_of_another_ratio(self):
        asked = helpers.maker(samples_per_insert=2.0, tolerance=10.0)
        other = infos(asked.replace(samples_per_insert=3.0))
        with pytest.raises(
            UserError, match="samples_per_insert: expected 2, got 3. Start server and clients"
        ):
            check_tables(other, asked)
        other = infos(asked.replace(tolerance=11.0))
        with pytest.raises(UserError, match="tolerance: expected a difference from -8 to 12, got"):
            check_tables(other, asked)

    def test_a_table_that_is_not_there(self):
        asked = helpers.maker(tables=(TableConfig(name="recent"),))
        message = (
            "Reverb table 'recent': expected a table of this name on the server, got tables replay."
        )
        with pytest.raises(UserError, match=re.escape(message)):
            check_tables(infos(helpers.maker()), asked)

    def test_a_server_with_other_tables_is_refused_before_anything_starts(self):
        server = helpers.maker(n_step=2, capacity=10).init()
        self.addCleanup(server.close)
        asked = helpers.maker(address=server.address, sequence_length=4)
        with pytest.raises(UserError, match="leaf action: expected int64 .*, got int64"):
            asked.init()


class RefusalsTest(parameterized.TestCase):
    @parameterized.named_parameters(
        ("kind", {"kind": "prioritised"}, "kind: expected one of .* Did you mean prioritized"),
        ("capacity", {"capacity": 0}, "capacity: expected a whole number of at least 1, got 0"),
        (
            "num_envs",
            {"num_envs": True},
            "num_envs: expected a whole number of at least 1, got True",
        ),
        ("alpha", {"alpha": 1.5}, "alpha: expected a number of at least 0 and at most 1, got 1.5"),
        ("discount", {"discount": -0.1}, "discount: expected a number of at least 0 .*, got -0.1"),
        ("timeout", {"timeout": 0}, "timeout: expected a number above 0 .*, got 0"),
        ("long", {"timeout": 1e300}, "timeout: expected a number .* at most 1e\\+06, got 1e\\+300"),
        (
            "long_period",
            {"sequence_length": 2, "sequence_period": 3},
            "sequence_period: expected a whole number of .* at most 2, got 3",
        ),
        (
            "n_step",
            {"sequence_length": 2, "n_step": 3},
            "n_step: expected 1 for sequences, got 3",
        ),
        (
            "both",
            {"sequence_length": 2, "episode_length": 3},
            "episode_length: expected None with sequence_length, got 3",
        ),
        ("min_size", {"min_size": 1001}, "min_size: expected at most capacity=1000, got 1001"),
        (
            "tolerance",
            {"samples_per_insert": 8.0, "tolerance": 2.0},
            "tolerance: expected at least 8, got 2.0",
        ),
        (
            "names",
            {"tables": (TableConfig(name="a"), TableConfig(name="a"))},
            "tables: expected different names, got a, a",
        ),
        ("tables", {"tables": ("a",)}, "tables: expected a tuple of TableConfig, got str"),
        (
            "spec",
            {"policy_extras_spec": {"x": tf.TensorSpec([None], tf.float32)}},
            "policy_extras_spec x: expected a tf.TensorSpec of a fully known shape",
        ),
    )
    def test_arguments(self, options, message):
        with pytest.raises(UserError, match=message):
            helpers.maker(**options)

    @parameterized.product(
        name=(
            *("alpha", "discount", "min_size", "samples_per_insert", "tolerance"),
            *("timeout", "reconnect_seconds", "capacity", "n_step"),
        ),
        value=(float("nan"), float("inf"), -float("inf"), True),
    )
    def test_numbers_are_finite(self, name, value):
        with pytest.raises(UserError, match=f"{name}: expected .*, got {value}"):
            helpers.maker(**{name: value})
        if name in ("alpha", "samples_per_insert", "tolerance"):
            with pytest.raises(UserError, match=f"table 'a', {name}: expected .*, got {value}"):
                helpers.maker(tables=(TableConfig(name="a", **{name: value}),))

    def test_a_table_that_no_maker_has(self):
        with pytest.raises(UserError, match="table: expected one of replay, got 'other'"):
            helpers.maker().table("other")


class ConfigTest(parameterized.TestCase):
    def test_a_table_takes_over_what_it_does_not_say(self):
        replay = helpers.maker(
            kind="prioritized",
            alpha=0.3,
            n_step=5,
            tables=(
                TableConfig(name="a"),
                TableConfig(name="b", kind="fifo", capacity=3),
                TableConfig(name="c", sequence_length=6, alpha=0.9),
            ),
        )
        a, b, c = replay.table_configs
        assert (a.kind, a.alpha, a.n_step, a.capacity) == ("prioritized", 0.3, 5, 1000)
        assert (b.kind, b.n_step, b.capacity) == ("fifo", 5, 3)
        assert (c.n_step, c.steps, c.period, c.alpha) == (1, 6, 6, 0.9)

    def test_importing_replay_does_not_import_reverb(self):
        code = (
            "import sys, tfrl.replay, tfrl.replay.reverb as r, tensorflow as tf\n"
            "r.ReverbReplay(obs_spec=tf.TensorSpec([1]), action_spec=tf.TensorSpec([]), "
            "capacity=3, num_envs=1).signature()\n"
            "assert 'reverb' not in sys.modules\n"
        )
        done = forked.run([sys.executable, "-c", code])
        assert done.returncode == 0, done.stderr

    def test_a_machine_without_reverb(self):
        import importlib
        from unittest import mock

        real = importlib.import_module

        def without(name, *args):
            if name == "reverb":
                raise ModuleNotFoundError("No module named 'reverb'", name="reverb")
            return real(name, *args)

        with mock.patch.object(importlib, "import_module", without):
            with pytest.raises(UserError, match=re.escape("pip install 'tfrl[reverb]'")):
                helpers.maker().make_tables()
            with pytest.raises(UserError, match="expected the extra 'reverb' to be installed"):
                helpers.maker().init()


def test_a_later_start_has_a_later_number_whatever_the_clock_says():
    ahead = time.time_ns() + 10**15
    start = tables.make_start({"replay": 7}, {tables.START: [5, ahead], "replay": [0, 3]}, {})
    found = {tables.START: start.info}
    assert tables.starts_of(found, "replay") == [(5, 0), (ahead, 3), (ahead + 1, 7)]
    assert tables.settings_of(found) == {}
