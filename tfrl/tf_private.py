"""The library's uses of TensorFlow's private API; no other module imports it.

TensorFlow may change it in any minor version. `tests/test_tf_private.py` tests each use, so that an
incompatible version fails there, by the name of the change.
"""

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python.eager import context, execute, executor
from tensorflow.python.eager.polymorphic_function import atomic_function
from tensorflow.python.framework import config, tensor_spec
from tensorflow.python.ops import (
    control_flow_util,
    control_flow_v2_func_graphs,
    gen_random_ops,
    resource_variable_ops,
)
from tensorflow.python.saved_model import nested_structure_coder

# The base class of `tfrl.specs.BoundedTensorSpec`.
BoundedTensorSpec = tensor_spec.BoundedTensorSpec
# The module with the raw operations of `tf.random.uniform` and others, which have a global state.
random_ops = gen_random_ops


# Graphs.


def in_xla(graph: Any) -> bool:
    """Whether XLA compiles the graph being traced, or a graph around it."""
    return bool(control_flow_util.GraphOrParentsInXlaContext(graph))


def is_control_flow(graph: Any) -> bool:
    """Whether a graph is a branch of a condition, or the condition or body of a loop."""
    return isinstance(graph, control_flow_v2_func_graphs.ControlFlowFuncGraph)


def function_graph(graph: Any, name: str) -> Any:
    """Returns the graph of the function `name` that a graph calls; None without one."""
    return getattr(graph._get_function(name), "graph", None)


def remove_control_inputs(op: Any) -> None:
    """Makes an operation wait only for its input tensors."""
    op._remove_all_control_inputs()


def decode_structure(proto: Any) -> Any:
    """Returns the nest of specs of a `StructuredValue`, a signature in a Reverb checkpoint."""
    return nested_structure_coder.decode_proto(proto)


# Variables.


def is_resource_variable(value: Any) -> bool:
    """Whether a value is a variable with one handle, not a variable of a strategy."""
    return isinstance(value, resource_variable_ops.ResourceVariable)


def set_handle(variable: tf.Variable, handle: tf.Tensor) -> None:
    """Makes a variable read and write the memory of another variable."""
    variable._handle = handle


class TracedValue:
    """The value of one variable during the trace of a call.

    Inside a graph every read and every assignment of a variable goes through methods of the
    variable object.

    Attributes:
      value: The present value.
      methods: Replacements of the variable's methods: reads return `value`, assignments change it.
    """

    def __init__(self, variable: tf.Variable, value: tf.Tensor):
        """Starts from a value of the variable's dtype."""
        self.variable = variable
        self.value = value
        self.methods: dict[str, Callable[..., Any]] = {
            "_read_variable_op": lambda no_copy=False: self.value,
            "sparse_read": lambda indices, name=None: tf.gather(self.value, indices),
            "gather_nd": lambda indices, name=None: tf.gather_nd(self.value, indices),
            "assign": lambda value, *args, **kwargs: self._set(value),
            "assign_add": lambda delta, *args, **kwargs: self._set(self.value + self._like(delta)),
            "assign_sub": lambda delta, *args, **kwargs: self._set(self.value - self._like(delta)),
        }

    def _like(self, value: Any) -> tf.Tensor:
        return tf.convert_to_tensor(value, self.variable.dtype)

    def _set(self, value: Any) -> tf.Tensor:
        self.value = self._like(value)
        return self.value


# Tensors.


def shrink_tensor_leak() -> None:
    """Makes each freed eager tensor leave 16 bytes behind in place of 48.

    TensorFlow 2.15 does not free the array of attributes that Python 3.11 makes for each instance.
    It has room for the names that were set on the first 30 tensors (CPython's
    `init_inline_values`). Variables set four names on their handles, so these tensors come first.
    """
    for _ in range(30):
        tf.constant(0)


# Calls from Python.


def call_flat(function: Any, tensors: Sequence[tf.Tensor], captured: list[tf.Tensor]) -> Any:
    """Calls a concrete function with replaced captured inputs.

    Source: `ConcreteFunction._call_flat(arguments, captured_inputs)`.

    Args:
      function: The concrete function.
      tensors: The tensors of its arguments.
      captured: Tensors in the form of its `captured_inputs`.
    """
    return function._call_flat(list(tensors), captured)


def direct_call(
    function: Any, captured: Sequence[tf.Tensor]
) -> Callable[[Sequence[tf.Tensor]], list[tf.Tensor]]:
    """Returns a call of a concrete function of lists without TensorFlow's checks of each tensor.

    Source: `AtomicFunction.call_flat` and `Context.call_function`, without their code for
    gradients, handles among the outputs, and calls inside a graph.
    """
    atomic = function._inference_function
    fixed, count = list(captured), len(atomic.function_type.flat_outputs)
    name = atomic.name.decode()

    def call(leaves: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        ctx = context.context()
        options = ctx.function_call_options.as_attrs()
        attributes = tuple(part for option in options.items() for part in option)
        with atomic_function.InterpolateRuntimeError(atomic):
            return execute.quick_execute(name, count, [*leaves, *fixed], attributes, ctx)

    return call


def element_reader(iterator: Any) -> Callable[[], list[tf.Tensor]]:
    """Returns a function that reads the leaves of the next element of a dataset's iterator."""
    types, shapes = iterator._flat_output_types, iterator._flat_output_shapes
    attributes = (
        *("output_types", [dtype.as_datatype_enum for dtype in types]),
        *("output_shapes", [execute.make_shape(shape, "shape") for shape in shapes]),
    )
    inputs, count = [iterator._iterator_resource], len(types)

    def read() -> list[tf.Tensor]:
        return execute.quick_execute(
            "IteratorGetNext", count, inputs, attributes, context.context()
        )

    return read


# The runtime.


def has_started() -> bool:
    """Whether TensorFlow's devices have started; they can no longer be configured then."""
    return context.context()._context_handle is not None


def is_op_determinism_enabled() -> bool:
    """Whether `tf.config.experimental.enable_op_determinism` was called."""
    return bool(config.is_op_determinism_enabled())


def async_executor() -> Any:
    """Returns an executor whose operations run in the background, in order."""
    return executor.new_executor(enable_async=True)


def call_within(chosen: Any, fn: Callable[..., Any], *args: Any) -> Any:
    """Calls `fn(*args)`; an executor of `async_executor` runs its operations."""
    # Like `context.executor_scope`, without the generator of a context manager.
    ctx = context.context()
    before = ctx.executor
    ctx.executor = chosen
    try:
        return fn(*args)
    finally:
        ctx.executor = before
