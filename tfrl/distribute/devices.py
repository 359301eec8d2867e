"""The devices of this machine: what is there, and CPUs split for trying a strategy."""

import tensorflow as tf

from tfrl.errors import UserError


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
