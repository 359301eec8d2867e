"""The loop over iterations where Python steps the environments.

An iteration is a rollout, step by step, and one compiled call for all that follows it. That call
computes what the next rollout needs, too: its keys, its random draws, and the parameters.

With `overlap` the call runs in the background while the next rollout is played, which acts by the
parameters from before it. So the policy lags by the learner steps of one iteration, always: the
run is the same whichever is faster.
"""

import collections
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfrl import seeding, struct
from tfrl.distribute.tracing import counted_apart
from tfrl.envs.host_env import HostEnv
from tfrl.errors import UserError
from tfrl.rollout.acting import HostPolicy, policy_for
from tfrl.types import Nest, Trajectory
from tfrl.workflows.fast_call import AsyncExecutor, Bundle, FastCall, JoinedOutputs
from tfrl.workflows.metric_accumulator import MetricAccumulator
from tfrl.workflows.run_state import Progress

# A row of metrics has a fixed length, since its names are known only when all is traced.
_SLOTS = 128


class HostLoop:
    """Runs iterations of a `LearnerProgram` in environments on the host."""

    def __init__(self, program: Any, overlap: bool):
        """Prepares; nothing is traced yet.

        Args:
          program: The program.
          overlap: Whether learning runs in the background of the next rollout.
        """
        self._program = program
        self._ahead = AsyncExecutor() if overlap else None
        self._lag = int(overlap)
        self._calls: dict[str, _Rest] = {}
        # The count of iterations, as a tensor, and the phase that `_begun` goes with.
        self._of: tuple[Any, str] = (None, "")
        self._begun: collections.deque[_Begun] = collections.deque()

    def forget(self) -> None:
        """Traces anew at the next call."""
        self._calls = {}
        self._of = (None, "")

    def names(self, phase: str) -> list[str]:
        """Returns the names of the metrics of a row in a phase that has run."""
        return self._calls[phase].names

    def run(self, progress: Progress, iterations: int, limit: int) -> Any:
        """Runs iterations; see `LearnerProgram.run`.

        Returns:
          Progress, the number of rows, their floats and counters, and seconds by stage.
        """
        try:
            return self._run(progress, iterations, limit)
        except BaseException:
            if self._ahead is not None:
                self._ahead.forget_error()
            raise

    def _run(self, progress: Progress, iterations: int, limit: int) -> Any:
        program, phase = self._program, self._program.phase
        rest = self._calls.get(phase)
        if rest is None:
            rest = self._calls[phase] = _Rest(program, self._lag)
        env_state, carry = progress.env_state, progress.carry
        counts = tf.nest.flatten(progress.replace(env_state=None, carry=None))
        if self._of[0] is not progress.iterations or self._of[1] != phase:
            self._begun = collections.deque(rest.begin(progress))
        self._of = (None, "")  # until all is done: what fails half-way must begin anew
        done, env_steps = 0, int(progress.env_steps)
        playing = other = 0.0  # seconds
        rows = _Rows(program.workflow.iterations_per_row)
        while done < iterations and env_steps < limit:
            start = time.perf_counter()
            begun = self._begun.popleft()
            acting = program.guarded(rest.foresee, begun)  # waits for the call that it comes from
            program.settle(begun.notes)
            middle = time.perf_counter()
            played, env_state, carry = rest.play(acting, env_state, carry, begun.play_key)
            env_steps += rest.steps_in(played)
            program.take(played)
            end = time.perf_counter()
            leaves = [*counts, *rest.taken(played), begun.learn_key, begun.learner_steps]
            found = program.guarded(self._call, rest, [*leaves, rows.sums])
            counts, ahead, metrics, counters = found
            self._begun.append(ahead)
            done += 1
            rows.add(metrics, counters)
            if not done % rows.length or done >= iterations or env_steps >= limit:
                program.guarded(rows.end, rest)
            playing += end - middle
            other += middle - start + time.perf_counter() - end
        if self._ahead is not None:
            program.guarded(wait_for, self._begun[-1].learner_steps)
            program.guarded(self._ahead.wait)
        for begun in self._begun:
            program.settle(begun.notes)
            begun.notes = []
        progress = rest.progress(counts).replace(env_state=env_state, carry=carry)
        self._of = (progress.iterations, phase)
        return progress, len(rows.floats), rows.floats, rows.counters, (playing, other)

    def _call(self, rest: "_Rest", leaves: list[tf.Tensor]) -> Any:
        found = rest.call(leaves) if self._ahead is None else self._ahead(rest.call, leaves)
        return rest.parted(found)


class _Begun:
    """What a rollout acts by.

    Attributes:
      play_key: int32 [2].
      learn_key: int32 [2], of what follows it.
      learner_steps: int64, those behind the parameters.
      values: The leaves of the acting state; empty for the variables as they are.
      joined: For policies in NumPy in their place, what they read of it and their draws; see
        `JoinedOutputs`.
      notes: What the call that made it leaves to Python.
    """

    __slots__ = ("joined", "learn_key", "learner_steps", "notes", "play_key", "values")

    def __init__(
        self, play_key: Any, learn_key: Any, learner_steps: Any, values: Any, joined: Any = ()
    ):
        self.notes: list[tf.Tensor] = []
        self.play_key, self.learn_key, self.learner_steps = play_key, learn_key, learner_steps
        self.values, self.joined = values, joined


class _Rows:
    """Collects the rows of a call; a row is of so many iterations."""

    def __init__(self, length: int):
        self.length = length
        self.floats: list[Any] = []
        self.counters: list[Any] = []
        self._zeros = tf.zeros([2, _SLOTS])
        self.sums = self._zeros
        self._counters: Any = None

    def add(self, sums: tf.Tensor, counters: tf.Tensor) -> None:
        self.sums, self._counters = sums, counters

    def end(self, rest: "_Rest") -> None:
        wait_for(self._counters)
        self.floats.append(rest.tally.result(self.sums).numpy()[: len(rest.names)])
        self.counters.append(self._counters.numpy())
        self.sums = self._zeros


class _Rest:
    """All that follows a rollout in a phase, as one compiled call of flat tensors."""

    def __init__(self, program: Any, lag: int):
        workflow = program.workflow
        self._program, self._workflow, self._lag = program, workflow, lag
        self._length = workflow.rollout_length
        self.play = program.stage_of_phase()
        act = program.action_fn_of_phase()
        agent = workflow.agent
        # Environments on the device are played by a compiled function.
        halves = workflow.env.halves if isinstance(workflow.env, HostEnv) else []
        self._policies: list[HostPolicy] = [policy_for(half, agent, act) for half in halves]
        self._form: Nest = struct.values(workflow.acting_state(program.learner))
        self._counts_form: Nest = None
        self._bundle: Bundle | None = None
        self._joined = JoinedOutputs()
        self._parts: list[int] = []
        eager = program.update.mode == "eager"
        jit = program.fuses_on_host and program.update.mode == "xla"
        self.call: Callable[..., Any] = self._traced_eagerly
        self._apart = jit and program.fetches
        if self._apart and program.reads_from_python:
            behind = FastCall(self._behind_what_was_read, self._bind, jit=True)
            self.call = lambda leaves: behind([*program.read(behind.is_traced), *leaves])
        elif not eager:
            self.call = FastCall(self._traced, self._bind, jit=jit and not self._apart)
        self.names: list[str] = []
        self.tally: Any = None

    def _bind(self, make: Callable[[], Any], args: Any) -> Any:
        """Returns the call, traced if it was not for another run; and takes what tracing tells."""
        program = self._program
        # What a policy reads, and how it acts, is known of these environments only.
        how = tuple(policy.mode for policy in self._policies)
        name = ("behind the host", self._lag, how, *program.how)
        call = program.bind(name, make, args)
        told = (self.names, self.tally, self._parts, self._joined)
        notes = program.traces.notes
        self.names, self.tally, self._parts, self._joined = notes.setdefault(name, told)
        return call

    @property
    def _in_numpy(self) -> bool:
        return bool(self._policies) and all(policy.mode == "numpy" for policy in self._policies)

    # Acting.

    def begin(self, progress: Progress) -> list[_Begun]:
        """Returns what the first rollouts act by: the variables as they are now."""
        self._counts_form = progress.replace(env_state=None, carry=None)
        learner = self._program.learner
        values = []
        if self._lag:  # a copy: the variables will change while it is used
            values = [tf.identity(x) for x in tf.nest.flatten(self._program.acting_state())]
        steps = tf.identity(learner.learner_steps.read_value())
        begun = []
        for i in range(1 + self._lag):
            play_key, learn_key = keys_of(progress.key, progress.iterations + i)
            begun.append(_Begun(play_key, learn_key, steps, values))
        return begun

    def foresee(self, begun: _Begun) -> Nest:
        """Returns the state to act by, and hands policies in NumPy what they would compute."""
        wait_for(begun.learner_steps)
        if begun.values:
            return tf.nest.pack_sequence_as(self._form, begun.values)
        if not begun.joined:
            # Variables as they are: reading them into tensors is dear, and nothing changes them.
            return self._workflow.acting_state(self._program.learner)
        arrays = self._joined.arrays(begun.joined)
        at = len(self._policies[0].reads)
        each = (len(arrays) - at) // len(self._policies)
        for i, policy in enumerate(self._policies):
            start = at + i * each
            policy.foresee(arrays[:at], arrays[start : start + each])
        return None

    # What a rollout gave.

    def steps_in(self, played: Trajectory) -> int:
        """Returns how many rows are steps, those of other processes too."""
        if self._workflow.all_rows_valid:
            return self._length * self._workflow.env.num_envs
        steps, agreement = int(np.count_nonzero(played.valid)), self._workflow.agreement
        return steps if agreement is None else int(sum(agreement.each_says(steps)))

    def taken(self, played: Trajectory) -> list[tf.Tensor]:
        """Returns a trajectory as tensors."""
        if self._bundle is None:
            self._bundle = Bundle(played)
        return self._bundle.tensors(played)

    # The call.

    def _traced_eagerly(self, leaves: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        return self._traced(*leaves)

    def _traced(self, *leaves: tf.Tensor) -> list[tf.Tensor]:
        fetched = self._program.fetched(self.progress(leaves[: self._count]))
        if not self._apart:
            return self._behind(fetched, *leaves)
        behind = counted_apart(self._behind)
        return tf.function(behind, jit_compile=True, autograph=False)(fetched, *leaves)

    def _behind_what_was_read(self, *leaves: tf.Tensor) -> list[tf.Tensor]:
        fetched, count = self._program.fetched_of(leaves)
        return self._behind(fetched, *leaves[count:])

    @property
    def _count(self) -> int:
        return len(tf.nest.flatten(self._counts_form))

    def _behind(self, fetched: Nest, *leaves: tf.Tensor) -> list[tf.Tensor]:
        program, lag, count = self._program, self._lag, self._count
        progress = self.progress(leaves[:count])
        *played_leaves, learn_key, acted_at, sums = leaves[count:]
        played = self._bundle.nest(played_leaves)  # type: ignore[union-attr]
        behind = program.learner.learner_steps.read_value() - acted_at
        progress, floats, counters = program.behind_the_host(progress, played, learn_key, fetched)
        names = program.names_of_phase()
        if len(names) >= _SLOTS:
            raise UserError(
                "the metrics of an iteration",
                expected=f"fewer than {_SLOTS}",
                got=len(names),
                remedy="Report fewer, or combine some.",
            )
        if lag:
            names = [*names, "policy_lag"]
            floats = tf.concat([floats, [tf.cast(behind, tf.float32)]], 0)
        self.names, self.tally = list(names), MetricAccumulator(names, _SLOTS)
        floats = tf.pad(floats, [[0, _SLOTS - floats.shape[0]]])
        steps = tf.identity(counters[-1])
        play_key, next_key = keys_of(progress.key, progress.iterations + lag)
        values: list[tf.Tensor] = []
        joined: list[tf.Tensor] = []
        if lag or self._in_numpy:
            with tf.control_dependencies([steps]):
                leaves = tf.nest.flatten(program.acting_state())
                if self._in_numpy:  # each that is read in Python takes its time
                    leaves = tuple(leaves[i] for i in self._policies[0].reads)
                values = [tf.identity(x) for x in leaves]
        if self._in_numpy:
            several = len(self._policies) > 1
            for i, policy in enumerate(self._policies):
                key = seeding.fold_in(play_key, i) if several else play_key
                values += policy.draws(key, self._length)
            values, joined = [], self._joined.join(values)
        notes = list(program.notes) if program.note_dtypes else []
        self._parts = [count, len(notes), len(values), len(joined)]
        known = [*tf.nest.flatten(progress), *notes, *values, *joined]
        return [*known, play_key, next_key, steps, self.tally.add(sums, floats), counters]

    def parted(self, found: list[tf.Tensor]) -> Any:
        """Takes the results of a call apart: counts, the rollout to come, sums and counters."""
        parts, at = [], 0
        for size in self._parts:
            parts.append(found[at : at + size])
            at += size
        play_key, learn_key, steps, sums, counters = found[at:]
        begun = _Begun(play_key, learn_key, steps, parts[2], parts[3])
        begun.notes = parts[1]
        return parts[0], begun, sums, counters

    def progress(self, counts: Sequence[tf.Tensor]) -> Progress:
        """Returns the progress of its leaves."""
        return tf.nest.pack_sequence_as(self._counts_form, list(counts))


def wait_for(result: tf.Tensor) -> None:
    """Waits for the call that a tensor is a result of, and so for all its results.

    Their shapes must not be asked for before: TensorFlow would wait for them with the interpreter
    locked, which the call may need to end.
    """
    result.numpy()


def keys_of(key: tf.Tensor, iteration: tf.Tensor) -> list[tf.Tensor]:
    """The keys of an iteration's rollout and update."""
    return (_graph_of_keys if tf.executing_eagerly() else _keys)(key, iteration)


def _keys(key: tf.Tensor, iteration: tf.Tensor) -> list[tf.Tensor]:
    return tf.unstack(seeding.split(seeding.fold_in(key, iteration), 2))


# For loops in Python: a few operations take longer eagerly.
_graph_of_keys = tf.function(_keys, autograph=False)
