"""The compiled part of an on-policy run: a learner's variables and the loop over the seams."""

import functools
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.framework import config as framework_config

from tfrl import seeding, struct
from tfrl.distribute.statistics import merge_over_replicas
from tfrl.distribute.tracing import counted_apart
from tfrl.envs.host import on_host
from tfrl.envs.host_env import HostEnv
from tfrl.learners import Learner
from tfrl.rollout.acting import policy_for
from tfrl.rollout.host import blank_trajectory
from tfrl.types import EnvState, Nest, Trajectory
from tfrl.workflows.on_policy_evaluation import Evaluations
from tfrl.workflows.seams import PythonSeam, Seam, auto_needs_timing

# Rows of metrics that one call can return.
MAX_ITERATIONS = 1024

# Two XLA seams in a graph loop lose about 0.3 ms an iteration to one program, whose compilation
# takes seconds: worth it for iterations shorter than this.
_FUSE_BELOW_SECONDS = 0.010

# Means over the episodes that ended; all others are means over the steps.
EPISODE_METRICS = ("episode_return", "episode_length")

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
        self.evaluations = Evaluations(workflow, learner, eval_key)
        self.replicas = learner.replicas
        # Environments on the host are stepped in Python, and so is the loop over the seams.
        self._in_python = isinstance(workflow.env, HostEnv)
        if self._in_python:
            self.rollout: Seam = PythonSeam("rollout", workflow.roll)
        else:
            self.rollout = Seam("rollout", workflow.collect)
        self._digest = tf.function(counted_apart(workflow.digest), autograph=False)
        self._rest: Any = None
        self._ahead: tuple[Any, Any] = (None, None)  # a progress and the keys of its next iteration
        # Under several replicas the sums over them stand between what XLA compiles.
        xla = functools.partial(self._update, jit=True) if self.replicas.several else None
        self.update = Seam("update", self._update, xla=xla)
        self._structure = learner.structure_version
        self._loop: Any = None
        self._names: list[str] = []
        self._loop_mode: str | None = None

    def clone(self) -> "OnPolicyProgram":
        """Returns a program over a copy of the learner, with the same compile choices."""
        other = OnPolicyProgram(self._workflow, self.learner.clone(), self.evaluations.key)
        other.rollout.mode, other.update.mode = self.rollout.mode, self.update.mode
        other._loop_mode = self._loop_mode
        other.rollout.seconds = dict(self.rollout.seconds)
        other.update.seconds = dict(self.update.seconds)
        return other

    def _update(
        self, batch: Nest, key: tf.Tensor, timesteps: tf.Tensor, jit: bool = False
    ) -> dict[str, tf.Tensor]:
        return self._workflow.update(self.learner, batch, key, timesteps, jit=jit)

    def acting_state(self) -> Any:
        """Returns the values by which the agent acts, of the replica that this is called on."""
        return struct.values(self._workflow.acting_state(self.learner))

    # Compile choices.

    def choose(self, progress: Progress) -> dict[str, str]:
        """Settles the mode of every seam, timing those that are "auto" on copies."""
        asked = self._workflow.compile
        if self._in_python and self.rollout.mode is None:
            self.rollout.mode = self._choose_acting(progress, asked["rollout"])
        for seam in (self.rollout, self.update):
            if seam.mode is None and asked[seam.name] != "auto":
                seam.mode = asked[seam.name]
            elif seam.mode is None and on_host(self._workflow.env) and not self._in_python:
                # Its steps are Python's, and cannot be tried on copies.
                seam.mode = "graph"
            elif seam.mode is None and not auto_needs_timing():
                seam.mode = "xla"
            elif seam.mode is None and self.replicas.num_workers > 1:
                # Processes that measure would part; a rollout of many small ops is XLA's.
                seam.mode = "xla" if seam is self.rollout else "graph"
        if self.rollout.mode is None or self.update.mode is None:
            self._time_seams(progress)
        if self._loop_mode is None and self._in_python:
            self._loop_mode = "eager"
        elif self._loop_mode is None:
            self._loop_mode = self._choose_loop(asked["loop"])
            single = self.replicas.num_workers == 1 and not on_host(self._workflow.env)
            if not self._timed and self._loop_mode != "eager" and single:
                self._time_seams(progress)
        return {
            "loop": self._loop_mode,
            "rollout": str(self.rollout.mode),
            "update": str(self.update.mode),
            "evaluation": self.evaluations.mode,
        }

    def _choose_acting(self, progress: Progress, asked: str) -> str:
        """How the policy is called on the host: as asked, or whatever is faster."""
        workflow = self._workflow
        agent = workflow.agent
        policies = [policy_for(half, agent, agent.compute_actions) for half in workflow.env.halves]
        policy = policies[0]
        policy.mode = None if asked == "auto" else asked
        env_state = workflow.env.states_of(progress.env_state)[0]
        carry = None if progress.carry is None else policy.fresh_carry()
        policy.begin(self.acting_state(), progress.key, 4, env_state.obs, carry)
        for other in policies:
            other.mode = policy.mode
        return str(policy.mode)

    def _choose_loop(self, asked: str) -> str:
        """One program of both seams and the loop over them, where both are XLA and it pays."""
        modes = (str(self.rollout.mode), str(self.update.mode))
        if "eager" in modes or asked == "eager":
            return "eager"
        several = self.replicas.several
        if modes != ("xla", "xla") or asked == "graph" or several:
            return "graph"
        seconds = [s.seconds.get("xla") for s in (self.rollout, self.update)]
        known = sum(t for t in seconds if t is not None)
        slow = None not in seconds and known > _FUSE_BELOW_SECONDS
        return "graph" if asked == "auto" and slow else "xla"

    def _time_seams(self, progress: Progress) -> None:
        if self._in_python:
            batch = self._blank_batch(progress)
        else:
            # The rollout of one replica tells how the others' will do.
            env_state, carry = self.replicas.local((progress.env_state, progress.carry))[0]
            args = (self.acting_state(), env_state, carry, progress.key)
            if self.rollout.mode is None:
                self.rollout.choose_by_time(*args)
            else:
                self.rollout.time_as_chosen(*args)
            batch = self._roll(progress, progress.key).batch
        before = self.learner.variables()
        before = {path: v.numpy() for path, v in before.items()}
        update_args = (batch, progress.key, progress.env_steps)
        if self.update.mode is None:
            self.update.choose_by_time(*update_args)
        else:
            self.update.time_as_chosen(*update_args)
        self.learner.assign_variables(before)

    def _blank_batch(self, progress: Progress) -> Nest:
        """A batch of the right shapes; steps on the host cannot be taken on trial."""
        workflow, env_state = self._workflow, progress.env_state
        trajectory = blank_trajectory(
            workflow.env,
            workflow.agent,
            env_state,
            self.acting_state(),
            workflow.rollout_length,
            workflow.rollout_fields(env_state),
        )
        return self._digest(self.acting_state(), trajectory).batch

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
        """Makes the loop, once it is known how long a metrics row is."""
        if self._structure != self.learner.structure_version:
            self._forget_traces()

        self._find_names(progress)
        self._loop = tf.function(
            counted_apart(self._run_loop), jit_compile=self.fused, autograph=False
        )
        return self._loop

    def _find_names(self, progress: Progress) -> None:
        def once(progress: Progress) -> Any:
            out = self._roll(progress, progress.key)
            metrics = self.update(out.batch, progress.key, progress.env_steps)
            self._names = sorted({*out.metrics, *metrics})
            return tf.constant(0)

        # Traced and never run: the seams keep their traces for the loop.
        tf.function(once, autograph=False).get_concrete_function(progress)

    def whole(self, progress: Progress) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        """Returns the loop over iterations as one function, and arguments for it."""
        self.choose(progress)
        if not self._names:
            self._find_names(progress)
        return self._run_loop, (progress, tf.constant(1), tf.constant(1, tf.int64))

    def _forget_traces(self) -> None:
        """Modules have come or gone: everything is traced anew, in the modes chosen before."""
        for seam in (self.rollout, self.update):
            seam.forget_traces()
        self._rest = None
        self.evaluations.forget()
        self._structure, self._names = self.learner.structure_version, []

    def _roll(self, progress: Progress, key: tf.Tensor) -> Any:
        """The rollout on every replica; statistics, counts and metrics are those of all."""

        def own(env_state: Nest, carry: Nest, key: tf.Tensor) -> Any:
            values = self.acting_state()
            if not self.replicas.several:
                return self.rollout(values, env_state, carry, key)
            out = self.rollout(
                values, env_state, carry, seeding.fold_in(key, self.replicas.index())
            )
            return self._merged(out, self._workflow.normalizer(values), env_state)

        out = self.replicas.run(own, progress.env_state, progress.carry, key)
        common = self.replicas.first((out.normalizer, out.metrics, out.counts))
        return out.replace(normalizer=common[0], metrics=common[1], counts=common[2])

    def _merged(self, out: Any, normalizer: Nest, env_state: EnvState) -> Any:
        """What a replica's rollout found together with that of the others."""
        counts = self.replicas.sum(out.counts)
        shares = {}
        for name in ("env_steps", "episodes"):
            own = tf.cast(out.counts[name], tf.float32)
            shares[name] = own / tf.maximum(tf.cast(counts[name], tf.float32), 1.0)
        weighted = {
            name: x * shares["episodes" if name in EPISODE_METRICS else "env_steps"]
            for name, x in out.metrics.items()
        }
        return out.replace(
            counts=counts,
            metrics=self.replicas.sum(weighted),
            normalizer=merge_over_replicas(self.replicas, normalizer, out.normalizer),
            env_state=merge_over_replicas(self.replicas, env_state, out.env_state),
        )

    def _iterate(self, progress: Progress) -> tuple[Progress, tf.Tensor, tf.Tensor, tf.Tensor]:
        """One iteration: progress, float metrics, counters, and seconds by seam."""
        start = tf.timestamp() if self._timed else tf.constant(0.0, tf.float64)
        keys = _keys_of(progress.key, progress.iterations)
        with tf.control_dependencies([start]):
            out = self._roll(progress, keys[0])
        return self._learn(progress, out, keys[1], start)

    def _learn(self, progress: Progress, out: Any, key: tf.Tensor, start: tf.Tensor) -> Any:
        """The part of an iteration behind the rollout; returns what `_iterate` returns."""
        timed = self._timed
        with tf.control_dependencies(_data(self.replicas.local(out))):
            middle = tf.timestamp() if timed else start
        env_steps = progress.env_steps + out.counts["env_steps"]
        with tf.control_dependencies([middle]):
            metrics = self.update(out.batch, key, progress.env_steps)
        if out.normalizer is not None:
            # Only now: the loss must see the statistics that acted.
            with tf.control_dependencies(_data(metrics)):
                variables = self._workflow.normalizer(self._workflow.acting_state(self.learner))
                tf.nest.map_structure(lambda v, x: v.assign(x), variables, out.normalizer)
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
        if not self._names:  # eager calls do not trace
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
        iterate = self._iterate_on_host if self._in_python else self._iterate
        floats: list[Any] = []
        counters: list[Any] = []
        seconds = np.zeros(2)
        while len(floats) < iterations and int(progress.env_steps) < limit:
            progress, f, c, s = iterate(progress)
            floats.append(f.numpy())
            counters.append(c.numpy())
            seconds += s.numpy()
        return progress, len(floats), floats, counters, seconds

    def _iterate_on_host(self, progress: Progress) -> Any:
        """`_iterate` for environments that Python steps; all that follows them is one call."""
        if self._structure != self.learner.structure_version:
            self._forget_traces()
        start = tf.timestamp() if self._timed else tf.constant(0.0, tf.float64)
        of, keys = self._ahead
        if of is not progress:
            keys = _keys_of(progress.key, progress.iterations)
        # Variables as they are: reading them into tensors is dear, and nothing changes them.
        acting = self._workflow.acting_state(self.learner)
        played, env_state, carry = self.rollout(acting, progress.env_state, progress.carry, keys[0])
        if self._rest is None:
            rest = self._behind_the_host
            eager = self.update.mode == "eager"
            self._rest = rest if eager else tf.function(counted_apart(rest), autograph=False)
        counts = progress.replace(env_state=None, carry=None)
        progress, *found, next_keys = self._rest(counts, played, keys[1], start)
        progress = progress.replace(env_state=env_state, carry=carry)
        self._ahead = (progress, next_keys)
        return (progress, *found)

    def _behind_the_host(
        self, progress: Progress, played: Trajectory, key: tf.Tensor, start: tf.Tensor
    ) -> Any:
        found = self._learn(progress, self._digest(self.acting_state(), played), key, start)
        # The next iteration's, so that they need no call of their own.
        return (*found, _keys_of(found[0].key, found[0].iterations))


@functools.partial(tf.function, autograph=False)
def _keys_of(key: tf.Tensor, iteration: tf.Tensor) -> list[tf.Tensor]:
    """The keys of an iteration's rollout and update; a graph, since a loop may be eager."""
    return tf.unstack(seeding.split(seeding.fold_in(key, iteration), 2))


def _data(nest: Nest) -> list[tf.Tensor]:
    """Ops to wait for that are behind the values of a nest.

    A control edge from the call of a stateless function is dropped when the function is inlined;
    one from the identity of its result is not.
    """
    return [] if tf.executing_eagerly() else [tf.identity(x) for x in tf.nest.flatten(nest)]
