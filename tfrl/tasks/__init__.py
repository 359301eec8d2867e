"""RL tasks of a user's environment and model: sampling, replay, clips, training."""

from tfrl.tasks.clips import MultiReplaySamples, ReplaySamples, clip_span
from tfrl.tasks.config import DatasetConfig, EnvironmentConfig, RLTaskConfig
from tfrl.tasks.replay_dataset import ReplayDataset
from tfrl.tasks.runner import TaskState
from tfrl.tasks.sampler import Sampler, SamplingCounts
from tfrl.tasks.samples import SampledTrajectory, Samples
from tfrl.tasks.sampling import collect_samples, iter_samples
from tfrl.tasks.task import RLTask
from tfrl.tasks.training_state import TrainingState
from tfrl.tasks.workflow import TaskWorkflow

__all__ = [
    "DatasetConfig",
    "EnvironmentConfig",
    "MultiReplaySamples",
    "RLTask",
    "RLTaskConfig",
    "ReplayDataset",
    "ReplaySamples",
    "SampledTrajectory",
    "Sampler",
    "Samples",
    "SamplingCounts",
    "TaskState",
    "TaskWorkflow",
    "TrainingState",
    "clip_span",
    "collect_samples",
    "iter_samples",
]
