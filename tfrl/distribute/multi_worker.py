"""Several worker processes: a failed start or a lost worker raises an error instead of waiting."""

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
from tfrl.errors import UnavailableError, UserError

_RETRY_SECONDS = 0.2
_SAY_AFTER_SECONDS = 5.0


class RendezvousError(UnavailableError):
    """The workers of a run have not connected, or this worker cannot listen at its address.

    A port in use may be that of a worker that is just ending.
    """


def wait_for_all(
    workers: Workers, seconds: float, log: Callable[[str], None] | None = None
) -> None:
    """Waits until every worker has been reached.

    Args:
      workers: The addresses of all workers, and the index of this process.
      seconds: Seconds to wait.
      log: Takes a line if it has to wait.

    Raises:
      RendezvousError: For missing workers, with all names; or if this worker's port is in use.
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
    """Returns why no process accepts connections at `host:port`, or None if one does.

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
    # Unknown host names have other error numbers, and a timeout has none.
    if error.errno is not None and error.errno > 0:
        return os.strerror(error.errno).lower()
    return (error.strerror or str(error) or type(error).__name__).lower()


class _Listener:
    """Accepts connections on this worker's port within the context."""

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
                remedy="Set a different task index in every process, free the port, or choose "
                "another port in all processes.",
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
            except OSError:  # a caller that closed at once; accepts the next
                self._leaving.wait(_RETRY_SECONDS)


def _never_came(workers: Workers, missing: dict[int, str], seconds: float) -> RendezvousError:
    what = ", ".join(f"{workers.name(i)}: {missing[i]}" for i in sorted(missing))
    return RendezvousError(
        "TF_CONFIG",
        expected=f"all {workers.count} workers to connect within {seconds:g} s",
        got=f"no answer from {what}",
        remedy="Start the missing workers, or correct their addresses.",
    )


# Waits until its standard input closes: the call has returned, or this process has ended.
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
      seconds: The timeout of the body.
      error: The message for standard error.

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


# Errors that only a lost worker causes, and errors whose message must be checked too.
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
# Lines of a message about places in the graph; and a prefix of the reason.
_PLACES = ("Graph execution error", "Detected at ", "File ", "[[{{", "Additional GRPC")
_ABORTED = "Collective ops is aborted by: "
_REMEDY = "Restart all workers with the same command to resume from the last complete checkpoint."


class WorkerLostError(UnavailableError):
    """Another worker of the run is lost, so this process cannot continue."""


@contextlib.contextmanager
def lost_workers(strategy: tf.distribute.Strategy | None = None) -> Iterator[None]:
    """Turns errors of a lost worker into a `WorkerLostError`; other errors pass unchanged.

    Args:
      strategy: The strategy; no effect unless it has several workers.

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
    """Returns the error for a lost worker, or None if TensorFlow's error has another cause.

    Args:
      error: TensorFlow's error.
      workers: All workers, and the index of this process.
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
    """Returns the indices of the lost workers.

    A worker is lost if TensorFlow misses its heartbeat or it refuses a connection. If there is none
    of these, the workers that the message names count as lost.
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
    """Returns the line of a TensorFlow error with the reason."""
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
    """Waits for the other workers and creates the strategy.

    Reductions use a ring, over gRPC between CPUs, and over NCCL between GPUs. TensorFlow's
    coordination service notices a lost worker after 10 s without a heartbeat.

    Args:
      workers: All workers, and the index of this process.
      startup_seconds: The timeout of each of the two steps of the start.
      log: Takes a line if it has to wait.

    Returns:
      The strategy.

    Raises:
      RendezvousError: For missing workers, or a port in use.
      UserError: TensorFlow has already started.
    """
    if tf_private.has_started():
        raise UserError(
            "--strategy=multi_worker",
            expected="creation before TensorFlow runs any operation",
            got="an initialized TensorFlow runtime",
            remedy="Create the strategy at the start of the program.",
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
            remedy="End all workers, including any from an earlier start, then restart "
            "them with the same command.",
        ) from error
    # TensorFlow's coordination service replaces the handler of SIGTERM and then ignores the signal.
    if handler is not None and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, handler)
    return strategy


def _no_group(workers: Workers, seconds: float) -> UnavailableError:
    return RendezvousError(
        f"TF_CONFIG, {workers.name(workers.index)}",
        expected=f"the {workers.count} workers to form a group within {seconds:g} s",
        got=f"a timeout for {workers.names(workers.others)}, all of which had answered",
        remedy="Check the output for a worker that ended or hangs, and restart all workers.",
    )
