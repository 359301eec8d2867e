"""Settles how the stages of a run are compiled, by time where that is asked for."""

from typing import Any

from tensorflow.python.framework import config as framework_config

from tfrl.envs.host import on_host
from tfrl.rollout.acting import policy_for
from tfrl.traces import Traces
from tfrl.types import Nest
from tfrl.workflows.run_state import Progress
from tfrl.workflows.stages import CompiledStage, auto_needs_timing

# Two XLA stages in a graph loop lose about 0.3 ms an iteration to one program, whose compilation
# takes seconds: worth it for iterations shorter than this.
_FUSE_BELOW_SECONDS = 0.010
# On a CPU, XLA's programs run in a thread of their own. Called alone it answers in 0.1 ms; between
# the matrix products of a graph that keeps two cores busy it takes so much longer to wake up.
_WAKE_SECONDS = 0.0004
# What the operations on a replay buffer behind a rollout on the host take in a graph.
_BEHIND_SECONDS = 0.0005


class CompileModeTuner:
    """The compile modes of a `LearnerProgram`; a part of that class."""

    learner: Any
    replicas: Any
    evaluations: Any
    rollout: CompiledStage
    update: CompiledStage
    _workflow: Any
    _on_host: bool
    _in_python: bool
    _loop_mode: str | None
    # Whether a rollout follows an XLA update whatever its own time: apart, a few steps cost little
    # either way, but only together are they one program, which is many times as fast.
    prefers_fused = False
    # Whether all that follows a rollout on the host is XLA's where the update is.
    fuses_on_host: bool = False

    @property
    def traces(self) -> Traces:
        """What has been traced for the logic of this run."""
        raise NotImplementedError

    def _stages(self) -> tuple[CompiledStage, ...]:
        raise NotImplementedError

    def acting_state(self) -> Any:
        """Returns the values by which the agent acts, of the replica that this is called on."""
        raise NotImplementedError

    def _trial_batch(self, progress: Progress) -> Nest:
        """Returns a batch for the update to be timed on; nothing may change by making it."""
        raise NotImplementedError

    def choose(self, progress: Progress) -> dict[str, str]:
        """Settles the mode of every stage, timing those that are "auto" on copies.

        What was timed once holds for all runs of equal logic.
        """
        asked = self._workflow.compile
        note = ("modes", tuple(sorted(asked.items())))
        if self._loop_mode is None and note in self.traces.notes:
            self._take(progress, self.traces.notes[note])
        if self._on_host and self.rollout.mode is None:
            self.rollout.mode = self._choose_acting(progress, asked["rollout"])
        for stage in (self.rollout, self.update):
            if stage.mode is None and asked[stage.name] != "auto":
                stage.mode = asked[stage.name]
            elif stage.mode is None and on_host(self._workflow.env) and not self._on_host:
                # Its steps are Python's, and cannot be tried on copies.
                stage.mode = "graph"
            elif stage.mode is None and not auto_needs_timing():
                stage.mode = "xla"
            elif stage.mode is None and self.replicas.num_workers > 1:
                # Processes that measure would part; a rollout of many small ops is XLA's.
                stage.mode = "xla" if stage is self.rollout else "graph"
        if self.rollout.mode is None or self.update.mode is None:
            self._time_stages(progress)
        if self._loop_mode is None and self._in_python:
            self._loop_mode = "eager"
        elif self._loop_mode is None:
            self._loop_mode = self._choose_loop(asked["loop"])
            lacks = self._overlaps or not self._timed
            if lacks and self._loop_mode != "eager" and self._times_apart:
                self._time_stages(progress)
        self.traces.notes.setdefault(note, self._chosen)
        return {
            "loop": self._loop_mode,
            "rollout": str(self.rollout.mode),
            "update": str(self.update.mode),
            "evaluation": self.evaluations.mode,
        }

    @property
    def _chosen(self) -> tuple[Any, ...]:
        """The modes, and what was timed."""
        return self._loop_mode, [(stage.mode, dict(stage.seconds)) for stage in self._stages()]

    def _take(self, progress: Progress, chosen: tuple[Any, ...]) -> None:
        """Takes what `_chosen` returned."""
        self._loop_mode, stages = chosen
        for stage, (mode, seconds) in zip(self._stages(), stages, strict=True):
            stage.mode, stage.seconds = mode, dict(seconds)
        if self._on_host:
            self._choose_acting(progress, str(self.rollout.mode))

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
        """One program of both stages and the loop over them, where both are XLA and it pays."""
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

    def _time_stages(self, progress: Progress) -> None:
        asked = self._workflow.compile["rollout"]
        compared = not self._on_host and self.rollout.mode is None
        if not self._on_host:
            # The rollout of one replica tells how the others' will do.
            env_state, carry = self.replicas.per_replica((progress.env_state, progress.carry))[0]
            args = (self.acting_state(), env_state, carry, progress.key)
            if self.rollout.mode is None:
                self.rollout.choose_by_time(*args)
            else:
                self.rollout.time_as_chosen(*args)
        batch = self._trial_batch(progress)
        before = {path: v.numpy() for path, v in self.learner.variables().items()}
        update_args = (batch, progress.key, progress.env_steps)
        fuses = self.prefers_fused and not self._in_python
        if self.update.mode is None:
            wins = None
            if fuses:
                wins = min(self.rollout.seconds.values(), default=0.0)
            elif self._in_python and self.fuses_on_host:
                wins = _BEHIND_SECONDS
            self.update.choose_by_time(
                *update_args, wins=wins, begin=lambda: self.learner.assign_variables(before)
            )
        else:
            self.update.time_as_chosen(*update_args)
        self.learner.assign_variables(before)
        if fuses and self.update.mode == "xla" and asked == "auto":
            self.rollout.mode = "xla"
        compared = compared and self._overlaps and not self._in_python
        if compared and self.update.mode == "graph" and self.rollout.mode == "xla":
            seconds = self.rollout.seconds
            if seconds["graph"] < seconds["xla"] + _WAKE_SECONDS:
                self.rollout.mode = "graph"

    @property
    def fused(self) -> bool:
        """Whether the stages and the loop over them are one XLA program."""
        return self._loop_mode == "xla"

    @property
    def _timed(self) -> bool:
        """Whether there are clocks between the stages: not in XLA, nor in deterministic graphs."""
        if self._in_python:
            return False  # Python has the clock
        # The public tf.config can only switch op determinism on.
        return not self.fused and not framework_config.is_op_determinism_enabled()

    @property
    def _overlaps(self) -> bool:
        """Whether the rollout and the update of some phase run at the same time in a graph."""
        return False

    @property
    def _times_apart(self) -> bool:
        """Whether the stages can be called by themselves to time them."""
        return bool(self.replicas.num_workers == 1 and not on_host(self._workflow.env))

    def _time_split(self, call: float, t_rollout: float, t_update: float) -> dict[str, float]:
        """Seconds by stage; without clocks, in the proportion of the stages timed apart."""
        if self._timed or self._in_python:
            return {"rollout": t_rollout, "update": t_update}
        a, b = (s.seconds.get(str(s.mode)) for s in (self.rollout, self.update))
        if a is None or b is None:
            return {}
        return {"rollout": call * a / (a + b), "update": call * b / (a + b)}
