"""Host environments in worker processes and threads; nothing here imports TensorFlow."""

from tfrl.envs.workers.async_worker import AsyncEnvironmentWorker, WorkerLimits
from tfrl.envs.workers.base import EnvironmentWorker
from tfrl.envs.workers.pool import WorkerPool
from tfrl.envs.workers.protocol import NoState, WorkerError, WorkerMode, WorkerState
from tfrl.envs.workers.runner import episode_seed
from tfrl.envs.workers.sync_worker import SyncEnvironmentWorker

__all__ = [
    "AsyncEnvironmentWorker",
    "EnvironmentWorker",
    "NoState",
    "SyncEnvironmentWorker",
    "WorkerError",
    "WorkerLimits",
    "WorkerMode",
    "WorkerPool",
    "WorkerState",
    "episode_seed",
]
