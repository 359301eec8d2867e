"""Runs several iterations of a workflow in one call, in a graph loop or in Python.

It knows no agent, learner or buffer: an iteration is the workflow's `iterate`. A runner belongs to
the variables of one state. It keeps compile modes, and compiled functions with the handles of these
variables. It holds no variable, so that a state is freed with the last reference to it.
"""

import functools
import time
from collections.abc import Callable, Hashable
from typing import Any, Protocol

import numpy as np
import tensorflow as tf

from tfrl import struct
from tfrl.learning import leaves
from tfrl.metrics.accumulator import MetricAccumulator, MoreMetricsError, row_of
from tfrl.traces import Traces, counted_separately, specs_of
from tfrl.types import Nest
from tfrl.workflows import stages
from tfrl.workflows.hook_results import check_iterated, check_names
from tfrl.workflows.run_state import ROW_COUNTERS, State
from tfrl.workflows.stages import RunPhase, Stages
from tfrl.xla import never_in_xla

# Rows of metrics that one call can return.
MAX_ROWS = 1024
# Metrics of a row in a loop; their names are known only after tracing. A loop with more is traced
# again.
_SLOTS = 40


class Iterating(Protocol):
    """A workflow, as a runner uses it."""

    # Iterations that share a row of metrics.
    iterations_per_row: int

    def iterate(self, state: State, key: tf.Tensor) -> tuple[dict[str, tf.Tensor], State]:
        """One iteration; traced."""

    def counters(self, state: State) -> tf.Tensor:
        """Returns the counters of a row, int64 [4], named `ROW_COUNTERS`; traced."""

    def phase_of(self, state: State) -> RunPhase:
        """Returns the phase that a run is in."""

    def settle_modes(self, state: State, stages: Stages) -> None:
        """Settles the compile mode of every stage, and that of the loop."""

    def begin_call(self, state: State) -> State:
        """Returns the state without the leaves that no iteration changes."""

    def end_call(self, before: State, after: State) -> State:
        """Returns the state after a call, with the leaves that `begin_call` dropped."""

    def prefetch(self, state: State) -> State:
        """Returns the state that the first iteration of a call begins with; traced."""

    def times_stages(self, stages: Stages) -> bool:
        """Whether clocks time the stages where possible."""

    @property
    def fixed_steps_per_iteration(self) -> int | None:
        """Env steps of an iteration; None where their number varies."""


class Runner:
    """Runs the iterations of a run, and collects rows of metrics.

    Attributes:
      iterations: The iteration count of the newest state; older states are consumed.
      modes: `{stage: compile mode}`, as far as settled.
      seconds: `{stage: {mode: seconds}}`, as far as timed.
      traces: The traces of the workflow's logic.
      phases: Names of the phases so far; the first call of a phase compiles.
    """

    def __init__(self, workflow: Iterating, traces: Traces, iterations: int = 0):
        """Prepares; nothing is traced yet."""
        self._workflow, self.traces, self.iterations = workflow, traces, iterations
        self.modes: dict[str, str] = {}
        self.seconds: dict[str, dict[str, float]] = {}
        self.phases: set[str] = set()
        self._bound: dict[Hashable, Callable[..., Any]] = {}
        self._names: dict[str, list[str]] = {}
        self._slots = _SLOTS

    def settled(self, state: State, phase: RunPhase | None = None) -> Stages:
        """Returns the stages of a phase, by default that of the state, in settled modes."""

        def bind(name: Hashable, make: Callable[[], Any], args: Any) -> Any:
            return self.traces.bound(name, make, args, variables_of(state))

        run_stages = Stages(phase or self._workflow.phase_of(state), self.modes, self.seconds, bind)
        self.phases.add(run_stages.phase.name)
        if "loop" not in self.modes:
            with run_stages.in_use():
                self._workflow.settle_modes(state, run_stages)
        return run_stages

    def once(self, state: State, name: Hashable, fn: Callable[[], Any]) -> Any:
        """Returns a compiled function without arguments over the variables of a state."""
        if name not in self._bound:
            make = functools.partial(tf.function, counted_separately(fn), autograph=False)
            self._bound[name] = self.traces.bound(name, make, (), variables_of(state))
        return self._bound[name]

    def take_modes(self, other: "Runner") -> None:
        """Takes the modes of the runner that a state was copied from."""
        self.modes.update(other.modes)
        self.seconds.update(other.seconds)

    def run(
        self, state: State, iterations: int, until: int | None
    ) -> tuple[list[dict[str, Any]], State, dict[str, float]]:
        """Runs iterations until there are `iterations`, or `until` env steps are reached.

        A call ends with a phase.

        Returns:
          Rows of metrics, the state, and seconds: `call`, `rollout`, `update`.
        """
        run_stages = self.settled(state)
        most = np.iinfo(np.int64).max
        limit = min(most if x is None else x for x in (until, run_stages.phase.ends))
        iterations = min(iterations, MAX_ROWS * self._workflow.iterations_per_row)
        start = time.perf_counter()
        with run_stages.in_use():
            begun = self._workflow.begin_call(state)
            after, done, floats, counters, seconds = self._run(begun, run_stages, iterations, limit)
            state = self._workflow.end_call(state, after)
        rows = as_rows(int(done), self._names.get(run_stages.phase.name, []), floats, counters)
        if rows:
            self.iterations = int(rows[-1]["iterations"])
        call = time.perf_counter() - start
        return rows, state, {"call": call, **self._split(run_stages, call, *map(float, seconds))}

    def _run(self, state: State, run_stages: Stages, iterations: int, limit: int) -> Any:
        if run_stages.modes["loop"] == "eager" or tf.config.functions_run_eagerly():
            return self._run_eagerly(state, run_stages, iterations, limit)
        carried = leaves.carried(state)
        args = (carried, tf.constant(iterations), tf.constant(limit, tf.int64))
        how: tuple[Any, ...] = (run_stages.phase.name, *sorted(run_stages.modes.items()))
        if not leaves.in_place(state):  # this runner serves states of any form
            how = (*how, specs_of(args))
        if how not in self._bound:
            self._bound[how] = self._traced(state, run_stages, ("loop", *how), args)
        carried, *rest = self._bound[how](*args)
        return leaves.with_carried(state, carried), *rest

    def _traced(
        self, state: State, run_stages: Stages, name: Hashable, args: Any
    ) -> Callable[..., Any]:
        """`loop` as a compiled function."""
        fused = run_stages.modes["loop"] == "xla"
        loop: Callable[..., Any] = functools.partial(self.loop, state, run_stages)
        fn = counted_separately(loop if fused else never_in_xla(loop))
        make = functools.partial(tf.function, fn, jit_compile=fused, autograph=False)
        variables = variables_of(state)
        try:
            bound: Callable[..., Any] = self.traces.bound(name, make, args, variables)
        except MoreMetricsError as error:
            self._slots = error.number
            bound = self.traces.bound(name, make, args, variables)
        phase = run_stages.phase.name
        names = self._names.get(phase, [])
        self._names[phase] = self.traces.notes.setdefault(("names", phase), names)
        return bound

    def _has_clocks(self, run_stages: Stages) -> bool:
        return stages.may_have_clocks(run_stages.modes["loop"]) and self._workflow.times_stages(
            run_stages
        )

    # One iteration.

    def _iterate(
        self, state: State, run_stages: Stages
    ) -> tuple[State, tf.Tensor, tf.Tensor, tf.Tensor]:
        """Returns state, float metrics, counters, and seconds by stage."""
        timed = self._has_clocks(run_stages)
        start = stages.now() if timed else tf.constant(0.0, tf.float64)
        with stages.timed(timed) as times, tf.control_dependencies([start] if timed else []):
            result = self._workflow.iterate(state, state.iteration_key())
            if run_stages.phase.name in self._names and tf.executing_eagerly():
                metrics, state = result  # checked in the first iteration
            else:
                metrics, state = check_iterated(state, result)
        (middle,) = times or [start]
        end = start
        if timed:
            with tf.control_dependencies(stages.data(metrics)):
                end = stages.now()
        names = self._names.setdefault(run_stages.phase.name, sorted(metrics))
        check_names(names, metrics)
        size = len(names) if tf.executing_eagerly() else self._slots
        floats = row_of(metrics, names, size)
        with tf.control_dependencies([end] if timed else []):
            counters = self._workflow.counters(state)
        return state, floats, counters, tf.stack([middle - start, end - middle])

    # Many.

    def loop(
        self,
        state: State,
        run_stages: Stages,
        carried: list[tf.Tensor],
        iterations: tf.Tensor,
        limit: tf.Tensor,
    ) -> Any:
        """Runs iterations up to a number of iterations or env steps; traced.

        Args:
          state: A state of the same structure as the one to begin with.
          run_stages: The stages of an iteration.
          carried: The leaves of the state to begin with, see `leaves.carried`.
          iterations: int32 scalar.
          limit: int64 scalar, env steps.

        Returns:
          The carried leaves of the state, the number of rows, their floats and counters, and
          seconds by stage.
        """
        begun = self._workflow.prefetch(leaves.with_carried(state, carried))
        floats = tf.TensorArray(tf.float32, MAX_ROWS, element_shape=[self._slots])
        counters = tf.TensorArray(tf.int64, MAX_ROWS, element_shape=[len(ROW_COUNTERS)])
        of = functools.partial(leaves.with_carried, begun)

        def body(
            i: Any, done: Any, carried: Any, floats: Any, counters: Any, seconds: Any
        ) -> tuple[Any, ...]:
            carried, done, f, c, s = self._row(of, carried, run_stages, done, iterations, limit)
            return i + 1, done, carried, floats.write(i, f), counters.write(i, c), seconds + s

        rows, _, carried, floats, counters, seconds = tf.while_loop(
            lambda i, done, carried, *_: (
                (done < iterations) & (of(carried).metrics.env_steps < limit)
            ),
            body,
            (0, tf.constant(0), leaves.carried(begun), floats, counters, tf.zeros([2], tf.float64)),
            parallel_iterations=1,
            name="rows",
        )
        after = leaves.carried(of(carried).replace(prefetched=None))
        return after, rows, floats.stack(), counters.stack(), tf.unstack(seconds)

    def _row(
        self,
        of: Callable[..., State],
        carried: Any,
        run_stages: Stages,
        done: Any,
        n: Any,
        limit: Any,
    ) -> Any:
        """Runs the iterations of a row of metrics; returns state, iterations done, and the row."""
        per_row, steps = self._workflow.iterations_per_row, self._workflow.fixed_steps_per_iteration
        if per_row == 1:
            state, *row = self._iterate(of(carried), run_stages)
            return leaves.carried(state), done + 1, *row
        zeros = tf.zeros([2, self._slots])
        # Each carried tensor costs a graph several operations per iteration.
        timed = self._has_clocks(run_stages)
        zero = tf.zeros([2], tf.float64)
        most = tf.minimum(done + per_row, n)

        def once(carried: Any, sums: Any, seconds: Any) -> Any:
            state, f, _, s = self._iterate(of(carried), run_stages)
            return leaves.carried(state), accumulator().add(sums, f), [t + s for t in seconds]

        def accumulator() -> MetricAccumulator:
            return MetricAccumulator(self._names[run_stages.phase.name], self._slots)

        start = (carried, zeros, [zero] if timed else [])
        if steps is not None:  # the iteration that reaches the limit is known
            left = (limit - of(carried).metrics.env_steps - 1) // steps + 1
            # At least 1: the caller checked that neither limit is reached.
            number = tf.cast(tf.minimum(tf.cast(most - done, tf.int64), left), tf.int32)
            carried, sums, seconds = tf.while_loop(
                lambda *_: tf.constant(True),
                once,
                start,
                parallel_iterations=1,
                maximum_iterations=number,
                name="iterations",
            )
            done += number
        else:
            done, (carried, sums, seconds) = tf.while_loop(
                lambda done, rest: (done < most) & (of(rest[0]).metrics.env_steps < limit),
                lambda done, rest: (done + 1, once(*rest)),
                (done, start),
                parallel_iterations=1,
                name="iterations",
            )
        counters = self._workflow.counters(of(carried))
        return carried, done, accumulator().result(sums), counters, seconds[0] if timed else zero

    def _run_eagerly(self, state: State, run_stages: Stages, iterations: int, limit: int) -> Any:
        """Runs the loop in Python; see `loop`."""
        state = self._workflow.prefetch(state)
        rows = MetricRows(self._workflow.iterations_per_row)
        done, env_steps, seconds = 0, int(state.metrics.env_steps), np.zeros(2)
        while done < iterations and env_steps < limit:
            state, f, c, s = self._iterate(state, run_stages)
            done += 1
            seconds += s.numpy()
            env_steps = int(c.numpy()[ROW_COUNTERS.index("env_steps")])
            accumulator = MetricAccumulator(self._names[run_stages.phase.name])
            sums = accumulator.start() if rows.sums is None else rows.sums
            rows.add(accumulator.add(sums, f), c)
            if not done % rows.length or done >= iterations or env_steps >= limit:
                rows.end(accumulator, len(f))
        return state.replace(prefetched=None), len(rows.floats), rows.floats, rows.counters, seconds

    def _split(
        self, run_stages: Stages, call: float, rollout: float, update: float
    ) -> dict[str, float]:
        """Seconds by stage; without clocks, in the proportion of the stages timed apart."""
        if self._has_clocks(run_stages):
            return {"rollout": rollout, "update": update}
        known = [
            run_stages.seconds.get(n, {}).get(run_stages.modes.get(n, ""))
            for n in ("rollout", "update")
        ]
        a, b = known
        if a is None or b is None:
            return {}
        return {"rollout": call * a / (a + b), "update": call * b / (a + b)}


class MetricRows:
    """Collects the rows of metrics of a Python loop.

    Attributes:
      length: Iterations of a row.
      sums: The sums of the current row, float32 [2, n], see `MetricAccumulator`.
      floats: The metrics of each row.
      counters: The `ROW_COUNTERS` of each.
    """

    def __init__(self, length: int, start: tf.Tensor | None = None):
        """Starts without rows; `start` is the sums of a row without iterations."""
        self.length = length
        self._start: Any = start
        self.sums: Any = start
        self._counters: Any = None
        self.floats: list[np.ndarray] = []
        self.counters: list[np.ndarray] = []

    def add(self, sums: tf.Tensor, counters: tf.Tensor) -> None:
        """Takes the sums and counters after an iteration."""
        self.sums, self._counters = sums, counters

    def end(self, accumulator: MetricAccumulator, number: int) -> None:
        """Ends a row with `number` named metrics; waits for its last call."""
        self.counters.append(self._counters.numpy())
        self.floats.append(accumulator.result_of(self.sums.numpy())[:number])
        self.sums = self._start


def variables_of(state: Nest) -> dict[str, tf.Variable]:
    """Returns the variables among the leaves of a state by path."""
    return {p: x for p, x in struct.paths(state).items() if isinstance(x, tf.Variable)}


def as_rows(done: int, names: list[str], floats: Any, counters: Any) -> list[dict[str, Any]]:
    """Returns the rows of metrics of a call, `{name: number}`, with the counters."""
    floats, counters = np.asarray(floats)[:done], np.asarray(counters)[:done]
    return [
        {**dict(zip(ROW_COUNTERS, c, strict=True)), **dict(zip(names, f, strict=False))}
        for f, c in zip(floats.tolist(), counters.tolist(), strict=True)
    ]
