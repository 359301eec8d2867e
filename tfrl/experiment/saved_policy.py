"""A policy from an exported SavedModel, with the interface of `tfrl.load`."""

import pathlib
from typing import Any

import numpy as np
import tensorflow as tf

from tfrl.errors import UserError
from tfrl.rollout.policy import ObsReader, StateReader
from tfrl.types import Nest


class SavedPolicy:
    """The policy of a SavedModel, without agent and environment.

    Attributes:
      path: The SavedModel's folder.
      obs_spec: The nest of specs of one observation; nested keys are joined by "_".
    """

    def __init__(self, folder: pathlib.Path, seed: int = 0):
        """Loads it.

        Args:
          folder: The SavedModel's folder.
          seed: The seed of sampled actions.
        """
        self.path = folder
        try:
            self._loaded = tf.saved_model.load(str(folder))
        except (OSError, ValueError, tf.errors.OpError) as error:
            raise UserError(
                f"The SavedModel {folder}",
                expected="a complete one: saved_model.pb and variables/",
                got=f"{type(error).__name__}: {error}".partition("\n")[0],
                remedy="Copy the whole folder, or export it again with this TensorFlow.",
            ) from error
        self._signatures = self._loaded.signatures
        if "action" not in self._signatures:
            raise UserError(
                f"The SavedModel {folder}",
                expected="the signature 'action' of an exported policy",
                got=", ".join(self._signatures) or "none",
                remedy="Write one with tfrl-export --format=saved_model.",
            )
        inputs = self._signatures["action"].structured_input_signature[1]
        self._inputs = {
            n: tf.TensorSpec(s.shape[1:], s.dtype)
            for n, s in inputs.items()
            if n.startswith("observation")
        }
        # A flat nest by input name: a spec for one input, a dict for several.
        signatures = {
            n.removeprefix("observation").removeprefix("_"): s for n, s in self._inputs.items()
        }
        self.obs_spec: Nest = signatures[""] if set(signatures) == {""} else signatures
        self._reader = ObsReader(self.obs_spec)
        self._states: dict[int, StateReader] = {}
        self._seeds = iter(range(seed, 2**31))

    def predict(
        self,
        obs: Nest,
        deterministic: bool = True,
        state: Nest = None,
        episode_start: Any = None,
    ) -> tuple[Nest, Nest]:
        """Returns the action for an observation, and the recurrent state after it.

        Args:
          obs: One observation, or a batch `[B, ...]`: an array, or a nest of arrays, in the form of
            `obs_spec` or of the run's. A leaf may be a list.
          deterministic: Whether to take the greedy action; sampled ones need a SavedModel of
            `bin/export.py`.
          state: The state returned by the previous call; None if all episodes start.
          episode_start: Whether an episode starts here, a bool or bool `[B]`.

        Returns:
          The action, an array, or `{path: array}` for several leaves; and the state,
          `{name: array [B, ...]}`, or None without memory.

        Raises:
          UserError: For an observation, state or `episode_start` with another structure or shape.
        """
        columns, size, single = self._read(obs)
        if size not in self._states:
            self._states = {size: StateReader(self._start(size), size)}
        carry = self._states[size].read(state, episode_start)
        more = dict(carry or {})
        if not deterministic:
            if "explore" not in self._signatures:
                raise UserError(
                    f"predict(deterministic=False) of {self.path}",
                    expected="a SavedModel with the signature 'explore'",
                    got="only the greedy action",
                    remedy="Load the run folder, or export one with tfrl-export.",
                )
            more["seed"] = np.int64(next(self._seeds))
        function = self._signatures["action" if deterministic else "explore"]
        tensors = {name: tf.constant(x) for name, x in {**columns, **more}.items()}
        outputs = {name: x.numpy() for name, x in function(**tensors).items()}
        after = {name: outputs.pop(name) for name in carry or {}}
        if single:
            outputs = {name: x[0] for name, x in outputs.items()}
        if set(outputs) == {"action"}:
            return outputs["action"], after or None
        return {n.removeprefix("action_"): x for n, x in outputs.items()}, after or None

    @property
    def state_spec(self) -> Nest:
        """`{name: spec}` of one row of the recurrent state; None without memory."""
        if "initial_state" not in self._signatures:
            return None
        outputs = self._signatures["initial_state"].structured_outputs
        return {n: tf.TensorSpec(s.shape[1:], s.dtype) for n, s in outputs.items()}

    @property
    def action_spec(self) -> Nest:
        """The spec of one action, or `{path: spec}` for several leaves."""
        outputs = self._signatures["action"].structured_outputs
        specs_by_name = {
            n.removeprefix("action").removeprefix("_"): tf.TensorSpec(s.shape[1:], s.dtype)
            for n, s in outputs.items()
            if n.startswith("action")
        }
        return specs_by_name[""] if set(specs_by_name) == {""} else specs_by_name

    @property
    def explores(self) -> bool:
        """Whether it can sample actions as in training."""
        return "explore" in self._signatures

    def _start(self, size: int) -> Nest:
        """The recurrent state at an episode start."""
        if "initial_state" not in self._signatures:
            return None
        initial = self._signatures["initial_state"](batch_size=tf.constant(size))
        return {name: x.numpy() for name, x in initial.items()}

    def _read(self, obs: Nest) -> tuple[dict[str, np.ndarray], int, bool]:
        leaves = self._leaves(obs, "observation")
        if leaves.keys() != self._inputs.keys():
            raise UserError(
                "obs",
                expected=f"the parts {', '.join(self._inputs)}",
                got=f"{', '.join(leaves):.200}" or "nothing",
            )
        if "observation" in leaves:
            rows, size, single = self._reader.read(leaves["observation"])
            return {"observation": rows}, size, single
        parts = {name.removeprefix("observation_"): x for name, x in leaves.items()}
        rows, size, single = self._reader.read(parts)
        return {f"observation_{name}": x for name, x in rows.items()}, size, single

    def _leaves(self, obs: Nest, name: str) -> dict[str, Any]:
        """The observation's leaves by input name; a leaf may be a list or a tuple."""
        if name in self._inputs or not isinstance(obs, dict | list | tuple):
            return {name: obs}
        items = obs.items() if isinstance(obs, dict) else enumerate(obs)
        parts = [self._leaves(x, f"{name}_{key}".replace("/", "_")) for key, x in items]
        return {leaf: x for part in parts for leaf, x in part.items()}

    def env(self, num_envs: int = 1, *, render: bool = False) -> Any:
        """Raises a UserError: a SavedModel does not know its environment."""
        raise self._only_of_runs("env")

    def workflow(self) -> Any:
        """Raises a UserError: a SavedModel does not know its training."""
        raise self._only_of_runs("workflow")

    def _only_of_runs(self, name: str) -> UserError:
        return UserError(
            f"{name}() of {self.path}",
            expected="the policy of a run folder",
            got="a SavedModel, which holds only the policy",
            remedy="Pass the run folder to tfrl.load.",
        )
