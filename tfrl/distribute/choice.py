"""What the flags and the environment ask for, as far as that is known without TensorFlow."""

import os
from collections.abc import Mapping

from tfrl import checks
from tfrl.distribute import workers as workers_lib
from tfrl.errors import UserError

STRATEGIES = ("auto", "one_device", "mirrored", "multi_worker", "tpu")

# Where TPUClusterResolver looks when it is given no address, in its order.
TPU_VARIABLES = ("KUBE_GOOGLE_CLOUD_TPU_ENDPOINTS", "TPU_NAME")

# The TPU of the machine that the program runs on.
LOCAL_TPU = "local"


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
    checks.one_of("--strategy", name, STRATEGIES)
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
