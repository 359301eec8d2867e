"""Host environments in worker processes and threads; nothing here imports TensorFlow."""

from tfrl.envs.workers.async_worker import AsyncEnvironmentWorker
from tfrl.envs.workers.errors import WorkerError
from tfrl.envs.workers.limits import WorkerLimits
from tfrl.envs.workers.pool import WorkerPool
from tfrl.envs.workers.protocol import NoState, WorkerMode, WorkerState
from tfrl.envs.workers.seeds import episode_seed
from tfrl.envs.workers.sync_worker import SyncEnvironmentWorker

__all__ = [
    "AsyncEnvironmentWorker",
    "NoState",
    "SyncEnvironmentWorker",
    "WorkerError",
    "WorkerLimits",
    "WorkerMode",
    "WorkerPool",
    "WorkerState",
    "episode_seed",
]
