"""What all parts of the Learner stand on: its attributes, and how it is looked at."""

from collections.abc import Callable, Collection
from typing import Any, Literal

import tensorflow as tf

from tfrl import struct
from tfrl.agents.core import OwnUpdate
from tfrl.distribute.replicas import Replicas
from tfrl.episodes import DEFAULT_MODULE_ID
from tfrl.errors import UserError, did_you_mean
from tfrl.learners.module_config import ModuleConfig
from tfrl.learners.optimizers import ALL_MODULES, OptimizerEntry, OptimizerRegistry
from tfrl.learners.parameters import ParamDict, group_variables
from tfrl.learning import leaves
from tfrl.metrics import MetricsLogger
from tfrl.traces import Traces, logic_key, traces_of
from tfrl.types import AgentState, Nest

CheckNumerics = Literal["off", "skip", "raise"]
ModulesToTrain = Collection[str] | Callable[[str, Nest], bool]


# `key` is what the states of further modules are drawn from.
COUNTERS = ("learner_steps", "skipped_steps", "env_steps", "weights_seq_no", "key")

# Attributes that are state, or say nothing of what is traced.
_STATE = frozenset(
    ("learner_steps", "skipped_steps", "env_steps", "weights_seq_no", "key", "metrics", "replicas")
    + ("structure_version", "learner_connector", "_states", "_optimizers", "_optimizer_fn")
    + ("_compiled", "_traces", "_counted")
)


@struct.dataclass
class LearnerState(struct.Struct):
    """All that training changes of a learner: tensors, or the learner's tf.Variables.

    Attributes:
      agent_state: `{module_id: AgentState}`.
      opt_state: `{module_id: {optimizer_name: {path: leaf}}}`: "iterations", "learning_rate" and
        the slots, "m/<parameter>". The optimizers of several modules are under "__all_modules__".
      counters: `{name: int64 scalar}`: "learner_steps", "skipped_steps", "env_steps",
        "weights_seq_no"; and "key", int32 [2].
    """

    agent_state: dict[str, AgentState]
    opt_state: dict[str, dict[str, dict[str, Any]]]
    counters: dict[str, Any]

    def count(self, name: str, number: Any) -> "LearnerState":
        """Returns the state with a number added to one of the counters."""
        changed = {name: leaves.add(self.counters[name], number)}
        return self.replace(counters={**self.counters, **changed})  # type: ignore[no-any-return]

    def with_counter(self, name: str, value: Any) -> "LearnerState":
        """Returns the state with another value of one of the counters."""
        changed = {name: leaves.put(self.counters[name], value)}
        return self.replace(counters={**self.counters, **changed})  # type: ignore[no-any-return]

    def with_slots(self, module_id: str, optimizer_name: str, slots: dict[str, Any]) -> Any:
        """Returns the state with other leaves of one optimizer."""
        own = {**self.opt_state[module_id], optimizer_name: slots}
        return self.replace(opt_state={**self.opt_state, module_id: own})


class _MadeByBuild:
    """An attribute that `build` sets; asked for before, it says so."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, learner: Any, owner: type | None = None) -> Any:
        if learner is None:
            return self
        raise not_built(self._name)


def not_built(what: str) -> UserError:
    """Returns the error for what only a built learner has."""
    return UserError(
        f"Learner.{what}",
        expected="a built learner",
        got="one without variables",
        remedy="Call learner.build(key) first.",
    )


class LearnerCore:
    """The attributes of a `Learner` and what only reads them."""

    modules: dict[str, Any]
    configs: dict[str, ModuleConfig]
    policies_to_train: ModulesToTrain | None
    replicas: Replicas
    check_numerics: CheckNumerics
    learner_connector: Any
    metrics: MetricsLogger
    structure_version: int
    learner_steps: Any = _MadeByBuild()
    skipped_steps: Any = _MadeByBuild()
    env_steps: Any = _MadeByBuild()
    weights_seq_no: Any = _MadeByBuild()
    key: Any = _MadeByBuild()
    _states: dict[str, AgentState]
    _optimizers: OptimizerRegistry
    _shared: dict[tuple[str, str], tuple[str, str]]
    _optimizer_fn: Callable[[ModuleConfig], Any] | None
    # Compiled updates over the variables of this learner, by what their traces depend on.
    _compiled: dict[Any, Any]
    _traces: Traces | None
    # Modules that came after `build`, in their order: their optimizers are made apart.
    _added: tuple[str, ...] = ()
    _counted: tuple[int, dict[str, dict[str, int]]] = (-1, {})

    def variables(self) -> dict[str, tf.Variable]:
        """Returns every variable by path."""
        raise NotImplementedError

    @property
    def learner_state(self) -> LearnerState:
        """All that training changes, tf.Variables; `struct.values` of it is a copy in tensors."""
        self._check_built("learner_state")
        opt_state: dict[str, dict[str, Any]] = {}
        for module_id, name, entry in self.optimizer_entries():
            opt_state.setdefault(module_id, {})[name] = entry.variables()
        return LearnerState(
            agent_state=dict(self._states),
            opt_state=opt_state,
            counters={name: getattr(self, name) for name in COUNTERS},
        )

    def logic(self) -> Any:
        """Returns what is equal for learners whose updates are the same functions of variables."""
        own = {name: x for name, x in vars(self).items() if name not in _STATE}
        entries = [
            (m, name, entry, [p.name for p in entry.params])
            for m, name, entry in self.optimizer_entries()
        ]
        devices = sorted({v.device for v in tf.nest.flatten(list(self._states.values()))})
        return own, entries, devices

    @property
    def traces(self) -> Traces:
        """What has been traced for this learner's logic; under several replicas for it alone."""
        if self._traces is None:
            # Variables of several replicas stay those of the first call.
            self._traces = Traces() if self.replicas.several else traces_of(logic_key(self))
        return self._traces

    @property
    def is_built(self) -> bool:
        """Whether the variables exist."""
        return bool(self._states)

    def _check_built(self, what: str) -> None:
        if not self.is_built:
            raise not_built(what)

    def _unknown_module(self, what: str, module_id: str) -> UserError:
        return UserError(
            f"Learner.{what}({module_id!r})",
            expected=f"one of the modules {sorted(self.modules)}",
            got=repr(module_id),
            remedy=did_you_mean(str(module_id), self.modules),
        )

    @property
    def state(self) -> AgentState:
        """The variables of the only module."""
        return self.module_state(next(iter(self.modules)) if len(self.modules) == 1 else None)

    def module_state(self, module_id: str | None = None) -> AgentState:
        """Returns a module's AgentState, whose leaves are tf.Variables."""
        self._check_built("module_state")
        module_id = DEFAULT_MODULE_ID if module_id is None else module_id
        if module_id not in self._states:
            raise self._unknown_module("module_state", module_id)
        return self._states[module_id]

    def get_parameters(self, module_id: str = DEFAULT_MODULE_ID) -> list[tf.Variable]:
        """Returns the variables of all parameter groups of a module."""
        return tf.nest.flatten(self.module_state(module_id).params)

    def get_param_ref(self, param: tf.Variable) -> Any:
        """Returns the key of a variable in a dict of gradients."""
        return param.ref()

    def get_optimizer(
        self, module_id: str = DEFAULT_MODULE_ID, optimizer_name: str | None = None
    ) -> Any:
        """Returns a registered optimizer; the name may be left out when there is one.

        It has `learning_rate` and `iterations`, variables: a `BoundOptimizer`, or Keras' own.
        """
        self._check_built("get_optimizer")
        if module_id != ALL_MODULES and module_id not in self.modules:
            raise self._unknown_module("get_optimizer", module_id)
        return self._optimizers.get(module_id, optimizer_name)

    def get_optimizers_for_module(self, module_id: str = ALL_MODULES) -> list[tuple[str, Any]]:
        """Returns `[(optimizer_name, optimizer), ...]` of a module; of "__all_modules__" all."""
        self._check_built("get_optimizers_for_module")
        if module_id == ALL_MODULES:
            return [(name, e.optimizer) for _, name, e in self.optimizer_entries()]
        if module_id not in self.modules:
            raise self._unknown_module("get_optimizers_for_module", module_id)
        return [(name, e.optimizer) for name, e in self._optimizers.of_module(module_id)]

    def optimizer_entries(self) -> list[tuple[str, str, OptimizerEntry]]:
        """Returns `[(module_id, optimizer_name, entry), ...]` in the order of registration."""
        return self._optimizers.entries()

    def filter_param_dict_for_optimizer(self, param_dict: ParamDict, optimizer: Any) -> ParamDict:
        """Returns the items of a dict of gradients that belong to an optimizer's variables."""
        self._check_built("filter_param_dict_for_optimizer")
        for _, _, entry in self.optimizer_entries():
            if entry.optimizer is optimizer:
                refs = [p.ref() for p in entry.params]
                return {ref: param_dict[ref] for ref in refs if ref in param_dict}
        raise UserError(
            "filter_param_dict_for_optimizer",
            expected="an optimizer that was registered",
            got=repr(optimizer),
            remedy="Take it from get_optimizer.",
        )

    def should_module_be_updated(self, module_id: str, batch: Nest = None) -> bool:
        """Whether a module is trained: by `policies_to_train`, and if it has anything to train."""
        if module_id not in self.modules:
            raise self._unknown_module("should_module_be_updated", module_id)
        if not self.modules[module_id].updates:
            return False
        chosen = self.policies_to_train
        if chosen is None:
            return True
        return bool(chosen(module_id, batch)) if callable(chosen) else module_id in chosen

    def lenders_to(self, module_ids: Collection[str]) -> list[str]:
        """Returns the other modules that share parameters of theirs with some of these."""
        lenders = [o for (b, _), (o, _) in self._shared.items() if b in module_ids]
        return [m for m in dict.fromkeys(lenders) if m not in module_ids]

    def parameter_counts(self, module_id: str = ALL_MODULES) -> dict[str, int]:
        """Returns how many numbers are trained, and how many other parameters there are.

        Those of a module that trains by itself (`OwnUpdate`) all count as trained.

        Args:
          module_id: A module, or "__all_modules__" for all, where shared ones count once.
        """
        trained: set[Any] = set()
        found: dict[Any, int] = {}
        for m in self.modules if module_id == ALL_MODULES else [module_id]:
            params, updates = self.module_state(m).params, self.modules[m].updates
            groups = dict.fromkeys(g for u in updates for g in u.groups)
            if any(isinstance(u, OwnUpdate) for u in updates):
                groups = dict.fromkeys(params)
            trained |= {v.ref() for v in self._group_variables(m, tuple(groups))}
            found.update({v.ref(): v.shape.num_elements() for v in tf.nest.flatten(params)})
        sizes = {True: 0, False: 0}
        for ref, size in found.items():
            sizes[ref in trained] += size
        return {
            "num_trainable_parameters": sizes[True],
            "num_non_trainable_parameters": sizes[False],
        }

    def _group_variables(self, module_id: str, groups: tuple[str, ...]) -> list[tf.Variable]:
        return group_variables(module_id, self._states[module_id], groups)

    def _default_config(self) -> ModuleConfig:
        """What a new module's overrides stand on: the settings that all share, else defaults."""
        configs = [c for m, c in self.configs.items() if m != ALL_MODULES]
        same = configs and all(c == configs[0] for c in configs)
        return configs[0] if same else ModuleConfig()

    def _config(self, owner: str) -> ModuleConfig:
        if owner in self.configs:
            return self.configs[owner]
        trained = {p.ref() for *_, e in self.optimizer_entries_of(owner) for p in e.params}
        configs = [
            self.configs[m]
            for m, state in self._states.items()
            if any(v.ref() in trained for v in tf.nest.flatten(state.params))
        ]
        if len({(c.grad_clip, c.grad_clip_by) for c in configs}) > 1:
            raise UserError(
                f"the settings of optimizers under {owner!r}",
                expected="one way to clip the gradients",
                got="modules that are clipped in different ways",
                remedy=f"Give them settings of their own: config={{..., {owner!r}: "
                "ModuleConfig(...)}.",
            )
        return configs[0]

    def optimizer_entries_of(self, module_id: str) -> list[Any]:
        """Returns `[(module_id, optimizer_name, entry), ...]` registered under an id."""
        return [e for e in self.optimizer_entries() if e[0] == module_id]
