"""Starts MultiWorkerMirroredStrategy so that a missing worker is a message, not a wait."""

import signal
import threading
from collections.abc import Callable

import tensorflow as tf

# TensorFlow has no public way to ask whether its devices have started.
from tensorflow.python.eager import context

from tfrl.distribute import rendezvous, watchdog
from tfrl.distribute.failures import WorkerLostError, first_line
from tfrl.distribute.workers import Workers
from tfrl.errors import UserError


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
      UserError: Workers that did not come, a port in use, or a TensorFlow that computed before.
    """
    if context.context()._context_handle is not None:
        raise UserError(
            "--strategy=multi_worker",
            expected="to be made before TensorFlow computes anything",
            got="a TensorFlow that has computed",
            remedy="Make the strategy first in the program.",
        )
    rendezvous.wait_for_all(workers, startup_seconds, log)
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
        with watchdog.ends_after(startup_seconds, _stuck(workers, startup_seconds)):
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


def _stuck(workers: Workers, seconds: float) -> UserError:
    return UserError(
        f"TF_CONFIG, {workers.name(workers.index)}",
        expected=f"the {workers.count} workers to form a group within {seconds:g} s",
        got=f"no end of the wait for {workers.names(workers.others)}, all of which had answered",
        remedy="One of them ended or hangs: see its output, and start all again.",
    )
