"""Makes the tf.distribute strategy of a run."""

import os
from collections.abc import Callable, Mapping
from typing import cast

import tensorflow as tf

from tfrl.distribute import multi_worker, tpu_system, workers
from tfrl.distribute import workers as workers_lib
from tfrl.errors import UserError, did_you_mean

STRATEGIES = ("auto", "one_device", "mirrored", "multi_worker", "tpu")

# Where TPUClusterResolver looks when it is given no address, in its order.
TPU_VARIABLES = ("KUBE_GOOGLE_CLOUD_TPU_ENDPOINTS", "TPU_NAME")

# The TPU of the machine that the program runs on.
LOCAL_TPU = "local"


def num_gpus() -> int:
    """Returns how many GPUs TensorFlow can use."""
    return len(tf.config.list_physical_devices("GPU"))


def num_cpus() -> int:
    """Returns into how many devices the CPU is split; does not start TensorFlow's devices."""
    cpu = tf.config.list_physical_devices("CPU")[0]
    return len(tf.config.get_logical_device_configuration(cpu) or [None])


def found() -> str:
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
    if count < 1:
        raise UserError(
            "--num_logical_cpus", expected="at least 1", got=str(count), remedy="Correct the flag."
        )
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
            got=f"a TensorFlow that runs on {found()}",
            remedy="Make the strategy first in the program.",
        ) from error


def choose(
    name: str = "auto",
    *,
    tpu: str | None = None,
    num_logical_cpus: int = 1,
    environ: Mapping[str, str] | None = None,
) -> str:
    """Returns the strategy that is asked for.

    `auto` is a TPU where an address is given, several workers where TF_CONFIG names several,
    mirrored where logical CPUs are asked for. Otherwise it stays `auto`: the GPUs decide.

    Args:
      name: One of `STRATEGIES`.
      tpu: Value of `--tpu`.
      num_logical_cpus: Value of `--num_logical_cpus`.
      environ: The environment; `os.environ` if None.

    Returns:
      One of `STRATEGIES`.

    Raises:
      UserError: Flags that do not go together, a malformed TF_CONFIG, or none for `multi_worker`.
    """
    environ = os.environ if environ is None else environ
    if name not in STRATEGIES:
        raise UserError(
            "--strategy",
            expected=f"one of {', '.join(STRATEGIES)}",
            got=f"'{name}'",
            remedy=did_you_mean(name, STRATEGIES),
        )
    _check_tpu(name, tpu)
    if name == "auto":
        name, why = _auto(tpu, num_logical_cpus, environ)
    else:
        why = f"--strategy={name}"
    if num_logical_cpus > 1 and name not in ("auto", "mirrored"):
        raise UserError(
            f"--num_logical_cpus={num_logical_cpus}",
            expected="--strategy=mirrored, the one that uses several CPU devices",
            got=why,
            remedy="Leave --num_logical_cpus out, or choose --strategy=mirrored.",
        )
    if name == "multi_worker" and workers_lib.from_tf_config(environ) is None:
        raise UserError(
            "--strategy=multi_worker",
            expected="the variable TF_CONFIG with the addresses of all workers",
            got="no cluster in it" if environ.get("TF_CONFIG") else "none",
            remedy="Set TF_CONFIG in every process, or leave --strategy out to train in one.",
        )
    return name


def tpu_address(
    tpu: str | None, environ: Mapping[str, str] | None = None
) -> tuple[str | None, str]:
    """Returns the TPU's address and where it comes from; (None, "") if there is none.

    Args:
      tpu: Value of `--tpu`.
      environ: The environment; `os.environ` if None.
    """
    environ = os.environ if environ is None else environ
    if tpu is not None:
        return tpu, "--tpu"
    for variable in TPU_VARIABLES:
        if environ.get(variable):
            return environ[variable], variable
    return None, ""


def _check_tpu(name: str, tpu: str | None) -> None:
    if tpu is None:
        return
    if name not in ("auto", "tpu"):
        raise UserError(
            "--tpu",
            expected=f"no TPU with --strategy={name}",
            got=f"'{tpu}'",
            remedy="Leave one of the two out.",
        )
    if not tpu.strip():
        raise UserError(
            "--tpu",
            expected=f"a TPU's name, its address grpc://host:port, or '{LOCAL_TPU}'",
            got="an empty one",
            remedy="Give the address, or leave --tpu out.",
        )


def _auto(tpu: str | None, num_logical_cpus: int, environ: Mapping[str, str]) -> tuple[str, str]:
    """Returns what `auto` stands for, and why."""
    address, source = tpu_address(tpu, environ)
    if address is not None:
        return "tpu", f"the TPU '{address}' in {source}"
    workers = workers_lib.from_tf_config(environ)
    if workers is not None and workers.count > 1:
        return "multi_worker", f"TF_CONFIG with {workers.count} workers"
    if num_logical_cpus > 1:
        return "mirrored", f"--num_logical_cpus={num_logical_cpus}"
    return "auto", ""


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
    chosen = choose(name, tpu=tpu, num_logical_cpus=num_logical_cpus)
    if chosen == "tpu":
        return tpu_system.tpu_strategy(tpu, startup_seconds)
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
        got=found(),
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
