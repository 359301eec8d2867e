"""Runs a traced TensorFlow function in NumPy, step after step, without calling TensorFlow.

A TensorFlow call from Python costs about 300 microseconds, the arithmetic of a small policy in
NumPy 20. `NumpyProgram` splits a function's graph by the dependencies of its operations:

* only on the state (parameters, statistics): computed once for many steps, in NumPy;
* only on the key (random draws): computed for all steps at once by TensorFlow, so that the draws
  are bitwise equal to the traced function's;
* on the inputs of a step: run in NumPy at every step, one NumPy call per operation.

It supports the operations of `numpy_ops.OPS`; functions with others raise `NotInNumpy` and run in
TensorFlow.
"""

import copy
import ctypes
import itertools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from numpy.linalg import _umath_linalg  # type: ignore[attr-defined]

from tfrl import seeding, tf_private
from tfrl.nest_packing import array_of, builder, leaves_of
from tfrl.rollout.numpy_ops import IN_TUPLES, OPS
from tfrl.traces import counted_separately
from tfrl.types import Nest

_STATE, _KEY, _STEP = 0, 1, 2
_IGNORED = ("Placeholder", "Const", "NoOp")


class NotInNumpy(Exception):
    """The function has an unsupported operation; the message names it."""


class NumpyProgram:
    """`fn(state, key, *inputs)`, run for successive keys with the same state.

    `begin(state, key, length)`, then `run(t, inputs)` gives `fn(state, keys[t], *inputs)`.

    Attributes:
      reads: Indices of the state's leaves that it reads, in order.
    """

    def __init__(self, fn: Callable[..., Nest], state: Nest, inputs: Sequence[Nest]):
        """Traces `fn` and splits its graph.

        Args:
          fn: `fn(state, key, *inputs)`, a pure function of tensors.
          state: A nest of TensorSpecs.
          inputs: Nests of TensorSpecs with static shapes.

        Raises:
          NotInNumpy: If the function has an unsupported operation.
        """
        key = tf.TensorSpec([2], tf.int32)
        leaves = [tf.nest.flatten(x) for x in (state, key, list(inputs))]
        structure: list[Nest] = []

        def flat(*values: tf.Tensor) -> list[tf.Tensor]:
            first, second = len(leaves[0]), len(leaves[0]) + 1
            arguments = tf.nest.pack_sequence_as(list(inputs), values[second:])
            result = fn(tf.nest.pack_sequence_as(state, values[:first]), values[first], *arguments)
            structure.append(tf.nest.map_structure(lambda x: x.dtype, result))
            return [tf.identity(x) for x in tf.nest.flatten(result)]

        signature = [tf.TensorSpec(s.shape, s.dtype) for group in leaves for s in group]
        wrapped = tf.compat.v1.wrap_function(flat, signature)
        self._pack = builder(structure[-1])
        self._graph = wrapped.graph
        if self._graph.captures:
            names = [x.name for _, x in self._graph.captures]
            raise NotInNumpy(f"values captured from outside the function: {', '.join(names[:3])}")
        own = self._graph.inputs
        self._state_in = own[: len(leaves[0])]
        self._key_in = own[len(leaves[0])]
        self._step_in = own[len(leaves[0]) + 1 :]
        self._levels = self._levels_of_tensors()
        self._plan(wrapped)

    # Splitting the graph.

    def _levels_of_tensors(self) -> dict[Any, int]:
        """The dependency of each tensor: the state, only the key, or a step's inputs."""
        levels = {x.ref(): _STATE for x in self._state_in}
        levels[self._key_in.ref()] = _KEY
        levels.update({x.ref(): _STEP for x in self._step_in})
        on_state = {x.ref() for x in self._state_in}
        for op in self._graph.get_operations():
            if op.type == "Placeholder":
                continue
            of_inputs = [levels[x.ref()] for x in op.inputs]
            level = max(of_inputs, default=_STATE)
            reads_state = any(x.ref() in on_state for x in op.inputs)
            if level == _KEY and reads_state:
                level = _STEP
            for y in op.outputs:
                levels[y.ref()] = level
                if level == _STATE and reads_state:
                    on_state.add(y.ref())
        return levels

    def _plan(self, wrapped: Any) -> None:
        """Makes the lists of NumPy calls, and the function that draws for all keys."""
        self._slots: dict[Any, int] = {}
        needed = self._needed(wrapped.outputs)
        consts = {
            op.outputs[0].ref(): tf.make_ndarray(op.get_attr("value"))
            for op in needed
            if op.type == "Const"
        }
        self._values: list[Any] = []
        for ref, value in consts.items():
            self._values[self._slot(ref) :] = [value]
        ops = [op for op in needed if op.type not in _IGNORED]
        drawn = self._drawn(ops, wrapped.outputs)
        calls: dict[int, list[_Call]] = {_STATE: [], _STEP: []}
        for op in ops:
            level = max((self._levels[y.ref()] for y in op.outputs), default=_STATE)
            if level != _KEY:
                calls[level].append(self._call(op))
        self._state_calls = calls[_STATE]
        self._state_slots = [self._slot(x.ref()) for x in self._state_in]
        read = {x.ref() for op in ops for x in op.inputs} | {x.ref() for x in wrapped.outputs}
        self.reads = tuple(i for i, x in enumerate(self._state_in) if x.ref() in read)
        slots = [self._slot(x.ref()) for x in (*self._step_in, *drawn)]
        results = [self._slot(x.ref()) for x in wrapped.outputs]
        self._kept, self._step = _as_function(calls[_STEP], slots, results)
        self._kept_values: list[Any] = []
        self._draw = self._draw_function(wrapped, drawn)
        self._draws: list[np.ndarray] = []

    def _needed(self, outputs: Sequence[tf.Tensor]) -> list[tf.Operation]:
        """The operations needed for the outputs, in order."""
        needed: set[Any] = set()
        waiting = [x.op for x in outputs]
        while waiting:
            op = waiting.pop()
            if op in needed:
                continue
            needed.add(op)
            waiting += [x.op for x in op.inputs]
        return [op for op in self._graph.get_operations() if op in needed]

    def _drawn(self, ops: Sequence[Any], outputs: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Tensors that depend only on the key and that a step needs."""
        drawn = {}
        users = [(x, op) for op in ops for x in op.inputs]
        for x, op in users:
            of_step = max((self._levels[y.ref()] for y in op.outputs), default=_STATE) == _STEP
            if of_step and self._levels[x.ref()] == _KEY:
                drawn[x.ref()] = x
        drawn.update({x.ref(): x for x in outputs if self._levels[x.ref()] == _KEY})
        return list(drawn.values())

    def _draw_function(self, wrapped: Any, drawn: list[tf.Tensor]) -> Any:
        if not drawn:
            return None
        for op in self._graph.get_operations():
            # Draws with control dependencies on a step's inputs (TF-Agents' random policy) cannot
            # be separated.
            if op.outputs and all(self._levels[y.ref()] == _KEY for y in op.outputs):
                tf_private.remove_control_inputs(op)
        one = wrapped.prune([self._key_in], drawn)

        def all_keys(key: tf.Tensor, length: int) -> list[tf.Tensor]:
            dtypes = [x.dtype for x in drawn]
            keys = seeding.split(key, length)
            return tf.map_fn(lambda key: tuple(one(key)), keys, fn_output_signature=tuple(dtypes))

        return tf.function(counted_separately(all_keys), autograph=False, jit_compile=True)

    def _slot(self, ref: Any) -> int:
        if ref not in self._slots:
            self._slots[ref] = len(self._slots)
        return self._slots[ref]

    def _call(self, op: tf.Operation) -> "_Call":
        if op.type not in OPS:
            raise NotInNumpy(f"the operation {op.type}")
        try:
            fn = OPS[op.type](op)
        except NotImplementedError as error:
            raise NotInNumpy(str(error)) from error
        inputs = [self._slot(x.ref()) for x in op.inputs]
        return _Call(fn, inputs, [self._slot(y.ref()) for y in op.outputs], op.type in IN_TUPLES)

    # Running.

    def fresh(self) -> "NumpyProgram":
        """Returns a copy of the program with its own state."""
        other = copy.copy(self)
        other._values = list(self._values)
        return other

    def begin(self, state: Nest, key: tf.Tensor, length: int) -> None:
        """Takes the state and the key of the next `length` steps.

        Args:
          state: The function's argument.
          key: int32 [2]; step t uses `seeding.split(key, length)[t]`.
          length: Number of steps.
        """
        draws = [] if self._draw is None else self._draw(key, length)
        leaves = tf.nest.flatten(state)
        self.begin_from([leaves[i] for i in self.reads], draws)

    def draw(self, key: tf.Tensor, length: int) -> list[tf.Tensor]:
        """Returns the draws of `length` steps for `begin_from`; may be traced."""
        return [] if self._draw is None else list(self._draw(key, length))

    def begin_from(self, leaves: Sequence[Any], draws: Sequence[Any]) -> None:
        """`begin` with the leaves in `reads` and the result of `draw`."""
        values = self._values
        values += [None] * (len(self._slots) - len(values))
        for i, leaf in zip(self.reads, leaves, strict=True):
            values[self._state_slots[i]] = array_of(leaf)
        before = _silence()
        try:
            for fn, inputs, outputs, in_tuple in self._state_calls:
                result = fn(*[values[i] for i in inputs])
                for slot, value in zip(outputs, result if in_tuple else [result], strict=True):
                    values[slot] = value
        finally:
            _restore(before)
        self._kept_values = [values[slot] for slot in self._kept]
        self._draws = [array_of(x) for x in draws]

    def redraw(self, key: tf.Tensor, length: int) -> None:
        """Draws for more steps with the current state."""
        self._draws = [array_of(x) for x in self.draw(key, length)]

    def run(self, t: int, inputs: Sequence[Nest]) -> Nest:
        """Returns `fn(state, keys[t], *inputs)`, in NumPy."""
        arrays = leaves_of(inputs)
        for draws in self._draws:
            arrays.append(draws[t])
        threads = _BLAS.threads()
        if threads > 1:
            _BLAS.set_threads(1)
        before = _silence()
        try:
            return self._pack(self._step(self._kept_values, arrays))
        finally:
            _restore(before)
            if threads > 1:
                _BLAS.set_threads(threads)


class _Blas:
    """The threads of OpenBLAS, behind NumPy's matrix products.

    After a product its threads spin while waiting for the next one, and take a core from the
    learner: a layer of 256 by 256 costs about 3 ms of CPU with two threads and 0.05 ms with one.

    Attributes:
      threads: Returns their number; 1 if NumPy uses another library.
      set_threads: Changes it.
    """

    def __init__(self) -> None:
        self.threads: Callable[[], int] = lambda: 1
        self.set_threads: Callable[[int], Any] = lambda number: None
        library = ctypes.CDLL(_umath_linalg.__file__)
        # In NumPy 2 the names have a prefix.
        for prefix, suffix in itertools.product(("scipy_", ""), ("64_", "")):
            if hasattr(library, f"{prefix}openblas_set_num_threads{suffix}"):
                self.threads = getattr(library, f"{prefix}openblas_get_num_threads{suffix}")
                self.set_threads = getattr(library, f"{prefix}openblas_set_num_threads{suffix}")
                break


_BLAS = _Blas()


# TensorFlow does not warn of a division by zero. NumPy 1's `errstate` takes two microseconds.
if hasattr(np, "seterrobj"):
    _restore: Callable[[Any], Any] = np.seterrobj

    def _silence() -> Any:
        """Turns off NumPy's warnings; returns the argument of `_restore`."""
        before = np.geterrobj()
        _restore([before[0], 0, before[2]])
        return before

else:
    _restore, _silence = (lambda before: np.seterr(**before)), (lambda: np.seterr(all="ignore"))


class _Call(NamedTuple):
    """One NumPy call: its function, input and output slots, and whether it returns a tuple."""

    fn: Callable[..., Any]
    inputs: list[int]
    outputs: list[int]
    in_tuple: bool


def _as_function(
    calls: Sequence[_Call], inputs: Sequence[int], results: Sequence[int]
) -> tuple[list[int], Callable[[list[Any], list[Any]], list[Any]]]:
    """Compiles calls into one Python function, with local variables instead of lists of slots.

    Looking up slots takes as long as the arithmetic of a small policy.

    Args:
      calls: In order.
      inputs: The slots with new values at every step.
      results: The slots that the function returns.

    Returns:
      The slots with constant values, and `step(kept, inputs)`, which returns the values of
      `results`; the arguments are lists of the values of constant slots and of `inputs`.
    """
    available = {*inputs, *(slot for call in calls for slot in call.outputs)}
    read = [slot for call in calls for slot in call.inputs] + list(results)
    kept = list(dict.fromkeys(slot for slot in read if slot not in available))
    lines = []
    for names, slots in (("kept", kept), ("inputs", inputs)):
        if slots:
            lines.append(f"[{', '.join(f'v{slot}' for slot in slots)}] = {names}")
    for i, call in enumerate(calls):
        left = ", ".join(f"v{slot}" for slot in call.outputs)
        left = f"[{left}]" if call.in_tuple else left
        lines.append(f"{left} = f{i}({', '.join(f'v{slot}' for slot in call.inputs)})")
    lines.append(f"return [{', '.join(f'v{slot}' for slot in results)}]")
    source = "def step(kept, inputs):\n" + "\n".join(f"    {line}" for line in lines)
    scope: dict[str, Any] = {f"f{i}": call.fn for i, call in enumerate(calls)}
    # The source consists only of slot and function names generated above, not of user input.
    exec(compile(source, "<tfrl NumpyProgram>", "exec"), scope)  # nosec B102
    return kept, scope["step"]
