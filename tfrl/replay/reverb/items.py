"""Makes items from trajectories: the columns of steps, and where items begin and end.

An item is created at the newest step, when its last step arrives or the episode ends before.
"""

import dataclasses
import operator
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

from tfrl import checks, struct
from tfrl.errors import UserError
from tfrl.replay.core import EXTRAS, STATE_IN, stored_extras, trajectory_specs
from tfrl.replay.reverb.factory import TableConfig
from tfrl.replay.reverb.signature import item_signature, leaves, state_in_spec
from tfrl.types import Trajectory

if TYPE_CHECKING:
    from tfrl.replay.reverb.factory import ReverbReplay
    from tfrl.replay.reverb.stream import Stream


_STATE = f"policy_extras/{STATE_IN}"


@dataclasses.dataclass(frozen=True)
class Layout:
    """The columns of a writer, in the order in which it appends them.

    Observations come first. A row has the observation *after* its step, so that an item is complete
    as soon as its last step arrives, and each observation is stored once. An episode begins with a
    row of only its first observation.

    Attributes:
      obs: Paths of the observations; their columns come first.
      step: Paths of the other leaves that are appended with every step.
      state: Paths of the recurrent state, appended with the steps that begin a sequence.
      state_always: Whether the state is appended with every step, because n-step items have it too.
      reward: The column of the reward; None if no table has sequences.
      flags: The column of a step's flags; None if no table has sequences.
      targets: The column of the n-step return, by n; the next column has its discount.
      size: The number of columns.
    """

    obs: tuple[str, ...]
    step: tuple[str, ...]
    state: tuple[str, ...]
    state_always: bool
    reward: int | None
    flags: int | None
    targets: dict[int, int]
    size: int

    def column(self, path: str) -> int:
        """Returns the column number of a step's path."""
        return (*self.obs, *self.step, *self.state).index(path)


def make_layout(replay: "ReverbReplay") -> Layout:
    """Returns the columns that the tables of a factory need."""
    obs = tuple(leaves("obs", replay.obs_spec))
    step = list(leaves("action", replay.action_spec))
    for name in EXTRAS:
        step += leaves(name, getattr(replay, f"{name}_spec"))
    state = tuple(leaves(_STATE, state_in_spec(replay)))
    step = [path for path in step if path not in state]
    at = len(obs) + len(step) + len(state)
    configs = replay.table_configs
    has_sequences = any(config.is_sequence for config in configs)
    reward, flags = (at, at + 1) if has_sequences else (None, None)
    at += 2 * has_sequences
    steps = sorted({config.n_step or 1 for config in configs if not config.is_sequence})
    targets = {n: at + 2 * i for i, n in enumerate(steps)}
    size = at + 2 * len(steps)
    always = bool(steps)
    return Layout(obs, tuple(step), state, always, reward, flags, targets, size)


def transition_plan(
    replay: "ReverbReplay", layout: Layout, config: TableConfig
) -> list[tuple[str, int]]:
    """Returns (row, column) for each leaf of the signature of n-step items.

    The row is "before" (it ends with o_t), "first" (step t), "last" (step t + k - 1) or "target"
    (it has the return).
    """
    target = layout.targets[config.n_step or 1]
    plan = []
    for path in item_signature(replay, config):
        field, _, rest = path.partition("/")
        if field == "obs":
            plan.append(("before", layout.column(path)))
        elif field == "next_obs":
            plan.append(("last", layout.column("/".join(("obs", *filter(None, [rest]))))))
        elif field in ("reward", "discount"):
            plan.append(("target", target + (field == "discount")))
        else:
            plan.append(("first", layout.column(path)))
    return plan


def sequence_plan(
    replay: "ReverbReplay", layout: Layout, config: TableConfig
) -> list[tuple[str, int]]:
    """Returns (rows, column) for each leaf of the signature of sequences.

    The rows are "obs" (one more than the steps), "steps", "flags" or "first".
    """
    plan: list[tuple[str, int]] = []
    for path in item_signature(replay, config):
        field = path.partition("/")[0]
        if field == "obs":
            plan.append(("obs", layout.column(path)))
        elif field == STATE_IN:
            plan.append(("first", layout.column(f"policy_extras/{path}")))
        elif field == "reward":
            plan.append(("steps", layout.reward or 0))
        elif field == "flags":
            plan.append(("flags", layout.flags or 0))
        else:
            plan.append(("steps", layout.column(path)))
    return plan


class Columns:
    """Splits trajectories into columns, `{path: array [T, B, ...]}`, and checks them.

    Paths come from `struct.paths`: `obs`, `action`, `policy_extras/log_prob`, ...
    """

    def __init__(self, replay: "ReverbReplay"):
        """Takes the specs of a factory."""
        self._replay = replay
        specs = trajectory_specs(replay)
        # Most fields are one leaf and need no flattening.
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
          UserError: For a missing leaf, or a leaf of another shape or dtype; it names the path.
        """
        if trajectory.valid is None:  # all rows are valid
            rows = np.shape(trajectory.reward)
            trajectory = trajectory.replace(valid=np.ones(rows, np.bool_))
        result = {name: _array(name, getattr(trajectory, name)) for name in self._single}
        for name in self._nested:
            nest = getattr(trajectory, name)
            if name in EXTRAS:
                nest = stored_extras(self._replay, name, nest)
            result.update((path, _array(path, x)) for path, x in struct.paths(nest, name).items())
        if result.keys() != self._specs.keys():
            _refuse_leaves(self._specs.keys(), result.keys())
        rows = result["valid"].shape[:1] + (self._replay.num_envs,)
        for path, (shape, dtype, spec) in self._specs.items():
            x = result[path]
            if x.dtype != dtype or x.shape != rows + shape:
                checks.matches_spec(f"trajectory.{path}", x, spec, (None, self._replay.num_envs))
                checks.leading_shape(f"trajectory.{path}", x, rows, "valid")
        return result


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


def _refuse_leaves(wanted: Any, got: Any) -> None:
    missing, unknown = sorted(wanted - got), sorted(got - wanted)
    raise UserError(
        f"trajectory.{(missing or unknown)[0]}",
        expected="the leaves of the factory's specs",
        got="no such leaf in the trajectory" if missing else "a leaf that is in no spec",
        remedy="Create ReverbReplay with the specs of the environment and the agent.",
    )


def n_step_return(
    powers: Sequence[float], rewards: Sequence[float], terminated: bool
) -> tuple[np.float32, np.float32]:
    """Returns the n-step return and the discount of its bootstrap value.

    Args:
      powers: The powers of the discount, from 0 on.
      rewards: One per step.
      terminated: Whether the last step terminated the episode.
    """
    discount = 0.0 if terminated else powers[len(rewards)]
    return np.float32(sum(map(operator.mul, powers, rewards))), np.float32(discount)


class TransitionItems:
    """Items of n steps, fewer at an episode's end, for all tables of one n."""

    def __init__(self, replay: "ReverbReplay", layout: Layout, configs: Sequence[TableConfig]):
        """Takes tables of one n."""
        self.n = configs[0].n_step or 1
        self.tables = [config.name for config in configs]
        self.target = layout.targets[self.n]
        self._powers = [replay.discount**j for j in range(self.n + 1)]
        self._plan = transition_plan(replay, layout, configs[0])
        self._squeezed = [True] * len(self._plan)

    def values(self, rewards: Sequence[float], terminated: bool) -> tuple[np.float32, np.float32]:
        """Returns the return of the last k rewards and the bootstrap discount."""
        return n_step_return(self._powers, rewards, terminated)

    def stepped(self, stream: "Stream") -> None:
        """Creates the item that the newest step completes."""
        if stream.length >= self.n:
            self._make(stream, self.n, stream.rows[-1])

    def ended(self, stream: "Stream", terminated: bool) -> None:
        """Creates the short items at the episode's end, the oldest first."""
        for k in range(min(stream.length, self.n - 1), 0, -1):
            values = self.values(stream.rewards[-k:], terminated)
            self._make(stream, k, stream.append_at(self.target, values))

    def _make(self, stream: "Stream", k: int, target: list[Any]) -> None:
        rows = stream.rows
        row = {"before": rows[-1 - k], "first": rows[-k], "last": rows[-1], "target": target}
        refs = [[row[which][column]] for which, column in self._plan]
        stream.create(self.tables, refs, self._squeezed)


class SequenceItems:
    """Items of L consecutive steps, or whole episodes, for all tables of one length and period."""

    def __init__(self, replay: "ReverbReplay", layout: Layout, configs: Sequence[TableConfig]):
        """Takes tables of one length and period."""
        config = configs[0]
        self.length, self.period = config.steps, config.period
        self.whole_episodes = config.whole_episodes
        self.tables = [config.name for config in configs]
        self._flags = layout.flags or 0
        self._plan = sequence_plan(replay, layout, config)
        self._squeezed = [which == "first" for which, _ in self._plan]

    def begins(self, step: int) -> bool:
        """Whether a sequence begins at a step of an episode."""
        return step == 0 if self.whole_episodes else step % self.period == 0

    def stepped(self, stream: "Stream") -> None:
        """Creates the sequence that the newest step completes."""
        start = stream.length - self.length
        if self.whole_episodes:
            if start > 0:
                _refuse_long(self.tables[0], self.length)
        elif start >= 0 and start % self.period == 0:
            self._make(stream, self.length, stream.rows)

    def ended(self, stream: "Stream", cut: bool) -> None:
        """Creates the short sequences at the episode's end, the oldest first.

        Args:
          stream: The stream of the environment.
          cut: Whether the last step was stored without an end, and must be marked as truncated.
        """
        starts = self._unfinished(stream.length)
        if not starts:
            return
        flagged = stream.rows
        if cut:
            flagged = stream.append_truncated(self._flags, stream.length - starts[0])
        for start in starts:
            self._make(stream, stream.length - start, flagged)

    def _unfinished(self, length: int) -> list[int]:
        """Returns the starts of short sequences that have steps beyond the overlap."""
        if self.whole_episodes:
            return [0]
        overlap = self.length - self.period
        start = max(length - self.length + 1, 0)
        first = -(-start // self.period) * self.period
        return [s for s in range(first, length, self.period) if s == 0 or length - s > overlap]

    def _make(self, stream: "Stream", k: int, flagged: list[list[Any]]) -> None:
        rows = stream.rows
        result = {"obs": rows[-1 - k :], "steps": rows[-k:], "first": [rows[-k]]}
        result["flags"] = flagged[-k:]
        refs = [[row[column] for row in result[which]] for which, column in self._plan]
        stream.create(self.tables, refs, self._squeezed)


def _refuse_long(table: str, length: int) -> None:
    raise UserError(
        f"ReverbReplay table {table!r}, episode_length",
        expected=f"episodes of at most {length} steps",
        got="a longer episode",
        remedy="Raise episode_length to the longest episode (the environment's "
        "max_episode_steps), or store sequences.",
    )


def make_items(
    replay: "ReverbReplay", layout: Layout
) -> tuple[list[TransitionItems], list[SequenceItems]]:
    """Returns the objects that create the items of a factory's tables."""
    steps: dict[int, list[TableConfig]] = {}
    sequences: dict[Any, list[TableConfig]] = {}
    for config in replay.table_configs:
        if config.is_sequence:
            kind = (config.steps, config.period, config.whole_episodes)
            sequences.setdefault(kind, []).append(config)
        else:
            steps.setdefault(config.n_step or 1, []).append(config)
    return (
        [
            TransitionItems(replay, layout, steps[n]) for n in layout.targets
        ],  # in the order of their columns
        [SequenceItems(replay, layout, configs) for configs in sequences.values()],
    )
