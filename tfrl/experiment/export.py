"""A trained policy as a SavedModel that needs nothing but TensorFlow."""

import contextlib
import logging
import pathlib
import shutil
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from tfrl import seeding, struct
from tfrl.errors import UserError
from tfrl.storage import files


def _names(nest: Any, base: str) -> dict[str, str]:
    """`{path: name}` of a nest's leaves: `base` alone, or `base_<path>` with `/` as `_`."""
    names = {
        path: base if path == "." else f"{base}_{path.replace('/', '_')}"
        for path in struct.paths(nest)
    }
    if len(set(names.values())) < len(names):
        raise UserError(
            f"names of the exported {base}",
            expected="a different name for every part",
            got=f"{', '.join(sorted(names))}, of which some agree once / is written as _",
            remedy="Rename the keys of the space.",
        )
    return names


class _Policy(tf.Module):
    """Greedy actions from values that are copies of an agent's state."""

    def __init__(self, agent: Any, agent_state: Any):
        super().__init__(name="policy")
        # A dataclass as an attribute of a module would silently not be saved: a flat dict is.
        self.values = {
            path: tf.Variable(tf.convert_to_tensor(leaf), trainable=False)
            for path, leaf in struct.paths(agent_state).items()
        }
        self._paths = tuple(struct.paths(agent_state))
        self.action = self._action_function(agent, agent_state)

    def _action_function(self, agent: Any, agent_state: Any) -> Any:
        obs_names = _names(agent.obs_spec, "observation")
        action_names = tuple(_names(agent.action_spec, "action").values())
        # Structure only; the tensors must not be captured as constants.
        structure = tf.nest.map_structure(lambda leaf: None if leaf is None else 0, agent_state)

        def action(*observations: tf.Tensor) -> dict[str, tf.Tensor]:
            rest = iter(tf.convert_to_tensor(self.values[path]) for path in self._paths)
            flat = [None if leaf is None else next(rest) for leaf in tf.nest.flatten(structure)]
            state = tf.nest.pack_sequence_as(structure, flat)
            obs = tf.nest.pack_sequence_as(agent.obs_spec, observations)
            actions = agent.evaluate_actions(state, obs, seeding.key(0)).action
            tf.nest.assert_same_structure(agent.action_spec, actions)
            return dict(zip(action_names, tf.nest.flatten(actions), strict=True))

        specs = [
            tf.TensorSpec([None, *spec.shape], spec.dtype, name=obs_names[path])
            for path, spec in struct.paths(agent.obs_spec).items()
        ]
        return tf.function(action, input_signature=specs)


def _check_not_recurrent(agent: Any, agent_state: Any) -> None:
    """Refuses a policy that needs a carry: acting without it would silently be another policy."""
    obs = tf.nest.map_structure(lambda s: tf.zeros([1, *s.shape], s.dtype), agent.obs_spec)
    if agent.evaluate_actions(agent_state, obs, seeding.key(0)).carry is not None:
        raise UserError(
            f"export of {type(agent).__name__}",
            expected="a policy that acts on the observation alone",
            got="a recurrent one, whose carry has no place in the signature",
            remedy="Run it from Python through agent.evaluate_actions.",
        )


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keeps TensorFlow's "Assets written to" off the screen."""
    logger = tf.get_logger()
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


def export_policy(agent: Any, agent_state: Any, directory: str | pathlib.Path) -> pathlib.Path:
    """Writes the greedy policy as a SavedModel, observation normaliser included.

    The signatures `action` and `serving_default` are the same function. Its input is a batch
    `observation` `[B, ...]` of any size B, its output `action` `[B, ...]`. For a nest of
    observations there is one input a leaf, `observation_<path>` with `/` written as `_`
    (`observation_camera_left`); nests of actions likewise. Use it with TensorFlow alone:

        policy = tf.saved_model.load(directory)  # Keep this reference while acting.
        action = policy.signatures["action"](observation=batch)["action"]

    Args:
      agent: An agent with `obs_spec`, `action_spec` and `evaluate_actions`; what it draws (a
        greedy policy draws nothing) comes from one constant key.
      agent_state: Its state; the values are copied.
      directory: The SavedModel's folder. One that is there is replaced when the new one is whole.

    Returns:
      The folder.

    Raises:
      UserError: The folder cannot be written, the policy is recurrent, or names collide.
    """
    directory = pathlib.Path(directory)
    _check_not_recurrent(agent, agent_state)
    module = _Policy(agent, agent_state)
    temporary = None
    try:
        directory.parent.mkdir(parents=True, exist_ok=True)
        temporary = files.temporary_name(directory.parent)
        signature = module.action.get_concrete_function()
        with _quiet():
            tf.saved_model.save(
                module,
                str(temporary),
                signatures={"action": signature, "serving_default": signature},
            )
        for file in sorted(temporary.rglob("*")):
            files.sync_file(file)
        files.replace_directory(temporary, directory)
    except OSError as error:
        raise UserError(
            f"policy folder {directory}",
            expected="a folder that can be written",
            got=files.reason(error),
            remedy="Choose another place, or make room on the disk.",
        ) from error
    finally:
        if temporary is not None:
            shutil.rmtree(temporary, ignore_errors=True)
    return directory
