"""Calls of compiled functions from Python, at a fraction of TensorFlow's own overhead.

`tf.function` looks at every argument to find the trace that fits: a few dozen small tensors take it
half a millisecond, several times what a small update takes. A loop that calls one trace again and
again gives it flat lists of tensors instead.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfrl import tf_private
from tfrl.distribute.tracing import counted_apart
from tfrl.xla import never_in_xla


class FastCall:
    """A function of lists of tensors, compiled for the shapes of its first call."""

    def __init__(
        self,
        fn: Callable[..., list[tf.Tensor]],
        bind: Callable[..., Any],
        *,
        jit: bool = False,
    ):
        """Prepares; nothing is traced yet.

        Args:
          fn: `fn(*tensors)` returns a list of tensors.
          bind: `bind(make, args)` returns what `Traces.bound` does.
          jit: Whether XLA compiles it.
        """
        self._fn, self._bind, self._jit = fn, bind, jit
        self._call: Callable[..., list[tf.Tensor]] | None = None

    def forget_function(self) -> None:
        """Drops the function behind the trace, with all that it refers to."""
        self._fn = self._bind = _forgotten

    def _make(self) -> Any:
        traced = self._fn if self._jit else never_in_xla(self._fn)
        return tf.function(counted_apart(traced), autograph=False, jit_compile=self._jit)

    def __call__(self, leaves: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Calls it; the tensors must be shaped as those of the first call."""
        if self._call is None:
            specs = [tf.TensorSpec(x.shape, x.dtype) for x in leaves]
            self._call = self._bind(self._make, specs).direct()
        return self._call(leaves)


def _forgotten(*args: Any) -> Any:
    raise RuntimeError("a FastCall is traced once")


def bound_call(fn: Any, args: tuple[Any, ...]) -> Callable[[], Any]:
    """Returns a call of a `tf.function` on given arguments that leaves out what Python does in one.

    For timing: Python takes a millisecond for the arguments of a learner step, which a graph and
    the loop on the host do not. A function of Python's is called as it is.
    """
    if not hasattr(fn, "get_concrete_function"):
        return lambda: fn(*args)
    concrete = fn.get_concrete_function(*args)
    leaves = tf.nest.flatten(args, expand_composites=True)
    tensors = [x for x in leaves if tf.is_tensor(x)]
    arguments = concrete.inputs[: len(concrete.inputs) - len(concrete.captured_inputs)]
    if [x.dtype for x in tensors] != [x.dtype for x in arguments]:
        return lambda: fn(*args)  # some are Python's, or variables
    return lambda: tf_private.call_flat(concrete, tensors, concrete.captured_inputs)


class AsyncExecutor:
    """Runs calls in the background, one after the other, while Python goes on.

    A call returns at once; `numpy()` of one of its results waits for it, and must come before
    anything else is asked of them. An error of a call is raised there.
    """

    def __init__(self) -> None:
        """Starts the thread in which TensorFlow runs the calls."""
        self._executor = tf_private.async_executor()

    def __call__(self, fn: Callable[..., Any], *args: Any) -> Any:
        """Calls `fn(*args)` without waiting for what TensorFlow computes in it."""
        return tf_private.call_within(self._executor, fn, *args)

    def wait(self) -> None:
        """Waits for all calls."""
        self._executor.wait()

    def forget_error(self) -> None:
        """Is called when a call has failed: further calls would raise its error again."""
        self._executor.clear_error()


class FastReading:
    """The elements of an iterator as flat lists of tensors.

    An iterator's own `get_next` makes its nest and looks at every tensor, which takes several
    times as long as a small element itself. Within an `AsyncExecutor` a call returns at once.
    """

    def __init__(self, iterator: Any):
        """Takes an iterator of a dataset of tensors, whose shapes are known."""
        self._read = tf_private.element_reader(iterator)

    def __call__(self) -> list[tf.Tensor]:
        """Returns the next element's leaves.

        Raises:
          tf.errors.OutOfRangeError: There is none; in an asynchronous executor later.
        """
        return self._read()


class JoinedOutputs:
    """Tensors of a call that Python reads, joined by dtype: each that it reads takes its time."""

    def __init__(self) -> None:
        """Takes their form at the first `join`."""
        self._shapes: list[tuple[int, ...]] = []
        self._groups: list[list[int]] = []

    def join(self, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Returns a vector for each dtype; traced."""
        groups: dict[tf.DType, list[int]] = {}
        for i, x in enumerate(tensors):
            groups.setdefault(x.dtype, []).append(i)
        self._shapes = [tuple(x.shape.as_list()) for x in tensors]
        self._groups = list(groups.values())
        return [tf.concat([tf.reshape(tensors[i], [-1]) for i in g], 0) for g in self._groups]

    def arrays(self, joined: Sequence[tf.Tensor]) -> list[np.ndarray]:
        """Returns the tensors of `join` in NumPy; waits for their call."""
        arrays: list[Any] = [None] * len(self._shapes)
        for group, vector in zip(self._groups, joined, strict=True):
            values, at = vector.numpy(), 0
            for i in group:
                shape = self._shapes[i]
                end = at + math.prod(shape)
                arrays[i], at = values[at:end].reshape(shape), end
        return arrays
