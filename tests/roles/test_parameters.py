"""Parameters that travel through a table of Reverb, to and from TF-Agents' class."""

import threading
import time

import numpy as np
import pytest
import tensorflow as tf
from tf_agents.experimental.distributed import reverb_variable_container

from tfrl import struct
from tfrl.errors import UserError
from tfrl.replay.reverb.library import reverb
from tfrl.replay.reverb.server import ReverbServer
from tfrl.roles import parameters

FORM = {"net": [tf.zeros([2, 3]), tf.zeros([3])], "count": tf.constant(0, tf.int64)}


def filled(value):
    return tf.nest.map_structure(lambda x: tf.cast(tf.fill(x.shape, value), x.dtype), FORM)


@pytest.fixture(name="server", scope="module")
def fixture_server():
    server = ReverbServer([parameters.make_table(FORM)])
    yield server
    server.stop()


@pytest.fixture(name="client")
def fixture_client(server):
    client = reverb().Client(server.address)
    client.reset(parameters.TABLE)
    return client


def subscribe(server, form=FORM, wait_seconds=5.0, log=print):
    connection = parameters.connect(server.address, wait_seconds, log)
    return parameters.Subscriber(
        connection, form, pull_seconds=0.02, wait_seconds=wait_seconds, log=log
    )


def test_what_is_published_is_read(server, client):
    state = {
        "net": [tf.random.normal([2, 3]), tf.Variable([1.0, 2.0, 3.0])],
        "count": tf.constant(7, tf.int64),
    }
    parameters.publish(client, parameters.Published(filled(0), 10, 20, False, 30))
    subscriber = subscribe(server)
    assert not subscriber.finished
    parameters.publish(client, parameters.Published(state, 11, 22, True, 33))
    got = subscriber.pull()
    while not subscriber.finished:
        time.sleep(0.01)
    subscriber.close()
    assert (got.learner_steps, got.env_steps, got.finished, got.request) == (11, 22, True, 33)
    for path, x in struct.paths(got.agent_state).items():
        np.testing.assert_array_equal(x, struct.paths(state)[path])


def test_tf_agents_reads_what_we_publish(server, client):
    parameters.publish(client, parameters.Published(filled(3), 5, 9, False))
    pulled = reverb_variable_container.ReverbVariableContainer(server.address).pull()
    assert pulled["train_step"] == 5
    np.testing.assert_array_equal(pulled["policy_variables"]["net/0"], np.full([2, 3], 3.0))
    assert set(pulled["policy_variables"]) == {"count", "net/0", "net/1"}


def test_we_read_what_tf_agents_pushes(server, client):
    parameters.publish(client, parameters.Published(filled(1), 1, 0, False))
    container = reverb_variable_container.ReverbVariableContainer(server.address)
    nest = container.pull()
    nest = {**nest, "train_step": tf.constant(8, tf.int64)}
    nest["policy_variables"] = {
        k: v + tf.cast(4, v.dtype) for k, v in nest["policy_variables"].items()
    }
    container.push(nest)
    subscriber = subscribe(server)
    got = subscriber.newest()
    subscriber.close()
    assert got.learner_steps == 8
    np.testing.assert_array_equal(got.agent_state["net"][1], np.full([3], 5.0))


def test_the_newest_comes_in_the_background_and_once_when_asked(server, client):
    parameters.publish(client, parameters.Published(filled(1), 1, 0, False))
    subscriber = subscribe(server)
    assert subscriber.pull().learner_steps == 1
    assert subscriber.pull() is None
    parameters.publish(client, parameters.Published(filled(2), 2, 0, False))
    assert subscriber.pull().learner_steps == 2
    while subscriber.newest().learner_steps != 2:
        pass
    subscriber.close()


def test_a_refresh_reads_at_once_and_does_not_wait_for_a_learner(server, client):
    parameters.publish(client, parameters.Published(filled(1), 1, 0, False))
    connection = parameters.connect(server.address, 5.0, print)
    subscriber = parameters.Subscriber(
        connection, FORM, pull_seconds=60.0, wait_seconds=5.0, log=print
    )
    parameters.publish(client, parameters.Published(filled(2), 2, 0, False))
    assert subscriber.newest().learner_steps == 1
    newest = subscriber.refresh(list)
    assert newest.learner_steps == 2 and subscriber.newest() is newest
    assert subscriber.refresh(list) is newest  # equal parameters are not read again
    client.reset(parameters.TABLE)  # as after a restart
    began = time.monotonic()
    assert subscriber.refresh(list) is newest and subscriber.pull() is None
    assert time.monotonic() - began < 2.0
    parameters.publish(client, parameters.Published(filled(3), 3, 0, False))
    assert subscriber.refresh(list).learner_steps == 3
    subscriber.close()


class ToldToEndError(Exception):
    pass


def test_a_refresh_ends_when_told_to(server, client, monkeypatch):
    parameters.publish(client, parameters.Published(filled(1), 1, 0, False))
    subscriber = subscribe(server)
    goes_on = threading.Event()
    connection = subscriber._connection  # to a server that does not answer
    monkeypatch.setattr(connection, "table_counts", lambda: goes_on.wait(10.0) and {})

    def end():
        raise ToldToEndError

    with pytest.raises(ToldToEndError):
        subscriber.refresh(end)
    subscriber._ending.set()
    goes_on.set()
    subscriber.close()


def test_without_a_learner_it_ends_and_says_so(server, client):
    with pytest.raises(UserError, match="a learner that publishes them within 0.3 s"):
        subscribe(server, wait_seconds=0.3)


def test_after_the_end_of_a_run_it_waits_for_the_next_learner(server, client):
    connection, lines = parameters.connect(server.address, 5.0, print), []
    assert not parameters.has_ended(connection)
    parameters.publish(client, parameters.Published(filled(1), 9, 0, True))
    assert parameters.has_ended(connection)
    with pytest.raises(UserError, match="within 0.3 s, got only those of a run that has ended."):
        subscribe(server, wait_seconds=0.3, log=lines.append)
    assert lines == [
        f"The run of the server at {server.address} has ended: waiting up to 0.3 s for the learner "
        "of the next one."
    ]
    following = parameters.Published(filled(2), 0, 0, False)
    threading.Timer(0.3, parameters.publish, [client, following]).start()
    subscriber = subscribe(server)
    assert subscriber.newest().learner_steps == 0 and not parameters.has_ended(connection)
    subscriber.close()
    client.reset(parameters.TABLE)
    ended = parameters.Published(filled(1), 9, 0, True)  # a learner that has nothing to train
    threading.Timer(0.3, parameters.publish, [client, ended]).start()
    subscriber = subscribe(server)
    assert subscriber.finished
    subscriber.close()
    connection.close()


def test_another_agent_is_refused_by_the_leaf(server, client):
    form = {**FORM, "net": [tf.zeros([2, 4]), tf.zeros([3])]}
    with pytest.raises(UserError, match=r"net/0: expected float32 \[2, 4\], got float32 \[2, 3\]"):
        subscribe(server, form)


def test_another_server_is_refused():
    table = reverb().Table.queue("replay", 1, signature=tf.TensorSpec([], tf.float32))
    server = ReverbServer([table])
    with pytest.raises(
        UserError, match="expected the table 'variables', got tables replay.*--num_collectors=N"
    ):
        parameters.connect(server.address, 1.0, print)
    server.stop()


def test_a_publication_that_was_abandoned_does_not_share_its_stream(server, client):
    publisher = parameters.Publisher(client)
    publisher.publish(parameters.Published(filled(1), 1, 0, False))
    stream, inside, goes_on = publisher._writer, threading.Event(), threading.Event()

    class Blocked:
        def __getattr__(self, name):
            inside.set()
            goes_on.wait(20.0)
            return getattr(stream, name)

    publisher._writer = Blocked()
    late = parameters.Published(filled(2), 2, 0, False)
    thread = threading.Thread(target=publisher.publish, args=[late])
    thread.start()
    assert inside.wait(20.0)
    publisher.publish(parameters.Published(filled(3), 3, 0, False))
    assert subscribe(server).newest().learner_steps == 3
    goes_on.set()
    thread.join(20.0)
    publisher.close()


def test_a_stream_of_before_an_outage_is_replaced(server, client):
    publisher = parameters.Publisher(client)
    closed = []

    class Broken:
        Close = closed.append

        def Append(self, _):  # noqa: N802
            raise RuntimeError("Error when confirming that all items written to table.")

    publisher._writer = Broken()
    publisher.publish(parameters.Published(filled(4), 4, 0, False))
    assert subscribe(server).newest().learner_steps == 4 and closed == [False]
    publisher.close()


def test_a_state_is_read_in_one_call():
    reader = parameters.AgentStateReader()
    state = {"a": tf.Variable([[1.0, 2.0]]), "b": tf.Variable(3, dtype=tf.int64)}
    state["c"] = tf.Variable(0.0)
    for number in (1.0, 5.0, 7.0, 8.0):
        if number == 7.0:
            state["c"] = tf.Variable(0.0)  # of another learner
        state["c"].assign(number)
        read = reader.arrays(state)
        assert read["a"].tolist() == [[1.0, 2.0]] and read["a"].dtype == np.float32
        assert (read["b"], read["c"]) == (3, number) and read["b"].dtype == np.int64
    with tf.distribute.MirroredStrategy(["CPU:0"]).scope():
        several = {"x": tf.Variable([1.0, 2.0])}
    assert reader.arrays(several)["x"].tolist() == [1.0, 2.0]
    assert reader.arrays({"x": tf.constant(2.0)})["x"] == 2.0
