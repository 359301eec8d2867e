"""A trained policy as a SavedModel that needs nothing but TensorFlow."""

import contextlib
import logging
import pathlib
import shutil
from collections.abc import Iterator, Mapping
from typing import Any

import tensorflow as tf

from tfrl import seeding, struct
from tfrl.errors import UserError
from tfrl.storage import files


def leaf_names(nest: Any, base: str) -> dict[str, str]:
    """Returns `{path: name}` of a nest's leaves: `base`, or `base_<path>` with `/` as `_`."""
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
        self._carry = initial_carry(agent, 1)
        self._carry_names = {} if self._carry is None else leaf_names(self._carry, "state")
        self.action = self._action_function(agent, agent_state)
        if self._carry is not None:
            self.initial_state = self._initial_state_function(agent)

    def _initial_state_function(self, agent: Any) -> Any:
        names = tuple(self._carry_names.values())

        def initial_state(batch_size: tf.Tensor) -> dict[str, tf.Tensor]:
            carry = tf.nest.flatten(initial_carry(agent, batch_size))
            return dict(zip(names, carry, strict=True))

        return tf.function(
            initial_state, input_signature=[tf.TensorSpec([], tf.int32, name="batch_size")]
        )

    def _action_function(self, agent: Any, agent_state: Any) -> Any:
        obs_names = leaf_names(agent.obs_spec, "observation")
        action_names = tuple(leaf_names(agent.action_spec, "action").values())
        num_obs = len(obs_names)
        # Structure only; the tensors must not be captured as constants.
        structure = tf.nest.map_structure(lambda leaf: None if leaf is None else 0, agent_state)

        def action(*inputs: tf.Tensor) -> dict[str, tf.Tensor]:
            rest = iter(tf.convert_to_tensor(self.values[path]) for path in self._paths)
            flat = [None if leaf is None else next(rest) for leaf in tf.nest.flatten(structure)]
            state = tf.nest.pack_sequence_as(structure, flat)
            obs = tf.nest.pack_sequence_as(agent.obs_spec, inputs[:num_obs])
            carry = None
            if self._carry is not None:
                carry = tf.nest.pack_sequence_as(self._carry, inputs[num_obs:])
            output = agent.evaluate_actions(state, obs, seeding.key(0), carry)
            _check_carry(agent, carry, output.carry)
            tf.nest.assert_same_structure(agent.action_spec, output.action)
            found = dict(zip(action_names, tf.nest.flatten(output.action), strict=True))
            if carry is not None:
                after = tf.nest.flatten(output.carry)
                found.update(zip(self._carry_names.values(), after, strict=True))
            return found

        specs = [
            tf.TensorSpec([None, *spec.shape], spec.dtype, name=obs_names[path])
            for path, spec in struct.paths(agent.obs_spec).items()
        ]
        if self._carry is not None:
            specs += [
                tf.TensorSpec([None, *x.shape[1:]], x.dtype, name=self._carry_names[path])
                for path, x in struct.paths(self._carry).items()
            ]
        return tf.function(action, input_signature=specs)


def initial_carry(agent: Any, batch_size: Any) -> Any:
    """Returns the recurrent state of an agent at an episode's start; None without memory."""
    make = getattr(agent, "initial_carry", None)
    return None if make is None else make(batch_size)


def _check_carry(agent: Any, before: Any, after: Any) -> None:
    """Refuses a carry that nobody could begin with."""
    if before is None and after is not None:
        raise UserError(
            f"export of {type(agent).__name__}",
            expected="a method initial_carry(batch_size), since evaluate_actions returns a carry",
            got="a policy with memory, and nothing to begin an episode with",
            remedy="Let it return the recurrent state of an episode's start.",
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

    A policy with memory takes and gives its state too, one `state_<path>` a leaf, which begins as
    the signature `initial_state` says, and so again wherever an episode begins:

        state = policy.signatures["initial_state"](batch_size=tf.constant(B))
        output = dict(policy.signatures["action"](observation=batch, **state))
        action = output.pop("action")  # what is left is the next state

    Args:
      agent: An agent with `obs_spec`, `action_spec` and `evaluate_actions`; what it draws (a
        greedy policy draws nothing) comes from one constant key.
      agent_state: Its state; the values are copied.
      directory: The SavedModel's folder. One that is there is replaced when the new one is whole.

    Returns:
      The folder.

    Raises:
      UserError: The folder cannot be written, or names collide.
    """
    module = _Policy(agent, agent_state)
    signature = module.action.get_concrete_function()
    signatures = {"action": signature, "serving_default": signature}
    if initial_carry(agent, 1) is not None:
        signatures["initial_state"] = module.initial_state.get_concrete_function()
    return save_module(module, signatures, directory)


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
        with _quiet():
            tf.saved_model.save(
                module,
                str(temporary),
                signatures=dict(signatures),
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
