"""The way of values that losses and hooks log while an update is traced, out to its results.

A value of a loss or of a gradient hook travels as one more metric of a module's losses, under a
name that says which one it is: an update in which nothing is logged has no operation for it.
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
# The metrics that were logged, `{path: settings}`; their places are parts of names.
Table = dict[Path, MetricSettings]
_NAME = re.compile(r"(?:.*/)?logged#(\d+)$")


def as_rows(table: Table, logged: Sequence[Traced], module_ids: Collection[str]) -> Rows:
    """Returns logged values as metrics of the modules that carry them.

    Args:
      table: What has been logged; the paths of the values are added.
      logged: What `MetricsLogger.tracing` collected.
      module_ids: The modules of the step. A value whose path begins with none of them travels with
        the first.
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
    """Returns how the values of one update become one: "mean", "sum", "min", "max" or "last"."""
    if settings.window == 1:
        return "last"
    kind = settings.reduce.removeprefix("lifetime_")
    return kind if kind in ("sum", "min", "max") else "mean"


def kinds_of(table: Table, names: Collection[str]) -> list[str]:
    """Returns the kind of each of a row's metrics; those of losses are means."""
    settings = list(table.values())
    numbers = [_NAME.match(name) for name in names]
    return [kind_of(settings[int(n[1])]) if n else "mean" for n in numbers]


def extremes(table: Table, rows: Rows, gather: Callable[[Rows], Rows]) -> Rows:
    """Returns those of a replica's metrics that are the least or greatest, of all replicas.

    Args:
      table: What has been logged.
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


def added(sums: tf.Tensor, lines: tf.Tensor, kinds: Sequence[str]) -> tf.Tensor:
    """Returns the sums of a loop with those of one step, where some kinds are no sums.

    Args:
      sums: float32 `[2 or 3, slots]`: values, and how many there were.
      lines: The same of one step.
      kinds: Of the first slots.
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


def taken_out(table: Table, results: Rows) -> list[Traced]:
    """Takes logged values out of the metrics of an update's steps."""
    logged: dict[Path, list[tf.Tensor]] = {}
    paths = list(table)
    for row in results.values():
        for name in [n for n in row if _NAME.match(n)]:
            value = row.pop(name)
            if not name.startswith("nonfinite/"):
                logged.setdefault(paths[int(_NAME.match(name)[1])], []).append(value)  # type: ignore[index]
    return [(p, table[p], _joined(kind_of(table[p]), xs)) for p, xs in logged.items()]


def put(learner: Learner, results: Rows, logged: Sequence[Traced]) -> None:
    """Puts logged values into the results of an update, and notes what they are.

    Those of a module are in its row, others under "__all_modules__"; the parts of a path are joined
    by slashes.

    Raises:
      UserError: For a value that was computed within a branch or a loop of the graph.
    """
    graph = None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()
    notes = learner.traces.notes.setdefault("logged", {})
    for path, settings, value in logged:
        if getattr(value, "graph", graph) is not graph:
            raise UserError(
                f"metric {join(path)}",
                expected="a value of a loss, of a gradient hook but apply_gradients, or of a hook "
                "around the gradient steps",
                got="one that was computed within a branch of the graph",
                remedy="Log it in postprocess_gradients.",
            )
        own = path[0] in learner.modules and len(path) > 1
        module_id, name = (path[0], join(path[1:])) if own else (ALL_MODULES, join(path))
        results.setdefault(module_id, {})[name] = value
        notes[module_id, name] = (path, settings)


def log(learner: Learner, rows: Mapping[str, dict[str, Any]]) -> None:
    """Moves what was logged while an update was traced from its results to the logger."""
    notes = {} if learner._traces is None else learner._traces.notes
    for (module_id, name), (path, settings) in notes.get("logged", {}).items():
        if name in rows.get(module_id, {}):
            learner.metrics.log_with(path, settings, rows[module_id].pop(name))


def _joined(kind: str, values: Sequence[tf.Tensor]) -> tf.Tensor:
    """One number out of several that were logged under a name."""
    if len(values) == 1:
        return values[0]
    if kind == "last":
        return values[-1]
    reduce = {"sum": tf.reduce_sum, "min": tf.reduce_min, "max": tf.reduce_max}
    return reduce.get(kind, tf.reduce_mean)(tf.stack(list(values)), axis=0)
