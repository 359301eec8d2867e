"""The JAX version for each TensorFlow version, and the remedies for others."""

import importlib.metadata
from typing import Any

import tensorflow as tf
from packaging.specifiers import SpecifierSet

from tfrl import extras
from tfrl.errors import UserError

# By TensorFlow's minor version: a JAX whose programs it runs and whose packages install beside it.
# JAX writes StableHLO for readers up to four weeks older; TensorFlow 2.21 reads 1.13.7.
_JAX = {"2.15": "==0.4.23", "2.21": "~=0.9.2"}
_CUDA = "https://storage.googleapis.com/jax-releases/jax_cuda_releases.html"


def load(module: str) -> Any:
    """Imports JAX or a library based on it.

    Args:
      module: For example `"jax.numpy"` or `"brax.envs"`.

    Raises:
      UserError: If JAX or the library is missing, does not match this TensorFlow's version, or is
        built for another kind of device; the message has the install command.
    """
    extras.require("jax", "jax") if _version("jax") is None else check_versions()
    return extras.require(module, "jax")


def check_versions() -> None:
    """Raises a UserError for a JAX or jaxlib that does not match this TensorFlow."""
    wanted = _wanted()
    for package in ("jax", "jaxlib"):
        version = _version(package)
        if not wanted or version is None or version not in SpecifierSet(wanted):
            raise UserError(
                f"{package} with TensorFlow {tf.__version__}",
                expected=f"{package}{wanted}" if wanted else f"TensorFlow {' or '.join(_JAX)}",
                got=version or "no installation",
                remedy="Install both with: pip install 'tfrl[jax]'",
            )


def check_devices(jax_platform: str, tf_has_gpu: bool) -> None:
    """Raises a UserError if JAX and TensorFlow see different kinds of devices.

    The functions are lowered for JAX's devices and run on TensorFlow's.

    Args:
      jax_platform: `jax.default_backend()`: `"cpu"`, `"gpu"` or `"tpu"`.
      tf_has_gpu: Whether TensorFlow sees a GPU.
    """
    wanted = _wanted()
    with_plugins = wanted != _JAX["2.15"]  # CUDA plugins beside a jaxlib for CPUs
    if jax_platform == "gpu" and not tf_has_gpu:
        leave = (
            "pip uninstall jax-cuda12-plugin jax-cuda12-pjrt jax-cuda13-plugin jax-cuda13-pjrt"
            if with_plugins
            else f"pip install --force-reinstall --no-deps 'jaxlib{wanted}'"
        )
        raise UserError(
            "the devices of JAX",
            expected="only CPUs, since TensorFlow detects no GPU",
            got="a CUDA build of JAX that detects a GPU",
            remedy=f"Set JAX_PLATFORMS=cpu, or run: {leave}; to use the GPU, run: "
            "pip install 'tensorflow[and-cuda]'",
        )
    if jax_platform == "cpu" and tf_has_gpu:
        build = "cuda12" if with_plugins else "cuda12_pip"
        links = "" if with_plugins else f" -f {_CUDA}"
        raise UserError(
            "the devices of JAX",
            expected="a GPU, since TensorFlow detects one",
            got="a CPU build of JAX",
            remedy="Install the CUDA build of JAX with: pip install "
            f"'jax[{build}]{wanted}'{links}; or hide the GPU with CUDA_VISIBLE_DEVICES=''",
        )


def _wanted() -> str:
    """The JAX versions for this TensorFlow; empty if untested."""
    return _JAX.get(".".join(tf.__version__.split(".")[:2]), "")


def _version(package: str) -> str | None:
    """The installed version, without a build's own suffix such as +cuda12.cudnn89."""
    try:
        return importlib.metadata.version(package).partition("+")[0]
    except importlib.metadata.PackageNotFoundError:
        return None
