"""Logs served requests as episodes: `--log_episodes` of `tfrl-serve`."""

import collections
import itertools
import pathlib
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from tfrl.episodes import SingleAgentEpisode, write_episodes
from tfrl.errors import UserError
from tfrl.serving.served_policy import LOGGED, RequestRows, ServedPolicy

_LARGEST = float(np.finfo(np.float32).max)  # of a reward
_MOST_OPEN = 10_000  # episodes; beyond, the longest idle one is written as a chunk


class EpisodeLog:
    """Collects episodes by the `episode_id` of requests; writes each when it ends.

    A request with a new id is a reset. A later request is the step to its observation, with the
    action of the last response and the request's `reward`. `termination` or `truncation`, or both
    as in Gymnasium, marks the last observation.
    """

    def __init__(self, folder: pathlib.Path, on_episode: Callable[[], Any] = lambda: None):
        """Creates the folder.

        Args:
          folder: The folder of the files.
          on_episode: Called after each written episode.
        """
        folder.mkdir(parents=True, exist_ok=True)
        self._folder, self._on_episode = folder, on_episode
        self._open: collections.OrderedDict[str, tuple[SingleAgentEpisode, Any]]
        self._open = collections.OrderedDict()
        self._numbers = itertools.count()
        self._prefix = f"{time.strftime('%Y%m%d-%H%M%S')}-{time.time_ns() % 10**9:09d}"
        self._lock = threading.Lock()

    def read(self, columns: dict[str, Any], size: int) -> dict[str, list[Any]]:
        """Removes the logged columns from a request and returns them.

        Args:
          columns: The request's columns by name; changed.
          size: The number of rows.

        Raises:
          UserError: A column is malformed, an episode id is repeated, or a step has no reward.
        """
        logged = {name: columns.pop(name) for name in LOGGED if name in columns}
        ids = logged.get("episode_id")
        if ids is None:
            if logged:
                raise UserError(
                    "the request",
                    expected=f"an episode_id with {', '.join(logged)}",
                    got="no episode_id",
                    remedy="Send the same episode_id in all steps of an episode.",
                )
            return {}
        for name, column in logged.items():
            if not isinstance(column, list) or len(column) != size:
                raise UserError(
                    name, expected=f"a list of {size} items, one per row", got=f"{column!r:.60}"
                )
        _check_ids(ids)
        for name in LOGGED[2:]:
            wrong = [value for value in logged.get(name, []) if not isinstance(value, bool)]
            if wrong:
                raise UserError(name, expected="true or false", got=f"{wrong[0]!r:.60}")
        self._check_rewards(logged)
        return logged

    def _check_rewards(self, logged: Mapping[str, list[Any]]) -> None:
        """Checks that every step of an open episode has a reward, and that rewards are numbers.

        The first row of an episode may have None or a number, which is ignored: its request may
        have rows of other episodes.
        """
        ids = logged["episode_id"]
        for name, reward in zip(
            map(str, ids), logged.get("reward", [None] * len(ids)), strict=True
        ):
            number = isinstance(reward, int | float) and not isinstance(reward, bool)
            finite = number and abs(reward) <= _LARGEST  # also integers beyond any float
            if not finite and (name in self._open or reward is not None):
                raise UserError(
                    f"reward of episode {name}",
                    expected="a number, the reward of the previous action",
                    got=f"{reward!r:.60}",
                )

    def add(
        self, policy: ServedPolicy, logged: Mapping[str, list[Any]], rows: RequestRows, outputs: Any
    ) -> None:
        """Adds the steps of a served request; thread-safe.

        Raises:
          UserError: Another request has opened the episode meanwhile, and this one has no reward.
        """
        actions = [outputs[name] for name in policy.outputs if name not in policy.state]
        with self._lock:
            self._check_rewards(logged)
            for row, name in enumerate(map(str, logged["episode_id"])):
                obs = _packed(policy.policy.obs_spec, [x[row] for x in rows.obs])
                action = _packed(policy.policy.action_spec, [np.asarray(x[row]) for x in actions])
                ends = [n in logged and logged[n][row] for n in LOGGED[2:]]
                reward = logged.get("reward", [0.0] * rows.size)[row]
                self._add(name, obs, action, reward, *ends)

    def _add(
        self, name: str, obs: Any, action: Any, reward: Any, terminated: bool, truncated: bool
    ) -> None:
        episode, before = self._open.pop(name, (None, None))
        if episode is None:
            episode = SingleAgentEpisode(name)
            episode.add_env_reset(obs)
            if terminated or truncated:
                return
        else:
            episode.add_env_step(obs, before, reward, terminated=terminated, truncated=truncated)
        if episode.is_done:
            self._write(episode)
            return
        self._open[name] = (episode, action)
        if len(self._open) > _MOST_OPEN:
            self._write(self._open.popitem(last=False)[1][0])

    def _write(self, episode: SingleAgentEpisode) -> None:
        if not len(episode):
            return
        name = f"{self._prefix}-{next(self._numbers):06d}.episodes.npz"
        write_episodes(self._folder / name, [episode.to_numpy()])
        self._on_episode()

    def close(self) -> None:
        """Writes the unfinished episodes as chunks."""
        with self._lock:
            while self._open:
                self._write(self._open.popitem(last=False)[1][0])


def _check_ids(ids: list[Any]) -> None:
    """Checks that ids are strings or numbers and unique, since an episode's steps are in order."""
    for value, times in collections.Counter(map(str, ids)).items():
        if times > 1:
            raise UserError(
                "episode_id",
                expected="one row per episode",
                got=f"{times} rows of {value!r:.60}",
                remedy="Send the steps of an episode in separate requests.",
            )
    wrong = [value for value in ids if not isinstance(value, str | int)]
    if wrong:
        raise UserError("episode_id", expected="strings or numbers", got=f"{wrong[0]!r:.60}")


def _packed(spec: Any, leaves: list[np.ndarray]) -> Any:
    return tf.nest.pack_sequence_as(spec, leaves)
