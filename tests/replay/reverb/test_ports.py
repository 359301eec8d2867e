"""Who reaches a server: this machine alone, unless told otherwise; and what is seen of others."""

import contextlib
import os
import shutil
import subprocess
import sys

import numpy as np
import pytest
import reverb

from tests.replay.reverb.helpers import maker
from tests.replay.reverb.server_runs import tables
from tfrl.errors import UserError
from tfrl.replay.reverb import buffer as buffer_lib
from tfrl.replay.reverb import server as server_lib
from tfrl.replay.reverb.server import ReverbServer
from tfrl.types import Trajectory

# Addresses of the test's own two namespaces.
HERE, THERE = "10.213.7.1", "10.213.7.2"
_CONNECT = """
import socket, sys
try:
    socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=2).close()
    print("reached")
except OSError as error:
    print("refused")
"""


def _ip(*words):
    subprocess.run(["ip", *words], check=True, capture_output=True)


@contextlib.contextmanager
def other_network():
    """A network namespace beside this one; yields what runs a program there."""
    name, link = f"tfrl{os.getpid()}", f"tf{os.getpid()}"
    if shutil.which("ip") is None or os.geteuid():
        pytest.skip("needs the rights and the program `ip` to make a network namespace")
    try:
        _ip("netns", "add", name)
    except subprocess.CalledProcessError as error:
        pytest.skip(f"no network namespace can be made here: {error.stderr.decode().strip()}")
    try:
        _ip("link", "add", link, "type", "veth", "peer", "name", f"{link}p")
        _ip("link", "set", f"{link}p", "netns", name)
        _ip("addr", "add", f"{HERE}/24", "dev", link)
        _ip("link", "set", link, "up")
        _ip("-n", name, "addr", "add", f"{THERE}/24", "dev", f"{link}p")
        _ip("-n", name, "link", "set", f"{link}p", "up")
        yield ["ip", "netns", "exec", name]
    except subprocess.CalledProcessError as error:
        pytest.skip(f"no veth pair can be made here: {error.stderr.decode().strip()}")
    finally:
        subprocess.run(["ip", "link", "del", link], capture_output=True)
        subprocess.run(["ip", "netns", "del", name], capture_output=True)


def reaches(prefix, address, port):
    words = [*prefix, sys.executable, "-c", _CONNECT, address, str(port)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=20)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip() == "reached"


def test_only_this_machine_reaches_a_server_unless_told_otherwise():
    with other_network() as there:
        own, open_to_all = ReverbServer(tables()), ReverbServer(tables(), bind="0.0.0.0")
        try:
            assert not reaches(there, HERE, own.port)
            assert reaches(there, HERE, open_to_all.port)
            assert reaches([], "127.0.0.1", own.port) and reaches([], "localhost", own.port)
            assert reverb.Client(own.address).server_info(timeout=5)
        finally:
            own.stop()
            open_to_all.stop()


def test_every_listening_socket_is_bound_to_the_loopback_device():
    import socket

    server = ReverbServer(tables())
    try:
        found = list(server_lib._listening(server.port))
        assert found
        for descriptor in found:
            with socket.socket(fileno=os.dup(descriptor)) as listener:
                device = listener.getsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, 16)
                assert device.rstrip(b"\0") == b"lo"
    finally:
        server.stop()


def test_a_system_that_does_not_allow_it(monkeypatch):
    def refuse(port):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(server_lib, "_listening", refuse)
    with pytest.raises(UserError) as error:
        ReverbServer(tables())
    assert "got operation not permitted. Linux allows it from 5.7 on." in str(error.value)
    with pytest.raises(UserError, match="bind of the Reverb server: expected one of 127.0.0.1"):
        ReverbServer(tables(), bind="localhost")


def _steps(count):
    zeros = np.zeros([count, 2], np.float32)
    false = np.zeros([count, 2], bool)
    return Trajectory(
        obs=zeros[..., None],
        action=np.zeros([count, 2], np.int64),
        reward=zeros,
        next_obs=zeros[..., None],
        termination=false,
        truncation=false,
        valid=~false,
        policy_extras=None,
        env_extras=None,
    )


def test_a_table_that_somebody_else_empties_is_noticed(monkeypatch):
    monkeypatch.setattr(buffer_lib, "_LOOK_SECONDS", 0.0)
    buffer = maker().init()
    try:
        buffer.add(_steps(10))
        buffer.flush()
        assert int(buffer.size()) == 20
        buffer.add(_steps(1))
        reverb.Client(buffer.address).reset("replay")
        with pytest.raises(UserError) as error:
            for _ in range(3):
                buffer.add(_steps(1))
                buffer.flush()
        assert "table 'replay' of the Reverb server at localhost:" in str(error.value)
        assert "another program emptied it or deleted items" in str(error.value)
    finally:
        buffer.close()


def test_a_restarted_server_is_not_taken_for_an_emptied_table(monkeypatch):
    """It may answer before the heartbeat has noticed that it is back."""
    monkeypatch.setattr(buffer_lib, "_LOOK_SECONDS", 0.0)
    buffer = maker().init()
    connection = buffer.connection
    monkeypatch.setattr(connection, "probe", lambda: setattr(connection, "reconnections", 1))
    try:
        buffer.add(_steps(10))
        buffer.flush()
        buffer.add(_steps(1))
        reverb.Client(buffer.address).reset("replay")
        for _ in range(3):
            buffer.add(_steps(1))
            buffer.flush()
        assert connection.reconnections == 1
        assert int(buffer.size()) < 20
    finally:
        buffer.close()


def test_what_killed_processes_left_is_removed(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    left = [tmp_path / f"tfrl-reverb-{dead.pid}-x", tmp_path / f"tfrl-reverb-{os.getpid()}-y"]
    for folder in left:
        folder.mkdir()
    server = ReverbServer(tables())
    server.stop()
    assert [folder.exists() for folder in left] == [False, True]
    assert [p.name for p in tmp_path.iterdir()] == [left[1].name]
