"""The runner where Python steps the environments.

An iteration is a rollout, step by step, and one compiled call. The call also computes the inputs of
the next rollout: keys, random draws and parameters.

With `overlap` the call runs in the background of the next rollout, which acts with the parameters
from before the call. The policy always lags by the learner steps of one iteration, so the result
does not depend on timing.
"""

import collections
import contextlib
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

import tensorflow as tf

from tfrl import seeding, struct
from tfrl.distribute.worker_group import WorkerGroup
from tfrl.errors import UserError
from tfrl.learning import leaves
from tfrl.metrics.accumulator import MetricAccumulator
from tfrl.nest_packing import HostPacker
from tfrl.traces import Traces, counted_separately
from tfrl.types import Nest, Trajectory
from tfrl.workflows.collectors import WaitEndedError
from tfrl.workflows.fast_call import AsyncExecutor, JoinedOutputs, fast_call
from tfrl.workflows.rollout_result import RolloutResult
from tfrl.workflows.rollout_sources import RolloutSource
from tfrl.workflows.run_state import State, keys_of
from tfrl.workflows.runner import Iterating, MetricRows, Runner, variables_of
from tfrl.workflows.stages import Stages

T = TypeVar("T")
# The fixed length of a row of metrics, whose names are known only after tracing.
_SLOTS = 512


class Experience(Protocol):
    """A store of experience outside the graph, as a host runner uses it."""

    def on_rollout(self, played: Trajectory) -> None:
        """Called with each rollout, before its learner call."""

    def flush(self, outputs: Sequence[tf.Tensor]) -> None:
        """Called with the host outputs of a call when it is done."""

    def call_guarded(self, fn: Callable[..., T], *args: Any) -> T:
        """Calls a function that may wait for other processes."""

    def reads_batches(self, run_stages: Stages) -> str:
        """Returns the reader of an iteration's batches before its learner steps.

        "graph", if XLA compiles the rest of the call; "python"; or "" for none.
        """

    def read(self, *, wait: bool) -> list[tf.Tensor]:
        """Returns the leaves of the batches of an iteration, eagerly."""

    def batches_of(self, leaves: Sequence[tf.Tensor]) -> tuple[Nest, int]:
        """Returns the batches [K, N, ...] of the leaves of `read`, and the number of leaves."""

    def batches(self) -> Nest:
        """Returns the batches of an iteration, [K, N, ...]; traced."""

    def learner_call(self, batches: Nest) -> contextlib.AbstractContextManager[list[tf.Tensor]]:
        """Enters the trace of a call that learns from `batches`, or () for batches that it reads.

        Yields the list that receives the call's host outputs.
        """


class HostIterating(Iterating, Protocol):
    """A workflow, as a host runner uses it."""

    rollout_length: int

    @property
    def overlaps_calls(self) -> bool:
        """Whether the call runs in the background of the next rollout."""

    @property
    def worker_group(self) -> WorkerGroup | None:
        """The processes of the strategy; None for one process."""

    @property
    def rollout_source(self) -> RolloutSource:
        """Where the rollouts come from."""

    def learn_from(
        self, state: State, out: RolloutResult, key: tf.Tensor
    ) -> tuple[dict[str, tf.Tensor], State]:
        """Everything after a rollout; returns metrics and state; traced.

        Args:
          state: Before the iteration, without environments.
          out: The result of the rollout.
          key: int32 [2].
        """

    def fuses_on_host(self, state: State, run_stages: Stages) -> bool:
        """Whether XLA can compile a call, except for the reading of batches."""


class HostRunner(Runner):
    """Runs iterations whose rollouts Python plays or receives from collectors."""

    _workflow: HostIterating

    def __init__(
        self,
        workflow: HostIterating,
        traces: Traces,
        iterations: int = 0,
        *,
        experience: Experience | None = None,
    ):
        """Creates the runner without tracing.

        Args:
          workflow: As for `Runner`.
          traces: As for `Runner`.
          iterations: As for `Runner`.
          experience: The store of experience outside the graph; None for none.
        """
        super().__init__(workflow, traces, iterations)
        self.experience = experience
        self._executor = AsyncExecutor() if self._workflow.overlaps_calls else None
        self._calls: dict[str, CompiledLearnerCall] = {}
        # The iteration count (a tensor) and the phase of the queued inputs.
        self._of: tuple[Any, str] = (None, "")
        self._inputs: collections.deque[ActorInputs] = collections.deque()

    def call_guarded(self, fn: Callable[..., T], *args: Any) -> T:
        """Calls a function that may wait for other processes."""
        return fn(*args) if self.experience is None else self.experience.call_guarded(fn, *args)

    def forget(self) -> None:
        """Drops the traces; the next call traces again."""
        self._calls, self._of, self.traces = {}, (None, ""), Traces()

    def _run(self, state: State, run_stages: Stages, iterations: int, limit: int) -> Any:
        try:
            return self._run_on_host(state, run_stages, iterations, limit)
        except BaseException:
            if self._executor is not None:
                self._executor.forget_error()
            raise

    def _run_on_host(self, state: State, run_stages: Stages, iterations: int, limit: int) -> Any:
        phase = run_stages.phase.name
        if phase not in self._calls:
            self._calls[phase] = CompiledLearnerCall(self, self._workflow, state, run_stages)
        rest, experience = self._calls[phase], self.experience
        source = self._workflow.rollout_source
        play = source.rollout(run_stages)
        env_state, carry = state.env_state, state.carry
        form = state.replace(env_state=None, carry=None)
        counts = leaves.carried(form)
        if self._of[0] is not state.metrics.iterations or self._of[1] != phase:
            self._inputs = collections.deque(rest.begin(state))
        self._of = (None, "")  # until the end: after a failure the next call starts afresh
        done, env_steps = 0, int(state.metrics.env_steps)
        playing = other = 0.0  # seconds
        rows = MetricRows(self._workflow.iterations_per_row, tf.zeros([2, _SLOTS]))
        try:
            while done < iterations and env_steps < limit:
                start = time.perf_counter()
                inputs = self._inputs.popleft()
                # Waits for the call that computes them.
                acting = self.call_guarded(rest.acting_state, state, inputs)
                if experience is not None:
                    experience.flush(inputs.outputs)
                middle = time.perf_counter()
                played, env_state, carry = play(acting, env_state, carry, inputs.play_key)
                env_steps += source.env_steps(played)
                if experience is not None:
                    experience.on_rollout(played)
                end = time.perf_counter()
                arguments = [
                    *counts,
                    *rest.tensors_of(played),
                    inputs.learn_key,
                    inputs.learner_steps,
                ]
                outputs = self.call_guarded(self._call, form, rest, [*arguments, rows.sums])
                counts, following, metrics, counters = outputs
                self._inputs.append(following)
                done += 1
                rows.add(metrics, counters)
                if not done % rows.length or done >= iterations or env_steps >= limit:
                    self.call_guarded(rows.end, rest.accumulator, len(rest.names))
                playing += end - middle
                other += middle - start + time.perf_counter() - end
        except WaitEndedError:
            if self._workflow.worker_group is not None:
                raise  # the workers have done different numbers of iterations
            self._inputs.clear()  # the call ends with the last iteration
            if done % rows.length:
                rows.end(rest.accumulator, len(rest.names))
        if self._executor is not None:
            self.call_guarded(wait_for, self._inputs[-1].learner_steps)
            self.call_guarded(self._executor.wait)
        for inputs in self._inputs:
            if experience is not None:
                experience.flush(inputs.outputs)
            inputs.outputs = []
        state = leaves.with_carried(form, counts).replace(env_state=env_state, carry=carry)
        if self._inputs:
            self._of = (state.metrics.iterations, phase)
        self._names[phase] = rest.names
        return state, len(rows.floats), rows.floats, rows.counters, (playing, other)

    def _call(self, form: Any, rest: "CompiledLearnerCall", arguments: list[tf.Tensor]) -> Any:
        if self._executor is None:
            return rest.partition(rest.call(form, arguments))
        return rest.partition(self._executor(rest.call, form, arguments))

    def _split(
        self, run_stages: Stages, call: float, rollout: float, update: float
    ) -> dict[str, float]:
        return {"rollout": rollout, "update": update}  # Python has the clock


class ActorInputs:
    """The inputs of a rollout.

    Attributes:
      play_key: int32 [2].
      learn_key: int32 [2], for the call after the rollout.
      learner_steps: int64, the learner steps of the parameters.
      values: The leaves of the acting state; empty to read the variables.
      joined: For NumPy policies: their parameters and draws, see `JoinedOutputs`.
      outputs: The host outputs of the call that made these inputs.
    """

    __slots__ = ("joined", "learn_key", "learner_steps", "outputs", "play_key", "values")

    def __init__(
        self, play_key: Any, learn_key: Any, learner_steps: Any, values: Any, joined: Any = ()
    ):
        self.outputs: Sequence[tf.Tensor] = []
        self.play_key, self.learn_key, self.learner_steps = play_key, learn_key, learner_steps
        self.values, self.joined = values, joined


class CompiledLearnerCall:
    """Everything after a rollout of a phase, as one compiled call of flat tensors.

    It holds no variables; each call gets the variables of a state.
    """

    def __init__(
        self, runner: HostRunner, workflow: HostIterating, state: State, run_stages: Stages
    ):
        self._runner, self._workflow, self._phase = runner, workflow, run_stages.phase
        self._how = (run_stages.phase.name, *sorted(run_stages.modes.items()))
        self._modes, self._seconds = run_stages.modes, run_stages.seconds
        self._lag = int(workflow.overlaps_calls)
        self._length = workflow.rollout_length
        self._policies = workflow.rollout_source.policies(random=run_stages.phase.random)
        self._form: Nest = tf.nest.map_structure(lambda x: 0, state.agent_state)
        self._count = len(leaves.carried(state.replace(env_state=None, carry=None)))
        self._packer: HostPacker | None = None
        self._joined = JoinedOutputs()
        self._parts: list[int] = []
        mode = run_stages.modes["update"]
        self._jit = mode == "xla" and workflow.fuses_on_host(state, run_stages)
        self._experience: Any = runner.experience
        self._reads = "" if self._experience is None else self._experience.reads_batches(run_stages)
        self._eager = mode == "eager"
        self._compiled: Callable[..., list[tf.Tensor]] | None = None
        self.names: list[str] = []
        self.accumulator: Any = None

    def call(self, form: Any, arguments: list[tf.Tensor]) -> list[tf.Tensor]:
        """Calls it over the variables of a state; `partition` takes the results apart."""
        if self._compiled is None:
            if self._eager:
                return self._traced(form, *arguments)
            if self._reads == "python":
                fn, jit = self._after_reading, True
            else:
                fn, jit = self._traced, self._jit and not self._reads

            def bind(make: Callable[[], Any], args: Any) -> Any:
                return self._bind(form, make, args)

            if self._reads == "python":
                arguments = [*self._experience.read(wait=True), *arguments]
            self._compiled = fast_call(lambda *xs: fn(form, *xs), bind, arguments, jit=jit)
            return self._compiled(arguments)
        if self._reads == "python":
            arguments = [*self._experience.read(wait=False), *arguments]
        return self._compiled(arguments)

    def _bind(self, form: Any, make: Callable[[], Any], args: Any) -> Any:
        """Returns the call, traced unless another run has, and takes the notes of its trace."""
        # The policies' modes were settled for these environments only.
        how = tuple(policy.mode for policy in self._policies)
        name = ("after the rollout", self._lag, how, *self._how)
        call = self._runner.traces.bound(name, make, args, variables_of(form))
        known = (self.names, self.accumulator, self._parts, self._joined)
        notes = self._runner.traces.notes
        self.names, self.accumulator, self._parts, self._joined = notes.setdefault(name, known)
        return call

    @property
    def _in_numpy(self) -> bool:
        return bool(self._policies) and all(policy.mode == "numpy" for policy in self._policies)

    # Acting.

    def begin(self, state: State) -> list[ActorInputs]:
        """Returns the inputs of the first rollouts: the current values of the variables."""
        values = []
        if self._lag:  # a copy: the variables change while it is in use
            values = [tf.identity(x) for x in tf.nest.flatten(struct.values(state.agent_state))]
        steps = tf.identity(state.metrics.learner["learner_steps"].read_value())
        inputs = []
        for i in range(1 + self._lag):
            play_key, learn_key = _keys_of(state, i)
            inputs.append(ActorInputs(play_key, learn_key, steps, values))
        return inputs

    def acting_state(self, state: State, inputs: ActorInputs) -> Nest:
        """Returns the acting state, and gives NumPy policies their precomputed inputs."""
        wait_for(inputs.learner_steps)
        if inputs.values:
            return tf.nest.pack_sequence_as(self._form, inputs.values)
        if not inputs.joined:
            # The variables themselves: reading them is slow, and nothing changes them now.
            return state.agent_state
        arrays = self._joined.arrays(inputs.joined)
        at = len(self._policies[0].reads)
        each = (len(arrays) - at) // len(self._policies)
        for i, policy in enumerate(self._policies):
            start = at + i * each
            policy.foresee(arrays[:at], arrays[start : start + each])
        return None

    # The trajectory.

    def tensors_of(self, played: Trajectory) -> list[tf.Tensor]:
        """Returns a trajectory as tensors."""
        if self._packer is None:
            self._packer = HostPacker(played)
        return self._packer.tensors(played)

    # The call; traced.

    def _traced(self, form: Any, *arguments: tf.Tensor) -> list[tf.Tensor]:
        if not self._reads:
            return self._after_rollout(form, (), *arguments)
        batches = self._experience.batches()
        compiled = counted_separately(lambda *args: self._after_rollout(form, *args))
        return tf.function(compiled, jit_compile=True, autograph=False)(batches, *arguments)

    def _after_reading(self, form: Any, *arguments: tf.Tensor) -> list[tf.Tensor]:
        batches, count = self._experience.batches_of(arguments)
        return self._after_rollout(form, batches, *arguments[count:])

    def _after_rollout(self, form: Any, batches: Nest, *arguments: tf.Tensor) -> list[tf.Tensor]:
        lag, count = self._lag, self._count
        state = leaves.with_carried(form, arguments[:count])
        *played_leaves, learn_key, acted_at, sums = arguments[count:]
        played = self._packer.nest(played_leaves)  # type: ignore[union-attr]
        policy_lag = form.metrics.learner["learner_steps"].read_value() - acted_at
        run_stages = Stages(self._phase, self._modes, self._seconds, None)
        experience, workflow = self._experience, self._workflow
        call = (
            contextlib.nullcontext([]) if experience is None else experience.learner_call(batches)
        )
        with run_stages.in_use(), call as outputs:
            out = workflow.rollout_source.result(state, played)
            metrics, state = workflow.learn_from(state, out, learn_key)
        names = sorted(metrics)
        floats = tf.stack([tf.cast(metrics[n], tf.float32) for n in names])
        counters = workflow.counters(state)
        if len(names) >= _SLOTS:
            raise UserError(
                "the metrics of an iteration",
                expected=f"fewer than {_SLOTS}",
                got=len(names),
                remedy="Report fewer metrics, or combine some.",
            )
        if lag:
            names = [*names, "policy_lag"]
            floats = tf.concat([floats, [tf.cast(policy_lag, tf.float32)]], 0)
        self.names, self.accumulator = list(names), MetricAccumulator(names, _SLOTS)
        floats = tf.pad(floats, [[0, _SLOTS - floats.shape[0]]])
        steps = tf.identity(counters[-1])
        play_key, next_key = _keys_of(state, lag)
        values: list[tf.Tensor] = []
        joined: list[tf.Tensor] = []
        if lag or self._in_numpy:
            with tf.control_dependencies([steps]):
                read = tf.nest.flatten(struct.values(state.agent_state))
                if self._in_numpy:  # reading a tensor in Python takes time
                    read = [read[i] for i in self._policies[0].reads]
                values = [tf.identity(x) for x in read]
        if self._in_numpy:
            several = len(self._policies) > 1
            for i, policy in enumerate(self._policies):
                key = seeding.fold_in(play_key, i) if several else play_key
                values += policy.draws(key, self._length)
            values, joined = [], self._joined.join(values)
        after = leaves.carried(state.replace(env_state=None, carry=None))
        self._parts = [count, len(outputs), len(values), len(joined)]
        known = [*after, *outputs, *values, *joined]
        return [*known, play_key, next_key, steps, self.accumulator.add(sums, floats), counters]

    def partition(self, outputs: list[tf.Tensor]) -> Any:
        """Splits the results of a call: counts, next inputs, sums of metrics, counters."""
        parts, at = [], 0
        for size in self._parts:
            parts.append(outputs[at : at + size])
            at += size
        play_key, learn_key, steps, sums, counters = outputs[at:]
        inputs = ActorInputs(play_key, learn_key, steps, parts[2], parts[3])
        inputs.outputs = parts[1]
        return parts[0], inputs, sums, counters


def wait_for(result: tf.Tensor) -> None:
    """Waits for the call that computes a tensor, and so for all its results.

    Do not ask for their shapes before: TensorFlow would wait while it holds Python's global lock,
    which the call may need.
    """
    result.numpy()


def _keys_of(state: State, ahead: Any) -> list[tf.Tensor]:
    """Returns the keys of the rollout and of the update, `ahead` iterations from now."""
    args = state.key, state.metrics.iterations + ahead
    return (_graph_of_keys if tf.executing_eagerly() else _keys_of_iteration)(*args)


def _keys_of_iteration(key: tf.Tensor, iteration: tf.Tensor) -> list[tf.Tensor]:
    return keys_of(seeding.fold_in(key, iteration))


# Python loops call a compiled function: eager operations take longer.
_graph_of_keys = tf.function(_keys_of_iteration, autograph=False)
