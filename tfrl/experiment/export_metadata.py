"""`metadata.json` of an exported policy: what it takes and gives, and where it comes from."""

import importlib.metadata
from typing import Any

import numpy as np

from tfrl import specs, struct
from tfrl.experiment.export_functions import PolicyFunctions, leaf_name
from tfrl.experiment.metadata import versions

FILE = "metadata.json"
_MORE = {
    "tf_agents": "tf-agents",
    "tf2onnx": "tf2onnx",
    "onnx": "onnx",
    "onnxruntime": "onnxruntime",
}
# Which of them take part in a format.
_OF = {"tf_agents": ("tf_agents",), "onnx": ("tf2onnx", "onnx", "onnxruntime")}


def export_versions(form: str) -> dict[str, str]:
    """Returns the versions of what made an export, those of its format included."""
    found = versions()
    for name in _OF.get(form, ()):
        found[name] = importlib.metadata.version(_MORE[name])
    return found


def specs_of(policy: PolicyFunctions) -> dict[str, Any]:
    """Returns observation, action and state: names, shapes, dtypes and bounds, for JSON."""
    return {
        "observation": _leaves(policy.obs_spec, "observation"),
        "action": _leaves(policy.action_spec, "action"),
        "state": list(policy.state),
    }


def _leaves(nest: Any, base: str) -> list[dict[str, Any]]:
    found = []
    for path, spec in struct.paths(nest).items():
        low, high = specs.bounds(spec)
        about: dict[str, Any] = {
            "name": leaf_name(path, base),
            "path": path,
            "shape": spec.shape.as_list(),
            "dtype": spec.dtype.name,
            "minimum": _bound(low),
            "maximum": _bound(high),
        }
        if isinstance(spec, specs.DiscreteSpec):
            about["num_values"] = spec.num_values
        found.append(about)
    return found


def _bound(bound: np.ndarray) -> Any:
    """One number where all are the same; null stands for none."""
    if bound.size and np.all(bound == bound.flat[0]):
        return bound.flat[0]
    return bound
