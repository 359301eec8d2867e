"""The Learner: the one place where a learner's parameters change.

It holds `{module_id: module}` with their states as tf.Variables, optimizers, and one traced
update: for each minibatch, for each update group in order, losses and gradients (pure), the sum
over replicas, postprocessing, finite guard, apply. Names and meaning follow RLlib's Learner,
https://docs.ray.io/en/releases-2.44.0/rllib/rl-modules.html; docs/learner.md has the differences.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from tfrl.distribute.replicas import Replicas
from tfrl.episodes import DEFAULT_MODULE_ID
from tfrl.errors import UserError
from tfrl.learners.feeding import Feeding
from tfrl.learners.learner_core import CheckNumerics, ModulesToTrain
from tfrl.learners.membership import Membership
from tfrl.learners.module_config import ModuleConfig
from tfrl.learners.modules import as_module, check_module_id
from tfrl.learners.optimizers import ALL_MODULES, OptimizerRegistry
from tfrl.learners.own_update import check_no_optimizer, trains_itself
from tfrl.learners.persistence import Persistence
from tfrl.learners.sharing import shared_groups
from tfrl.metrics import MetricsLogger


class Learner(Membership, Persistence, Feeding):
    """Trains modules by gradient steps on batches.

    Use: `learner = Learner(agent); learner.build(key); learner.update_from_batch(batch, ...)`.

    Attributes:
      modules: `{module_id: module}`.
      configs: `{module_id: ModuleConfig}`.
      replicas: The replicas of the strategy.
      check_numerics: "off", "skip" or "raise".
      learner_steps: Gradient steps (minibatches) so far, an int64 variable.
      skipped_steps: Of them, how many had something that was not finite.
      env_steps: What drives the schedules.
      weights_seq_no: Counts the updates, so that a collector can tell newer weights.
      key: What the states of modules are drawn from, an int32 variable [2].
      structure_version: Changes whenever modules are added or removed.
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
    ):
        """Names the modules; `build` makes their variables.

        Args:
          modules: One module (held as "default_policy"), or `{module_id: module}`. A module is a
            tfrl agent, a `learners.Module`, a `KerasModule`, or anything with their methods.
          config: Settings for all modules, or `{module_id: ModuleConfig}` for each, or dicts of the
            fields that differ from the defaults; an item "__all_modules__" is for optimizers that
            are registered under that id.
          policies_to_train: Ids of the modules to train, or a function `(module_id, rows) -> bool`;
            None for all.
          shared: Parameter groups that modules have in common, `{"a/encoder": ["b/encoder"]}`:
            group `encoder` of module `b` is that of module `a`, and `a`'s optimizer trains it with
            the gradients of both. Where `b` stops early, the minibatch that stops it is the last
            by which it trains the group.
          optimizer_fn: Makes the optimizer of one update out of its module's settings; None for
            what `ModuleConfig.optimizer` says.
          check_numerics: What happens when a loss or gradient is not finite: "off" applies it
            unchecked, "skip" leaves that gradient step out and counts it, "raise" leaves it out
            and raises a UserError that names module and term after the call.
          strategy: A tf.distribute strategy; by default the one whose scope this is called in.
          learner_connector: The pipeline of `update_from_episodes`; None for the default one.
        """
        if not isinstance(modules, Mapping):
            modules = {DEFAULT_MODULE_ID: modules}
        if not modules:
            raise UserError(
                "Learner",
                expected="at least one module",
                got="none",
                remedy="Give a module, or {module_id: module}.",
            )
        for module_id in modules:
            check_module_id(module_id)
        own = self._loss_by_learner
        self.modules = {m: as_module(x, m, loss_by_learner=own) for m, x in modules.items()}
        if check_numerics not in ("off", "skip", "raise"):
            raise UserError(
                "check_numerics",
                expected="off, skip or raise",
                got=repr(check_numerics),
                remedy="Choose what happens to a non-finite loss.",
            )
        self.check_numerics = check_numerics
        self.configs = _configs(config, list(self.modules))
        if isinstance(config, Mapping) or all(map(trains_itself, self.modules.values())):
            for module_id, module in self.modules.items():
                check_no_optimizer(module_id, module, self.configs[module_id])
        self.policies_to_train = self._to_choose(policies_to_train)
        if strategy is not None and not isinstance(strategy, tf.distribute.Strategy):
            raise UserError(
                "Learner strategy",
                expected="a tf.distribute.Strategy, or None",
                got=repr(strategy),
                remedy="Make one by tfrl.distribute.make_strategy(name).",
            )
        self.replicas = Replicas(strategy)
        self.structure_version = 0
        self.learner_connector = learner_connector
        self._shared = shared_groups(shared or {}, self.modules)
        self._optimizer_fn = optimizer_fn
        self._states = {}
        self._optimizers = OptimizerRegistry()
        self.metrics = MetricsLogger()
        self._compiled, self._traces = {}, None
        for module_id, module in self.modules.items():
            self._check_module(module_id, module)


def _configs(config: Any, module_ids: list[str]) -> dict[str, ModuleConfig]:
    """The settings of every module."""
    if config is None or isinstance(config, ModuleConfig):
        return {m: config or ModuleConfig() for m in module_ids}
    given = dict(config) if isinstance(config, Mapping) else None
    if given is None or set(given) - {ALL_MODULES} != set(module_ids):
        raise UserError(
            "Learner config",
            expected=f"a ModuleConfig, or one for each of the modules {sorted(module_ids)}",
            got=repr(config) if given is None else f"ones for {sorted(given)}",
            remedy="Name every module once, as in config={module_id: ModuleConfig(lr=3e-4)}.",
        )
    return {m: ModuleConfig().with_overrides(c) for m, c in given.items()}
