"""`RLTask`: the base class for who brings an environment and a model."""

import abc
import os
from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np
import tensorflow as tf

from tfrl import checks, keras
from tfrl.errors import UserError
from tfrl.learning import optimizers
from tfrl.tasks import clip_recording
from tfrl.tasks.config import RLTaskConfig
from tfrl.tasks.samples import SampledTrajectory, Samples

Nest = Any
Metrics = dict[str, Any]
# What a task needs beside its environment to be trained.
TRAINED_BY = {
    "get_model": "the model, a built tf.keras.Model",
    "get_actions": "actions [N, ...] for the states of N workers",
    "compute_loss": "the loss of a batch of clips",
}


class RLTask(abc.ABC):
    """An environment, a model, how it acts and what it minimises. `TaskWorkflow` trains it.

    ```python
    class MyTask(RLTask):
        get_environment = staticmethod(functools.partial(gymnasium.make, "CartPole-v1"))

        def get_model(self): ...                            # a built Keras model
        def get_actions(self, model, states, optimal): ...  # states [N, ...] to actions [N, ...]
        def compute_loss(self, outputs, batch): ...         # outputs of the model [B, n, ...]
    ```

    All that changes is outside of it: the model is made by `get_model` for every run and handed to
    every method, so a task is logic and numbers only.
    """

    def __init__(self, config: RLTaskConfig):
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

    # What a task defines: the first one always, the others for what needs them.

    @abc.abstractmethod
    def get_environment(self) -> gymnasium.Env:
        """Makes one environment; each worker calls it.

        A worker's process imports what this method needs: of an ordinary method the task's module,
        and with it TensorFlow, which takes seconds. A static method that is a function of another
        module, or a `functools.partial` of one, is all that the worker gets to see. Give
        `render_mode="rgb_array"` for clips: frames are drawn only when one is recorded.
        """

    def get_model(self) -> keras.api.Model:
        """Makes the model: a built `tf.keras.Model`, or any tf.Module with variables.

        Called once for a run, after `tf.keras.utils.set_random_seed`.
        """
        raise _undefined(self, "get_model")

    def get_actions(self, model: Any, states: Nest, optimal: bool) -> Any:
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

    def compute_loss(self, outputs: Any, batch: Samples) -> Any:
        """Computes the loss of a batch of clips; traced.

        Args:
          outputs: Of `run_model`.
          batch: Clips `[batch_size, num_samples, ...]`; `last_obs` is `[batch_size, ...]`.

        Returns:
          The scalar loss, or a pair of it and `{name: scalar}` to be logged.
        """
        raise _undefined(self, "compute_loss")

    # What a task may change.

    def train_model(self, model: Any, batch: Samples) -> dict[str, Any]:
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

    def run_model(self, model: Any, batch: Samples) -> Any:
        """Runs the model on a batch for `compute_loss`; traced.

        By default on all samples of all clips at once, as `get_actions` most often runs it on the
        states of all workers: `model([batch_size * num_samples, ...], training=True)`.

        Args:
          model: Of `get_model`.
          batch: Clips `[batch_size, num_samples, ...]`.

        Returns:
          Anything; by default the model's outputs as `[batch_size, num_samples, ...]`.
        """
        lead = list(batch.reward.shape)
        rows = tf.nest.map_structure(lambda x: tf.reshape(x, [-1, *x.shape[2:]]), batch.obs)
        outputs = model(rows, training=True)
        return tf.nest.map_structure(lambda x: tf.reshape(x, [*lead, *x.shape[1:]]), outputs)

    def get_optimizer(self) -> optimizers.Optimizer | keras.api.optimizers.Optimizer:
        """Makes the optimizer, native or of Keras; Adam with a rate of 3e-4 by default."""
        return optimizers.Adam()

    def get_learning_rate(self) -> Any:
        """Returns a schedule over env steps, as of `tfrl.ops.schedules`, or a number.

        None, the default, leaves a Keras optimizer's own rate; for others it is 3e-4.
        """
        return None

    def postprocess_trajectory(self, model: Any, trajectory: SampledTrajectory) -> Any:
        """Changes a trajectory as it is sampled, see `iter_samples`.

        Args:
          model: Of `get_model`, with the parameters that sampled.
          trajectory: The samples, T of them.

        Returns:
          `trajectory.replace(...)` of the same length: what losses need beside, such as
          advantages, belongs into `extras`.
        """
        return trajectory

    def postprocess_trajectories(self, model: Any, trajectories: list[SampledTrajectory]) -> Any:
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

    # Clips.

    def sample_clip(
        self,
        model: Any = None,
        save_path: str | os.PathLike | None = None,
        *,
        return_images: bool = False,
        return_states: bool = False,
        writer: tf.summary.SummaryWriter | None = None,
        standardize_images: bool = True,
        optimal: bool = True,
        max_steps: int | None = None,
        seed: int | None = None,
        step: int = 0,
        tag: str = "clip",
    ) -> Any:
        """Plays one episode in an environment of its own, and shows or returns it.

        The first frame is the initial state's: an episode of T steps has T + 1 frames, frame t
        shows what action t was chosen from, and frame T what came last.

        Args:
          model: Acts by `get_actions`; None for random actions.
          save_path: A file name ending in .mp4 or .gif, written with the environment's fps
            (`metadata["render_fps"]`, 30 without one).
          return_images: Whether to return the frames, also of a clip that is saved.
          return_states: Whether to return the samples, as those of `iter_samples`.
          writer: Of `tf.summary.create_file_writer`: shows the clip in TensorBoard, shrunk and
            thinned out to at most 150 frames of 256 pixels.
          standardize_images: Whether the returned frames are uint8 `[T + 1, H, W, 3]`, RGB, H and W
            even and those of the first frame, as they always are in files. False returns the list
            of what `env.render()` gave.
          optimal: Handed to `get_actions`.
          max_steps: Env steps at most; the config's if None. The config's `max_episode_steps`
            truncates the episode, as in training.
          seed: The episode is that of worker 0, episode 0 of a pool with this seed; the config's
            `env_seed` if None. Random actions follow from it too.
          step: Of the summary.
          tag: Name of the summary.

        Returns:
          The images, the samples, or a pair of both, as was asked for; None for neither.

        Raises:
          UserError: For arguments that contradict each other or ask for nothing, an environment
            without render_mode "rgb_array" or whose initial state is terminal already, and frames
            that are no pictures.
        """
        wanted = clip_recording.clip_options(
            save_path=save_path,
            return_images=return_images,
            return_states=return_states,
            writer=writer,
            standardize_images=standardize_images,
            max_steps=self.config.max_steps if max_steps is None else max_steps,
            seed=self.config.env_seed if seed is None else seed,
        )
        clip = clip_recording.ClipPlayer(
            self.get_environment,
            None if model is None else lambda states, best: self.get_actions(model, states, best),
            optimal=optimal,
            max_steps=wanted.max_steps,
            max_episode_steps=self.config.max_episode_steps,
            seed=wanted.seed,
            renders=wanted.renders,
        )
        images = clip_recording.record(clip, wanted, step=step, tag=tag)
        results: list[Any] = []
        if return_images:
            results.append(np.stack(images) if standardize_images else images)
        if return_states:
            results.append(clip.trajectory)
        if len(results) == 2:
            return tuple(results)
        return results[0] if results else None


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
