"""Converts episodes to trajectories of a rollout, and back."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfrl import struct
from tfrl.episodes import lookback_buffer
from tfrl.errors import UserError
from tfrl.types import Trajectory


def trajectory_of(episode: Any, env_extra_fields: Sequence[str] = ()) -> Trajectory:
    """Returns the steps of a single-agent episode as a trajectory, leaves `[T, 1, ...]`.

    Args:
      episode: A `SingleAgentEpisode`.
      env_extra_fields: Names of infos after each step, to store in `env_extras`.

    Raises:
      UserError: For an episode without steps, or an info that a step does not have.
    """
    if not len(episode):
        raise UserError(f"episode {episode.id_}", expected="at least one step", got="no step")
    after = episode.get_infos(slice(1, None))
    extras = {}
    for name in env_extra_fields:
        missing = [t for t, info in enumerate(after) if name not in info]
        if missing:
            raise UserError(
                f"env_extra_fields {name!r}",
                expected="an info item of every step",
                got=f"no item at steps {missing[:5]}{' ...' if len(missing) > 5 else ''}",
                remedy=f"Choose from the first step's items: {sorted(after[0])}.",
            )
        extras[name] = lookback_buffer.stack(
            [lookback_buffer.as_arrays(info[name], name) for info in after]
        )
    rows = Trajectory(
        obs=lookback_buffer.take(episode.obs, slice(0, -1)),
        action=episode.action,
        reward=episode.reward,
        next_obs=lookback_buffer.take(episode.obs, slice(1, None)),
        termination=episode.termination,
        truncation=episode.truncation,
        valid=np.ones([len(episode)], bool),
        policy_extras=episode.policy_extras or None,
        env_extras=extras or None,
    )
    return tf.nest.map_structure(lambda x: x[:, np.newaxis], rows)


def episodes_of(
    make: Callable[..., Any], trajectory: Trajectory, t_started: Sequence[int] | None = None
) -> list[Any]:
    """Cuts a trajectory into episodes, column by column.

    Args:
      make: The `SingleAgentEpisode` class.
      trajectory: Leaves `[T, B, ...]`; `valid` may be None if all rows are valid.
      t_started: The number of each column's first step within its episode; 0 if None.

    Returns:
      The episodes, stacked; each begins with the observation of its first valid row.
    """
    rows = tf.nest.map_structure(np.asarray, trajectory)
    ends = rows.termination | rows.truncation
    valid = np.ones_like(ends) if rows.valid is None else rows.valid
    if t_started is not None and len(t_started) != ends.shape[1]:
        raise UserError(
            "t_started",
            expected=f"{ends.shape[1]} numbers, one per column",
            got=f"{len(t_started)} numbers",
        )
    episodes = []
    for b in range(ends.shape[1]):
        column = tf.nest.map_structure(lambda x, b=b: x[:, b], rows)
        for start, stop in _pieces(valid[:, b], ends[:, b]):
            started = int(t_started[b]) if t_started is not None and start == 0 else 0
            episodes.append(_episode(make, struct.slice(column, start, stop), started))
    return episodes


def _pieces(valid: np.ndarray, ends: np.ndarray) -> list[tuple[int, int]]:
    """Returns start and stop of every run of valid rows up to an end."""
    pieces, start = [], None
    for t in range(len(valid)):
        if not valid[t]:
            if start is not None:
                pieces.append((start, t))
            start = None
            continue
        start = t if start is None else start
        if ends[t]:
            pieces.append((start, t + 1))
            start = None
    if start is not None:
        pieces.append((start, len(valid)))
    return pieces


def _episode(make: Callable[..., Any], rows: Trajectory, t_started: int) -> Any:
    """Returns the episode of consecutive rows, leaves `[n, ...]`."""
    last = lookback_buffer.take(rows.next_obs, slice(-1, None))
    infos = None
    if rows.env_extras:
        steps = [
            lookback_buffer.take(rows.env_extras, (t, ...)) for t in range(len(rows.termination))
        ]
        infos = [{}, *steps]
    extras = rows.policy_extras
    return make(
        obs=lookback_buffer.concat([rows.obs, last]),
        action=rows.action,
        reward=rows.reward,
        infos=infos,
        policy_extras=extras,
        termination=bool(rows.termination[-1]),
        truncation=bool(rows.truncation[-1]),
        t_started=t_started,
    )
