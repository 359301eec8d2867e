"""Makes the tf.distribute strategy of a run, over the devices of this machine or a TPU."""

import os
import re
import time
from collections.abc import Callable
from typing import cast

import tensorflow as tf

from tfrl import checks
from tfrl.distribute import choice, multi_worker, workers
from tfrl.distribute.multi_worker import first_line
from tfrl.errors import UserError


def num_gpus() -> int:
    """Returns how many GPUs TensorFlow can use."""
    return len(tf.config.list_physical_devices("GPU"))


def num_cpus() -> int:
    """Returns into how many devices the CPU is split; does not start TensorFlow's devices."""
    cpu = tf.config.list_physical_devices("CPU")[0]
    return len(tf.config.get_logical_device_configuration(cpu) or [None])


def found_devices() -> str:
    """Returns what there is, for messages: for example `1 CPU device and no GPU`."""
    cpus, gpus = num_cpus(), num_gpus()
    return f"{cpus} CPU device{'s' * (cpus != 1)} and {gpus or 'no'} GPU{'s' * (gpus > 1)}"


def make_logical_cpus(count: int) -> None:
    """Splits the CPU into several devices, on which strategies can be tried without hardware.

    Args:
      count: How many; 1 leaves it as it is.

    Raises:
      UserError: TensorFlow has computed already, or the CPU is split otherwise.
    """
    checks.at_least("--num_logical_cpus", count, 1)
    if count == 1 or num_cpus() == count:
        return
    cpu = tf.config.list_physical_devices("CPU")[0]
    try:
        tf.config.set_logical_device_configuration(
            cpu, [tf.config.LogicalDeviceConfiguration()] * count
        )
    except RuntimeError as error:
        raise UserError(
            f"--num_logical_cpus={count}",
            expected="to be set before TensorFlow computes anything",
            got=f"a TensorFlow that runs on {found_devices()}",
            remedy="Make the strategy first in the program.",
        ) from error


_DEFAULT_PORT = "8470"
_ADDRESS = re.compile(r"(grpc://)?(?P<host>[^/,:\s]+)(:(?P<port>\d+))?")


def tpu_strategy(tpu: str | None, seconds: float) -> tf.distribute.TPUStrategy:
    """Finds the TPU, connects, initialises it, and makes the strategy over all its cores.

    Args:
      tpu: Value of `--tpu`; by default what the environment says, else the machine's own TPU.
      seconds: How long its address may take to answer, and then the connection.

    Returns:
      The strategy.

    Raises:
      UserError: There is no TPU there; says what was looked for and found.
    """
    address, source = choice.tpu_address(tpu)
    if address is None:
        address, source = choice.LOCAL_TPU, "this machine, as neither --tpu nor TPU_NAME is given"
    address = _with_scheme(address)
    _wait_for(address, source, seconds)
    try:
        resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu=address)
    # By name it asks Google Cloud, which fails in as many ways as libraries lie below it.
    except (ValueError, RuntimeError, ImportError, OSError) as error:
        raise _no_tpu(address, source, error) from error
    try:
        with multi_worker.ends_after(seconds, _tpu_stuck(address, source, seconds)):
            tf.config.experimental_connect_to_cluster(resolver)
            tf.tpu.experimental.initialize_tpu_system(resolver)
    except (tf.errors.OpError, ValueError, RuntimeError) as error:
        raise _no_tpu(address, source, error) from error
    return tf.distribute.TPUStrategy(resolver)


def _with_scheme(address: str) -> str:
    """Puts grpc:// before `host:port`, which otherwise would count as the TPU's name."""
    parts = address.split(",")
    if all(":" in p and not p.startswith("grpc://") and _ADDRESS.fullmatch(p) for p in parts):
        return ",".join(f"grpc://{p}" for p in parts)
    return address


def _wait_for(address: str, source: str, seconds: float) -> None:
    """Checks that addresses answer: TensorFlow would wait for them without end."""
    if not address.startswith("grpc://"):
        return
    deadline = time.monotonic() + seconds
    for part in address.split(","):
        match = _ADDRESS.fullmatch(part)
        if match is None:
            raise UserError(
                f"The TPU in {source}",
                expected="grpc://host:port",
                got=f"'{part}'",
                remedy="Correct the address.",
            )
        target = f"{match['host']}:{match['port'] or _DEFAULT_PORT}"
        reason = multi_worker.refusal(target, timeout=5.0)
        while reason is not None and time.monotonic() < deadline:
            time.sleep(min(1.0, seconds))
            reason = multi_worker.refusal(target, timeout=5.0)
        if reason is not None:
            raise UserError(
                f"The TPU in {source}",
                expected=f"an answer from {target} within {seconds:g} s",
                got=reason,
                remedy="Start the TPU, correct the address, or leave it out to train without.",
            )


def _no_tpu(address: str, source: str, error: Exception) -> UserError:
    reason = first_line(error)
    return UserError(
        "--strategy=tpu",
        expected=f"a TPU at '{address}' (from {source})",
        got=f"{found_devices()}, and no TPU: {reason}",
        remedy="Give the TPU's address with --tpu, run on a machine that has one, or leave "
        "--strategy and --tpu out.",
    )


def _tpu_stuck(address: str, source: str, seconds: float) -> UserError:
    return UserError(
        f"The TPU in {source}",
        expected=f"'{address}' to be connected and initialised within {seconds:g} s",
        got="no end of the wait, though the address answers",
        remedy="Check that it is a TPU's, of the same TensorFlow version.",
    )


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
        return tpu_strategy(tpu, startup_seconds)
    if chosen == "multi_worker":
        # choose() has refused an environment without them.
        found = cast(workers.Workers, workers.from_tf_config(os.environ))
        return multi_worker.multi_worker_strategy(found, startup_seconds, log)
    make_logical_cpus(num_logical_cpus)
    if chosen == "mirrored" or (chosen == "auto" and _several()):
        return tf.distribute.MirroredStrategy(_mirrored_devices())
    return tf.distribute.OneDeviceStrategy("/GPU:0" if num_gpus() else "/CPU:0")


def describe(strategy: tf.distribute.Strategy) -> str:
    """Returns one line about a strategy: its kind, replicas, devices and workers.

    Args:
      strategy: The strategy; TensorFlow's default one too.
    """
    group = workers.workers_of(strategy)
    if tf.distribute.has_strategy() or strategy is not tf.distribute.get_strategy():
        names = [name.rpartition("device:")[2] for name in strategy.extended.worker_devices]
    else:  # TensorFlow's default strategy does not tell
        names = ["GPU:0" if num_gpus() else "CPU:0"]
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
    return num_cpus() > 1 or num_gpus() > 1


def _mirrored_devices() -> list[str]:
    """Returns the devices to mirror over: a split CPU's, since splitting asks for it, or GPUs."""
    if num_cpus() > 1:
        return [f"/CPU:{i}" for i in range(num_cpus())]
    if num_gpus():
        return [f"/GPU:{i}" for i in range(num_gpus())]
    raise UserError(
        "--strategy=mirrored",
        expected="a GPU, or a CPU split into several devices",
        got=found_devices(),
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
