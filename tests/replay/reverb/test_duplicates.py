"""Items that a writer sent again, and that a table gave a second time."""

import socket
import threading
from unittest import mock

import numpy as np
import pytest
import tensorflow as tf

from tests.replay.reverb import helpers
from tests.replay.reverb.server_runs import wait_until
from tfrl.replay.reverb.duplicates import Duplicates
from tfrl.replay.reverb.server import ReverbServer
from tfrl.replay.reverb.stream import MOST_PENDING


class Line:
    """A line to a server that can be cut, and whose answers can be held back."""

    def __init__(self, port):
        self._port, self._ends = port, []
        self._answers = threading.Event()
        self._answers.set()
        self._listener = socket.create_server(("localhost", 0))
        self.address = f"localhost:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        while True:
            try:
                near, _ = self._listener.accept()
                far = socket.create_connection(("localhost", self._port))
            except OSError:
                return
            self._ends += [near, far]
            threading.Thread(target=self._pump, args=(near, far, None), daemon=True).start()
            threading.Thread(
                target=self._pump, args=(far, near, self._answers), daemon=True
            ).start()

    def _pump(self, source, sink, gate):
        try:
            while data := source.recv(65536):
                if gate is not None:
                    gate.wait()
                sink.sendall(data)
        except OSError:
            pass
        for end in (source, sink):
            end.close()

    def hold(self):
        self._answers.clear()

    def cut(self):
        """Breaks what goes over it; it takes new connections, and their answers come."""
        ends, self._ends = self._ends, []
        for end in ends:
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                continue
        self._answers.set()

    def close(self):
        self._listener.close()
        self.cut()


@pytest.fixture(name="two_ends")
def fixture_two_ends():
    """Makes a buffer that writes over a line, one that reads beside it, and the line."""
    opened = []

    def make(kind, **limits):
        replay = helpers.maker(num_envs=1, kind=kind, packed=False, **limits)
        server = ReverbServer(replay.make_tables())
        line = Line(server.port)
        writer = replay.replace(address=line.address).init()
        reader = replay.replace(address=server.address).init()
        opened.extend([writer.close, reader.close, line.close, server.stop])
        return writer, reader, line

    yield make
    for close in opened:
        close()


def send_again(writer, reader, line, take):
    """Sends 12 items, of which 10 are sent again after `take` was called."""
    writer.add(helpers.rows(0, 2))
    writer.flush()
    wait_until(lambda: int(reader.size()) == 2)
    line.hold()
    writer.add(helpers.rows(2, 12))
    writer.cut()  # sends what there is
    wait_until(lambda: int(reader.size()) == 12)
    first = take()
    line.cut()
    writer.flush()
    return first


@pytest.mark.slow
def test_a_queue_gives_again_what_was_sent_again_and_it_is_counted(two_ends):
    writer, reader, line = two_ends("fifo")
    batches = reader.batches(reader.dataset(4))

    def take():
        return [next(batches).obs for _ in range(3)]

    first = send_again(writer, reader, line, take)
    assert reader.duplicates_sampled == 0
    writer.add(helpers.rows(12, 18))
    writer.flush()
    drawn = np.concatenate([*first, *(next(batches).obs for _ in range(4))])[:, 0]
    assert len(set(drawn.tolist())) == writer.items_created == 18
    assert reader.duplicates_sampled == 28 - 18 <= MOST_PENDING
    assert writer.duplicates_sampled == writer.connection.reconnections == 0


@pytest.mark.slow
def test_two_replicas_count_what_either_of_them_gets(two_ends):
    writer, reader, line = two_ends("fifo")
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    batches = reader.batches(reader.distributed_dataset(strategy, 4))
    send_again(writer, reader, line, lambda: [next(batches) for _ in range(3)])
    assert reader.duplicates_sampled == 0
    writer.add(helpers.rows(12, 14))
    writer.flush()
    again = [next(batches) for _ in range(3)]
    drawn = [strategy.experimental_local_results(batch) for batch in again]
    assert [[len(part.obs) for part in parts] for parts in drawn] == [[2, 2]] * 3
    assert reader.duplicates_sampled == 10


def test_sample_counts_too(two_ends):
    writer, reader, line = two_ends("lifo")
    send_again(writer, reader, line, lambda: reader.sample(None, 12))
    count = int(reader.size())
    assert 1 <= count <= 10
    reader.sample(None, count)
    assert reader.duplicates_sampled == count


def test_a_table_that_keeps_items_has_each_once(two_ends):
    # With a limiter, though one that never stops anybody, `cut` does not wait for answers.
    limits = {"samples_per_insert": 1.0, "tolerance": 1e6}
    writer, reader, line = two_ends("uniform", **limits)
    send_again(writer, reader, line, lambda: reader.sample(None, 12))
    assert int(reader.size()) == writer.items_created == 12
    reader.sample(None, 12)
    assert reader.duplicates_sampled == 0


@pytest.mark.parametrize(("kind", "num_envs", "most"), [("fifo", 2, 60), ("uniform", 2, 0)])
def test_every_outage_that_was_seen_may_have_doubled_all_that_may_be_pending(kind, num_envs, most):
    buffer = helpers.maker(num_envs=num_envs, kind=kind).init()
    streams = helpers.streams("SAME_STEP", num_envs, 20)
    buffer.add(helpers.oracle.trajectory(streams, 0, 10))
    buffer.flush()
    with mock.patch.object(type(buffer.connection), "reconnections", 3, create=True):
        buffer.size()
        buffer.size()
    assert buffer.items_created == 20
    assert buffer.possible_duplicates == most
    buffer.close()


def test_restoring_is_no_repetition(tmp_path):
    buffer = helpers.maker(num_envs=1, kind="fifo").init()
    buffer.add(helpers.rows(0, 8))
    buffer.flush()
    buffer.save(str(tmp_path / "saved"))
    before = buffer.sample(None, 8).obs
    buffer.restore(str(tmp_path / "saved"))
    np.testing.assert_array_equal(buffer.sample(None, 8).obs, before)
    assert buffer.duplicates_sampled == 0
    buffer.close()


def test_a_window_of_keys():
    duplicates = Duplicates(window=3)
    duplicates.note(tf.constant([1, 2, 3, 2], tf.int64))
    assert duplicates.count == 1
    duplicates.note(tf.constant([4], tf.int64))  # 1 is forgotten
    duplicates.note(tf.constant([1, 4], tf.int64))
    assert duplicates.count == 2
    duplicates.forget()
    duplicates.note(tf.constant([1, 4], tf.int64))
    assert duplicates.count == 2


def test_datasets_that_give_each_item_once():
    duplicates = Duplicates()
    one, other = tf.data.Dataset.range(4), tf.data.Dataset.range(4)
    duplicates.add_dataset(one)
    assert duplicates.counts(one.take(2).prefetch(1))
    assert not duplicates.counts(other) and not duplicates.counts([1, 2])
