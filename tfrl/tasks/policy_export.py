"""A task's greedy policy as a SavedModel, where its `get_actions` is TensorFlow."""

import logging
import pathlib
from typing import Any

import tensorflow as tf

from tfrl import specs, struct
from tfrl.experiment.export import leaf_names, save_module
from tfrl.tasks.task import RLTask

_LOG = logging.getLogger(__name__)


class _Policy(tf.Module):
    """A model, and the actions that a task chooses with it."""

    def __init__(self, task: RLTask, model: Any, obs_spec: Any, action_spec: Any):
        super().__init__(name="policy")
        self.model = model
        obs_names = leaf_names(obs_spec, "observation")
        action_names = tuple(leaf_names(action_spec, "action").values())

        def action(*inputs: tf.Tensor) -> dict[str, tf.Tensor]:
            states = tf.nest.pack_sequence_as(obs_spec, inputs)
            found = task.get_actions(model, states, True)
            if isinstance(found, tuple) and len(found) == 2 and isinstance(found[1], dict):
                found = found[0]
            tf.nest.assert_same_structure(action_spec, found)
            leaves = [
                tf.cast(x, spec.dtype)
                for x, spec in zip(
                    tf.nest.flatten(found), tf.nest.flatten(action_spec), strict=True
                )
            ]
            return dict(zip(action_names, leaves, strict=True))

        inputs = [
            tf.TensorSpec([None, *spec.shape], spec.dtype, name=obs_names[path])
            for path, spec in struct.paths(obs_spec).items()
        ]
        self.action = tf.function(action, input_signature=inputs)


def export_task(task: RLTask, model: Any, directory: str | pathlib.Path) -> pathlib.Path | None:
    """Writes the policy, see `tfrl.experiment.export.export_policy` for the signature.

    Args:
      task: The task.
      model: Of `get_model`.
      directory: The SavedModel's folder.

    Returns:
      The folder; None, with a warning, where `get_actions` computes outside of TensorFlow, so that
      there is nothing that could be saved.

    Raises:
      UserError: The folder cannot be written, or a space has no spec.
    """
    env = task.get_environment()
    try:
        obs_spec, action_spec = (
            specs.to_spec(env.observation_space),
            specs.to_spec(env.action_space),
        )
    finally:
        env.close()
    module = _Policy(task, model, obs_spec, action_spec)
    try:
        signature = module.action.get_concrete_function()
    except Exception as error:  # NumPy says in many ways that it cannot take a symbolic tensor
        _LOG.warning(
            "No policy is exported: get_actions of %s does not run on symbolic tensors (%s: %s).",
            type(task).__name__,
            type(error).__name__,
            next(iter(str(error).strip().splitlines()), ""),
        )
        return None
    return save_module(module, {"action": signature, "serving_default": signature}, directory)
