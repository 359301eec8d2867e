"""Says which worker was lost, where TensorFlow tells of sockets and collectives."""

import contextlib
import re
from collections.abc import Iterator

import tensorflow as tf

from tfrl.distribute import rendezvous
from tfrl.distribute.workers import Workers, workers_of
from tfrl.errors import UserError

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

    Binaries print it like any `UserError`: one paragraph, exit code 2.
    """


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
        if rendezvous.refusal(workers.addresses[place], timeout=0.5) is not None
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
