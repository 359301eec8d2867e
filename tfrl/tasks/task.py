"""`RLTask`: the base class for a user's environment and model."""

import abc
import inspect
import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Generic, NamedTuple, TypeVar

import gymnasium
import numpy as np
import tensorflow as tf

from tfrl import checks, keras
from tfrl.envs.workers import (
    AsyncEnvironmentWorker,
    EnvironmentWorker,
    SyncEnvironmentWorker,
    WorkerLimits,
    WorkerPool,
)
from tfrl.envs.workers.runner import checked_env
from tfrl.errors import UserError
from tfrl.evaluation import video_file
from tfrl.learning import optimizers
from tfrl.tasks import clip_recording, sampling
from tfrl.tasks.clips import MultiReplaySamples
from tfrl.tasks.config import RLTaskConfig
from tfrl.tasks.replay_dataset import ReplayDataset
from tfrl.tasks.sampler import Sampler
from tfrl.tasks.samples import SampledTrajectory, Samples
from tfrl.tasks.training_state import TrainingState

Nest = Any
Metrics = dict[str, Any]
Config = TypeVar("Config", bound=RLTaskConfig)
Model = TypeVar("Model")
State = TypeVar("State")
Action = TypeVar("Action")
Output = TypeVar("Output")
Loss = TypeVar("Loss")
# Methods that a task needs for training, beside its environment.
TRAINED_BY = {
    "get_model": "the model, a built tf.keras.Model",
    "get_actions": "actions [N, ...] for the states of N workers",
    "compute_loss": "the loss of a batch of clips",
}


class RLTask(abc.ABC, Generic[Config, Model, State, Action, Output, Loss]):
    """An environment, a model, its policy and its loss. `TaskWorkflow` trains it.

    ```python
    class MyTask(RLTask):
        get_environment = staticmethod(functools.partial(gymnasium.make, "CartPole-v1"))

        def get_model(self): ...                            # a built Keras model
        def get_actions(self, model, states, optimal): ...  # states [N, ...] to actions [N, ...]
        def compute_loss(self, model, batch, state, output): ...  # output of the model [B, n, ...]
    ```

    A task has no training state: every run creates a model by `get_model` and passes it to the
    methods that act and train. Beside its configuration a task only keeps the environment for
    clips, see `get_environment_cached`. For type checkers it is generic:
    `RLTask[Config, Model, State, Action, Output, Loss]`, where states and actions are stacked.
    """

    _environment: gymnasium.Env | None = None

    def __init__(self, config: Config):
        """Stores the configuration.

        Args:
          config: The settings of the task.

        Raises:
          UserError: Unless it is an `RLTaskConfig`.
        """
        remedy = "Pass RLTaskConfig(num_update_steps=...); num_update_steps is required."
        thing = f"config of {type(self).__name__}"
        checks.instance(thing, config, RLTaskConfig, "an RLTaskConfig", remedy=remedy)
        self.config = config

    def __getstate__(self) -> dict[str, Any]:
        """Returns the state for worker processes: everything but the environment for clips."""
        return {name: x for name, x in vars(self).items() if name != "_environment"}

    # For a task to define: the first always, the others where they are used.

    @abc.abstractmethod
    def get_environment(self) -> gymnasium.Env:
        """Makes one environment; each worker calls it.

        A worker process imports the module of this method. For an ordinary method that is the
        task's module, and with it TensorFlow, which takes seconds. A static method that is a
        function of another module, or a `functools.partial` of one, avoids that. Clips need
        `render_mode="rgb_array"`; frames are rendered only for clips.
        """

    def get_model(self) -> Model:
        """Makes the model: a built `tf.keras.Model`, or any tf.Module with variables.

        Called once per run, after `tf.keras.utils.set_random_seed`.
        """
        raise _undefined(self, "get_model")

    def get_actions(self, model: Model, states: State, optimal: bool) -> Action | Any:
        """Chooses actions.

        Args:
          model: The result of `get_model`.
          states: Observations `[N, ...]`, a nest of NumPy arrays.
          optimal: Whether to act greedily, without exploration.

        Returns:
          Actions `[N, ...]`, or a pair of actions and a dict of extras `[N, ...]` to store with the
          samples; nests of NumPy arrays or tensors.
        """
        raise _undefined(self, "get_actions")

    def compute_loss(
        self, model: Model, batch: Samples, state: TrainingState, output: Output
    ) -> Loss | Any:
        """Computes the loss of a batch of clips; traced.

        The form of earlier versions, `compute_loss(outputs, batch)`, works for one more release. It
        is recognised as a method of two arguments, none of them named `state`.

        Args:
          model: The result of `get_model`.
          batch: Clips `[batch_size, num_samples, ...]`; `last_obs` is `[batch_size, ...]`.
          state: Counts of the run.
          output: The result of `run_model`.

        Returns:
          The scalar loss, or a pair of the loss and metrics `{name: scalar}`.
        """
        raise _undefined(self, "compute_loss")

    # For a task to override.

    def train_model(self, model: Model, batch: Samples) -> dict[str, Any]:
        """Takes a whole training step, in the place of `compute_loss` and the optimizer; traced.

        For a model that trains itself, for example an agent of another library. A task that defines
        it needs no `compute_loss`; `run_model`, `get_optimizer` and `get_learning_rate` are not
        called. The step is undone if the loss or a variable of the model is not finite.
        It may change only `model.variables`, which must include the optimizer's slots when
        `get_model` returns: only these are saved and restored.

        Args:
          model: The result of `get_model`; its variables are changed.
          batch: Clips `[batch_size, num_samples, ...]`.

        Returns:
          `{name: scalar}`, including `loss`.
        """
        raise NotImplementedError(f"{type(self).__name__} trains by compute_loss")

    def run_model(self, model: Model, batch: Samples, state: Any = None) -> Output | Any:
        """Runs the model on a batch for `compute_loss`; traced.

        The form of earlier versions, `run_model(model, batch)`, works for one more release.

        By default it runs on all samples of all clips at once:
        `model([batch_size * num_samples, ...], training=True)`.

        Args:
          model: The result of `get_model`.
          batch: Clips `[batch_size, num_samples, ...]`.
          state: Counts of the run, a `TrainingState`.

        Returns:
          Anything; by default the model's outputs as `[batch_size, num_samples, ...]`.
        """
        lead = list(batch.reward.shape)
        rows = tf.nest.map_structure(lambda x: tf.reshape(x, [-1, *x.shape[2:]]), batch.obs)
        outputs = model(rows, training=True)  # type: ignore[operator]
        return tf.nest.map_structure(lambda x: tf.reshape(x, [*lead, *x.shape[1:]]), outputs)

    def get_optimizer(self) -> optimizers.Optimizer | keras.api.optimizers.Optimizer:
        """Makes the optimizer, native or of Keras; by default Adam with a rate of 3e-4."""
        return optimizers.Adam()

    def get_learning_rate(self) -> Any:
        """Returns a schedule over env steps, see `tfrl.ops.schedules`, or a number.

        None, the default, keeps a Keras optimizer's own rate; for other optimizers it is 3e-4.
        """
        return None

    def postprocess_trajectory(self, model: Model, trajectory: SampledTrajectory) -> Any:
        """Changes a trajectory after sampling, see `iter_samples`.

        Args:
          model: The result of `get_model`, with the parameters that sampled.
          trajectory: T samples.

        Returns:
          `trajectory.replace(...)` of the same length. Put further inputs of losses, for example
          advantages, into `extras`.
        """
        return trajectory

    def postprocess_trajectories(self, model: Model, trajectories: list[SampledTrajectory]) -> Any:
        """Changes the list of a collection's trajectories, after `postprocess_trajectory`.

        Args:
          model: The result of `get_model`.
          trajectories: All trajectories of the collection.

        Returns:
          The list of trajectories to store.
        """
        return trajectories

    def epoch_is_over(self, num_updates: int, metrics: Mapping[str, Any]) -> bool:
        """Whether to collect again after an update; by default after `num_update_steps`.

        Args:
          num_updates: Updates since the collection, including this one.
          metrics: The update's metrics: `loss`, `gradient_norm`, and metrics of `compute_loss`,
            scalar tensors.
        """
        return num_updates >= self.config.num_update_steps

    # Environments, workers and samples.

    def get_environment_cached(self) -> gymnasium.Env:
        """Returns the environment for clips, made once by `get_environment` and kept.

        `close` closes it. A clip that fails also does, and the next clip gets a new environment.

        Raises:
          UserError: Unless it is a `gymnasium.Env`.
        """
        if self._environment is None:
            self._environment = checked_env(self.get_environment(), "get_environment()")
        return self._environment

    def close(self) -> None:
        """Closes the environment for clips, if there is one; may be called twice."""
        environment, self._environment = self._environment, None
        if environment is not None:
            environment.close()

    def get_environment_workers(self, force_sync: bool = False) -> list[EnvironmentWorker]:
        """Starts the `config.num_env_workers` workers of a pool, with `env_seed`.

        Args:
          force_sync: Runs all workers in this process, in turn; so do `config.force_sync` and 0
            workers, which stand for one.

        Returns:
          The workers; worker w has `worker_id=w`.
        """
        config = self.config
        count = config.num_pool_workers
        common: dict[str, Any] = {
            "seed": config.env_seed,
            "max_episode_steps": config.max_episode_steps,
        }
        if force_sync or config.force_sync or config.num_env_workers == 0:
            return [
                SyncEnvironmentWorker(self.get_environment, worker_id=w, **common)
                for w in range(count)
            ]
        limits = WorkerLimits(cleanup_time=config.env_cleanup_time)
        mode = config.env_worker_mode
        return [
            AsyncEnvironmentWorker(
                self.get_environment, worker_id=w, mode=mode, limits=limits, **common
            )
            for w in range(count)
        ]

    def get_worker_pool(self, force_sync: bool = False) -> WorkerPool:
        """Makes a pool of `get_environment_workers`; the caller closes it.

        `TaskWorkflow` makes a pool for training and one for each evaluation. For an evaluation it
        calls this method of a copy of the task; its `config` has other seeds and at most as many
        workers as episodes.

        Args:
          force_sync: See `get_environment_workers`.
        """
        return WorkerPool.from_workers(self.get_environment_workers(force_sync=force_sync))

    def iter_samples(
        self,
        model: Model,
        worker_pool: WorkerPool | Sampler,
        *,
        total_samples: int | None = None,
        min_trajectory_length: int = 1,
        max_trajectory_length: int | None = None,
        min_batch_size: int = 1,
        max_batch_size: int | None = None,
        max_wait_time: float | None = None,
        optimal: bool = True,
    ) -> Iterator[SampledTrajectory]:
        """Returns an iterator over trajectories of the model; see `tfrl.tasks.iter_samples`.

        Args:
          model: The model, which acts by `get_actions`.
          worker_pool: The workers, which are reset; or a `Sampler`, whose episodes continue.
          total_samples: The exact number of env steps to yield; None for an infinite stream.
          min_trajectory_length: Shorter trajectories are discarded; so are those too short for a
            training clip.
          max_trajectory_length: The length at which episodes are ended and environments reset.
          min_batch_size: States to wait for, up to `max_wait_time`.
          max_batch_size: The most states of one call of `get_actions`; None for all workers.
          max_wait_time: Seconds; None waits for `max_batch_size` states.
          optimal: Passed to `get_actions`.

        Returns:
          An iterator over the results of `postprocess_trajectory`.

        Raises:
          UserError: See `tfrl.tasks.iter_samples`.
          WorkerError: While iterating, for an error of an environment.
        """
        return sampling.iter_samples(
            worker_pool,
            lambda states, best: self.get_actions(model, states, best),
            total_samples=total_samples,
            clip_length=self.config.clip_span,
            min_trajectory_length=max(min_trajectory_length, self.config.clip_span),
            max_trajectory_length=max_trajectory_length,
            min_batch_size=min_batch_size,
            max_batch_size=max_batch_size,
            max_wait_time=max_wait_time,
            optimal=optimal,
            postprocess_trajectory=lambda t: self.postprocess_trajectory(model, t),
        )

    def collect_samples(
        self,
        model: Model,
        worker_pool: WorkerPool | Sampler,
        total_samples: int,
        *,
        min_trajectory_length: int = 1,
        max_trajectory_length: int | None = None,
        min_batch_size: int = 1,
        max_batch_size: int | None = None,
        max_wait_time: float | None = None,
        optimal: bool = True,
    ) -> MultiReplaySamples:
        """Returns the trajectories of `iter_samples`, after `postprocess_trajectories`.

        `TaskWorkflow` calls it with a `Sampler`, `num_collect_steps`, the bounds of the config, and
        `optimal=False`. It counts the env steps of the sampler; if a task does not use the sampler,
        it counts the returned samples.

        Args:
          model: The model, which acts by `get_actions`.
          worker_pool: See `iter_samples`.
          total_samples: Env steps to sample.
          min_trajectory_length: See `iter_samples`.
          max_trajectory_length: See `iter_samples`.
          min_batch_size: See `iter_samples`.
          max_batch_size: See `iter_samples`.
          max_wait_time: See `iter_samples`.
          optimal: See `iter_samples`.

        Raises:
          UserError: See `iter_samples`; also if a hook returns no trajectories.
          WorkerError: See `iter_samples`.
        """
        sampling.check_total(total_samples)
        trajectories = self.iter_samples(
            model,
            worker_pool,
            total_samples=total_samples,
            min_trajectory_length=min_trajectory_length,
            max_trajectory_length=max_trajectory_length,
            min_batch_size=min_batch_size,
            max_batch_size=max_batch_size,
            max_wait_time=max_wait_time,
            optimal=optimal,
        )
        stored = self.postprocess_trajectories(model, list(trajectories))
        return MultiReplaySamples(sampling.checked_trajectories(stored))

    def build_rl_dataset(self, samples: MultiReplaySamples) -> Any:
        """Makes the dataset of an epoch of updates.

        Args:
          samples: The replay buffer, with the new collection. Its generator of clips follows from
            the run's seed and the iteration.

        Returns:
          A tf.data.Dataset, or another iterable, of batches for `run_model` and `compute_loss`; by
          default a `ReplayDataset` of clips `[batch_size, num_samples, ...]`. The end of the
          dataset also ends the epoch.
        """
        config = self.config
        return ReplayDataset(
            samples, config.num_samples, config.stride, batch_size=config.batch_size
        )

    # Clips.

    def sample_clip(
        self,
        model: Model | None = None,
        save_path: str | os.PathLike | None = None,
        *,
        return_images: bool | None = None,
        return_states: bool = False,
        writer: str | tf.summary.SummaryWriter = "ffmpeg",
        standardize_images: bool = True,
        optimal: bool = True,
        max_steps: int | None = None,
        seed: int | None = None,
        summary_writer: tf.summary.SummaryWriter | None = None,
        step: int = 0,
        tag: str = "clip",
        preview: video_file.Preview | None = None,
    ) -> Any:
        """Plays one episode in the environment for clips, and records or returns it.

        An episode of T steps has T + 1 frames: frame t shows the state of action t, and frame T the
        final state.

        Args:
          model: The model, which acts by `get_actions`; None for random actions.
          save_path: A file name ending in .mp4 or .gif, written with the environment's fps
            (`metadata["render_fps"]`, 30 without one).
          return_images: Whether to return the frames; None for yes, unless the clip is saved or
            shown in TensorBoard.
          return_states: Whether to return the samples, as from `iter_samples`.
          writer: The encoder of the file: "ffmpeg" (imageio-ffmpeg; Pillow for .gif), "matplotlib"
            or "opencv" (.mp4). A `tf.summary` writer is taken as `summary_writer`, for one release.
          standardize_images: Whether the returned frames are uint8 `[T + 1, H, W, 3]`, RGB, with
            the first frame's size rounded up to even, as they always are in files. False returns
            the list of the outputs of `env.render()`.
          optimal: Passed to `get_actions`.
          max_steps: The most env steps; the config's if None. The config's `max_episode_steps`
            truncates the episode, as in training.
          seed: The seed of a pool; the clip is episode 0 of its worker 0, and random actions follow
            from it too. The config's `env_seed` if None.
          summary_writer: From `tf.summary.create_file_writer`; shows the clip in TensorBoard,
            reduced to at most 150 frames of 256 pixels.
          step: The step of the summary.
          tag: The name of the summary.
          preview: Also takes the frames; `TaskWorkflow` passes one for its videos.

        Returns:
          The images, the samples, or a pair of both, as requested; None for neither.

        Raises:
          UserError: For contradictory arguments, a clip without output, a writer that is not
            installed, an environment without render_mode "rgb_array" or with a terminal initial
            state, and frames that are no images.
        """
        options = clip_recording.clip_options(
            save_path=save_path,
            return_images=return_images,
            return_states=return_states,
            writer=writer,
            summary_writer=summary_writer,
            standardize_images=standardize_images,
            max_steps=self.config.max_steps if max_steps is None else max_steps,
            seed=self.config.env_seed if seed is None else seed,
        )
        clip, images = clip_recording.play(
            self, model, options, optimal=optimal, step=step, tag=tag, preview=preview
        )
        results: list[Any] = []
        if options.keeps_images:
            results.append(np.stack(images) if standardize_images else images)
        if return_states:
            results.append(clip.trajectory)
        if len(results) == 2:
            return tuple(results)
        return results[0] if results else None


class CallForms(NamedTuple):
    """Which methods of a task take the state; methods in the form of earlier versions do not."""

    run_model: bool
    compute_loss: bool


def call_forms(task: RLTask) -> CallForms:
    """Finds the forms of `run_model` and `compute_loss` by their signatures.

    Raises:
      UserError: A signature has neither form.
    """
    return CallForms(
        _takes_state(task, "run_model", "model, batch, state", "model, batch"),
        _takes_state(task, "compute_loss", "model, batch, state, output", "outputs, batch"),
    )


def _takes_state(task: RLTask, name: str, now: str, before: str) -> bool:
    method: Callable[..., Any] = getattr(task, name)
    signature = inspect.signature(method)
    if "state" not in signature.parameters and _fits(signature, before):
        return False
    if _fits(signature, now):
        return True
    raise UserError(
        f"{name} of {type(task).__name__}",
        expected=f"a method {name}({now})",
        got=f"{name}{signature}",
        remedy="Change its signature to these arguments.",
    )


def _fits(signature: inspect.Signature, arguments: str) -> bool:
    try:
        signature.bind(*arguments.split(", "))
    except TypeError:
        return False
    return True


def has_own_train_model(task: RLTask) -> bool:
    """Whether a task defines `train_model`."""
    return type(task).train_model is not RLTask.train_model


def check_trainable(task: RLTask) -> None:
    """Raises a UserError for a task that lacks one of the methods that training calls."""
    for name in TRAINED_BY:
        if name == "compute_loss" and has_own_train_model(task):
            continue
        if name not in vars(task) and getattr(type(task), name) is getattr(RLTask, name):
            raise _undefined(task, name)


def _undefined(task: RLTask, name: str) -> UserError:
    return UserError(
        f"{name} of {type(task).__name__}",
        expected=f"a method that returns {TRAINED_BY[name]}",
        got="a task without this method",
        remedy=f"Define {name}; see tfrl.tasks.RLTask.{name}.",
    )
