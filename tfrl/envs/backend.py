"""The interface of adapters for `HostEnv`."""

import abc
import dataclasses
from typing import Any

import numpy as np
import tensorflow as tf

from tfrl import specs, struct
from tfrl.envs.core import Autoreset
from tfrl.errors import UserError
from tfrl.types import Nest


@dataclasses.dataclass(slots=True)
class Step:
    """The result of a step of host environments, in arrays that later calls do not change.

    Attributes:
      obs: The observation to act on next, a nest `[B, ...]`.
      reward: `[B]`.
      termination: bool `[B]`.
      truncation: bool `[B]`.
      final_obs: The true successor, a nest `[B, ...]`; None if it equals `obs` in every row, i.e.
        always except at an end under SAME_STEP.
      info: `{name: array [B, ...]}` of requested fields.
    """

    obs: Nest
    reward: np.ndarray
    termination: np.ndarray
    truncation: np.ndarray
    final_obs: Nest = None
    info: dict[str, np.ndarray] = dataclasses.field(default_factory=dict)


class Backend(abc.ABC):
    """A batch of another library's environments, stepped together in Python.

    It resets itself: under `Autoreset.SAME_STEP` in the step that ends an episode, under
    `Autoreset.NEXT_STEP` in the next step, which ignores its action and has reward 0.

    Attributes:
      name: The id, `suite:task`, for messages.
      num_envs: Number of environments (B).
      obs_spec: The nest of specs of one observation.
      action_spec: The nest of specs of one action.
      autoreset: NEXT_STEP or SAME_STEP.
      max_episode_steps: Time limit of an episode in steps, or None.
      info_spec: `{name: spec of one}` of `Step.info`.
      info_fields: Names in `info` that a run's metrics include, at the ends of episodes.
      render_fps: Frames per second of videos.
      clips_actions: Whether it clips actions, so that their spec has no bounds.
      stepped: A short description of the stepping for a run's log, or "".
    """

    name: str
    num_envs: int
    obs_spec: Nest
    action_spec: Nest
    autoreset: Autoreset
    max_episode_steps: int | None = None
    info_spec: dict[str, Any]
    info_fields: tuple[str, ...] = ()
    render_fps: float = 30.0
    clips_actions: bool = False
    stepped: str = ""

    @abc.abstractmethod
    def reset(self, seeds: np.ndarray) -> Step:
        """Starts an episode in every environment; `seeds` are distinct, int64 `[B]`."""

    @abc.abstractmethod
    def send(self, action: Nest) -> None:
        """Starts a step with actions `[B, ...]`, without waiting for it."""

    @abc.abstractmethod
    def receive(self) -> Step:
        """Returns the result of the last `send`."""

    @abc.abstractmethod
    def copy(
        self, num_envs: int, render: bool = False, autoreset: Autoreset | None = None
    ) -> "Backend":
        """Returns new environments of the same task, optionally with rendering.

        With rendering they use NEXT_STEP if possible, so that an episode's end is visible.

        Args:
          num_envs: Number of environments.
          render: Whether they can render.
          autoreset: NEXT_STEP or SAME_STEP; None for the same.
        """

    def tolerant(self) -> "Backend":
        """Returns new environments of the same task with tolerated failures.

        An exception, or a number that is not finite, ends the environment's episode, with 1 as
        `LOST` in `info`. The default does not tolerate failures.
        """
        return self.copy(self.num_envs)

    @abc.abstractmethod
    def close(self) -> None:
        """Closes the environments; a second call does nothing."""

    def render(self, index: int) -> np.ndarray:
        """Renders environment `index` now, uint8 RGB `[H, W, 3]`.

        Raises:
          NotImplementedError: Without a renderer.
        """
        raise NotImplementedError(f"{self.name} has no renderer")


def check_action(name: str, action_spec: Nest, action: Nest, num_envs: int) -> None:
    """Raises a UserError for actions that do not match the spec.

    Continuous actions may exceed their bounds; environments or wrappers clip them.

    Args:
      name: The environment's id.
      action_spec: The nest of specs of one action.
      action: The actions, a nest `[B, ...]`.
      num_envs: B.
    """
    wanted, leaves = struct.paths(action_spec), struct.paths(action)
    if wanted.keys() != leaves.keys():
        raise _wrong(
            name, f"the items {', '.join(wanted)}", ", ".join(leaves) or "nothing", "action_spec"
        )
    for path, spec in wanted.items():
        _check_leaf(f"{name}/{path}" if path != "." else name, spec, leaves[path], num_envs)


def _check_leaf(name: str, spec: Any, value: Any, num_envs: int) -> None:
    array = np.asarray(value)
    dtype = np.dtype(spec.dtype.as_numpy_dtype)
    shape = (num_envs, *spec.shape.as_list())
    integer_kinds = "biu" if isinstance(spec, specs.BinarySpec) else "iu"
    kinds = {"f": "iuf", "b": "biu"}.get(dtype.kind, integer_kinds)
    if array.shape != shape or array.dtype.kind not in kinds + dtype.kind:
        raise _wrong(
            name, f"{dtype.name} {list(shape)}", f"{array.dtype.name} {list(array.shape)}", "it"
        )
    if dtype.kind == "f":
        bad = ~np.isfinite(array)
        text = "finite numbers"
    elif specs.is_discrete(spec):
        low, high = specs.bounds(spec)
        bad = (array < low) | (array > high)
        text = f"whole numbers from {specs.shown(low)} to {specs.shown(high)}"
    else:
        return
    if bad.any():
        first = tuple(np.argwhere(bad)[0].tolist())
        raise _wrong(name, text, f"{array[first]} at {list(first)}", "it")


def _wrong(name: str, expected: str, got: str, what: str) -> UserError:
    return UserError(
        f"action for {name}",
        expected=expected,
        got=got,
        remedy=f"Pass actions that match env.action_spec{'' if what == 'it' else ' and its nest'}.",
    )


_REMEDY = (
    "Look for a division by zero or a diverging simulation. A value above 3.4e38 becomes inf in "
    "float32; clip it in the environment or a wrapper."
)


def check_finite(
    name: str, step: Step, unpaid: np.ndarray, unseen: np.ndarray, steps: np.ndarray
) -> None:
    """Raises a UserError unless all used rewards and observations are finite.

    Args:
      name: The environment's id.
      step: The environments' result.
      unpaid: bool `[B]`, rows with ignored rewards.
      unseen: bool `[B]`, unused rows.
      steps: int `[B]`, the steps of the running episodes; 0 for a reset.
    """
    _refuse(name, "reward", np.asarray(step.reward), unpaid, steps)
    _check_nest(name, "observation", step.obs, unseen, steps)
    if step.final_obs is not None:
        _check_nest(name, "final observation", step.final_obs, unseen, steps)


def is_finite(step: Step) -> bool:
    """Whether all rewards and observations of a step are finite."""
    if not _all_finite(step.reward):
        return False
    leaves = [step.obs] if isinstance(step.obs, np.ndarray) else tf.nest.flatten(step.obs)
    if step.final_obs is not None:
        leaves = [*leaves, *tf.nest.flatten(step.final_obs)]
    return all(x.dtype.kind != "f" or _all_finite(x) for x in leaves)


def _all_finite(x: np.ndarray) -> bool:
    """Counting is twice as fast as `all`."""
    return bool(np.count_nonzero(np.isfinite(x)) == x.size)


def _check_nest(name: str, field: str, nest: Nest, unseen: np.ndarray, steps: np.ndarray) -> None:
    for path, leaf in struct.paths(nest).items():
        if leaf.dtype.kind == "f":
            _refuse(name, field if path == "." else f"{field}/{path}", leaf, unseen, steps)


def _refuse(
    name: str, field: str, values: np.ndarray, skipped: np.ndarray, steps: np.ndarray
) -> None:
    bad = ~np.isfinite(values)
    rows = np.flatnonzero(bad.reshape(len(values), -1).any(1) & ~skipped)
    if not rows.size:
        return
    row = rows[0]
    at = tuple(int(i) for i in np.argwhere(bad[row])[0])
    place = f" at index {list(at)}" if at else ""
    more = f", and in {len(rows) - 1} more environments" if len(rows) > 1 else ""
    raise UserError(
        f"{field} of {name}, environment {row}, step {steps[row]}",
        expected="finite numbers",
        got=f"{values[(row, *at)]}{place}{more}",
        remedy=_REMEDY,
    )
