"""The Learner, which trains modules.

It holds `{module_id: module}` with their states as tf.Variables, optimizers, and one traced
update: for each minibatch, for each position in the modules' lists of updates, losses and gradients
(pure), the sum over replicas, postprocessing, finite guard, apply. Names and semantics follow
RLlib's Learner, https://docs.ray.io/en/releases-2.44.0/rllib/rl-modules.html; docs/learner.md lists
the differences.

The class has the learner's content and hooks. Functions implement an update: `planning` plans the
minibatches, `update` loops over them, `train_step` is one gradient step.
"""

import functools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import tensorflow as tf
from typing_extensions import Self

from tfrl import checks, seeding, struct, tf_private
from tfrl.agents.core import Update
from tfrl.distribute.replicas import Replicas
from tfrl.episodes import DEFAULT_MODULE_ID
from tfrl.errors import UnknownKeyError, UserError, did_you_mean
from tfrl.learners import batches as batches_lib
from tfrl.learners import learner_state, planning, registration, state_changes, traced_metrics
from tfrl.learners.episode_updates import batches_of, observe_episodes
from tfrl.learners.external_update import only_external_updates
from tfrl.learners.learner_state import COUNTERS, LearnerState, not_built
from tfrl.learners.minibatches import REMAINDERS, MinibatchIndices, Remainder
from tfrl.learners.module_config import ModuleConfig
from tfrl.learners.modules import (
    LearnerModule,
    SelfSupervisedLossAPI,
    as_module,
    check_module_id,
    missing_apis,
)
from tfrl.learners.optimizers import (
    ALL_MODULES,
    DEFAULT_OPTIMIZER,
    OptimizerEntry,
    OptimizerRegistry,
)
from tfrl.learners.parameters import (
    ParamDict,
    VariableForm,
    check_groups,
    check_shared,
    group_variables,
    make_counter,
    make_variables,
    own_variables,
    parameter_counts,
    shared_groups,
)
from tfrl.learners.planning import MinibatchSize
from tfrl.learners.reports import Results, count_batches, mean_of, put_logged, report
from tfrl.learners.update import begin_update, end_update, train
from tfrl.learning.gradients import clip_gradients_dict
from tfrl.metrics import MetricsLogger
from tfrl.storage.checkpoint_format import check_fits
from tfrl.traces import Traces, class_settings, counted_separately, logic_key, specs_of, traces_of
from tfrl.types import AgentState, Nest
from tfrl.xla import never_in_xla

CheckNumerics = Literal["off", "skip", "raise"]
CompileMode = Literal["xla", "graph", "eager"]
ModulesToTrain = Collection[str] | Callable[[str, Nest], bool]
R = TypeVar("R")


class CallableTuple(tuple[Any, ...]):
    """An empty tuple that returns itself when called: an attribute that also works as a method."""

    def __call__(self) -> Sequence[type]:
        """Returns itself."""
        return self


# Attributes that are state or do not affect traces.
_STATE = frozenset(
    (*COUNTERS, "metrics", "replicas", "structure_version", "learner_connector")
    + ("module_states", "optimizers", "_optimizer_fn", "_compiled", "_traces", "_counted")
    + ("_iterated",)
)
# Hooks of subclasses that change variables.
_IN_PLACE = (
    *("apply_gradients", "before_gradient_based_update", "after_gradient_based_update"),
    *("before_gradient_based_update_for_module", "after_gradient_based_update_for_module"),
)


class Learner:
    """Trains modules by gradient steps on batches.

    Use: `learner = Learner(agent); learner.build(key); learner.update_from_batch(batch, ...)`.

    Attributes:
      modules: `{module_id: module}`.
      configs: `{module_id: ModuleConfig}`.
      replicas: The replicas of the strategy.
      check_numerics: "off", "skip" or "raise".
      remainder: Default treatment of rows that do not fill a minibatch.
      learner_steps: Gradient steps (minibatches) so far, an int64 variable.
      skipped_steps: The number of those with non-finite values.
      env_steps: Env steps, which drive the schedules.
      weights_seq_no: Number of updates, by which collectors recognise newer weights.
      key: The key of the modules' initial states, an int32 variable [2].
      structure_version: Changes when modules are added or removed.
    """

    def __init__(
        self,
        modules: Any,
        *,
        config: ModuleConfig | Mapping[str, ModuleConfig] | None = None,
        policies_to_train: ModulesToTrain | None = None,
        shared: Mapping[str, Sequence[str]] | None = None,
        optimizer_fn: Callable[[ModuleConfig], Any] | None = None,
        check_numerics: CheckNumerics = "skip",
        strategy: tf.distribute.Strategy | None = None,
        learner_connector: Any = None,
        remainder: Remainder = "error",
    ):
        """Stores the modules; `build` creates their variables.

        Args:
          modules: One module (with the id "default_policy"), or `{module_id: module}`. A module is
            a tfrl agent, a `learners.Module`, a `KerasModule`, or any object with their methods.
          config: Settings for all modules, or `{module_id: ModuleConfig}` for each, or dicts of
            non-default fields; the item "__all_modules__" is for optimizers registered under that
            id.
          policies_to_train: Ids of the modules to train, or a function `(module_id, rows) -> bool`;
            None for all.
          shared: Shared parameter groups, `{"a/encoder": ["b/encoder"]}`: module `b` uses group
            `encoder` of module `a`, and `a`'s optimizer trains it with the gradients of both. If
            `b` stops early, it trains the group up to the minibatch that stops it.
          optimizer_fn: Makes the optimizer of one update from its module's settings; None for
            `ModuleConfig.optimizer`.
          check_numerics: Treatment of non-finite losses and gradients: "off" does not check, "skip"
            skips and counts the gradient step, "raise" skips it and after the call raises a
            UserError that names module and term.
          strategy: A tf.distribute strategy; by default the current one.
          learner_connector: The pipeline of `update_from_episodes`; None for the default one.
          remainder: Default treatment of rows that do not fill a minibatch, see `MinibatchPlan`.
        """
        if not isinstance(modules, Mapping):
            modules = {DEFAULT_MODULE_ID: modules}
        if not modules:
            raise UserError(
                "Learner",
                expected="at least one module",
                got="none",
                remedy="Pass a module, or {module_id: module}.",
            )
        for module_id in modules:
            check_module_id(module_id)
        own = self._computes_losses
        self.modules = {m: as_module(x, m, loss_by_learner=own) for m, x in modules.items()}
        if check_numerics not in ("off", "skip", "raise"):
            raise UserError(
                "check_numerics",
                expected="off, skip or raise",
                got=repr(check_numerics),
                remedy="Use 'skip' to leave out steps with a non-finite loss.",
            )
        self.check_numerics = check_numerics
        self.configs = registration.module_configs(config, list(self.modules))
        self.policies_to_train = registration.modules_to_train(self, policies_to_train)
        if strategy is not None and not isinstance(strategy, tf.distribute.Strategy):
            raise UserError(
                "Learner strategy",
                expected="a tf.distribute.Strategy, or None",
                got=repr(strategy),
                remedy="Create one with tfrl.distribute.make_strategy(name).",
            )
        self.replicas = Replicas(strategy)
        self.remainder: Remainder = checks.one_of("remainder", remainder, REMAINDERS)
        self.structure_version = 0
        self.learner_connector = learner_connector
        self._shared = shared_groups(shared or {}, self.modules)
        self._optimizer_fn = optimizer_fn
        self.module_states: dict[str, AgentState] = {}
        self.optimizers = OptimizerRegistry()
        self.metrics = MetricsLogger()
        # Modules added after `build`, in order: their optimizers are created separately.
        self._added: tuple[str, ...] = ()
        # Compiled updates over this learner's variables, by their trace keys.
        self._compiled: dict[Any, Any] = {}
        self._traces: Traces | None = None
        self._counted: tuple[int, dict[str, dict[str, int]]] = (-1, {})
        # The live iterator of `update_from_iterator`, and its source.
        self._iterated: tuple[Any, Iterator[Nest]] | None = None

    # Building.

    # RLlib's name for TensorFlow 2.
    framework = "tf2"

    learner_steps: tf.Variable
    skipped_steps: tf.Variable
    env_steps: tf.Variable
    weights_seq_no: tf.Variable
    key: tf.Variable

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            if name in COUNTERS:
                raise not_built(name)
            raise AttributeError(f"{type(self).__name__!r} has no attribute {name!r}")

    def build(self, key: tf.Tensor | int = 0) -> None:
        """Creates the variables and optimizers; a second call changes nothing.

        Args:
          key: int32 [2], or a seed; module m is initialised with `stream(key, m)`.
        """
        if self.is_built:
            return
        tf_private.shrink_tensor_leak()
        key = seeding.as_key(key)
        with self.replicas.scope():
            for name in COUNTERS:
                setattr(self, name, make_counter(name, key if name == "key" else 0))
        try:
            for module_id in self.modules:
                self._make_state(module_id)
            with self.replicas.scope():
                self.configure_optimizers()
            registration.check_coverage(self)
        except Exception:
            # A partly built learner must not count as built.
            self.module_states, self.optimizers = {}, OptimizerRegistry()
            for name in COUNTERS:
                vars(self).pop(name, None)
            raise

    def _make_state(self, module_id: str) -> None:
        key = tf.convert_to_tensor(self.key)
        state = self.modules[module_id].init(seeding.stream(key, module_id))
        shared = {}
        for (borrower, group), (owner, lent) in self._shared.items():
            if borrower == module_id:
                check_groups({owner: (self.module_states[owner], lent), borrower: (state, group)})
                theirs = struct.paths(self.module_states[owner].params[lent], f"params/{group}")
                mine = struct.paths(state.params[group], f"params/{group}")
                check_shared(module_id, theirs, mine)
                shared.update(theirs)
        # Keras does not create models inside a strategy's scope, so only variables are created
        # there.
        with self.replicas.scope():
            self.module_states[module_id] = make_variables(state, module_id, shared)

    def configure_optimizers(self) -> None:
        """Registers the optimizers of all modules; override it for optimizers that span modules."""
        for module_id, module in self.modules.items():
            if self.rl_module_is_compatible(module):
                self.configure_optimizers_for_module(module_id)

    def configure_optimizers_for_module(self, module_id: str) -> None:
        """Registers one optimizer per update of a module; override it for other optimizers."""
        config = self.configs[module_id]
        registration.check_update_names(self, module_id, config)
        for update in self.modules[module_id].updates:
            params = group_variables(module_id, self.module_states[module_id], update.groups)
            params = [p for p in params if not self.optimizers.has(p)]
            if params:
                own = self._optimizer_fn
                if own:  # a rate that it may pass on
                    optimizer = own(config if config.lr is not None else config.replace(lr=3e-4))
                else:
                    optimizer = config.make_optimizer(update.name)
                rate = config.rate_of(update.name)
                self.register_optimizer(module_id, update.name, optimizer, params, rate)

    def register_optimizer(
        self,
        module_id: str = ALL_MODULES,
        optimizer_name: str = DEFAULT_OPTIMIZER,
        optimizer: Any = None,
        params: Iterable[tf.Variable] = (),
        lr_or_lr_schedule: Any = None,
    ) -> None:
        """Registers an optimizer for some variables.

        Args:
          module_id: The module that the variables belong to, or "__all_modules__" for variables of
            any modules.
          optimizer_name: Unique within the module.
          optimizer: One of `tfrl.learning.optimizers`, or a Keras optimizer, new or legacy.
          params: Variables without another optimizer.
          lr_or_lr_schedule: A number, points `[[0, v0], [t1, v1], ...]` or a schedule over env
            steps, or None for a Keras optimizer's own rate, else 3e-4.

        Raises:
          UserError: For a duplicate name, a parameter with another optimizer, of another learner,
            or that no update trains, a rate that `ModuleConfig` rejects, or before `build`.
        """
        self._check_built("register_optimizer")
        self._check_known("register_optimizer", module_id, ALL_MODULES)
        params = list(params)
        thing = f"register_optimizer({module_id!r}, {optimizer_name!r})"
        registration.check_mine(self, thing, module_id, params)
        registration.check_trains(self, thing, params)
        registration.check_rate(thing, lr_or_lr_schedule)
        with self.replicas.scope():
            self.optimizers.add(module_id, optimizer_name, optimizer, params, lr_or_lr_schedule)

    # Protocols that every trained module must implement: a tuple, a property or a class method, as
    # in RLlib.
    rl_module_required_apis: Any = CallableTuple()

    @property
    def required_apis(self) -> Sequence[type]:
        """The protocols of `rl_module_required_apis`, in any of its forms."""
        required = self.rl_module_required_apis
        return tuple(required() if callable(required) else required)

    def rl_module_is_compatible(self, module: object) -> bool:
        """Whether a module implements `rl_module_required_apis`.

        Modules that `policies_to_train` excludes may lack them and are still saved.
        """
        return not missing_apis(module, self.required_apis)

    def train_only(self, policies_to_train: ModulesToTrain | None) -> None:
        """Changes which modules are trained.

        Args:
          policies_to_train: Ids, or a function `(module_id, rows) -> bool`; None for all.

        Raises:
          UserError: For unknown ids.
        """
        self.policies_to_train = registration.modules_to_train(self, policies_to_train)

    # Content.

    @property
    def is_built(self) -> bool:
        """Whether the variables exist."""
        return bool(self.module_states)

    def _check_built(self, what: str) -> None:
        if not self.is_built:
            raise not_built(what)

    def _check_known(self, what: str, module_id: str, *others: str) -> None:
        if module_id not in self.modules and module_id not in others:
            raise UnknownKeyError(
                f"Learner.{what}({module_id!r})",
                expected=f"one of the modules {sorted(self.modules)}",
                got=repr(module_id),
                remedy=did_you_mean(str(module_id), self.modules),
            )

    @property
    def learner_state(self) -> LearnerState:
        """The state that training changes, tf.Variables; `struct.values` copies it to tensors."""
        self._check_built("learner_state")
        opt_state: dict[str, dict[str, Any]] = {}
        for module_id, name, entry in self.optimizer_entries():
            opt_state.setdefault(module_id, {})[name] = entry.variables()
        return LearnerState(
            agent_state=dict(self.module_states),
            opt_state=opt_state,
            counters={name: getattr(self, name) for name in COUNTERS},
        )

    @property
    def state(self) -> AgentState:
        """The variables of the only module."""
        return self.module_state(next(iter(self.modules)) if len(self.modules) == 1 else None)

    def module_state(self, module_id: str | None = None) -> AgentState:
        """Returns a module's AgentState, whose leaves are tf.Variables."""
        self._check_built("module_state")
        module_id = DEFAULT_MODULE_ID if module_id is None else module_id
        self._check_known("module_state", module_id)
        return self.module_states[module_id]

    def get_parameters(self, module_id: str = DEFAULT_MODULE_ID) -> list[tf.Variable]:
        """Returns the variables of all parameter groups of a module."""
        return tf.nest.flatten(self.module_state(module_id).params)

    def get_param_ref(self, param: tf.Variable) -> Any:
        """Returns the key of a variable in a dict of gradients."""
        return param.ref()

    def get_optimizer(
        self, module_id: str = DEFAULT_MODULE_ID, optimizer_name: str | None = None
    ) -> Any:
        """Returns a registered optimizer.

        It is a `BoundOptimizer` or a Keras optimizer, with the variables `learning_rate` and
        `iterations`.

        Args:
          module_id: The module, or "__all_modules__".
          optimizer_name: Its name within the module, or "<module_id>_<name>"; DEFAULT_OPTIMIZER is
            also a module's first one. Optional if there is only one.

        Raises:
          UserError: For an unknown optimizer; also a KeyError.
        """
        self._check_built("get_optimizer")
        if optimizer_name not in self.optimizers.full_names:
            self._check_known("get_optimizer", module_id, ALL_MODULES)
        return self.optimizers.get(module_id, optimizer_name)

    def get_optimizers_for_module(self, module_id: str = ALL_MODULES) -> list[tuple[str, Any]]:
        """Returns `[(optimizer_name, optimizer), ...]` registered under an id.

        Args:
          module_id: A module; or "__all_modules__" for optimizers registered under this id, in
            `configure_optimizers`. For all modules' optimizers use `optimizer_entries`.
        """
        self._check_built("get_optimizers_for_module")
        self._check_known("get_optimizers_for_module", module_id, ALL_MODULES)
        return [(name, e.optimizer) for name, e in self.optimizers.of_module(module_id)]

    def optimizer_entries(self) -> list[tuple[str, str, OptimizerEntry]]:
        """Returns `[(module_id, optimizer_name, entry), ...]` in the order of registration."""
        return self.optimizers.entries()

    def filter_param_dict_for_optimizer(self, param_dict: ParamDict, optimizer: Any) -> ParamDict:
        """Returns the items of a dict of gradients that belong to an optimizer's variables."""
        self._check_built("filter_param_dict_for_optimizer")
        for _, _, entry in self.optimizer_entries():
            if entry.optimizer is optimizer:
                return entry.own(param_dict)
        raise UserError(
            "filter_param_dict_for_optimizer",
            expected="a registered optimizer",
            got=repr(optimizer),
            remedy="Pass an optimizer from get_optimizer.",
        )

    def should_module_be_updated(self, module_id: str, batch: Nest = None) -> bool:
        """Whether a module is trained, by `policies_to_train` and its trainable parameters."""
        self._check_known("should_module_be_updated", module_id)
        if not self.modules[module_id].updates:
            return False
        chosen = self.policies_to_train
        if not callable(chosen):
            return chosen is None or module_id in chosen
        if not chosen(module_id, batch):
            return False
        registration.check_module(self, module_id, self.modules[module_id])
        return True

    def lenders_to(self, module_ids: Collection[str]) -> list[str]:
        """Returns the other modules that lend parameters to some of these."""
        lenders = [o for (b, _), (o, _) in self._shared.items() if b in module_ids]
        return [m for m in dict.fromkeys(lenders) if m not in module_ids]

    def parameter_counts(self, module_id: str = ALL_MODULES) -> dict[str, int]:
        """Returns the numbers of trained and of untrained parameters, see `parameters`.

        Args:
          module_id: A module, or "__all_modules__" for all, where shared ones count once.
        """
        return parameter_counts(self, self.modules if module_id == ALL_MODULES else [module_id])

    @property
    def distributed(self) -> bool:
        """Whether there are several replicas."""
        return self.replicas.several

    @property
    def device(self) -> str:
        """The device of its variables; with several replicas, of this process' first."""
        self._check_built("device")
        variable = tf.nest.flatten([s.params for s in self.module_states.values()])[0]
        return str(getattr(variable, "values", [variable])[0].device)

    @property
    def iterator(self) -> Any:
        """The last argument of `update_from_iterator`; None before."""
        return None if self._iterated is None else self._iterated[0]

    def apply(self, func: Callable[..., R], *args: Any, **kwargs: Any) -> R:
        """Returns `func(self, *args, **kwargs)`."""
        return func(self, *args, **kwargs)

    def get_checkpointable_components(self) -> list[tuple[str, dict[str, tf.Variable]]]:
        """Returns the components of a checkpoint that consist of variables.

        Returns:
          `[(name, {path: variable}), ...]`: "rl_module/<module_id>" and
          "optimizer/<module_id>/<optimizer_name>".
        """
        self._check_built("get_checkpointable_components")
        modules = [(f"rl_module/{m}", struct.paths(s)) for m, s in self.module_states.items()]
        entries = self.optimizer_entries()
        return modules + [(f"optimizer/{m}/{name}", e.variables()) for m, name, e in entries]

    # Hooks of one gradient step, for subclasses; traced, with values on every replica.

    @property
    def _computes_losses(self) -> bool:
        """Whether a subclass computes losses itself, so that modules need no loss."""
        mine = type(self)
        return (
            mine.compute_losses is not Learner.compute_losses
            or mine.compute_loss_for_module is not Learner.compute_loss_for_module
        )

    def compute_losses(
        self,
        *,
        updates: Mapping[str, Update],
        states: Mapping[str, AgentState],
        batch: Mapping[str, Nest],
        keys: Mapping[str, tf.Tensor],
    ) -> dict[str, Any]:
        """Returns the losses to differentiate together; override it for a joint loss.

        Args:
          updates: `{module_id: Update}` of this position in the modules' lists.
          states: `{module_id: AgentState}`, values.
          batch: `{module_id: rows}` of this replica.
          keys: `{module_id: int32 [2]}`.

        Returns:
          `{module_id: loss}` or `{module_id: (loss, {name: scalar})}`. Their sum is differentiated.
          Every loss is a mean over valid rows.
        """
        losses: dict[str, Any] = {}
        for module_id, update in updates.items():
            module = self.modules[module_id]
            args = (states[module_id].params, states[module_id], batch[module_id], keys[module_id])
            if isinstance(module, SelfSupervisedLossAPI):
                losses[module_id] = module.compute_self_supervised_loss(*args)
            else:
                losses[module_id] = self.compute_loss_for_module(module_id, update, *args)
        return losses

    def compute_loss_for_module(
        self, module_id: str, update: Update, params: Nest, state: AgentState, batch: Nest, key: Any
    ) -> Any:
        """Returns the loss, or (loss, metrics), of one update of a module.

        Args:
          module_id: The module.
          update: The update.
          params: `{group: nest}`, values with gradients.
          state: The module's whole state, values.
          batch: Rows `[n, ...]`.
          key: int32 [2].
        """
        return update.loss(params, state, batch, key)

    def compute_gradients(
        self,
        loss_per_module: Mapping[str, tf.Tensor],
        gradient_tape: tf.GradientTape,
        params: ParamDict,
    ) -> ParamDict:
        """Returns the gradients of the sum of the losses, with the keys of `params`.

        Args:
          loss_per_module: `{module_id: scalar}`, and their sum under "__all_modules__". The sum of
            the modules' entries is differentiated, or the total if it is the only entry. With
            several replicas each loss is weighted by its share of the valid rows.
          gradient_tape: The tape that watched `params`.
          params: `{param ref: value}`.
        """
        losses = [x for m, x in loss_per_module.items() if m != ALL_MODULES]
        losses = losses or [loss_per_module[ALL_MODULES]]
        total = losses[0] if len(losses) == 1 else tf.add_n(losses)
        gradients = gradient_tape.gradient(
            total, list(params.values()), unconnected_gradients=tf.UnconnectedGradients.ZERO
        )
        return {ref: tf.convert_to_tensor(g) for ref, g in zip(params, gradients, strict=True)}

    def postprocess_gradients(self, gradients_dict: ParamDict) -> ParamDict:
        """Returns the gradients to apply, from their sum over the replicas.

        By default calls `postprocess_gradients_for_module` for each module; for optimizers that
        span modules with the id "__all_modules__".
        """
        processed = dict(gradients_dict)
        entries = self.optimizer_entries()
        for owner in dict.fromkeys(owner for owner, _, _ in entries):
            own: ParamDict = {}
            for entry in (e for o, _, e in entries if o == owner):
                own.update(entry.own(gradients_dict))
            if own:
                config = registration.settings_of(self, owner)
                processed.update(self.postprocess_gradients_for_module(owner, config, own))
        return processed

    def postprocess_gradients_for_module(
        self, module_id: str, config: ModuleConfig, gradients_dict: ParamDict
    ) -> ParamDict:
        """Returns a module's gradients, by default clipped per optimizer."""
        processed, clip = dict(gradients_dict), self.clip_function()
        for _, entry in self.optimizers.of_module(module_id):
            own = self.filter_param_dict_for_optimizer(gradients_dict, entry.optimizer)
            if own:
                clip(own, grad_clip=config.grad_clip, grad_clip_by=config.grad_clip_by)
                processed.update(own)
        return processed

    def clip_function(self) -> Callable[..., Any]:
        """Returns the clip function; override it, or RLlib's `_get_clip_function`.

        Returns:
          A function `(gradients_dict, *, grad_clip, grad_clip_by)` that clips the dict
          `{param ref: gradient}` of one optimizer in place, and returns the global norm before
          clipping.
        """
        return self._get_clip_function()

    def _get_clip_function(self) -> Callable[..., Any]:
        return clip_gradients_dict

    def global_norm_function(self) -> Callable[[list[tf.Tensor]], tf.Tensor]:
        """Returns the norm function; override it, or RLlib's `_get_global_norm_function`.

        Returns:
          A function from the gradients of one optimizer, a list, to a float32 scalar: the metric
          `grad_norm`. A step with a non-finite norm is skipped, see `check_numerics`.
        """
        return self._get_global_norm_function()

    def _get_global_norm_function(self) -> Callable[[list[tf.Tensor]], tf.Tensor]:
        return tf.linalg.global_norm

    def apply_gradients(self, gradients_dict: ParamDict) -> None:
        """Applies gradients `{param ref: gradient}` with the optimizers of their variables.

        Called once for all modules that take a step. If some modules' steps are skipped (non-finite
        or stopped), it is called separately for each of the others; the trace has both branches.
        """
        for _, _, entry in self.optimizer_entries():
            if own := entry.own(gradients_dict):
                entry.apply(list(own.values()), [p for p in entry.params if p.ref() in own])

    def count_valid_rows(self, module_id: str, batch: Nest) -> tf.Tensor:
        """Returns the number of valid rows of a replica's minibatch; a float32 scalar.

        A replica's loss is weighted by its share, so that the sum over replicas is the mean over
        all valid rows. Override it for a loss that is not a mean over rows.
        """
        return batches_lib.valid_rows(batch)

    # Hooks around an update; Python code that runs every time.

    def on_update_begin(self, *, timesteps: int) -> None:
        """Called at the start of every `update_from_...`; a hook for subclasses.

        Runs as Python outside compiled code, and may log to `self.metrics`.

        Args:
          timesteps: Env steps so far.
        """

    def on_update_end(self, *, timesteps: int, results: Results) -> None:
        """Called at the end of every `update_from_...`; a hook for subclasses.

        Args:
          timesteps: Env steps so far.
          results: The update's results, which may be changed; includes values logged here.
        """

    # Hooks around the gradient steps of an update; traced, outside the replicas.

    def before_gradient_based_update(self, *, timesteps: tf.Tensor) -> None:
        """Traced once before the gradient steps of an update; a hook for subclasses.

        Args:
          timesteps: int64 scalar, env steps so far; `self.learner_steps` counts gradient steps.
        """

    def after_gradient_based_update(self, *, timesteps: tf.Tensor) -> None:
        """Traced once after the gradient steps of an update; a hook for subclasses.

        Args:
          timesteps: int64 scalar, env steps so far; `self.learner_steps` counts gradient steps.
        """

    def before_gradient_based_update_for_module(self, module_id: str, timesteps: tf.Tensor) -> None:
        """Traced before the gradient steps: learning rates, and the module's `before_update`.

        Args:
          module_id: The module.
          timesteps: int64 scalar, env steps so far.
        """
        state_changes.before_update(self, self.learner_state, module_id, timesteps)

    def after_gradient_based_update_for_module(self, module_id: str, timesteps: tf.Tensor) -> None:
        """Traced after the gradient steps: the module's `after_update`, e.g. target networks."""
        state_changes.after_update(self, self.learner_state, module_id, timesteps)

    def follow_schedules(
        self, state: LearnerState, module_id: str, timesteps: tf.Tensor
    ) -> LearnerState:
        """Returns the state after the module's `before_update`, for acting; traced.

        For calls without an update. Variables change in place.
        """
        hook = self.modules[module_id].before_update
        return state_changes.changed(self, state, module_id, hook, timesteps)

    def assign(self, module_id: str, before: AgentState, after: AgentState) -> None:
        """Assigns the leaves of `after` that differ from `before` to the variables."""
        for variable, _, new in state_changes.differences(self, module_id, before, after):
            variable.assign(new)

    # Updates.

    @tf.autograph.experimental.do_not_convert
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
        remainder: Remainder | None = None,
        num_total_minibatches: int | None = None,
        jit: bool = False,
    ) -> tuple[LearnerState, Results]:
        """Trains on a batch, over epochs and minibatches; by default one step.

        Pure if the leaves of the state are tensors; variables, of this learner or of another of
        equal structure, are changed in place. The hooks around the gradient steps run.

        Args:
          state: A state like `learner_state`.
          batch: `{module_id: rows}`, or the rows of the only module: nests whose leaves have the
            same static number of rows. With several replicas, each has its own rows.
          key: int32 [2].
          timesteps: int64 scalar, env steps so far, for schedules.
          num_epochs: Passes over the batch.
          minibatch_size: Rows of a gradient step over all replicas, one number or by module; None
            for all rows.
          shuffle: A fresh permutation in every epoch.
          remainder: See `MinibatchPlan`; None for that of the learner.
          num_total_minibatches: Gradient steps to take, instead of those of the epochs; None or 0
            for these.
          jit: Whether XLA compiles only losses and gradients, for calls from a graph.

        Returns:
          The state, and `{module_id: {name: scalar}}`: means over the minibatches of the losses'
          metrics, `loss`, `grad_norm`, `learning_rate`, `gradient_steps` (minibatches taken),
          `skipped_steps` (skipped because of non-finite values) and `nonfinite/<term>` counts.

        Raises:
          UserError: For a state of tensors if the update is not pure: with Keras optimizers, a
            module that trains itself, or a subclass that overrides hooks which change variables.
            For a state of both tensors and variables.
        """
        self._check_built("fit")
        batches = planning.batches_to_train(self, batch)
        timesteps = tf.cast(timesteps, tf.int64)
        if not batches:
            return state.with_counter("env_steps", timesteps), {}
        if not self.replicas.several:
            batches = batches_lib.as_tensors(batches)
        learner = self.for_state(state)
        plan = planning.plan_of_replica(
            self,
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
            return planning.indices_of(plan, key)

        # The losses must not share keys with the permutations.
        indices = self.replicas.run(own_indices, seeding.stream(key, "minibatches"))
        return train(
            learner, state, batches, planning.as_minibatches(plan, indices), key, timesteps, jit=jit
        )

    def for_state(self, state: LearnerState) -> Self:
        """Returns this learner, over the variables of a state if it has others.

        Raises:
          UserError: For a state of tensors if a train step would change variables, and for a state
            of both.
        """
        variables = [isinstance(x, tf.Variable) for x in tf.nest.flatten(state)]
        if not any(variables):
            self.check_pure()
            return self
        if not all(variables):
            raise UserError(
                "a learner's state",
                expected="tensors or tf.Variables",
                got=f"{sum(variables)} variables and {variables.count(False)} tensors",
                remedy="Pass learner.learner_state, or a copy of it by tfrl.struct.values.",
            )
        return self if state.counters["learner_steps"] is self.learner_steps else self.over(state)

    def replaced_in_place(self) -> list[str]:
        """The names of overridden hooks that change variables."""
        mine = type(self)
        return [n for n in _IN_PLACE if getattr(mine, n) is not getattr(Learner, n)]

    def check_pure(self) -> None:
        """Raises an error if a train step on a state of tensors would change variables."""
        changed = self.replaced_in_place()
        changed += [f"module {m!r}" for m, x in self.modules.items() if only_external_updates(x)]
        if changed:
            raise UserError(
                "a train step of a state of tensors",
                expected="a functional update",
                got=f"{', '.join(changed)}, which change{'s' * (len(changed) == 1)} variables",
                remedy="Pass learner.learner_state, whose leaves are variables.",
            )

    @tf.autograph.experimental.do_not_convert
    def update(
        self,
        batch: Nest,
        *,
        key: tf.Tensor,
        timesteps: tf.Tensor,
        num_epochs: int = 1,
        minibatch_size: MinibatchSize = None,
        shuffle: bool = True,
        remainder: Remainder | None = None,
        num_total_minibatches: int | None = None,
        jit: bool = False,
    ) -> Results:
        """Trains this learner's variables on a batch, inside compiled code; see `fit`."""
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

    def update_from_batch(
        self,
        batch: Nest,
        num_epochs: int = 1,
        minibatch_size: MinibatchSize = None,
        shuffle: bool = True,
        remainder: Remainder | None = None,
        num_total_minibatches: int | None = None,
        timesteps: int | Mapping[str, int] | None = None,
        *,
        key: tf.Tensor | None = None,
        compile: CompileMode = "graph",
        shuffle_batch_per_epoch: bool | None = None,
    ) -> Results:
        """Trains on a batch in one compiled call.

        In one process, each minibatch is divided among the replicas; with several processes, each
        passes its own rows, and the update uses all of them.

        Args:
          batch: `{module_id: rows}`, or the rows of the only module: nests of arrays with the same
            leading axis. A bool leaf `mask` marks the valid rows.
          num_epochs: Passes over the batch.
          minibatch_size: Rows of a gradient step over all replicas and processes, for all modules
            or `{module_id: rows}`; None for `ModuleConfig.minibatch_size`, or else all rows.
          shuffle: A fresh permutation in every epoch.
          remainder: See `MinibatchPlan`; None for that of the learner. A module with fewer rows
            than another repeats them.
          num_total_minibatches: Gradient steps to take, instead of those of the epochs; None or 0
            for these.
          timesteps: Env steps so far, which drive the schedules, as a number or
            `{"env_steps": n}` or `{"num_env_steps_sampled_lifetime": n}`; None for the last value.
          key: int32 [2], or a seed; by default derived from the learner's key and the gradient
            steps so far.
          compile: "graph", "xla" or "eager". With several replicas "xla" compiles only losses and
            gradients.
          shuffle_batch_per_epoch: RLlib's name of `shuffle`.

        Returns:
          `{module_id: {name: float}}` as `update`, with parameter counts, and
          `{"__all_modules__": {...}}`, without untrained modules.

        Raises:
          UserError: For unknown modules, no rows, sizes that do not divide the rows, or with
            `check_numerics="raise"` a non-finite loss.
        """
        self._check_built("update_from_batch")
        steps = planning.env_steps_of(self, timesteps)
        self.on_update_begin(timesteps=int(steps))
        results = self._update_from_batch(
            batch,
            steps,
            key,
            compile,
            minibatch_size,
            num_epochs=num_epochs,
            shuffle=shuffle,
            shuffle_batch_per_epoch=shuffle_batch_per_epoch,
            remainder=remainder,
            num_total_minibatches=num_total_minibatches,
        )
        return self._ended(steps, results)

    def _ended(self, steps: tf.Tensor, results: Results) -> Results:
        """Results after the hook at the end of an update, with its logged values."""
        self.on_update_end(timesteps=int(steps), results=results)
        put_logged(results, self.metrics.logged())
        return results

    def _update_from_batch(
        self,
        batch: Nest,
        steps: tf.Tensor,
        key: tf.Tensor | None,
        compile: CompileMode,
        minibatch_size: MinibatchSize,
        *,
        call_hooks: bool = True,
        **options: Any,
    ) -> Results:
        batches = batches_lib.as_tensors(planning.batches_to_train(self, batch))
        plan = planning.plan_of_process(self, batches, minibatch_size, **options)
        if plan is None:
            return self._nothing(steps)
        has_key = key is not None
        given_key = seeding.as_key(key) if has_key else tf.constant([0, 0])

        def run(batches: dict[str, Nest], key: tf.Tensor, timesteps: tf.Tensor) -> Results:
            key = key if has_key else self._default_key()  # eagerly it takes a millisecond
            indices = planning.shared_out(
                self, planning.indices_of(plan, seeding.stream(key, "minibatches"))
            )
            jit = compile == "xla" and self.replicas.several
            minibatches = planning.as_minibatches(plan, indices, self.replicas.num_local)
            state = self.learner_state
            return train(
                self, state, batches, minibatches, key, timesteps, jit=jit, call_hooks=call_hooks
            )[1]

        fn = self._compiled_as(compile, ("batch", plan, has_key, call_hooks), run)
        return self._call(plan, fn, batches, given_key, steps)

    def update_from_episodes(
        self,
        episodes: Sequence[Any],
        *,
        timesteps: int | Mapping[str, int] | None = None,
        num_epochs: int = 1,
        minibatch_size: MinibatchSize = None,
        shuffle: bool = True,
        remainder: Remainder = "wrap",
        num_total_minibatches: int | None = None,
        key: tf.Tensor | None = None,
        compile: CompileMode = "graph",
        shuffle_batch_per_epoch: bool | None = None,
    ) -> Results:
        """Trains on episodes, through the learner connector pipeline.

        The number of steps changes between calls, hence the different default of `remainder`.

        Args:
          episodes: `SingleAgentEpisode`s or `MultiAgentEpisode`s, or one episode; at least one
            step.
          timesteps: See `update_from_batch`, as all that follow.
          num_epochs: Passes over the steps.
          minibatch_size: Steps (or sequences) of a gradient step.
          shuffle: A fresh permutation in every epoch.
          remainder: Treatment of steps that do not fill a minibatch.
          num_total_minibatches: Gradient steps to take.
          key: See `update_from_batch`.
          compile: "graph", "xla" or "eager".
          shuffle_batch_per_epoch: RLlib's name of `shuffle`.

        Raises:
          UserError: As `update_from_batch`; for an empty list.
        """
        self._check_built("update_from_episodes")
        steps = planning.env_steps_of(self, timesteps)
        self.on_update_begin(timesteps=int(steps))
        batches, shared_data = batches_of(self, episodes)
        results = self._update_from_changing_batch(
            batches,
            steps,
            num_epochs=num_epochs,
            minibatch_size=minibatch_size,
            shuffle=shuffle,
            shuffle_batch_per_epoch=shuffle_batch_per_epoch,
            remainder=remainder,
            num_total_minibatches=num_total_minibatches,
            key=key,
            compile=compile,
        )
        module_episodes = shared_data.get("module_episodes", {})
        observe_episodes(self, {m: own for m, own in module_episodes.items() if m in results})
        for module_id, metrics in shared_data.get("metrics", {}).items():
            if module_id in results:
                row = {name: float(value) for name, value in metrics.items()}
                results[module_id].update(row)
                self.metrics.log_dict(row, module_id)
        self.metrics.recent.clear()
        return self._ended(steps, results)

    def _update_from_changing_batch(
        self,
        batches: dict[str, Nest],
        steps: tf.Tensor,
        *,
        key: tf.Tensor | None,
        compile: CompileMode,
        minibatch_size: MinibatchSize,
        **options: Any,
    ) -> Results:
        """`update_from_batch` for changing numbers of rows, without retracing."""
        batches = (
            batches_lib.as_tensors(planning.batches_to_train(self, batches)) if batches else {}
        )
        plan = planning.plan_of_process(self, batches, minibatch_size, **options)
        if plan is None:
            return self._nothing(steps)
        key = self._default_key() if key is None else seeding.as_key(key)
        # A trace depends on the number of rows only for indices computed inside it.
        indices = planning.indices_of(plan, seeding.stream(key, "minibatches"))
        padded = {m: p.padded for m, p in plan.modules.items()}

        def run(
            batches: dict[str, Nest],
            indices: dict[str, tf.Tensor],
            key: tf.Tensor,
            timesteps: tf.Tensor,
        ) -> Results:
            minibatches = MinibatchIndices(
                indices=planning.shared_out(self, indices),
                steps=tf.shape(next(iter(indices.values())))[0],
                padded=padded,
                full_batch=dict.fromkeys(batches, False),
            )
            jit = compile == "xla" and self.replicas.several
            state = self.learner_state
            return train(self, state, batches, minibatches, key, timesteps, jit=jit)[1]

        name = "changing", tuple(padded.items())
        fn = self._compiled_as(compile, name, run, self._specs_of_any_rows)
        return self._call(plan, fn, batches, indices, key, steps)

    def update_from_iterator(
        self,
        iterator: Iterable[Nest] | Iterator[Nest],
        num_iters: int | None = None,
        *,
        timesteps: int | Mapping[str, int] | None = None,
        minibatch_size: MinibatchSize = None,
        num_epochs: int = 1,
        shuffle: bool = True,
        remainder: Remainder | None = None,
        num_total_minibatches: int | None = None,
        key: tf.Tensor | None = None,
        compile: CompileMode = "graph",
        shuffle_batch_per_epoch: bool | None = None,
    ) -> Results:
        """Trains on the batches of an iterator, as one update.

        The hooks around the gradient steps run once, before the first batch and after the last.

        Args:
          iterator: Yields batches for `update_from_batch`: an iterator, or a reiterable such as a
            list or a tf.data.Dataset.
          num_iters: Number of batches; None for all. A reiterable restarts at its end, and the next
            call with the same object continues where this one stopped.
          timesteps: See `update_from_batch`, as all that follow.
          minibatch_size: Rows of a gradient step.
          num_epochs: Passes over each batch.
          shuffle: A fresh permutation of each batch in every epoch.
          remainder: Treatment of rows that do not fill a minibatch.
          num_total_minibatches: Gradient steps to take on each batch.
          key: See `update_from_batch`; that of the first batch, from which the others follow.
          compile: "graph", "xla" or "eager".
          shuffle_batch_per_epoch: RLlib's name of `shuffle`.

        Returns:
          The means of the batches' results; "__all_modules__" also has their number,
          `dataset_num_iters_trained`.

        Raises:
          UserError: For an iterator without a batch, or one that ends before `num_iters`, after
            training on its batches.
        """
        self._check_built("update_from_iterator")
        steps = planning.env_steps_of(self, timesteps)
        options: dict[str, Any] = {
            "num_epochs": num_epochs,
            "shuffle": shuffle,
            "shuffle_batch_per_epoch": shuffle_batch_per_epoch,
            "remainder": remainder,
            "num_total_minibatches": num_total_minibatches,
        }
        checks.at_least("num_iters", num_iters, 1, optional=True)
        batches = self._batches_from(iterator, num_iters)
        self.on_update_begin(timesteps=int(steps))
        results: list[Results] = []
        begun: list[str] = []
        try:
            for number, batch in enumerate(batches):
                new = [m for m in planning.batches_to_train(self, batch) if m not in begun]
                if new:
                    start = functools.partial(
                        begin_update, self, self.learner_state, new, first=not begun
                    )
                    self._call_hooks(compile, ("begin", tuple(new), not begun), start, steps)
                    begun += new
                batch_key = key
                if key is not None and number:
                    batch_key = seeding.fold_in(seeding.as_key(key), number)
                results.append(
                    self._update_from_batch(
                        batch,
                        steps,
                        batch_key,
                        compile,
                        minibatch_size,
                        call_hooks=False,
                        **options,
                    )
                )
        finally:
            means = mean_of(results)
            if begun:
                metrics = {
                    m: {
                        n: tf.constant(x, tf.float32)
                        for n, x in means[m].items()
                        if isinstance(x, float)
                    }
                    for m in begun
                    if m in means
                }
                end = functools.partial(end_update, self, self.learner_state)
                self._call_hooks(compile, ("end", tuple(metrics)), end, metrics, steps)
        means[ALL_MODULES].update(
            env_steps=int(self.env_steps.numpy()), weights_seq_no=int(self.weights_seq_no.numpy())
        )
        for m in begun:
            means[m]["weights_seq_no"] = int(self.weights_seq_no.numpy())
        count_batches(self, means, len(results))
        return self._ended(steps, means)

    def _batches_from(self, iterable: Any, num_iters: int | None) -> Iterator[Nest]:
        """Yields `num_iters` batches of an iterable, restarting it if possible."""
        kept, live = self._iterated or (None, iter(()))
        if kept is not iterable or num_iters is None:
            checks.instance(
                "what to take batches from", iterable, Iterable, "an iterable of batches"
            )
            live = iter(iterable)
        self._iterated = (iterable, live)
        return self._live_batches(iterable, live, num_iters)

    def _live_batches(
        self, iterable: Any, live: Iterator[Nest], num_iters: int | None
    ) -> Iterator[Nest]:
        end, taken, since = object(), 0, 0
        while num_iters is None or taken < num_iters:
            batch = next(live, end)
            if batch is not end:
                taken, since = taken + 1, since + 1
                yield batch
                continue
            if num_iters is None and taken:
                return
            again = iter(iterable)
            if num_iters is None or again is live or (taken and not since):
                raise UserError(
                    "the iterator of update_from_iterator",
                    expected=f"{num_iters or 'some'} batches",
                    got=f"{taken} before its end",
                    remedy="Repeat the iterator or lower num_iters; the learner was trained on "
                    "the batches so far.",
                )
            live, since = again, 0
            self._iterated = (iterable, live)

    def _call_hooks(
        self, compile: CompileMode, name: Any, hooks: Callable[..., Any], *args: Any
    ) -> None:
        """Calls hooks in a separate compiled call, and logs their values."""

        def run(*args: Any) -> Results:
            results: Results = {}
            with self.metrics.tracing() as logged:
                hooks(*args)
            if logged:
                traced_metrics.add_logged(self, results, logged)
            return results

        rows = self._compiled_as(compile, name, run)(*args) or {}
        traced_metrics.log(
            self, {m: {k: float(v) for k, v in row.items()} for m, row in rows.items()}
        )

    # Compiled updates.

    def _specs_of_any_rows(
        self, batches: Nest, indices: dict[str, tf.Tensor], *others: tf.Tensor
    ) -> tuple[Any, ...]:
        """Returns the arguments of an update, as specs of batches of any number of rows."""
        # Without a minibatch size the indices have as many columns as the batch has rows. Replicas
        # divide the columns, so their number is known there.
        rows, several = tf.nest.map_structure(_any_rows, batches), self.replicas.several
        return (
            rows,
            {
                m: tf.TensorSpec([None, x.shape[1] if several else None], x.dtype)
                for m, x in indices.items()
            },
            *others,
        )

    def _compiled_as(
        self,
        compile: str,
        name: Any,
        run: Callable[..., Any],
        specs_for: Callable[..., tuple[Any, ...]] = lambda *args: args,
    ) -> Any:
        """Returns `run` in a compile mode; calls with equal `specs_for(*args)` share a trace."""
        if compile not in ("xla", "graph", "eager"):
            raise UserError(
                "compile",
                expected="xla, graph or eager",
                got=repr(compile),
                remedy="Use 'graph' for updates that XLA does not compile.",
            )
        if compile == "eager" or tf.config.functions_run_eagerly():
            return run
        # Under several replicas only losses and gradients are XLA's.
        jit = compile == "xla" and not self.replicas.several

        def make() -> Any:
            traced = run if jit else never_in_xla(run)
            return tf.function(counted_separately(traced), jit_compile=jit, autograph=False)

        def call(*args: Any) -> Any:
            specs = specs_for(*args)
            key = (compile, *name, specs_of(specs))
            if key not in self._compiled:
                variables = self.variables()
                self._compiled[key] = self.traces.bound(key, make, specs, variables)
            return self._compiled[key](*args)

        return call

    @property
    def trace_count(self) -> int:
        """The number of traces of its updates since modules were last added or removed."""
        return len(self._compiled)

    def _default_key(self) -> tf.Tensor:
        # Module ids have no slash, so no state uses this stream.
        key = seeding.stream(tf.convert_to_tensor(self.key), "learner/updates")
        return seeding.fold_in(key, tf.convert_to_tensor(self.learner_steps))

    def _nothing(self, timesteps: tf.Tensor) -> Results:
        """The results of an update that trains no module."""
        self.env_steps.assign(timesteps)
        return report(self, {})

    def _call(self, plan: Any, fn: Callable[..., Results], *args: Any) -> Results:
        before = int(self.skipped_steps.numpy())
        results = fn(*args)
        skipped = int(self.skipped_steps.numpy()) - before
        return report(self, results, skipped, planning.rows_of_step(self, plan))

    def logic(self) -> Any:
        """Returns a key that is equal for learners with equal update functions."""
        own = {**class_settings(type(self)), **vars(self)}
        own = {name: x for name, x in own.items() if name not in _STATE}
        entries = [
            (m, name, entry, [p.name for p in entry.params])
            for m, name, entry in self.optimizer_entries()
        ]
        devices = sorted({v.device for v in tf.nest.flatten(list(self.module_states.values()))})
        # Its variables may be of another type, even with one replica.
        return own, entries, devices, type(self.replicas.strategy)

    @property
    def traces(self) -> Traces:
        """The traces of this learner's logic; with several replicas only its own."""
        if self._traces is None:
            # With several replicas the variables stay those of the first call.
            self._traces = Traces() if self.replicas.several else traces_of(logic_key(self))
        return self._traces

    # Adding and removing modules between updates.

    def add_module(
        self,
        module_id: str,
        module: Any,
        *,
        config_overrides: ModuleConfig | Mapping[str, Any] | None = None,
        policies_to_train: ModulesToTrain | None = None,
        state: Mapping[str, Any] | None = None,
    ) -> LearnerModule:
        """Adds a module between two updates; the others do not change.

        Args:
          module_id: A new id.
          module: As in the constructor.
          config_overrides: Non-default fields of `ModuleConfig`, or a whole `ModuleConfig`.
          policies_to_train: Takes the place of the learner's, if not None.
          state: The module's part of `get_state()["rl_module"]`, `{path: array}`; None for a fresh
            one.

        Returns:
          The module in the learner's form.

        Raises:
          UserError: For a duplicate or invalid id, a module with missing methods, or a state that
            does not fit; nothing changes then.
        """
        self._check_new("add_module", module_id)
        if state is not None:
            self._check_built("add_module")
        module = as_module(module, module_id, loss_by_learner=self._computes_losses)
        default = registration.default_config(self)
        config = default.with_overrides(config_overrides or {})

        def fill() -> None:
            if state is not None:
                learner_state.set_state(self, {"rl_module": {module_id: state}})

        self._add(module_id, module, config, policies_to_train, fill)
        return module

    def _add(
        self,
        module_id: str,
        module: LearnerModule,
        config: ModuleConfig,
        policies_to_train: ModulesToTrain | None,
        fill: Callable[[], None],
    ) -> None:
        """Adds a module and fills its variables, or changes nothing."""
        before = (self.modules, self.configs, self.module_states, self.policies_to_train)
        kept = self.optimizers
        self.optimizers = kept.view()
        self.modules = {**self.modules, module_id: module}
        self.configs = {**self.configs, module_id: config}
        self.module_states = dict(self.module_states)
        try:
            chosen = self.policies_to_train if policies_to_train is None else policies_to_train
            self.policies_to_train = registration.modules_to_train(self, chosen)
            if self.is_built:
                self._make_state(module_id)
                with self.replicas.scope():
                    if self.rl_module_is_compatible(module):
                        self.configure_optimizers_for_module(module_id)
                registration.check_coverage(self)
                fill()
        except Exception:
            self.modules, self.configs, self.module_states, self.policies_to_train = before
            self.optimizers = kept
            raise
        if self.is_built:
            self._added = (*self._added, module_id)
        self._structure_changed()

    def _check_new(self, what: str, module_id: str) -> None:
        check_module_id(module_id)
        if module_id in self.modules:
            raise UserError(
                f"Learner.{what}({module_id!r})",
                expected="an unused module id",
                got=f"one of {sorted(self.modules)}",
                remedy="Choose another id, or remove the module first.",
            )

    def copy_module(
        self,
        source: str,
        module_id: str,
        *,
        policies_to_train: ModulesToTrain | None = None,
    ) -> None:
        """Adds a copy of a module with its parameters and its optimizers' state (league play).

        Args:
          source: The module to copy.
          module_id: The id of the copy.
          policies_to_train: As in `add_module`.

        Raises:
          UserError: For an unknown source, a duplicate or invalid id, or if the copy gets different
            optimizers; nothing changes then.
        """
        self._check_built("copy_module")
        self._check_known("copy_module", source)
        self._check_new("copy_module", module_id)
        self._add(
            module_id,
            self.modules[source],
            self.configs[source],
            policies_to_train,
            lambda: learner_state.copy_values(self, source, module_id),
        )

    def remove_module(
        self, module_id: str, *, policies_to_train: ModulesToTrain | None = None
    ) -> Any:
        """Removes a module with its optimizers and metrics; the others do not change.

        Args:
          module_id: The module.
          policies_to_train: Replaces the learner's, if not None; a collection loses the module.

        Returns:
          The module.

        Raises:
          UserError: For an unknown id, or the only module.
        """
        self._check_known("remove_module", module_id)
        if len(self.modules) == 1:
            raise UserError(
                f"Learner.remove_module({module_id!r})",
                expected="a learner that keeps at least one module",
                got="its only module",
                remedy="Add another module first.",
            )
        if policies_to_train is not None:
            policies_to_train = registration.modules_to_train(
                self, policies_to_train, set(self.modules) - {module_id}
            )
        borrowers = [b for (b, _), (owner, _) in self._shared.items() if owner == module_id]
        if borrowers:
            raise UserError(
                f"Learner.remove_module({module_id!r})",
                expected="a module whose parameters no other module shares",
                got=f"a module that lends to {sorted(borrowers)}",
                remedy="Remove the borrowing modules first.",
            )
        removed = self.modules[module_id]
        self.modules = {m: x for m, x in self.modules.items() if m != module_id}
        self.configs = {m: c for m, c in self.configs.items() if m != module_id}
        own = own_variables(self, module_id)
        self.module_states.pop(module_id, None)
        self._added = tuple(m for m in self._added if m != module_id)
        self._shared = {k: v for k, v in self._shared.items() if k[0] != module_id}
        self.optimizers.remove_module(module_id, own)
        self.metrics.remove(module_id)
        chosen = self.policies_to_train
        if policies_to_train is not None:
            self.policies_to_train = policies_to_train
        elif chosen is not None and not callable(chosen):
            self.policies_to_train = [m for m in chosen if m != module_id]
        self._structure_changed()
        return removed

    def _structure_changed(self) -> None:
        self.structure_version += 1
        self._compiled, self._traces = {}, None

    # State and checkpoints.

    def variables(self) -> dict[str, tf.Variable]:
        """Returns every variable by path: module states, optimizers, counters."""
        self._check_built("variables")
        variables: dict[str, tf.Variable] = {}
        for module_id, state in self.module_states.items():
            for path, v in struct.paths(state).items():
                variables[f"modules/{module_id}/{path}"] = v
        variables.update({f"optimizers/{p}": v for p, v in self.optimizers.variables().items()})
        for name in COUNTERS:
            variables[f"counters/{name}"] = getattr(self, name)
        return variables

    def assign_variables(self, values: Mapping[str, Any]) -> None:
        """Assigns `{path: value}` to all of `variables()`.

        Raises:
          UserError: Lists every missing, extra or mis-shaped variable.
        """
        learner_state.assign_all("Learner.assign_variables", self.variables(), values)

    def get_state(
        self,
        components: Collection[str] | str | None = None,
        *,
        not_components: Collection[str] | str | None = None,
    ) -> dict[str, Any]:
        """Returns a copy of the learner's state.

        Args:
          components: Components to return: `rl_module`, `optimizer`, `counters`, `metrics`,
            `should_module_be_updated`, or down to `rl_module/<module_id>` and
            `optimizer/<module_id>/<optimizer_name>`; None for all.
          not_components: Components to omit.

        Returns:
          `{"rl_module": {module_id: {path: array}}, "optimizer": {module_id: {optimizer_name:
          {path: array}}}, "counters": {...}, "metrics": {...}, "should_module_be_updated": [id] or
          None for all, "weights_seq_no": int}`. The last item is always present unless in
          `not_components`. A function `policies_to_train` cannot be saved; then
          `should_module_be_updated` is missing.

        Raises:
          UserError: For an unknown component.
        """
        self._check_built("get_state")
        return learner_state.get_state(self, components, not_components)

    def set_state(self, state: Mapping[str, Any], *, only_newer_weights: bool = False) -> None:
        """Loads a state or a part of it.

        Args:
          state: The result of `get_state`, or a part of it. Without `should_module_be_updated` this
            learner keeps its `policies_to_train`.
          only_newer_weights: Whether to load `rl_module` only if its `weights_seq_no` is above this
            learner's, 0 or missing.

        Raises:
          UserError: Lists every unknown, missing or mis-shaped part; nothing is loaded then.
        """
        self._check_built("set_state")
        learner_state.set_state(self, state, only_newer_weights=only_newer_weights)

    def load_if_newer(self, state: Mapping[str, Any]) -> bool:
        """Loads a state only if its `weights_seq_no` is above this learner's, for collectors.

        Args:
          state: The result of `get_state`.

        Returns:
          Whether it was loaded.
        """
        self._check_built("load_if_newer")
        if "weights_seq_no" not in state:
            raise UserError(
                "Learner.load_if_newer",
                expected="a state with weights_seq_no",
                got=f"a state of {sorted(state)}",
                remedy="Get it with get_state('rl_module'), or load it with set_state.",
            )
        if int(state["weights_seq_no"]) <= int(self.weights_seq_no.numpy()):
            return False
        learner_state.set_state(self, state)
        return True

    def save_to_path(self, path: Any) -> Any:
        """Saves the state into a folder, atomically; see `learners.checkpointing`."""
        from tfrl.learners import checkpointing

        self._check_built("save_to_path")
        checks.path("path of save_to_path", path)
        return checkpointing.save_to_path(self, path)

    def restore_from_path(self, path: Any, component: str | None = None) -> None:
        """Restores a result of `save_to_path`, or one component such as `rl_module/policy_a`."""
        from tfrl.learners import checkpointing

        self._check_built("restore_from_path")
        checks.path("path of restore_from_path", path)
        checkpointing.restore_from_path(self, path, component)

    @classmethod
    def from_checkpoint(cls, path: Any, modules: Any = None, **kwargs: Any) -> Self:
        """Makes a built learner from a result of `save_to_path`.

        Args:
          path: The folder.
          modules: Modules that JSON cannot describe (Keras models, functions).
          **kwargs: Arguments of the constructor.
        """
        from tfrl.learners import checkpointing

        return checkpointing.from_checkpoint(cls, path, modules=modules, **kwargs)

    def check_agent_state(self, agent_state: Mapping[str, AgentState]) -> None:
        """Raises a UserError for a state `{module_id: AgentState}` of other agents."""
        check_fits(
            "agent_state of the state",
            struct.paths(self.module_states),
            struct.paths(agent_state),
            expected="the structure and shapes of this agent's state",
            remedy="Start from the state that this workflow's `setup` returns.",
        )

    def over(self, state: LearnerState) -> Self:
        """Returns this learner over the variables of another state of equal structure.

        It creates no variables and shares everything else, so one learner serves all such states.

        Args:
          state: A state like `learner_state`, of tf.Variables.

        Raises:
          UserError: For an agent's state of another structure or shapes, or other optimizers.
        """
        self._check_built("over")
        self.check_agent_state(state.agent_state)
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__)
        other.module_states = dict(state.agent_state)
        for name in COUNTERS:
            setattr(other, name, state.counters[name])
        mirror: dict[Any, tf.Variable] = {}
        for m, own in self.module_states.items():
            pairs = zip(tf.nest.flatten(own), tf.nest.flatten(state.agent_state[m]), strict=True)
            mirror.update({old.ref(): new for old, new in pairs})
        other.optimizers = self.optimizers.over(mirror, state.opt_state)
        other._compiled = {}
        return other

    def form(self) -> Self:
        """Returns the logic of this learner without variables, for `over` and `fit`."""
        forms: dict[Any, VariableForm] = {}

        def of(variable: tf.Variable) -> VariableForm:
            return forms.setdefault(variable.ref(), VariableForm(variable))

        return self.over(tf.nest.map_structure(of, self.learner_state))

    def clone(self) -> Self:
        """Returns a learner of the same modules with copies of all variables and optimizers."""
        self._check_built("clone")
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__)
        learner_state.clone_into(self, other)
        return other


def _any_rows(x: tf.Tensor) -> tf.TensorSpec:
    """Returns the spec of a tensor of any number of rows."""
    return tf.TensorSpec([None, *x.shape[1:]], x.dtype)
