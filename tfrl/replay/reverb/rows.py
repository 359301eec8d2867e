"""What writers take of a trajectory: checked NumPy columns by path."""

from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

from tfrl import checks, struct
from tfrl.errors import UserError, did_you_mean
from tfrl.types import Trajectory

if TYPE_CHECKING:
    from tfrl.replay.reverb.maker import ReverbReplay

_FLAGS = ("termination", "truncation", "valid")


class Columns:
    """Takes trajectories apart, `{path: array [T, B, ...]}`, and checks them.

    Paths are those of `struct.paths`: `obs`, `action`, `policy_extras/log_prob`, ...
    """

    def __init__(self, replay: "ReverbReplay"):
        """Takes the specs of a maker."""
        flag = tf.TensorSpec([], tf.bool)
        self._num_envs = replay.num_envs
        self._extras = {
            name: list(spec)
            for name in ("policy_extras", "env_extras")
            if (spec := getattr(replay, f"{name}_spec"))
        }
        specs = {
            "obs": replay.obs_spec,
            "action": replay.action_spec,
            "reward": tf.TensorSpec([], tf.float32),
            "next_obs": replay.obs_spec,
            **dict.fromkeys(_FLAGS, flag),
            **{name: getattr(replay, f"{name}_spec") for name in self._extras},
        }
        # Most fields are one leaf: those need not be taken apart.
        self._nested = [
            name for name, spec in specs.items() if name not in struct.paths(spec, name)
        ]
        self._single = [name for name in specs if name not in self._nested]
        self._specs = {
            path: (tuple(spec.shape), np.dtype(tf.as_dtype(spec.dtype).as_numpy_dtype), spec)
            for path, spec in struct.paths(specs).items()
        }

    def of(self, trajectory: Trajectory) -> dict[str, np.ndarray]:
        """Returns the columns of a trajectory of NumPy arrays or eager tensors.

        Raises:
          UserError: For a leaf that is missing, or of another shape or dtype; it is named by path.
        """
        if trajectory.valid is None:  # all are
            rows = np.shape(trajectory.reward)
            trajectory = trajectory.replace(valid=np.ones(rows, np.bool_))
        found = {name: _array(name, getattr(trajectory, name)) for name in self._single}
        for name in self._nested:
            nest = getattr(trajectory, name)
            if name in self._extras:
                nest = _named(name, nest, self._extras[name])
            found.update((path, _array(path, x)) for path, x in struct.paths(nest, name).items())
        if found.keys() != self._specs.keys():
            _refuse_leaves(self._specs.keys(), found.keys())
        rows = found["valid"].shape[:1] + (self._num_envs,)
        for path, (shape, dtype, spec) in self._specs.items():
            x = found[path]
            if x.dtype != dtype or x.shape != rows + shape:
                checks.matches_spec(f"trajectory.{path}", x, spec, (None, self._num_envs))
                checks.leading_shape(f"trajectory.{path}", x, rows, "valid")
        return found


def _array(path: str, x: Any) -> np.ndarray:
    if type(x) is np.ndarray:
        return x
    if isinstance(x, tf.Tensor) and not hasattr(x, "numpy"):
        raise UserError(
            f"trajectory.{path}",
            expected="an array, or a tensor outside of compiled code",
            got="a tensor of a graph",
            remedy="Call ReverbBuffer.add outside of tf.function: it talks to a server.",
        )
    if x is None or isinstance(x, dict | tuple | list):
        _refuse_leaves({path}, set())
    return np.asarray(x)


def _named(name: str, extras: Any, keys: list[str]) -> dict[str, Any]:
    have = extras if isinstance(extras, dict) else {}
    missing = [key for key in keys if key not in have]
    if missing:
        raise UserError(
            f"trajectory.{name}",
            expected=f"the items {', '.join(keys)} of ReverbReplay.{name}_spec",
            got=", ".join(have) or "none",
            remedy=did_you_mean(missing[0], have) if have else "Ask the rollout for them.",
        )
    return {key: have[key] for key in keys}


def _refuse_leaves(wanted: Any, got: Any) -> None:
    missing, unknown = sorted(wanted - got), sorted(got - wanted)
    raise UserError(
        f"trajectory.{(missing or unknown)[0]}",
        expected="the leaves of the maker's specs",
        got="no such leaf in the trajectory" if missing else "a leaf that no spec has",
        remedy="Make ReverbReplay with the specs of the environment and the agent.",
    )
