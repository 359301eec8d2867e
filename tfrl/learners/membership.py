"""Modules that come and go between the updates of a Learner."""

from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf

from tfrl.errors import UserError
from tfrl.learners import learner_state
from tfrl.learners.building import Building
from tfrl.learners.learner_core import ModulesToTrain
from tfrl.learners.module_config import ModuleConfig
from tfrl.learners.modules import as_module, check_module_id
from tfrl.learners.own_update import check_no_optimizer


class Membership(Building):
    """Adding, copying and removing modules; a part of `Learner`."""

    def add_module(
        self,
        module_id: str,
        module: Any,
        *,
        config_overrides: ModuleConfig | Mapping[str, Any] | None = None,
        policies_to_train: ModulesToTrain | None = None,
        state: Mapping[str, Any] | None = None,
    ) -> None:
        """Adds a module between two updates; the others keep every bit.

        Args:
          module_id: A new id.
          module: As in the constructor.
          config_overrides: Fields of `ModuleConfig` on top of the defaults, or a whole one.
          policies_to_train: Takes the place of the learner's, if not None.
          state: The module's part of `get_state()["rl_module"]`, `{path: array}`; None for a fresh
            one.

        Raises:
          UserError: For an id that is taken or unfit, a module that lacks something, or a state
            that does not fit; nothing is changed then.
        """
        self._check_new("add_module", module_id)
        if state is not None:
            self._check_built("add_module")
        module = as_module(
            module, module_id, loss_by_learner=getattr(self, "_loss_by_learner", False)
        )
        self._check_module(module_id, module)
        default = self._default_config()
        config = default.with_overrides(config_overrides or {})
        check_no_optimizer(module_id, module, config, default)

        def fill() -> None:
            if state is not None:
                learner_state.set_state(self, {"rl_module": {module_id: state}})

        self._add(module_id, module, config, policies_to_train, fill)

    def _add(
        self,
        module_id: str,
        module: Any,
        config: ModuleConfig,
        policies_to_train: ModulesToTrain | None,
        fill: Callable[[], None],
    ) -> None:
        """Adds a module and fills its variables, or changes nothing."""
        before = (self.modules, self.configs, self._states, self.policies_to_train)
        kept = self._optimizers
        self._optimizers = kept.view()
        self.modules = {**self.modules, module_id: module}
        self.configs = {**self.configs, module_id: config}
        self._states = dict(self._states)
        try:
            if policies_to_train is not None:
                self.policies_to_train = self._to_choose(policies_to_train)
            if self.is_built:
                self._make_state(module_id)
                with self.replicas.scope():
                    self.configure_optimizers_for_module(module_id)
                self._check_coverage()
                fill()
        except Exception:
            self.modules, self.configs, self._states, self.policies_to_train = before
            self._optimizers = kept
            raise
        if self.is_built:
            self._added = (*self._added, module_id)
        self._structure_changed()

    def _check_new(self, what: str, module_id: str) -> None:
        check_module_id(module_id)
        if module_id in self.modules:
            raise UserError(
                f"Learner.{what}({module_id!r})",
                expected="an id that no module has",
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
          UserError: For an unknown source, an id that is taken or unfit, and a copy that does not
            get optimizers of the same kind; nothing is changed then.
        """
        self._check_built("copy_module")
        if source not in self.modules:
            raise self._unknown_module("copy_module", source)
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
    ) -> None:
        """Removes a module with its optimizers and metrics; the others keep every bit.

        Args:
          module_id: The module.
          policies_to_train: Takes the place of the learner's, if not None; from a collection the
            module is left out.

        Raises:
          UserError: For an id that the learner does not have, or its only module.
        """
        if module_id not in self.modules:
            raise self._unknown_module("remove_module", module_id)
        if len(self.modules) == 1:
            raise UserError(
                f"Learner.remove_module({module_id!r})",
                expected="a learner that keeps at least one module",
                got="its only one",
                remedy="Add another module first.",
            )
        if policies_to_train is not None:
            policies_to_train = self._to_choose(policies_to_train, set(self.modules) - {module_id})
        borrowers = [b for (b, _), (owner, _) in self._shared.items() if owner == module_id]
        if borrowers:
            raise UserError(
                f"Learner.remove_module({module_id!r})",
                expected="a module whose parameters no other shares",
                got=f"one that lends to {sorted(borrowers)}",
                remedy="Remove those first.",
            )
        self.modules = {m: x for m, x in self.modules.items() if m != module_id}
        self.configs = {m: c for m, c in self.configs.items() if m != module_id}
        own = self._own_variables(module_id)
        self._states.pop(module_id, None)
        self._added = tuple(m for m in self._added if m != module_id)
        self._shared = {k: v for k, v in self._shared.items() if k[0] != module_id}
        self._optimizers.remove_module(module_id, own)
        self.metrics.remove(module_id)
        chosen = self.policies_to_train
        if policies_to_train is not None:
            self.policies_to_train = policies_to_train
        elif chosen is not None and not callable(chosen):
            self.policies_to_train = [m for m in chosen if m != module_id]
        self._structure_changed()

    def _own_variables(self, module_id: str) -> list[tf.Variable]:
        """The variables of a module that no other module shares."""
        others = {
            v.ref()
            for m, state in self._states.items()
            if m != module_id
            for v in tf.nest.flatten(state)
        }
        mine = tf.nest.flatten(self._states[module_id]) if module_id in self._states else []
        return [v for v in mine if v.ref() not in others]

    def _structure_changed(self) -> None:
        self.structure_version += 1
        self._compiled, self._traces = {}, None
