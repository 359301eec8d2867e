"""Servers and clients in processes of their own, which tests may kill."""

import contextlib
import socket
import subprocess
import sys
import time

import numpy as np
import reverb
import tensorflow as tf

IN_TIME = 90.0
SIGNATURE = {"x": tf.TensorSpec([None, 3], tf.float32)}

# Tables: `data` has items, `empty` never has, and `full` takes one item and no second.
_SERVER = """
import sys
from tests.replay.reverb import server_runs
from tfrl.replay.reverb.server import ReverbServer
port, folder = sys.argv[1:]
server = ReverbServer(server_runs.tables(), port=int(port), checkpoint_dir=folder or None)
print("serving", flush=True)
sys.stdin.read()
"""


# Blocks in a sample, a dataset's read and a writer's flush at once, `first` in the main thread, and
# ends as binaries do. Everything that it used is still there then, a prefetched dataset too.
_CLIENT = """
import sys, threading, time
from tests.replay.reverb import server_runs
from tfrl.errors import UserError
from tfrl.launch import app
from tfrl.replay.reverb.connection import Connection

def blocked(connection, call, name):
    try:
        connection.guard(call, name)
    except UserError:
        sys.stdout.write(f"{name} {time.time()}\\n")
        sys.stdout.flush()
        if name == sys.argv[2]:
            raise

def main():
    connection = Connection(sys.argv[1], timeout=60.0)
    running = connection.keep(server_runs.dataset(sys.argv[1], "data"))
    next(running)
    calls = server_runs.blocking_calls(connection.client, sys.argv[1])
    for name, call in calls.items():
        if name != sys.argv[2]:
            threading.Thread(target=blocked, args=(connection, call, name), daemon=True).start()
    threading.Timer(0.5, print, ["blocked"], {"flush": True}).start()
    blocked(connection, calls[sys.argv[2]], sys.argv[2])

app.run(main, argv=["client"])
"""


def tables(**changes):
    """The tables of the tests' servers; `changes` are those of `data`."""
    options = dict(
        sampler=reverb.selectors.Prioritized(0.6),
        remover=reverb.selectors.Fifo(),
        max_size=100,
        rate_limiter=reverb.rate_limiters.MinSize(2),
        signature=SIGNATURE,
    )
    return [
        reverb.Table("data", **{**options, **changes}),
        reverb.Table.queue("empty", 10, signature=SIGNATURE),
        reverb.Table.queue("full", 1, signature=SIGNATURE),
    ]


def free_port():
    with socket.socket() as probe:
        probe.bind(("", 0))
        return probe.getsockname()[1]


def write(client, values, table="data", confirm=True):
    """Writes one item a value, with the value as its priority."""
    writer = client.trajectory_writer(1)
    for value in values:
        writer.append({"x": np.full([3], value, np.float32)})
        writer.create_item(table, float(value), {"x": writer.history["x"][-1:]})
        if confirm:
            writer.flush(timeout_ms=20_000)
    return writer


def contents(client, table="data", num=64):
    """The values that sampling finds."""
    return {float(s.data["x"][0][0]) for s in samples(client, table, num)}


def samples(client, table, num):
    options = dict(emit_timesteps=False, unpack_as_table_signature=True)
    return client.sample(table, num_samples=num, **options)


def dataset(address, table):
    options = dict(max_in_flight_samples_per_worker=2, num_workers_per_iterator=1)
    made = reverb.TrajectoryDataset.from_table_signature(address, table, **options)
    return iter(made.batch(2).prefetch(2))


def blocking_calls(client, address):
    """Calls that block as long as the server lives."""
    writer = write(client, [1], table="full")

    def flush():
        writer.append({"x": np.zeros(3, np.float32)})
        writer.create_item("full", 1.0, {"x": writer.history["x"][-1:]})
        writer.flush()

    iterator = dataset(address, "empty")
    return {
        "sample": lambda: next(samples(client, "empty", 1)),
        "dataset": lambda: next(iterator),
        "flush": flush,
    }


def start(code, *args):
    return subprocess.Popen(
        [sys.executable, "-c", code, *map(str, args)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@contextlib.contextmanager
def ended(process):
    """Leaves no process behind, whatever the test finds."""
    try:
        yield process
    finally:
        process.kill()
        process.communicate(timeout=IN_TIME)


def serve(port, folder=""):
    """Starts a server with the tests' tables; `wait_for_line` tells when it serves."""
    return start(_SERVER, port, folder)


def block(address, first):
    """Starts a client that blocks; `wait_for_line` tells when it does."""
    return start(_CLIENT, address, first)


def wait_for_line(process, wanted):
    line = process.stdout.readline().strip()
    assert line == wanted, (line, process.poll() is not None and process.stderr.read())


def wait_until(condition, seconds=IN_TIME):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "not in time"
        time.sleep(0.02)
