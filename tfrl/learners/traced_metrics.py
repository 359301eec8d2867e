"""Passes values that losses and hooks log while traced to the update's results.

A logged value becomes an extra metric of a module's losses, with an index in its name, so an update
without logging has no extra operations.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

from tfrl.errors import UserError
from tfrl.learners.optimizers import ALL_MODULES
from tfrl.metrics.logger import Path, Traced, join
from tfrl.metrics.metric import MetricSettings

if TYPE_CHECKING:
    from tfrl.learners.learner import Learner

Rows = dict[str, dict[str, Any]]
# The logged metrics, `{path: settings}`; names contain their indices.
Table = dict[Path, MetricSettings]
_NAME = re.compile(r"(?:.*/)?logged#(\d+)$")


def as_rows(table: Table, logged: Sequence[Traced], module_ids: Collection[str]) -> Rows:
    """Returns logged values as metrics of the modules that carry them.

    Args:
      table: The logged metrics; the values' paths are added.
      logged: The values collected by `MetricsLogger.tracing`.
      module_ids: The modules of the step. The first module carries values whose path begins with
        none of them.
    """
    by_path: dict[Path, list[tf.Tensor]] = {}
    for path, settings, value in logged:
        table.setdefault(path, settings)
        by_path.setdefault(path, []).append(value)
    rows: Rows = {}
    for path, values in by_path.items():
        carrier = path[0] if path[0] in module_ids else next(iter(module_ids))
        name = f"logged#{list(table).index(path)}"
        rows.setdefault(carrier, {})[name] = _joined(kind_of(table[path]), values)
    return rows


def kind_of(settings: MetricSettings) -> str:
    """Returns the reduction over an update: "mean", "sum", "min", "max" or "last"."""
    if settings.window == 1:
        return "last"
    kind = settings.reduce.removeprefix("lifetime_")
    return kind if kind in ("sum", "min", "max") else "mean"


def kinds_of(table: Table, names: Collection[str]) -> list[str]:
    """Returns the reduction of each of a row's metrics; "mean" for losses."""
    settings = list(table.values())
    numbers = [_NAME.match(name) for name in names]
    return [kind_of(settings[int(n[1])]) if n else "mean" for n in numbers]


def extremes(table: Table, rows: Rows, gather: Callable[[Rows], Rows]) -> Rows:
    """Returns a replica's min and max metrics, reduced over all replicas.

    Args:
      table: The logged metrics.
      rows: Metrics of this replica.
      gather: Returns the values of all replicas, `[R]`.
    """
    reduce = {"min": tf.reduce_min, "max": tf.reduce_max}
    kinds = {m: dict(zip(row, kinds_of(table, row), strict=True)) for m, row in rows.items()}
    own = {m: {n: x for n, x in row.items() if kinds[m][n] in reduce} for m, row in rows.items()}
    own = {m: row for m, row in own.items() if row}
    if not own:
        return {}
    return {
        m: {n: reduce[kinds[m][n]](x) for n, x in row.items()} for m, row in gather(own).items()
    }


def accumulate(sums: tf.Tensor, lines: tf.Tensor, kinds: Sequence[str]) -> tf.Tensor:
    """Adds one step's metrics to a loop's, by their reductions.

    Args:
      sums: float32 `[2 or 3, slots]`: values and their counts.
      lines: The same of one step.
      kinds: Reductions of the first slots.
    """
    total = sums + lines
    if not set(kinds) - {"mean", "sum"}:
        return total
    row, before, new = total[0], sums[0], lines[0]
    joined = {"last": new, "min": tf.minimum(before, new), "max": tf.maximum(before, new)}
    for kind, value in joined.items():
        mask = np.zeros(sums.shape[1], bool)
        mask[: len(kinds)] = [k == kind for k in kinds]
        value = tf.where(lines[1] > 0, tf.where(sums[1] > 0, value, new), before)
        row = tf.where(mask, value, row)
    return tf.concat([row[tf.newaxis], total[1:]], axis=0)


def pop_logged(table: Table, results: Rows) -> list[Traced]:
    """Removes logged values from the metrics of an update's steps and returns them."""
    logged: dict[Path, list[tf.Tensor]] = {}
    paths = list(table)
    for row in results.values():
        for name in [n for n in row if _NAME.match(n)]:
            value = row.pop(name)
            if not name.startswith("nonfinite/"):
                logged.setdefault(paths[int(_NAME.match(name)[1])], []).append(value)  # type: ignore[index]
    return [(p, table[p], _joined(kind_of(table[p]), xs)) for p, xs in logged.items()]


def add_logged(learner: Learner, results: Rows, logged: Sequence[Traced]) -> None:
    """Adds logged values to the results of an update, and records their settings.

    A module's values are in its row, others under "__all_modules__"; path parts are joined by
    slashes.

    Raises:
      UserError: For a value computed within a branch or a loop of the graph.
    """
    graph = None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()
    notes = learner.traces.notes.setdefault("logged", {})
    for path, settings, value in logged:
        if getattr(value, "graph", graph) is not graph:
            raise UserError(
                f"metric {join(path)}",
                expected="a value from a loss, a gradient hook except apply_gradients, or a hook "
                "around the gradient steps",
                got="a value computed inside a branch of the graph",
                remedy="Log it in postprocess_gradients.",
            )
        own = path[0] in learner.modules and len(path) > 1
        module_id, name = (path[0], join(path[1:])) if own else (ALL_MODULES, join(path))
        results.setdefault(module_id, {})[name] = value
        notes[module_id, name] = (path, settings)


def log(learner: Learner, rows: Mapping[str, dict[str, Any]]) -> None:
    """Moves values logged while tracing from an update's results to the logger."""
    notes = {} if learner._traces is None else learner._traces.notes
    for (module_id, name), (path, settings) in notes.get("logged", {}).items():
        if name in rows.get(module_id, {}):
            learner.metrics.log_with(path, settings, rows[module_id].pop(name))


def _joined(kind: str, values: Sequence[tf.Tensor]) -> tf.Tensor:
    """Reduces several values logged under one name to one number."""
    if len(values) == 1:
        return values[0]
    if kind == "last":
        return values[-1]
    reduce = {"sum": tf.reduce_sum, "min": tf.reduce_min, "max": tf.reduce_max}
    return reduce.get(kind, tf.reduce_mean)(tf.stack(list(values)), axis=0)
