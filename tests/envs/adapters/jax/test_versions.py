"""What is said of a JAX that does not fit; no JAX is needed for it."""

import importlib.metadata

import pytest

from tfrl import extras
from tfrl.envs.adapters.jax import versions
from tfrl.errors import UserError


def installed(monkeypatch, **found):
    def version(package):
        if found.get(package) is None:
            raise importlib.metadata.PackageNotFoundError(package)
        return found[package]

    monkeypatch.setattr(importlib.metadata, "version", version)
    monkeypatch.setattr(versions.tf, "__version__", "2.15.1")


@pytest.mark.parametrize(
    "found, message",
    [
        (
            {"jax": "0.4.14", "jaxlib": "0.4.14"},
            "jax beside TensorFlow 2.15.1: expected version 0.4.23, got 0.4.14. "
            "Install it with: pip install 'tfrl[jax]'",
        ),
        (
            {"jax": "0.6.0", "jaxlib": "0.6.0"},
            "jax beside TensorFlow 2.15.1: expected version 0.4.23, got 0.6.0. "
            "Install it with: pip install 'tfrl[jax]'",
        ),
        (
            {"jax": "0.4.23"},
            "jaxlib beside TensorFlow 2.15.1: expected version 0.4.23, got none. "
            "Install it with: pip install 'tfrl[jax]'",
        ),
    ],
)
def test_another_version(monkeypatch, found, message):
    installed(monkeypatch, **found)
    with pytest.raises(UserError) as error:
        versions.load("jax")
    assert str(error.value) == message


def test_versions_that_fit(monkeypatch):
    installed(monkeypatch, jax="0.4.23", jaxlib="0.4.23+cuda12.cudnn89")
    versions.check_versions()


def test_no_jax(monkeypatch):
    installed(monkeypatch)

    def missing(module):
        raise ModuleNotFoundError(f"No module named {module!r}", name=module)

    monkeypatch.setattr(extras.importlib, "import_module", missing)
    with pytest.raises(UserError, match=r"pip install 'tfrl\[jax\]'"):
        versions.load("brax.envs")


@pytest.mark.parametrize(
    "jax_platform, tf_has_gpu, command",
    [
        ("gpu", False, "pip install --force-reinstall --no-deps jaxlib==0.4.23"),
        ("cpu", True, "pip install 'jax[cuda12_pip]==0.4.23'"),
    ],
)
def test_other_devices(jax_platform, tf_has_gpu, command):
    with pytest.raises(UserError) as error:
        versions.check_devices(jax_platform, tf_has_gpu)
    assert command in str(error.value)


@pytest.mark.parametrize("devices", [("cpu", False), ("gpu", True), ("tpu", False)])
def test_devices_that_fit(devices):
    versions.check_devices(*devices)
