"""Buffers in folders, and buffers of a server elsewhere."""

import shutil
import threading
import time

import numpy as np
import pytest
from absl.testing import parameterized

from tests.replay.reverb import helpers
from tfrl.errors import UserError
from tfrl.replay.reverb import TableConfig
from tfrl.replay.reverb.server import ReverbServer
from tfrl.replay.reverb.stream import MOST_PENDING


class FilesTest(parameterized.TestCase):
    def test_content_priorities_and_counts_come_back(self):
        folder = helpers.new_folder(self)
        options = {
            "kind": "prioritized",
            "n_step": 2,
            "samples_per_insert": 4.0,
            "tolerance": 20000.0,
            "tables": (TableConfig(name="replay"), TableConfig(name="once", kind="fifo")),
        }
        buffer = helpers.closed_after(self, **options)
        buffer.add(helpers.rows(0, 12))
        batch = buffer.sample(None, 5)
        buffer.update_priorities(batch.index, np.arange(2.0, 7.0))
        before = helpers.read_all(buffer)
        buffer.save(folder)
        counts = buffer._connection.server_info()
        priorities = helpers.stored(buffer)
        values = buffer.state_values()
        buffer.add(helpers.rows(12, 20))
        for other in (buffer, helpers.closed_after(self, **options)):
            other.restore(folder)
            info = other._connection.server_info()
            for name in ("replay", "once"):
                for stats in ("insert_stats", "sample_stats"):
                    want = getattr(counts[name].rate_limiter_info, stats).completed
                    assert getattr(info[name].rate_limiter_info, stats).completed == want
                assert info[name].current_size == counts[name].current_size == len(before)
            again = helpers.stored(other)
            assert again == {obs: priorities[obs] for obs in again} and len(again) > 5
            assert other.state_values() == values
            assert helpers.read_all(other) == before
            other.add(helpers.rows(0, 3))  # the first steps of an episode, whatever went on before
            other.flush()
            assert int(other.size()) == len(before) + 2

    def test_a_dataset_of_the_server_before(self):
        folder = helpers.new_folder(self)
        buffer = helpers.closed_after(self, timeout=1.0)
        buffer.add(helpers.rows(0, 12))
        buffer.save(folder)
        old = buffer.batches(buffer.dataset(2))
        next(old)
        buffer.restore(folder)
        with pytest.raises(UserError, match="expected a dataset created after restore"):
            next(old)
        assert next(buffer.batches(buffer.dataset(2))).obs.shape == (2, 1)

    def test_saving_replaces(self):
        folder = helpers.new_folder(self)
        buffer = helpers.closed_after(self)
        for stop in (3, 6):
            buffer.add(helpers.rows(stop - 3, stop))
            buffer.save(folder)
        other = helpers.closed_after(self)
        other.restore(folder)
        assert int(other.size()) == 6

    def test_other_buffers_and_other_folders(self):
        folder = helpers.new_folder(self)
        helpers.closed_after(self, n_step=2).save(folder)
        other = helpers.closed_after(self, n_step=3)
        other.add(helpers.rows(0, 5))
        size = int(other.size())
        with pytest.raises(UserError, match="table 'replay', n_step: expected 2, as in the buffer"):
            other.restore(folder)
        with pytest.raises(UserError, match="expected a folder that ReverbBuffer.save wrote"):
            other.restore(folder + "/nothing")
        shutil.rmtree(folder + "/tables")
        same = helpers.closed_after(self, n_step=2)
        same.add(helpers.rows(0, 5))
        with pytest.warns(UserWarning, match="damaged"):
            with pytest.raises(UserError, match="replay checkpoint"):
                same.restore(folder)
        assert int(other.size()) == size and int(same.size()) == 5  # both go on as they were

    def test_values(self):
        buffer = helpers.closed_after(self, kind="prioritized")
        values = buffer.state_values()
        assert values["highest_priority/replay"] == 1.0 and values["items_created"] == 0
        buffer.load_values({**values, "highest_priority/replay": np.float64(3.0)})
        assert buffer.state_values()["highest_priority/replay"] == 3.0
        with pytest.raises(UserError, match="the values of a replay buffer"):
            buffer.load_values({})

    def test_nothing_is_lost_at_the_end(self):
        server = helpers.maker(num_envs=1).init()
        self.addCleanup(server.close)
        remote = helpers.maker(num_envs=1, address=server.address).init()
        remote.add(helpers.rows(0, 30))
        remote.close()
        remote.close()
        assert int(server.size()) == 30


class ServerElsewhereTest(parameterized.TestCase):
    """The same buffer over an address, with a heartbeat."""

    def test_writes_samples_and_updates(self):
        server = helpers.maker(num_envs=1, kind="prioritized").init()
        self.addCleanup(server.close)
        buffer = helpers.maker(num_envs=1, kind="prioritized", address=server.address).init()
        self.addCleanup(buffer.close)
        buffer.add(helpers.rows(0, 20))
        buffer.cut()
        assert int(server.size()) == int(buffer.size()) == 20
        batch = buffer.sample(None, 8)
        buffer.update_priorities(batch.index, np.full(8, 5.0))
        assert sorted(set(helpers.stored(server).values())) == [1.0, 5.0]
        folder = helpers.new_folder(self)
        buffer.save(folder)
        buffer.load_values({**buffer.state_values(), "highest_priority/replay": np.float64(9)})
        buffer.restore(folder)
        assert buffer.state_values()["highest_priority/replay"] == 5.0
        assert int(buffer.size()) == 20

    def test_a_lost_server_ends_in_an_error(self):
        server = helpers.maker(num_envs=1).init()
        self.addCleanup(server.close)
        buffer = helpers.maker(num_envs=1, address=server.address, timeout=30.0).init()
        buffer.add(helpers.rows(0, 20))
        buffer.flush()
        server.close()
        start = time.monotonic()
        with pytest.raises(UserError, match="Reverb server at localhost:"):
            while time.monotonic() - start < 20:
                buffer.add(helpers.rows(0, 20))
                buffer.flush()
        assert time.monotonic() - start < 10
        buffer.close()

    def test_a_server_that_comes_back(self):
        folder = helpers.new_folder(self)
        options = {"num_envs": 1, "capacity": 5000}
        replay = helpers.maker(**options)
        first = ReverbServer(replay.make_tables(), checkpoint_dir=folder)
        buffer = helpers.maker(address=first.address, reconnect_seconds=30.0, **options).init()
        self.addCleanup(buffer.close)
        buffer.add(helpers.rows(0, 40))
        buffer.flush()
        first.stop()  # with a checkpoint of what was confirmed
        buffer.add(helpers.rows(0, 30))
        again = []

        def restart():
            time.sleep(1.0)
            tables = replay.make_tables()
            again.append(ReverbServer(tables, port=first.port, checkpoint_dir=folder))

        thread = threading.Thread(target=restart)
        thread.start()
        buffer.flush()
        thread.join()
        self.addCleanup(again[0].stop)
        assert int(buffer.size()) == buffer.items_created == 70
        assert 0 <= buffer.possible_duplicates <= MOST_PENDING


@pytest.mark.parametrize("name, left", [("tables", 0), ("items", 0), ("chunks", 100)])
@pytest.mark.variants(2)
def test_a_file_without_its_end_makes_no_checkpoint(tmp_path, monkeypatch, name, left):
    """On a full disk Reverb loses what it writes last, and says nothing."""
    maker = helpers.maker(num_envs=1)
    server = ReverbServer(maker.make_tables(), checkpoint_dir=tmp_path, checkpoint_interval=None)
    buffer = maker.replace(address=server.address).init()
    buffer.add(helpers.rows(0, 40))
    buffer.flush()
    server.checkpoint()
    checkpoint = server._client.checkpoint

    def cut():
        path = checkpoint()
        with open(f"{path}/{name}.tfrecord", "rb+") as file:
            file.truncate(left)
        return path

    monkeypatch.setattr(server._client, "checkpoint", cut)
    with pytest.raises(UserError, match="expected a writable folder, got a full disk"):
        server.checkpoint()
    monkeypatch.undo()
    buffer.close()
    server.stop(checkpoint=False)
    again = ReverbServer(maker.make_tables(), checkpoint_dir=tmp_path)
    assert again.restored_from.name == "ckpt-000001"
    assert again.restored == {"replay": 40}
    again.stop()


def test_a_full_disk_is_told_and_the_server_goes_on(tmp_path, monkeypatch):
    maker = helpers.maker()
    folder = tmp_path / "c"
    server = ReverbServer(maker.make_tables(), checkpoint_dir=folder, checkpoint_interval=None)
    buffer = maker.replace(address=server.address).init()

    def full():
        raise IndexError("/c/items.tfrecord; No space left on device.\nat line 1")

    wanted = (
        rf"a checkpoint of the Reverb server at {server.address}: expected a completed write, got "
        r"/c/items.tfrecord; No space left on device. Free space on the server's disk"
    )
    for owner in (server._client, buffer.connection.client):
        monkeypatch.setattr(owner, "checkpoint", full)
    with pytest.raises(UserError, match=wanted):
        server.checkpoint()
    with pytest.raises(UserError, match=wanted):
        buffer.save(str(tmp_path / "buffer"))
    monkeypatch.undo()
    server.checkpoint()
    buffer.close()
    server.stop()
    assert len(list(folder.glob("ckpt-*"))) == 2
