"""A policy with flat names of inputs and outputs, and the checks of a request."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from tfrl import struct
from tfrl.errors import UserError
from tfrl.experiment.export_functions import leaf_names
from tfrl.rollout.policy import ObsReader

# Inputs of a request beside observations and state.
EPISODE_START = "episode_start"
LOGGED = ("episode_id", "reward", "termination", "truncation")
# {signature: whether its actions are greedy}
SIGNATURES = {"serving_default": True, "action": True, "explore": False}


@dataclasses.dataclass(frozen=True)
class RequestRows:
    """The checked rows of one request.

    Attributes:
      obs: The observation's leaves, each `[B, ...]`.
      state: The leaves of the recurrent state, each `[B, ...]`; () without memory.
      starts: bool `[B]`: rows whose state is replaced by the initial state.
      size: B.
    """

    obs: tuple[np.ndarray, ...]
    state: tuple[np.ndarray, ...]
    starts: np.ndarray
    size: int


class ServedPolicy:
    """A policy of `tfrl.load` with the flat names of an exported SavedModel.

    Attributes:
      policy: The policy.
      version: The version number: env steps of the checkpoint, 1 for a SavedModel.
      inputs: `{name: spec}` of one observation.
      state: `{name: spec}` of one row of the recurrent state; {} without memory.
      outputs: `{name: spec}` of one action, and of the state after it.
    """

    def __init__(self, policy: Any, version: int):
        """Takes the policy.

        Args:
          policy: The result of `tfrl.load`.
          version: The version number.
        """
        self.policy, self.version = policy, version
        self.inputs = _named(policy.obs_spec, "observation")
        self._state_spec = policy.state_spec
        if isinstance(self._state_spec, dict) and all(
            name.startswith("state") for name in self._state_spec
        ):  # a SavedModel's state has these names already
            self.state = dict(sorted(self._state_spec.items()))
        else:
            self.state = _named(self._state_spec, "state")
        self.outputs = {**_named(policy.action_spec, "action"), **self.state}
        self._reader = ObsReader(policy.obs_spec)

    @property
    def explores(self) -> bool:
        """Whether the policy can sample actions as in training."""
        return bool(getattr(self.policy, "explores", True))

    def read(self, columns: Mapping[str, Any]) -> RequestRows:
        """Checks the columns of a request, leaves `[B, ...]` by name.

        Raises:
          UserError: For missing or unknown names, wrong shapes, dtypes or sizes, numbers that are
            not finite, or integers out of their range.
        """
        known = [*self.inputs, *self.state, *([EPISODE_START] if self.state else [])]
        missing = [name for name in self.inputs if name not in columns]
        unknown = [name for name in columns if name not in known]
        if missing or unknown:
            raise UserError(
                "the inputs of the request",
                expected=", ".join(known),
                got=", ".join(columns) or "no inputs",
                remedy="Get the input names from GET .../metadata.",
            )
        arrays = [_array(name, columns[name]) for name in self.inputs]
        nest = tf.nest.pack_sequence_as(self.policy.obs_spec, arrays)
        with np.errstate(over="ignore"):  # infinities are errors below
            obs, size, single = self._reader.read(nest)
        if single:
            raise UserError(
                "the inputs of the request",
                expected="a batch of observations",
                got="a single observation",
                remedy='Send {"instances": [observation]}.',
            )
        for name, leaf in zip(self.inputs, tf.nest.flatten(obs), strict=True):
            _check_finite(name, leaf)
        state, starts = self._read_state(columns, size)
        return RequestRows(tuple(tf.nest.flatten(obs)), state, starts, size)

    def _read_state(
        self, columns: Mapping[str, Any], size: int
    ) -> tuple[tuple[np.ndarray, ...], np.ndarray]:
        starts = np.zeros([size], bool)
        if not self.state:
            return (), starts
        if EPISODE_START in columns:
            starts = _array(EPISODE_START, columns[EPISODE_START])
            _check(EPISODE_START, starts, tf.TensorSpec([], tf.bool), size)
        there = [name for name in self.state if name in columns]
        if not there:
            zeros = [np.zeros([size, *s.shape], s.dtype.as_numpy_dtype) for s in self._specs]
            return tuple(zeros), np.ones([size], bool)
        if len(there) < len(self.state):
            raise UserError(
                "the recurrent state of the request",
                expected=f"all of {', '.join(self.state)}, or no state at an episode's start",
                got=", ".join(there),
            )
        leaves = []
        for name, spec in self.state.items():
            leaf = _array(name, columns[name])
            if leaf.dtype.kind in "fiub" and spec.dtype.is_floating:
                with np.errstate(over="ignore"):
                    leaf = leaf.astype(spec.dtype.as_numpy_dtype)
            _check(name, leaf, spec, size)
            _check_finite(name, leaf)
            leaves.append(leaf.astype(spec.dtype.as_numpy_dtype))
        return tuple(leaves), starts

    @property
    def _specs(self) -> list[tf.TensorSpec]:
        return list(self.state.values())

    def predict(self, rows: RequestRows, deterministic: bool) -> dict[str, np.ndarray]:
        """Returns the outputs by name, leaves `[B, ...]`: the action and the next state."""
        obs = tf.nest.pack_sequence_as(self.policy.obs_spec, rows.obs)
        state = None
        if self.state:
            state = tf.nest.pack_sequence_as(self._state_spec, rows.state)
        action, after = self.policy.predict(obs, deterministic, state, rows.starts)
        outputs = {name: np.asarray(x) for name, x in _values(action, "action").items()}
        if self.state:
            leaves = tf.nest.flatten(after)
            outputs.update(zip(self.state, map(np.asarray, leaves), strict=True))
        return outputs


def _named(nest: Any, base: str) -> dict[str, Any]:
    if nest is None:
        return {}
    return {leaf: struct.paths(nest)[path] for path, leaf in leaf_names(nest, base).items()}


def _values(nest: Any, base: str) -> dict[str, Any]:
    if not isinstance(nest, dict | list | tuple):
        return {base: nest}
    return _named(nest, base)


def _array(name: str, value: Any) -> np.ndarray:
    try:
        array = np.asarray(value)
    except ValueError:
        array = np.asarray(None)
    if array.dtype.kind not in "fiub":
        raise UserError(
            name,
            expected="numbers, in lists of equal length",
            got=f"{str(value)[:60]}",
            remedy="Send lists whose first axis is the batch.",
        )
    return array


def _check_finite(name: str, array: np.ndarray) -> None:
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        first = tuple(np.argwhere(~np.isfinite(array))[0].tolist())
        raise UserError(name, expected="finite numbers", got=f"{array[first]} at {list(first)}")


def _check(name: str, array: np.ndarray, spec: Any, size: int) -> None:
    shape = [size, *spec.shape]
    if list(array.shape) != shape or (spec.dtype == tf.bool) != (array.dtype.kind == "b"):
        raise UserError(
            name,
            expected=f"{spec.dtype.name} of shape {shape}",
            got=f"{array.dtype} of shape {list(array.shape)}",
        )
