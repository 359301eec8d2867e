"""Learners: modules, optimizers, minibatches, and the update that changes parameters."""

from tfrl.episodes import DEFAULT_MODULE_ID
from tfrl.learners.batches import as_rows, as_sequences
from tfrl.learners.keras_module import KerasModule
from tfrl.learners.learner import CheckNumerics, Learner
from tfrl.learners.learner_config import LearnerConfig
from tfrl.learners.metric_keys import (
    COMPONENT_METRICS_LOGGER,
    COMPONENT_OPTIMIZER,
    COMPONENT_RL_MODULE,
    DATASET_NUM_ITERS_TRAINED,
    DATASET_NUM_ITERS_TRAINED_LIFETIME,
    ENTROPY_KEY,
    LR_KEY,
    MODULE_TRAIN_BATCH_SIZE_MEAN,
    NUM_ENV_STEPS_SAMPLED_LIFETIME,
    NUM_ENV_STEPS_TRAINED,
    NUM_ENV_STEPS_TRAINED_LIFETIME,
    NUM_MODULE_STEPS_TRAINED,
    NUM_MODULE_STEPS_TRAINED_LIFETIME,
    NUM_NON_TRAINABLE_PARAMETERS,
    NUM_TRAINABLE_PARAMETERS,
    POLICY_LOSS_KEY,
    TOTAL_LOSS_KEY,
    VF_LOSS_KEY,
    WEIGHTS_SEQ_NO,
)
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
from tfrl.learners.train_step import StepMetrics, train_step
from tfrl.learning.gradients import clip_gradients

__all__ = [
    "ALL_MODULES",
    "COMPONENT_METRICS_LOGGER",
    "COMPONENT_OPTIMIZER",
    "COMPONENT_RL_MODULE",
    "CheckNumerics",
    "DATASET_NUM_ITERS_TRAINED",
    "DATASET_NUM_ITERS_TRAINED_LIFETIME",
    "DEFAULT_MODULE_ID",
    "DEFAULT_OPTIMIZER",
    "ENTROPY_KEY",
    "KerasModule",
    "LR_KEY",
    "Learner",
    "LearnerConfig",
    "MODULE_TRAIN_BATCH_SIZE_MEAN",
    "MinibatchPlan",
    "Module",
    "ModuleConfig",
    "MultiPlan",
    "NUM_ENV_STEPS_SAMPLED_LIFETIME",
    "NUM_ENV_STEPS_TRAINED",
    "NUM_ENV_STEPS_TRAINED_LIFETIME",
    "NUM_MODULE_STEPS_TRAINED",
    "NUM_MODULE_STEPS_TRAINED_LIFETIME",
    "NUM_NON_TRAINABLE_PARAMETERS",
    "NUM_TRAINABLE_PARAMETERS",
    "OptimizerEntry",
    "POLICY_LOSS_KEY",
    "SelfSupervisedLossAPI",
    "StepMetrics",
    "TOTAL_LOSS_KEY",
    "TargetNetworkAPI",
    "VF_LOSS_KEY",
    "ValueFunctionAPI",
    "WEIGHTS_SEQ_NO",
    "adam",
    "as_rows",
    "as_sequences",
    "clip_gradients",
    "minibatch_indices",
    "missing_apis",
    "plan_minibatches",
    "raise_if_nonfinite",
    "train_step",
]
