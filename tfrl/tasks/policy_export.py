"""A task's greedy policy as a SavedModel, if its `get_actions` is TensorFlow."""

import logging
import pathlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfrl import specs, struct
from tfrl.errors import UserError
from tfrl.experiment.export import save_functions
from tfrl.experiment.export_functions import PolicyFunctions, leaf_names
from tfrl.tasks.task import RLTask

_LOG = logging.getLogger(__name__)


def _greedy(task: RLTask, model: Any, action_spec: Any, states: Any) -> list[Any]:
    """Returns the leaves of `get_actions(model, states, optimal=True)` in the spec's dtypes."""
    actions = task.get_actions(model, states, True)
    if isinstance(actions, tuple) and len(actions) == 2 and isinstance(actions[1], dict):
        actions = actions[0]
    tf.nest.assert_same_structure(action_spec, actions)
    pairs = zip(tf.nest.flatten(actions), tf.nest.flatten(action_spec), strict=True)
    return [tf.cast(x, spec.dtype) for x, spec in pairs]


def _traced(task: RLTask, model: Any) -> PolicyFunctions:
    """Traces the function `action`; raises if `get_actions` fails with symbolic tensors."""
    env = task.get_environment()
    try:
        obs_spec, action_spec = (
            specs.to_spec(env.observation_space),
            specs.to_spec(env.action_space),
        )
    finally:
        env.close()
    obs_names = leaf_names(obs_spec, "observation")
    action_names = tuple(leaf_names(action_spec, "action").values())

    def action(*inputs: tf.Tensor) -> dict[str, tf.Tensor]:
        states = tf.nest.pack_sequence_as(obs_spec, inputs)
        return dict(zip(action_names, _greedy(task, model, action_spec, states), strict=True))

    inputs = [
        tf.TensorSpec([None, *spec.shape], spec.dtype, name=obs_names[path])
        for path, spec in struct.paths(obs_spec).items()
    ]
    traced = tf.function(action, input_signature=inputs)
    try:
        traced.get_concrete_function()
    except Exception as error:  # NumPy raises various errors for symbolic tensors
        raise _NotTensorFlowError(
            type(task).__name__,
            type(error).__name__,
            next(iter(str(error).strip().splitlines()), ""),
        ) from error
    return PolicyFunctions(
        functions={"action": traced},
        tracked=(model,),
        obs_spec=obs_spec,
        action_spec=action_spec,
        inputs=tuple(obs_names.values()),
        outputs=action_names,
        left_out=dict.fromkeys(("explore", "distribution"), "a task has only get_actions"),
    )


class _NotTensorFlowError(Exception):
    """`get_actions` computes outside of TensorFlow; args: task, error type, first line."""


def task_functions(task: RLTask, model: Any) -> PolicyFunctions:
    """Returns the greedy policy of a task as functions.

    Args:
      task: The task.
      model: The result of `get_model`.

    Raises:
      UserError: `get_actions` computes outside of TensorFlow, or a space has no spec.
    """
    try:
        return _traced(task, model)
    except _NotTensorFlowError as error:
        raise UserError(
            f"export of {error.args[0]}",
            expected="get_actions that runs on symbolic tensors",
            got=f"{error.args[1]}: {error.args[2]}",
            remedy="Compute actions with TensorFlow, not with NumPy or Python numbers.",
        ) from error


class TaskOracle:
    """The reference actions of a task, see `tfrl.experiment.export_verify.AgentOracle`."""

    def __init__(self, task: RLTask, model: Any, policy: PolicyFunctions):
        self._task, self._model, self._policy = task, model, policy

    def answers(
        self, observations: Sequence[Any], signatures: Sequence[str]
    ) -> dict[str, np.ndarray]:
        """Returns `{action/<output>: [T, B, ...]}`."""
        spec = self._policy.action_spec
        steps = [_greedy(self._task, self._model, spec, obs) for obs in observations]
        return {
            f"action/{name}": np.stack([np.asarray(leaves[i]) for leaves in steps])
            for i, name in enumerate(self._policy.outputs)
        }


def export_task(task: RLTask, model: Any, directory: str | pathlib.Path) -> pathlib.Path | None:
    """Writes the policy, see `tfrl.experiment.export.export_policy` for the signature.

    Args:
      task: The task.
      model: The result of `get_model`.
      directory: The SavedModel's folder.

    Returns:
      The folder; None, with a warning, if `get_actions` computes outside of TensorFlow, so that it
      cannot be saved.

    Raises:
      UserError: The folder cannot be written, or a space has no spec.
    """
    try:
        policy = _traced(task, model)
    except _NotTensorFlowError as error:
        _LOG.warning(
            "Skipping policy export: get_actions of %s does not run on symbolic tensors (%s: %s).",
            *error.args,
        )
        return None
    return save_functions(policy, directory)
