import pickle
import socket
import threading

import numpy as np
import pytest

from tfrl.envs.workers.channel import ChildChannel, PoolChannel


@pytest.fixture(name="ends")
def fixture_ends():
    ours, theirs = socket.socketpair()
    pool, child = PoolChannel(ours), ChildChannel(theirs)
    yield pool, child, theirs
    pool.close()
    child.close()


def test_messages_arrive_whole_and_in_order(ends):
    pool, child, _ = ends
    for i in range(5):
        pool.post((i, "x" * i))
        child.send({"number": i})
    assert [child.receive() for _ in range(5)] == [(i, "x" * i) for i in range(5)]
    assert pool.read() == [{"number": i} for i in range(5)]
    assert pool.read() == [] and not pool.broken


def test_arrays_can_be_written_to(ends):
    pool, child, _ = ends
    sent = np.arange(100_000, dtype=np.int16).reshape(100, 1000)
    sender = threading.Thread(target=child.send, args=[sent])
    sender.start()
    got = []
    while not got:
        got = pool.read()
    sender.join()
    np.testing.assert_array_equal(got[0], sent)
    got[0][:] = 0


def test_half_a_message_waits_for_the_other_half(ends):
    pool, _, theirs = ends
    data = pickle.dumps("whole", 5)
    frame = len(data).to_bytes(8, "big") + data
    for byte in frame[:-1]:
        theirs.sendall(bytes([byte]))
        assert pool.read() == []
    theirs.sendall(frame[-1:] + frame[:3])
    assert pool.read() == ["whole"]
    theirs.sendall(frame[3:])
    assert pool.read() == ["whole"]


def test_the_pool_does_not_wait_for_who_does_not_read(ends):
    pool, child, _ = ends
    large = bytes(3_000_000)
    pool.post(large)
    pool.post("after")
    assert pool.unsent
    got = []
    receiver = threading.Thread(target=lambda: got.extend(child.receive() for _ in range(2)))
    receiver.start()
    while pool.unsent:
        pool.flush()
    receiver.join(10)
    assert got == [large, "after"]


def test_the_child_sees_that_something_waits(ends):
    pool, child, _ = ends
    assert not child.waiting()
    pool.post(1)
    assert child.waiting() and child.receive() == 1 and not child.waiting()
    pool.close()
    assert child.waiting()
    with pytest.raises(EOFError, match="the pool closed the connection"):
        child.receive()
    with pytest.raises(ConnectionError):
        child.send(1)


def test_what_was_sent_before_the_end_is_still_read(ends):
    pool, child, theirs = ends
    pool.post("never read, so that the end is a reset of the connection")
    child.send("last words")
    theirs.sendall((100).to_bytes(8, "big") + b"half a message")
    child.close()
    assert pool.read() == ["last words"]
    assert pool.read() == [] and pool.broken
    pool.post("into the void")
    assert not pool.unsent


def test_what_cannot_be_pickled_is_not_sent_in_part(ends):
    pool, child, _ = ends
    with pytest.raises((AttributeError, pickle.PicklingError), match="lambda"):
        child.send((1, lambda: 0))
    child.send(2)
    assert pool.read() == [2]
