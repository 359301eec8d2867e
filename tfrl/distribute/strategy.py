"""Makes the tf.distribute strategy of a run."""

import os
from collections.abc import Callable
from typing import cast

import tensorflow as tf

from tfrl.distribute import choice, devices, multi_worker, tpu_system, workers
from tfrl.errors import UserError


def make_strategy(
    name: str = "auto",
    *,
    tpu: str | None = None,
    num_logical_cpus: int = 1,
    startup_seconds: float = 300.0,
    log: Callable[[str], None] | None = None,
) -> tf.distribute.Strategy:
    """Makes a strategy; the first thing that a program does with TensorFlow.

    What is asked for and not there is an error, never a silent CPU. `auto` takes, in this order, a
    TPU if an address is given, all workers if TF_CONFIG names several, the logical CPUs if the CPU
    is split, the GPUs if there are several, else one device.

    Args:
      name: One of `auto`, `one_device`, `mirrored`, `multi_worker`, `tpu`.
      tpu: Name of the TPU, `grpc://host:port`, or `local`; by default what TPUClusterResolver
        reads in the environment.
      num_logical_cpus: Splits the CPU into so many devices, for `mirrored` without hardware.
      startup_seconds: How long to wait for other workers, or for a TPU's address to answer.
      log: Takes lines about what is waited for; none by default.

    Returns:
      The strategy.

    Raises:
      UserError: The devices, addresses or workers are not there, or arguments do not go together.
    """
    chosen = choice.choose(name, tpu=tpu, num_logical_cpus=num_logical_cpus)
    if chosen == "tpu":
        return tpu_system.tpu_strategy(tpu, startup_seconds)
    if chosen == "multi_worker":
        # choose() has refused an environment without them.
        found = cast(workers.Workers, workers.from_tf_config(os.environ))
        return multi_worker.multi_worker_strategy(found, startup_seconds, log)
    devices.make_logical_cpus(num_logical_cpus)
    if chosen == "mirrored" or (chosen == "auto" and _several()):
        return tf.distribute.MirroredStrategy(_mirrored_devices())
    return tf.distribute.OneDeviceStrategy("/GPU:0" if devices.num_gpus() else "/CPU:0")


def describe(strategy: tf.distribute.Strategy) -> str:
    """Returns one line about a strategy: its kind, replicas, devices and workers.

    Args:
      strategy: The strategy; TensorFlow's default one too.
    """
    group = workers.workers_of(strategy)
    if tf.distribute.has_strategy() or strategy is not tf.distribute.get_strategy():
        names = [name.rpartition("device:")[2] for name in strategy.extended.worker_devices]
    else:  # TensorFlow's default strategy does not tell
        names = ["GPU:0" if devices.num_gpus() else "CPU:0"]
    line = f"{_kind(strategy)}, {_count(strategy.num_replicas_in_sync, 'replica')}"
    if isinstance(strategy, tf.distribute.TPUStrategy):
        hosts = {name.rpartition("/device:")[0] for name in strategy.extended.worker_devices}
        return f"{line} on {_count(len(hosts), 'host')} of a TPU"
    line = f"{line} on {', '.join(names)}"
    if group.count > 1:
        role = " and the chief" if group.is_chief else ""
        line += f" of each of {group.count} workers; this is {group.name(group.index)}{role}"
    return line


def _several() -> bool:
    return devices.num_cpus() > 1 or devices.num_gpus() > 1


def _mirrored_devices() -> list[str]:
    """Returns the devices to mirror over: a split CPU's, since splitting asks for it, or GPUs."""
    if devices.num_cpus() > 1:
        return [f"/CPU:{i}" for i in range(devices.num_cpus())]
    if devices.num_gpus():
        return [f"/GPU:{i}" for i in range(devices.num_gpus())]
    raise UserError(
        "--strategy=mirrored",
        expected="a GPU, or a CPU split into several devices",
        got=devices.found(),
        remedy="Add --num_logical_cpus=2 to try it on the CPU, or leave --strategy out.",
    )


def _kind(strategy: tf.distribute.Strategy) -> str:
    kinds = {
        tf.distribute.MirroredStrategy: "mirrored",
        tf.distribute.MultiWorkerMirroredStrategy: "multi_worker",
        tf.distribute.TPUStrategy: "tpu",
        tf.distribute.OneDeviceStrategy: "one_device",
    }
    for kind, name in kinds.items():
        if isinstance(strategy, kind):
            return name
    return "one_device" if strategy.num_replicas_in_sync == 1 else type(strategy).__name__


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' * (number != 1)}"
