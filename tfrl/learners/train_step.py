"""One train step: a gradient step of each module on a batch, on one or several replicas.

The calls of a step, outermost first:

    train_step              update by update, in the order of the modules' lists
      prepare               the minibatch, with values that depend on all rows
      external_step         an update that trains itself
      delayed_step          only if an update that waits is due
      gradient_step         decides which optimizers step: finite, due, not stopped
        _gradients          sums over the replicas, norms, postprocessing
          _differentiate    losses and gradients at values, a pure function
        _apply              the optimizers' steps

`prepare`, `_gradients` and `_differentiate` run on the replicas, the others outside, see
`tfrl.distribute.replicas`.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from tfrl import seeding, struct
from tfrl.agents.core import PARAM_UPDATES, ExternalUpdate, Update
from tfrl.learners import traced_metrics
from tfrl.learners.batches import by_module
from tfrl.learners.external_update import take_external_step
from tfrl.learners.learner_state import LearnerState
from tfrl.learners.loss_checks import (
    check_ids,
    check_scalars,
    in_order,
    naming_missing_columns,
    scalar_loss,
)
from tfrl.learners.optimizers import ALL_MODULES
from tfrl.learners.parameters import ParamDict, ParameterTable
from tfrl.learners.state_changes import stepped, with_param_updates
from tfrl.learning import leaves
from tfrl.types import Nest

if TYPE_CHECKING:
    from tfrl.learners.learner import Learner

Flags = dict[str, tf.Tensor]
# State, metrics, stopped modules, modules with finite losses and gradients.
StepResult = tuple[LearnerState, dict[str, dict[str, tf.Tensor]], Flags, Flags]
# Conditions, gradients of an owner's optimizers, and `{module_id: untrained leaves afterwards}`.
OwnerStep = tuple[list[tf.Tensor], ParamDict, dict[str, Any]]


@struct.dataclass
class Minibatch(struct.Struct):
    """The input of one step's updates, on one replica.

    Attributes:
      rows: `{module_id: rows}`.
      weights: `{module_id: scalar}`, this replica's share of all valid rows; None for one replica.
      key: int32 [2], of this replica.
      active: `{module_id: bool}`, whether to differentiate the losses of modules that may wait or
        have stopped while others with shared variables continue.
    """

    rows: dict[str, Nest]
    weights: dict[str, tf.Tensor] | None
    key: tf.Tensor
    active: dict[str, tf.Tensor] = struct.field(default_factory=dict)


@struct.dataclass
class Computed(struct.Struct):
    """The results of an update, equal on every replica.

    Attributes:
      gradients: Postprocessed gradients of the trained variables, in the table's order.
      norms: `{owner: {optimizer name: scalar}}`, global norms before postprocessing.
      losses: `{module_id: scalar}`.
      metrics: `{module_id: {name: float32 scalar}}`.
      param_updates: `{module_id: {group: nest}}`, see `agents.core.PARAM_UPDATES`.
      stops: `{module_id: bool scalar}` of the modules that may stop early.
    """

    gradients: list[tf.Tensor]
    norms: dict[str, dict[str, tf.Tensor]]
    losses: dict[str, tf.Tensor]
    metrics: dict[str, dict[str, tf.Tensor]]
    param_updates: dict[str, Any]
    stops: dict[str, tf.Tensor]


@struct.dataclass
class StepMetrics(struct.Struct):
    """Metrics of one train step.

    Attributes:
      values: `{module_id: {name: float32 scalar}}`: "loss", "grad_norm" and the losses' metrics.
        With several updates, their names are prefixes: "critic/loss".
      computed: `{module_id: {name: bool scalar}}`, whether the update of a value ran in this step,
        for updates that do not run in every step.
      finite: `{module_id: bool scalar}`, whether losses and gradients were finite.
      stopped: `{module_id: bool scalar}` of the modules that may stop early.
      logged: The metrics in `values` logged by losses and hooks, `traced_metrics.Table`.
    """

    values: dict[str, dict[str, tf.Tensor]]
    computed: dict[str, dict[str, tf.Tensor]]
    finite: Flags
    stopped: Flags
    logged: traced_metrics.Table = struct.field(static=True)


@tf.autograph.experimental.do_not_convert
def train_step(
    learner: Learner,
    state: LearnerState,
    batch: Mapping[str, Nest],
    key: tf.Tensor,
    *,
    stopped: Flags | None = None,
    jit: bool = False,
) -> tuple[LearnerState, StepMetrics]:
    """Takes one gradient step of each module on a batch, with its updates in order.

    Pure if the leaves of the state are tensors; variables, of this learner or of another of equal
    structure, are changed in place.
    `Learner.fit` runs train steps over epochs and minibatches, with schedules, target networks and
    hooks.

    Args:
      learner: The modules, their optimizers, and the hooks of a gradient step.
      state: A state like `learner.learner_state`.
      batch: `{module_id: rows}` of the modules to train, or the rows of the only module; with
        several replicas, each has its own rows.
      key: int32 [2].
      stopped: `{module_id: bool scalar}` of the modules that may stop early: True to take no step;
        None for none.
      jit: Whether XLA compiles losses and gradients separately, for calls from a graph.

    Returns:
      The state after the step, with `learner_steps` and `skipped_steps` counted; and its metrics.

    Raises:
      UserError: For a state of tensors if a step is not pure: with Keras optimizers, a module that
        trains itself, or a subclass that overrides hooks which change variables.
    """
    learner = learner.for_state(state)
    batch = by_module(batch, list(learner.modules))
    step = _TrainStep(learner, list(batch), jit=jit)
    minibatch = learner.replicas.run(functools.partial(step.prepare, state), dict(batch), key)
    stopped = stopped or none_stopped(learner, batch)
    modules = {m: learner.modules[m] for m in batch}
    all_finite = dict.fromkeys(modules, tf.constant(True))
    values: dict[str, dict[str, tf.Tensor]] = {m: {} for m in modules}
    computed: dict[str, dict[str, tf.Tensor]] = {m: {} for m in modules}
    # The first update of each module, the second, ...
    for k in range(max(len(module.updates) for module in modules.values())):
        together = {m: x.updates[k] for m, x in modules.items() if k < len(x.updates)}
        external = {m: u for m, u in together.items() if isinstance(u, ExternalUpdate)}
        updates = {m: u for m, u in together.items() if not isinstance(u, ExternalUpdate)}
        rows, finite, due = {}, {}, None
        for m, update in external.items():
            rows[m], finite[m] = step.external_step(state, k, m, update, minibatch)
        if updates:
            due = step.is_due(state, updates)
            if due is None:
                result = step.gradient_step(state, k, updates, minibatch, stopped)
            else:
                result = step.delayed_step(due, state, k, updates, minibatch, stopped)
            state, rows_of_step, stopped, finite_in_step = result
            rows, finite = {**rows, **rows_of_step}, {**finite, **finite_in_step}
        for m, row in rows.items():
            all_finite[m] &= finite[m]
            prefix = f"{together[m].name}/" if len(modules[m].updates) > 1 else ""
            values[m].update({prefix + n: x for n, x in row.items()})
            if due is not None and m in updates:
                computed[m].update({prefix + n: due for n in row})
    if learner.check_numerics != "off":
        left_out = _any([~f for f in all_finite.values()])
        state = state.count("skipped_steps", tf.cast(left_out, tf.int64))
    metrics = StepMetrics(
        values=values, computed=computed, finite=all_finite, stopped=stopped, logged=step.logged
    )
    return state.count("learner_steps", 1), metrics


def none_stopped(learner: Learner, module_ids: Iterable[str]) -> Flags:
    """Returns `{module_id: False}` of the modules that may stop early."""
    return {m: tf.constant(False) for m in module_ids if learner.modules[m].may_stop}


class _TrainStep:
    """Takes gradient steps for some modules of a learner; created while tracing."""

    def __init__(self, learner: Learner, module_ids: list[str], *, jit: bool = False):
        """Lists the trained variables.

        Args:
          learner: The `Learner` whose hooks run.
          module_ids: The modules to train.
          jit: Whether XLA compiles losses and gradients separately.
        """
        self._learner = learner
        self._replicas = learner.replicas
        self._modules = {m: learner.modules[m] for m in module_ids}
        unread = [m for m, x in self._modules.items() if getattr(x, "over_variables", False)]
        self._table = ParameterTable({m: learner.module_states[m] for m in module_ids}, unread)
        self._jit = jit
        # Metrics logged by losses and hooks, found while tracing.
        self.logged: traced_metrics.Table = {}
        self._jitted: dict[int, Any] = {}

    # Outside the replicas.

    def external_step(
        self, state: LearnerState, k: int, m: str, update: ExternalUpdate, minibatch: Minibatch
    ) -> tuple[dict[str, tf.Tensor], tf.Tensor]:
        """An external step: its metrics, and whether it was finite."""
        several = self._replicas.several
        key = minibatch.key if several else self._keys(k, {m: update}, minibatch.key)[m]
        return take_external_step(
            m,
            update,
            state.agent_state[m],
            minibatch.rows[m],
            key,
            guard=self._learner.check_numerics != "off",
            several=several,
        )

    def is_due(self, state: LearnerState, updates: dict[str, Update]) -> tf.Tensor | None:
        """Whether some of the updates run in this step; None for always."""
        if any(u.every == 1 for u in updates.values()):
            return None
        steps = state.counters["learner_steps"]
        return _any([steps % n == 0 for n in dict.fromkeys(u.every for u in updates.values())])

    def delayed_step(
        self,
        due: tf.Tensor,
        state: LearnerState,
        k: int,
        updates: dict[str, Update],
        minibatch: Minibatch,
        stopped: Flags,
    ) -> StepResult:
        """As `gradient_step`, without computation for updates that wait."""
        shape: list[Any] = []
        together = len({u.every for u in updates.values()}) == 1

        def take() -> Any:
            after, *result = self.gradient_step(
                state, k, updates, minibatch, stopped, all_due=together
            )
            shape[:] = [result]
            return [*leaves.carried(after), *tf.nest.flatten(result)]

        def wait() -> Any:
            nothing = tf.nest.map_structure(lambda x: tf.zeros(x.shape, x.dtype), shape[0][0])
            waited = (nothing, stopped, dict.fromkeys(updates, tf.constant(True)))
            return [*leaves.carried(state), *tf.nest.flatten(waited)]

        if tf.executing_eagerly():
            # If it is not due, no optimizer steps; only the shapes of the metrics are needed.
            after, rows, now, finite = self.gradient_step(state, k, updates, minibatch, stopped)
            rows = tf.nest.map_structure(lambda x: tf.where(due, x, tf.zeros_like(x)), rows)
            stopped = {m: tf.where(due, now[m], stopped[m]) for m in now}
            return after, rows, stopped, {m: f | ~due for m, f in finite.items()}
        outputs = tf.cond(due, take, wait)
        count = len(leaves.carried(state))
        rows, stopped, finite = tf.nest.pack_sequence_as(shape[0], outputs[count:])
        return leaves.with_carried(state, outputs[:count]), rows, stopped, finite

    def gradient_step(
        self,
        state: LearnerState,
        k: int,
        updates: dict[str, Update],
        minibatch: Minibatch,
        stopped: Flags,
        *,
        all_due: bool = False,
    ) -> StepResult:
        """Takes the updates at position `k`; an optimizer steps where its conditions hold."""
        compute = functools.partial(self._gradients, state, k, updates)
        active = self._active(state, updates, stopped, all_due=all_due)
        per_replica = self._replicas.run(compute, minibatch, active if len(updates) > 1 else {})
        computed = self._replicas.any_replica(per_replica.replace(gradients=[], param_updates={}))
        stopped = {
            m: s | computed.stops[m] if m in computed.stops else s for m, s in stopped.items()
        }
        gradients = dict(zip(self._trained(updates), per_replica.gradients, strict=True))
        finite = dict.fromkeys(updates, tf.constant(True))
        still_active = self._active(state, updates, stopped, all_due=all_due)
        steps: list[OwnerStep] = []
        untrained = dict(per_replica.param_updates)
        for owner, refs_by_name in self._owned(updates).items():
            own = {ref: gradients[ref] for refs in refs_by_name.values() for ref in refs}
            involved = [m for m in updates if self._trained({m: updates[m]}).keys() & own.keys()]
            conditions = []
            if self._learner.check_numerics != "off":
                # A norm is finite only if every gradient is.
                conditions = [tf.math.is_finite(n) for n in computed.norms[owner].values()]
                for m in involved:
                    check = tf.math.is_finite(computed.losses[m])
                    conditions.append(check | ~active[m] if m in active else check)
                all_finite = _all(conditions)
                finite.update({m: finite[m] & all_finite for m in involved})
            leaders = [owner] if owner in updates else involved
            if all(m in still_active for m in leaders):
                conditions.append(_any([still_active[m] for m in leaders]))
            # A module's untrained leaves follow the first of its optimizers. Modules that share a
            # group change the same leaves: the first one is applied last.
            changes = {m: untrained.pop(m) for m in reversed(involved) if m in untrained}
            steps.append((conditions, own, changes))
        rows = {m: self._metrics_of(m, computed) for m in updates}
        return self._apply(state, steps), rows, stopped, finite

    def _active(
        self, state: LearnerState, updates: dict[str, Update], stopped: Flags, *, all_due: bool
    ) -> Flags:
        """`{module_id: bool}`, the active modules among those that may stop or wait here.

        If all are known to be due, none waits.
        """
        steps = state.counters["learner_steps"]
        active = {}
        for m, update in updates.items():
            due = [] if all_due or update.every == 1 else [steps % update.every == 0]
            go = [~stopped[m]] if self._modules[m].may_stop else []
            if due or go:
                active[m] = _all(due + go)
        return active

    def _metrics_of(self, m: str, computed: Computed) -> dict[str, tf.Tensor]:
        """A module's metrics; `Learner.fit` removes unrequested norms."""
        norms = computed.norms.get(m) or computed.norms.get(ALL_MODULES, {})
        row = {"loss": tf.cast(computed.losses[m], tf.float32)}
        for name, norm in norms.items():
            row["grad_norm" if len(norms) == 1 else f"grad_norm/{name}"] = norm
        return {**row, **computed.metrics[m]}

    def _apply(self, state: LearnerState, steps: list[OwnerStep]) -> LearnerState:
        """The state after the steps of the optimizers whose conditions hold."""

        def each(state: LearnerState) -> LearnerState:
            for conditions, *step in steps:
                take = functools.partial(self._apply_together, steps=[step])
                state = leaves.cond(_all(conditions), take, state) if conditions else take(state)
            return state

        if len(steps) <= 1 or "apply_gradients" not in self._learner.replaced_in_place():
            return each(state)
        # Usually all conditions hold: then `apply_gradients` is called once, with all gradients.
        together = functools.partial(self._apply_together, steps=[step for _, *step in steps])
        conditions = list({id(c): c for own, *_ in steps for c in own}.values())
        if not conditions:
            return together(state)
        return leaves.cond(_all(conditions), together, state, otherwise=each)

    def _apply_together(self, state: LearnerState, *, steps: list[Any]) -> LearnerState:
        """The state after the steps of some owners' optimizers, in one call."""
        learner = self._learner
        gradients = {ref: g for own, _ in steps for ref, g in own.items()}

        def step(values: list[tf.Tensor]) -> None:
            learner.apply_gradients(dict(zip(gradients, values, strict=True)))

        if leaves.in_place(state):
            self._replicas.run(step, list(gradients.values()))
        else:
            state = stepped(learner, state, self._replicas.any_replica(gradients))
        for _, changes in steps:
            for module_id, leaves_after in changes.items():
                values = self._replicas.any_replica(leaves_after)
                state = with_param_updates(learner, state, module_id, values)
        return state

    # On the replicas.

    def prepare(self, state: LearnerState, rows: dict[str, Nest], key: tf.Tensor) -> Minibatch:
        """Makes a replica's minibatch: values that depend on all rows, and its share of them."""
        states = self._table.states(self._table.values(state.agent_state))
        with naming_missing_columns(rows):
            rows = {
                m: self._modules[m].prepare_minibatch(states[m], batch, self._replicas.sum)
                for m, batch in rows.items()
            }
        if not self._replicas.several:
            return Minibatch(rows=rows, weights=None, key=key)
        counts = {m: self._learner.count_valid_rows(m, batch) for m, batch in rows.items()}
        totals = self._replicas.sum(counts)
        weights = {m: counts[m] / tf.maximum(totals[m], 1.0) for m in counts}
        key = seeding.fold_in(key, self._replicas.index())
        return Minibatch(rows=rows, weights=weights, key=key)

    def _gradients(
        self,
        state: LearnerState,
        k: int,
        updates: dict[str, Update],
        minibatch: Minibatch,
        active: Flags,
    ) -> Computed:
        """Losses, gradients, their sums over the replicas, and postprocessing."""
        minibatch = minibatch.replace(active=active)
        differentiate: Any = functools.partial(self._differentiate, k, updates)
        if self._jit and not tf.executing_eagerly():
            # All replicas call one function.
            traced = tf.function(differentiate, jit_compile=True, autograph=False)
            differentiate = self._jitted.setdefault(k, traced)
        values = self._table.values(state.agent_state)
        gradients, losses, metrics, param_updates = differentiate(values, minibatch)
        if self._replicas.several:
            extremes = traced_metrics.extremes(self.logged, metrics, self._replicas.gather)
            gradients, losses, metrics, param_updates = self._replicas.sum(
                [gradients, losses, metrics, self._shares(param_updates, minibatch)]
            )
            metrics = {m: {**row, **extremes.get(m, {})} for m, row in metrics.items()}
        refs = self._trained(updates)
        named: ParamDict = dict(zip(refs, gradients, strict=True))
        with self._learner.metrics.tracing() as logged:
            norm_of = self._learner.global_norm_function()
            norms = {
                owner: {
                    name: norm_of([named[ref] for ref in own]) for name, own in refs_by_name.items()
                }
                for owner, refs_by_name in self._owned(updates).items()
            }
            processed = self._learner.postprocess_gradients(named)
        for m, row in traced_metrics.as_rows(self.logged, logged, updates).items():
            metrics[m] = {**metrics[m], **row}
        stops = {}
        for m in updates:
            stop = self._modules[m].should_stop(metrics[m])
            if stop is not None:
                stops[m] = stop
        return Computed(
            gradients=in_order("postprocess_gradients", processed, refs),
            norms=norms,
            losses=losses,
            metrics=metrics,
            param_updates=param_updates,
            stops=stops,
        )

    def _shares(self, param_updates: dict[str, Any], minibatch: Minibatch) -> dict[str, Any]:
        """This replica's share of the mean of updates without gradients."""
        first = self._replicas.index() == 0

        def share(x: tf.Tensor, weight: tf.Tensor) -> tf.Tensor:
            if x.dtype.is_floating:
                return x * tf.cast(weight, x.dtype)
            return tf.where(first, x, tf.zeros([], x.dtype))  # counts: one replica's

        return {
            m: tf.nest.map_structure(lambda x, w=minibatch.weights[m]: share(x, w), nest)  # type: ignore[index]
            for m, nest in param_updates.items()
        }

    def _differentiate(
        self, k: int, updates: dict[str, Update], values: list[tf.Tensor], minibatch: Minibatch
    ) -> Any:
        """Gradients of the sum of the losses at `values`; pure."""
        learner, states = self._learner, self._table.states(values)
        states = {m: states[m] for m in updates}
        keys = self._keys(k, updates, minibatch.key)
        named = {ref: values[i] for ref, i in self._trained(updates).items()}
        rows = {m: minibatch.rows[m] for m in updates}

        with (
            learner.metrics.tracing() as logged,
            tf.GradientTape(watch_accessed_variables=False) as tape,
        ):
            tape.watch(list(named.values()))
            with naming_missing_columns(rows):
                reported = learner.compute_losses(
                    updates=updates, states=states, batch=rows, keys=keys
                )
            check_ids(reported, updates)
            reported = {m: scalar_loss(f"module {m!r}", x) for m, x in reported.items()}
            losses = {m: self._weighted(m, loss, minibatch) for m, (loss, _) in reported.items()}
            gradients = learner.compute_gradients(_with_sum(losses, minibatch), tape, named)
        metrics, param_updates = {}, {}
        for m, (_, returned) in reported.items():
            scalars = dict(returned)
            changes = scalars.pop(PARAM_UPDATES, {})
            check_scalars(m, scalars)
            metrics[m] = {
                n: self._weighted(m, tf.cast(x, tf.float32), minibatch) for n, x in scalars.items()
            }
            if changes:
                param_updates[m] = changes
        for m, row in traced_metrics.as_rows(self.logged, logged, updates).items():
            kinds = traced_metrics.kinds_of(self.logged, row)
            for kind, (name, x) in zip(kinds, row.items(), strict=True):
                mean = kind in ("mean", "last")
                metrics[m][name] = self._weighted(m, x, minibatch) if mean else x
        ordered = in_order("compute_gradients", gradients, named)
        return ordered, losses, metrics, param_updates

    def _weighted(self, module_id: str, x: tf.Tensor, minibatch: Minibatch) -> tf.Tensor:
        return x if minibatch.weights is None else x * minibatch.weights[module_id]

    def _keys(self, k: int, updates: Mapping[str, Any], key: tf.Tensor) -> dict[str, tf.Tensor]:
        if len(self._modules) == 1:
            (module_id, module), *_ = self._modules.items()
            return {module_id: seeding.fold_in(key, k) if len(module.updates) > 1 else key}
        return {m: seeding.fold_in(seeding.stream(key, m), k) for m in updates}

    def _trained(self, updates: dict[str, Update]) -> dict[Any, int]:
        """The places of the trained parameters by their refs."""
        return self._table.trained({m: u.groups for m, u in updates.items()})

    def _owned(self, updates: dict[str, Update]) -> dict[str, dict[str, list[Any]]]:
        """The trained parameters of each optimizer, `{owner: {optimizer name: refs}}`."""
        trained = {ref: ref for ref in self._trained(updates)}
        owned: dict[str, dict[str, list[Any]]] = {}
        for owner, name, entry in self._learner.optimizer_entries():
            if own := entry.own(trained):
                owned.setdefault(owner, {})[name] = list(own)
        return owned


def _all(conditions: list[tf.Tensor]) -> tf.Tensor:
    return functools.reduce(operator.and_, conditions)


def _any(conditions: list[tf.Tensor]) -> tf.Tensor:
    return functools.reduce(operator.or_, conditions)


def _with_sum(losses: dict[str, tf.Tensor], minibatch: Minibatch) -> dict[str, tf.Tensor]:
    """The losses to differentiate, and their sum; those of inactive modules are constants."""
    losses = dict(losses)
    for m, active in minibatch.active.items():
        losses[m] = tf.where(active, losses[m], tf.stop_gradient(losses[m]))
    total = list(losses.values())
    return {**losses, ALL_MODULES: total[0] if len(total) == 1 else tf.add_n(total)}
