"""A policy as ONNX files."""

import logging
import pathlib
from collections.abc import Iterator
from typing import Any

import numpy as np
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


def _fill_in(model: Any, graph: Any) -> None:
    """Makes constants of the inputs that stand for tensors from outside of a function.

    Such as the atoms of TF-Agents' CategoricalDqnAgent, a tensor that belongs to the agent.
    """
    from onnx import numpy_helper

    values = {inner.name: x for x, inner in graph.captures if x.dtype != tf.resource}
    read = set(_read(model.graph))
    for given in [x for x in model.graph.input if x.name in values]:
        model.graph.input.remove(given)
        if given.name in read:  # small ones are constants already
            array = numpy_helper.from_array(np.asarray(values[given.name]), given.name)
            model.graph.initializer.append(array)


def _read(graph: Any) -> Iterator[str]:
    """The names that the nodes of an ONNX graph read, bodies of loops included."""
    for node in graph.node:
        yield from node.input
        for attribute in node.attribute:
            for body in (attribute.g, *attribute.graphs):
                yield from _read(body)


def _broadcast_args(ctx: Any, node: Any, name: str, args: Any) -> None:
    """Writes TensorFlow's BroadcastArgs, which tf2onnx does not know, in operations of ONNX.

    The shape that two shapes broadcast to is that of an array of the first one, expanded to the
    second. It comes out of distributions of TensorFlow Probability, so of TF-Agents' policies.
    """
    from onnx import TensorProto, helper

    dtype, outputs = ctx.get_dtype(node.output[0]), list(node.output)
    shape = ctx.get_shape(node.output[0])
    given = [_cast(ctx, x, TensorProto.INT64) for x in node.input]
    ctx.remove_node(node.name)
    nothing = helper.make_tensor("nothing", TensorProto.BOOL, [1], [False])
    array = ctx.make_node("ConstantOfShape", given[:1], attr={"value": nothing}).output[0]
    whole = ctx.make_node("Expand", [array, given[1]]).output[0]
    found = ctx.make_node("Shape", [whole]).output[0]
    ctx.make_node(
        "Cast", [found], attr={"to": dtype}, name=name, outputs=outputs,
        shapes=[shape], dtypes=[dtype],
    )  # fmt: skip


def _cast(ctx: Any, name: str, dtype: int) -> str:
    return str(ctx.make_node("Cast", [name], attr={"to": dtype}).output[0])


# Of tf2onnx's custom handlers: `{operation of TensorFlow: (function, arguments)}`.
_HANDLERS: dict[str, Any] = {"BroadcastArgs": (_broadcast_args, [])}


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
            model, _ = tf2onnx.convert.from_function(
                flat, input_signature=signature, opset=OPSET, custom_op_handlers=_HANDLERS
            )
        _fill_in(model, flat.get_concrete_function(*signature).graph)
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
