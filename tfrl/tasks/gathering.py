"""Copies clips out of stored trajectories, many at once."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tfrl.tasks.samples import TIMED, SampledTrajectory, Samples


class Stored(NamedTuple):
    """A trajectory with its leaves at hand: to flatten it for every clip would take longer."""

    trajectory: SampledTrajectory
    timed: list[np.ndarray]
    obs: list[np.ndarray]
    last_obs: list[np.ndarray]

    @classmethod
    def of(cls, trajectory: SampledTrajectory) -> "Stored":
        """Flattens a trajectory."""
        return cls(
            trajectory,
            tf.nest.flatten(_timed(trajectory)),
            tf.nest.flatten(trajectory.obs),
            tf.nest.flatten(trajectory.last_obs),
        )


class Place(NamedTuple):
    """Where a clip begins."""

    stored: Stored
    start: int


def gather(places: Sequence[Place], size: int, stride: int) -> Samples:
    """Returns the clips at some places, stacked.

    Args:
      places: N of them, in trajectories with the same leaves.
      size: Samples of a clip, n.
      stride: Steps from one sample to the next.

    Returns:
      Samples `[N, n, ...]`; `last_obs` `[N, ...]` is one step after the last sample of each clip.
    """
    span = (size - 1) * stride + 1
    first = places[0].stored
    timed = [
        np.stack([p.stored.timed[leaf][p.start : p.start + span : stride] for p in places])
        for leaf in range(len(first.timed))
    ]
    last_obs = [
        np.stack([_observation_at(p.stored, leaf, p.start + span) for p in places])
        for leaf in range(len(first.last_obs))
    ]
    trajectory = first.trajectory
    return Samples(
        **tf.nest.pack_sequence_as(_timed(trajectory), timed),
        last_obs=tf.nest.pack_sequence_as(trajectory.last_obs, last_obs),
    )


def _timed(samples: Samples) -> dict[str, Any]:
    return {name: getattr(samples, name) for name in (*TIMED, "extras")}


def _observation_at(stored: Stored, leaf: int, step: int) -> np.ndarray:
    if step == len(stored.trajectory):
        return stored.last_obs[leaf]
    return stored.obs[leaf][step]
