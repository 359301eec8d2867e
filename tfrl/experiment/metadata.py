"""Metadata of a run: versions, machine, seed, command; and their differences."""

import datetime
import hashlib
import importlib.metadata
import os
import pathlib
import platform
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

import tfrl
from tfrl import keras, struct
from tfrl.storage import files

_DISTRIBUTIONS = {
    "tensorflow": "tensorflow",
    "tensorflow_probability": "tensorflow-probability",
    "numpy": "numpy",
    # The Keras of tf.keras, and Keras 2: one package on TensorFlow 2.15, two after it.
    "keras": "keras",
    keras.PACKAGE: keras.PACKAGE,
    "gymnasium": "gymnasium",
}

# Facts, besides seed and configuration, that affect the bits of a result.
BIT_FACTS = (
    "versions",
    "device",
    "intra_op_threads",
    "TF_ENABLE_ONEDNN_OPTS",
    "compile_choices",
    "flags",
)


def params_digest(params: Any) -> str:
    """Returns the sha256 over the parameter bytes in sorted-name order.

    The names are the paths of `tfrl.struct.paths(params)`, sorted as Python sorts strings (by
    code point). The digest is taken over the concatenation of each leaf's values in row-major
    order, little-endian, in the leaf's own dtype; names, shapes and dtypes themselves are not
    part of it.

    Args:
      params: A nest of tensors, variables or arrays.

    Returns:
      64 lower-case hexadecimal digits.
    """
    digest = hashlib.sha256()
    for _, leaf in sorted(struct.paths(params).items()):
        array = np.asarray(leaf)
        little = array.astype(array.dtype.newbyteorder("<"), order="C", copy=False)
        digest.update(little.tobytes(order="C"))
    return digest.hexdigest()


def git_hash(package: pathlib.Path | None = None) -> str | None:
    """Returns the commit of the package's checkout, or None outside a checkout.

    `+changes` is appended if tracked files differ from the commit. A package installed inside
    another checkout (in its `.venv`) returns None.

    Args:
      package: The folder of the package; by default that of tfrl.
    """
    package = (package or pathlib.Path(tfrl.__file__).parent).resolve()
    top = _git(package, "rev-parse", "--show-toplevel")
    if top is None or pathlib.Path(top).resolve() != package.parent:
        return None
    commit = _git(package, "rev-parse", "HEAD")
    if commit is None:
        return None
    changed = _git(package, "status", "--porcelain", "--untracked-files=no")
    return f"{commit}+changes" if changed else commit


def _git(folder: pathlib.Path, *arguments: str) -> str | None:
    """The output of git, or None without git, a checkout or an answer."""
    command = ["git", "-C", str(folder), *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def versions() -> dict[str, str]:
    """Returns the versions of Python, tfrl and its main dependencies."""
    result = {"python": platform.python_version(), "tfrl": tfrl.__version__}
    for name, distribution in _DISTRIBUTIONS.items():
        try:
            result[name] = importlib.metadata.version(distribution)
        except importlib.metadata.PackageNotFoundError:
            result[name] = "not installed"
    return result


def intra_op_threads() -> int:
    """Returns the threads per op: as configured, else one per usable core."""
    configured = tf.config.threading.get_intra_op_parallelism_threads()
    return configured or asked_threads() or len(os.sched_getaffinity(0))


def asked_threads() -> int:
    """Returns TF_NUM_INTRAOP_THREADS, or 0 if unset."""
    text = os.environ.get("TF_NUM_INTRAOP_THREADS", "")
    return int(text) if text.isdecimal() else 0


def devices() -> str:
    """Returns the accelerators, or the CPU model, as one line."""
    result = tf.config.list_physical_devices("GPU") + tf.config.list_physical_devices("TPU")
    names = [
        tf.config.experimental.get_device_details(d).get("device_name", d.device_type)
        for d in result
    ]
    return ", ".join(names) if names else f"CPU {_cpu_model()}"


def _cpu_model() -> str:
    try:
        lines = pathlib.Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.machine()
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.machine()


def collect(
    *,
    seed: int,
    compile_choices: Mapping[str, str] | None = None,
    configuration: Mapping[str, Any] | None = None,
    **more: Any,
) -> dict[str, Any]:
    """Returns the metadata of a run that starts now, as JSON types.

    Args:
      seed: The run's seed.
      compile_choices: `{stage: "xla" | "graph" | "eager"}`.
      configuration: `{binding: value}` for `RunFolder.check_same_configuration`.
      **more: Other entries.
    """
    return files.plain(
        {
            "created": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
            "versions": versions(),
            "git_hash": git_hash(),
            "seed": seed,
            "compile_choices": compile_choices or {},
            "configuration": configuration or {},
            "device": devices(),
            "intra_op_threads": intra_op_threads(),
            "inter_op_threads": tf.config.threading.get_inter_op_parallelism_threads(),
            "cpu_count": os.cpu_count(),
            "TF_ENABLE_ONEDNN_OPTS": os.environ.get("TF_ENABLE_ONEDNN_OPTS"),
            "platform": platform.platform(),
            "command": list(sys.argv),
            **more,
        }
    )


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """Lists the differences of two metadata that affect bit-equality.

    Args:
      old: The metadata of the run.
      new: The metadata of this process.

    Returns:
      One string `name: old -> new` per difference; empty if a resumed run has the same bits.
    """
    result = []
    for name in BIT_FACTS:
        before, now = old.get(name), new.get(name)
        if isinstance(before, Mapping) and isinstance(now, Mapping):
            pairs = {f"{name}.{k}": (before.get(k), now.get(k)) for k in sorted({*before, *now})}
        else:
            pairs = {name: (before, now)}
        result += [f"{n}: {a} -> {b}" for n, (a, b) in pairs.items() if a != b]
    return result
