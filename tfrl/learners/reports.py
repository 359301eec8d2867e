"""Reports of updates: errors, logging, means over updates."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tfrl.errors import UserError
from tfrl.learners import metric_keys as keys
from tfrl.learners import traced_metrics
from tfrl.learners.optimizers import ALL_MODULES
from tfrl.metrics import MetricsLogger
from tfrl.metrics.accumulator import reduction
from tfrl.metrics.logger import PER_SECOND, put
from tfrl.metrics.metric import MetricSettings

if TYPE_CHECKING:
    from tfrl.learners.learner import Learner

# Rows of metrics, `{module_id: {name: value}}`.
Results = dict[str, dict[str, Any]]

_MEAN, _SUM, _LAST = (MetricSettings(), MetricSettings("sum"), MetricSettings(window=1))
_SPEED = keys.NUM_ENV_STEPS_TRAINED_LIFETIME + PER_SECOND
_PER_UPDATE = (
    keys.NUM_MODULE_STEPS_TRAINED,
    keys.NUM_ENV_STEPS_TRAINED,
    keys.DATASET_NUM_ITERS_TRAINED,
)
# The logger's metrics of trained rows.
_KEPT = {
    keys.MODULE_TRAIN_BATCH_SIZE_MEAN: MetricSettings("ema", from_first=True).check(""),
    keys.NUM_MODULE_STEPS_TRAINED_LIFETIME: MetricSettings("lifetime_sum"),
    keys.NUM_ENV_STEPS_TRAINED_LIFETIME: MetricSettings("lifetime_sum", throughput=True),
    keys.DATASET_NUM_ITERS_TRAINED_LIFETIME: MetricSettings("lifetime_sum"),
}


def raise_if_nonfinite(
    rows: Mapping[str, Mapping[str, float]] | Mapping[str, Any], where: str = ""
) -> None:
    """Raises a UserError that names module and terms of skipped gradient steps.

    Args:
      rows: `{module_id: metrics of an update}`.
      where: Suffix of the loss's name.
    """
    wrong = {}
    for module_id, row in rows.items():
        nonfinite = {k.removeprefix("nonfinite/"): v for k, v in row.items() if "nonfinite/" in k}
        bad = {k: v for k, v in nonfinite.items() if v}
        if row.get("skipped_steps") and bad:
            terms = ", ".join(f"{k} ({int(v)} times)" for k, v in bad.items())
            wrong[module_id] = f"{terms} in {int(row['gradient_steps'])} gradient steps"
    if not wrong:
        return
    one = len(wrong) == 1
    listed = "; ".join(terms if one else f"module {m!r}: {terms}" for m, terms in wrong.items())
    raise UserError(
        f"the loss of module {next(iter(wrong))!r}{where}" if one else f"the losses{where}",
        expected="finite values",
        got=f"non-finite {listed}",
        remedy="Lower the learning rate, check rewards and observations, or choose "
        "check_numerics='skip' to leave such steps out.",
    )


def logged_as(module_id: str, name: str) -> MetricSettings:
    """Log settings of an update's metric: sums for steps, last values for counters, else means."""
    if reduction(name) == "sum" or name in _PER_UPDATE:
        return _SUM
    last = name.startswith("num_") or name.endswith("learning_rate")
    if module_id == ALL_MODULES or last or name == keys.WEIGHTS_SEQ_NO or name in _KEPT:
        return _LAST
    return _MEAN


def mean_of(results: list[Results]) -> Results:
    """Metrics of several updates: sums of steps, last values of counters, else means."""
    summer = MetricsLogger()
    for rows in results:
        log_rows(summer, rows)
    return summer.reduce()


def log_rows(metrics: MetricsLogger, rows: Results, path: tuple[str, ...] = ()) -> None:
    """Logs `{module_id: {name: value}}` with the settings of `logged_as`."""
    for name, value in rows.items():
        own = (*path, name)
        if isinstance(value, Mapping):
            log_rows(metrics, dict(value), own)
        elif isinstance(value, int | float):
            metrics.log_with(own, logged_as(own[0], name), value)


def put_logged(results: Results, logged: Mapping[tuple[str, ...], Any]) -> None:
    """Adds the reduced values logged since the last update to the results.

    Excludes throughput, so that equal learners have equal results.
    """
    for path, value in logged.items():
        if path[-1] != _SPEED:
            put(results, path, value)


def _log_trained_rows(learner: Learner, rows: Results, sizes: Mapping[str, float]) -> Results:
    """Counts the trained rows of this update, by module."""
    results: Results = {ALL_MODULES: {}}
    counts = {m: round(rows[m]["gradient_steps"] * size) for m, size in sizes.items() if m in rows}
    for m, count in counts.items():
        results[m] = {keys.NUM_MODULE_STEPS_TRAINED: count}
        _keep(learner, m, keys.NUM_MODULE_STEPS_TRAINED_LIFETIME, count)
        _keep(learner, m, keys.MODULE_TRAIN_BATCH_SIZE_MEAN, sizes[m])
    if counts:
        total, most = sum(counts.values()), max(counts.values())
        results[ALL_MODULES] = {
            keys.NUM_MODULE_STEPS_TRAINED: total,
            keys.NUM_ENV_STEPS_TRAINED: most,
        }
        _keep(learner, ALL_MODULES, keys.NUM_MODULE_STEPS_TRAINED_LIFETIME, total)
        _keep(learner, ALL_MODULES, keys.NUM_ENV_STEPS_TRAINED_LIFETIME, most)
    return results


def _keep(learner: Learner, module_id: str, name: str, value: float) -> None:
    learner.metrics.log_with((module_id, name), _KEPT[name], value)


def count_batches(learner: Learner, results: Results, number: int) -> None:
    """Counts the batches of an iterator."""
    _keep(learner, ALL_MODULES, keys.DATASET_NUM_ITERS_TRAINED_LIFETIME, number)
    learner.metrics.log_with((ALL_MODULES, keys.DATASET_NUM_ITERS_TRAINED), _SUM, number)
    put_logged(results, learner.metrics.logged())
    results.setdefault(ALL_MODULES, {})[keys.DATASET_NUM_ITERS_TRAINED] = number


def report(
    learner: Learner, results: Results, skipped: int = 0, sizes: Mapping[str, float] | None = None
) -> Results:
    """Returns metrics as floats, with parameter counts, logged values, and metrics of all modules.

    Args:
      learner: The `Learner`.
      results: The results of the compiled update.
      skipped: Number of skipped gradient steps.
      sizes: `{module_id: rows of a gradient step over all replicas}`.
    """
    rows = {m: {k: float(_one(learner, v)) for k, v in row.items()} for m, row in results.items()}
    traced_metrics.log(learner, rows)
    rows.pop(ALL_MODULES, None)
    trained = _log_trained_rows(learner, rows, sizes or {})
    steps = max((r["gradient_steps"] for r in rows.values()), default=0.0)
    if learner.check_numerics == "raise" and skipped:
        raise_if_nonfinite(rows)
    counts = _parameter_counts(learner)
    weights = int(learner.weights_seq_no.numpy())
    report = {
        m: {
            **{k: v for k, v in row.items() if not k.startswith("nonfinite/") or v},
            **counts[m],
            **trained.get(m, {}),
            keys.WEIGHTS_SEQ_NO: weights,
        }
        for m, row in rows.items()
    }
    report[ALL_MODULES] = {
        "gradient_steps": steps,
        "skipped_steps": float(skipped),
        "env_steps": int(learner.env_steps.numpy()),
        "learner_steps": int(learner.learner_steps.numpy()),
        keys.WEIGHTS_SEQ_NO: weights,
        **counts[ALL_MODULES],
        **trained[ALL_MODULES],
    }
    logged = learner.metrics.logged()
    log_rows(learner.metrics, report)
    learner.metrics.recent.clear()
    put_logged(report, logged)
    return report


def _one(learner: Learner, value: Any) -> Any:
    return learner.replicas.per_replica(value)[0] if learner.replicas.several else value


def _parameter_counts(learner: Learner) -> dict[str, dict[str, int]]:
    """Parameter counts of every module and of all, cached per set of modules."""
    version, counts = learner._counted
    if version != learner.structure_version:
        ids = [*learner.modules, ALL_MODULES]
        counts = {m: learner.parameter_counts(m) for m in ids}
        learner._counted = (learner.structure_version, counts)
    return counts
