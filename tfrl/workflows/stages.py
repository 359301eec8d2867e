"""The compiled stages of an iteration: their modes, and the clocks between them."""

import contextlib
import contextvars
import dataclasses
import functools
import time
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import tensorflow as tf

from tfrl import tf_private
from tfrl.errors import UserError
from tfrl.traces import counted_separately, logic_key
from tfrl.types import Nest

MODES = ("xla", "graph", "eager")

_times: contextvars.ContextVar[list[tf.Tensor] | None] = contextvars.ContextVar(
    "tfrl_times", default=None
)


@dataclasses.dataclass(frozen=True)
class RunPhase:
    """A part of a run whose iterations share one trace.

    Attributes:
      name: Part of the name of its traces.
      ends: Env steps at which the phase ends; None for never.
      random: Whether the actions are random.
      learns: Whether there are updates.
    """

    name: str = "learn"
    ends: int | None = None
    random: bool = False
    learns: bool = True


class CompiledStage:
    """A function with a compile mode, traced once per mode."""

    def __init__(
        self,
        name: str,
        fn: Callable[..., Any],
        xla: Callable[..., Any] | None = None,
        bind: Callable[..., Any] | None = None,
    ):
        """Wraps `fn`; its mode is chosen later.

        Args:
          name: For logs and `metadata.json`: rollout, update, evaluation.
          fn: A function of nests of tensors.
          xla: A version of `fn` that compiles parts of itself under XLA, for a function that XLA
            cannot compile as a whole; None to compile all of `fn`.
          bind: `bind(name, make, args)` returns a bound trace as `Traces.bound` does, for calls
            from Python; None to trace each stage again.
        """
        self.name = name
        self.mode: str | None = None
        self.seconds: dict[str, float] = {}
        self._fn = fn
        self._xla = xla
        self._bind = bind
        self._compiled: dict[str, Any] = {}
        self._bound: dict[str, Any] = {}

    def compiled(self, mode: str) -> Any:
        """Returns the function in a mode, the same object every time."""
        if mode == "eager":
            return self._fn
        if "graph" not in self._compiled:
            self._compiled["graph"] = tf.function(counted_separately(self._fn), autograph=False)
        if mode not in self._compiled and self._xla is not None:
            self._compiled[mode] = tf.function(counted_separately(self._xla), autograph=False)
        elif mode not in self._compiled:
            # Wraps the graph function, so that the Python function is traced once for both.
            graph = self._compiled["graph"]
            self._compiled[mode] = tf.function(
                counted_separately(lambda *args: graph(*args)), jit_compile=True, autograph=False
            )
        return self._compiled[mode]

    def __call__(self, *args: Any) -> Any:
        """Calls the function in its chosen mode."""
        if self.mode is None:
            raise RuntimeError(f"the compile mode of stage {self.name!r} was not chosen")
        eager = self.mode == "eager" or tf.config.functions_run_eagerly()
        if self._bind is None or eager or not tf.executing_eagerly():
            return self.compiled(self.mode)(*args)
        mode = self.mode
        if mode not in self._bound:
            name = ("stage", self.name, mode)
            self._bound[mode] = self._bind(name, lambda: self.compiled(mode), args)
        return self._bound[mode](*args)

    def inlined(self, *args: Any) -> Any:
        """Inlines the function into the graph being traced, if its mode is graph.

        A called function starts only when every variable that it uses is ready. Inlined operations
        wait only for the variables that they read.
        """
        inside = self.mode == "graph" and not tf.executing_eagerly()
        return self._fn(*args) if inside else self(*args)


class Stages:
    """The stages of the iterations being traced, or run from Python.

    An iteration names its stages by `stage` and does not know their modes.

    Attributes:
      phase: The phase of the iterations.
      modes: `{stage: mode}`, with the mode of the "loop".
      seconds: `{stage: {mode: seconds of a call}}` of the timed stages.
    """

    def __init__(
        self,
        phase: RunPhase,
        modes: dict[str, str],
        seconds: dict[str, dict[str, float]],
        bind: Callable[..., Any] | None,
    ):
        """Takes the settled modes and times; see `CompiledStage` for `bind`."""
        self.phase, self.modes, self.seconds, self._bind = phase, modes, seconds, bind
        self._compiled: dict[str, CompiledStage] = {}
        self._others: dict[str, Any] = {}

    def stage(
        self, name: str, fn: Callable[..., Any], xla: Callable[..., Any] | None = None
    ) -> CompiledStage:
        """Returns the stage of a name; the first call creates it from `fn`.

        Args:
          name: "rollout", "update", or either with a variant: "rollout/random".
          fn: See `CompiledStage`.
          xla: See `CompiledStage`.

        Raises:
          UserError: For another function under a known name.
        """
        if name not in self._compiled:
            compiled = self._compiled[name] = CompiledStage(name, fn, xla, self._bind)
            compiled.mode = self.modes.get(name.partition("/")[0])
            compiled.seconds = self.seconds.setdefault(name, {})
        elif _code_of(fn) != _code_of(known := self._compiled[name].compiled("eager")):
            raise UserError(
                f"the stage {name!r}",
                expected="one function for each name of a stage",
                got=f"{name_of(fn)} after {name_of(known)}",
                remedy=f"Choose another name; '{name.partition('/')[0]}/mine' has the same mode.",
            )
        return self._compiled[name]

    def once(self, name: str, make: Callable[[], Any]) -> Any:
        """Returns what `make` returned in the first call of a name."""
        if name not in self._others:
            self._others[name] = make()
        return self._others[name]

    def set_mode(self, name: str, mode: str) -> None:
        """Sets the mode of a stage and of its variants."""
        self.modes[name] = mode
        for own, stage in self._compiled.items():
            if own.partition("/")[0] == name:
                stage.mode = mode

    @contextlib.contextmanager
    def in_use(self) -> Iterator[None]:
        """Makes these the stages of `stage` and `current` inside the context."""
        token = _current.set(self)
        try:
            yield
        finally:
            _current.reset(token)


_current: contextvars.ContextVar[Stages | None] = contextvars.ContextVar(
    "tfrl_stages", default=None
)


def current() -> Stages | None:
    """Returns the stages in use; None if `iterate` is called without a runner."""
    return _current.get()


def called_directly() -> bool:
    """Whether Python called `iterate` itself, without a runner."""
    return current() is None and tf.executing_eagerly()


def stage(
    name: str,
    fn: Callable[..., Any],
    xla: Callable[..., Any] | None = None,
    *,
    inline: bool = False,
) -> Callable[..., Any]:
    """Returns `fn` compiled in the mode of its stage; `fn` itself without a runner.

    Call it in the cross-replica context.

    Args:
      name: See `Stages.stage`.
      fn: A function of nests of tensors.
      xla: See `CompiledStage`.
      inline: Whether to inline it into the graph being traced, see `CompiledStage.inlined`.
    """
    stages = current()
    if stages is None:
        return fn
    compiled = stages.stage(name, fn, xla)
    if inline:
        return compiled.inlined
    return compiled


def _plain(fn: Any) -> Any:
    """Returns the function behind partials, methods and decorators."""
    if isinstance(fn, functools.partial):
        return _plain(fn.func)
    if isinstance(fn, types.MethodType):
        return _plain(fn.__func__)
    return _plain(fn.__wrapped__) if hasattr(fn, "__wrapped__") else fn


def _code_of(fn: Any) -> Any:
    """Returns the code of a function: equal for all its closures.

    Of a partial, also the code of functions that it binds, with what these close over.
    """
    bound = []
    while isinstance(fn, functools.partial):
        bound += [x for x in (*fn.args, *fn.keywords.values()) if callable(x)]
        fn = fn.func
    plain = _plain(fn)
    inner = tuple((_code_of(x), _closed_over(_plain(x))) for x in bound)
    return getattr(plain, "__code__", type(plain)), inner


def _closed_over(fn: Any) -> Any:
    cells = getattr(fn, "__closure__", None) or ()
    with contextlib.suppress(ValueError):  # a variable that is set later
        return tuple(logic_key(cell.cell_contents) for cell in cells)
    return ()


def name_of(fn: Any) -> str:
    """Returns the name of a function behind partials, methods and decorators."""
    fn = _plain(fn)
    return str(getattr(fn, "__qualname__", type(fn).__name__))


def check_compile(
    compile: str | Mapping[str, str],
    stages: tuple[str, ...],
    more: Mapping[str, tuple[str, ...]] | None = None,
) -> dict[str, str]:
    """Returns `{stage: mode}` for the argument `compile`, a mode for all stages or for each.

    Args:
      compile: The argument.
      stages: The names of the stages.
      more: Additional modes of some stages.

    Raises:
      UserError: For an unknown mode or stage.
    """
    more = more or {}
    choices = dict(compile) if isinstance(compile, Mapping) else {s: compile for s in stages}
    for stage, mode in choices.items():
        if stage not in stages or mode not in (*MODES, "auto", *more.get(stage, ())):
            special = "".join(f"; for {s} also {', '.join(m)}" for s, m in more.items())
            raise UserError(
                "compile",
                expected=f"one of {', '.join(MODES)}, auto, or a dict of modes keyed by "
                f"{', '.join(stages)}{special}",
                got=repr(compile),
                remedy="'auto' times graph against XLA and keeps the faster.",
            )
    return {s: choices.get(s, "auto") for s in stages}


def may_have_clocks(loop_mode: str) -> bool:
    """Whether clocks can run between stages: not in XLA, nor in deterministic graphs."""
    # The public tf.config can only switch op determinism on.
    in_graph = loop_mode == "graph" and not tf_private.is_op_determinism_enabled()
    return loop_mode == "eager" or in_graph


def now() -> tf.Tensor:
    """Returns the clock in seconds, float64; in a graph when it runs."""
    if tf.executing_eagerly():
        return tf.constant(time.perf_counter(), tf.float64)
    return tf.timestamp()


def auto_needs_timing() -> bool:
    """Whether "auto" times the modes: on a CPU only; on an accelerator it is XLA."""
    return not (tf.config.list_physical_devices("GPU") or tf.config.list_physical_devices("TPU"))


@contextlib.contextmanager
def timed(on: bool) -> Iterator[list[tf.Tensor]]:
    """Collects the times of `after` in the traced block; none if `on` is False."""
    times: list[tf.Tensor] = []
    token = _times.set(times if on else None)
    try:
        yield times
    finally:
        _times.reset(token)


@contextlib.contextmanager
def after(part: Nest) -> Iterator[None]:
    """Reads the clock once `part` is computed; operations traced inside wait for it."""
    times = _times.get()
    if times is None:
        yield
        return
    with tf.control_dependencies(data(part)):
        times.append(now())
    with tf.control_dependencies(times[-1:]):
        yield


def data(nest: Nest) -> list[tf.Tensor]:
    """Returns ops to wait for until the values of a nest are computed.

    A control edge from the call of a stateless function is dropped when the function is inlined;
    one from the identity of its result is not.
    """
    return [] if tf.executing_eagerly() else [tf.identity(x) for x in tf.nest.flatten(nest)]
