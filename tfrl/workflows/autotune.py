"""Settles how the stages of a run are compiled, by time where that is asked for."""

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any

from tfrl.workflows.stages import CompiledStage, Stages, auto_needs_timing

# Two XLA stages in a graph loop lose about 0.3 ms an iteration to one program, whose compilation
# takes seconds: worth it for iterations shorter than this.
_FUSE_BELOW_SECONDS = 0.010
# On a CPU, XLA's programs run in a thread of their own. Called alone it answers in 0.1 ms; between
# the matrix products of a graph that keeps two cores busy it takes so much longer to wake up.
_WAKE_SECONDS = 0.0004
# What the operations on a replay buffer behind a rollout on the host take in a graph.
_BEHIND_SECONDS = 0.0005


@dataclasses.dataclass(frozen=True)
class Trials:
    """What a workflow hands over to have the modes of its stages settled.

    Attributes:
      rollout: Its stage.
      update: Its stage.
      rollout_args: Returns arguments for a trial of the rollout; changes nothing.
      update_args: Likewise of the update.
      keep: Returns a function that puts back what trials of the update change.
      choose_acting: Of environments on the host: `choose_acting(asked)` returns how the policy is
        called. None for others: the rollout is a compiled stage.
      python_steps: Whether a graph calls Python to step the environments, so that a rollout cannot
        be tried on copies.
      python_loop: Whether the loop over iterations is Python's.
      several: Whether there are several replicas.
      several_workers: Whether there are several processes.
      prefers_fused: Whether a rollout follows an XLA update whatever its own time: apart, a few
        steps cost little either way, but only together are they one program, which is many times
        as fast.
      fuses_on_host: Whether all that follows a rollout on the host is XLA's where the update is.
      overlaps: Whether the rollout and the update of some phase run at the same time in a graph.
      steps_in_xla: Whether environments step in XLA in either mode. The whole rollout is then one
        program where it is about as fast.
    """

    rollout: CompiledStage
    update: CompiledStage
    rollout_args: Callable[[], tuple[Any, ...]]
    update_args: Callable[[], tuple[Any, ...]]
    keep: Callable[[], Callable[[], None]]
    choose_acting: Callable[[str], str] | None = None
    python_steps: bool = False
    python_loop: bool = False
    several: bool = False
    several_workers: bool = False
    prefers_fused: bool = False
    fuses_on_host: bool = False
    overlaps: bool = False
    steps_in_xla: bool = False

    @property
    def timed_apart(self) -> bool:
        """Whether the stages can be called by themselves to time them."""
        return not self.several_workers and not (self.python_steps or self.choose_acting)


class CompileModeTuner:
    """Chooses among graph and XLA by timing the stages on copies."""

    def __init__(self, asked: Mapping[str, str], trials: Trials, stages: Stages):
        """Takes what is asked for.

        Args:
          asked: `{stage: mode or "auto"}` of rollout, update and loop.
          trials: The stages to settle.
          stages: Takes the modes, and what was timed.
        """
        self._asked, self._trials, self._stages = asked, trials, stages

    def settle(self, has_clocks: Callable[[str], bool]) -> None:
        """Settles the modes that are not yet.

        Args:
          has_clocks: Whether there are clocks between the stages, by the mode of the loop.
        """
        trials, modes, asked = self._trials, self._stages.modes, self._asked
        if trials.choose_acting is not None and "rollout" not in modes:
            self._stages.set_mode("rollout", trials.choose_acting(asked["rollout"]))
        for stage in (trials.rollout, trials.update):
            mode = modes.get(stage.name) or self._known(stage)
            if mode is not None:
                self._stages.set_mode(stage.name, mode)
        if "rollout" not in modes or "update" not in modes:
            self._time_stages()
        if "loop" in modes:
            return
        modes["loop"] = "eager" if trials.python_loop else self._choose_loop(asked["loop"])
        lacks = trials.overlaps or not has_clocks(modes["loop"])
        if lacks and modes["loop"] != "eager" and trials.timed_apart:
            self._time_stages()

    def _known(self, stage: CompiledStage) -> str | None:
        """The mode of a stage that needs no timing; None for one that does."""
        if self._asked[stage.name] != "auto":
            return self._asked[stage.name]
        if self._trials.python_steps:
            return "graph"
        if not auto_needs_timing():
            return "xla"
        if self._trials.several_workers:
            # Processes that measure would part; a rollout of many small ops is XLA's.
            return "xla" if stage is self._trials.rollout else "graph"
        return None

    def _choose_loop(self, asked: str) -> str:
        """One program of both stages and the loop over them, where both are XLA and it pays."""
        chosen = [self._stages.modes[name] for name in ("rollout", "update")]
        if "eager" in chosen or asked == "eager":
            return "eager"
        if chosen != ["xla", "xla"] or asked == "graph" or self._trials.several:
            return "graph"
        seconds = [s.seconds.get("xla") for s in (self._trials.rollout, self._trials.update)]
        known = sum(t for t in seconds if t is not None)
        slow = None not in seconds and known > _FUSE_BELOW_SECONDS
        return "graph" if asked == "auto" and slow else "xla"

    def _time_stages(self) -> None:
        trials, stages = self._trials, self._stages
        rollout, update = trials.rollout, trials.update
        reset = trials.keep()
        compared = trials.choose_acting is None and rollout.mode is None
        if compared:
            wins = math.inf if trials.steps_in_xla else None
            mode = rollout.choose_by_time(*trials.rollout_args(), wins=wins)
            stages.set_mode("rollout", mode)
        elif trials.choose_acting is None:
            rollout.time_as_chosen(*trials.rollout_args())
        args = trials.update_args()
        fuses = trials.prefers_fused and not trials.python_loop
        if update.mode is None:
            wins = None
            if fuses:
                wins = min(rollout.seconds.values(), default=0.0)
            elif trials.python_loop and trials.fuses_on_host:
                wins = _BEHIND_SECONDS
            mode = update.choose_by_time(*args, wins=wins, begin=reset)
            stages.set_mode("update", mode)
        else:
            update.time_as_chosen(*args)
        reset()
        if fuses and update.mode == "xla" and self._asked["rollout"] == "auto":
            stages.set_mode("rollout", "xla")
        compared = compared and trials.overlaps and not trials.python_loop
        if compared and update.mode == "graph" and rollout.mode == "xla":
            if rollout.seconds["graph"] < rollout.seconds["xla"] + _WAKE_SECONDS:
                stages.set_mode("rollout", "graph")


def choose_loop(
    asked: str,
    run_stages: Stages,
    iterate: Callable[[Any], Any],
    state: Any,
    xla: Callable[[Any], Any] | None = None,
) -> str:
    """Returns the mode of a loop whose iterations are one stage; "auto" times graph against XLA.

    Args:
      asked: A mode, or "auto".
      run_stages: The stages; the others of an iteration are within this one.
      iterate: An iteration of a state, to be timed.
      state: Of tensors.
      xla: The iteration where it compiles parts of itself under XLA; None to compile all of it.
    """
    if asked != "auto":
        return asked
    if not auto_needs_timing():
        return "xla"
    return run_stages.stage("iteration", iterate, xla).choose_by_time(state)
