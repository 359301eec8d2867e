"""The trajectories of a replay buffer as one array of bytes, for checkpoints, and back."""

import io
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfrl.tasks.samples import TIMED, SampledTrajectory

_STATIC = ("worker_id", "episode", "start", "cut")


def to_bytes(trajectories: Sequence[SampledTrajectory]) -> np.ndarray:
    """Returns trajectories as uint8 `[N]`, in the format of `numpy.savez` without pickle."""
    if not trajectories:
        return np.zeros([0], np.uint8)
    leaves = [tf.nest.flatten(_nest(t)) for t in trajectories]
    last = [tf.nest.flatten(t.last_obs) for t in trajectories]
    static = [[int(getattr(t, name)) for name in _STATIC] for t in trajectories]
    arrays: dict[str, np.ndarray] = {
        "static": np.array(static, np.int64),
        "lengths": np.array([len(t) for t in trajectories], np.int64),
    }
    arrays.update(
        {f"timed_{i}": np.concatenate(x) for i, x in enumerate(zip(*leaves, strict=True))}
    )
    arrays.update({f"last_{i}": np.stack(x) for i, x in enumerate(zip(*last, strict=True))})
    stream = io.BytesIO()
    np.savez(stream, **arrays)
    return np.frombuffer(stream.getvalue(), np.uint8)


def from_bytes(data: np.ndarray, like: SampledTrajectory) -> list[SampledTrajectory]:
    """Returns the trajectories of `to_bytes`.

    Args:
      data: uint8 `[N]`.
      like: A trajectory of the same task, for the structure of its nests.
    """
    if not data.size:
        return []
    with np.load(io.BytesIO(data.tobytes()), allow_pickle=False) as file:
        arrays = dict(file)
    lengths = arrays["lengths"]
    structure = _nest(like)
    timed = [arrays[f"timed_{i}"] for i in range(len(tf.nest.flatten(structure)))]
    last = [arrays[f"last_{i}"] for i in range(len(tf.nest.flatten(like.last_obs)))]
    found = []
    for row, end in enumerate(np.cumsum(lengths)):
        steps = slice(end - lengths[row], end)
        static = dict(zip(_STATIC, arrays["static"][row].tolist(), strict=True))
        fields: dict[str, Any] = tf.nest.pack_sequence_as(structure, [x[steps] for x in timed])
        last_obs = tf.nest.pack_sequence_as(like.last_obs, [x[row] for x in last])
        static["cut"] = bool(static["cut"])
        found.append(SampledTrajectory(**fields, **static, last_obs=last_obs))
    return found


def _nest(trajectory: SampledTrajectory) -> dict[str, Any]:
    """The leaves with a time axis."""
    return {name: getattr(trajectory, name) for name in (*TIMED, "extras")}
