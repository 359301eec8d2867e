"""A trained policy as a SavedModel that needs nothing but TensorFlow."""

import contextlib
import logging
import pathlib
import shutil
from collections.abc import Iterator, Mapping
from typing import Any

import tensorflow as tf

from tfrl.errors import UserError
from tfrl.experiment.export_functions import PolicyFunctions, policy_functions
from tfrl.storage import files


class _Policy(tf.Module):
    """The functions of a policy by name, and what they read."""

    def __init__(self, policy: PolicyFunctions):
        super().__init__(name="policy")
        self.values = list(policy.tracked)
        for name, function in policy.functions.items():
            setattr(self, name, function)


def export_policy(agent: Any, agent_state: Any, directory: str | pathlib.Path) -> pathlib.Path:
    """Writes the greedy policy as a SavedModel, observation normaliser included.

    The signatures `action` and `serving_default` are the same function. Its input is a batch
    `observation` `[B, ...]` of any size B, its output `action` `[B, ...]`. For a nest of
    observations there is one input a leaf, `observation_<path>` with `/` written as `_`
    (`observation_camera_left`); nests of actions likewise. Use it with TensorFlow alone:

        policy = tf.saved_model.load(directory)  # Keep this reference while acting.
        action = policy.signatures["action"](observation=batch)["action"]

    A policy with memory takes and gives its state too, one `state_<path>` a leaf, which begins as
    the signature `initial_state` says, and so again wherever an episode begins:

        state = policy.signatures["initial_state"](batch_size=tf.constant(B))
        output = dict(policy.signatures["action"](observation=batch, **state))
        action = output.pop("action")  # what is left is the next state

    Args:
      agent: An agent with `obs_spec`, `action_spec` and `evaluate_actions`; what it draws (a
        greedy policy draws nothing) comes from one constant key.
      agent_state: Its state; the values are copied, as constants (variables of a large policy, see
        `export_functions.CONSTANT_BYTES`).
      directory: The SavedModel's folder. One that is there is replaced when the new one is whole.

    Returns:
      The folder.

    Raises:
      UserError: The folder cannot be written, or names collide.
    """
    return save_functions(policy_functions(agent, agent_state, ("action",)), directory)


def save_functions(policy: PolicyFunctions, directory: str | pathlib.Path) -> pathlib.Path:
    """Writes the functions of a policy as the signatures of a SavedModel; see `save_module`."""
    signatures = {name: f.get_concrete_function() for name, f in policy.functions.items()}
    signatures["serving_default"] = signatures["action"]
    return save_module(_Policy(policy), signatures, directory)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Keeps TensorFlow's "Assets written to" off the screen."""
    logger = tf.get_logger()
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


def save_module(
    module: tf.Module, signatures: Mapping[str, Any], directory: str | pathlib.Path
) -> pathlib.Path:
    """Writes a module as a SavedModel, whole or not at all.

    Args:
      module: What holds the variables.
      signatures: `{name: concrete function}`.
      directory: The folder. One that is there is replaced when the new one is whole.

    Returns:
      The folder.

    Raises:
      UserError: The folder cannot be written.
    """
    directory = pathlib.Path(directory)
    temporary = None
    try:
        directory.parent.mkdir(parents=True, exist_ok=True)
        temporary = files.temporary_name(directory.parent)
        with quiet():
            tf.saved_model.save(
                module,
                str(temporary),
                signatures=dict(signatures),
            )
        for file in sorted(temporary.rglob("*")):
            files.sync_file(file)
        files.replace_directory(temporary, directory)
    except (OSError, tf.errors.OpError) as error:
        raise unwritable(directory, error) from error
    finally:
        if temporary is not None:
            shutil.rmtree(temporary, ignore_errors=True)
    return directory


def unwritable(directory: pathlib.Path, error: Exception) -> UserError:
    """Returns the error of a folder that cannot be written."""
    return UserError(
        f"policy folder {directory}",
        expected="a folder that can be written",
        got=files.reason(error),
        remedy="Choose another place, or make room on the disk.",
    )
