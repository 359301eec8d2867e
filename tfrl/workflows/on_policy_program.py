"""The compiled part of an on-policy run: a learner's variables and the loop over the seams."""

import time
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.framework import config as framework_config

from tfrl import seeding, struct
from tfrl.evaluation.evaluator import Evaluator
from tfrl.evaluation.result import EvaluationResult
from tfrl.learners import Learner
from tfrl.types import EnvState, Nest
from tfrl.workflows.seams import Seam, auto_needs_timing

# Rows of metrics that one call can return.
MAX_ITERATIONS = 1024

# Two XLA seams in a graph loop lose about 0.3 ms an iteration to one program, whose compilation
# takes seconds: worth it for iterations shorter than this.
_FUSE_BELOW_SECONDS = 5e-3

_COUNTERS = ("iterations", "env_steps", "episodes", "learner_steps")


@struct.dataclass
class Progress(struct.Struct):
    """What one iteration hands to the next, beside the learner's variables.

    Attributes:
      env_state: The environments.
      carry: Recurrent state, or None.
      key: int32 [2]; iteration i draws from `fold_in(key, i)`.
      iterations: int64, iterations so far.
      env_steps: int64, valid agent steps so far.
      episodes: int64, episodes that have ended.
      episode_return: float32, mean of the last iteration in which episodes ended; NaN before.
      episode_length: float32, likewise, in agent steps.
    """

    env_state: EnvState
    carry: Nest
    key: tf.Tensor
    iterations: tf.Tensor
    env_steps: tf.Tensor
    episodes: tf.Tensor
    episode_return: tf.Tensor
    episode_length: tf.Tensor


class OnPolicyProgram:
    """Runs iterations of a workflow over one learner; made by `setup`, freed with its states."""

    def __init__(self, workflow: Any, learner: Learner, eval_key: tf.Tensor):
        """Prepares the seams; nothing is traced yet.

        Args:
          workflow: The `OnPolicyWorkflow` whose hooks run.
          learner: A built learner.
          eval_key: int32 [2]; evaluation i draws from `fold_in(eval_key, i)`.
        """
        self.learner = learner
        self.version = 0
        self._workflow = workflow
        self._eval_key = eval_key
        self.rollout = Seam("rollout", workflow.collect)
        self.update = Seam("update", self._update)
        self._evaluators: dict[int, Evaluator] = {}
        self._loop: Any = None
        self._names: list[str] = []
        self._loop_mode: str | None = None

    def clone(self) -> "OnPolicyProgram":
        """Returns a program over a copy of the learner, with the same compile choices."""
        other = OnPolicyProgram(self._workflow, self.learner.clone(), self._eval_key)
        other.rollout.mode, other.update.mode = self.rollout.mode, self.update.mode
        other._loop_mode = self._loop_mode
        other.rollout.seconds = dict(self.rollout.seconds)
        other.update.seconds = dict(self.update.seconds)
        return other

    def _update(self, batch: Nest, key: tf.Tensor, timesteps: tf.Tensor) -> Any:
        return self._workflow.update(self.learner, batch, key, timesteps)

    # Compile choices.

    def choose(self, progress: Progress) -> dict[str, str]:
        """Settles the mode of every seam, timing those that are "auto" on copies."""
        asked = self._workflow.compile
        for seam in (self.rollout, self.update):
            if seam.mode is None and asked[seam.name] != "auto":
                seam.mode = asked[seam.name]
            elif seam.mode is None and not auto_needs_timing():
                seam.mode = "xla"
        if self.rollout.mode is None or self.update.mode is None:
            self._time_seams(progress)
        if self._loop_mode is None:
            self._loop_mode = self._choose_loop(asked["loop"])
            if not self._timed and self._loop_mode != "eager":
                self._time_seams(progress)
        return {
            "loop": self._loop_mode,
            "rollout": str(self.rollout.mode),
            "update": str(self.update.mode),
            "evaluation": self._evaluation_mode(),
        }

    def _choose_loop(self, asked: str) -> str:
        """One program of both seams and the loop over them, where both are XLA and it pays."""
        modes = (str(self.rollout.mode), str(self.update.mode))
        if "eager" in modes or asked == "eager":
            return "eager"
        if modes != ("xla", "xla") or asked == "graph":
            return "graph"
        seconds = [s.seconds.get("xla") for s in (self.rollout, self.update)]
        known = sum(t for t in seconds if t is not None)
        slow = None not in seconds and known > _FUSE_BELOW_SECONDS
        return "graph" if asked == "auto" and slow else "xla"

    def _evaluation_mode(self) -> str:
        """Graph on a CPU, where an episode's loop ends early, unless told otherwise."""
        asked = self._workflow.compile["evaluation"]
        if asked != "auto":
            return asked
        return "graph" if auto_needs_timing() else "xla"

    def _time_seams(self, progress: Progress) -> None:
        args = (
            struct.values(self.learner.state),
            progress.env_state,
            progress.carry,
            progress.key,
        )
        if self.rollout.mode is None:
            self.rollout.choose_by_time(*args)
        else:
            self.rollout.time_as_chosen(*args)
        batch = self.rollout(*args).batch
        before = self.learner.get_state()
        update_args = (batch, progress.key, progress.env_steps)
        if self.update.mode is None:
            self.update.choose_by_time(*update_args)
        else:
            self.update.time_as_chosen(*update_args)
        self.learner.set_state(before)

    @property
    def fused(self) -> bool:
        """Whether the seams and the loop over them are one XLA program."""
        return self._loop_mode == "xla"

    @property
    def _timed(self) -> bool:
        """Whether there are clocks between the seams: not in XLA, nor in deterministic graphs."""
        # The public tf.config can only switch op determinism on.
        return not self.fused and not framework_config.is_op_determinism_enabled()

    # Running.

    def run(
        self, progress: Progress, iterations: int, until: int | None
    ) -> tuple[list[dict[str, Any]], Progress, dict[str, float]]:
        """Runs iterations until there are `iterations`, or `until` env steps are reached.

        Returns:
          A metrics row per iteration, the progress, and seconds: `call`, `rollout`, `update`.
        """
        self.choose(progress)
        limit = np.iinfo(np.int64).max if until is None else until
        start = time.perf_counter()
        if self._loop_mode == "eager":
            result = self._run_eagerly(progress, iterations, limit)
        else:
            loop = self._loop or self._trace(progress)
            result = loop(progress, tf.constant(iterations), tf.constant(limit, tf.int64))
        progress, done, floats, counters, (t_rollout, t_update) = result
        rows = self._rows(int(done), floats, counters)
        seconds = {"call": time.perf_counter() - start}
        seconds.update(self._time_split(seconds["call"], float(t_rollout), float(t_update)))
        return rows, progress, seconds

    def _time_split(self, call: float, t_rollout: float, t_update: float) -> dict[str, float]:
        """Seconds by seam; without clocks, in the proportion of the seams timed apart."""
        if self._timed:
            return {"rollout": t_rollout, "update": t_update}
        a, b = (s.seconds.get(str(s.mode)) for s in (self.rollout, self.update))
        if a is None or b is None:
            return {}
        return {"rollout": call * a / (a + b), "update": call * b / (a + b)}

    def _rows(self, done: int, floats: Any, counters: Any) -> list[dict[str, Any]]:
        floats, counters = np.asarray(floats)[:done], np.asarray(counters)[:done]
        return [
            {
                **{n: int(v) for n, v in zip(_COUNTERS, c, strict=True)},
                **{n: float(v) for n, v in zip(self._names, f, strict=True)},
            }
            for f, c in zip(floats, counters, strict=True)
        ]

    def _trace(self, progress: Progress) -> Any:
        """Traces the seams, which tells the length of a metrics row, and makes the loop."""
        values = struct.values(self.learner.state)
        rollout = self.rollout.compiled(str(self.rollout.mode))
        update = self.update.compiled(str(self.update.mode))
        traced = rollout.get_concrete_function(
            values, progress.env_state, progress.carry, progress.key
        )
        out = traced.structured_outputs
        spec = tf.nest.map_structure(lambda x: tf.TensorSpec(x.shape, x.dtype), out.batch)
        metrics = update.get_concrete_function(
            spec, tf.TensorSpec([2], tf.int32), tf.TensorSpec([], tf.int64)
        ).structured_outputs
        self._names = sorted({*out.metrics, *metrics})
        self._loop = tf.function(self._run_loop, jit_compile=self.fused, autograph=False)
        return self._loop

    def _iterate(self, progress: Progress) -> tuple[Progress, tf.Tensor, tf.Tensor, tf.Tensor]:
        """One iteration: progress, float metrics, counters, and seconds by seam."""
        timed = self._timed
        start = tf.timestamp() if timed else tf.constant(0.0, tf.float64)
        keys = seeding.split(seeding.fold_in(progress.key, progress.iterations), 2)
        variables = self.learner.state
        with tf.control_dependencies([start]):
            values = struct.values(variables)
        out = self.rollout(values, progress.env_state, progress.carry, keys[0])
        with tf.control_dependencies(_data(out)):
            middle = tf.timestamp() if timed else start
        env_steps = progress.env_steps + out.counts["env_steps"]
        with tf.control_dependencies([middle]):
            metrics = self.update(out.batch, keys[1], progress.env_steps)
        if out.normalizer is not None:
            # Only now: the loss must see the statistics that acted.
            with tf.control_dependencies(_data(metrics)):
                tf.nest.map_structure(
                    lambda v, x: v.assign(x), variables.normalizer, out.normalizer
                )
        with tf.control_dependencies(_data(metrics)):
            end = tf.timestamp() if timed else start
        some = out.counts["episodes"] > 0
        last_return = tf.where(some, out.metrics["episode_return"], progress.episode_return)
        last_length = tf.where(some, out.metrics["episode_length"], progress.episode_length)
        progress = Progress(
            env_state=out.env_state,
            carry=out.carry,
            key=progress.key,
            iterations=progress.iterations + 1,
            env_steps=env_steps,
            episodes=progress.episodes + out.counts["episodes"],
            episode_return=last_return,
            episode_length=last_length,
        )
        row = {
            **out.metrics,
            **metrics,
            "episode_return": last_return,
            "episode_length": last_length,
        }
        if not self._names:
            self._names = sorted(row)
        floats = tf.stack([tf.cast(row[n], tf.float32) for n in self._names])
        with tf.control_dependencies([end]):
            learner_steps = tf.identity(self.learner.learner_steps.read_value())
        counters = tf.stack(
            [progress.iterations, progress.env_steps, progress.episodes, learner_steps]
        )
        return progress, floats, counters, tf.stack([middle - start, end - middle])

    def _run_loop(self, progress: Progress, iterations: tf.Tensor, limit: tf.Tensor) -> Any:
        n = len(self._names)
        floats = tf.TensorArray(tf.float32, MAX_ITERATIONS, element_shape=[n])
        counters = tf.TensorArray(tf.int64, MAX_ITERATIONS, element_shape=[len(_COUNTERS)])

        def body(i: Any, progress: Any, floats: Any, counters: Any, seconds: Any) -> Any:
            progress, f, c, s = self._iterate(progress)
            return i + 1, progress, floats.write(i, f), counters.write(i, c), seconds + s

        done, progress, floats, counters, seconds = tf.while_loop(
            lambda i, progress, *_: (i < iterations) & (progress.env_steps < limit),
            body,
            (tf.constant(0), progress, floats, counters, tf.zeros([2], tf.float64)),
            parallel_iterations=1,
        )
        return progress, done, floats.stack(), counters.stack(), tf.unstack(seconds)

    def _run_eagerly(self, progress: Progress, iterations: int, limit: int) -> Any:
        floats: list[Any] = []
        counters: list[Any] = []
        seconds = np.zeros(2)
        while len(floats) < iterations and int(progress.env_steps) < limit:
            progress, f, c, s = self._iterate(progress)
            floats.append(f.numpy())
            counters.append(c.numpy())
            seconds += s.numpy()
        return progress, len(floats), floats, counters, seconds

    # Evaluation.

    def evaluate(
        self, iterations: tf.Tensor, num_episodes: int | None = None, key: tf.Tensor | None = None
    ) -> EvaluationResult:
        """Evaluates the learner's agent; the key follows from the iteration unless given."""
        n = num_episodes or self._workflow.eval_episodes
        if n not in self._evaluators:
            self._evaluators[n] = self._workflow.make_evaluator(n, self._evaluation_mode())
        if key is None:
            key = seeding.fold_in(self._eval_key, iterations)
        return self._evaluators[n].evaluate(struct.values(self.learner.state), key)


def _data(nest: Nest) -> list[tf.Tensor]:
    """Ops to wait for that are behind the values of a nest.

    A control edge from the call of a stateless function is dropped when the function is inlined;
    one from the identity of its result is not.
    """
    return [tf.identity(x) for x in tf.nest.flatten(nest)]
