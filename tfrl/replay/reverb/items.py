"""Which items begin and end where: n-step items and sequences out of the rows of one episode.

Every item ends at the newest step: when its last step is there, or when the episode ends before.
"""

import operator
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tfrl.errors import UserError
from tfrl.replay.reverb.rows import Layout, sequence_plan, transition_plan
from tfrl.replay.reverb.table_config import TableConfig

if TYPE_CHECKING:
    from tfrl.replay.reverb.maker import ReverbReplay
    from tfrl.replay.reverb.stream import Stream


def n_step_return(
    powers: Sequence[float], rewards: Sequence[float], terminated: bool
) -> tuple[np.float32, np.float32]:
    """Returns the return of some steps and the discount behind them.

    Args:
      powers: Those of the discount, from 0 on.
      rewards: One for each step.
      terminated: Whether the last step ended the episode so.
    """
    discount = 0.0 if terminated else powers[len(rewards)]
    return np.float32(sum(map(operator.mul, powers, rewards))), np.float32(discount)


class Transitions:
    """Items of n steps, fewer at an episode's end, for all tables that have such."""

    def __init__(self, replay: "ReverbReplay", layout: Layout, configs: Sequence[TableConfig]):
        """Takes tables of one n."""
        self.n = configs[0].n_step or 1
        self.tables = [config.name for config in configs]
        self.target = layout.targets[self.n]
        self._powers = [replay.discount**j for j in range(self.n + 1)]
        self._plan = transition_plan(replay, layout, configs[0])
        self._squeezed = [True] * len(self._plan)

    def values(self, rewards: Sequence[float], terminated: bool) -> tuple[np.float32, np.float32]:
        """The return of the last k rewards and the discount behind them."""
        return n_step_return(self._powers, rewards, terminated)

    def stepped(self, stream: "Stream") -> None:
        """Makes the item that is complete by the newest step."""
        if stream.length >= self.n:
            self._make(stream, self.n, stream.rows[-1])

    def ended(self, stream: "Stream", terminated: bool) -> None:
        """Makes the items that the end leaves short, the oldest first."""
        for k in range(min(stream.length, self.n - 1), 0, -1):
            values = self.values(stream.rewards[-k:], terminated)
            self._make(stream, k, stream.append_at(self.target, values))

    def _make(self, stream: "Stream", k: int, target: list[Any]) -> None:
        rows = stream.rows
        row = {"before": rows[-1 - k], "first": rows[-k], "last": rows[-1], "target": target}
        refs = [[row[which][column]] for which, column in self._plan]
        stream.create(self.tables, refs, self._squeezed)


class Sequences:
    """Items of L consecutive steps, or of whole episodes, for all tables that have such."""

    def __init__(self, replay: "ReverbReplay", layout: Layout, configs: Sequence[TableConfig]):
        """Takes tables of one length and period."""
        config = configs[0]
        self.length, self.period, self.whole = config.steps, config.period, config.whole_episodes
        self.tables = [config.name for config in configs]
        self._flags = layout.flags or 0
        self._plan = sequence_plan(replay, layout, config)
        self._squeezed = [which == "first" for which, _ in self._plan]

    def begins(self, step: int) -> bool:
        """Whether a sequence begins at a step of an episode."""
        return step == 0 if self.whole else step % self.period == 0

    def stepped(self, stream: "Stream") -> None:
        """Makes the sequence that is complete by the newest step."""
        behind = stream.length - self.length
        if self.whole:
            if behind > 0:
                _refuse_long(self.tables[0], self.length)
        elif behind >= 0 and behind % self.period == 0:
            self._make(stream, self.length, stream.rows)

    def ended(self, stream: "Stream", cut: bool) -> None:
        """Makes the sequences that the end leaves short, the oldest first.

        Args:
          stream: The environment's.
          cut: The last step was not stored as an end: it is told to be truncated.
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
        """Starts of those that have fewer than L of the episode's steps, but some of their own."""
        if self.whole:
            return [0]
        overlap = self.length - self.period
        behind = max(length - self.length + 1, 0)
        first = -(-behind // self.period) * self.period
        return [s for s in range(first, length, self.period) if s == 0 or length - s > overlap]

    def _make(self, stream: "Stream", k: int, flagged: list[list[Any]]) -> None:
        rows = stream.rows
        found = {"obs": rows[-1 - k :], "steps": rows[-k:], "first": [rows[-k]]}
        found["flags"] = flagged[-k:]
        refs = [[row[column] for row in found[which]] for which, column in self._plan]
        stream.create(self.tables, refs, self._squeezed)


def _refuse_long(table: str, length: int) -> None:
    raise UserError(
        f"ReverbReplay table {table!r}, episode_length",
        expected=f"episodes of at most {length} steps",
        got="a longer one",
        remedy="Raise episode_length to the longest episode (the environment's "
        "max_episode_steps), or store sequences.",
    )


def make_items(replay: "ReverbReplay", layout: Layout) -> tuple[list[Transitions], list[Sequences]]:
    """Returns what makes the items of the tables of a maker."""
    steps: dict[int, list[TableConfig]] = {}
    sequences: dict[Any, list[TableConfig]] = {}
    for config in replay.table_configs:
        if config.is_sequence:
            kind = (config.steps, config.period, config.whole_episodes)
            sequences.setdefault(kind, []).append(config)
        else:
            steps.setdefault(config.n_step or 1, []).append(config)
    return (
        [Transitions(replay, layout, steps[n]) for n in layout.targets],  # as their columns stand
        [Sequences(replay, layout, configs) for configs in sequences.values()],
    )
