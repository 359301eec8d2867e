"""The formats of an exported policy: SavedModel, TFLite, ONNX."""

import contextlib
import logging
import os
import pathlib
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from tfrl import extras
from tfrl.agents.core import Agent
from tfrl.errors import UserError
from tfrl.experiment.export_functions import PolicyFunctions, policy_functions
from tfrl.storage import files
from tfrl.types import Nest


class _Policy(tf.Module):
    """The functions of a policy by name, with their variables."""

    def __init__(self, policy: PolicyFunctions):
        super().__init__(name="policy")
        self.values = list(policy.tracked)
        for name, function in policy.functions.items():
            setattr(self, name, function)


def export_policy(agent: Agent, agent_state: Nest, directory: str | pathlib.Path) -> pathlib.Path:
    """Writes the greedy policy as a SavedModel, observation normaliser included.

    The signatures `action` and `serving_default` are the same function. Its input is a batch
    `observation` `[B, ...]` of any size B, its output `action` `[B, ...]`. A nest of observations
    has one input per leaf, `observation_<path>` with `/` written as `_`
    (`observation_camera_left`); a nest of actions has such outputs. Use it with only TensorFlow:

        policy = tf.saved_model.load(directory)  # Keep this reference while acting.
        action = policy.signatures["action"](observation=batch)["action"]

    A policy with memory also takes and returns its state, one `state_<path>` per leaf. The
    signature `initial_state` gives the state at every episode start:

        state = policy.signatures["initial_state"](batch_size=tf.constant(B))
        output = dict(policy.signatures["action"](observation=batch, **state))
        action = output.pop("action")  # what is left is the next state

    Args:
      agent: An agent with `obs_spec`, `action_spec` and `evaluate_actions`; random draws, if any,
        use one constant key.
      agent_state: Its state; the values are copied, as constants (variables of a large policy, see
        `export_functions.CONSTANT_BYTES`).
      directory: The SavedModel's folder; an existing one is replaced once the new one is complete.

    Returns:
      The folder.

    Raises:
      UserError: The folder cannot be written, or names collide.
    """
    return save_functions(policy_functions(agent, agent_state, ("action",)), directory)


def save_functions(policy: PolicyFunctions, directory: str | pathlib.Path) -> pathlib.Path:
    """Writes the functions of a policy as the signatures of a SavedModel; see `save_module`."""
    signatures = {name: f.get_concrete_function() for name, f in policy.functions.items()}
    signatures["serving_default"] = signatures["action"]
    return save_module(_Policy(policy), signatures, directory)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Suppresses TensorFlow's "Assets written to"."""
    logger = tf.get_logger()
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


def save_module(
    module: tf.Module, signatures: Mapping[str, Any], directory: str | pathlib.Path
) -> pathlib.Path:
    """Writes a module as a SavedModel, atomically.

    Args:
      module: The module with the variables.
      signatures: `{name: concrete function}`.
      directory: The folder; an existing one is replaced once the new one is complete.

    Returns:
      The folder.

    Raises:
      UserError: The folder cannot be written.
    """
    directory = pathlib.Path(directory)
    temporary = None
    try:
        directory.parent.mkdir(parents=True, exist_ok=True)
        temporary = files.temporary_name(directory.parent)
        with quiet():
            tf.saved_model.save(
                module,
                str(temporary),
                signatures=dict(signatures),
            )
        for file in sorted(temporary.rglob("*")):
            files.sync_file(file)
        files.replace_directory(temporary, directory)
    except (OSError, tf.errors.OpError) as error:
        raise files.unwritable(f"policy folder {directory}", error) from error
    finally:
        if temporary is not None:
            shutil.rmtree(temporary, ignore_errors=True)
    return directory


TFLITE_FILE = "policy.tflite"
# Its random number operations are not supported by TFLite.
NOT_IN_TFLITE = ("explore",)


def write_tflite(
    policy: PolicyFunctions, directory: pathlib.Path, *, quantize: bool = False
) -> dict[str, Any]:
    """Writes `policy.tflite`, with the signatures `action`, `distribution` and `initial_state`.

    The batch size is arbitrary. It uses TFLite's built-in operations if possible, else also
    TensorFlow's, which the interpreter must support ("Select TF ops").

    Args:
      policy: The policy.
      directory: An existing folder.
      quantize: Whether to store weights as int8 with one scale per tensor ("dynamic range");
        activations stay float32.

    Returns:
      What to say of it in `metadata.json`.

    Raises:
      UserError: TFLite cannot express the policy.
    """
    names = [name for name in policy.functions if name not in NOT_IN_TFLITE]
    with tempfile.TemporaryDirectory() as scratch:
        saved = str(save_functions(policy, pathlib.Path(scratch, "saved_model")))
        content, error = _to_tflite(saved, names, quantize, select=False)
        builtin = content is not None
        if content is None:
            content, error = _to_tflite(saved, names, quantize, select=True)
    if content is None:
        raise UserError(
            "--format=tflite",
            expected="a policy whose operations TensorFlow Lite supports",
            got=f"a policy that its converter rejects ({error})",
            remedy="Export it as saved_model or onnx.",
        )
    (directory / TFLITE_FILE).write_bytes(content)
    return {
        "file": TFLITE_FILE,
        "bytes": len(content),
        "quantized": quantize,
        "ops": "built-in" if builtin else "built-in and Select TF ops",
        "signatures": names,
    }


def _to_tflite(
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
        with quiet(), _silent_stderr():
            return converter.convert(), ""
    except Exception as error:  # its own ConverterError is not public
        lines = [line for line in str(error).splitlines() if line.strip()]
        return None, lines[0] if lines else type(error).__name__


@contextlib.contextmanager
def _silent_stderr() -> Iterator[None]:
    """Suppresses C++ output on standard error."""
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


OPSET = 17
# Names in ONNX are unique: outputs cannot have the names of inputs.
_NEXT = "next_"
# Its random number operations are not supported by ONNX.
NOT_IN_ONNX = ("explore",)


def require_onnx() -> None:
    """Raises a UserError if the extra is not installed."""
    for module in ("tf2onnx", "onnxruntime"):
        extras.require(module, "export")


def write_onnx(policy: PolicyFunctions, directory: pathlib.Path) -> dict[str, Any]:
    """Writes one file per signature: `action.onnx`, `distribution.onnx`, `initial_state.onnx`.

    Inputs and outputs have the signatures' names, but the output recurrent state is
    `next_state_...`. The batch size is arbitrary.

    Args:
      policy: The policy.
      directory: An existing folder.

    Returns:
      What to say of it in `metadata.json`.

    Raises:
      UserError: The extra `export` is not installed, or ONNX cannot express the policy.
    """
    require_onnx()
    names = [name for name in policy.functions if name not in NOT_IN_ONNX]
    for name in names:
        content = _to_onnx(name, policy.functions[name], set(policy.state))
        (directory / f"{name}.onnx").write_bytes(content)
    return {"files": [f"{name}.onnx" for name in names], "opset": OPSET, "signatures": names}


def _captures_to_constants(model: Any, graph: Any) -> None:
    """Replaces inputs for captured tensors by constants.

    For example the atoms of TF-Agents' CategoricalDqnAgent, a tensor of the agent.
    """
    from onnx import numpy_helper

    values = {inner.name: x for x, inner in graph.captures if x.dtype != tf.resource}
    read = set(_names_read(model.graph))
    for graph_input in [x for x in model.graph.input if x.name in values]:
        model.graph.input.remove(graph_input)
        if graph_input.name in read:  # small ones are already constants
            array = numpy_helper.from_array(np.asarray(values[graph_input.name]), graph_input.name)
            model.graph.initializer.append(array)


def _names_read(graph: Any) -> Iterator[str]:
    """The names that the nodes of an ONNX graph read, bodies of loops included."""
    for node in graph.node:
        yield from node.input
        for attribute in node.attribute:
            for body in (attribute.g, *attribute.graphs):
                yield from _names_read(body)


def _onnx_broadcast_args(ctx: Any, node: Any, name: str, args: Any) -> None:
    """Converts TensorFlow's BroadcastArgs, which tf2onnx does not support, to ONNX.

    The broadcast shape of two shapes is the shape of an array of the first one, expanded to the
    second. TensorFlow Probability's distributions, and so TF-Agents' policies, use it.
    """
    from onnx import TensorProto, helper

    dtype, outputs = ctx.get_dtype(node.output[0]), list(node.output)
    shape = ctx.get_shape(node.output[0])
    shapes = [_onnx_cast(ctx, x, TensorProto.INT64) for x in node.input]
    ctx.remove_node(node.name)
    nothing = helper.make_tensor("nothing", TensorProto.BOOL, [1], [False])
    array = ctx.make_node("ConstantOfShape", shapes[:1], attr={"value": nothing}).output[0]
    expanded = ctx.make_node("Expand", [array, shapes[1]]).output[0]
    result = ctx.make_node("Shape", [expanded]).output[0]
    ctx.make_node(
        "Cast", [result], attr={"to": dtype}, name=name, outputs=outputs,
        shapes=[shape], dtypes=[dtype],
    )  # fmt: skip


def _onnx_cast(ctx: Any, name: str, dtype: int) -> str:
    return str(ctx.make_node("Cast", [name], attr={"to": dtype}).output[0])


# Of tf2onnx's custom handlers: `{operation of TensorFlow: (function, arguments)}`.
_ONNX_HANDLERS: dict[str, Any] = {"BroadcastArgs": (_onnx_broadcast_args, [])}


def _to_onnx(name: str, function: Any, state: set[str]) -> bytes:
    import onnx
    import tf2onnx

    signature = function.input_signature
    begins = name == "initial_state"

    def renamed(*inputs: tf.Tensor) -> dict[str, tf.Tensor]:
        result = function(*inputs)
        return {k if begins or k not in state else _NEXT + k: x for k, x in result.items()}

    flat = tf.function(renamed, input_signature=signature, autograph=False)
    logger = logging.getLogger("tf2onnx")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        with quiet():
            model, _ = tf2onnx.convert.from_function(
                flat, input_signature=signature, opset=OPSET, custom_op_handlers=_ONNX_HANDLERS
            )
        _captures_to_constants(model, flat.get_concrete_function(*signature).graph)
        onnx.checker.check_model(model)  # tf2onnx leaves unknown operations unchanged
    except Exception as error:  # of many kinds, by operation
        first = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise UserError(
            "--format=onnx",
            expected=f"a policy whose operations ONNX (opset {OPSET}) supports",
            got=f"a policy whose {name} tf2onnx rejects ({first})",
            remedy="Export it as saved_model or tflite.",
        ) from error
    finally:
        logger.setLevel(level)
    return bytes(model.SerializeToString())
