"""Learners: modules, optimizers, minibatches, and the update that changes parameters."""

from tfrl.episodes import DEFAULT_MODULE_ID
from tfrl.learners.batches import as_rows, as_sequences
from tfrl.learners.keras_module import KerasModule
from tfrl.learners.learner import CheckNumerics, Learner
from tfrl.learners.minibatches import (
    MinibatchPlan,
    MultiPlan,
    minibatch_indices,
    plan_minibatches,
)
from tfrl.learners.module_config import ModuleConfig
from tfrl.learners.modules import (
    Module,
    SelfSupervisedLossAPI,
    TargetNetworkAPI,
    ValueFunctionAPI,
    missing_apis,
)
from tfrl.learners.optimizers import ALL_MODULES, DEFAULT_OPTIMIZER, OptimizerEntry, adam
from tfrl.learners.reports import raise_if_nonfinite
from tfrl.learning.gradients import Gradients, clip_gradients, compute_update

__all__ = [
    "ALL_MODULES",
    "CheckNumerics",
    "DEFAULT_MODULE_ID",
    "DEFAULT_OPTIMIZER",
    "Gradients",
    "KerasModule",
    "Learner",
    "MinibatchPlan",
    "Module",
    "ModuleConfig",
    "MultiPlan",
    "OptimizerEntry",
    "SelfSupervisedLossAPI",
    "TargetNetworkAPI",
    "ValueFunctionAPI",
    "adam",
    "as_rows",
    "as_sequences",
    "clip_gradients",
    "compute_update",
    "minibatch_indices",
    "missing_apis",
    "plan_minibatches",
    "raise_if_nonfinite",
]
