"""The Learner: the one place where a learner's parameters change.

It holds `{module_id: agent}` with their states as tf.Variables, an optimizer for every update of
every agent, and one traced update: for each module and minibatch, for each of the agent's updates
in order, loss and gradient (pure, by `executor`), postprocessing, finite guard, apply. The names
follow RLlib's Learner.
"""

from collections.abc import Callable, Mapping
from typing import Any, Literal

import tensorflow as tf

from tfrl import networks, seeding, struct
from tfrl.agents.core import Agent, Update
from tfrl.errors import UserError
from tfrl.learners import optimizers
from tfrl.learners.executor import clip_gradients, compute_update
from tfrl.learners.minibatches import MinibatchPlan, Remainder, minibatch_indices
from tfrl.learners.optimizers import ModuleConfig, OptimizerRegistry
from tfrl.types import AgentState, Nest

DEFAULT_MODULE_ID = "default_policy"
CheckNumerics = Literal["off", "skip", "raise"]

# Metrics travel through the minibatch loop as one vector, whose length must be known before the
# loss is traced for the first time.
_METRIC_SLOTS = 64


class Learner:
    """Trains agents by gradient steps on batches.

    Use: `learner = Learner(agent); learner.build(key); learner.update_from_batch(batch, ...)`.
    """

    def __init__(
        self,
        modules: Agent | Mapping[str, Agent],
        *,
        config: ModuleConfig | Mapping[str, ModuleConfig] | None = None,
        optimizer_fn: Callable[[ModuleConfig], Any] | None = None,
        check_numerics: CheckNumerics = "skip",
    ):
        """Names the modules; `build` makes their variables.

        Args:
          modules: One agent (held as "default_policy"), or `{module_id: agent}`.
          config: Settings for all modules, or for each.
          optimizer_fn: Makes a Keras optimizer for one update; the default is `optimizers.adam`.
          check_numerics: What happens when a loss or gradient is not finite: "off" applies it
            unchecked, "skip" leaves that gradient step out and counts it, "raise" leaves it out
            and raises a UserError that names the term after the call.
        """
        if isinstance(modules, Agent):
            modules = {DEFAULT_MODULE_ID: modules}
        self.modules: dict[str, Agent] = dict(modules)
        if check_numerics not in ("off", "skip", "raise"):
            raise UserError(
                "check_numerics",
                expected="off, skip or raise",
                got=repr(check_numerics),
                remedy="Choose what happens to a non-finite loss.",
            )
        self.check_numerics = check_numerics
        self.configs = _configs(config, list(self.modules))
        self._optimizer_fn = optimizer_fn or (lambda c: optimizers.adam(epsilon=c.adam_epsilon))
        self._states: dict[str, AgentState] = {}
        self._optimizers = OptimizerRegistry()
        self._names: dict[str, list[str]] = {}
        self._compiled: dict[Any, Any] = {}

    # Building.

    @property
    def is_built(self) -> bool:
        """Whether the variables exist."""
        return bool(self._states)

    def _check_built(self, what: str) -> None:
        if not self.is_built:
            raise UserError(
                f"Learner.{what}",
                expected="a built learner",
                got="one without variables",
                remedy="Call learner.build(key) first.",
            )

    def build(self, key: tf.Tensor) -> None:
        """Makes the variables and optimizers, once; a second call changes nothing.

        Args:
          key: int32 [2]; module m starts from `stream(key, m)`.
        """
        if self.is_built:
            return
        for module_id, agent in self.modules.items():
            state = agent.init(seeding.stream(key, module_id))
            self._states[module_id] = _variables_like(state, module_id)
        self.learner_steps = tf.Variable(0, dtype=tf.int64, trainable=False, name="learner_steps")
        self.skipped_steps = tf.Variable(0, dtype=tf.int64, trainable=False, name="skipped_steps")
        self.configure_optimizers()

    def configure_optimizers(self) -> None:
        """Registers the optimizers of every module, and checks that they train everything once."""
        for module_id, agent in self.modules.items():
            self.configure_optimizers_for_module(module_id)
            groups = {g for u in agent.updates for g in u.groups}
            trained = {v.ref() for v in self._group_variables(module_id, tuple(groups))}
            named = struct.paths(self._states[module_id].params)
            self._optimizers.check_coverage(
                module_id, {p: v for p, v in named.items() if v.ref() in trained}
            )

    def configure_optimizers_for_module(self, module_id: str) -> None:
        """Registers one optimizer per update of the module; override for anything else."""
        config = self.configs[module_id]
        for update in self.modules[module_id].updates:
            params = self._group_variables(module_id, update.groups)
            self.register_optimizer(
                module_id, update.name, self._optimizer_fn(config), params, config.lr
            )

    def register_optimizer(
        self,
        module_id: str,
        optimizer_name: str,
        optimizer: Any,
        params: list[tf.Variable],
        lr_or_lr_schedule: Any = None,
    ) -> None:
        """Registers a Keras optimizer for some variables of a module.

        Args:
          module_id: The module.
          optimizer_name: Unique within the module; the default is the update's name.
          optimizer: A Keras optimizer, new or legacy.
          params: Variables of the module that no other optimizer has.
          lr_or_lr_schedule: A number, a schedule over env steps, or None for the optimizer's own.

        Raises:
          UserError: For a duplicate name, or a parameter that has an optimizer already.
        """
        self._optimizers.add(module_id, optimizer_name, optimizer, params, lr_or_lr_schedule)

    def _group_variables(self, module_id: str, groups: tuple[str, ...]) -> list[tf.Variable]:
        params = self._states[module_id].params
        unknown = [g for g in groups if g not in params]
        if unknown:
            raise UserError(
                f"module {module_id!r}",
                expected=f"updates over its parameter groups {sorted(params)}",
                got=f"{unknown}",
                remedy="Name groups that init() returns.",
            )
        return [v for g in groups for v in networks.split_leaves(params[g])[0]]

    # Looking.

    @property
    def state(self) -> AgentState:
        """The variables of the only module."""
        return self.module_state()

    def module_state(self, module_id: str = DEFAULT_MODULE_ID) -> AgentState:
        """Returns a module's AgentState, whose leaves are tf.Variables."""
        self._check_built("module_state")
        return self._states[module_id]

    def get_parameters(self, module_id: str = DEFAULT_MODULE_ID) -> list[tf.Variable]:
        """Returns the variables of all parameter groups of a module."""
        self._check_built("get_parameters")
        return tf.nest.flatten(self._states[module_id].params)

    def get_optimizer(
        self, module_id: str = DEFAULT_MODULE_ID, optimizer_name: str | None = None
    ) -> Any:
        """Returns a registered Keras optimizer; the name may be left out when there is one."""
        return self._optimizers.get(module_id, optimizer_name)

    def get_optimizers_for_module(self, module_id: str = DEFAULT_MODULE_ID) -> list[Any]:
        """Returns `[(optimizer_name, optimizer), ...]` of a module."""
        return [(name, e.optimizer) for name, e in self._optimizers.of_module(module_id)]

    # One gradient step; all of it is traced.

    def compute_loss_for_module(
        self, module_id: str, update: Update, params: Nest, state: AgentState, batch: Nest, key: Any
    ) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
        """Returns the loss and metrics of one update of a module; override to change the loss."""
        return update.loss(params, state, batch, key)

    def compute_gradients(
        self, module_id: str, update: Update, state: AgentState, batch: Nest, key: tf.Tensor
    ) -> Any:
        """Returns `executor.Gradients` of one update on values; changes nothing."""

        def loss(params: Any, state: AgentState, batch: Nest, key: tf.Tensor) -> Any:
            return self.compute_loss_for_module(module_id, update, params, state, batch, key)

        return compute_update(update.replace(loss=loss), state.params, state, batch, key)

    def postprocess_gradients_for_module(
        self, module_id: str, update: Update, gradients: dict[str, Any]
    ) -> tuple[dict[str, Any], tf.Tensor]:
        """Clips the gradients of one update; returns them and the global norm before clipping."""
        config = self.configs[module_id]
        clipped, norm = clip_gradients(
            tf.nest.flatten(gradients),
            config.grad_clip,
            config.grad_clip_by,  # type: ignore[arg-type]
        )
        return tf.nest.pack_sequence_as(gradients, clipped), norm

    def apply_gradients(self, module_id: str, gradients: dict[str, Any]) -> None:
        """Applies gradients `{group: nest}` to the module's variables by their optimizers."""
        pairs = {}
        for group, nest in gradients.items():
            variables = tf.nest.flatten(self._states[module_id].params[group])
            for g, v in zip(tf.nest.flatten(nest), variables, strict=True):
                pairs[v.ref()] = g
        for _, entry in self._optimizers.of_module(module_id):
            mine = [(pairs[p.ref()], p) for p in entry.params if p.ref() in pairs]
            if mine:
                entry.optimizer.apply_gradients(mine)

    def apply_param_updates(self, module_id: str, param_updates: dict[str, Any]) -> None:
        """Assigns `{group: nest}` to those variables of the module that no gradient trains."""
        for group, nest in param_updates.items():
            _, variables = networks.split_leaves(self._states[module_id].params[group])
            _, values = networks.split_leaves(nest)
            for variable, value in zip(variables, values, strict=True):
                variable.assign(value)

    def _gradient_step(
        self, module_id: str, batch: Nest, key: tf.Tensor
    ) -> tuple[dict[str, tf.Tensor], tf.Tensor, tf.Tensor]:
        """All updates of a module on one minibatch: metrics, stop early?, all finite?"""
        agent = self.modules[module_id]
        stop, all_finite = tf.constant(False), tf.constant(True)
        metrics: dict[str, tf.Tensor] = {}
        for i, update in enumerate(agent.updates):
            if len(agent.updates) > 1:
                key_i = seeding.fold_in(key, i)
            else:
                key_i = key
            state = struct.values(self._states[module_id])
            found = self.compute_gradients(module_id, update, state, batch, key_i)
            gradients, norm = self.postprocess_gradients_for_module(
                module_id, update, found.gradients
            )
            prefix = f"{update.name}/" if len(agent.updates) > 1 else ""
            row = {"loss": found.loss, "grad_norm": norm, **found.metrics}
            metrics.update({prefix + k: tf.cast(v, tf.float32) for k, v in row.items()})
            enough = agent.should_stop(found.metrics)
            do = []
            if self.check_numerics != "off":
                # The norm is finite only if every gradient is.
                do.append(tf.math.is_finite(found.loss) & tf.math.is_finite(norm))
                all_finite = all_finite & do[0]
            if enough is not None:
                stop = stop | enough
                do.append(~stop)
            if update.every > 1:
                do.append(self.learner_steps % update.every == 0)
            self._apply_if(module_id, do, gradients, found.param_updates)
        return metrics, stop, all_finite

    def _apply_if(
        self, module_id: str, conditions: list[tf.Tensor], gradients: Any, param_updates: Any
    ) -> None:
        def apply() -> tf.Tensor:
            self.apply_gradients(module_id, gradients)
            self.apply_param_updates(module_id, param_updates)
            return tf.constant(0)

        if conditions:
            tf.cond(tf.reduce_all(tf.stack(conditions)), apply, lambda: tf.constant(0))
        else:
            apply()

    # The update.

    def update(
        self,
        batch: Nest,
        *,
        key: tf.Tensor,
        timesteps: tf.Tensor,
        module_id: str = DEFAULT_MODULE_ID,
        num_epochs: int = 1,
        minibatch_size: int | None = None,
        shuffle: bool = True,
        remainder: Remainder = "error",
    ) -> dict[str, tf.Tensor]:
        """Trains one module on a batch; pure TensorFlow code, to be called in compiled code.

        Args:
          batch: A nest whose leaves have the same static number of rows N. A leaf named `mask`
            (bool [N]) says which rows count; it is made for remainder "pad".
          key: int32 [2].
          timesteps: int64 scalar, env steps so far, for schedules.
          module_id: The module.
          num_epochs: Passes over the batch.
          minibatch_size: Rows of a gradient step; None for all rows.
          shuffle: A fresh permutation in every epoch.
          remainder: See `MinibatchPlan`.

        Returns:
          Scalars: the means over the minibatches of what the losses report, `loss`, `grad_norm`,
          `learning_rate`, `gradient_steps` (minibatches seen), `skipped_steps` (left out because
          loss or gradient was not finite) and `nonfinite/<term>` counts.
        """
        self._check_built("update")
        rows = _rows(batch)
        plan = MinibatchPlan(
            rows=rows,
            size=rows if minibatch_size is None else minibatch_size,
            epochs=num_epochs,
            shuffle=shuffle,
            remainder=remainder,
        )
        self.before_gradient_based_update(module_id, timesteps)
        skipped = self.skipped_steps.read_value()
        # Draws of the losses must not share keys with the permutations.
        indices = minibatch_indices(plan, seeding.stream(key, "minibatches"))
        total, taken, bad = self._minibatch_loop(module_id, plan, indices, batch, key)
        self.after_gradient_based_update(module_id, timesteps)
        names = self._names[module_id]
        metrics = {}
        for i, name in enumerate(names):
            # Terms that were finite in no minibatch are NaN, as they should look.
            metrics[name] = total[i] / (taken - bad[i])
            if self.check_numerics != "off":
                metrics[f"nonfinite/{name}"] = bad[i]
        metrics["gradient_steps"] = taken
        if self.check_numerics != "off":
            metrics["skipped_steps"] = tf.cast(self.skipped_steps - skipped, tf.float32)
        for optimizer_name, optimizer in self.get_optimizers_for_module(module_id):
            prefix = f"{optimizer_name}/" if len(self.modules[module_id].updates) > 1 else ""
            rate = tf.convert_to_tensor(optimizer.learning_rate)
            metrics[f"{prefix}learning_rate"] = tf.cast(rate, tf.float32)
        return metrics

    def _minibatch_loop(
        self, module_id: str, plan: MinibatchPlan, indices: tf.Tensor, batch: Nest, key: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Sums of the metrics, gradient steps taken, and non-finite values by metric."""
        stops = self.modules[module_id].should_stop
        may_stop = stops.__func__ is not Agent.should_stop  # type: ignore[attr-defined]
        losses_key = seeding.stream(key, "losses")

        def step(i: tf.Tensor, carry: Any) -> Any:
            total, taken, bad, _ = carry
            minibatch = _take(batch, indices[i], plan)
            metrics, stop, all_finite = self._gradient_step(
                module_id, minibatch, seeding.fold_in(losses_key, i)
            )
            self._names[module_id] = list(metrics)
            row = tf.stack(list(metrics.values()))
            finite = tf.math.is_finite(row)
            if self.check_numerics != "off":
                bad += _padded(tf.cast(~finite, tf.float32))
                row = tf.where(finite, row, 0.0)
                self.skipped_steps.assign_add(tf.cast(~all_finite, tf.int64))
            self.learner_steps.assign_add(1)
            return total + _padded(row), taken + 1.0, bad, stop

        zeros = tf.zeros([_METRIC_SLOTS])
        carry = (zeros, tf.constant(0.0), zeros, tf.constant(False))
        if plan.steps == 1:
            carry = step(tf.constant(0), carry)
        else:
            _, carry = tf.while_loop(
                lambda i, c: (i < plan.steps) & ~c[3] if may_stop else i < plan.steps,
                lambda i, c: (i + 1, step(i, c)),
                (tf.constant(0), carry),
                maximum_iterations=plan.steps,
            )
        return carry[0], carry[1], carry[2]

    def before_gradient_based_update(self, module_id: str, timesteps: tf.Tensor) -> None:
        """Traced before the gradient steps: learning rates, and the agent's `before_update`."""
        for _, entry in self._optimizers.of_module(module_id):
            entry.set_learning_rate(timesteps)
        agent = self.modules[module_id]
        self._assign_changes(module_id, agent.before_update, timesteps)

    def after_gradient_based_update(self, module_id: str, timesteps: tf.Tensor) -> None:
        """Traced after the gradient steps: the agent's `after_update`."""
        agent = self.modules[module_id]
        self._assign_changes(module_id, agent.after_update, timesteps)

    def _assign_changes(
        self, module_id: str, hook: Callable[..., AgentState], timesteps: tf.Tensor
    ) -> None:
        variables = self._states[module_id]
        before = struct.values(variables)
        after = hook(before, timesteps)
        if after is not before:
            self.assign(module_id, before, after)

    def assign(self, module_id: str, before: AgentState, after: AgentState) -> None:
        """Assigns the leaves of `after` that are not those of `before` to the variables."""
        triples = zip(
            tf.nest.flatten(self._states[module_id]),
            tf.nest.flatten(before),
            tf.nest.flatten(after),
            strict=True,
        )
        for variable, old, new in triples:
            if new is not old:
                variable.assign(new)

    def update_from_batch(
        self,
        batch: Nest,
        *,
        key: tf.Tensor | None = None,
        timesteps: int = 0,
        module_id: str = DEFAULT_MODULE_ID,
        num_epochs: int = 1,
        minibatch_size: int | None = None,
        shuffle: bool = True,
        remainder: Remainder = "error",
        compile: Literal["xla", "graph", "eager"] = "graph",
    ) -> dict[str, float]:
        """Trains one module on a batch from Python, in one compiled call; see `update`.

        Args:
          batch: A nest of rows.
          key: int32 [2]; by default derived from the number of gradient steps so far.
          timesteps: Env steps so far.
          module_id: The module.
          num_epochs: Passes over the batch.
          minibatch_size: Rows of a gradient step; None for all.
          shuffle: A fresh permutation in every epoch.
          remainder: See `MinibatchPlan`.
          compile: How to run it.

        Returns:
          Metrics as floats.

        Raises:
          UserError: For sizes that do not divide, or with `check_numerics="raise"` for a
            non-finite loss.
        """
        self._check_built("update_from_batch")
        if key is None:
            key = seeding.fold_in(seeding.key(0), self.learner_steps)
        options = (module_id, num_epochs, minibatch_size, shuffle, remainder)

        def run(batch: Nest, key: tf.Tensor, timesteps: tf.Tensor) -> dict[str, tf.Tensor]:
            return self.update(
                batch,
                key=key,
                timesteps=timesteps,
                module_id=module_id,
                num_epochs=num_epochs,
                minibatch_size=minibatch_size,
                shuffle=shuffle,
                remainder=remainder,
            )

        if compile == "eager":
            fn: Any = run
        else:
            fn = self._compiled.setdefault(
                (compile, options),
                tf.function(run, jit_compile=compile == "xla", autograph=False),
            )
        batch = tf.nest.map_structure(tf.convert_to_tensor, batch)
        metrics = fn(batch, key, tf.constant(timesteps, tf.int64))
        row = {k: float(v) for k, v in metrics.items()}
        if self.check_numerics == "raise":
            raise_if_nonfinite(row, module_id)
        return {k: v for k, v in row.items() if not k.startswith("nonfinite/") or v}

    # State.

    def variables(self) -> dict[str, tf.Variable]:
        """Returns every variable by path: module states, optimizers, counters."""
        self._check_built("variables")
        found: dict[str, tf.Variable] = {}
        for module_id, state in self._states.items():
            for path, v in struct.paths(state).items():
                found[f"modules/{module_id}/{path}"] = v
        found.update({f"optimizers/{p}": v for p, v in self._optimizers.variables().items()})
        found["counters/learner_steps"] = self.learner_steps
        found["counters/skipped_steps"] = self.skipped_steps
        return found

    def get_state(self) -> dict[str, Any]:
        """Returns `{path: numpy array}` of all variables, a copy."""
        return {k: v.numpy().copy() for k, v in self.variables().items()}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Assigns what `get_state` returned.

        Raises:
          UserError: Naming every missing, extra or mis-shaped variable.
        """
        variables = self.variables()
        wrong = [f"missing {p}" for p in sorted(set(variables) - set(state))]
        wrong += [f"unknown {p}" for p in sorted(set(state) - set(variables))]
        for path in sorted(set(state) & set(variables)):
            have, want = tuple(tf.convert_to_tensor(state[path]).shape), variables[path].shape
            if have != tuple(want):
                wrong.append(f"{path} of shape {have} for {tuple(want)}")
        if wrong:
            raise UserError(
                "Learner.set_state",
                expected=f"the {len(variables)} variables of this learner",
                got="; ".join(wrong),
                remedy="Restore into a learner of the same modules and optimizers.",
            )
        for path, variable in variables.items():
            variable.assign(state[path])

    def clone(self) -> "Learner":
        """Returns a learner of the same modules with copies of all variables and optimizers."""
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__)
        other._states = {m: _variables_like(struct.values(s), m) for m, s in self._states.items()}
        other._names, other._compiled = {}, {}
        other.learner_steps = tf.Variable(self.learner_steps, trainable=False)
        other.skipped_steps = tf.Variable(self.skipped_steps, trainable=False)
        mirror = {}
        for m, state in self._states.items():
            pairs = zip(tf.nest.flatten(state), tf.nest.flatten(other._states[m]), strict=True)
            mirror.update({old.ref(): new for old, new in pairs})
        other._optimizers = self._optimizers.copy(mirror)
        other.set_state(self.get_state())
        return other


def raise_if_nonfinite(row: Mapping[str, float], module_id: str, where: str = "") -> None:
    """Raises a UserError that names the non-finite terms counted in a metrics row."""
    if not row["skipped_steps"]:
        return
    bad = {k.removeprefix("nonfinite/"): v for k, v in row.items() if k.startswith("nonfinite/")}
    bad = {k: v for k, v in bad.items() if v}
    terms = ", ".join(f"{k} ({int(v)} times)" for k, v in bad.items())
    raise UserError(
        f"the loss of module {module_id!r}{where}",
        expected="finite values",
        got=f"non-finite {terms} in {int(row['gradient_steps'])} gradient steps",
        remedy="Lower the learning rate, check rewards and observations, or choose "
        "check_numerics='skip' to leave such steps out.",
    )


def _configs(config: Any, module_ids: list[str]) -> dict[str, ModuleConfig]:
    """The settings of every module."""
    if config is None or isinstance(config, ModuleConfig):
        return {m: config or ModuleConfig() for m in module_ids}
    given = dict(config) if isinstance(config, Mapping) else None
    if given is None or set(given) != set(module_ids):
        raise UserError(
            "Learner config",
            expected=f"a ModuleConfig, or one for each of the modules {sorted(module_ids)}",
            got=repr(config) if given is None else f"ones for {sorted(given)}",
            remedy="Name every module once, as in config={module_id: ModuleConfig(lr=3e-4)}.",
        )
    return given


def _variables_like(state: AgentState, prefix: str) -> AgentState:
    """Makes a tf.Variable of every leaf, named by its path."""
    variables = [
        tf.Variable(value, name=f"{prefix}/{path}", trainable=path.startswith("params/"))
        for path, value in struct.paths(state).items()
    ]
    return tf.nest.pack_sequence_as(state, variables)


def _rows(batch: Nest) -> int:
    sizes = {path: x.shape[0] for path, x in struct.paths(batch).items()}
    if not sizes or len(set(sizes.values())) != 1:
        raise UserError(
            "the batch",
            expected="leaves with the same number of rows",
            got=str(sizes) if sizes else "no leaves",
            remedy="Give every leaf the leading axis [N].",
        )
    return next(iter(sizes.values()))


def _take(batch: Nest, index: tf.Tensor, plan: MinibatchPlan) -> Nest:
    """The rows of one minibatch, with a mask where the plan pads."""
    if plan.rows == plan.size and not plan.shuffle:
        return batch
    if not plan.padded:
        return struct.take(batch, index)
    real = index >= 0
    rows = struct.take(batch, tf.maximum(index, 0))
    mask = _field(rows, "mask")
    mask = real if mask is None else mask & real
    return {**rows, "mask": mask} if isinstance(rows, dict) else rows.replace(mask=mask)


def _field(nest: Nest, name: str) -> Any:
    return nest.get(name) if isinstance(nest, dict) else getattr(nest, name, None)


def _padded(row: tf.Tensor) -> tf.Tensor:
    if row.shape[0] > _METRIC_SLOTS:
        raise ValueError(f"a loss reports {row.shape[0]} metrics; at most {_METRIC_SLOTS} fit")
    return tf.pad(row, [[0, _METRIC_SLOTS - row.shape[0]]])
