"""Calls compiled functions from Python at a fraction of TensorFlow's overhead.

`tf.function` inspects every argument to find the trace that fits. A few dozen small tensors take
half a millisecond, several times as long as a small update. A loop over one trace passes flat lists
of tensors instead.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfrl import tf_private
from tfrl.traces import counted_separately
from tfrl.xla import never_in_xla


def fast_call(
    fn: Callable[..., list[tf.Tensor]],
    bind: Callable[..., Any],
    leaves: Sequence[tf.Tensor],
    *,
    jit: bool = False,
) -> Callable[[Sequence[tf.Tensor]], list[tf.Tensor]]:
    """Returns a function of lists of tensors, compiled for the shapes of `leaves`.

    Args:
      fn: `fn(*tensors)` returns a list of tensors; the result does not refer to it.
      bind: `bind(make, args)` returns a bound trace as `Traces.bound` does.
      leaves: Tensors of the shapes of each call.
      jit: Whether XLA compiles it.
    """

    def make() -> Any:
        traced = fn if jit else never_in_xla(fn)
        return tf.function(counted_separately(traced), autograph=False, jit_compile=jit)

    return bind(make, [tf.TensorSpec(x.shape, x.dtype) for x in leaves]).direct()


def bound_call(fn: Any, args: tuple[Any, ...]) -> Callable[[], Any]:
    """Binds arguments to a tf.function and skips Python's processing of them.

    For timing: Python takes a millisecond for the arguments of a learner step; a graph and the loop
    on the host do not. A plain Python function is called normally.
    """
    if not hasattr(fn, "get_concrete_function"):
        return lambda: fn(*args)
    concrete = fn.get_concrete_function(*args)
    leaves = tf.nest.flatten(args, expand_composites=True)
    tensors = [x for x in leaves if tf.is_tensor(x)]
    arguments = concrete.inputs[: len(concrete.inputs) - len(concrete.captured_inputs)]
    if [x.dtype for x in tensors] != [x.dtype for x in arguments]:
        return lambda: fn(*args)  # some arguments are Python values or variables
    return lambda: tf_private.call_flat(concrete, tensors, concrete.captured_inputs)


class AsyncExecutor:
    """Runs calls in the background, one after the other, while Python continues.

    A call returns at once. `numpy()` on one of its results waits for the call, and raises its
    error. Call it before any other use of the results.
    """

    def __init__(self) -> None:
        """Starts TensorFlow's thread for the calls."""
        self._executor = tf_private.async_executor()

    def __call__(self, fn: Callable[..., Any], *args: Any) -> Any:
        """Calls `fn(*args)` without waiting for its TensorFlow operations."""
        return tf_private.call_within(self._executor, fn, *args)

    def wait(self) -> None:
        """Waits for all calls."""
        self._executor.wait()

    def forget_error(self) -> None:
        """Clears the error of a failed call, which further calls would raise again."""
        self._executor.clear_error()


class JoinedOutputs:
    """Joins tensors by dtype, since Python pays for each tensor that it reads."""

    def __init__(self) -> None:
        """`join` records the shapes."""
        self._shapes: list[tuple[int, ...]] = []
        self._groups: list[list[int]] = []

    def join(self, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Returns one vector for each dtype; traced."""
        groups: dict[tf.DType, list[int]] = {}
        for i, x in enumerate(tensors):
            groups.setdefault(x.dtype, []).append(i)
        self._shapes = [tuple(x.shape.as_list()) for x in tensors]
        self._groups = list(groups.values())
        return [tf.concat([tf.reshape(tensors[i], [-1]) for i in g], 0) for g in self._groups]

    def arrays(self, joined: Sequence[tf.Tensor]) -> list[np.ndarray]:
        """Returns the tensors of `join` as NumPy arrays; waits for their call."""
        arrays: list[Any] = [None] * len(self._shapes)
        for group, vector in zip(self._groups, joined, strict=True):
            values, at = vector.numpy(), 0
            for i in group:
                shape = self._shapes[i]
                end = at + math.prod(shape)
                arrays[i], at = values[at:end].reshape(shape), end
        return arrays
