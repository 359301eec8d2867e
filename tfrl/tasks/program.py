"""What the states of one run of a task share: workers, replay buffer, model, optimizer."""

import time
import weakref
from collections.abc import Iterable
from typing import Any

import numpy as np

from tfrl.envs.workers import WorkerPool
from tfrl.errors import UserError
from tfrl.tasks import clips
from tfrl.tasks.replay_dataset import ReplayDataset
from tfrl.tasks.sampler import Sampler, SamplingCounts
from tfrl.tasks.samples import SampledTrajectory
from tfrl.tasks.sampling import collect_samples
from tfrl.tasks.task import RLTask
from tfrl.tasks.task_evaluation import make_pool
from tfrl.tasks.training_step import TrainingStep, means


class TaskProgram:
    """Collects and updates. Workers are started by the first collection.

    Attributes:
      training: Model and optimizer.
      version: Of the newest state of the run.
    """

    def __init__(self, task: RLTask, compile: str):
        """Makes the model and the optimizer.

        Args:
          task: The task.
          compile: Mode of the update.
        """
        config = task.config
        self._task = task
        self.training = TrainingStep(task, compile)
        self.version = 0
        self._rng = np.random.Generator(np.random.PCG64(0))
        self._replay = ReplayDataset(
            batch_size=config.batch_size,
            clip_size=config.num_samples,
            stride=config.stride,
            rng=self._rng,
            replay_buffer_sample_size=config.replay_buffer_sample_size,
        )
        # Of a checkpoint, until the first trajectory tells the structure of its nests.
        self._restored_replay = np.zeros([0], np.uint8)
        self._sampler: Sampler | None = None
        self._close_pool: Any = None

    def collect(
        self, first_episodes: Iterable[int], counts: SamplingCounts
    ) -> tuple[list[SampledTrajectory], list[int]]:
        """Samples `num_collect_steps` env steps into the replay buffer.

        Args:
          first_episodes: Where each worker begins, if they are not running yet.
          counts: What happened is added to it.

        Returns:
          The trajectories as they were sampled, before the hooks; and each worker's next episode.
        """
        task, config, model = self._task, self._task.config, self.training.model
        sampled: list[SampledTrajectory] = []

        def postprocess(trajectory: SampledTrajectory) -> SampledTrajectory:
            sampled.append(trajectory)
            return task.postprocess_trajectory(model, trajectory)

        pool = self._running_pool(first_episodes)
        trajectories = collect_samples(
            self._sampler or pool,
            lambda states, optimal: task.get_actions(model, states, optimal),
            total_samples=config.num_collect_steps,
            clip_length=config.clip_span,
            max_trajectory_length=config.max_trajectory_length,
            min_batch_size=config.min_action_batch_size,
            max_wait_time=config.max_wait_time,
            postprocess_trajectory=postprocess,
            postprocess_trajectories=lambda ts: task.postprocess_trajectories(model, ts),
            counts=counts,
        )
        self._store(trajectories)
        return sampled, pool.next_episodes

    def update(self, seed: int, iteration: int, env_steps: int) -> tuple[dict[str, float], int]:
        """Updates on clips of the replay buffer until the task's epoch is over.

        Args:
          seed: Of the run.
          iteration: Its number; the clips follow from both.
          env_steps: So far, for the learning rate.

        Returns:
          Means of the metrics, and how many updates there were.

        Raises:
          UserError: A loss or a gradient was not finite; that step was left out.
        """
        sequence = np.random.SeedSequence(seed, spawn_key=(iteration,))
        self._rng.bit_generator.state = np.random.PCG64(sequence).state
        self.training.set_learning_rate(env_steps)
        rows: list[dict[str, Any]] = []
        for batch in self._replay.as_dataset():
            rows.append(self.training.update(batch))
            if self._task.epoch_is_over(len(rows), rows[-1]):
                break
        metrics = means(rows)
        if metrics.pop("finite") < 1.0:
            wrong = [i for i, row in enumerate(rows) if not bool(row["finite"])]
            raise UserError(
                f"the loss of {type(self._task).__name__} at iteration {iteration}",
                expected="finite values and gradients",
                got=f"others in {len(wrong)} of {len(rows)} updates, the first in update "
                f"{wrong[0]} (loss {float(rows[wrong[0]]['loss'])})",
                remedy="Lower the learning rate, or check rewards and observations; the steps were "
                "left out.",
            )
        return metrics, len(rows)

    @property
    def replay_size(self) -> int:
        """Samples in the replay buffer."""
        return len(self._replay)

    @property
    def restarts(self) -> int:
        """How often workers were restarted since they were started."""
        return self._sampler.pool.restarts if self._sampler is not None else 0

    def replay_bytes(self) -> np.ndarray:
        """The replay buffer for a checkpoint, uint8 `[N]`; empty where it is not to be saved."""
        if self._task.config.on_policy or not self._task.config.save_replay_buffer:
            return np.zeros([0], np.uint8)
        if self._restored_replay.size:
            return self._restored_replay
        return clips.to_bytes(self._replay.samples.in_order())

    def load_replay(self, data: np.ndarray) -> None:
        """Puts what `replay_bytes` gave in place of the replay buffer."""
        self._replay.clear()
        self._restored_replay = np.array(data, np.uint8)

    def close(self) -> None:
        """Ends the workers; the next collection would start others."""
        if self._close_pool is not None:
            self._close_pool()
        self._sampler = self._close_pool = None

    def _running_pool(self, first_episodes: Iterable[int]) -> WorkerPool:
        if self._sampler is None:
            config = self._task.config
            pool = make_pool(
                self._task,
                num_workers=config.num_env_workers,
                seed=config.env_seed,
                first_episodes=list(first_episodes),
            )
            self._sampler = Sampler(pool)
            # The workers go with the last state of the run.
            self._close_pool = weakref.finalize(self, pool.close)
        return self._sampler.pool

    def _store(self, trajectories: list[SampledTrajectory]) -> None:
        if not trajectories:
            raise UserError(
                f"postprocess_trajectories of {type(self._task).__name__}",
                expected="at least one trajectory",
                got="none",
                remedy="Return the trajectories to store.",
            )
        if self._task.config.on_policy:
            self._replay.clear()
        if self._restored_replay.size:
            self._replay.add(clips.from_bytes(self._restored_replay, trajectories[0]))
            self._restored_replay = np.zeros([0], np.uint8)
        self._replay.add(trajectories)


class Stopwatch:
    """Adds up the seconds of parts that follow each other."""

    def __init__(self) -> None:
        """Starts."""
        self.seconds: dict[str, float] = {}
        self._started = self._lap = time.monotonic()

    def lap(self, name: str) -> None:
        """Adds the time since the last lap."""
        now = time.monotonic()
        self.seconds[name] = self.seconds.get(name, 0.0) + now - self._lap
        self._lap = now

    def total(self) -> float:
        """Returns the seconds since the start."""
        return time.monotonic() - self._started
