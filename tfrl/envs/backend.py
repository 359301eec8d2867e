"""What an adapter has to offer so that `HostEnv` makes environments of it."""

import abc
import dataclasses
from typing import Any

import numpy as np

from tfrl.envs.core import Autoreset
from tfrl.types import Nest


@dataclasses.dataclass(slots=True)
class Step:
    """What a batch of host environments answers to a step, in arrays that no later call changes.

    Attributes:
      obs: The observation to act on next, a nest `[B, ...]`.
      reward: `[B]`.
      termination: bool `[B]`.
      truncation: bool `[B]`.
      final_obs: The true successor, a nest `[B, ...]`; None where it equals `obs` in every row, as
        always but at an end under SAME_STEP.
      info: `{name: array [B, ...]}` of what the adapter was asked to hand on.
    """

    obs: Nest
    reward: np.ndarray
    termination: np.ndarray
    truncation: np.ndarray
    final_obs: Nest = None
    info: dict[str, np.ndarray] = dataclasses.field(default_factory=dict)


class Backend(abc.ABC):
    """A batch of environments of another library, stepped together in Python.

    It resets by itself: under `Autoreset.SAME_STEP` in the step that ends an episode, under
    `Autoreset.NEXT_STEP` in the next one, whose action is ignored and whose reward is 0.

    Attributes:
      name: The id, `suite:task`, for messages.
      num_envs: How many environments (B).
      obs_spec: The nest of specs of one observation.
      action_spec: The nest of specs of one action.
      autoreset: NEXT_STEP or SAME_STEP: what it does at an end.
      max_episode_steps: Steps after which it truncates an episode, or None.
      info_spec: `{name: spec of one}` of what `Step.info` holds at every step.
      render_fps: Frames per second of its pictures.
      clips_actions: Whether actions are clipped on the way, so that their spec has no bounds.
      stepped: How they are stepped, in a word or two, for the line that tells of a run; or "".
    """

    name: str
    num_envs: int
    obs_spec: Nest
    action_spec: Nest
    autoreset: Autoreset
    max_episode_steps: int | None = None
    info_spec: dict[str, Any]
    render_fps: float = 30.0
    clips_actions: bool = False
    stepped: str = ""

    @abc.abstractmethod
    def reset(self, seeds: np.ndarray) -> Step:
        """Starts an episode in every environment; `seeds` are distinct, int64 `[B]`."""

    @abc.abstractmethod
    def send(self, action: Nest) -> None:
        """Starts a step with actions `[B, ...]`; processes and threads go on by themselves."""

    @abc.abstractmethod
    def receive(self) -> Step:
        """Returns what the last `send` led to."""

    @abc.abstractmethod
    def copy(
        self, num_envs: int, render: bool = False, autoreset: Autoreset | None = None
    ) -> "Backend":
        """Returns other environments of the same task; with `render`, such that can be drawn.

        Those to be drawn reset by NEXT_STEP where they can, so that an episode's end can be seen.

        Args:
          num_envs: How many.
          render: Whether they can be drawn.
          autoreset: NEXT_STEP or SAME_STEP; None for that of these.
        """

    @abc.abstractmethod
    def close(self) -> None:
        """Frees the environments; a second call does nothing."""

    def render(self, index: int) -> np.ndarray:
        """Draws environment `index` as it is now, uint8 RGB `[H, W, 3]`.

        Raises:
          NotImplementedError: If it cannot be drawn.
        """
        raise NotImplementedError(f"{self.name} has no renderer")
