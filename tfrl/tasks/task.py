"""`RLTask`: the base class for who brings an environment and a model."""

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
# What a task needs beside its environment to be trained.
TRAINED_BY = {
    "get_model": "the model, a built tf.keras.Model",
    "get_actions": "actions [N, ...] for the states of N workers",
    "compute_loss": "the loss of a batch of clips",
}


class RLTask(abc.ABC, Generic[Config, Model, State, Action, Output, Loss]):
    """An environment, a model, how it acts and what it minimises. `TaskWorkflow` trains it.

    ```python
    class MyTask(RLTask):
        get_environment = staticmethod(functools.partial(gymnasium.make, "CartPole-v1"))

        def get_model(self): ...                            # a built Keras model
        def get_actions(self, model, states, optimal): ...  # states [N, ...] to actions [N, ...]
        def compute_loss(self, model, batch, state, output): ...  # output of the model [B, n, ...]
    ```

    All that changes is outside of it: the model is made by `get_model` for every run and passed to
    the methods that act and train, so a task is logic and numbers only. Beside its configuration it
    holds the environment of clips, see `get_environment_cached`. For type checkers it is generic:
    `RLTask[Config, Model, State, Action, Output, Loss]`, where states and actions are stacked.
    """

    _environment: gymnasium.Env | None = None

    def __init__(self, config: Config):
        """Keeps the configuration.

        Args:
          config: The numbers of the task.

        Raises:
          UserError: For anything else than an `RLTaskConfig`.
        """
        remedy = "Give RLTaskConfig(num_update_steps=...); num_update_steps is required."
        thing = f"config of {type(self).__name__}"
        checks.instance(thing, config, RLTaskConfig, "an RLTaskConfig", remedy=remedy)
        self.config = config

    def __getstate__(self) -> dict[str, Any]:
        """What goes to the processes of workers: all but the environment of clips."""
        return {name: x for name, x in vars(self).items() if name != "_environment"}

    # What a task defines: the first one always, the others for what needs them.

    @abc.abstractmethod
    def get_environment(self) -> gymnasium.Env:
        """Makes one environment; each worker calls it.

        A worker's process imports what this method needs: of an ordinary method the task's module,
        and with it TensorFlow, which takes seconds. A static method that is a function of another
        module, or a `functools.partial` of one, is all that the worker gets to see. Give
        `render_mode="rgb_array"` for clips: frames are drawn only when one is recorded.
        """

    def get_model(self) -> Model:
        """Makes the model: a built `tf.keras.Model`, or any tf.Module with variables.

        Called once for a run, after `tf.keras.utils.set_random_seed`.
        """
        raise _undefined(self, "get_model")

    def get_actions(self, model: Model, states: State, optimal: bool) -> Action | Any:
        """Chooses actions.

        Args:
          model: Of `get_model`.
          states: Observations `[N, ...]`, a nest of NumPy arrays.
          optimal: Whether to act as well as possible, without exploring.

        Returns:
          Actions `[N, ...]`, or a pair of them and a dict of extras `[N, ...]` that are stored with
          the samples; nests of NumPy arrays or tensors.
        """
        raise _undefined(self, "get_actions")

    def compute_loss(
        self, model: Model, batch: Samples, state: TrainingState, output: Output
    ) -> Loss | Any:
        """Computes the loss of a batch of clips; traced.

        The form of earlier versions, `compute_loss(outputs, batch)`, works for one more release: it
        is a method that can be called with two arguments and has none named `state`.

        Args:
          model: Of `get_model`.
          batch: Clips `[batch_size, num_samples, ...]`; `last_obs` is `[batch_size, ...]`.
          state: Counts of the run.
          output: Of `run_model`.

        Returns:
          The scalar loss, or a pair of it and `{name: scalar}` to be logged.
        """
        raise _undefined(self, "compute_loss")

    # What a task may change.

    def train_model(self, model: Model, batch: Samples) -> dict[str, Any]:
        """Takes a whole training step, in the place of `compute_loss` and the optimizer; traced.

        For a model that trains by itself, such as an agent of another library. A task that defines
        it needs no `compute_loss`, and `run_model`, `get_optimizer` and `get_learning_rate` are not
        called. What it did is undone where the loss or a variable of the model is not finite.
        `model.variables` are all that it may change, an optimizer's slots included, made before
        `get_model` returns: what is saved and undone are they.

        Args:
          model: Of `get_model`, whose variables it changes.
          batch: Clips `[batch_size, num_samples, ...]`.

        Returns:
          `{name: scalar}`, `loss` among them.
        """
        raise NotImplementedError(f"{type(self).__name__} trains by compute_loss")

    def run_model(self, model: Model, batch: Samples, state: Any = None) -> Output | Any:
        """Runs the model on a batch for `compute_loss`; traced.

        The form of earlier versions, `run_model(model, batch)`, works for one more release.

        By default on all samples of all clips at once, as `get_actions` most often runs it on the
        states of all workers: `model([batch_size * num_samples, ...], training=True)`.

        Args:
          model: Of `get_model`.
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
        """Makes the optimizer, native or of Keras; Adam with a rate of 3e-4 by default."""
        return optimizers.Adam()

    def get_learning_rate(self) -> Any:
        """Returns a schedule over env steps, as of `tfrl.ops.schedules`, or a number.

        None, the default, leaves a Keras optimizer's own rate; for others it is 3e-4.
        """
        return None

    def postprocess_trajectory(self, model: Model, trajectory: SampledTrajectory) -> Any:
        """Changes a trajectory as it is sampled, see `iter_samples`.

        Args:
          model: Of `get_model`, with the parameters that sampled.
          trajectory: The samples, T of them.

        Returns:
          `trajectory.replace(...)` of the same length: what losses need beside, such as
          advantages, belongs into `extras`.
        """
        return trajectory

    def postprocess_trajectories(self, model: Model, trajectories: list[SampledTrajectory]) -> Any:
        """Changes the list of all trajectories of a collection, after the other hook with each.

        Args:
          model: Of `get_model`.
          trajectories: All of the collection.

        Returns:
          The list of trajectories to store.
        """
        return trajectories

    def epoch_is_over(self, num_updates: int, metrics: Mapping[str, Any]) -> bool:
        """Whether to collect anew after an update; after `num_update_steps` by default.

        Args:
          num_updates: Updates since the collection, this one included.
          metrics: Of the update: `loss`, `gradient_norm`, and those of `compute_loss`, scalar
            tensors.
        """
        return num_updates >= self.config.num_update_steps

    # Environments, workers and samples.

    def get_environment_cached(self) -> gymnasium.Env:
        """Returns the environment of clips: one of `get_environment`, made once and kept.

        `close` ends it. A clip that fails does so too, and the next one gets a new environment.

        Raises:
          UserError: It is no `gymnasium.Env`.
        """
        if self._environment is None:
            self._environment = checked_env(self.get_environment(), "get_environment()")
        return self._environment

    def close(self) -> None:
        """Closes the environment of clips, if there is one. Twice is harmless."""
        environment, self._environment = self._environment, None
        if environment is not None:
            environment.close()

    def get_environment_workers(self, force_sync: bool = False) -> list[EnvironmentWorker]:
        """Starts the workers of a pool: `config.num_env_workers` of them, with `env_seed`.

        Args:
          force_sync: Runs all of them inside of this process, in turn; so do `config.force_sync`
            and 0 workers, which stand for one.

        Returns:
          Worker w with `worker_id=w`.
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

        `TaskWorkflow` makes one for training and one for each evaluation. For an evaluation it
        calls this method of a copy of the task, whose `config` has other seeds and as many workers
        as there are episodes at most.

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
          model: Acts by `get_actions`.
          worker_pool: The workers, which are reset; or a `Sampler`, whose episodes go on.
          total_samples: Env steps to give out, exactly; None for a stream without an end.
          min_trajectory_length: Shorter trajectories are discarded; so are those too short for a
            training clip.
          max_trajectory_length: Episodes are ended there, and their environments reset.
          min_batch_size: States to wait for, `max_wait_time` at most.
          max_batch_size: States of one call of `get_actions` at most; None for all workers.
          max_wait_time: Seconds; None waits for `max_batch_size` states.
          optimal: Passed to `get_actions`.

        Returns:
          An iterator over what `postprocess_trajectory` returns.

        Raises:
          UserError: As `tfrl.tasks.iter_samples`.
          WorkerError: While iterating, for a fault of an environment.
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
        """Returns what `iter_samples` gives, after `postprocess_trajectories`.

        `TaskWorkflow` calls it with a `Sampler`, `num_collect_steps` and the bounds of the config,
        and `optimal=False`; the env steps that it counts are those of the sampler, or, where a task
        samples otherwise, those that are returned.

        Args:
          model: Acts by `get_actions`.
          worker_pool: See `iter_samples`.
          total_samples: Env steps to sample.
          min_trajectory_length: See `iter_samples`.
          max_trajectory_length: See `iter_samples`.
          min_batch_size: See `iter_samples`.
          max_batch_size: See `iter_samples`.
          max_wait_time: See `iter_samples`.
          optimal: See `iter_samples`.

        Raises:
          UserError: As `iter_samples`, or a hook returns something else than trajectories.
          WorkerError: As `iter_samples`.
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
          samples: All of the replay buffer, the new collection included. Clips are drawn from it by
            a generator that follows from the seed of the run and the iteration.

        Returns:
          A tf.data.Dataset, or another iterable, of batches for `run_model` and `compute_loss`; by
          default a `ReplayDataset` of clips `[batch_size, num_samples, ...]`. Its end ends the
          epoch, if `epoch_is_over` has not.
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
        """Plays one episode in the environment of clips, and shows or returns it.

        The first frame is the initial state's: an episode of T steps has T + 1 frames, frame t
        shows what action t was chosen from, and frame T what came last.

        Args:
          model: Acts by `get_actions`; None for random actions.
          save_path: A file name ending in .mp4 or .gif, written with the environment's fps
            (`metadata["render_fps"]`, 30 without one).
          return_images: Whether to return the frames; None for yes, unless the clip is saved or
            shown in TensorBoard.
          return_states: Whether to return the samples, as those of `iter_samples`.
          writer: What encodes the file: "ffmpeg" (imageio-ffmpeg; Pillow for .gif), "matplotlib" or
            "opencv" (.mp4). A `tf.summary` writer is taken as `summary_writer`, for one release.
          standardize_images: Whether the returned frames are uint8 `[T + 1, H, W, 3]`, RGB, H and W
            even and those of the first frame, as they always are in files. False returns the list
            of what `env.render()` gave.
          optimal: Passed to `get_actions`.
          max_steps: Env steps at most; the config's if None. The config's `max_episode_steps`
            truncates the episode, as in training.
          seed: The episode is that of worker 0, episode 0 of a pool with this seed; the config's
            `env_seed` if None. Random actions follow from it too.
          summary_writer: Of `tf.summary.create_file_writer`: shows the clip in TensorBoard, shrunk
            and thinned out to at most 150 frames of 256 pixels.
          step: Of the summary.
          tag: Name of the summary.
          preview: Takes the frames too; `TaskWorkflow` gives one for its videos.

        Returns:
          The images, the samples, or a pair of both, as was asked for; None for neither.

        Raises:
          UserError: For arguments that contradict each other or ask for nothing, a writer that is
            not installed, an environment without render_mode "rgb_array" or whose initial state is
            terminal already, and frames that are no pictures.
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
    """Which methods of a task are passed the state: not those of the form of earlier versions."""

    run_model: bool
    compute_loss: bool


def call_forms(task: RLTask) -> CallForms:
    """Tells the two forms of `run_model` and `compute_loss` apart by their signatures.

    Raises:
      UserError: One has neither form.
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
        remedy="Give it these arguments.",
    )


def _fits(signature: inspect.Signature, arguments: str) -> bool:
    try:
        signature.bind(*arguments.split(", "))
    except TypeError:
        return False
    return True


def trains_itself(task: RLTask) -> bool:
    """Whether a task defines `train_model`."""
    return type(task).train_model is not RLTask.train_model


def check_trainable(task: RLTask) -> None:
    """Raises a UserError for a task that lacks one of the methods that training calls."""
    for name in TRAINED_BY:
        if name == "compute_loss" and trains_itself(task):
            continue
        if name not in vars(task) and getattr(type(task), name) is getattr(RLTask, name):
            raise _undefined(task, name)


def _undefined(task: RLTask, name: str) -> UserError:
    return UserError(
        f"{name} of {type(task).__name__}",
        expected=f"a method that returns {TRAINED_BY[name]}",
        got="none, for the task does not define it",
        remedy=f"Define {name}, see tfrl.tasks.RLTask.{name}.",
    )
