"""A policy's signatures in the form of TensorFlow Serving's metadata."""

from typing import Any

from tfrl.serving.served_policy import EPISODE_START, SIGNATURES, ServedPolicy

METHOD = "tensorflow/serving/predict"


def metadata(name: str, policy: ServedPolicy) -> dict[str, Any]:
    """Returns the response of `GET .../metadata`.

    Args:
      name: The name of the model.
      policy: The policy version.
    """
    inputs = {**_tensors(policy.inputs), **_tensors(policy.state)}
    if policy.state:
        inputs[EPISODE_START] = _tensor("DT_BOOL", [], EPISODE_START)
    signature = {"inputs": inputs, "outputs": _tensors(policy.outputs), "method_name": METHOD}
    names = [n for n, greedy in SIGNATURES.items() if greedy or policy.explores]
    return {
        "model_spec": {"name": name, "signature_name": "", "version": str(policy.version)},
        "metadata": {"signature_def": {"signature_def": {n: signature for n in names}}},
    }


def _tensors(specs: Any) -> dict[str, Any]:
    return {
        name: _tensor(_dtype(spec.dtype), spec.shape.as_list(), name)
        for name, spec in specs.items()
    }


def _tensor(dtype: str, shape: list[int], name: str) -> dict[str, Any]:
    dims = [{"size": str(size), "name": ""} for size in (-1, *shape)]
    return {
        "dtype": dtype,
        "tensor_shape": {"dim": dims, "unknown_rank": False},
        "name": f"{name}:0",
    }


def _dtype(dtype: Any) -> str:
    from tensorflow.core.framework import types_pb2

    return str(types_pb2.DataType.Name(dtype.as_datatype_enum))
