"""A replay buffer in plain Python, and scripted streams of episodes in all autoreset modes."""

import collections
import dataclasses

import numpy as np

from tfrl.types import Trajectory

MODES = ("SAME_STEP", "SAME_STEP_CACHED", "NEXT_STEP", "DISABLED")


@dataclasses.dataclass
class Row:
    """What one environment does at one step; observations and rewards are numbers."""

    obs: int
    action: int
    reward: float
    next_obs: int
    termination: bool
    truncation: bool
    valid: bool
    start: int  # the first observation of the episode


def script(episodes, mode, length, start=0):
    """Rows of one environment, `length` of them.

    Args:
      episodes: (steps, end) of each, in turn and again; end is "term", "trunc" or "both".
      mode: The autoreset mode. Under DISABLED the rows are frozen after the first end.
      length: How many.
      start: The first observation; all of an environment are different.
    """
    rows, obs, number = [], start, 0
    while len(rows) < length:
        steps, end = episodes[number % len(episodes)]
        number, first = number + 1, obs
        for t in range(steps):
            last = t == steps - 1
            term, trunc = last and end != "trunc", last and end != "term"
            rows.append(Row(obs, obs % 3, 0.5 + obs % 7, obs + 1, term, trunc, True, first))
            obs += 1
        if mode == "NEXT_STEP":  # the row that shows the reset observation next
            rows.append(Row(obs, 0, 0.0, obs + 1, False, False, False, obs))
        elif mode == "DISABLED":
            frozen = Row(obs, 1, 0.0, obs, term, trunc, False, first)
            rows.extend([frozen] * (length - len(rows)))
        obs += 1
    return rows[:length]


@dataclasses.dataclass
class Step:
    """A stored step: its data, its number, the number of its newest frame, and what ends it."""

    row: Row
    number: int
    frame: int
    ends: bool


class Oracle:
    """One environment's ring: what is in it, and which items that makes."""

    def __init__(self, capacity, frames, n_step=1, discount=0.9, length=None, period=None, stack=1):
        self.capacity, self.frames, self.stack = capacity, frames, stack
        self.n_step, self.discount = n_step, discount
        self.length, self.period = length, period
        self.episodes, self.open = [], False
        self.steps = self.frames_written = 0

    def add(self, rows):
        for row in rows:
            if not row.valid:
                continue
            if not self.open:
                self.episodes.append([])
                self.frames_written += self.stack
            step = Step(row, self.steps, self.frames_written - 1, row.termination or row.truncation)
            self.episodes[-1].append(step)
            self.frames_written += 1
            self.steps += 1
            self.open = not step.ends

    def cut(self):
        if self.open:
            self.episodes[-1][-1].ends = True
        self.open = False

    def alive(self, step):
        in_steps = step.number >= self.steps - self.capacity
        return in_steps and step.frame - self.stack + 1 >= self.frames_written - self.frames

    def items(self):
        """The items that can be sampled, {number of the first step: what is sampled}."""
        find = self.transitions if self.length is None else self.sequences
        return {
            first.number: item
            for episode in self.episodes
            for first, item in find(episode)
            if self.alive(first)
        }

    def transitions(self, episode):
        for i, first in enumerate(episode):
            taken = episode[i : i + self.n_step]
            if len(taken) < self.n_step and not episode[-1].ends:
                continue
            reward = sum(self.discount**j * s.row.reward for j, s in enumerate(taken))
            last = taken[-1].row
            discount = 0.0 if last.termination else self.discount ** len(taken)
            yield first, (first.row.obs, first.row.action, reward, last.next_obs, discount)

    def sequences(self, episode):
        for i in range(0, len(episode), self.period):
            taken = episode[i : i + self.length]
            if len(taken) < self.length and not episode[-1].ends:
                continue
            overlap = self.length - self.period
            if i > 0 and len(episode) - i <= overlap:  # nothing that the one before lacks
                continue
            yield (
                taken[0],
                tuple(
                    (
                        s.row.obs,
                        s.row.action,
                        s.row.reward,
                        s.row.next_obs,
                        s.row.termination,
                        s.row.truncation or (s.ends and not s.row.termination),
                    )
                    for s in taken
                ),
            )


KINDS = {"obs": np.float32, "next_obs": np.float32, "reward": np.float32, "action": np.int64}


def trajectory(streams, start, stop, stack=1):
    """The rows start to stop of several environments as a Trajectory `[T, B, ...]` of arrays.

    Observations are `[stack]`: the numbers of the last observations of the episode, the first one
    again before it.
    """
    columns = collections.defaultdict(list)
    for t in range(start, stop):
        for name in (*KINDS, "termination", "truncation", "valid", "start"):
            columns[name].append([getattr(stream[t], name) for stream in streams])
    found = {name: np.array(x, KINDS.get(name, bool)) for name, x in columns.items()}
    first = np.array(columns["start"], np.float32)
    del found["start"]
    for name in ("obs", "next_obs"):
        newest = found[name]
        ages = [np.maximum(newest - age, first) for age in range(stack - 1, -1, -1)]
        found[name] = np.stack(ages, axis=-1).astype(np.float32)
    return Trajectory(**found)
