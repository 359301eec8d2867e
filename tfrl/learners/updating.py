"""The update of a Learner on a batch, traced and from Python."""

from collections.abc import Callable, Mapping
from typing import Any, Literal

import numpy as np
import tensorflow as tf

from tfrl import seeding
from tfrl.distribute.tracing import counted_apart
from tfrl.errors import UserError
from tfrl.learners import batches as batches_lib
from tfrl.learners.gradient_hooks import GradientHooks
from tfrl.learners.learner_core import LearnerState
from tfrl.learners.minibatch_loop import Cut, run_minibatches
from tfrl.learners.minibatches import MultiPlan, Remainder, minibatch_indices
from tfrl.learners.optimizers import ALL_MODULES
from tfrl.learners.own_update import trains_itself
from tfrl.learners.planning import MinibatchSize, Planning
from tfrl.learners.reports import Results, logged_as, raise_if_nonfinite
from tfrl.learning import leaves
from tfrl.traces import specs_of
from tfrl.types import Nest
from tfrl.xla import never_in_xla

# Hooks of subclasses that change variables.
_IN_PLACE = (
    *("apply_gradients", "before_gradient_based_update", "after_gradient_based_update"),
    *("before_gradient_based_update_for_module", "after_gradient_based_update_for_module"),
)
CompileMode = Literal["xla", "graph", "eager"]


class Updating(Planning, GradientHooks):
    """The updates of a `Learner`; a part of that class."""

    # Traced.

    @tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
    def fit(
        self,
        state: LearnerState,
        batch: Nest,
        *,
        key: tf.Tensor,
        timesteps: tf.Tensor,
        num_epochs: int = 1,
        minibatch_size: MinibatchSize = None,
        shuffle: bool = True,
        remainder: Remainder = "error",
        num_total_minibatches: int | None = None,
        jit: bool = False,
    ) -> tuple[LearnerState, Results]:
        """Trains on a batch: epochs times minibatches of train steps; one step by default.

        Pure where the leaves of the state are tensors. Where they are this learner's variables
        they are changed, and the hooks around the gradient steps run.

        Args:
          state: Of the form of `learner_state`.
          batch: `{module_id: rows}`, or the rows of the only module: nests whose leaves have the
            same static number of rows. Under several replicas each holds rows of its own.
          key: int32 [2].
          timesteps: int64 scalar, env steps so far, for schedules.
          num_epochs: Passes over the batch.
          minibatch_size: Rows of a gradient step over all replicas, for all modules or each; None
            for all rows.
          shuffle: A fresh permutation in every epoch.
          remainder: See `MinibatchPlan`.
          num_total_minibatches: Gradient steps to take, instead of those of the epochs.
          jit: Whether only losses and gradients are compiled by XLA, for calls from a graph.

        Returns:
          The state, and `{module_id: {name: scalar}}`: the means over the minibatches of what the
          losses report, `loss`, `grad_norm`, `learning_rate`, `gradient_steps` (minibatches
          taken), `skipped_steps` (left out because loss or gradient was not finite) and
          `nonfinite/<term>` counts.

        Raises:
          UserError: For a state of tensors where an update is not pure: by Keras' optimizers, by a
            module that trains itself, or by a subclass that overrides what changes variables.
        """
        self._check_built("fit")
        if not leaves.in_place(state):
            self._check_pure()
        batches = self._to_train(batch)
        if not batches:
            return state.with_counter("env_steps", timesteps), {}
        plan = self._plan_of_replica(
            batches,
            minibatch_size,
            num_epochs=num_epochs,
            shuffle=shuffle,
            remainder=remainder,
            num_total_minibatches=num_total_minibatches,
        )

        def own_indices(key: tf.Tensor) -> dict[str, tf.Tensor]:
            if self.replicas.several:
                key = seeding.fold_in(key, self.replicas.index())
            return _indices(plan, key)

        # Draws of the losses must not share keys with the permutations.
        indices = self.replicas.run(own_indices, seeding.stream(key, "minibatches"))
        return self._train(state, batches, _cut(plan, indices), key, timesteps, jit=jit)

    @tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
    def update(
        self,
        batch: Nest,
        *,
        key: tf.Tensor,
        timesteps: tf.Tensor,
        num_epochs: int = 1,
        minibatch_size: MinibatchSize = None,
        shuffle: bool = True,
        remainder: Remainder = "error",
        num_total_minibatches: int | None = None,
        jit: bool = False,
    ) -> Results:
        """Trains this learner's variables on a batch, to be called in compiled code; see `fit`."""
        _, results = self.fit(
            self.learner_state,
            batch,
            key=key,
            timesteps=timesteps,
            num_epochs=num_epochs,
            minibatch_size=minibatch_size,
            shuffle=shuffle,
            remainder=remainder,
            num_total_minibatches=num_total_minibatches,
            jit=jit,
        )
        return results

    def _train(
        self,
        state: LearnerState,
        batches: dict[str, Nest],
        cut: Cut,
        key: tf.Tensor,
        timesteps: tf.Tensor,
        *,
        jit: bool,
    ) -> tuple[LearnerState, Results]:
        """The update once it is settled which rows make which minibatch; traced."""
        hooked = leaves.in_place(state)
        for owner in [ALL_MODULES, *self.lenders_to(batches)]:
            state = self.with_rates(state, owner, timesteps)
        if hooked:
            self.before_gradient_based_update(timesteps=timesteps)
        for module_id in batches:
            if hooked:
                self.before_gradient_based_update_for_module(module_id, timesteps)
            else:
                state = self.prepared(state, module_id, timesteps)
        losses_key = seeding.stream(key, "losses")
        state, results = run_minibatches(self, state, batches, cut, losses_key, jit=jit)
        for module_id in batches:
            hook = self.modules[module_id].adapt
            state = self.changed(state, module_id, hook, results[module_id])
            if hooked:
                self.after_gradient_based_update_for_module(module_id, timesteps)
            else:
                state = self.finished(state, module_id, timesteps)
        if hooked:
            self.after_gradient_based_update(timesteps=timesteps)
        state = state.with_counter("env_steps", timesteps).count("weights_seq_no", 1)
        for module_id, metrics in results.items():
            if not self.configs[module_id].log_gradients:
                for name in [n for n in metrics if "grad_norm" in n.split("/")]:
                    if not name.startswith("nonfinite/"):
                        del metrics[name]
            entries = self.optimizer_entries_of(module_id) or self.optimizer_entries_of(ALL_MODULES)
            for owner, name, _ in entries:
                prefix = f"{name}/" if len(entries) > 1 else ""
                rate = tf.convert_to_tensor(state.opt_state[owner][name]["learning_rate"])
                metrics[f"{prefix}learning_rate"] = tf.cast(rate, tf.float32)
        return state, results

    def _check_pure(self) -> None:
        """Refuses what changes variables, for an update of a state of tensors."""
        mine = type(self)
        changed = [n for n in _IN_PLACE if getattr(mine, n) is not getattr(GradientHooks, n)]
        changed += [f"module {m!r}" for m, x in self.modules.items() if trains_itself(x)]
        if changed:
            raise UserError(
                "Learner.fit of a state of tensors",
                expected="an update that is a function of the state",
                got=f"{', '.join(changed)}, which change{'s' * (len(changed) == 1)} variables",
                remedy="Give learner.learner_state, whose leaves are variables.",
            )

    # From Python.

    def update_from_batch(
        self,
        batch: Nest,
        num_epochs: int = 1,
        minibatch_size: MinibatchSize = None,
        shuffle: bool = True,
        remainder: Remainder = "error",
        num_total_minibatches: int | None = None,
        timesteps: int | Mapping[str, int] | None = None,
        *,
        key: tf.Tensor | None = None,
        compile: CompileMode = "graph",
    ) -> Results:
        """Trains on a batch in one compiled call.

        Under several replicas of one process each minibatch is divided among them; under several
        processes each gives rows of its own, and the update is that of all of them together.

        Args:
          batch: `{module_id: rows}`, or the rows of the only module: nests of arrays with the same
            leading axis. A bool leaf `mask` says which rows count.
          num_epochs: Passes over the batch.
          minibatch_size: Rows of a gradient step over all replicas and processes, for all modules
            or `{module_id: rows}`; None for `ModuleConfig.minibatch_size`, or else all rows.
          shuffle: A fresh permutation in every epoch.
          remainder: See `MinibatchPlan`. A module with fewer rows than another goes round.
          num_total_minibatches: Gradient steps to take, instead of those of the epochs.
          timesteps: Env steps so far, which drive the schedules, as a number or
            `{"env_steps": n}`; None for what the learner was told last.
          key: int32 [2], or a seed; by default derived from the learner's key and the gradient
            steps so far.
          compile: "graph", "xla" or "eager". Under several replicas "xla" compiles losses and
            gradients only.

        Returns:
          `{module_id: {name: float}}` as `update`, with parameter counts, and
          `{"__all_modules__": {...}}`. Modules that are not trained are left out.

        Raises:
          UserError: For unknown modules, no rows, sizes that do not divide, or with
            `check_numerics="raise"` a non-finite loss.
        """
        self._check_built("update_from_batch")
        steps = self._steps(timesteps)
        batches = batches_lib.as_tensors(self._to_train(batch))
        plan = self._plan_of_process(
            batches,
            minibatch_size,
            num_epochs=num_epochs,
            shuffle=shuffle,
            remainder=remainder,
            num_total_minibatches=num_total_minibatches,
        )
        if plan is None:
            return self._nothing(steps)
        given = key is not None
        given_key = checked_key(key) if given else tf.constant([0, 0])

        def run(batches: dict[str, Nest], key: tf.Tensor, timesteps: tf.Tensor) -> Results:
            key = key if given else self._default_key()  # eagerly it takes a millisecond
            indices = self._shared_out(_indices(plan, seeding.stream(key, "minibatches")))
            jit = compile == "xla" and self.replicas.several
            cut, state = _cut(plan, indices), self.learner_state
            return self._train(state, batches, cut, key, timesteps, jit=jit)[1]

        fn = self._compiled_as(compile, ("batch", plan, given), run)
        return self._call(fn, batches, given_key, steps)

    # What these share.

    def _compiled_as(self, compile: str, name: Any, run: Callable[..., Any]) -> Any:
        """`run` in a compile mode; the same object for the same name."""
        if compile not in ("xla", "graph", "eager"):
            raise UserError(
                "compile",
                expected="xla, graph or eager",
                got=repr(compile),
                remedy="Choose how the update runs.",
            )
        if compile == "eager" or tf.config.functions_run_eagerly():
            return run
        # Under several replicas only losses and gradients are XLA's.
        jit = compile == "xla" and not self.replicas.several

        def make(**options: Any) -> Any:
            traced = run if jit else never_in_xla(run)
            return tf.function(counted_apart(traced), jit_compile=jit, autograph=False, **options)

        def call(*args: Any) -> Any:
            key = (compile, *name, specs_of(args))
            if key not in self._compiled:
                variables = self.variables()
                self._compiled[key] = self.traces.bound(key, make, args, variables)
            return self._compiled[key](*args)

        if name[0] != "changing":
            return call
        key = (compile, *name)  # of rows that differ in number
        self._compiled[key] = self._compiled.get(key) or make(reduce_retracing=True)
        return self._compiled[key]

    @property
    def trace_count(self) -> int:
        """How many traces its updates have had since modules were last added or removed."""
        return sum(
            f.experimental_get_tracing_count() if hasattr(f, "get_concrete_function") else 1
            for f in self._compiled.values()
        )

    def _default_key(self) -> tf.Tensor:
        # No module has an id with a slash: no state is drawn from this stream.
        key = seeding.stream(tf.convert_to_tensor(self.key), "learner/updates")
        return seeding.fold_in(key, tf.convert_to_tensor(self.learner_steps))

    def _steps(self, timesteps: Any) -> tf.Tensor:
        if isinstance(timesteps, Mapping):
            if set(timesteps) != {"env_steps"}:
                raise UserError(
                    "timesteps",
                    expected='{"env_steps": n}',
                    got=repr(dict(timesteps)),
                    remedy="Schedules are driven by the env steps of all workers.",
                )
            timesteps = timesteps["env_steps"]
        if timesteps is None:
            return tf.convert_to_tensor(self.env_steps)
        found = np.asarray(timesteps)
        if found.shape != () or not np.issubdtype(found.dtype, np.integer) or found < 0:
            raise UserError(
                "timesteps",
                expected='a whole number of env steps so far, or {"env_steps": n}',
                got=repr(timesteps),
                remedy="None takes what the learner was told last.",
            )
        return tf.constant(int(found), tf.int64)

    def _shared_out(self, indices: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        """Divides the columns of every minibatch's indices among the replicas of this process."""
        if not self.replicas.several:
            return indices
        n = self.replicas.num_local

        def own(indices: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
            i = self.replicas.local_index()
            sizes = {m: x.shape[1] // n for m, x in indices.items()}
            return {
                m: tf.ensure_shape(
                    tf.slice(x, [0, i * sizes[m]], [-1, sizes[m]]), [x.shape[0], sizes[m]]
                )
                for m, x in indices.items()
            }

        return self.replicas.run(own, indices)

    def _nothing(self, timesteps: tf.Tensor) -> Results:
        """An update that trains no module."""
        self.env_steps.assign(timesteps)
        return self._report({})

    def _call(self, fn: Callable[..., Results], *args: Any) -> Results:
        before = int(self.skipped_steps.numpy())
        results = fn(*args)
        return self._report(results, int(self.skipped_steps.numpy()) - before)

    def _report(self, results: Results, skipped: int = 0) -> Results:
        """Metrics as floats, with parameter counts and what concerns all modules."""
        rows = {m: {k: float(self._one(v)) for k, v in row.items()} for m, row in results.items()}
        steps = max((r["gradient_steps"] for r in rows.values()), default=0.0)
        if self.check_numerics == "raise" and skipped:
            raise_if_nonfinite(rows)
        counts = self._parameter_counts()
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
            "env_steps": int(self.env_steps.numpy()),
            "learner_steps": int(self.learner_steps.numpy()),
            "weights_seq_no": int(self.weights_seq_no.numpy()),
            **counts[ALL_MODULES],
        }
        for module_id, row in report.items():
            for name, value in row.items():
                self.metrics.log((module_id, name), value, **logged_as(module_id, name))
        return report

    def _parameter_counts(self) -> dict[str, dict[str, int]]:
        """Those of every module and of all, counted once for a set of modules."""
        version, counts = self._counted
        if version != self.structure_version:
            ids = [*self.modules, ALL_MODULES]
            counts = {m: self.parameter_counts(m) for m in ids}
            self._counted = (self.structure_version, counts)
        return counts

    def _one(self, value: Any) -> Any:
        return self.replicas.local(value)[0] if self.replicas.several else value


def _indices(plan: MultiPlan, key: tf.Tensor) -> dict[str, tf.Tensor]:
    """`{module_id: int32 [steps, size]}`; traced."""
    several = len(plan.modules) > 1
    found = {}
    for m, one in plan.modules.items():
        own = seeding.stream(key, m) if several else key
        found[m] = minibatch_indices(one, own)[: plan.steps]
    return found


def checked_key(key: Any) -> tf.Tensor:
    """Returns a key int32 [2] of a key or a seed.

    Raises:
      UserError: For anything else.
    """
    if isinstance(key, int) and not isinstance(key, bool):
        return seeding.key(key)
    found = tf.convert_to_tensor(key)
    if not found.dtype.is_integer or found.shape != [2]:
        raise UserError(
            "key",
            expected="whole numbers int32 [2], or a seed",
            got=f"{found.dtype.name} of shape {tuple(found.shape)}",
            remedy="Make one by tfrl.seeding.key(0), or leave it out.",
        )
    return tf.cast(found, tf.int32)


def _cut(plan: MultiPlan, indices: dict[str, tf.Tensor]) -> Cut:
    return Cut(
        indices=indices,
        steps=plan.steps,
        padded={m: p.padded for m, p in plan.modules.items()},
        whole={m: p.rows == p.size and not p.shuffle for m, p in plan.modules.items()},
    )
