"""A policy as ONNX files."""

import logging
import pathlib
from typing import Any

import tensorflow as tf

from tfrl import extras
from tfrl.errors import UserError
from tfrl.experiment.export import quiet
from tfrl.experiment.export_functions import PolicyFunctions

OPSET = 17
# Names of ONNX are unique: what comes out cannot be called what went in.
NEXT = "next_"
# Its random numbers are made of operations that ONNX does not have.
WITHOUT = ("explore",)


def require_onnx() -> None:
    """Raises a UserError where the extra is not installed."""
    for module in ("tf2onnx", "onnxruntime"):
        extras.require(module, "export")


def write_onnx(policy: PolicyFunctions, directory: pathlib.Path) -> dict[str, Any]:
    """Writes one file a signature: `action.onnx`, `distribution.onnx`, `initial_state.onnx`.

    Inputs and outputs are named as those of the signatures; the recurrent state that comes out is
    `next_state_...`. Batches may be of any size.

    Args:
      policy: The policy.
      directory: An existing folder.

    Returns:
      What to say of it in `metadata.json`.

    Raises:
      UserError: The extra `export` is not installed, or ONNX cannot express the policy.
    """
    require_onnx()
    names = [name for name in policy.functions if name not in WITHOUT]
    for name in names:
        content = _converted(name, policy.functions[name], set(policy.state))
        (directory / f"{name}.onnx").write_bytes(content)
    return {"files": [f"{name}.onnx" for name in names], "opset": OPSET, "signatures": names}


def _converted(name: str, function: Any, state: set[str]) -> bytes:
    import onnx
    import tf2onnx

    signature = function.input_signature
    begins = name == "initial_state"

    def renamed(*inputs: tf.Tensor) -> dict[str, tf.Tensor]:
        found = function(*inputs)
        return {k if begins or k not in state else NEXT + k: x for k, x in found.items()}

    flat = tf.function(renamed, input_signature=signature, autograph=False)
    logger = logging.getLogger("tf2onnx")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        with quiet():
            model, _ = tf2onnx.convert.from_function(flat, input_signature=signature, opset=OPSET)
        onnx.checker.check_model(model)  # tf2onnx leaves what it does not know as it is
    except Exception as error:  # of many kinds, by operation
        first = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise UserError(
            "--format=onnx",
            expected=f"a policy of operations that ONNX (opset {OPSET}) has",
            got=f"one whose {name} tf2onnx refuses ({first})",
            remedy="Export it as saved_model or tflite.",
        ) from error
    finally:
        logger.setLevel(level)
    return bytes(model.SerializeToString())
