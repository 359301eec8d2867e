"""Checks, on any machine, that a function would compile for a TPU.

A TPU runs one program of static shapes without the host. XLA on a CPU accepts more (dynamic shapes)
and drops some operations silently (asserts), so the traced graph is checked as well.
"""

import dataclasses
import pathlib
import re
from collections.abc import Callable, Collection, Iterator
from typing import Any

import tensorflow as tf

from tfrl import keras, tf_private
from tfrl.errors import UserError

_HOST = re.compile(
    r"PyFunc|PyFuncStateless|EagerPyFunc|PrintV?2?|Timestamp|\w*Summary\w*|"
    r"Iterator\w*|OneShotIterator|MakeIterator|\w*Dataset(V\d)?|\w*Queue\w*V2|"
    r"Lookup\w+|\w*HashTable\w*|ReadFile|WriteFile|SaveV2|RestoreV2|Reverb\w*"
)
_ASSERTS = re.compile(r"Assert|CheckNumerics(V2)?|DebugNumeric\w+|VerifyTensor\w*")
_DYNAMIC = re.compile(
    r"Where|Unique\w*|ListDiff|SetDiff1D|DynamicPartition|NonMaxSuppression(V\d)?|Ragged\w*"
)
# They compile, but draw from a generator that neither a key nor a checkpoint determines.
_RANDOM = re.compile(
    r"Random(Uniform(Int)?|StandardNormal|Shuffle|Gamma|Poisson(V2)?)|Multinomial|"
    r"(Parameterized)?TruncatedNormal"
)
# Frames of these libraries do not help to find the line of the user's code.
_LIBRARIES = (str(pathlib.Path(tf.__file__).parent), keras.folder())
__all__ = ["Problem", "assert_compilable", "check_compilable"]

# XLA's message for an op that it cannot translate.
_LACKING = re.compile(r"No registered '(\w+)' OpKernel")


@dataclasses.dataclass(frozen=True)
class Problem:
    """A problem that keeps a function from compiling for a TPU.

    Attributes:
      kind: `dynamic shape`, `host callback`, `string`, `assert`, `stateful random`,
        `unsupported op` or `compilation`.
      op_type: TensorFlow's type of the op; "" for a failed compilation.
      op_name: The op's name, after the names of the calls and loops that contain it.
      where: `file:line` of the user's code that created it, or "" if unknown.
      detail: The details of the problem.
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
      The problems; an inner function's problems come before the problems of the op that calls it.
    """
    problems: list[Problem] = []
    for path, op in operations(graph):
        result = _problem(op, inner="/" in path)
        if result is None:
            continue
        kind, detail = result
        # An op that calls a function repeats the unknown shapes that begin in the function.
        if kind == "dynamic shape" and any(p.op_name.startswith(f"{path}/") for p in problems):
            continue
        problems.append(Problem(kind, op.type, path, where(op), detail))
    return problems


def operations(graph: Any, path: str = "", visited: set[str] | None = None) -> Iterator[Any]:
    """Yields `(path, op)` of all ops of a graph and of the functions that they call.

    Args:
      graph: A FuncGraph.
      path: Names of the containing ops, each with a `/`.
      visited: Names of functions that were visited already; each is visited once.

    Yields:
      The ops; an inner function's come before the op that calls it.
    """
    visited = set() if visited is None else visited
    for op in graph.get_operations():
        for name, body in _called(op):
            if name not in visited:
                visited.add(name)
                yield from operations(body, f"{path}{op.name}/", visited)
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
        return None  # the problem is in the caller
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
    """Leaves out the strings of messages: the op that prints or asserts them is reported."""
    explained = {p.where for p in problems if p.kind in ("host callback", "assert") and p.where}
    echoes = ("string", "unsupported op")
    return [p for p in problems if not (p.kind in echoes and p.where in explained)]


def _is_unknown(tensor: Any) -> bool:
    # Handles of variables and lists are scalars, even if shape inference does not know it.
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
            body = tf_private.function_graph(op.graph, name)
            if body is not None:
                yield name, body


def where(op: Any) -> str:
    """Returns `file:line` of the innermost frame outside of TensorFlow and Keras."""
    for frame in reversed(list(op.traceback or ())):
        if not frame.filename.startswith((*_LIBRARIES, "<", str(pathlib.Path(__file__).parent))):
            return f"{frame.filename}:{frame.lineno}"
    return ""


def check_compilable(
    fn: Callable[..., Any], *example_args: Any, compile: bool = True
) -> list[Problem]:
    """Traces a function and finds the problems that would keep it, or inner functions, from a TPU.

    Problems are dynamic shapes (one problem for each op where an unknown size begins), host
    callbacks, strings, asserts and numeric checks, random ops without a key, and errors of XLA when
    it lowers the function on this machine. Nothing is executed.

    Args:
      fn: A function of nests of tensors, traced or not.
      *example_args: Its arguments: nests of tensors, arrays, variables or TensorSpecs; other leaves
        are static.
      compile: Also lower it with XLA.

    Returns:
      The problems; empty without any.
    """
    leaves = tf.nest.flatten(example_args)
    places = [i for i, x in enumerate(leaves) if _is_array(x)]
    specs = [_spec(leaves[i]) for i in places]

    def flat(*values: tf.Tensor) -> list[tf.Tensor]:
        filled = list(leaves)
        for i, value in zip(places, values, strict=True):
            filled[i] = value
        result = call(*tf.nest.pack_sequence_as(example_args, filled))
        return [x for x in tf.nest.flatten(result) if tf.is_tensor(x)]

    call = fn if hasattr(fn, "get_concrete_function") else tf.function(fn)
    function = tf.function(flat, input_signature=specs, autograph=False, jit_compile=True)
    graph = function.get_concrete_function().graph
    problems = walk(graph)
    if compile and all(spec.shape.is_fully_defined() for spec in specs):
        problems += _lowered(function, specs, graph, problems)
    # The outermost call is the call of `fn` itself.
    return [dataclasses.replace(p, op_name=_inner(p.op_name)) for p in without_echoes(problems)]


def assert_compilable(
    fn: Callable[..., Any], *example_args: Any, allow: Collection[str] = (), compile: bool = True
) -> None:
    """Raises if `check_compilable` finds anything.

    Args:
      fn: See `check_compilable`.
      *example_args: See `check_compilable`.
      allow: Kinds of problems to allow, for example `("assert",)`.
      compile: See `check_compilable`.

    Raises:
      UserError: With a list of all problems.
    """
    result = check_compilable(fn, *example_args, compile=compile)
    problems = [p for p in result if p.kind not in allow]
    if problems:
        raise UserError(
            f"Function {getattr(fn, '__qualname__', None) or getattr(fn, '__name__', repr(fn))}",
            expected="static shapes and ops that run on the device only",
            got=f"{len(problems)} problem{'s' * (len(problems) > 1)}: "
            + "; ".join(map(str, problems)),
            remedy="Change these lines, or move them out of the compiled function.",
        )


def _lowered(
    function: Any, specs: list[tf.TensorSpec], graph: Any, known: list[Problem]
) -> list[Problem]:
    """Lets XLA translate the function, without optimising or running it."""
    try:
        function.experimental_get_compiler_ir(*specs)(stage="hlo")
    except (tf.errors.OpError, ValueError) as error:
        text = " ".join(str(getattr(error, "message", None) or error).split())
        lacking = set(_LACKING.findall(text)) - {p.op_type for p in known}
        result = [
            Problem("unsupported op", op.type, path, where(op), "XLA has no kernel of it")
            for path, op in operations(graph)
            if op.type in lacking
        ]
        if result or known:  # XLA would repeat the known problems
            return result
        return [Problem("compilation", "", "", "", text[:600])]
    return []


def _inner(path: str) -> str:
    return path.partition("/")[2] or path


def _is_array(x: Any) -> bool:
    if isinstance(x, tf.Variable):
        return False  # it is captured, as in a function that refers to variables
    return isinstance(x, tf.TensorSpec) or tf.is_tensor(x) or hasattr(x, "__array_interface__")


def _spec(x: Any) -> tf.TensorSpec:
    if isinstance(x, tf.TensorSpec):
        return tf.TensorSpec(x.shape, x.dtype)
    x = tf.convert_to_tensor(x)
    return tf.TensorSpec(x.shape, x.dtype)
