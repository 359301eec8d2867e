"""Chooses the strategy by flags and environment, as far as possible without TensorFlow."""

import os
from collections.abc import Mapping

from tfrl import checks
from tfrl.distribute import workers as workers_lib
from tfrl.errors import UserError

STRATEGIES = ("auto", "one_device", "mirrored", "multi_worker", "tpu")

# Environment variables that TPUClusterResolver reads without an address, in its order.
TPU_VARIABLES = ("KUBE_GOOGLE_CLOUD_TPU_ENDPOINTS", "TPU_NAME")

# The TPU of this machine.
LOCAL_TPU = "local"


def choose(
    name: str = "auto",
    *,
    tpu: str | None = None,
    num_logical_cpus: int = 1,
    environ: Mapping[str, str] | None = None,
) -> str:
    """Returns the requested strategy.

    `auto` becomes a TPU if an address is given, several workers if TF_CONFIG names several, and
    mirrored if logical CPUs are requested. Otherwise it stays `auto`: the GPUs decide.

    Args:
      name: One of `STRATEGIES`.
      tpu: Value of `--tpu`.
      num_logical_cpus: Value of `--num_logical_cpus`.
      environ: The environment; `os.environ` if None.

    Returns:
      One of `STRATEGIES`.

    Raises:
      UserError: Contradictory flags, a malformed TF_CONFIG, or none for `multi_worker`.
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
            expected="--strategy=mirrored, which alone uses several CPU devices",
            got=why,
            remedy="Leave --num_logical_cpus out, or choose --strategy=mirrored.",
        )
    if name == "multi_worker" and workers_lib.from_tf_config(environ) is None:
        raise UserError(
            "--strategy=multi_worker",
            expected="the environment variable TF_CONFIG with the addresses of all workers",
            got="a TF_CONFIG without a cluster" if environ.get("TF_CONFIG") else "no TF_CONFIG",
            remedy="Set TF_CONFIG in every process, or leave --strategy out to train in one.",
        )
    return name


def tpu_address(
    tpu: str | None, environ: Mapping[str, str] | None = None
) -> tuple[str | None, str]:
    """Returns the TPU's address and its source; (None, "") without one.

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
        )
    if not tpu.strip():
        raise UserError(
            "--tpu",
            expected=f"a TPU's name, its address grpc://host:port, or '{LOCAL_TPU}'",
            got="an empty string",
            remedy="Pass the address, or leave --tpu out.",
        )


def _auto(tpu: str | None, num_logical_cpus: int, environ: Mapping[str, str]) -> tuple[str, str]:
    """Returns the strategy of `auto`, and the reason."""
    address, source = tpu_address(tpu, environ)
    if address is not None:
        return "tpu", f"the TPU '{address}' in {source}"
    workers = workers_lib.from_tf_config(environ)
    if workers is not None and workers.count > 1:
        return "multi_worker", f"TF_CONFIG with {workers.count} workers"
    if num_logical_cpus > 1:
        return "mirrored", f"--num_logical_cpus={num_logical_cpus}"
    return "auto", ""
