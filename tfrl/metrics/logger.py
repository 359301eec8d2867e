"""The MetricsLogger: values by name in, rows of reduced values out.

Learners, collectors and evaluators log; the owner of the root logger merges the others and reduces:

    logger.log(("policy_0", "loss"), loss)                    # mean since the last reduce()
    logger.log("episode_return", r, window=100)               # mean of the last 100
    logger.log("env_steps", n, reduce="lifetime_sum", throughput=True)
    row = logger.reduce()
    # {"policy_0": {"loss": 0.3}, "episode_return": 21.5,
    #  "env_steps": 4096, "env_steps_per_second": 5120.0}

Every logged value reaches the root exactly once: `merge` takes the values logged since the last
merge, also if loggers were saved and restored in between.
"""

import contextlib
import dataclasses
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from tfrl.errors import UnknownKeyError, UserError, did_you_mean
from tfrl.metrics import values
from tfrl.metrics.blocks import Block
from tfrl.metrics.metric import Metric, MetricSettings, Reduce, as_rllib_says

Path = tuple[str, ...]

# Suffix of a metric's throughput.
PER_SECOND = "_per_second"


def as_path(name: str | Path) -> Path:
    """Returns the path of a name; a string is a path of one part, slashes included.

    Raises:
      UserError: For anything but strings that are not empty.
    """
    path = (
        (name,) if isinstance(name, str) else tuple(name) if isinstance(name, tuple | list) else ()
    )
    if not path or not all(isinstance(part, str) and part for part in path):
        raise UserError(
            "metric name",
            expected="a non-empty string, or a tuple of non-empty strings",
            got=repr(name),
            remedy="Use for example log('loss', x) or log(('policy_0', 'loss'), x).",
        )
    return path


def join(path: Path) -> str:
    """Returns the path for messages."""
    return "/".join(path)


def rate_path(path: Path) -> Path:
    """Returns the path of a metric's throughput."""
    return (*path[:-1], path[-1] + PER_SECOND)


def begins(path: Path, prefix: Path) -> bool:
    """Tells whether a path is a prefix or lies under it."""
    return path[: len(prefix)] == prefix


def put(row: dict[str, Any], path: Path, value: Any) -> None:
    """Puts a value into a nested dict, creating intermediate dicts."""
    for part in path[:-1]:
        row = row.setdefault(part, {})
    row[path[-1]] = value


SCHEMA = 1

# A value logged while tracing: path, settings, scalar.
Traced = tuple[Path, MetricSettings, Any]
# A metric handed over by a logger; the third item is the shape of its values.
Entry = tuple[Path, MetricSettings, tuple[int, ...], Block]


def metric_header(path: Path, metric: Metric) -> dict[str, Any]:
    """Returns the metadata of a metric, without its blocks."""
    settings = dataclasses.asdict(metric.settings)
    return {"path": list(path), "shape": list(metric.shape), "settings": settings}


def no_state(got: str) -> UserError:
    """Returns the error for an invalid state."""
    return UserError(
        "metrics state",
        expected=f"a state from MetricsLogger.get_state or take, of schema {SCHEMA}",
        got=got,
        remedy="Use a state of this version of tfrl.",
    )


def read_state(state: Mapping[str, Any]) -> list[tuple[Path, MetricSettings, tuple[int, ...], Any]]:
    """Returns the metrics of a state or of a `take` result, with unread blocks."""
    if not isinstance(state, Mapping) or state.get("schema") != SCHEMA:
        got = f"schema {state.get('schema')}" if isinstance(state, Mapping) else repr(state)
        raise no_state(got)
    try:
        return [
            (
                as_path(tuple(m["path"])),
                MetricSettings(**m["settings"]).check(join(tuple(m["path"]))),
                tuple(m["shape"]),
                m,
            )
            for m in state["metrics"]
        ]
    except (KeyError, TypeError) as error:
        raise no_state(repr(error)) from error


def taken_entries(taken: Mapping[str, Any]) -> list[Entry]:
    """Returns the entries of a `take` result, with blocks."""
    try:
        return [
            (path, settings, shape, settings.empty_block().load_json(content["fresh"]))
            for path, settings, shape, content in read_state(taken)
        ]
    except (KeyError, TypeError, ValueError) as error:
        if isinstance(error, UserError):
            raise
        raise no_state(repr(error)) from error


class MetricsLogger:
    """Logs values by name and reduces them.

    A name is a string, or a tuple of strings as a path in a nested dict. Every call for a name must
    have the same settings. NaN means no value: it is ignored, also in counts, element by element in
    arrays; only NaN reduces to NaN. Infinities are values. Arrays are reduced element by element.

    Attributes:
      recent: The paths logged since the last call of `logged`, in order.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic):
        """Starts without metrics.

        Args:
          clock: Returns seconds, for throughputs.
        """
        self._clock = clock
        self._since = clock()
        self._metrics: dict[Path, Metric] = {}
        self.recent: dict[Path, None] = {}
        # Lists for traced values, by thread.
        self._tracing: dict[int, list[Traced]] = {}

    # Logging.

    def log(
        self,
        name: str | Path,
        value: Any,
        reduce: Reduce = "mean",
        window: int | None = None,
        ema_coeff: float | None = None,
        throughput: bool = False,
    ) -> None:
        """Logs one value.

        Args:
          name: The metric's name or path.
          value: A number, an array, an eager tensor or a variable; converted when a result is read.
          reduce: "mean", "min", "max", "sum": of the values since the last `reduce()`. "ema": their
            exponential moving average `sum_i c (1 - c)^(n - i) x_i / (1 - (1 - c)^n)`.
            "lifetime_sum": the sum since the beginning.
          window: For the first four: reduce the last `window` values, of any age.
          ema_coeff: c of an "ema", in (0, 1]; 0.01 if None.
          throughput: Also report `<name>_per_second`: the amount of a "sum" or "lifetime_sum" since
            the last `reduce()`, per second.

        Raises:
          UserError: For invalid settings, or ones that differ from earlier calls; for an invalid
            value, or another shape than before.
        """
        path = as_path(name)
        settings = MetricSettings(reduce, window, ema_coeff, throughput)
        if self._trace(path, settings, value):
            return
        held = values.hold(join(path), value)
        metric = self._metrics.get(path)
        if metric is None or metric.settings != settings:
            metric = self._metric(path, settings, values.shape_of(held))
        metric.log(held)
        self.recent[path] = None

    def log_value(
        self,
        key: str | Path,
        value: Any,
        *,
        reduce: str | None = "mean",
        window: float | None = None,
        ema_coeff: float | None = None,
        clear_on_reduce: bool = False,
        with_throughput: bool = False,
    ) -> None:
        """Logs one value with RLlib's settings and their defaults.

        The first call for a key fixes its settings.

        Args:
          key: The metric's name or path.
          value: As in `log`; while a Learner's update is traced also a symbolic scalar, which
            appears in the update's results.
          reduce: "mean", by default a moving average of coefficient 0.01 that starts at the first
            value; "min", "max" or "sum", by default of all values ever; None for a list of the
            values since the last `reduce()`.
          window: Reduce the last `window` values; infinite for all since the last `reduce()`, with
            `clear_on_reduce`.
          ema_coeff: c of the moving average `(1 - c) y + c x`.
          clear_on_reduce: Whether `reduce()` clears the values.
          with_throughput: Also report `<name>_per_second`, for a sum without a window.

        Raises:
          UserError: For incompatible settings; for a value as in `log`.
        """
        path = as_path(key)
        metric = self._metrics.get(path)
        if metric is None:
            settings = as_rllib_says(
                join(path), reduce, window, ema_coeff, clear_on_reduce, with_throughput
            )
        else:
            settings = metric.settings
        if self._trace(path, settings, value):
            return
        held = values.hold(join(path), value)
        metric = metric or self._metric(path, settings, values.shape_of(held))
        metric.log(held)
        self.recent[path] = None

    def log_with(self, path: Path, settings: MetricSettings, value: Any) -> None:
        """Logs one value with full settings; an existing metric keeps its settings."""
        held = values.hold(join(path), value)
        metric = self._metrics.get(path) or self._metric(path, settings, values.shape_of(held))
        metric.log(held)
        self.recent[path] = None

    @contextlib.contextmanager
    def log_time(self, key: str | Path, **settings: Any) -> Iterator[None]:
        """Logs the seconds of a Python block, with `log_value`.

        Args:
          key: The metric's name or path.
          **settings: Settings of `log_value`.
        """
        start = self._clock()
        yield
        self.log_value(key, self._clock() - start, **settings)

    # While an update of a Learner is traced, or runs eagerly.

    @contextlib.contextmanager
    def tracing(self) -> Iterator[list[Traced]]:
        """Collects this thread's values in a list instead of logging them.

        Yields:
          A list of (path, settings, value).
        """
        logged: list[Traced] = []
        thread = threading.get_ident()
        outer = self._tracing.get(thread)
        self._tracing[thread] = logged
        try:
            yield logged
        finally:
            if outer is None:
                del self._tracing[thread]
            else:
                self._tracing[thread] = outer

    def _trace(self, path: Path, settings: MetricSettings, value: Any) -> bool:
        """Whether a value was collected by `tracing`."""
        trace = self._tracing.get(threading.get_ident()) if self._tracing else None
        if trace is None:
            return False
        trace.append((path, settings.check(join(path)), values.as_scalar(join(path), value)))
        return True

    def logged(self) -> dict[Path, Any]:
        """Returns the reduced values logged since the last call, by path.

        Values with `clear_on_reduce` are reset; others stay for `reduce()`.
        """
        values = {}
        for path in self.recent:
            metric = self._metrics.get(path)
            if metric is None:
                continue
            values[path] = metric.result()
            if metric.settings.throughput:
                values[rate_path(path)] = metric.rate(self._clock() - self._since)
            if metric.settings.clears:
                metric.clear()
        self.recent.clear()
        return values

    def log_dict(
        self,
        nested: Mapping[str, Any],
        prefix: str | Path = (),
        reduce: Reduce = "mean",
        window: int | None = None,
        ema_coeff: float | None = None,
        throughput: bool = False,
        *,
        key: str | Path | None = None,
        **settings: Any,
    ) -> None:
        """Logs every value of a nested dict under its path, with the same settings.

        With `key`, RLlib's form, it calls `log_value` for each value.

        Args:
          nested: `{name: value or nested dict}`.
          prefix: Prefix of the paths.
          reduce: See `log`, as the following.
          window: See `log`.
          ema_coeff: See `log`.
          throughput: See `log`.
          key: Prefix of the paths instead of `prefix`; () for none.
          **settings: `clear_on_reduce` and `with_throughput` of `log_value`, with `key`.
        """
        if key is not None or settings:
            start = as_path(key) if key else ()
            settings = dict(settings, reduce=reduce, window=window, ema_coeff=ema_coeff)
            for name, value in nested.items():
                if isinstance(value, Mapping):
                    self.log_dict(value, key=(*start, name), **settings)
                else:
                    self.log_value((*start, name), value, **settings)
            return
        start = as_path(prefix) if prefix else ()
        for name, value in nested.items():
            if isinstance(value, Mapping):
                self.log_dict(value, (*start, name), reduce, window, ema_coeff, throughput)
            else:
                self.log((*start, name), value, reduce, window, ema_coeff, throughput)

    def _metric(self, path: Path, settings: MetricSettings, shape: tuple[int, ...]) -> Metric:
        """The metric of a path with exactly these settings, created if new."""
        settings = settings.check(join(path))
        metric = self._metrics.get(path)
        if metric is None:
            self._check_place(path, settings)
            metric = self._metrics[path] = Metric(join(path), settings, shape)
        elif metric.settings != settings:
            raise _conflict(path, metric.settings, settings)
        return metric

    def _check_place(self, path: Path, settings: MetricSettings) -> None:
        """Rejects a name that is a prefix of another, lies below a metric, or is a throughput's."""
        taken = {p: p for p in self._metrics}
        taken.update({rate_path(p): p for p, m in self._metrics.items() if m.settings.throughput})
        for mine in [path, rate_path(path)] if settings.throughput else [path]:
            for other, owner in taken.items():
                shorter = min(len(mine), len(other))
                if mine[:shorter] == other[:shorter]:
                    raise UserError(
                        f"metric {join(path)}",
                        expected="a name that does not overlap with another metric's",
                        got=f"the existing metric {join(owner)}",
                    )

    # Reading.

    def __contains__(self, name: object) -> bool:
        """Tells whether a name or path has been logged."""
        return (name if isinstance(name, tuple) else (name,)) in self._metrics

    def peek(self, name: str | Path = (), *, default: Any = None, throughput: bool = False) -> Any:
        """Returns the current value of a metric, or a nested dict of all under a path.

        Clears nothing. A metric without values is 0 for a sum, else NaN.

        Args:
          name: Its name or path.
          default: Result for an unknown name; None for an error.
          throughput: Whether to return the amount per second of this period, if the metric reports
            it.

        Raises:
          UserError: For an unknown name, with the nearest names; also a KeyError.
        """
        path = as_path(name) if name else ()
        if throughput:
            path = rate_path(path)
        result: Any = self._results(path, with_empty=True)
        for part in path:
            if part not in result:
                if default is not None:
                    return default
                known = [join(p) for p in self._metrics]
                raise UnknownKeyError(
                    f"metric {join(path)}",
                    expected="the name of a logged metric",
                    got=f"an unknown name, of {len(known)} logged metrics",
                    remedy=did_you_mean(join(path), known) if known else "Log it first.",
                )
            result = result[part]
        return result

    def reduce(self) -> dict[str, Any]:
        """Returns all reduced values, and begins a new period.

        Values without a window are cleared; windows, moving averages and lifetime sums continue.

        Returns:
          A nested dict of ints, floats and arrays, without metrics that have no value.
        """
        row = self._results((), with_empty=False)
        for metric in self._metrics.values():
            metric.clear()
        self._since = self._clock()
        return row

    def _results(self, prefix: Path, with_empty: bool) -> dict[str, Any]:
        elapsed = self._clock() - self._since
        row: dict[str, Any] = {}
        for path, metric in self._metrics.items():
            if not (begins(path, prefix) or begins(rate_path(path), prefix)):
                continue
            result = metric.result()
            if with_empty or metric.shown.logged:
                put(row, path, result)
                if metric.settings.throughput:
                    put(row, rate_path(path), metric.rate(elapsed))
        return row

    def remove(self, prefix: str | Path) -> None:
        """Removes the metric of this name and all under this path; ignores unknown names."""
        start = as_path(prefix)
        self._metrics = {p: m for p, m in self._metrics.items() if not begins(p, start)}

    def delete(self, *key: str | Path, key_error: bool = True) -> None:
        """Removes metrics, in RLlib's form: `delete("policy_0", "loss")`.

        Args:
          *key: The name or path, or its parts.
          key_error: Whether an unknown name is an error.

        Raises:
          UserError: For an unknown name; also a KeyError.
        """
        path = as_path(key[0] if len(key) == 1 else key)  # type: ignore[arg-type]
        if key_error:
            self.peek(path)
        self.remove(path)

    def reset(self) -> None:
        """Removes all metrics."""
        self._metrics.clear()
        self.recent.clear()

    # Merging.

    def take(self) -> dict[str, Any]:
        """Returns the values logged since the last `take`, for another process's `merge`.

        The logger's own results do not change.

        Returns:
          A dict of plain JSON types.
        """
        result = []
        for path, metric in self._metrics.items():
            block = metric.hand_over()
            if block.logged:
                result.append({**metric_header(path, metric), "fresh": block.to_json()})
        return {"schema": SCHEMA, "metrics": result}

    def merge(self, others: "Iterable[MetricsLogger | Mapping[str, Any]]") -> None:
        """Adds the values that other loggers have not handed over yet.

        Values count as logged at the same time: sums add, means and moving averages are weighted by
        counts, windows interleave. The other loggers' own results do not change.

        Args:
          others: Loggers of this process, and `take` results of others.

        Raises:
          UserError: Lists all metrics whose settings or shapes differ between loggers; nothing is
            merged then.
        """
        others = list(others)
        loggers = [o for o in others if isinstance(o, MetricsLogger)]
        if len({id(o) for o in [self, *loggers]}) != len(loggers) + 1:
            raise UserError(
                "MetricsLogger.merge",
                expected="other loggers, each once",
                got="this logger, or a logger twice",
                remedy="Leave it out; its values would count twice.",
            )
        result: list[Entry] = []
        for other in others:
            result += other._pending() if isinstance(other, MetricsLogger) else taken_entries(other)
        before = dict(self._metrics)
        grouped: dict[Path, list[Block]] = {}
        problems: list[str] = []
        for path, settings, shape, block in result:
            try:
                if self._metric(path, settings, shape).shape != shape:
                    problems.append(f"{join(path)} of shape {shape}")
            except UserError as error:
                problems.append(f"{error.thing} with {error.got}")
            grouped.setdefault(path, []).append(block)
        if problems:
            self._metrics = before
            raise UserError(
                "MetricsLogger.merge",
                expected="metrics with the settings and shapes of this logger",
                got="; ".join(dict.fromkeys(problems)),
                remedy="Log each name with the same settings everywhere.",
            )
        for path, blocks in grouped.items():
            self._metrics[path].append(blocks)
        for logger in loggers:
            logger.take()

    def _pending(self) -> list[Entry]:
        metrics = [(p, m.settle()) for p, m in self._metrics.items()]
        return [(p, m.settings, m.shape, m.fresh) for p, m in metrics if m.fresh.logged]

    # State.

    def get_state(self) -> dict[str, Any]:
        """Returns the full state in plain JSON types, for `set_state`."""
        metrics = []
        for path, metric in self._metrics.items():
            metric.settle()
            blocks = {k: getattr(metric, k).to_json() for k in ("shown", "fresh", "period")}
            metrics.append({**metric_header(path, metric), **blocks})
        return {"schema": SCHEMA, "elapsed": self._clock() - self._since, "metrics": metrics}

    def set_state(self, state: Mapping[str, Any], *, handed_over: bool = False) -> None:
        """Restores the state of a logger.

        Args:
          state: The result of `get_state`.
          handed_over: True for the state of a logger that continues elsewhere (a root's, sent to
            workers for the totals): its values are visible here but not merged again.

        Raises:
          UserError: For an invalid state, or one of a newer version.
        """
        metrics = {}
        for path, settings, shape, content in read_state(state):
            metric = metrics[path] = Metric(join(path), settings, shape)
            try:
                metric.shown.load_json(content["shown"])
                metric.period.load_json(content["period"])
                if not handed_over:
                    metric.fresh.load_json(content["fresh"])
            except (KeyError, TypeError, ValueError) as error:
                raise no_state(f"metric {join(path)} with {error!r}") from error
        self._metrics = metrics
        self._since = self._clock() - float(state.get("elapsed", 0.0))


def _conflict(path: Path, old: MetricSettings, new: MetricSettings) -> UserError:
    before, now = vars(old), vars(new)
    differ = [k for k in before if before[k] != now[k]]
    return UserError(
        f"metric {join(path)}",
        expected=", ".join(f"{k}={before[k]!r}" for k in differ) + ", as when first logged",
        got=", ".join(f"{k}={now[k]!r}" for k in differ),
        remedy="Log a name with the same settings everywhere, or choose another name.",
    )
