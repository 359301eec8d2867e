"""A server that dies is noticed, whatever the process waits for, and the process can end."""

import os
import signal
import socket
import threading
import time
from types import SimpleNamespace

import pytest
import reverb

from tests.replay.reverb.server_runs import (
    IN_TIME,
    block,
    blocking_calls,
    contents,
    ended,
    free_port,
    serve,
    tables,
    wait_for_line,
    wait_until,
    write,
)
from tfrl import checks
from tfrl.errors import UserError
from tfrl.replay.reverb import connection as connection_lib
from tfrl.replay.reverb.cancellable_call import ServerLostError
from tfrl.replay.reverb.connection import Connection, await_server
from tfrl.replay.reverb.server import ReverbServer

NOTICED = 10.0
GONE = 5.0


@pytest.fixture(autouse=True)
def _left_behind(monkeypatch):
    """Collects what is left behind, so that pytest's own end is not bounded."""
    left = []
    monkeypatch.setattr(connection_lib, "leave_behind", lambda *things: left.extend(things))
    return left


@pytest.fixture(name="server")
def fixture_server():
    server = ReverbServer(tables())
    yield server
    server.stop()


@pytest.fixture(name="connect")
def fixture_connect():
    """Makes connections that ask often, and closes them."""
    made = []

    def connect(address, **options):
        made.append(Connection(address, **{"heartbeat": 0.2, **options}))
        return made[-1]

    yield connect
    for connection in made:
        connection.close()


def threads(name):
    return [t for t in threading.enumerate() if t.name == name]


def test_calls_go_through(server, connect):
    connection = connect(server.address)
    write(connection.client, [1, 2])
    assert connection.guard(lambda: contents(connection.client), "sampling") == {1, 2}
    assert sorted(connection.server_info()) == ["data", "empty", "full"]
    assert connection.server_info()["data"].current_size == 2
    with pytest.raises(ZeroDivisionError):
        connection.guard(lambda: 1 / 0, "dividing")
    with pytest.raises(StopIteration):
        connection.guard(lambda: next(iter(())), "reading")
    with pytest.raises(UserError, match="^mine: "):
        connection.guard(_raises_user_error, "reading")
    connection.check()
    assert (connection.lost, connection.reconnections) == (False, 0)


def _raises_user_error():
    raise UserError("mine", expected="a", got="b", remedy="c.")


def test_threads_are_used_again_and_end(server, connect):
    before = len(threads("reverb-call"))
    connection = connect(server.address)
    assert [connection.guard(lambda i=i: i, "counting") for i in range(50)] == list(range(50))
    assert len(threads("reverb-call")) == before + 1
    assert connection.guard(lambda: connection.guard(lambda: 3, "inner"), "outer") == 3
    assert len(threads("reverb-call")) == before + 2
    connection.close()
    connection.close()
    wait_until(lambda: len(threads("reverb-call")) == before)
    wait_until(lambda: not threads("reverb-heartbeat"))


def test_a_signal_ends_a_call_that_waits(server, connect, _left_behind):
    connection = connect(server.address)
    blocking = blocking_calls(connection.client, server.address)["sample"]
    # Processes that run tests side by side may ignore the signal.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        threading.Timer(0.3, os.kill, [os.getpid(), signal.SIGINT]).start()
        with pytest.raises(KeyboardInterrupt):
            connection.guard(blocking, "sampling")
    finally:
        signal.signal(signal.SIGINT, before)
    assert [call.fn for call in _left_behind] == [blocking]


def test_a_call_that_takes_too_long(server, connect, _left_behind):
    """The server is there, and the limiter of an empty table blocks."""
    connection = connect(server.address)
    blocking = blocking_calls(connection.client, server.address)["sample"]
    with pytest.raises(UserError, match="an answer within 0.6 s, needed for sampling, got"):
        connection.guard(blocking, "sampling", 0.6)
    assert [call.fn for call in _left_behind] == [blocking]
    assert not connection.lost


class ToldToEndError(Exception):
    pass


def test_a_call_ends_when_told_to_while_the_server_does_not_answer(server, connect, monkeypatch):
    connection, never = connect(server.address), threading.Event()

    def end():
        raise ToldToEndError

    connection.on_wait = end
    assert connection.guard(lambda: never.wait(0.6), "waiting") is False  # the server answers
    monkeypatch.setattr(connection_lib.Heartbeat, "busy", True)
    with pytest.raises(ToldToEndError):
        connection.guard(never.wait, "publishing parameters")


def test_nobody_listens(connect):
    port = free_port()
    began = time.monotonic()
    with pytest.raises(UserError) as error:
        connect(f"localhost:{port}", timeout=1.5)
    assert 1.2 < time.monotonic() - began < NOTICED
    assert str(error.value) == (
        f"Reverb server at localhost:{port}: expected a server that answers within 1.5 s, got "
        "connection refused. Start tfrl-reverb-server with the same gin file, and pass the "
        "address that it prints."
    )


def test_somebody_else_listens(connect):
    with socket.socket() as other:
        other.bind(("localhost", 0))
        other.listen()
        with pytest.raises(UserError, match="got a process at this address that does not answer"):
            connect(f"localhost:{other.getsockname()[1]}", timeout=1.0)


@pytest.mark.parametrize("log", [None, lambda line: None])
def test_a_signal_is_handled_while_somebody_else_listens(log):
    """Python handles signals between two calls in C++, which are short."""
    timeouts = []

    def server_info(timeout):
        timeouts.append(timeout)
        if len(timeouts) == 3:
            raise KeyboardInterrupt
        raise RuntimeError("Deadline Exceeded")

    with socket.socket() as other:
        other.bind(("localhost", 0))
        other.listen()
        address = f"localhost:{other.getsockname()[1]}"
        with pytest.raises(KeyboardInterrupt):
            await_server(address, SimpleNamespace(server_info=server_info), 600.0, log)
    assert timeouts == [2, 2, 2]


@pytest.mark.slow
def test_it_is_said_at_once_that_a_server_is_waited_for():
    port = free_port()
    address, lines = f"localhost:{port}", []

    def log(text):
        lines.append((time.monotonic() - began, text))

    began = time.monotonic()
    with pytest.raises(UserError, match="answers within 1 s, got connection refused"):
        await_server(address, reverb.Client(address), 1.0, log)
    ((after, text),) = lines
    assert text == f"Waiting up to 1 s for the replay server at {address}: connection refused."
    assert after < 0.9
    with ended(serve(port)):
        info = await_server(address, reverb.Client(address), IN_TIME, log)
        assert sorted(info) == ["data", "empty", "full"]
        assert len(lines) == 2  # it was not there yet
        await_server(address, reverb.Client(address), IN_TIME, log)
        assert len(lines) == 2


@pytest.mark.parametrize(
    "address", ["localhost", "localhost:", ":1", "a:0", "a:65536", "a:b", "a:1,b:2", None]
)
def test_addresses(address):
    with pytest.raises(UserError) as error:
        checks.address(address)
    assert str(error.value) == (
        "The address of a Reverb server: expected host:port, for example localhost:8000, got "
        f"{address!r}. tfrl-reverb-server prints it when it serves."
    )


def test_numbers():
    for name in ("timeout", "heartbeat", "reconnect_seconds"):
        for value in (0, -1.0, True, "5", float("inf"), float("nan")):
            with pytest.raises(UserError, match=f"^Connection's {name}: expected a number above 0"):
                Connection("localhost:1", **{name: value})


def test_a_server_that_stops(server, connect, _left_behind):
    connection = connect(server.address)
    kept, dropped = connection.keep(object()), connection.keep(object())
    connection.release(dropped)
    never = threading.Event()
    threading.Timer(0.3, server.stop).start()
    began = time.monotonic()
    with pytest.raises(ServerLostError) as error:
        connection.guard(never.wait, "waiting for nothing")
    assert time.monotonic() - began < NOTICED
    assert str(error.value) == (
        f"Reverb server at {server.address}: expected a running server, needed for waiting for "
        "nothing, got connection refused. Restart the server with its own command (it restores "
        "its last checkpoint), then this program with the same command."
    )
    assert any(kept in thing for thing in _left_behind if isinstance(thing, list))
    assert not any(dropped in thing for thing in _left_behind if isinstance(thing, list))
    assert connection.lost
    for call in (connection.check, connection.server_info):
        with pytest.raises(ServerLostError, match=f"^Reverb server at {server.address}: "):
            call()
    # For good: whoever comes later has other experience.
    again = ReverbServer(tables(), port=server.port)
    time.sleep(0.5)
    with pytest.raises(ServerLostError):
        connection.guard(never.wait, "waiting")
    again.stop()


def test_a_call_that_fails_because_the_server_has_gone(server, connect):
    connection = connect(server.address, heartbeat=3.0)
    connection.server_info()
    server.stop()
    began = time.monotonic()
    with pytest.raises(ServerLostError, match="needed for setting priorities, got "):
        connection.guard(
            lambda: connection.client.mutate_priorities("data", {1: 2.0}), "setting priorities"
        )
    assert time.monotonic() - began < NOTICED


def test_a_deadline_of_a_living_server_stays_one(server, connect):
    connection = connect(server.address)
    write(connection.client, [1], table="full")
    writer = write(connection.client, [1], table="full", confirm=False)
    with pytest.raises(reverb.errors.DeadlineExceededError):
        connection.guard(lambda: writer.flush(timeout_ms=200), "flushing")
    assert not connection.lost


def in_a_thread(call):
    """Starts a call; returns its thread and the list that will have its result."""
    results = []
    thread = threading.Thread(target=lambda: results.append(call()))
    thread.start()
    return thread, results


def is_away(connection):
    return connection._heartbeat.lost


def test_a_server_that_comes_back(server, connect):
    connection = connect(server.address, reconnect_seconds=IN_TIME)
    done = threading.Event()
    thread, results = in_a_thread(lambda: connection.guard(done.wait, "waiting"))
    server.stop()
    wait_until(lambda: is_away(connection))
    assert not connection.lost
    again = ReverbServer(tables(), port=server.port)
    connection.check()
    assert connection.reconnections == 1
    done.set()
    thread.join(IN_TIME)
    assert results == [True]
    write(connection.client, [1, 2])
    assert connection.server_info()["data"].current_size == 2
    again.stop()


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.variants(1)
def test_a_call_that_failed_meanwhile_is_made_again(server, connect, late):
    connection = connect(server.address, reconnect_seconds=IN_TIME)
    attempts, fails = [], threading.Event()

    def ask():
        attempts.append(None)
        if len(attempts) == 1:
            fails.wait()
            raise reverb.errors.DeadlineExceededError("after some seconds")
        return connection.client.server_info(timeout=20)["data"].current_size

    thread, results = in_a_thread(lambda: connection.guard(ask, "asking"))
    wait_until(lambda: attempts)
    server.stop()
    wait_until(lambda: is_away(connection))
    if not late:
        fails.set()
    again = ReverbServer(tables(), port=server.port)
    wait_until(lambda: connection.reconnections == 1)
    fails.set()
    thread.join(IN_TIME)
    assert results == [0]
    assert len(attempts) == 2
    again.stop()


def test_a_server_that_does_not_come_back_in_time(server, connect):
    connection = connect(server.address, reconnect_seconds=1.0)
    server.stop()
    began = time.monotonic()
    with pytest.raises(ServerLostError, match="got connection refused for 1 s. Restart the server"):
        connection.guard(threading.Event().wait, "waiting")
    assert 0.8 < time.monotonic() - began < NOTICED


@pytest.mark.slow
def test_a_busy_server_is_not_lost(connect):
    """As one that writes a checkpoint: its machine takes connections, and nobody answers."""
    port = free_port()
    with ended(serve(port)) as process:
        wait_for_line(process, "serving")
        connection = connect(f"localhost:{port}", timeout=1.0)
        process.send_signal(signal.SIGSTOP)
        os.waitpid(process.pid, os.WUNTRACED)  # Until its last thread has stopped.
        with pytest.raises(UserError, match="got no answer from a running server"):
            connection.server_info()
        assert not connection.lost
        process.send_signal(signal.SIGCONT)
        assert sorted(connection.server_info()) == ["data", "empty", "full"]


# Servers that are killed. This one takes over 5 seconds and earns them: it is what users see.
@pytest.mark.parametrize(
    "first",
    ["dataset", *(pytest.param(name, marks=pytest.mark.slow) for name in ("sample", "flush"))],
)
def test_a_process_that_is_blocked_when_the_server_is_killed(first, record_property):
    port = free_port()
    with ended(serve(port)) as server, ended(block(f"localhost:{port}", first)) as client:
        wait_for_line(server, "serving")
        write(reverb.Client(f"localhost:{port}"), [1, 2])
        wait_for_line(client, "blocked")
        time.sleep(0.5)
        assert client.poll() is None
        server.kill()
        killed = time.time()
        out, err = client.communicate(timeout=IN_TIME)
        gone = time.time()
    noticed = {name: float(at) - killed for name, at in map(str.split, out.splitlines())}
    assert first in noticed
    assert all(0 < seconds < NOTICED for seconds in noticed.values()), noticed
    assert gone - killed < noticed[first] + GONE
    assert client.returncode == 75, err
    assert err.startswith(f"Error: Reverb server at localhost:{port}: expected a running server")
    assert err.count("\n") == 1
    assert f"needed for {first}, got connection refused." in err
    print({**noticed, "gone": gone - killed})


@pytest.mark.slow
@pytest.mark.parametrize("name", ["dataset", "sample", "flush"])
def test_a_killed_server_that_is_started_again(name, connect, tmp_path):
    """What was confirmed before its last checkpoint is there, and what was blocked goes on."""
    port = free_port()
    address = f"localhost:{port}"
    with ended(serve(port, tmp_path)) as server:
        wait_for_line(server, "serving")
        connection = connect(address, reconnect_seconds=IN_TIME)
        write(connection.client, [1, 2, 3])
        calls = blocking_calls(connection.client, address)
        connection.client.checkpoint()
        results = []
        waiter = threading.Thread(target=lambda: results.append(connection.guard(calls[name], "")))
        waiter.start()
        time.sleep(0.5)
        server.kill()
        server.wait()
    with ended(serve(port, tmp_path)) as server:
        wait_for_line(server, "serving")
        began = time.monotonic()
        connection.check()
        assert connection.reconnections == 1
        assert contents(connection.client) == {1, 2, 3}
        # Lets go of what was blocked.
        other = reverb.Client(address)
        write(other, [5, 6], table="empty")
        next(other.sample("full", emit_timesteps=False))
        waiter.join(IN_TIME)
        assert len(results) == 1
        print(f"{name} went on {time.monotonic() - began:.1f} s after the restart")
