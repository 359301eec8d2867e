"""A loop that carries a nest and stacks what each step returns."""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfrl.types import Nest


def scan(
    step: Callable[[Nest, tf.Tensor], tuple[Nest, Nest]],
    init: Nest,
    length: int,
    output_spec: Nest = None,
    going: Callable[[Nest], tf.Tensor] | None = None,
) -> tuple[Nest, Nest]:
    """Runs `carry, output = step(carry, t)` for t = 0 .. length - 1 and stacks the outputs.

    One `tf.while_loop` with a TensorArray of static size for each leaf of the outputs; outside a
    `tf.function`, and for one step, a Python loop, without fixed output specs.

    Args:
      step: Takes the carried nest and t (int32 scalar); returns the next carried nest, of the same
        structure, shapes and dtypes, and a nest of outputs.
      init: The first carried nest, of tensors.
      length: Number of steps, static, at least 1.
      output_spec: The nest of TensorSpecs of one output; None finds it by tracing `step` once more.
      going: `going(carry) -> bool`: stops when it is False; None for never.

    Returns:
      The last carried nest, and the outputs with a static leading axis [length], zeros for steps
      not taken.
    """
    if length == 1 or tf.executing_eagerly():  # a loop of one step is 160 operations of a graph
        return _scan_in_python(step, init, length, going)
    if output_spec is None:
        output_spec = _output_spec(step, init)
    specs = tf.nest.flatten(output_spec)
    arrays = tuple(
        tf.TensorArray(s.dtype, size=length, element_shape=s.shape, clear_after_read=False)
        for s in specs
    )

    def body(t: tf.Tensor, carry: Nest, arrays: tuple[Any, ...]) -> tuple[Any, ...]:
        carry, output = step(carry, t)
        leaves = tf.nest.flatten(output)
        arrays = tuple(a.write(t, x) for a, x in zip(arrays, leaves, strict=True))
        return t + 1, carry, arrays

    def more(t: tf.Tensor, carry: Nest, _: Any) -> tf.Tensor:
        return t < length if going is None else (t < length) & going(carry)

    _, carry, arrays = tf.while_loop(
        more,
        body,
        (tf.constant(0), init, arrays),
    )
    stacked = [_stack(a, length, s) for a, s in zip(arrays, specs, strict=True)]
    return carry, tf.nest.pack_sequence_as(output_spec, stacked)


def _scan_in_python(step: Any, init: Nest, length: int, going: Any) -> tuple[Nest, Nest]:
    outputs: list[Nest] = []
    carry = init
    for t in range(length):
        if t and going is not None and not going(carry):
            blank = tf.nest.map_structure(tf.zeros_like, outputs[-1])
            outputs += [blank] * (length - t)
            break
        carry, output = step(carry, tf.constant(t))
        outputs.append(output)
    return carry, tf.nest.map_structure(lambda *xs: tf.stack(xs), *outputs)


def _output_spec(step: Any, init: Nest) -> Nest:
    """Traces one step on the side for the shapes and dtypes of its outputs."""
    leaves = tf.nest.flatten(init)
    outputs: list[Nest] = []

    def one(t: tf.Tensor, *values: tf.Tensor) -> list[tf.Tensor]:
        _, output = step(tf.nest.pack_sequence_as(init, values), t)
        outputs.append(tf.nest.map_structure(tf.TensorSpec.from_tensor, output))
        return tf.nest.flatten(output)

    signature = [tf.TensorSpec(x.shape, x.dtype) for x in leaves]
    traced = tf.function(one, autograph=False)
    traced.get_concrete_function(tf.TensorSpec([], tf.int32), *signature)
    # Without names: an output that is an input unchanged would keep the placeholder's.
    return tf.nest.map_structure(lambda s: tf.TensorSpec(s.shape, s.dtype), outputs[-1])


def _stack(array: tf.TensorArray, length: int, spec: tf.TensorSpec) -> tf.Tensor:
    stacked = array.stack()
    stacked.set_shape([length, *spec.shape])
    return stacked
