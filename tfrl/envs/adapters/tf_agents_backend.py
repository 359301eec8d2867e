"""Environments of TF-Agents as the backend of a `HostEnv`."""

import dataclasses
import os
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf
from absl import logging

from tfrl.envs.adapters import host_spaces
from tfrl.envs.adapters.tf_agents_limits import frames_per_second, own_limit
from tfrl.envs.adapters.tf_agents_parts import FIRST, LAST, Frames, Part, make_part
from tfrl.envs.adapters.tf_agents_specs import (
    MaskReader,
    Splitter,
    check_reward_spec,
    from_tf_agents_spec,
)
from tfrl.envs.backend import Backend, Step
from tfrl.envs.core import Autoreset
from tfrl.envs.env_calls import env_error
from tfrl.envs.registry import NO_LIMIT
from tfrl.errors import UserError
from tfrl.types import Nest

_SCREENS = ("DISPLAY", "WAYLAND_DISPLAY")
_NUMBERS = ("step_type", "reward", "discount")


@dataclasses.dataclass(frozen=True)
class Source:
    """What a batch is made from.

    Attributes:
      name: The id, for messages.
      make: Makes an environment; given the number of environments where it `takes_size`.
      takes_size: Whether `make` has the argument `num_envs`.
      limit: As `make_env`'s `max_episode_steps`.
      action_mask: Where the mask is, or None.
    """

    name: str
    make: Callable[..., Any]
    takes_size: bool
    limit: int | None
    action_mask: str | Splitter | None


class TFAgentsBackend(Backend):
    """Steps environments of TF-Agents, one object after another.

    The last frame of an episode terminates it where its discount is 0, and truncates it otherwise.
    """

    def __init__(self, source: Source, num_envs: int, autoreset: Autoreset):
        """Makes the environments.

        Args:
          source: What makes them.
          num_envs: How many (B).
          autoreset: NEXT_STEP or SAME_STEP.
        """
        self.name, self.num_envs, self.autoreset = source.name, num_envs, autoreset
        self._source = source
        self._parts: list[Part] = []
        try:
            self._make()
            self._describe()
        except BaseException:
            self.close()
            raise
        self._lengths = np.zeros(num_envs, np.int64)
        self._ended = np.zeros(num_envs, bool)
        self._action: Any = None
        self._seeded, self._told = True, False

    def _make(self) -> None:
        """Makes as many environments as are needed; each may itself be a batch."""
        source, size = self._source, self.num_envs
        kwargs = {"num_envs": size} if source.takes_size else {}
        part = make_part(self.name, source.make(**kwargs))
        self._parts.append(part)
        if size % part.num_envs or source.takes_size and part.num_envs != size:
            what = f"{size}" if source.takes_size else f"a divisor of num_envs={size}"
            raise UserError(
                f"batch size of {self.name}",
                expected=f"{what}: the batch is made of whole environments",
                got=part.num_envs,
                remedy=f"Give num_envs={part.num_envs}, for evaluation too, or a function with the "
                "argument num_envs.",
            )
        for _ in range(size // part.num_envs - 1):
            self._parts.append(make_part(self.name, source.make()))
        if self.autoreset is Autoreset.SAME_STEP and not part.resets_rows:
            raise UserError(
                f"autoreset of {self.name}",
                expected="NEXT_STEP or DISABLED: one row of its batch cannot be reset alone",
                got="SAME_STEP",
                remedy="Give autoreset='NEXT_STEP'.",
            )

    def _describe(self) -> None:
        """Reads specs and limits."""
        name, env = self.name, self._parts[0].env
        seen = env.time_step_spec()
        check_reward_spec(name, seen.reward)
        self._seen_spec = from_tf_agents_spec(name, "observation", seen.observation)
        self.action_spec = from_tf_agents_spec(name, "action", env.action_spec())
        for part in self._parts[1:]:
            other = part.env.time_step_spec().observation, part.env.action_spec()
            obs_spec = from_tf_agents_spec(name, "observation", other[0])
            action_spec = from_tf_agents_spec(name, "action", other[1])
            if (obs_spec, action_spec) != (self._seen_spec, self.action_spec):
                raise UserError(
                    name,
                    expected="the same specs from every call of the function",
                    got=repr(other),
                    remedy="Let the function make the same task whenever it is called.",
                )
        self._masks: MaskReader | None = None
        self.obs_spec = self._seen_spec
        if self._source.action_mask is not None:
            self._masks = MaskReader(
                name, self._source.action_mask, self._seen_spec, self.action_spec
            )
            self.obs_spec = self._masks.obs_spec
        self.info_spec = {}
        self._copy_obs = host_spaces.copier(
            self._seen_spec, f"observation of {name}", self.num_envs
        )
        self._copy_action = host_spaces.copier(
            self.action_spec, f"action for {name}", self.num_envs
        )
        self._set_limit(own_limit(env))
        self.render_fps = frames_per_second(env)

    def _set_limit(self, own: int | None) -> None:
        """Sets the limit that is kept here; the environments' own stands below it."""
        given = self._source.limit
        if given is not None and own is not None and not 0 < given <= own:
            raise UserError(
                f"max_episode_steps of {self.name}",
                expected=f"at most {own}, after which the environment ends its episodes itself",
                got=given,
                remedy="Leave it out, or make the environment without its time limit.",
            )
        self.max_episode_steps = own if given is None else given
        if given == NO_LIMIT:
            self.max_episode_steps = None

    # Steps.

    def reset(self, seeds: np.ndarray) -> Step:
        """Gives the environments their seeds, where they take any, and starts episodes."""
        begin = 0
        frames = []
        for part in self._parts:
            self._seeded &= part.seed(seeds[begin : begin + part.num_envs])
            begin += part.num_envs
            frames.append(self._called("reset", part.reset))
        if not self._seeded and not self._told:
            self._told = True
            logging.warning(
                "%s takes no seeds: its episodes cannot be repeated. Implement the method seed of "
                "the environment.",
                self.name,
            )
        joined = self._join(frames)
        self._expect("reset", joined.step_type == FIRST, "FIRST", joined.step_type)
        obs = tf.nest.pack_sequence_as(self._seen_spec, joined.obs)
        host_spaces.check_dtypes(f"observation of {self.name}", self._seen_spec, obs)
        self._lengths[:], self._ended[:] = 0, False
        none = np.zeros(self.num_envs, bool)
        return Step(self._obs(joined), np.zeros(self.num_envs, np.float32), none, none)

    def send(self, action: Nest) -> None:
        """Keeps the actions."""
        self._action = self._copy_action(action)

    def receive(self) -> Step:
        """Steps the environments one after another."""
        first = self._ended if self.autoreset is Autoreset.NEXT_STEP else self._ended & False
        leaves = tf.nest.flatten(self._action)
        frames, begin = [], 0
        for part in self._parts:
            rows = slice(begin, begin + part.num_envs)
            frames.append(self._called("step", part.step, [x[rows] for x in leaves], first[rows]))
            begin += part.num_envs
        joined = self._join(frames)
        starts = joined.step_type == FIRST
        wanted = np.where(first, "FIRST", "MID or LAST").tolist()
        self._expect("step", starts == first, f"{wanted}", joined.step_type)
        termination, truncation = self._ends(joined, first)
        obs, final = self._obs(joined), None
        if self.autoreset is Autoreset.SAME_STEP and self._ended.any():
            final, obs = obs, self._restarted(joined)
            self._lengths[self._ended] = 0
        reward = np.where(first, 0.0, joined.reward).astype(np.float32)
        return Step(obs, reward, termination, truncation, final)

    def _called(self, call: str, fn: Callable[..., Frames], *args: Any) -> Frames:
        """Calls an environment; what it raises is told as its own."""
        try:
            return fn(*args)
        except UserError:
            raise
        except Exception as error:
            thing = f"{call} of {self.name}"
            raise env_error(error, thing, "Repeat it by the same command.") from error

    def _ends(self, frames: Frames, first: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Tells ends by the task from those by a limit, and counts steps."""
        self._lengths = np.where(first, 0, self._lengths + 1)
        last = frames.step_type == LAST
        termination = last & (frames.discount == 0)
        begin = 0
        for part in self._parts:
            for i in np.flatnonzero(termination[begin : begin + part.num_envs]):
                termination[begin + i] = not part.truncated(int(i))
            begin += part.num_envs
        truncation = last & ~termination
        if self.max_episode_steps is not None:
            over = self._lengths >= self.max_episode_steps
            self._check_over(over & ~last)
            truncation |= over
        self._ended = termination | truncation
        return termination, truncation

    def _check_over(self, over: np.ndarray) -> None:
        """Refuses to end episodes in a batch whose rows cannot be reset."""
        if over.any() and not self._parts[0].resets_rows:
            raise UserError(
                f"max_episode_steps of {self.name}",
                expected=f"episodes that the environments themselves end after at most "
                f"{self.max_episode_steps} steps: one row of their batch cannot be reset alone",
                got=f"longer ones in rows {np.flatnonzero(over).tolist()}",
                remedy="Give the number of steps of their longest episode.",
            )

    def _restarted(self, frames: Frames) -> Nest:
        """Starts episodes in the rows that ended; returns all observations to act on."""
        new = [np.array(leaf) for leaf in frames.obs]
        begin = 0
        for part in self._parts:
            for i in np.flatnonzero(self._ended[begin : begin + part.num_envs]):
                for leaf, value in zip(new, part.reset_row(int(i)), strict=True):
                    leaf[begin + i] = value
            begin += part.num_envs
        return self._obs(frames._replace(obs=new))

    def _join(self, frames: list[Frames]) -> Frames:
        """Puts the rows of all environments together."""
        leaves = [len(f.obs) for f in frames]
        wanted = len(tf.nest.flatten(self._seen_spec))
        if any(n != wanted for n in leaves):
            raise UserError(
                f"observation of {self.name}",
                expected=f"{wanted} arrays, as observation_spec says",
                got=max(leaves, key=lambda n: abs(n - wanted)),
                remedy="Give arrays, not lists of numbers, in the structure of observation_spec.",
            )
        obs = [_concat([f.obs[i] for f in frames]) for i in range(wanted)]
        numbers = {n: _concat([getattr(f, n) for f in frames]) for n in _NUMBERS}
        for what, array in numbers.items():
            if array.shape != (self.num_envs,) or array.dtype.kind not in "biuf":
                raise UserError(
                    f"{what} of {self.name}",
                    expected="one number of each environment",
                    got=f"{array.dtype.name} {array.tolist()}"
                    if array.shape == (self.num_envs,)
                    else f"shape {list(array.shape[1:])}",
                    remedy="Return a number, as time_step_spec says.",
                )
        return Frames(**numbers, obs=obs)

    def _obs(self, frames: Frames) -> Nest:
        seen = self._copy_obs(tf.nest.pack_sequence_as(self._seen_spec, frames.obs))
        return seen if self._masks is None else self._masks.read(seen)

    def _expect(self, what: str, ok: np.ndarray, wanted: str, got: np.ndarray) -> None:
        if not ok.all():
            names = {FIRST: "FIRST", LAST: "LAST"}
            raise UserError(
                f"step_type of a {what} of {self.name}",
                expected=wanted,
                got=str([names.get(int(t), "MID") for t in got]),
                remedy="Begin an episode with FIRST, after reset and in the step after LAST, and "
                "nowhere else; PyEnvironment(handle_auto_reset=True) does so.",
            )

    # The rest.

    def copy(
        self, num_envs: int, render: bool = False, autoreset: Autoreset | None = None
    ) -> "TFAgentsBackend":
        """Returns other environments of the same task."""
        mode = autoreset or (Autoreset.NEXT_STEP if render else self.autoreset)
        if render and not any(name in os.environ for name in _SCREENS):
            os.environ.setdefault("SDL_VIDEODRIVER", "dummy")  # gym opens a window even for arrays
        return TFAgentsBackend(self._source, num_envs, mode)

    def render(self, index: int) -> np.ndarray:
        """Draws environment `index` as it is now, uint8 RGB `[H, W, 3]`."""
        for part in self._parts:
            if index < part.num_envs:
                break
            index -= part.num_envs
        picture = np.asarray(part.render(index))
        if picture.ndim != 3:
            return super().render(index)
        return np.array(picture, np.uint8)

    def close(self) -> None:
        """Frees the environments; a second call does nothing."""
        parts, self._parts = self._parts, []
        for part in parts:
            part.close()


def _concat(rows: list[np.ndarray]) -> np.ndarray:
    return rows[0] if len(rows) == 1 else np.concatenate(rows)
