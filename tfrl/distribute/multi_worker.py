"""Several worker processes: a start and a loss of workers that end in a message, not in a wait."""

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import IO, cast

import tensorflow as tf

from tfrl import tf_private
from tfrl.distribute.workers import Workers, workers_of
from tfrl.errors import UserError

_RETRY_SECONDS = 0.2
_SAY_AFTER_SECONDS = 5.0


class RendezvousError(UserError):
    """The workers of a run have not met, or this one cannot listen where they look for it.

    Binaries exit with 75, "try again": one process cannot tell a wrong address from a worker that
    is started again, or a port that is taken for good from one of a worker that is just ending.
    """

    exit_code = 75


def wait_for_all(
    workers: Workers, seconds: float, log: Callable[[str], None] | None = None
) -> None:
    """Returns once every worker was reached.

    Args:
      workers: Addresses of all, and which is this process'.
      seconds: How long to wait.
      log: Takes a line if the others let it wait.

    Raises:
      RendezvousError: Workers that did not come, all by name; or this worker's own port is taken.
    """
    started = time.monotonic()
    missing = dict.fromkeys(workers.others, "")
    logged = False
    with _Listener(workers):
        while missing:
            for place in list(missing):
                reason = refusal(workers.addresses[place], timeout=1.0)
                if reason is None:
                    del missing[place]
                else:
                    missing[place] = reason
            waited = time.monotonic() - started
            if not missing:
                break
            if waited > seconds:
                raise _never_came(workers, missing, seconds)
            if log is not None and not logged and waited > _SAY_AFTER_SECONDS:
                log(f"Waiting for {workers.names(missing)}, at most {seconds:g} s.")
                logged = True
            time.sleep(_RETRY_SECONDS)


def refusal(address: str, timeout: float) -> str | None:
    """Returns why nobody answers at `host:port`, or None if somebody does.

    Args:
      address: `host:port`.
      timeout: Seconds to wait for the connection.
    """
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout).close()
    except OSError as error:
        return _reason(error)
    return None


def _reason(error: OSError) -> str:
    # Names that are not found have numbers of their own, and a time-out has none.
    if error.errno is not None and error.errno > 0:
        return os.strerror(error.errno).lower()
    return (error.strerror or str(error) or type(error).__name__).lower()


class _Listener:
    """Accepts connections on this worker's port until it is left."""

    def __init__(self, workers: Workers):
        self._workers = workers

    def __enter__(self) -> "_Listener":
        address = self._workers.addresses[self._workers.index]
        try:
            port = int(address.rpartition(":")[2])
            self._socket = socket.create_server(("", port), backlog=128)
        except OSError as error:
            raise RendezvousError(
                f"TF_CONFIG, {self._workers.name(self._workers.index)}",
                expected="a free port for this worker",
                got=_reason(error),
                remedy="Give every process its own task index, end what uses the port, or choose "
                "another in all processes.",
            ) from error
        self._socket.settimeout(_RETRY_SECONDS)
        self._leaving = threading.Event()
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._leaving.set()
        self._thread.join()
        self._socket.close()

    def _accept(self) -> None:
        while not self._leaving.is_set():
            try:
                self._socket.accept()[0].close()
            except TimeoutError:
                continue
            except OSError:  # a caller that hung up at once; the next may be all right
                self._leaving.wait(_RETRY_SECONDS)


def _never_came(workers: Workers, missing: dict[int, str], seconds: float) -> RendezvousError:
    what = ", ".join(f"{workers.name(i)}: {missing[i]}" for i in sorted(missing))
    return RendezvousError(
        "TF_CONFIG",
        expected=f"all {workers.count} workers to come within {seconds:g} s",
        got=f"no answer from {what}",
        remedy="Start the missing workers, or correct their addresses.",
    )


# Waits until its standard input closes: then the call came back, or this process is gone.
_WATCHDOG = """
import os, select, signal, sys
seconds, pid, message = float(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
if not select.select([0], [], [], seconds)[0]:
    sys.stderr.write(message)
    sys.stderr.flush()
    os.kill(pid, signal.SIGKILL)
"""


@contextlib.contextmanager
def ends_after(seconds: float, error: UserError) -> Iterator[None]:
    """Kills this process, with a message, if the body takes longer than `seconds`.

    Args:
      seconds: How long the body may take.
      error: What standard error then says.

    Yields:
      Nothing.
    """
    command = [sys.executable, "-I", "-S", "-c", _WATCHDOG, str(seconds), str(os.getpid())]
    with subprocess.Popen([*command, f"Error: {error}\n"], stdin=subprocess.PIPE) as process:
        line = cast(IO[bytes], process.stdin)  # it was asked for
        try:
            yield
        finally:
            line.close()


# Kinds of error that a lost worker causes and nothing else does, and kinds that need a second look.
_ALWAYS = (tf.errors.UnavailableError, tf.errors.AbortedError)
_PERHAPS = (
    tf.errors.CancelledError,
    tf.errors.DeadlineExceededError,
    tf.errors.FailedPreconditionError,
    tf.errors.InternalError,
    tf.errors.UnknownError,
)
_SIGNS = ("collective", "heartbeat", "remote target", "coordination service", "/job:")
_TASK = re.compile(r"/job:(?P<job>\w+)/(?:replica:\d+/)?task:(?P<index>\d+)")
# Lines of a message that tell where in the graph, and what stands before what happened.
_PLACES = ("Graph execution error", "Detected at ", "File ", "[[{{", "Additional GRPC")
_ABORTED = "Collective ops is aborted by: "
_REMEDY = (
    "Start all workers again with the same command: the run goes on from its last complete "
    "checkpoint."
)


class WorkerLostError(UserError):
    """Another process of the run is gone, so this one cannot go on either.

    Binaries print it like any `UserError`, as one paragraph. Their exit code is 75, "try again",
    since nobody has made a mistake.
    """

    exit_code = 75


@contextlib.contextmanager
def lost_workers(strategy: tf.distribute.Strategy | None = None) -> Iterator[None]:
    """Turns the errors of a lost worker into a `WorkerLostError`; all others pass.

    Args:
      strategy: The strategy; without several workers nothing is changed.

    Yields:
      Nothing.

    Raises:
      WorkerLostError: A worker was lost in the body.
    """
    workers = workers_of(strategy)
    try:
        yield
    except tf.errors.OpError as error:
        lost = translate(error, workers)
        if lost is None:
            raise
        raise lost from error


def translate(error: tf.errors.OpError, workers: Workers) -> WorkerLostError | None:
    """Returns the message about a lost worker, or None if the error tells of something else.

    Args:
      error: What TensorFlow raised.
      workers: All workers and which this one is.
    """
    if workers.count == 1:
        return None
    signs = any(sign in str(error).lower() for sign in _SIGNS)
    if not isinstance(error, _ALWAYS) and not (isinstance(error, _PERHAPS) and signs):
        return None
    missing = lost_places(str(error), workers)
    names = workers.names(missing)
    return WorkerLostError(
        names[0].upper() + names[1:] if missing else "A worker",
        expected="every worker to answer until the run ends",
        got=f"a lost connection ({first_line(error)})" if missing else first_line(error),
        remedy=_REMEDY,
    )


def lost_places(message: str, workers: Workers) -> set[int]:
    """Returns the places of the workers that are gone.

    Those whose heartbeat TensorFlow missed, and those that refuse a connection; if none is found
    like this, those that the message names.
    """
    places = {task: place for place, task in enumerate(workers.tasks)}
    named = {places.get((m["job"], int(m["index"]))) for m in _TASK.finditer(message)}
    others = {place for place in named if place is not None and place != workers.index}
    silent = others if "heartbeat timeout" in message else set()
    refusing = {
        place
        for place in workers.others
        if refusal(workers.addresses[place], timeout=0.5) is not None
    }
    return silent | refusing or others


def first_line(error: Exception) -> str:
    """Returns the one line of a TensorFlow error that tells what happened."""
    text = str(getattr(error, "message", None) or error)
    lines = [line.strip() for line in text.splitlines()]
    telling = [line for line in lines if line and not line.startswith(_PLACES)]
    if not telling:
        return type(error).__name__
    line = telling[0].removeprefix(_ABORTED).rstrip(".")
    return f"{line[:197]}..." if len(line) > 200 else line


def multi_worker_strategy(
    workers: Workers, startup_seconds: float, log: Callable[[str], None] | None = None
) -> tf.distribute.MultiWorkerMirroredStrategy:
    """Meets the other workers and makes the strategy.

    Reductions go in a ring, over gRPC between CPUs, and over NCCL between GPUs. A worker that dies
    or stops answering is noticed by TensorFlow's coordination service: 10 s without a heartbeat.

    Args:
      workers: All workers and which this one is.
      startup_seconds: How long each of the two steps of the start may take.
      log: Takes a line if the others let it wait.

    Returns:
      The strategy.

    Raises:
      RendezvousError: Workers that did not come, or a port in use.
      UserError: A TensorFlow that computed before.
    """
    if tf_private.has_started():
        raise UserError(
            "--strategy=multi_worker",
            expected="to be made before TensorFlow computes anything",
            got="a TensorFlow that has computed",
            remedy="Make the strategy first in the program.",
        )
    wait_for_all(workers, startup_seconds, log)
    job, index = workers.tasks[workers.index]
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
        tf.train.ClusterSpec(workers.cluster()), task_type=job, task_id=index, rpc_layer="grpc"
    )
    kinds = tf.distribute.experimental.CommunicationImplementation
    gpus = tf.config.list_physical_devices("GPU")
    options = tf.distribute.experimental.CommunicationOptions(
        implementation=kinds.AUTO if gpus else kinds.RING
    )
    handler = signal.getsignal(signal.SIGTERM)
    try:
        with ends_after(startup_seconds, _no_group(workers, startup_seconds)):
            strategy = tf.distribute.MultiWorkerMirroredStrategy(resolver, options)
    except tf.errors.OpError as error:
        raise WorkerLostError(
            f"TF_CONFIG, {workers.name(workers.index)}",
            expected="the workers to form a group",
            got=first_line(error),
            remedy="Perhaps a worker of an earlier start still runs: end them all, then start "
            "them again with the same command.",
        ) from error
    # TensorFlow's coordination service takes SIGTERM for itself and then does nothing.
    if handler is not None and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, handler)
    return strategy


def _no_group(workers: Workers, seconds: float) -> UserError:
    return UserError(
        f"TF_CONFIG, {workers.name(workers.index)}",
        expected=f"the {workers.count} workers to form a group within {seconds:g} s",
        got=f"no end of the wait for {workers.names(workers.others)}, all of which had answered",
        remedy="One of them ended or hangs: see its output, and start all again.",
    )
