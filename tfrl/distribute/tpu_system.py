"""Connects to a TPU and makes its strategy. Unmeasured: written from TensorFlow's guide to TPUs.

Source: https://www.tensorflow.org/guide/tpu
"""

import re
import time

import tensorflow as tf

from tfrl.distribute import choice, devices, rendezvous, watchdog
from tfrl.distribute.failures import first_line
from tfrl.errors import UserError

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
        with watchdog.ends_after(seconds, _stuck(address, source, seconds)):
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
        reason = rendezvous.refusal(target, timeout=5.0)
        while reason is not None and time.monotonic() < deadline:
            time.sleep(min(1.0, seconds))
            reason = rendezvous.refusal(target, timeout=5.0)
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
        got=f"{devices.found()}, and no TPU: {reason}",
        remedy="Give the TPU's address with --tpu, run on a machine that has one, or leave "
        "--strategy and --tpu out.",
    )


def _stuck(address: str, source: str, seconds: float) -> UserError:
    return UserError(
        f"The TPU in {source}",
        expected=f"'{address}' to be connected and initialised within {seconds:g} s",
        got="no end of the wait, though the address answers",
        remedy="Check that it is a TPU's, of the same TensorFlow version.",
    )
