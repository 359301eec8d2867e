"""What updates report: named errors, ways to log, means over updates."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tfrl.errors import UserError
from tfrl.learners.optimizers import ALL_MODULES
from tfrl.metrics import MetricsLogger
from tfrl.metrics.accumulator import reduction

if TYPE_CHECKING:
    from tfrl.learners.learner import Learner

# Rows of metrics, `{module_id: {name: value}}`.
Results = dict[str, dict[str, Any]]


def raise_if_nonfinite(
    rows: Mapping[str, Mapping[str, float]] | Mapping[str, Any], where: str = ""
) -> None:
    """Raises a UserError that names module and terms of the gradient steps that were left out.

    Args:
      rows: `{module_id: metrics of an update}`.
      where: What to add to the name of the loss.
    """
    wrong = {}
    for module_id, row in rows.items():
        found = {k.removeprefix("nonfinite/"): v for k, v in row.items() if "nonfinite/" in k}
        bad = {k: v for k, v in found.items() if v}
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


def logged_as(module_id: str, name: str) -> dict[str, Any]:
    """How a metric of an update is logged: steps as sums, counters as they are last, else means."""
    if reduction(name) == "sum":
        return {"reduce": "sum"}
    if module_id == ALL_MODULES or name.startswith("num_") or name.endswith("learning_rate"):
        return {"window": 1}
    return {}


def mean_of(results: list[Results]) -> Results:
    """Metrics of several updates: steps as sums, counters as they are last, else means."""
    summer = MetricsLogger()
    for rows in results:
        log_rows(summer, rows)
    return summer.reduce()


def log_rows(metrics: MetricsLogger, rows: Results) -> None:
    """Logs `{module_id: {name: value}}`, each as `logged_as` says."""
    for module_id, row in rows.items():
        for name, value in row.items():
            metrics.log((module_id, name), value, **logged_as(module_id, name))


def report(learner: Learner, results: Results, skipped: int = 0) -> Results:
    """Metrics as floats, with parameter counts and what concerns all modules."""
    rows = {m: {k: float(_one(learner, v)) for k, v in row.items()} for m, row in results.items()}
    steps = max((r["gradient_steps"] for r in rows.values()), default=0.0)
    if learner.check_numerics == "raise" and skipped:
        raise_if_nonfinite(rows)
    counts = _parameter_counts(learner)
    report = {
        m: {
            **{k: v for k, v in row.items() if not k.startswith("nonfinite/") or v},
            **counts[m],
        }
        for m, row in rows.items()
    }
    report[ALL_MODULES] = {
        "gradient_steps": steps,
        "skipped_steps": float(skipped),
        "env_steps": int(learner.env_steps.numpy()),
        "learner_steps": int(learner.learner_steps.numpy()),
        "weights_seq_no": int(learner.weights_seq_no.numpy()),
        **counts[ALL_MODULES],
    }
    log_rows(learner.metrics, report)
    return report


def _one(learner: Learner, value: Any) -> Any:
    return learner.replicas.per_replica(value)[0] if learner.replicas.several else value


def _parameter_counts(learner: Learner) -> dict[str, dict[str, int]]:
    """Those of every module and of all, counted once for a set of modules."""
    version, counts = learner._counted
    if version != learner.structure_version:
        ids = [*learner.modules, ALL_MODULES]
        counts = {m: learner.parameter_counts(m) for m in ids}
        learner._counted = (learner.structure_version, counts)
    return counts
