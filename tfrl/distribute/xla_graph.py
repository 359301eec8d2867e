"""Walks a traced graph with all its inner functions for what a TPU cannot run."""

import dataclasses
import pathlib
import re
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

_HOST = re.compile(
    r"PyFunc|PyFuncStateless|EagerPyFunc|PrintV?2?|Timestamp|\w*Summary\w*|"
    r"Iterator\w*|OneShotIterator|MakeIterator|\w*Dataset(V\d)?|\w*Queue\w*V2|"
    r"Lookup\w+|\w*HashTable\w*|ReadFile|WriteFile|SaveV2|RestoreV2|Reverb\w*"
)
_ASSERTS = re.compile(r"Assert|CheckNumerics(V2)?|DebugNumeric\w+|VerifyTensor\w*")
_DYNAMIC = re.compile(
    r"Where|Unique\w*|ListDiff|SetDiff1D|DynamicPartition|NonMaxSuppression(V\d)?|Ragged\w*"
)
# They compile, but draw from a generator that no key and no checkpoint knows.
_RANDOM = re.compile(
    r"Random(Uniform(Int)?|StandardNormal|Shuffle|Gamma|Poisson(V2)?)|Multinomial|"
    r"(Parameterized)?TruncatedNormal"
)
# Frames of the library's own are no help to who looks for the line of his code.
_LIBRARIES = tuple(
    str(pathlib.Path(module.__file__ or "").parent) for module in (tf, tf.keras) if module.__file__
)


@dataclasses.dataclass(frozen=True)
class Problem:
    """One thing that does not compile for a TPU.

    Attributes:
      kind: `dynamic shape`, `host callback`, `string`, `assert`, `stateful random`,
        `unsupported op` or `compilation`.
      op_type: TensorFlow's name of the op, "" for a compilation that failed.
      op_name: The op's name, after the names of the calls and loops that lead to it.
      where: `file:line` of the user's code that made it, or "" if unknown.
      detail: What exactly is wrong.
    """

    kind: str
    op_type: str
    op_name: str
    where: str
    detail: str

    def __str__(self) -> str:
        """The problem as one line."""
        op = f"{self.op_type} '{self.op_name}'" if self.op_type else "the whole function"
        place = f" at {self.where}" if self.where else ""
        return f"{self.kind}: {op}{place}: {self.detail}"


def walk(graph: Any) -> list[Problem]:
    """Finds the problems of a graph and of every function that its ops call.

    Args:
      graph: A FuncGraph.

    Returns:
      The problems, those of an inner function before those of the op that calls it.
    """
    problems: list[Problem] = []
    for path, op in operations(graph):
        found = _problem(op, inner="/" in path)
        if found is None:
            continue
        kind, detail = found
        # An op that calls a function has the unknown shapes that begin in there.
        if kind == "dynamic shape" and any(p.op_name.startswith(f"{path}/") for p in problems):
            continue
        problems.append(Problem(kind, op.type, path, where(op), detail))
    return problems


def operations(graph: Any, path: str = "", seen: set[str] | None = None) -> Iterator[Any]:
    """Yields `(path, op)` of all ops of a graph and of the functions that they call.

    Args:
      graph: A FuncGraph.
      path: Names of the ops that lead here, each with a `/`.
      seen: Names of functions that were visited already; each is visited once.

    Yields:
      The ops, those of an inner function before the op that calls it.
    """
    seen = set() if seen is None else seen
    for op in graph.get_operations():
        for name, body in _called(op):
            if name not in seen:
                seen.add(name)
                yield from operations(body, f"{path}{op.name}/", seen)
        yield f"{path}{op.name}", op


def _problem(op: Any, inner: bool) -> tuple[str, str] | None:
    """Returns the kind of problem of one op, and its detail."""
    if _HOST.fullmatch(op.type):
        return "host callback", "runs on the host, outside of the compiled program"
    if _ASSERTS.fullmatch(op.type):
        return "assert", "is dropped silently when compiled; make the finding an output"
    if _RANDOM.fullmatch(op.type):
        return "stateful random", "draws from a hidden generator; draw from a key instead"
    if _DYNAMIC.fullmatch(op.type):
        return "dynamic shape", "the shape of its result depends on values; use masks"
    if op.type == "Placeholder" and inner:
        return None  # whoever calls the function is to blame
    if op.type == "BroadcastGradientArgs":
        return None  # axes to sum over, which XLA computes while it compiles
    if any(t.dtype.base_dtype == tf.string for t in (*op.inputs, *op.outputs)):
        return "string", "strings do not exist on the device"
    unknown = [t for t in op.outputs if _is_unknown(t)]
    if unknown and not any(_is_unknown(t) for t in op.inputs):
        shapes = ", ".join(str(t.shape) for t in unknown)
        return "dynamic shape", f"its result has shape {shapes}"
    return None


def without_echoes(problems: list[Problem]) -> list[Problem]:
    """Leaves out the texts of messages: the op that prints or asserts them tells enough."""
    told = {p.where for p in problems if p.kind in ("host callback", "assert") and p.where}
    echoes = ("string", "unsupported op")
    return [p for p in problems if not (p.kind in echoes and p.where in told)]


def _is_unknown(tensor: Any) -> bool:
    # Handles of variables and lists are scalars whatever shape inference knows of them.
    if tensor.dtype.base_dtype in (tf.resource, tf.variant):
        return False
    return not tensor.shape.is_fully_defined()


def _called(op: Any) -> Iterator[tuple[str, Any]]:
    """Yields name and graph of each function that an op calls: loops, branches, nested calls."""
    for attribute in op.op_def.attr:
        if attribute.type not in ("func", "list(func)"):
            continue
        value = op.get_attr(attribute.name)
        for function in value if isinstance(value, list) else [value]:
            name = function.name if hasattr(function, "name") else str(function)
            name = name.decode() if isinstance(name, bytes) else name
            found = op.graph._get_function(name)
            body = getattr(found, "graph", None)
            if body is not None:
                yield name, body


def where(op: Any) -> str:
    """Returns `file:line` of the innermost frame outside of TensorFlow and Keras."""
    for frame in reversed(list(op.traceback or ())):
        if not frame.filename.startswith((*_LIBRARIES, "<", str(pathlib.Path(__file__).parent))):
            return f"{frame.filename}:{frame.lineno}"
    return ""
