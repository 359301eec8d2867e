"""What is said of a JAX that does not fit; no JAX is needed for it."""

import importlib.metadata
import itertools
import json

import pytest

from tfrl import extras
from tfrl.envs.adapters.jax import versions
from tfrl.errors import UserError


def installed(monkeypatch, tensorflow="2.15.1", **found):
    def version(package):
        if found.get(package) is None:
            raise importlib.metadata.PackageNotFoundError(package)
        return found[package]

    monkeypatch.setattr(importlib.metadata, "version", version)
    monkeypatch.setattr(versions.tf, "__version__", tensorflow)


OLD, NEW = "jax with TensorFlow 2.15.1: expected jax==0.4.23, ", "expected jax~=0.9.2, "
REMEDY = " Install both with: pip install 'tfrl[jax]'"


@pytest.mark.parametrize(
    "tensorflow, found, message",
    [
        ("2.15.1", {"jax": "0.4.14", "jaxlib": "0.4.14"}, f"{OLD}got 0.4.14.{REMEDY}"),
        ("2.15.1", {"jax": "0.6.0", "jaxlib": "0.6.0"}, f"{OLD}got 0.6.0.{REMEDY}"),
        (
            "2.15.1",
            {"jax": "0.4.23"},
            f"jaxlib with TensorFlow 2.15.1: expected jaxlib==0.4.23, got no installation.{REMEDY}",
        ),
        (
            "2.21.0",
            {"jax": "0.4.23", "jaxlib": "0.4.23"},
            f"jax with TensorFlow 2.21.0: {NEW}got 0.4.23.{REMEDY}",
        ),
        (
            "2.21.0",
            {"jax": "0.10.0", "jaxlib": "0.10.0"},
            f"jax with TensorFlow 2.21.0: {NEW}got 0.10.0.{REMEDY}",
        ),
        (
            "2.18.0",
            {"jax": "0.4.35", "jaxlib": "0.4.35"},
            f"jax with TensorFlow 2.18.0: expected TensorFlow 2.15 or 2.21, got 0.4.35.{REMEDY}",
        ),
    ],
)
def test_another_version(monkeypatch, tensorflow, found, message):
    installed(monkeypatch, tensorflow, **found)
    with pytest.raises(UserError) as error:
        versions.load("jax")
    assert str(error.value) == message


@pytest.mark.parametrize(
    "tensorflow, jax, jaxlib",
    [
        ("2.15.1", "0.4.23", "0.4.23+cuda12.cudnn89"),
        ("2.21.0", "0.9.2", "0.9.2"),
        ("2.21.1", "0.9.3", "0.9.3"),
    ],
)
def test_versions_that_fit(monkeypatch, tensorflow, jax, jaxlib):
    installed(monkeypatch, tensorflow, jax=jax, jaxlib=jaxlib)
    assert versions.load("json") is json


def test_no_jax(monkeypatch):
    installed(monkeypatch)

    def missing(module):
        raise ModuleNotFoundError(f"No module named {module!r}", name=module)

    monkeypatch.setattr(extras.importlib, "import_module", missing)
    with pytest.raises(UserError, match=r"pip install 'tfrl\[jax\]'"):
        versions.load("brax.envs")


@pytest.mark.parametrize(
    "tensorflow, jax_platform, tf_has_gpu, command",
    [
        ("2.15.1", "gpu", False, "pip install --force-reinstall --no-deps 'jaxlib==0.4.23'"),
        ("2.15.1", "cpu", True, "pip install 'jax[cuda12_pip]==0.4.23' -f https://"),
        ("2.21.0", "gpu", False, "pip uninstall jax-cuda12-plugin jax-cuda12-pjrt"),
        ("2.21.0", "cpu", True, "pip install 'jax[cuda12]~=0.9.2'; or hide the GPU"),
    ],
)
def test_other_devices(monkeypatch, tensorflow, jax_platform, tf_has_gpu, command):
    monkeypatch.setattr(versions.tf, "__version__", tensorflow)
    with pytest.raises(UserError) as error:
        versions.check_devices(jax_platform, tf_has_gpu)
    assert command in str(error.value)


def test_devices_that_fit():
    refused = []
    for devices in itertools.product(("cpu", "gpu", "tpu"), (False, True)):
        try:
            versions.check_devices(*devices)
        except UserError:
            refused.append(devices)
    assert refused == [("cpu", True), ("gpu", False)]
