"""What writers take of a trajectory: checked NumPy columns by path."""

import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

from tfrl import checks, struct
from tfrl.errors import UserError, did_you_mean
from tfrl.replay.reading import STATE_IN
from tfrl.replay.reverb.signature import item_signature, leaves, state_in_spec
from tfrl.replay.reverb.table_config import TableConfig
from tfrl.types import Trajectory

if TYPE_CHECKING:
    from tfrl.replay.reverb.maker import ReverbReplay


_STATE = f"policy_extras/{STATE_IN}"
_FLAGS = ("termination", "truncation", "valid")


@dataclasses.dataclass(frozen=True)
class Layout:
    """The columns of a writer, in the order in which it appends them.

    Observations come first: a row holds the observation *after* its step, so that an item is whole
    as soon as its last step is there, and each observation is stored once. An episode begins with
    a row of its first observation alone.

    Attributes:
      obs: Paths of the observations; their columns are the first ones.
      step: Paths of what is appended with every step.
      state: Paths of the recurrent state, appended with the steps that begin a sequence.
      state_always: Whether it is appended with every step, because n-step items have it too.
      reward: The column of the reward; None where no table has sequences.
      flags: The column of a step's flags; None likewise.
      targets: The column of the n-step return, by n; that of its discount is the next one.
      size: How many columns there are.
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
        """Returns the number of the column of a path of a step."""
        return (*self.obs, *self.step, *self.state).index(path)


def make_layout(replay: "ReverbReplay") -> Layout:
    """Returns the columns that the tables of a maker need."""
    obs = tuple(leaves("obs", replay.obs_spec))
    step = list(leaves("action", replay.action_spec))
    for name in ("policy_extras", "env_extras"):
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

    The row is "before" (the one that ends with o_t), "first" (that of step t), "last" (that of step
    t + k - 1) or "target" (that holds the return).
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

    The rows are "obs" (one more than there are steps), "steps", "flags" or "first".
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
