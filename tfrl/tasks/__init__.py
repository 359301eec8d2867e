"""For people who bring an environment and a model: sampling with workers, replay, clips."""

from tfrl.tasks.clips import MultiReplaySamples, ReplaySamples, clip_span
from tfrl.tasks.counts import SamplingCounts
from tfrl.tasks.replay_dataset import ReplayDataset
from tfrl.tasks.sampler import Sampler
from tfrl.tasks.samples import SampledTrajectory, Samples
from tfrl.tasks.sampling import collect_samples, iter_samples

__all__ = [
    "MultiReplaySamples",
    "ReplayDataset",
    "ReplaySamples",
    "SampledTrajectory",
    "Sampler",
    "Samples",
    "SamplingCounts",
    "clip_span",
    "collect_samples",
    "iter_samples",
]
