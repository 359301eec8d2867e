"""`TaskRunner`: the Python objects of a task's run, which no state holds."""

import weakref
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tfrl import checks, struct
from tfrl.errors import UserError
from tfrl.learners.reports import mean_of
from tfrl.storage.checkpoint_format import check_fits
from tfrl.tasks import clips
from tfrl.tasks.clips import MultiReplaySamples
from tfrl.tasks.environments import EpisodeReturns, make_pool
from tfrl.tasks.learner import TaskLearner
from tfrl.tasks.sampler import Sampler, SamplingCounts
from tfrl.tasks.samples import SampledTrajectory
from tfrl.tasks.task import RLTask
from tfrl.traces import Traces, counted_separately
from tfrl.workflows.run_state import RunMetrics, State
from tfrl.workflows.runner import Iterating, Runner


@struct.dataclass
class TaskState(State):
    """The state of a `TaskWorkflow`; `env_state` is each worker's next episode, int64 `[workers]`.

    Workers and replay buffer are Python objects of the run's `TaskRunner`.
    """


class Collection(NamedTuple):
    """The result of a collection.

    Attributes:
      sampled: The trajectories as sampled, before the hooks.
      counts: The sampler's counts.
      next_episodes: The number of each worker's next episode.
    """

    sampled: list[SampledTrajectory]
    counts: SamplingCounts
    next_episodes: list[int]


class TaskRunner(Runner):
    """Runs iterations in Python, with the learner, workers and replay buffer of a run.

    The first collection starts the workers. A user's model owns its variables, so this runner holds
    them; it does not hold `env_state`, with which it ends.

    Attributes:
      learner: The model in its learner.
      returns: The returns of unfinished episodes.
    """

    def __init__(self, workflow: Iterating, task: RLTask, compile: str):
        """Makes the model and the optimizer.

        Args:
          workflow: Has the iteration.
          task: The task.
          compile: The compile mode of the update: "graph", "xla" or "eager".
        """
        super().__init__(workflow, Traces())
        config = task.config
        self._task = task
        self.learner = TaskLearner(task)
        self._train: Any = self.learner.train
        if compile != "eager":
            jit = compile == "xla" or None
            self._train = tf.function(
                counted_separately(self._train), jit_compile=jit, autograph=False
            )
        self.returns = EpisodeReturns()
        self._rng = np.random.Generator(np.random.PCG64(0))
        self._replay = MultiReplaySamples(
            rng=self._rng, max_samples=config.replay_buffer_sample_size
        )
        # A checkpoint's replay, until the first trajectory gives the structure of its nests.
        self._restored_replay = np.zeros([0], np.uint8)
        self._sampler: Sampler | None = None
        self._close_pool: Any = None

    def fresh_state(self, key: tf.Tensor) -> TaskState:
        """Returns the first state, over the variables of the learner."""
        own = self.learner.learner_state
        (agent_state,) = own.agent_state.values()
        episodes = tf.Variable(tf.zeros([self._task.config.num_pool_workers], tf.int64))
        return TaskState(
            key=key,
            metrics=RunMetrics.start().replace(learner=own.counters),
            agent_state=agent_state,
            opt_state=next(iter(own.opt_state.values()), {}),
            env_state=episodes,
            replay_buffer_state={},
        )

    def collect(self, first_episodes: Iterable[int]) -> Collection:
        """Samples `num_collect_steps` env steps into the replay buffer, by `collect_samples`.

        Args:
          first_episodes: The number of each worker's first episode, if they are not running yet.

        Raises:
          UserError: `collect_samples` returned no samples.
        """
        task, config = self._task, self._task.config
        sampler = self._running_sampler(first_episodes)
        sampled: list[SampledTrajectory] = []
        counts = sampler.counts = SamplingCounts()
        sampler.on_trajectory = sampled.append
        samples = task.collect_samples(
            model=self.learner.model,
            worker_pool=sampler,
            total_samples=config.num_collect_steps,
            max_trajectory_length=config.max_trajectory_length,
            min_batch_size=config.min_action_batch_size,
            max_wait_time=config.max_wait_time,
            optimal=False,
        )
        thing = f"collect_samples of {type(task).__name__}"
        checks.instance(thing, samples, MultiReplaySamples, "MultiReplaySamples")
        trajectories = samples.in_order()
        self._store(trajectories)
        if not sampled:  # `collect_samples` did not use the sampler
            sampled, counts.samples = trajectories, len(samples)
        return Collection(sampled, counts, sampler.pool.next_episodes)

    def update(self, seed: int, iteration: int, env_steps: int) -> tuple[dict[str, float], int]:
        """Updates on clips of the replay buffer until the task's epoch is over.

        Args:
          seed: The run's seed.
          iteration: The number of the iteration; the clips follow from seed and iteration.
          env_steps: Env steps so far, for the learning rate.

        Returns:
          Means of the metrics, and the number of updates.

        Raises:
          UserError: A loss or a gradient was not finite; that step was skipped.
        """
        sequence = np.random.SeedSequence(seed, spawn_key=(iteration,))
        self._rng.bit_generator.state = np.random.PCG64(sequence).state
        counts = tf.constant([iteration, env_steps], tf.int64)
        rows: list[dict[str, Any]] = []
        for batch in self._task.build_rl_dataset(self._replay):
            rows.append(self._train(batch, counts, tf.constant(len(rows), tf.int64)))
            if self._task.epoch_is_over(len(rows), rows[-1]):
                break
        if not rows:
            raise UserError(
                f"build_rl_dataset of {type(self._task).__name__}",
                expected="at least one batch",
                got="an empty dataset",
                remedy="Return a dataset of batches of clips.",
            )
        rows = [{n: float(x) for n, x in row.items()} for row in rows]
        wrong = [i for i, row in enumerate(rows) if not row.pop("finite")]
        if wrong:
            raise UserError(
                f"the loss of {type(self._task).__name__} at iteration {iteration}",
                expected="finite values and gradients",
                got=f"non-finite values in {len(wrong)} of {len(rows)} updates, first in update "
                f"{wrong[0]} (loss {rows[wrong[0]]['loss']})",
                remedy="Lower the learning rate, or check rewards and observations; these updates "
                "were skipped.",
            )
        return mean_of([{"task": row} for row in rows])["task"], len(rows)

    @property
    def replay_size(self) -> int:
        """Samples in the replay buffer."""
        return len(self._replay)

    @property
    def restarts(self) -> int:
        """The number of worker restarts."""
        return self._sampler.pool.restarts if self._sampler is not None else 0

    def saved_values(self) -> dict[str, Any]:
        """Returns the values of model, optimizer and replay buffer for checkpoints, by path."""
        values = {name: v.numpy() for name, v in self.learner.saved_variables().items()}
        return {**values, "replay": self._replay_bytes()}

    def load(self, values: Mapping[str, Any], num_workers: int) -> None:
        """Loads the values of a checkpoint, and ends the workers, which then start again.

        Args:
          values: The result of `saved_values`, and the run's counters under `progress/`.
          num_workers: The workers of this run.

        Raises:
          UserError: The model or the number of workers differs.
        """
        variables = self.learner.saved_variables()
        episodes = "progress/next_episodes"
        want = {**variables, episodes: np.zeros([num_workers], np.int64)}
        check_fits(
            "the checkpoint",
            want,
            {path: values[path] for path in want},
            expected=f"the values of this model and {num_workers} workers",
            remedy="Use the task and the num_env_workers of the checkpoint.",
        )
        for path, variable in variables.items():
            variable.assign(values[path])
        self._replay.clear()
        self._restored_replay = np.array(values["replay"], np.uint8)
        self.close()
        self.iterations, self.returns = int(values["progress/iterations"]), EpisodeReturns()

    def _replay_bytes(self) -> np.ndarray:
        """Returns the replay buffer, uint8 `[N]`; empty if it is not saved."""
        if self._task.config.on_policy or not self._task.config.save_replay_buffer:
            return np.zeros([0], np.uint8)
        if self._restored_replay.size:
            return self._restored_replay
        return clips.to_bytes(self._replay.in_order())

    def close(self) -> None:
        """Ends the workers; another collection would start new ones."""
        if self._close_pool is not None:
            self._close_pool()
        self._sampler = self._close_pool = None

    def _running_sampler(self, first_episodes: Iterable[int]) -> Sampler:
        if self._sampler is None:
            config = self._task.config
            pool = make_pool(self._task, num_workers=config.num_env_workers, seed=config.env_seed)
            # The workers end with the last state of the run.
            self._close_pool = weakref.finalize(self, pool.close)
            if len(pool) != config.num_pool_workers:
                self.close()
                raise UserError(
                    f"get_worker_pool of {type(self._task).__name__}",
                    expected=f"{config.num_pool_workers} workers, as set by num_env_workers",
                    got=str(len(pool)),
                    remedy="Create this number of workers: a checkpoint stores one next episode "
                    "per worker.",
                )
            pool.next_episodes = list(first_episodes)
            self._sampler = Sampler(pool)
        return self._sampler

    def _store(self, trajectories: list[SampledTrajectory]) -> None:
        if not trajectories:
            raise UserError(
                f"postprocess_trajectories of {type(self._task).__name__}",
                expected="at least one trajectory",
                got="an empty list",
                remedy="Return the trajectories to store.",
            )
        if self._task.config.on_policy:
            self._replay.clear()
        if self._restored_replay.size:
            trajectories = [
                *clips.from_bytes(self._restored_replay, trajectories[0]),
                *trajectories,
            ]
            self._restored_replay = np.zeros([0], np.uint8)
        for trajectory in trajectories:
            self._replay.add(trajectory)
