"""What can be read of a single-agent episode: lengths, columns, returns."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from tfrl.episodes import nests
from tfrl.episodes.lookback_buffer import Indices, LookbackBuffer, resolve
from tfrl.errors import UserError

Nest = Any


class EpisodeReader:
    """The columns of an episode and their getters; `SingleAgentEpisode` fills them."""

    t_started: int
    is_terminated: bool
    is_truncated: bool
    _obs: LookbackBuffer
    _action: LookbackBuffer
    _reward: LookbackBuffer
    _extras: LookbackBuffer
    _infos: list[dict[str, Any]]

    # Basic facts.

    def __len__(self) -> int:
        """The number of steps, the lookback not counted."""
        return max(len(self._obs) - 1, 0)

    def env_steps(self) -> int:
        """Returns the number of steps, as `len`."""
        return len(self)

    @property
    def t(self) -> int:
        """The number of the next step within the whole episode."""
        return self.t_started + len(self)

    @property
    def is_done(self) -> bool:
        """Whether the episode ended, by termination or truncation."""
        return self.is_terminated or self.is_truncated

    @property
    def is_numpy(self) -> bool:
        """Whether everything is stacked."""
        return all(buffer.is_numpy for buffer in self._buffers)

    @property
    def len_lookback_buffer(self) -> int:
        """The number of steps of lookback."""
        return self._obs.lookback

    def get_return(self) -> Any:
        """Returns the sum of the rewards, a float (a dict of them for a dict of rewards)."""
        if not len(self):
            return 0.0
        return nests.map_leaves(
            lambda r: float(r.sum(dtype=np.float64)) if r.ndim == 1 else r.sum(axis=0),
            self.get_rewards(),
        )

    # Reading data.

    def get_observations(
        self,
        indices: Indices = None,
        *,
        neg_index_as_lookback: bool = False,
        fill: Any = None,
    ) -> Nest:
        """Returns one observation, or several stacked along a leading axis.

        There is one observation more than there are steps.

        Args:
          indices: A position, a slice, a list of positions, or None for all without the lookback.
          neg_index_as_lookback: Whether -1 is the item just before o_0 of this chunk, the last of
            the lookback; otherwise -1 is the last of all, and what lies further back than the
            chunk reaches into the lookback.
          fill: What every leaf holds at positions that do not exist; None refuses such a
            position, and shortens such a slice.

        Raises:
          UserError: For positions that do not exist.
        """
        return self._obs.get(indices, neg_index_as_lookback=neg_index_as_lookback, fill=fill)

    def get_actions(
        self,
        indices: Indices = None,
        *,
        neg_index_as_lookback: bool = False,
        fill: Any = None,
    ) -> Nest:
        """Returns actions; see `get_observations`."""
        return self._action.get(indices, neg_index_as_lookback=neg_index_as_lookback, fill=fill)

    def get_rewards(
        self,
        indices: Indices = None,
        *,
        neg_index_as_lookback: bool = False,
        fill: Any = None,
    ) -> Nest:
        """Returns float32 rewards; see `get_observations`."""
        return self._reward.get(indices, neg_index_as_lookback=neg_index_as_lookback, fill=fill)

    def get_extra_model_outputs(
        self,
        key: str | None = None,
        indices: Indices = None,
        *,
        neg_index_as_lookback: bool = False,
        fill: Any = None,
    ) -> Nest:
        """Returns what the policy gave under `key`, or the dict of all; see `get_observations`.

        Raises:
          UserError: For a key that the steps do not have, and as `get_observations`.
        """
        rows = self._extras.get(indices, neg_index_as_lookback=neg_index_as_lookback, fill=fill)
        if key is None:
            return rows
        if key not in rows:
            raise UserError(
                f"policy_extras[{key!r}]",
                expected=f"one of {sorted(rows)}",
                got="no such name in this episode",
                remedy="Give it as extra_model_outputs of every step.",
            )
        return rows[key]

    def get_infos(
        self,
        indices: Indices = None,
        *,
        neg_index_as_lookback: bool = False,
        fill: Any = None,
    ) -> Any:
        """Returns the info dict of one observation, or a list of them; see `get_observations`."""
        size, lookback = len(self._obs), self._obs.lookback
        positions = resolve(
            "infos", indices, size, lookback, neg_index_as_lookback, fill is not None
        )
        single = isinstance(positions, int)
        found = [
            self._infos[lookback + p] if -lookback <= p < size else fill
            for p in ([positions] if isinstance(positions, int) else positions)
        ]
        return found[0] if single else found

    @property
    def obs(self) -> Nest:
        """All observations, leaves `[T + 1, ...]`."""
        return self.get_observations()

    @property
    def action(self) -> Nest:
        """All actions, leaves `[T, ...]`."""
        return self.get_actions()

    @property
    def reward(self) -> Nest:
        """All rewards, float32 `[T]` (or a dict of them)."""
        return self.get_rewards()

    @property
    def policy_extras(self) -> dict[str, Nest]:
        """All that the policy gave beside the actions, leaves `[T, ...]`."""
        return self.get_extra_model_outputs() if len(self) else {}

    @property
    def infos(self) -> list[dict[str, Any]]:
        """All info dicts, one for each observation."""
        return self.get_infos()

    @property
    def termination(self) -> np.ndarray:
        """Bool `[T]`; True at most in the last step."""
        return _last(len(self), self.is_terminated)

    @property
    def truncation(self) -> np.ndarray:
        """Bool `[T]`; True at most in the last step."""
        return _last(len(self), self.is_truncated)

    @property
    def _buffers(self) -> tuple[LookbackBuffer, ...]:
        return self._obs, self._action, self._reward, self._extras


def extras_buffer(columns: Mapping[str, Nest] | None, steps: int, lookback: int) -> LookbackBuffer:
    """One buffer of dicts, made of columns that are lists of items or stacked."""
    stacked, sizes = {}, {}
    for name, column in (columns or {}).items():
        buffer = LookbackBuffer.of(f"policy_extras/{name}", column)
        sizes[name] = buffer.size
        if buffer.size:
            stacked[name] = buffer.all()
    if any(size != steps for size in sizes.values()):
        raise UserError(
            "policy_extras",
            expected=f"{steps} items of each, as there are actions",
            got=str(sizes),
            remedy="Give every name an item for every step.",
        )
    rows = stacked if steps else None
    return LookbackBuffer("policy_extras", stacked=rows, size=steps, lookback=lookback)


def _last(steps: int, flag: bool) -> np.ndarray:
    column = np.zeros([steps], bool)
    if steps:
        column[-1] = flag
    return column
