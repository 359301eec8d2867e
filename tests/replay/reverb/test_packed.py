"""Items as one column of bytes: where they are, what they hold, and that both forms are told."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized

from tests.replay import oracle
from tests.replay.reverb import helpers
from tfrl.errors import UserError
from tfrl.replay.reverb import TableConfig
from tfrl.replay.reverb.server import ReverbServer
from tfrl.replay.reverb.tables import check_tables

DTYPES = ("bool", "uint8", "int8", "uint16", "int32", "int64", "float16", "float32", "float64")
TABLES = (
    TableConfig(name="one", n_step=1),
    TableConfig(name="more", n_step=5),
    TableConfig(name="same"),
)


def infos(replay):
    return {table.name: table.info for table in replay.make_tables()}


class FormTest(parameterized.TestCase):
    @parameterized.named_parameters(
        ("small", {}, True),
        ("small_of_two_tables", {"tables": TABLES[:2]}, True),
        ("not_wanted", {"packed": False}, False),
        ("sequences", {"sequence_length": 2}, False),
        ("large", {"obs_spec": tf.TensorSpec([600], tf.uint8)}, False),
        ("large_but_wanted", {"obs_spec": tf.TensorSpec([600], tf.uint8), "packed": True}, True),
        ("empty", {"obs_spec": {"a": helpers.OBS, "b": tf.TensorSpec([0])}}, False),
    )
    def test_what_is_packed_in_this_process(self, changed, packed):
        buffer = helpers.maker().replace(**changed).init()
        self.addCleanup(buffer.close)
        self.assertIs(buffer.replay.packed, packed)
        (info, *_) = buffer.connection.server_info().values()
        shapes = [(s.dtype.name, s.shape.as_list()) for s in info.signature.values()]
        if packed:
            size = 2 * (600 if "obs_spec" in changed else 4) + 8 + 4 + 4
            assert shapes == [("uint8", [size])]
        else:
            assert len(shapes) > 3

    def test_tables_for_others_are_not_packed_unless_said(self):
        assert len(infos(helpers.maker())["replay"].signature) == 5
        assert len(infos(helpers.maker(packed=True))["replay"].signature) == 1

    @parameterized.named_parameters(
        ("sequences", {"sequence_length": 2}, "packed: expected False or None for sequences"),
        ("strings", {"obs_spec": tf.TensorSpec([], tf.string)}, "packed: expected False or None"),
    )
    def test_what_cannot_be_packed(self, changed, message):
        with pytest.raises(UserError, match=message):
            helpers.maker().replace(**changed, packed=True)

    def test_no_such_choice(self):
        with pytest.raises(UserError, match="packed: expected one of True, False, None, got 'yes'"):
            helpers.maker(packed="yes")


class ContentTest(parameterized.TestCase):
    def test_leaves_of_every_dtype(self):
        spec = {name: tf.TensorSpec([3, 2], tf.as_dtype(name)) for name in DTYPES}
        replay = helpers.maker(n_step=2).replace(obs_spec=spec, action_spec=spec["float16"])
        buffer = replay.init()
        self.addCleanup(buffer.close)
        assert buffer.replay.packed
        rows = oracle.trajectory(helpers.streams("SAME_STEP", 2, 20), 0, 20)

        def told(x):  # [T, B, 1]
            wide = np.broadcast_to(x[..., None], (*x.shape[:2], 3, 2)) % 100
            return {name: (wide + np.arange(2)).astype(name) for name in DTYPES}

        buffer.add(
            rows.replace(
                obs=told(rows.obs),
                next_obs=told(rows.next_obs),
                action=told(rows.obs)["float16"],
            )
        )
        batch = buffer.sample(None, 30)
        for name in DTYPES:
            for part in (batch.obs, batch.next_obs):
                assert part[name].dtype == name and part[name].shape == (30, 3, 2)
                wanted = (part["int64"].numpy()).astype(name)
                np.testing.assert_array_equal(part[name], wanted)
        np.testing.assert_array_equal(batch.action, batch.obs["float16"])
        steps = (batch.next_obs["int64"] - batch.obs["int64"]).numpy()[:, 0, 0] % 100
        assert set(steps.tolist()) == {1, 2}  # one step at an episode's end

    def test_several_tables_of_one_stream(self):
        buffer = helpers.maker(1, n_step=1, tables=TABLES).init()
        self.addCleanup(buffer.close)
        streams = helpers.streams("NEXT_STEP", 1, 60)
        wanted = {t.name: helpers.Expected(buffer.replay.table(t.name), 1) for t in TABLES}
        for start, stop in ((0, 7), (7, 8), (8, 60)):
            buffer.add(oracle.trajectory(streams, start, stop))
            for expected in wanted.values():
                expected.add(streams, start, stop)
        buffer.cut()
        for name, expected in wanted.items():
            expected.cut()
            found = helpers.read_all(buffer, name).values()
            order = sorted(expected.all(), key=helpers.first_obs)
            helpers.close_to(sorted(found, key=helpers.first_obs), order)

    def test_a_long_episode_without_an_end(self):
        buffer = helpers.maker(1, n_step=3).init()
        self.addCleanup(buffer.close)
        streams = helpers.streams("SAME_STEP", 1, 400, [(500, "term")])
        expected = helpers.Expected(buffer.replay.table(), 1)
        helpers.add_all(buffer, streams, expected, range(40, 401, 40))
        buffer.cut()
        expected.cut()
        found = sorted(helpers.read_all(buffer).values(), key=helpers.first_obs)
        helpers.close_to(found, sorted(expected.all(), key=helpers.first_obs))


class DifferencesTest(parameterized.TestCase):
    @parameterized.named_parameters(
        (
            "shape",
            {"action_spec": tf.TensorSpec([2], tf.int64)},
            "Reverb table 'replay', leaf action: expected int64 [], got int64 [2].",
        ),
        (
            "dtype",
            {"obs_spec": tf.TensorSpec([1], tf.int32)},
            "Reverb table 'replay', leaf next_obs: expected float32 [1], got int32 [1].",
        ),
        (
            "form",
            {"packed": False},
            "Reverb table 'replay', packed: expected True, got False. Set ReverbReplay.packed",
        ),
    )
    def test_are_named(self, changed, message):
        asked = helpers.maker(packed=True)
        with pytest.raises(UserError, match=re.escape(message)):
            check_tables(infos(asked.replace(**changed)), asked)
        check_tables(infos(asked), asked)

    def test_of_a_leaf_though_the_form_is_not_said(self):
        served = infos(helpers.maker(packed=True).replace(obs_spec=tf.TensorSpec([2])))
        with pytest.raises(UserError, match=r"leaf next_obs: expected float32 \[1\], got float32 "):
            check_tables(served, helpers.maker())

    @parameterized.parameters(True, False)
    def test_a_maker_takes_what_the_server_has(self, packed):
        server = helpers.maker(num_envs=1, packed=packed).init()
        self.addCleanup(server.close)
        buffer = helpers.maker(num_envs=1, address=server.address).init()
        self.addCleanup(buffer.close)
        assert buffer.replay.packed is packed
        buffer.add(helpers.rows(0, 20))
        buffer.flush()
        assert int(server.size()) == 20
        assert helpers.read_all(buffer) == helpers.read_all(server)
        with pytest.raises(UserError, match=f"packed: expected {not packed}, got {packed}"):
            helpers.maker(num_envs=1, address=server.address, packed=not packed).init()

    def test_of_a_checkpoint(self):
        folder = helpers.new_folder(self)
        server = ReverbServer(helpers.maker(packed=True).make_tables())
        server.save(folder)
        server.stop()
        for changed, message in (
            ({"obs_spec": tf.TensorSpec([2])}, r"signature obs = float32 \[1\] \(asked: float32"),
            ({"packed": False}, r"signature packed = True \(asked: nothing\)"),
        ):
            tables = helpers.maker(packed=True).replace(**changed).make_tables()
            with pytest.raises(UserError, match=message):
                ReverbServer(tables, restore_from=folder)


class SavedTest(parameterized.TestCase):
    @parameterized.parameters((True, False), (False, False), (False, True))
    @pytest.mark.variants(1)
    def test_a_buffer_goes_on_in_the_form_that_was_saved(self, packed, before):
        """Folders of versions that did not know of packed items do not tell."""
        folder = helpers.new_folder(self)
        first = helpers.closed_after(self, packed=packed)
        first.add(helpers.rows(0, 12))
        items = helpers.read_all(first)
        first.save(folder)
        if before:
            path = Path(folder) / "values.json"
            content = json.loads(path.read_text())
            del content["tables"]["replay"]["packed"]
            path.write_text(json.dumps(content))
        other = helpers.closed_after(self)
        assert other.replay.packed
        other.add(helpers.rows(0, 3))
        other.restore(folder)
        assert other.replay.packed is packed
        assert helpers.read_all(other) == items
        other.add(helpers.rows(12, 15))
        other.flush()
        assert int(other.size()) == len(items) + 3
        strict = helpers.closed_after(self, packed=not packed)
        message = f"table 'replay', packed: expected {packed}, as in the buffer"
        with pytest.raises(UserError, match=message):
            strict.restore(folder)
