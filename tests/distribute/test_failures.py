import contextlib
import dataclasses
import signal
import socket

import pytest
import tensorflow as tf

from tests.distribute import processes
from tfrl.distribute import WorkerLostError, lost_workers, make_strategy, multi_worker
from tfrl.distribute.workers import Workers
from tfrl.errors import UserError

# What TensorFlow 2.15 said when a process was killed.
HEARTBEAT = """Graph execution error:

Detected at node CollectiveReduceV2 defined at (most recent call last):
  File "train.py", line 26, in <module>

Collective ops is aborted by: Error reported from /job:worker/task:1: Task \
/job:worker/replica:0/task:1 heartbeat timeout. This indicates that the remote task has failed.
The error could be from a previous operation. Restart your program to reset.
\t [[{{node CollectiveReduceV2}}]] [Op:__inference_step_35]"""
RESET = """Collective ops is aborted by: Connection reset by peer
Additional GRPC error information from remote target /job:worker/replica:0/task:0 while calling"""


STOPPED = """Collective ops is aborted by: Deadline Exceeded
Additional GRPC error information from remote target /job:worker/replica:0/task:0 while calling \
/tensorflow.CoordinationService/Heartbeat:"""


@pytest.fixture(name="listening")
def fixture_listening():
    """Three workers that answer; this is worker 0."""
    servers = [socket.create_server(("127.0.0.1", 0)) for _ in range(3)]
    addresses = tuple(f"127.0.0.1:{s.getsockname()[1]}" for s in servers)
    workers = Workers(tuple(("worker", i) for i in range(3)), addresses, 0)
    yield workers, servers
    for server in servers:
        server.close()


def op_error(kind, message):
    return getattr(tf.errors, kind)(None, None, message)


def test_a_missed_heartbeat_names_the_worker(listening):
    workers, _ = listening
    error = multi_worker.translate(op_error("UnavailableError", HEARTBEAT), workers)
    assert isinstance(error, UserError)
    assert str(error) == (
        f"Worker 1 ({workers.addresses[1]}): expected every worker to answer until the run ends, "
        "got a lost connection (Error reported from /job:worker/task:1: Task "
        "/job:worker/replica:0/task:1 heartbeat timeout. This indicates that the remote task has "
        "failed). Restart all workers with the same command to resume from the last complete "
        "checkpoint."
    )


def test_who_refuses_a_connection_is_lost(listening):
    workers, servers = listening
    servers[1].close()
    servers[2].close()
    error = multi_worker.translate(op_error("UnavailableError", "Socket closed"), workers)
    assert error.thing == (f"Worker 1 ({workers.addresses[1]}), worker 2 ({workers.addresses[2]})")


def test_a_named_worker_that_answers_again_is_named(listening):
    workers, _ = listening
    message = RESET.replace("task:0", "task:2")
    assert multi_worker.lost_places(message, workers) == {2}
    assert multi_worker.lost_places("Socket closed", workers) == set()
    error = multi_worker.translate(op_error("AbortedError", "Socket closed"), workers)
    assert str(error).startswith("A worker: expected every worker to answer until the run ends, go")


def test_a_stopped_worker_still_accepts_connections(listening):
    workers = dataclasses.replace(listening[0], index=2)
    error = multi_worker.translate(op_error("DeadlineExceededError", STOPPED), workers)
    assert str(error).startswith(
        f"Worker 0 ({workers.addresses[0]}): expected every worker to answer until the run ends, "
        "got a lost connection (Deadline Exceeded). Restart all"
    )


@pytest.mark.parametrize(
    ("kind", "message", "expected"),
    [
        ("UnavailableError", "any", True),
        ("AbortedError", "any", True),
        ("InternalError", "Collective ops is aborted by: x", True),
        ("InternalError", "RET_CHECK failure in the compiler", False),
        ("DeadlineExceededError", "Collective has timed out during execution.", True),
        ("DeadlineExceededError", "a queue of the user's", False),
        ("CancelledError", "[_Derived_]RecvBuf /job:worker/task:1", True),
        ("InvalidArgumentError", "Collective with wrong shapes", False),
    ],
)
def test_which_errors_are_a_lost_workers(listening, kind, message, expected):
    error = multi_worker.translate(op_error(kind, message), listening[0])
    assert (error is not None) == expected


def test_one_process_keeps_its_errors():
    assert multi_worker.translate(op_error("UnavailableError", HEARTBEAT), Workers()) is None
    with pytest.raises(tf.errors.UnavailableError), lost_workers(None):
        raise op_error("UnavailableError", "x")
    with pytest.raises(tf.errors.UnavailableError), lost_workers(make_strategy("one_device")):
        raise op_error("UnavailableError", "x")


@pytest.mark.parametrize(
    ("message", "line"),
    [
        (RESET, "Connection reset by peer"),
        ("Graph execution error:\n\nDetected at node x\n\nIt broke.\n\t [[{{node x}}]]", "It broke"),  # noqa: E501
        ("", "UnavailableError"),
        ("x" * 300, "x" * 197 + "..."),
    ],
)  # fmt: skip
def test_first_line(message, line):
    assert multi_worker.first_line(op_error("UnavailableError", message)) == line


PROGRAM = """
    import os, sys, time
    import tensorflow as tf
    from tfrl.distribute import describe, lost_workers, make_strategy
    from tfrl.errors import UserError

    who, how = int(sys.argv[1]), sys.argv[2]
    strategy = make_strategy(startup_seconds=60)
    index = strategy.cluster_resolver.task_id

    @tf.function
    def step():
        one = lambda: tf.distribute.get_replica_context().all_reduce("SUM", tf.ones([]) * 1.0)
        return strategy.run(one)

    print("sum", float(step()))
    started = time.monotonic()
    try:
        with lost_workers(strategy):
            for i in range(10**9):
                if index == who and i == 20:
                    if how == "exit":
                        sys.exit(0)
                    print("ready", flush=True)
                    time.sleep(1000)
                step()
    except UserError as error:
        print("after", time.monotonic() - started)
        print(type(error).__name__, error, file=sys.stderr)
        sys.exit(2)
"""


def check_survivor(cluster, survivor, lost, within):
    assert cluster.wait(survivor, 60.0) == 2, cluster.report()
    assert cluster.err(survivor).startswith(
        f"WorkerLostError Worker {lost} (127.0.0.1:{cluster.ports[lost]}): expected every worker "
        "to answer until the run ends, got a lost connection ("
    ), cluster.report()
    after = float(cluster.out(survivor).rpartition("after ")[2])
    assert after < within, cluster.report()


def start(stack, folder, lost, how):
    folder.mkdir()
    return stack.enter_context(processes.Cluster(PROGRAM, 2, folder, args=(lost, how))).start()


def lose(cluster, lost, how):
    if how == "exit":
        assert cluster.wait(lost) == 0, cluster.report()
        return
    cluster.wait_for(lost, "ready")
    cluster.signal(lost, {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}[how])


def test_worker_0_killed(tmp_path):
    # The others hold a connection to it, which breaks at once.
    with contextlib.ExitStack() as stack:
        cluster = start(stack, tmp_path / "kill", 0, "kill")
        lose(cluster, 0, "kill")
        check_survivor(cluster, 1, 0, 8.0)


@pytest.mark.slow
def test_worker_1_killed_stopped_or_gone(tmp_path):
    # It is missed after 10 s without a heartbeat.
    with contextlib.ExitStack() as stack:
        how = ("kill", "stop", "exit")
        clusters = {h: start(stack, tmp_path / h, 1, h) for h in how}
        for h, cluster in clusters.items():
            lose(cluster, 1, h)
        for cluster in clusters.values():
            check_survivor(cluster, 0, 1, 30.0)


def test_worker_lost_error_is_a_users_paragraph():
    assert issubclass(WorkerLostError, UserError)
