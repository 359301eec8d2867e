"""Settles the compile modes of a run's stages; "auto" times them."""

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf

from tfrl.timing import MARGIN, best_seconds, wait_for
from tfrl.workflows.fast_call import bound_call
from tfrl.workflows.stages import CompiledStage, Stages, auto_needs_timing, may_have_clocks

# Two XLA stages in a graph loop lose about 0.3 ms an iteration to one program, whose compilation
# takes seconds: worth it for iterations shorter than this.
_FUSE_BELOW_SECONDS = 0.010
# On a CPU, XLA's programs run in a separate thread. It answers a call alone in 0.1 ms. Between the
# matrix products of a graph that keeps two cores busy, it takes so much longer to wake up.
_WAKE_SECONDS = 0.0004
# Seconds that the replay buffer's operations take in a graph after a rollout on the host.
_BEHIND_SECONDS = 0.0005


@dataclasses.dataclass(frozen=True)
class Trials:
    """A workflow's stages and settings, for `CompileModeTuner`.

    Attributes:
      rollout: The rollout stage.
      update: The update stage.
      rollout_args: Returns arguments for a trial of the rollout; changes nothing.
      update_args: Returns arguments for a trial of the update; changes nothing.
      keep: Returns a function that restores the state that trials of the update change.
      choose_acting: For environments on the host: `choose_acting(asked)` returns the mode of the
        policy. None for other environments: the rollout is a compiled stage.
      steps_in_graph: Whether a graph calls Python to step the environments. There are no copies of
        these, so the rollout is not timed.
      loops_in_python: Whether Python runs the loop over iterations.
      several: Whether there are several replicas.
      several_workers: Whether there are several processes.
      prefers_fused: If True, the rollout uses XLA whenever the update does, whatever its own time:
        both then compile into one program, which is many times as fast for rollouts of a few steps.
      fuses_on_host: If True, everything after a rollout on the host uses XLA if the update does.
      prefetches: Whether the rollout and the update of some phase run at the same time in a graph.
      steps_in_xla: Whether environments step in XLA in either mode. The whole rollout is then one
        XLA program if that is about as fast.
    """

    rollout: CompiledStage
    update: CompiledStage
    rollout_args: Callable[[], tuple[Any, ...]]
    update_args: Callable[[], tuple[Any, ...]]
    keep: Callable[[], Callable[[], None]]
    choose_acting: Callable[[str], str] | None = None
    steps_in_graph: bool = False
    loops_in_python: bool = False
    several: bool = False
    several_workers: bool = False
    prefers_fused: bool = False
    fuses_on_host: bool = False
    prefetches: bool = False
    steps_in_xla: bool = False

    @property
    def timed_apart(self) -> bool:
        """Whether the stages can be called and timed separately."""
        return not self.several_workers and not (self.steps_in_graph or self.choose_acting)


class CompileModeTuner:
    """Chooses between graph and XLA by timing the stages on copies."""

    def __init__(self, asked: Mapping[str, str], trials: Trials, stages: Stages):
        """Takes the requested modes.

        Args:
          asked: `{stage: mode or "auto"}` of rollout, update and loop.
          trials: The stages to settle.
          stages: Receives the modes and the measured seconds.
        """
        self._asked, self._trials, self._stages = asked, trials, stages

    def settle(self) -> None:
        """Settles the modes that are not settled yet."""
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
        modes["loop"] = "eager" if trials.loops_in_python else self._choose_loop(asked["loop"])
        lacks = trials.prefetches or not may_have_clocks(modes["loop"])
        if lacks and modes["loop"] != "eager" and trials.timed_apart:
            self._time_stages()

    def _known(self, stage: CompiledStage) -> str | None:
        """Returns the mode of a stage that needs no timing; None for a stage to time."""
        if self._asked[stage.name] != "auto":
            return self._asked[stage.name]
        if self._trials.steps_in_graph:
            return "graph"
        if not auto_needs_timing():
            return "xla"
        if self._trials.several_workers:
            # Measurements differ between processes; XLA suits a rollout of many small ops.
            return "xla" if stage is self._trials.rollout else "graph"
        return None

    def _choose_loop(self, asked: str) -> str:
        """Compiles the loop and both stages into one program, if both are XLA and it is faster."""
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
            mode = choose_by_time(rollout, *trials.rollout_args(), wins=wins)
            stages.set_mode("rollout", mode)
        elif trials.choose_acting is None:
            time_as_chosen(rollout, *trials.rollout_args())
        args = trials.update_args()
        fuses = trials.prefers_fused and not trials.loops_in_python
        if update.mode is None:
            wins = None
            if fuses:
                wins = min(rollout.seconds.values(), default=0.0)
            elif trials.loops_in_python and trials.fuses_on_host:
                wins = _BEHIND_SECONDS
            mode = choose_by_time(update, *args, wins=wins, begin=reset)
            stages.set_mode("update", mode)
        else:
            time_as_chosen(update, *args)
        reset()
        if fuses and update.mode == "xla" and self._asked["rollout"] == "auto":
            stages.set_mode("rollout", "xla")
        compared = compared and trials.prefetches and not trials.loops_in_python
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
      run_stages: The stages of the run; the loop's iteration contains all others.
      iterate: Runs an iteration of a state; it is timed.
      state: A state of tensors.
      xla: A version of `iterate` that compiles parts of itself under XLA; None to compile all of
        it.
    """
    if asked != "auto":
        return asked
    if not auto_needs_timing():
        return "xla"
    return choose_by_time(run_stages.stage("iteration", iterate, xla), state)


def choose_by_time(
    stage: CompiledStage,
    *args: Any,
    wins: float | None = None,
    begin: Callable[[], None] = lambda: None,
) -> str:
    """Times graph and XLA on `args`, and sets the stage's mode to the faster; returns its name.

    Args:
      stage: The stage, which keeps the seconds too.
      *args: The function's arguments.
      wins: Seconds that a call saves elsewhere if this function uses XLA, since the code around
        it then uses XLA too. Near the tie, XLA is chosen if these seconds make up for the
        difference, else the graph.
      begin: Restores the state that the calls change, so that each mode does the same work.
    """
    fns = {"graph": stage.compiled("graph")}
    wait_for(fns["graph"](*args))
    try:
        wait_for(stage.compiled("xla")(*args))
        fns["xla"] = stage.compiled("xla")
    except (tf.errors.InvalidArgumentError, tf.errors.UnimplementedError) as error:
        # A user's network may use an op that XLA does not support.
        tf.get_logger().info("stage %s does not compile under XLA: %s", stage.name, error)
    calls = {name: bound_call(fn, args) for name, fn in fns.items()}
    stage.seconds.update(best_seconds(calls, begin))
    graph, xla = stage.seconds["graph"], stage.seconds.get("xla", float("inf"))
    most = graph / MARGIN if wins is None else min(graph * MARGIN, graph + wins)
    stage.mode = "xla" if xla < most else "graph"
    return stage.mode


def time_as_chosen(stage: CompiledStage, *args: Any) -> None:
    """Times the chosen mode; a call of one fused program is split by these seconds."""
    if stage.mode is not None and stage.mode not in stage.seconds:
        fn = stage.compiled(stage.mode)
        wait_for(fn(*args))
        stage.seconds.update(best_seconds({stage.mode: bound_call(fn, args)}))
