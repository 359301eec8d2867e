"""Creates the tf.distribute strategy of a run, over the devices of this machine or a TPU."""

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
    """Returns the number of GPUs that TensorFlow can use."""
    return len(tf.config.list_physical_devices("GPU"))


def num_cpus() -> int:
    """Returns the number of logical CPU devices; does not start TensorFlow's devices."""
    cpu = tf.config.list_physical_devices("CPU")[0]
    return len(tf.config.get_logical_device_configuration(cpu) or [None])


def found_devices() -> str:
    """Describes the devices for messages, for example `1 CPU device and no GPU`."""
    cpus, gpus = num_cpus(), num_gpus()
    return f"{cpus} CPU device{'s' * (cpus != 1)} and {gpus or 'no'} GPU{'s' * (gpus > 1)}"


def make_logical_cpus(count: int) -> None:
    """Splits the CPU into several logical devices, to try strategies without hardware.

    Args:
      count: The number of devices; 1 has no effect.

    Raises:
      UserError: TensorFlow has already started, or the CPU is split into another number.
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
            expected="a setting before TensorFlow runs any operation",
            got=f"a TensorFlow that runs on {found_devices()}",
            remedy="Create the strategy at the start of the program.",
        ) from error


_DEFAULT_PORT = "8470"
_ADDRESS = re.compile(r"(grpc://)?(?P<host>[^/,:\s]+)(:(?P<port>\d+))?")


def tpu_strategy(tpu: str | None, seconds: float) -> tf.distribute.TPUStrategy:
    """Finds the TPU, connects, initialises it, and creates the strategy over all its cores.

    Args:
      tpu: Value of `--tpu`; by default the environment's address, else this machine's TPU.
      seconds: The timeout of an answer at its address, and then of the connection.

    Returns:
      The strategy.

    Raises:
      UserError: There is no TPU; it names the address and the devices found.
    """
    address, source = choice.tpu_address(tpu)
    if address is None:
        address, source = choice.LOCAL_TPU, "this machine, as neither --tpu nor TPU_NAME is given"
    address = _with_scheme(address)
    _wait_for(address, source, seconds)
    try:
        resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu=address)
    # A lookup by name asks Google Cloud, whose libraries raise various errors.
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
    """Puts grpc:// before `host:port`, which otherwise would be read as a TPU name."""
    parts = address.split(",")
    if all(":" in p and not p.startswith("grpc://") and _ADDRESS.fullmatch(p) for p in parts):
        return ",".join(f"grpc://{p}" for p in parts)
    return address


def _wait_for(address: str, source: str, seconds: float) -> None:
    """Checks that addresses answer, since TensorFlow would wait for them forever."""
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
                remedy="Start the TPU, correct the address, or leave it out to train without a "
                "TPU.",
            )


def _no_tpu(address: str, source: str, error: Exception) -> UserError:
    reason = first_line(error)
    return UserError(
        "--strategy=tpu",
        expected=f"a TPU at '{address}' (from {source})",
        got=f"{found_devices()}, and no TPU: {reason}",
        remedy="Pass the TPU's address with --tpu, run on a machine with a TPU, or leave "
        "--strategy and --tpu out.",
    )


def _tpu_stuck(address: str, source: str, seconds: float) -> UserError:
    return UserError(
        f"The TPU in {source}",
        expected=f"a connection to '{address}' and its initialization within {seconds:g} s",
        got="a timeout, although the address answers",
        remedy="Check that the address is a TPU's, with the same TensorFlow version.",
    )


def make_strategy(
    name: str = "auto",
    *,
    tpu: str | None = None,
    num_logical_cpus: int = 1,
    startup_seconds: float = 300.0,
    log: Callable[[str], None] | None = None,
) -> tf.distribute.Strategy:
    """Creates a strategy; call it before any other use of TensorFlow.

    A missing device is an error, never a silent fallback to the CPU. `auto` chooses, in this order,
    a TPU if an address is given, all workers if TF_CONFIG names several, the logical CPUs if the
    CPU is split, the GPUs if there are several, else one device.

    Args:
      name: One of `auto`, `one_device`, `mirrored`, `multi_worker`, `tpu`.
      tpu: Name of the TPU, `grpc://host:port`, or `local`; by default the address that
        TPUClusterResolver reads in the environment.
      num_logical_cpus: The number of logical CPU devices, for `mirrored` without hardware.
      startup_seconds: Seconds to wait for other workers, or for a TPU's address to answer.
      log: Takes lines about waiting; None for no output.

    Returns:
      The strategy.

    Raises:
      UserError: Devices, addresses or workers are missing, or arguments contradict each other.
    """
    chosen = choice.choose(name, tpu=tpu, num_logical_cpus=num_logical_cpus)
    if chosen == "tpu":
        return tpu_strategy(tpu, startup_seconds)
    if chosen == "multi_worker":
        # choose() has rejected an environment without workers.
        result = cast(workers.Workers, workers.from_tf_config(os.environ))
        return multi_worker.multi_worker_strategy(result, startup_seconds, log)
    make_logical_cpus(num_logical_cpus)
    if chosen == "mirrored" or (chosen == "auto" and _several()):
        return tf.distribute.MirroredStrategy(_mirrored_devices())
    return tf.distribute.OneDeviceStrategy("/GPU:0" if num_gpus() else "/CPU:0")


def describe(strategy: tf.distribute.Strategy) -> str:
    """Returns one line about a strategy: its kind, replicas, devices and workers.

    Args:
      strategy: The strategy; also TensorFlow's default strategy.
    """
    group = workers.workers_of(strategy)
    if tf.distribute.has_strategy() or strategy is not tf.distribute.get_strategy():
        names = [name.rpartition("device:")[2] for name in strategy.extended.worker_devices]
    else:  # TensorFlow's default strategy has no list of devices
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
    """Returns the devices to mirror over: the logical CPUs of a split CPU, or the GPUs."""
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
