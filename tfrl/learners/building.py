"""How a Learner gets its variables and optimizers."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from tfrl import seeding, struct
from tfrl.errors import UserError, did_you_mean
from tfrl.learners import optimizers
from tfrl.learners.learner_core import COUNTERS, LearnerCore, ModulesToTrain
from tfrl.learners.module_config import ModuleConfig
from tfrl.learners.modules import missing_apis
from tfrl.learners.optimizers import ALL_MODULES
from tfrl.learners.parameters import make_counter, make_variables
from tfrl.learners.sharing import check_groups, check_shared


class Building(LearnerCore):
    """Building and registration; a part of `Learner`."""

    @property
    def rl_module_required_apis(self) -> Sequence[type]:
        """The protocols that every trained module must have; none unless overridden."""
        return ()

    def rl_module_is_compatible(self, module: Any) -> bool:
        """Whether a module has what `rl_module_required_apis` asks for."""
        return not missing_apis(module, self.rl_module_required_apis)

    def _check_module(self, module_id: str, module: Any) -> None:
        missing = missing_apis(module, self.rl_module_required_apis)
        if missing and module.updates:
            raise UserError(
                f"module {module_id!r}",
                expected=f"what {type(self).__name__} needs of a module: "
                + ", ".join(api.__name__ for api in self.rl_module_required_apis),
                got=f"{type(module).__name__}, which lacks {', '.join(missing)}",
                remedy="Give it these methods.",
            )

    def build(self, key: tf.Tensor | int = 0) -> None:
        """Makes the variables and optimizers, once; a second call changes nothing.

        Args:
          key: int32 [2], or a seed; module m starts from `stream(key, m)`.
        """
        if self.is_built:
            return
        key = seeding.key(key) if isinstance(key, int) else tf.convert_to_tensor(key)
        with self.replicas.scope():
            self.key = make_counter("key", key)
            self.learner_steps = make_counter("learner_steps")
            self.skipped_steps = make_counter("skipped_steps")
            self.env_steps = make_counter("env_steps")
            self.weights_seq_no = make_counter("weights_seq_no")
        try:
            for module_id in self.modules:
                self._make_state(module_id)
            with self.replicas.scope():
                self.configure_optimizers()
            self._check_coverage()
        except Exception:
            # Half a learner must not pass for a built one.
            self._states, self._optimizers = {}, optimizers.OptimizerRegistry()
            for name in COUNTERS:
                vars(self).pop(name, None)
            raise

    def _make_state(self, module_id: str) -> None:
        key = tf.convert_to_tensor(self.key)
        state = self.modules[module_id].init(seeding.stream(key, module_id))
        shared = {}
        for (borrower, group), (owner, lent) in self._shared.items():
            if borrower == module_id:
                check_groups({owner: (self._states[owner], lent), borrower: (state, group)})
                theirs = struct.paths(self._states[owner].params[lent], f"params/{group}")
                mine = struct.paths(state.params[group], f"params/{group}")
                check_shared(module_id, theirs, mine)
                shared.update(theirs)
        # Keras refuses to make a model inside a strategy's scope: only variables are made there.
        with self.replicas.scope():
            self._states[module_id] = make_variables(state, module_id, shared)

    def configure_optimizers(self) -> None:
        """Registers the optimizers of all modules; override for ones that span modules."""
        for module_id in self.modules:
            self.configure_optimizers_for_module(module_id)

    def configure_optimizers_for_module(self, module_id: str) -> None:
        """Registers one optimizer per update of a module; override for anything else."""
        config = self.configs[module_id]
        self._check_update_names(module_id, config)
        for update in self.modules[module_id].updates:
            params = self._group_variables(module_id, update.groups)
            params = [p for p in params if not self._optimizers.has(p)]
            if params:
                own = self._optimizer_fn
                made = own(config) if own else config.make_optimizer(update.name)
                self.register_optimizer(module_id, update.name, made, params, config.lr)

    def _check_update_names(self, module_id: str, config: ModuleConfig) -> None:
        """Refuses an optimizer for an update that no module has: it would be lost."""
        named = config.optimizer if isinstance(config.optimizer, Mapping) else {}
        # Several modules may share their settings.
        known = {u.name for module in self.modules.values() for u in module.updates}
        for name in named:
            if name not in known:
                raise UserError(
                    f"ModuleConfig.optimizer of module {module_id!r}",
                    expected=f"the names of updates, {', '.join(sorted(known))}",
                    got=repr(name),
                    remedy=did_you_mean(str(name), known),
                )

    def register_optimizer(
        self,
        module_id: str = ALL_MODULES,
        optimizer_name: str = optimizers.DEFAULT_OPTIMIZER,
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
          params: Variables that no other optimizer has.
          lr_or_lr_schedule: A number, points `[[0, v0], [t1, v1], ...]` or a schedule over env
            steps, or None for a Keras optimizer's own rate, and 3e-4 for others.

        Raises:
          UserError: For a duplicate name, a parameter that has an optimizer already or that is no
            variable of this learner, one that no update of a module trains, a rate that
            `ModuleConfig` refuses, or before `build`.
        """
        self._check_built("register_optimizer")
        if module_id != ALL_MODULES and module_id not in self.modules:
            raise self._unknown_module("register_optimizer", module_id)
        params = list(params)
        thing = f"register_optimizer({module_id!r}, {optimizer_name!r})"
        self._check_mine(thing, module_id, params)
        self._check_trains(thing, params)
        _check_rate(thing, lr_or_lr_schedule)
        with self.replicas.scope():
            self._optimizers.add(module_id, optimizer_name, optimizer, params, lr_or_lr_schedule)

    def _check_mine(self, thing: str, module_id: str, params: Sequence[Any]) -> None:
        """Refuses variables of other modules, or of none."""
        owners = list(self._states) if module_id == ALL_MODULES else [module_id]
        mine = {v.ref() for m in owners for v in tf.nest.flatten(self._states[m].params)}
        foreign = [p.name for p in params if isinstance(p, tf.Variable) and p.ref() not in mine]
        if foreign:
            raise UserError(
                thing,
                expected="variables out of get_parameters of the module",
                got=", ".join(foreign),
                remedy="Register a variable under the module that it belongs to.",
            )

    def _check_trains(self, thing: str, params: Sequence[Any]) -> None:
        """Refuses parameters that no update trains: an optimizer would never take a step."""
        inside: set[Any] = set()
        trained: set[Any] = set()
        for module_id, groups in self._trained_groups().items():
            trained |= {v.ref() for v in self._group_variables(module_id, groups)}
            # Moving statistics are inside of a group that is trained, and change otherwise.
            own = self._states[module_id].params
            inside |= {v.ref() for g in groups for v in tf.nest.flatten(own[g])}
        variables = [p for p in params if isinstance(p, tf.Variable)]
        idle = [p for p in variables if p.ref() not in inside]
        if not any(p.ref() in trained for p in variables):
            idle = variables
        if idle:
            raise UserError(
                thing,
                expected="parameters of groups that some update of their module trains",
                got=f"{', '.join(p.name for p in idle)}, which no loss would change",
                remedy="Leave them out, or name their group in the module's updates.",
            )

    def _trained_groups(self) -> dict[str, tuple[str, ...]]:
        return {
            m: tuple(dict.fromkeys(g for u in module.updates for g in u.groups))
            for m, module in self.modules.items()
        }

    def _check_coverage(self) -> None:
        """Each parameter that is trained has an optimizer."""
        trained: dict[str, tf.Variable] = {}
        for module_id, groups in self._trained_groups().items():
            refs = {v.ref() for v in self._group_variables(module_id, groups)}
            paths = struct.paths(self._states[module_id].params)
            trained.update({f"{module_id}/{p}": v for p, v in paths.items() if v.ref() in refs})
        self._optimizers.check_coverage(trained)
        if self.optimizer_entries_of(ALL_MODULES):
            self._config(ALL_MODULES)

    def train_only(self, policies_to_train: ModulesToTrain | None) -> None:
        """Chooses anew which modules are trained.

        Args:
          policies_to_train: Ids, or a function `(module_id, rows) -> bool`; None for all.

        Raises:
          UserError: For ids that the learner does not have.
        """
        self.policies_to_train = self._to_choose(policies_to_train)

    def _to_choose(
        self, chosen: ModulesToTrain | None, among: Collection[str] | None = None
    ) -> ModulesToTrain | None:
        """What `policies_to_train` becomes, checked; a generator is read once."""
        if chosen is None or callable(chosen):
            return chosen
        if isinstance(chosen, Iterable) and not isinstance(chosen, Collection):
            chosen = tuple(chosen)
        known = self.modules if among is None else among
        several = isinstance(chosen, Collection) and not isinstance(chosen, str)
        names: list[Any] = list(chosen) if several else [chosen]
        unknown = sorted(set(map(str, names)) - set(known))
        if unknown or not several:
            raise UserError(
                "policies_to_train",
                expected=f"a collection out of {sorted(known)}, or a function",
                got=repr(chosen),
                remedy=did_you_mean(unknown[0], known) if unknown else f"Give [{chosen!r}].",
            )
        return chosen


def _check_rate(thing: str, rate: Any) -> None:
    """Refuses the rates that `ModuleConfig` refuses."""
    if rate is None:
        return
    try:
        ModuleConfig(lr=rate)
    except UserError as error:
        raise UserError(
            f"lr_or_lr_schedule of {thing}",
            expected=error.expected,
            got=error.got,
            remedy=error.remedy,
        ) from error
