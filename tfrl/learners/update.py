"""One update of a Learner: its hooks around a loop over the minibatches of all epochs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from tfrl import seeding
from tfrl.errors import UserError
from tfrl.learners import batches as batches_lib
from tfrl.learners import traced_metrics
from tfrl.learners.learner_state import LearnerState
from tfrl.learners.minibatches import MinibatchIndices
from tfrl.learners.optimizers import ALL_MODULES
from tfrl.learners.reports import Results
from tfrl.learners.state_changes import after_update, before_update, changed, with_rates
from tfrl.learners.train_step import Flags, StepMetrics, none_stopped, train_step
from tfrl.learning import leaves
from tfrl.metrics.logger import Traced
from tfrl.ops._rows import where
from tfrl.types import Nest

if TYPE_CHECKING:
    from tfrl.learners.learner import Learner

# The loop carries metrics as one vector per module, whose length must be known before the losses
# are first traced.
_METRIC_SLOTS = 64
Sums = dict[str, tf.Tensor]
# After a module's metrics: whether it took the step, and whether it skipped it.
_FLAG_SLOTS = 2


def train(
    learner: Learner,
    state: LearnerState,
    batches: dict[str, Nest],
    minibatches: MinibatchIndices,
    key: tf.Tensor,
    timesteps: tf.Tensor,
    *,
    jit: bool,
    call_hooks: bool = True,
) -> tuple[LearnerState, Results]:
    """Takes the gradient steps of an update and calls the hooks around them; traced.

    Hooks that change variables run only if the leaves of the state are variables.

    Args:
      learner: The `Learner`.
      state: Its state before the update.
      batches: `{module_id: rows}` of the modules to train.
      minibatches: The rows of each minibatch.
      key: int32 [2].
      timesteps: int64 scalar, env steps so far.
      jit: See `train_step`.
      call_hooks: Whether to call `begin_update` and `end_update`.

    Returns:
      The state after the update, and its metrics, see `Learner.fit`.
    """
    with learner.metrics.tracing() as logged:
        if call_hooks:
            state = begin_update(learner, state, batches, timesteps)
        losses_key = seeding.stream(key, "losses")
        state, results, more = run_minibatches(
            learner, state, batches, minibatches, losses_key, jit=jit
        )
        if call_hooks:
            state = end_update(learner, state, results, timesteps)
    _finish_metrics(learner, state, results)
    if logged or more:
        traced_metrics.add_logged(learner, results, [*logged, *more])
    return state, results


def begin_update(
    learner: Learner,
    state: LearnerState,
    module_ids: Iterable[str],
    timesteps: tf.Tensor,
    *,
    first: bool = True,
) -> LearnerState:
    """Calls the hooks before the gradient steps of an update; traced.

    Args:
      learner: The `Learner`.
      state: Its state.
      module_ids: The modules to train.
      timesteps: int64 scalar, env steps so far.
      first: Whether these are the update's first modules.
    """
    hooked = leaves.in_place(state)
    for owner in [ALL_MODULES, *learner.lenders_to(list(module_ids))]:
        state = with_rates(learner, state, owner, timesteps)
    if hooked and first:
        learner.before_gradient_based_update(timesteps=timesteps)
    for module_id in module_ids:
        if hooked:
            learner.before_gradient_based_update_for_module(module_id, timesteps)
        else:
            state = before_update(learner, state, module_id, timesteps)
    return state


def end_update(
    learner: Learner,
    state: LearnerState,
    results: Mapping[str, dict[str, tf.Tensor]],
    timesteps: tf.Tensor,
) -> LearnerState:
    """Calls the hooks after the gradient steps of an update, and counts it; traced.

    Args:
      learner: The `Learner`.
      state: Its state.
      results: `{module_id: metrics}` of the trained modules.
      timesteps: int64 scalar, env steps so far.
    """
    hooked = leaves.in_place(state)
    for module_id, metrics in results.items():
        hook = learner.modules[module_id].on_update_metrics
        state = changed(learner, state, module_id, hook, metrics)
        if hooked:
            learner.after_gradient_based_update_for_module(module_id, timesteps)
        else:
            state = after_update(learner, state, module_id, timesteps)
    if hooked:
        learner.after_gradient_based_update(timesteps=timesteps)
    return state.with_counter("env_steps", timesteps).count("weights_seq_no", 1)


def _finish_metrics(learner: Learner, state: LearnerState, results: Results) -> None:
    """Removes unrequested norms, and adds learning rates."""
    for module_id, metrics in results.items():
        if not learner.configs[module_id].log_gradients:
            for name in [n for n in metrics if "grad_norm" in n.split("/")]:
                if not name.startswith("nonfinite/"):
                    del metrics[name]
        owner = module_id if learner.optimizers.of_module(module_id) else ALL_MODULES
        entries = learner.optimizers.of_module(owner)
        for name, _ in entries:
            prefix = f"{name}/" if len(entries) > 1 else ""
            rate = tf.convert_to_tensor(state.opt_state[owner][name]["learning_rate"])
            metrics[f"{prefix}learning_rate"] = tf.cast(rate, tf.float32)


def run_minibatches(
    learner: Learner,
    state: LearnerState,
    batches: dict[str, Nest],
    minibatches: MinibatchIndices,
    key: tf.Tensor,
    *,
    jit: bool,
) -> tuple[LearnerState, dict[str, dict[str, tf.Tensor]], list[Traced]]:
    """Takes the gradient steps of an update; traced.

    Args:
      learner: The `Learner`.
      state: Its state before them.
      batches: `{module_id: rows}`; with several replicas, each one's rows.
      minibatches: The rows of each minibatch.
      key: int32 [2], for the losses.
      jit: See `train_step`.

    Returns:
      The state after them; `{module_id: {name: float32 scalar}}`: means over the minibatches,
      `gradient_steps`, `skipped_steps` and `nonfinite/<name>` counts; and the values logged by
      losses and hooks.
    """
    guard = learner.check_numerics != "off"

    def take(i: tf.Tensor, state: LearnerState, stopped: Flags) -> tuple[LearnerState, StepMetrics]:
        def rows_of(
            batches: dict[str, Nest], indices: dict[str, tf.Tensor], i: tf.Tensor
        ) -> dict[str, Nest]:
            return {
                m: batch
                if minibatches.full_batch[m]
                else batches_lib.take(batch, indices[m][i], padded=minibatches.padded[m])
                for m, batch in batches.items()
            }

        rows = learner.replicas.run(rows_of, batches, minibatches.indices, i)
        key_of_step = seeding.fold_in(key, i)
        return train_step(learner, state, rows, key_of_step, stopped=stopped, jit=jit)

    stopped = none_stopped(learner, batches)
    if isinstance(minibatches.steps, int) and minibatches.steps == 1:
        state, metrics = take(tf.constant(0), state, stopped)
        results = _metrics_of_one_step(metrics, guard=guard)
        return state, results, traced_metrics.pop_logged(metrics.logged, results)
    delayed = any(u.every > 1 for m in batches for u in learner.modules[m].updates)
    # Per module: sums of the finite values of its metrics, the number of steps in which each was
    # finite and, if some updates wait, in which it was computed. One tensor, since every loop
    # variable costs graph operations in every step.
    zeros = tf.zeros([3 if delayed else 2, _METRIC_SLOTS + _FLAG_SLOTS])
    sums = dict.fromkeys(batches, zeros)
    names: dict[str, list[str]] = {}
    logged: traced_metrics.Table = {}

    def body(i: tf.Tensor, sums: Sums, stopped: Flags, own: list[tf.Tensor]) -> Any:
        after, metrics = take(i, leaves.with_carried(state, own), stopped)
        names.update({m: list(row) for m, row in metrics.values.items()})
        logged.update(metrics.logged)
        totals = {}
        for m, row in metrics.values.items():
            # A module that stopped earlier takes no step; its row is ignored.
            active = tf.cast(~stopped[m], tf.float32) if m in stopped else 1.0
            lines = _lines(metrics, m, active, guard=guard, delayed=delayed)
            kinds = traced_metrics.kinds_of(logged, row)
            totals[m] = traced_metrics.accumulate(sums[m], lines, kinds)
        return i + 1, totals, metrics.stopped, leaves.carried(after)

    limit = minibatches.steps if isinstance(minibatches.steps, int) else None

    def goes_on(i: tf.Tensor, stopped: Flags) -> tf.Tensor:
        running = i < minibatches.steps
        if len(stopped) == len(batches):
            running &= ~tf.reduce_all(tf.stack(list(stopped.values())))
        return running

    _, sums, _, own = tf.while_loop(
        lambda i, sums, stopped, _: goes_on(i, stopped),
        body,
        (tf.constant(0), sums, stopped, leaves.carried(state)),
        maximum_iterations=limit,
        # Collectives match by the loop's name. It must not be numbered, since a process may have
        # another loop before it (to permute another epoch).
        name="minibatches",
    )
    state = leaves.with_carried(state, own)
    results = {
        m: _means(sums[m], names[m], traced_metrics.kinds_of(logged, names[m]), guard)
        for m in batches
    }
    return state, results, traced_metrics.pop_logged(logged, results)


def _metrics_of_one_step(metrics: StepMetrics, *, guard: bool) -> Results:
    """The metrics of a single-step update, like `_means` for several."""
    results: Results = {}
    for m, row in metrics.values.items():
        _check_number(row)
        own: dict[str, tf.Tensor] = {}
        if row:
            values = tf.stack(list(row.values()))
            counted = tf.stack([metrics.computed[m].get(name, True) for name in row])
            known = counted & tf.math.is_finite(values) if guard else counted
            values = where(known, values, math.nan)
            own = dict(zip(row, tf.unstack(values), strict=True))
            if guard:
                bad = tf.unstack(tf.cast(tf.not_equal(counted, known), tf.float32))
                own.update({f"nonfinite/{name}": x for name, x in zip(row, bad, strict=True)})
        if guard:
            own["skipped_steps"] = tf.cast(~metrics.finite[m], tf.float32)
        own["gradient_steps"] = tf.constant(1.0)
        results[m] = own
    return results


def _lines(
    metrics: StepMetrics, module_id: str, active: Any, *, guard: bool, delayed: bool
) -> tf.Tensor:
    """One step's contribution to a module's sums."""
    row, finite = metrics.values[module_id], metrics.finite[module_id]
    _check_number(row)
    values = tf.stack([*row.values(), 1.0, tf.cast(~finite, tf.float32)])
    counted = tf.ones_like(values)
    if guard:
        is_finite = tf.math.is_finite(values)
        values, counted = tf.where(is_finite, values, 0.0), tf.cast(is_finite, tf.float32)
    lines = [values, counted]
    if delayed:
        due = metrics.computed[module_id]
        ran = [tf.cast(due[name], tf.float32) if name in due else 1.0 for name in row]
        computed = tf.stack([*ran, 1.0, 1.0])
        lines = [values, counted * computed, computed]
    added = tf.stack(lines) if isinstance(active, float) else tf.stack(lines) * active
    return tf.pad(added, [[0, 0], [0, _METRIC_SLOTS - len(row)]])


def _check_number(row: Mapping[str, Any]) -> None:
    if len(row) > _METRIC_SLOTS:
        raise UserError(
            "the metrics of a module's losses",
            expected=f"at most {_METRIC_SLOTS}",
            got=len(row),
            remedy="Report fewer metrics, or combine some.",
        )


def _means(
    sums: tf.Tensor, names: list[str], kinds: list[str], guard: bool
) -> dict[str, tf.Tensor]:
    n = len(names)
    taken, skipped = sums[0, n], sums[0, n + 1]
    sums = sums[:, :n]
    # Terms that were never finite are NaN.
    counts = sums[1]
    if set(kinds) - {"mean"}:
        counts = tf.where([k == "mean" for k in kinds], counts, tf.sign(counts))
    metrics = dict(zip(names, tf.unstack(sums[0] / counts, n), strict=True))
    if guard:
        computed = sums[2] if sums.shape[0] == 3 else taken
        bad = tf.unstack(computed - sums[1], n)
        metrics.update({f"nonfinite/{name}": x for name, x in zip(names, bad, strict=True)})
        metrics["skipped_steps"] = skipped
    metrics["gradient_steps"] = taken
    return metrics
