"""All that the library uses of TensorFlow's private parts; nothing else imports them.

TensorFlow may change these in any minor version. `tests/test_tf_private.py` has a test of each, so
that a version that does fails there, by the name of what it has changed.
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

# The spec of which `tfrl.specs.BoundedTensorSpec` is a subclass.
BoundedTensorSpec = tensor_spec.BoundedTensorSpec
# Here `tf.random.uniform` and the like find the operations that draw from a global state.
random_ops = gen_random_ops


# Graphs.


def in_xla(graph: Any) -> bool:
    """Whether XLA compiles a graph that is being traced, or one around it."""
    return bool(control_flow_util.GraphOrParentsInXlaContext(graph))


def is_control_flow(graph: Any) -> bool:
    """Whether a graph is a branch of a condition, or the condition or body of a loop."""
    return isinstance(graph, control_flow_v2_func_graphs.ControlFlowFuncGraph)


def function_graph(graph: Any, name: str) -> Any:
    """Returns the graph of a function of this name that a graph calls; None without one."""
    return getattr(graph._get_function(name), "graph", None)


def remove_control_inputs(op: Any) -> None:
    """Lets an operation wait for nothing but the tensors that it takes."""
    op._remove_all_control_inputs()


def decode_structure(proto: Any) -> Any:
    """Returns the nest of specs of a `StructuredValue`, a signature in a Reverb checkpoint."""
    return nested_structure_coder.decode_proto(proto)


# Variables.


def is_resource_variable(value: Any) -> bool:
    """Whether a value is a variable with one handle, which is no strategy's."""
    return isinstance(value, resource_variable_ops.ResourceVariable)


def set_handle(variable: tf.Variable, handle: tf.Tensor) -> None:
    """Makes a variable read and write the memory of another."""
    variable._handle = handle


class TracedValue:
    """The value of one variable during a call that is traced.

    Inside a graph every read of a variable goes through methods of the variable object, and so does
    every assignment.

    Attributes:
      value: As it is now.
      methods: What replaces the variable's methods: reads return `value`, assignments change it.
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


# Calls from Python.


def call_flat(function: Any, tensors: Sequence[tf.Tensor], captured: list[tf.Tensor]) -> Any:
    """Calls a concrete function, with other tensors in the place of those that it captured.

    Source: `ConcreteFunction._call_flat(arguments, captured_inputs)`.

    Args:
      function: Concrete.
      tensors: The tensors of its arguments.
      captured: Like its `captured_inputs`.
    """
    return function._call_flat(list(tensors), captured)


def direct_call(
    function: Any, captured: Sequence[tf.Tensor]
) -> Callable[[Sequence[tf.Tensor]], list[tf.Tensor]]:
    """Returns a call of a concrete function of lists without TensorFlow's checks of each tensor.

    Source: `AtomicFunction.call_flat` and `Context.call_function`; what they do besides concerns
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
            return execute.quick_execute(  # type: ignore[no-any-return]
                name, count, [*leaves, *fixed], attributes, ctx
            )

    return call


def element_reader(iterator: Any) -> Callable[[], list[tf.Tensor]]:
    """Returns a call that gives the next element's leaves of a dataset's iterator."""
    types, shapes = iterator._flat_output_types, iterator._flat_output_shapes
    attributes = (
        *("output_types", [dtype.as_datatype_enum for dtype in types]),
        *("output_shapes", [execute.make_shape(shape, "shape") for shape in shapes]),
    )
    inputs, count = [iterator._iterator_resource], len(types)

    def read() -> list[tf.Tensor]:
        return execute.quick_execute(  # type: ignore[no-any-return]
            "IteratorGetNext", count, inputs, attributes, context.context()
        )

    return read


# The runtime.


def has_started() -> bool:
    """Whether TensorFlow's devices have started, after which they cannot be set up any more."""
    return context.context()._context_handle is not None


def is_op_determinism_enabled() -> bool:
    """Whether `tf.config.experimental.enable_op_determinism` was called; it can only be set."""
    return bool(config.is_op_determinism_enabled())


def async_executor() -> Any:
    """Returns an executor whose operations run in the background, in order."""
    return executor.new_executor(enable_async=True)


def call_within(chosen: Any, fn: Callable[..., Any], *args: Any) -> Any:
    """Calls `fn(*args)`, whose operations an executor of `async_executor` runs."""
    # What `context.executor_scope` does, without the generator of a context manager.
    ctx = context.context()
    before = ctx.executor
    ctx.executor = chosen
    try:
        return fn(*args)
    finally:
        ctx.executor = before
