"""The base class of single- and multi-agent episodes: bounds, cutting and joining."""

import abc
from typing import Any, TypeVar

from tfrl.errors import UserError

E = TypeVar("E", bound="BaseEpisode")


class BaseEpisode(abc.ABC):
    """Steps `t_started` to `t` of an episode or a chunk of it, with a lookback before them."""

    id_: str
    t_started: int
    t: int
    len_lookback_buffer: int
    is_terminated: bool
    is_truncated: bool

    @property
    @abc.abstractmethod
    def has_begun(self) -> bool:
        """Whether the episode has a reset."""

    @abc.abstractmethod
    def _chunk(self: E, start: int, stop: int, lookback: int) -> E:
        """Returns steps `start` to `stop` of this chunk with a lookback, sharing memory."""

    def __len__(self) -> int:
        """The number of env steps, without the lookback."""
        return self.t - self.t_started

    def env_steps(self) -> int:
        """Returns the number of env steps, like `len`."""
        return len(self)

    @property
    def is_done(self) -> bool:
        """Whether the whole episode ended, by termination or truncation."""
        return self.is_terminated or self.is_truncated

    def __getitem__(self: E, item: slice) -> E:
        """Returns the steps of a slice as a chunk; see `slice`."""
        return self.slice(item)

    def slice(self: E, slice_: slice, *, len_lookback_buffer: int | None = None) -> E:
        """Returns consecutive steps as a separate chunk.

        Steps a to b have the observations o_a .. o_b. A slice that ends before the episode's end is
        neither terminated nor truncated.

        Args:
          slice_: The steps; negative numbers count from the end, as for a list.
          len_lookback_buffer: The most steps before the slice to include as lookback; by default
            this episode's number.

        Raises:
          UserError: Unless it is a slice of step 1.
        """
        if not isinstance(slice_, slice) or slice_.step not in (None, 1):
            raise UserError(
                f"episode {self.id_}",
                expected="a slice of consecutive steps, such as episode[2:5]",
                got=str(slice_),
                remedy="Read single items with get_observations(i), get_actions(i), ...",
            )
        start, stop, _ = slice_.indices(len(self))
        own = self.len_lookback_buffer
        lookback = min(own if len_lookback_buffer is None else len_lookback_buffer, own + start)
        return self._chunk(start, max(start, stop), lookback)

    def cut(self: E, len_lookback_buffer: int = 0) -> E:
        """Returns an empty chunk that continues the episode.

        Args:
          len_lookback_buffer: The number of last steps to include as lookback.

        Raises:
          UserError: If the episode is done or has not begun.
        """
        if self.is_done or not self.has_begun:
            raise UserError(
                f"episode {self.id_}",
                expected="an ongoing episode",
                got="an ended episode" if self.is_done else "an episode without a reset",
                remedy="Call cut only after add_env_reset, while `not episode.is_done`.",
            )
        end = len(self)
        return self._chunk(end, end, min(len_lookback_buffer, end + self.len_lookback_buffer))

    def _check_reset(self) -> None:
        if self.has_begun:
            raise UserError(
                f"episode {self.id_}",
                expected="a single reset, before the first step",
                got=f"a second reset after {len(self)} steps",
                remedy=f"Create a new {type(self).__name__} for the next episode.",
            )

    def _check_goes_on(self) -> None:
        if self.is_done or not self.has_begun:
            raise UserError(
                f"episode {self.id_}",
                expected="steps between the reset and the end",
                got=f"a step while the episode {'has ended' if self.is_done else 'has no reset'}",
                remedy=f"Create a new {type(self).__name__} for each episode, and call "
                "add_env_reset first.",
            )

    def _check_meets(self, other: Any) -> None:
        """Raises a UserError unless another chunk continues this one."""
        wrong = []
        if other.id_ != self.id_:
            wrong.append(f"id {other.id_} after {self.id_}")
        if self.is_done:
            wrong.append("an episode that has ended")
        if other.t_started != self.t:
            wrong.append(f"a chunk that starts at step {other.t_started} after step {self.t}")
        wrong += self._differences(other)
        if wrong:
            raise UserError(
                "concat_episode",
                expected="the next chunk of this episode",
                got="; ".join(wrong),
                remedy="Concatenate chunks from `cut` in order.",
            )

    @abc.abstractmethod
    def _differences(self, other: Any) -> list[str]:
        """Names the differences at the boundary of this chunk and the next."""
