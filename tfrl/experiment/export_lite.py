"""A policy for TensorFlow Lite."""

import contextlib
import os
import pathlib
import sys
import tempfile
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from tfrl.errors import UserError
from tfrl.experiment.export import quiet, save_functions
from tfrl.experiment.export_functions import PolicyFunctions

FILE = "policy.tflite"
# Its random numbers are made of operations that TFLite does not have.
WITHOUT = ("explore",)


def write_tflite(
    policy: PolicyFunctions, directory: pathlib.Path, *, quantize: bool = False
) -> dict[str, Any]:
    """Writes `policy.tflite`, with the signatures `action`, `distribution` and `initial_state`.

    Batches may be of any size. Only TFLite's own operations are used where they are enough; else
    some of TensorFlow's, which the interpreter must have ("Select TF ops").

    Args:
      policy: The policy.
      directory: An existing folder.
      quantize: Whether weights become int8, with a scale each ("dynamic range"); activations stay
        float32.

    Returns:
      What to say of it in `metadata.json`.

    Raises:
      UserError: TFLite cannot express the policy.
    """
    names = [name for name in policy.functions if name not in WITHOUT]
    with tempfile.TemporaryDirectory() as scratch:
        saved = str(save_functions(policy, pathlib.Path(scratch, "saved_model")))
        content, error = _converted(saved, names, quantize, select=False)
        builtin = content is not None
        if content is None:
            content, error = _converted(saved, names, quantize, select=True)
    if content is None:
        raise UserError(
            "--format=tflite",
            expected="a policy of operations that TensorFlow Lite has",
            got=f"one that its converter refuses ({error})",
            remedy="Export it as saved_model or onnx.",
        )
    (directory / FILE).write_bytes(content)
    return {
        "file": FILE,
        "bytes": len(content),
        "quantized": quantize,
        "ops": "built-in" if builtin else "built-in and Select TF ops",
        "signatures": names,
    }


def _converted(
    saved: str, names: list[str], quantize: bool, select: bool
) -> tuple[bytes | None, str]:
    """Returns the file's content, or None and the converter's reason."""
    converter = tf.lite.TFLiteConverter.from_saved_model(saved, signature_keys=names)
    if quantize:
        converter.optimizations = [tf.lite.Optimize.DEFAULT]
    if select:
        ops = tf.lite.OpsSet
        converter.target_spec.supported_ops = [ops.TFLITE_BUILTINS, ops.SELECT_TF_OPS]
    try:
        with quiet(), _silent():
            return converter.convert(), ""
    except Exception as error:  # its own ConverterError is not public
        lines = [line for line in str(error).splitlines() if line.strip()]
        return None, lines[0] if lines else type(error).__name__


@contextlib.contextmanager
def _silent() -> Iterator[None]:
    """Keeps what C++ prints on standard error off the screen."""
    sys.stderr.flush()
    saved = os.dup(2)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 2)
        yield
    finally:
        os.dup2(saved, 2)
        os.close(saved)
        os.close(nowhere)
