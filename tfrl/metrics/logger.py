"""The MetricsLogger: values by name in, rows of reduced values out.

Learners, collectors and evaluators log; who owns the root logger merges the others' and reduces:

    logger.log(("policy_0", "loss"), loss)                    # mean since the last reduce()
    logger.log("episode_return", r, window=100)               # mean of the last 100
    logger.log("env_steps", n, reduce="lifetime_sum", throughput=True)
    row = logger.reduce()
    # {"policy_0": {"loss": 0.3}, "episode_return": 21.5,
    #  "env_steps": 4096, "env_steps_per_second": 5120.0}

Every value that is logged anywhere reaches the root once: `merge` takes what was logged since the
last merge, also when loggers were saved and restored in between.
"""

import dataclasses
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from tfrl.errors import UserError, did_you_mean
from tfrl.metrics import values
from tfrl.metrics.blocks import Block
from tfrl.metrics.metric import Metric, Reduce, Settings

Path = tuple[str, ...]

# Added to the name of a metric for its throughput.
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
            expected="a string, or a tuple of strings, none of them empty",
            got=repr(name),
            remedy="Name it as in log('loss', x) or log(('policy_0', 'loss'), x).",
        )
    return path


def join(path: Path) -> str:
    """Returns the path as messages show it."""
    return "/".join(path)


def rate_path(path: Path) -> Path:
    """Returns where the throughput of a metric is reported."""
    return (*path[:-1], path[-1] + PER_SECOND)


def begins(path: Path, prefix: Path) -> bool:
    """Tells whether a path is a prefix or lies under it."""
    return path[: len(prefix)] == prefix


def put(row: dict[str, Any], path: Path, value: Any) -> None:
    """Puts a value into a nested dict, making the dicts on the way."""
    for part in path[:-1]:
        row = row.setdefault(part, {})
    row[path[-1]] = value


SCHEMA = 1

# What one logger hands over of one metric: its shape of values is the third item.
Entry = tuple[Path, Settings, tuple[int, ...], Block]


def metric_header(path: Path, metric: Metric) -> dict[str, Any]:
    """Returns what identifies a metric, beside its blocks."""
    settings = dataclasses.asdict(metric.settings)
    return {"path": list(path), "shape": list(metric.shape), "settings": settings}


def no_state(got: str) -> UserError:
    """Returns the error for something that no logger has returned."""
    return UserError(
        "metrics state",
        expected=f"what MetricsLogger.get_state or take returned, of schema {SCHEMA}",
        got=got,
        remedy="Use a state of this version of tfrl.",
    )


def read_state(state: Mapping[str, Any]) -> list[tuple[Path, Settings, tuple[int, ...], Any]]:
    """Returns the metrics of a state or of what `take` returned, their blocks still unread."""
    if not isinstance(state, Mapping) or state.get("schema") != SCHEMA:
        got = f"schema {state.get('schema')}" if isinstance(state, Mapping) else repr(state)
        raise no_state(got)
    try:
        return [
            (
                as_path(tuple(m["path"])),
                Settings(**m["settings"]).check(join(tuple(m["path"]))),
                tuple(m["shape"]),
                m,
            )
            for m in state["metrics"]
        ]
    except (KeyError, TypeError) as error:
        raise no_state(repr(error)) from error


def taken_entries(taken: Mapping[str, Any]) -> list[Entry]:
    """Returns what `take` handed over, its blocks read."""
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

    A name is a string, or a tuple of strings for a place in a nested dict. Every call for a name
    has the same settings. A NaN says that there is nothing to report: it counts neither as a value
    nor in the number of values, element by element in arrays; what had only NaN reduces to NaN.
    Infinities count. Arrays are reduced element by element.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic):
        """Starts without metrics.

        Args:
          clock: Returns seconds, for throughputs.
        """
        self._clock = clock
        self._since = clock()
        self._metrics: dict[Path, Metric] = {}

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
          value: A number, an array, an eager tensor or a variable; it is converted when a result
            is asked for.
          reduce: "mean", "min", "max", "sum": of the values since the last `reduce()`. "ema": their
            exponential moving average `sum_i c (1 - c)^(n - i) x_i / (1 - (1 - c)^n)`.
            "lifetime_sum": the sum since the beginning.
          window: For the first four, reduce the last `window` values, whenever they were logged.
          ema_coeff: c of an "ema", in (0, 1]; 0.01 if None.
          throughput: Report `<name>_per_second` too: the amount of a "sum" or "lifetime_sum" since
            the last `reduce()` per second.

        Raises:
          UserError: For settings that do not fit, or differ from those that the name has; for a
            value that is none, or of another shape than before.
        """
        path = as_path(name)
        held = values.hold(join(path), value)
        settings = Settings(reduce, window, ema_coeff, throughput)
        metric = self._metrics.get(path)
        if metric is None or metric.settings != settings:
            metric = self._metric(path, settings, values.shape_of(held))
        metric.log(held)

    def log_dict(
        self,
        nested: Mapping[str, Any],
        prefix: str | Path = (),
        reduce: Reduce = "mean",
        window: int | None = None,
        ema_coeff: float | None = None,
        throughput: bool = False,
    ) -> None:
        """Logs every value of a nested dict under its path, with the same settings.

        Args:
          nested: `{name: value or nested dict}`.
          prefix: What the paths begin with.
          reduce: See `log`, as the following.
          window: See `log`.
          ema_coeff: See `log`.
          throughput: See `log`.
        """
        start = as_path(prefix) if prefix else ()
        for name, value in nested.items():
            if isinstance(value, Mapping):
                self.log_dict(value, (*start, name), reduce, window, ema_coeff, throughput)
            else:
                self.log((*start, name), value, reduce, window, ema_coeff, throughput)

    def _metric(self, path: Path, settings: Settings, shape: tuple[int, ...]) -> Metric:
        """The metric of a path, made if it is new, with exactly these settings."""
        settings = settings.check(join(path))
        metric = self._metrics.get(path)
        if metric is None:
            self._check_place(path, settings)
            metric = self._metrics[path] = Metric(join(path), settings, shape)
        elif metric.settings != settings:
            raise _conflict(path, metric.settings, settings)
        return metric

    def _check_place(self, path: Path, settings: Settings) -> None:
        """Refuses a name that is another's folder, or lies in a metric, or is taken by a rate."""
        taken = {p: p for p in self._metrics}
        taken.update({rate_path(p): p for p, m in self._metrics.items() if m.settings.throughput})
        for mine in [path, rate_path(path)] if settings.throughput else [path]:
            for other, owner in taken.items():
                shorter = min(len(mine), len(other))
                if mine[:shorter] == other[:shorter]:
                    raise UserError(
                        f"metric {join(path)}",
                        expected="a name that no other metric takes, holds or lies in",
                        got=f"the metric {join(owner)} beside it",
                        remedy="Rename one of them.",
                    )

    # Looking.

    def __contains__(self, name: object) -> bool:
        """Tells whether a name or path has been logged."""
        return (name if isinstance(name, tuple) else (name,)) in self._metrics

    def peek(self, name: str | Path = ()) -> Any:
        """Returns the present value of a metric, or a nested dict of all under a path.

        Nothing is cleared. A metric without a value is 0 as a sum and else NaN.

        Raises:
          UserError: For a name that was never logged; the nearest are suggested.
        """
        path = as_path(name) if name else ()
        found: Any = self._results(path, with_empty=True)
        for part in path:
            if part not in found:
                known = [join(p) for p in self._metrics]
                raise UserError(
                    f"metric {join(path)}",
                    expected="a name that has been logged",
                    got=f"none of the {len(known)} that there are",
                    remedy=did_you_mean(join(path), known) if known else "Log it first.",
                )
            found = found[part]
        return found

    def reduce(self) -> dict[str, Any]:
        """Returns all reduced values, and begins a new period.

        Values without a window are cleared; windows, moving averages and lifetime sums stay.

        Returns:
          A nested dict of ints, floats and arrays; metrics without any value are left out.
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
        """Forgets the metric of this name and all under this path; unknown ones are none."""
        start = as_path(prefix)
        self._metrics = {p: m for p, m in self._metrics.items() if not begins(p, start)}

    # Merging.

    def take(self) -> dict[str, Any]:
        """Hands over what was logged since the last time, for another process's `merge`.

        The logger's own results do not change.

        Returns:
          A dict out of plain JSON types.
        """
        found = []
        for path, metric in self._metrics.items():
            block = metric.hand_over()
            if block.logged:
                found.append({**metric_header(path, metric), "fresh": block.to_json()})
        return {"schema": SCHEMA, "metrics": found}

    def merge(self, others: "Iterable[MetricsLogger | Mapping[str, Any]]") -> None:
        """Takes over what other loggers have logged and not handed over yet.

        Their values count as logged at the same time: sums add, means and moving averages weigh
        by numbers of values, windows take values in turn. The others keep their own results.

        Args:
          others: Loggers of this process, and what `take` returned elsewhere.

        Raises:
          UserError: Naming all metrics that have other settings or shapes in another logger;
            nothing is merged then.
        """
        others = list(others)
        loggers = [o for o in others if isinstance(o, MetricsLogger)]
        if len({id(o) for o in [self, *loggers]}) != len(loggers) + 1:
            raise UserError(
                "MetricsLogger.merge",
                expected="other loggers, each once",
                got="this logger itself, or one twice",
                remedy="Its values would count twice; leave it out.",
            )
        found: list[Entry] = []
        for other in others:
            found += other._pending() if isinstance(other, MetricsLogger) else taken_entries(other)
        before = dict(self._metrics)
        grouped: dict[Path, list[Block]] = {}
        problems: list[str] = []
        for path, settings, shape, block in found:
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
                expected="metrics with the settings and shapes that they have here",
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
        """Returns everything out of plain JSON types; `set_state` goes on as if never stopped."""
        metrics = []
        for path, metric in self._metrics.items():
            metric.settle()
            blocks = {k: getattr(metric, k).to_json() for k in ("shown", "fresh", "period")}
            metrics.append({**metric_header(path, metric), **blocks})
        return {"schema": SCHEMA, "elapsed": self._clock() - self._since, "metrics": metrics}

    def set_state(self, state: Mapping[str, Any], *, handed_over: bool = False) -> None:
        """Takes the place of the logger whose state it is.

        Args:
          state: What `get_state` returned.
          handed_over: True for the state of a logger that goes on elsewhere (a root's, sent to its
            workers so that they know the totals): its values show here, and are not merged again.

        Raises:
          UserError: The state is not one, or of a newer version.
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


def _conflict(path: Path, old: Settings, new: Settings) -> UserError:
    before, now = vars(old), vars(new)
    differ = [k for k in before if before[k] != now[k]]
    return UserError(
        f"metric {join(path)}",
        expected=", ".join(f"{k}={before[k]!r}" for k in differ) + ", as when first logged",
        got=", ".join(f"{k}={now[k]!r}" for k in differ),
        remedy="Log a name with the same settings everywhere, or choose another name.",
    )
