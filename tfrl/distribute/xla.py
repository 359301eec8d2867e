"""Checks, on any machine, that a function would compile for a TPU.

A TPU runs one program of static shapes without the host. A CPU's XLA accepts more than that
(dynamic shapes) and drops some of it silently (asserts), so the traced graph is walked as well.
"""

import dataclasses
import re
from collections.abc import Callable, Collection
from typing import Any

import tensorflow as tf

from tfrl.distribute.xla_graph import Problem, operations, walk, where, without_echoes
from tfrl.errors import UserError

__all__ = ["Problem", "assert_compilable", "check_compilable"]

# How XLA names an op that it cannot translate.
_LACKING = re.compile(r"No registered '(\w+)' OpKernel")


def check_compilable(
    fn: Callable[..., Any], *example_args: Any, compile: bool = True
) -> list[Problem]:
    """Traces a function and finds what would keep it from a TPU, in all its inner functions.

    Found are dynamic shapes (one problem for each op where an unknown size begins), host callbacks,
    strings, asserts and numeric checks, random ops without a key, and what XLA itself refuses when
    the function is lowered on this machine. Nothing is executed.

    Args:
      fn: A function of nests of tensors, traced or not.
      *example_args: Its arguments: nests of tensors, arrays, variables or TensorSpecs; other leaves
        are static.
      compile: Also lower it with XLA.

    Returns:
      The problems; empty if there is none.
    """
    leaves = tf.nest.flatten(example_args)
    given = [i for i, x in enumerate(leaves) if _is_array(x)]
    specs = [_spec(leaves[i]) for i in given]

    def flat(*values: tf.Tensor) -> list[tf.Tensor]:
        filled = list(leaves)
        for i, value in zip(given, values, strict=True):
            filled[i] = value
        result = call(*tf.nest.pack_sequence_as(example_args, filled))
        return [x for x in tf.nest.flatten(result) if tf.is_tensor(x)]

    call = fn if hasattr(fn, "get_concrete_function") else tf.function(fn)
    function = tf.function(flat, input_signature=specs, autograph=False, jit_compile=True)
    graph = function.get_concrete_function().graph
    problems = walk(graph)
    if compile and all(spec.shape.is_fully_defined() for spec in specs):
        problems += _lowered(function, specs, graph, problems)
    # The outermost call is the one to `fn` itself.
    return [dataclasses.replace(p, op_name=_inner(p.op_name)) for p in without_echoes(problems)]


def assert_compilable(
    fn: Callable[..., Any], *example_args: Any, allow: Collection[str] = (), compile: bool = True
) -> None:
    """Raises if `check_compilable` finds anything.

    Args:
      fn: As there.
      *example_args: As there.
      allow: Kinds of problems that are all right, for example `("assert",)`.
      compile: As there.

    Raises:
      UserError: Lists every problem.
    """
    found = check_compilable(fn, *example_args, compile=compile)
    problems = [p for p in found if p.kind not in allow]
    if problems:
        raise UserError(
            f"Function {getattr(fn, '__qualname__', None) or getattr(fn, '__name__', repr(fn))}",
            expected="static shapes and ops that run on the device only",
            got=f"{len(problems)} problem{'s' * (len(problems) > 1)}: "
            + "; ".join(map(str, problems)),
            remedy="Correct the lines named, or keep them out of the compiled part.",
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
        found = [
            Problem("unsupported op", op.type, path, where(op), "XLA has no kernel of it")
            for path, op in operations(graph)
            if op.type in lacking
        ]
        if found or known:  # else XLA repeats what was found already
            return found
        return [Problem("compilation", "", "", "", text[:600])]
    return []


def _inner(path: str) -> str:
    return path.partition("/")[2] or path


def _is_array(x: Any) -> bool:
    if isinstance(x, tf.Variable):
        return False  # is captured, as a function that holds variables would
    return isinstance(x, tf.TensorSpec) or tf.is_tensor(x) or hasattr(x, "__array_interface__")


def _spec(x: Any) -> tf.TensorSpec:
    if isinstance(x, tf.TensorSpec):
        return tf.TensorSpec(x.shape, x.dtype)
    x = tf.convert_to_tensor(x)
    return tf.TensorSpec(x.shape, x.dtype)
