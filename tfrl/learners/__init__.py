"""Learners: modules, optimizers, minibatches, and the update that changes parameters."""

from tfrl.learners.executor import Gradients, clip_gradients, compute_update
from tfrl.learners.learner import DEFAULT_MODULE_ID, Learner, raise_if_nonfinite
from tfrl.learners.minibatches import MinibatchPlan, minibatch_indices
from tfrl.learners.optimizers import ModuleConfig, OptimizerEntry, adam

__all__ = [
    "DEFAULT_MODULE_ID",
    "Gradients",
    "Learner",
    "MinibatchPlan",
    "ModuleConfig",
    "OptimizerEntry",
    "adam",
    "clip_gradients",
    "compute_update",
    "minibatch_indices",
    "raise_if_nonfinite",
]
