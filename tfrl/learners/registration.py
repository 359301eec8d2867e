"""Checks and normalises a Learner's modules, settings and optimizers."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from tfrl import struct
from tfrl.errors import UserError, did_you_mean
from tfrl.learners.module_config import ModuleConfig
from tfrl.learners.modules import LearnerModule, missing_apis
from tfrl.learners.optimizers import ALL_MODULES
from tfrl.learners.parameters import group_variables

if TYPE_CHECKING:
    from tfrl.learners.learner import Learner, ModulesToTrain


def check_update_names(learner: Learner, module_id: str, config: ModuleConfig) -> None:
    """Rejects an optimizer or a rate for an unknown update, which would be ignored."""
    # Several modules may share their settings.
    known = {u.name for module in learner.modules.values() for u in module.updates}
    for field, value in (("optimizer", config.optimizer), ("lr", config.lr)):
        for name in value if isinstance(value, Mapping) else ():
            if name not in known:
                raise UserError(
                    f"ModuleConfig.{field} of module {module_id!r}",
                    expected=f"names of updates among {', '.join(sorted(known))}",
                    got=repr(name),
                    remedy=did_you_mean(str(name), known),
                )


def check_mine(learner: Learner, thing: str, module_id: str, params: Sequence[Any]) -> None:
    """Rejects variables of other modules or of none."""
    owners = list(learner.module_states) if module_id == ALL_MODULES else [module_id]
    mine = {v.ref() for m in owners for v in tf.nest.flatten(learner.module_states[m].params)}
    foreign = [p.name for p in params if isinstance(p, tf.Variable) and p.ref() not in mine]
    if foreign:
        raise UserError(
            thing,
            expected="variables from the module's get_parameters",
            got=", ".join(foreign),
            remedy="Register each variable under its own module.",
        )


def check_trains(learner: Learner, thing: str, params: Sequence[Any]) -> None:
    """Rejects parameters that no update trains: their optimizer would never take a step."""
    inside: set[Any] = set()
    trained: set[Any] = set()
    for module_id, groups in trained_groups(learner).items():
        trained |= {
            v.ref() for v in group_variables(module_id, learner.module_states[module_id], groups)
        }
        # Moving statistics are in a trained group but change without gradients.
        own = learner.module_states[module_id].params
        inside |= {v.ref() for g in groups for v in tf.nest.flatten(own[g])}
    variables = [p for p in params if isinstance(p, tf.Variable)]
    idle = [p for p in variables if p.ref() not in inside]
    if not any(p.ref() in trained for p in variables):
        idle = variables
    if idle:
        raise UserError(
            thing,
            expected="parameters that an update of their module trains",
            got=f"{', '.join(p.name for p in idle)}, which no loss changes",
            remedy="Leave them out, or name their group in the module's updates.",
        )


def trained_groups(learner: Learner) -> dict[str, tuple[str, ...]]:
    """Returns `{module_id: trained parameter groups}`."""
    return {
        m: tuple(dict.fromkeys(g for u in module.updates for g in u.groups))
        for m, module in learner.modules.items()
    }


def check_coverage(learner: Learner) -> None:
    """Checks that each trained parameter has an optimizer."""
    trained: dict[str, tf.Variable] = {}
    for module_id, groups in trained_groups(learner).items():
        if not learner.rl_module_is_compatible(learner.modules[module_id]):
            continue
        refs = {
            v.ref() for v in group_variables(module_id, learner.module_states[module_id], groups)
        }
        paths = struct.paths(learner.module_states[module_id].params)
        trained.update({f"{module_id}/{p}": v for p, v in paths.items() if v.ref() in refs})
    learner.optimizers.check_coverage(trained)
    if learner.optimizers.of_module(ALL_MODULES):
        settings_of(learner, ALL_MODULES)


def check_rate(thing: str, rate: Any) -> None:
    """Rejects the rates that `ModuleConfig` rejects."""
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


def settings_of(learner: Learner, owner: str) -> ModuleConfig:
    """Returns the settings of the optimizers under an id, for clipping."""
    if owner in learner.configs:
        return learner.configs[owner]
    trained = {p.ref() for _, e in learner.optimizers.of_module(owner) for p in e.params}
    configs = [
        learner.configs[m]
        for m, state in learner.module_states.items()
        if any(v.ref() in trained for v in tf.nest.flatten(state.params))
    ]
    if len({(c.grad_clip, c.grad_clip_by) for c in configs}) > 1:
        raise UserError(
            f"the settings of optimizers under {owner!r}",
            expected="one setting for gradient clipping",
            got="modules with different clipping settings",
            remedy=f"Set one for all of them: config={{..., {owner!r}: ModuleConfig(...)}}.",
        )
    return configs[0]


def module_configs(config: Any, module_ids: Collection[str]) -> dict[str, ModuleConfig]:
    """The settings of every module."""
    if config is None or isinstance(config, ModuleConfig):
        return {m: config or ModuleConfig() for m in module_ids}
    by_module = dict(config) if isinstance(config, Mapping) else None
    if by_module is None or set(by_module) - {ALL_MODULES} != set(module_ids):
        raise UserError(
            "Learner config",
            expected=f"a ModuleConfig, or one for each of the modules {sorted(module_ids)}",
            got=repr(config) if by_module is None else f"entries for {sorted(by_module)}",
            remedy="Name every module once, as in config={module_id: ModuleConfig(lr=3e-4)}.",
        )
    return {m: ModuleConfig().with_overrides(c) for m, c in by_module.items()}


def check_module(learner: Learner, module_id: str, module: LearnerModule) -> None:
    """Rejects a module that lacks this learner's required methods."""
    missing = missing_apis(module, learner.required_apis)
    if missing and module.updates:
        raise UserError(
            f"module {module_id!r}",
            expected=f"the APIs that {type(learner).__name__} requires: "
            + ", ".join(api.__name__ for api in learner.required_apis),
            got=f"{type(module).__name__}, which lacks {', '.join(missing)}",
            remedy="Implement these methods, or leave it out of policies_to_train.",
        )


def modules_to_train(
    learner: Learner, chosen: ModulesToTrain | None, among: Collection[str] | None = None
) -> ModulesToTrain | None:
    """Returns `policies_to_train`, checked; a generator is read once."""
    if callable(chosen):
        return chosen  # its results are checked when it is called
    if chosen is None:
        for module_id in learner.modules if among is None else among:
            check_module(learner, module_id, learner.modules[module_id])
        return chosen
    if isinstance(chosen, Iterable) and not isinstance(chosen, Collection):
        chosen = tuple(chosen)
    known = learner.modules if among is None else among
    several = isinstance(chosen, Collection) and not isinstance(chosen, str)
    names: list[Any] = list(chosen) if several else [chosen]
    unknown = sorted(set(map(str, names)) - set(known))
    if unknown or not several:
        raise UserError(
            "policies_to_train",
            expected=f"a collection of modules among {sorted(known)}, or a function",
            got=repr(chosen),
            remedy=did_you_mean(unknown[0], known) if unknown else f"Pass [{chosen!r}].",
        )
    for module_id in names:
        check_module(learner, module_id, learner.modules[module_id])
    return chosen


def default_config(learner: Learner) -> ModuleConfig:
    """Returns the settings of a new module: the common settings, or else the defaults."""
    configs = [c for m, c in learner.configs.items() if m != ALL_MODULES]
    same = configs and all(c == configs[0] for c in configs)
    return configs[0] if same else ModuleConfig()
