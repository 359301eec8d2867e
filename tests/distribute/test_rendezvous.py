import socket
import threading
import time

import pytest

from tests.distribute import processes
from tfrl.distribute import multi_worker
from tfrl.distribute.workers import Workers
from tfrl.errors import UserError


def group(ports, index):
    tasks = tuple(("worker", i) for i in range(len(ports)))
    return Workers(tasks, tuple(f"127.0.0.1:{p}" for p in ports), index)


def test_workers_meet_in_any_order():
    ports = processes.free_ports(3)
    came = []
    all_came = threading.Barrier(3)

    def worker(index):
        time.sleep(0.3 * (2 - index))
        multi_worker.wait_for_all(group(ports, index), 30.0)
        came.append(index)
        # TensorFlow's server takes the address over: the others may still be looking for it.
        server = socket.create_server(("127.0.0.1", ports[index]))
        all_came.wait(30.0)
        server.close()

    threads = [threading.Thread(target=worker, args=(i,)) for i in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(40.0)
    assert sorted(came) == [0, 1, 2]


def test_names_every_worker_that_did_not_come():
    ports = processes.free_ports(3)
    said = []
    started = time.monotonic()
    with pytest.raises(UserError) as error:
        multi_worker.wait_for_all(group(ports, 1), 0.5, said.append)
    assert time.monotonic() - started < 5.0
    assert str(error.value) == (
        "TF_CONFIG: expected all 3 workers to connect within 0.5 s, got no answer from "
        f"worker 0 (127.0.0.1:{ports[0]}): connection refused, "
        f"worker 2 (127.0.0.1:{ports[2]}): connection refused. "
        "Start the missing workers, or correct their addresses."
    )
    assert not said  # only a longer wait is worth a line
    assert error.value.exit_code == 75  # it may come to the next start


def test_tells_of_a_long_wait(monkeypatch):
    monkeypatch.setattr(multi_worker, "_SAY_AFTER_SECONDS", 0.1)
    said = []
    ports = processes.free_ports(2)
    with pytest.raises(UserError):
        multi_worker.wait_for_all(group(ports, 0), 1.0, said.append)
    assert said == [f"Waiting for worker 1 (127.0.0.1:{ports[1]}), at most 1 s."]


def test_a_name_that_does_not_exist():
    own = processes.free_ports(1)[0]
    workers = Workers((("worker", 0), ("worker", 1)), (f"127.0.0.1:{own}", "no.such.host:1"), 0)
    with pytest.raises(UserError, match=r"worker 1 \(no.such.host:1\): .*(name|resolution|known)"):
        multi_worker.wait_for_all(workers, 0.2)


def test_a_port_in_use():
    with socket.create_server(("127.0.0.1", 0)) as server:
        ports = [server.getsockname()[1], processes.free_ports(1)[0]]
        with pytest.raises(UserError) as error:
            multi_worker.wait_for_all(group(ports, 0), 5.0)
    assert str(error.value).startswith(
        f"TF_CONFIG, worker 0 (127.0.0.1:{ports[0]}): expected a free port for this worker, got "
        "address already in use. Set a different task index"
    )
    assert error.value.exit_code == 75  # it may be of a worker that is just ending


def test_the_port_is_free_afterwards():
    ports = processes.free_ports(1)
    multi_worker.wait_for_all(group(ports, 0), 1.0)
    with socket.create_server(("127.0.0.1", ports[0])) as server:
        assert server.getsockname()[1] == ports[0]
