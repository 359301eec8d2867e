"""`Samples`: consecutive samples of one episode, as a trajectory or as a clip of one."""

from typing import Any

import numpy as np

from tfrl import struct
from tfrl.episodes import nests

Nest = Any


@struct.dataclass
class Samples(struct.Struct):
    """Samples t = 0 .. T-1 of one episode, arrays `[T, ...]`; batches have more axes in front.

    Sample t holds the observation s_t, the action a_t taken in it, the reward of that action and
    whether the episode ended with it. Only the last sample can end an episode.

    Attributes:
      obs: s_t, a nest.
      action: a_t, a nest.
      reward: r_t of that action, float32 `[T]`.
      termination: bool `[T]`; the task ended the episode at this step.
      truncation: bool `[T]`; the episode, or the trajectory, was cut after this step: what follows
        is to be estimated from `last_obs`.
      last_obs: The observation after the last sample, s_T, a nest without the time axis: the
        terminal one where the episode ended.
      extras: What `get_actions` gave beside the actions, and what hooks added, a dict `[T, ...]`.
    """

    obs: Nest
    action: Nest
    reward: Any
    termination: Any
    truncation: Any
    last_obs: Nest
    extras: dict[str, Any]

    def __len__(self) -> int:
        return len(self.reward)

    def clip(self, start: int, size: int, stride: int = 1) -> "Samples":
        """Returns samples start, start + stride, ... as views of the arrays.

        Args:
          start: The first one.
          size: How many.
          stride: Steps from one to the next. Those between are left out, with their rewards.

        Returns:
          `size` samples; `last_obs` is the observation one step after the last of them.
        """
        after = start + (size - 1) * stride + 1
        steps = slice(start, after, stride)
        end = after == len(self)
        return Samples(
            **{name: nests.take(getattr(self, name), steps) for name in TIMED},
            last_obs=self.last_obs if end else nests.take(self.obs, (after, ...)),
            extras=nests.take(self.extras, steps),
        )


# The fields of `Samples` with a time axis that are never empty.
TIMED = ("obs", "action", "reward", "termination", "truncation")


@struct.dataclass
class SampledTrajectory(Samples):
    """Samples of one worker that follow each other without a gap.

    Attributes:
      worker_id: The worker.
      episode: The number of the episode among those of the worker.
      start: How many steps of the episode came before sample 0.
      cut: Whether it ends because sampling stopped there, or the worker was lost, and not because
        the environment ended its episode.
    """

    worker_id: int = struct.field(static=True)
    episode: int = struct.field(static=True)
    start: int = struct.field(static=True)
    cut: bool = struct.field(static=True)

    def newest(self, size: int) -> "SampledTrajectory":
        """Returns the last `size` samples, with the end as it is."""
        dropped = len(self) - size
        kept = self.clip(dropped, size)
        fields = {name: getattr(kept, name) for name in (*TIMED, "extras")}
        return self.replace(**fields, start=self.start + dropped)


def signature(samples: Samples) -> dict[str, tuple[tuple[int, ...], np.dtype]]:
    """Returns `{path: (shape of one sample's leaf, dtype)}`."""
    found = {}
    for name in (*TIMED, "extras", "last_obs"):
        axes = int(name != "last_obs")
        for path, (shape, dtype) in nests.signature(getattr(samples, name)).items():
            leaf = name if path == "." else f"{name}/{path}"
            found[leaf] = shape[axes:], dtype
    return found
