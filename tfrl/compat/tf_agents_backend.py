"""TF-Agents' environments as the backend of a `HostEnv`."""

import abc
import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from absl import logging
from tf_agents.environments.batched_py_environment import BatchedPyEnvironment
from tf_agents.environments.gym_wrapper import GymWrapper
from tf_agents.environments.parallel_py_environment import (
    ParallelPyEnvironment,
    ProcessPyEnvironment,
)
from tf_agents.environments.py_environment import PyEnvironment
from tf_agents.environments.tf_environment import TFEnvironment
from tf_agents.environments.tf_py_environment import TFPyEnvironment
from tf_agents.environments.wrappers import PyEnvironmentBaseWrapper, TimeLimit
from tf_agents.trajectories import StepType

from tfrl.envs.adapters import host_spaces
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
from tfrl.traces import counted_separately
from tfrl.types import Nest


def own_limit(env: Any) -> int | None:
    """Returns the step limit of a TF-Agents environment, or None.

    It finds TF-Agents' TimeLimit, gym's below a GymWrapper, and an attribute `max_episode_steps`.
    With wrappers in between that repeat actions, episodes are shorter.
    """
    result = []
    while env is not None:
        if isinstance(env, BatchedPyEnvironment):
            env = env.envs[0]
        if isinstance(env, TimeLimit):
            result.append(int(env.duration))
        inside = env.wrapped_env() if isinstance(env, PyEnvironmentBaseWrapper) else None
        if isinstance(env, GymWrapper):
            result += _gym_limits(env.gym)
        elif inside is None:
            limit = getattr(env, "max_episode_steps", None)
            result += [limit] if isinstance(limit, int) else []
        env = inside
    return min(result, default=None)


def _gym_limits(env: Any) -> list[int]:
    """Returns the step limits of gym's wrappers around an environment."""
    from gym import Wrapper
    from gym.wrappers import TimeLimit as GymTimeLimit

    result = []
    while isinstance(env, Wrapper):
        if isinstance(env, GymTimeLimit) and env._max_episode_steps is not None:
            result.append(int(env._max_episode_steps))
        env = env.env
    return result


def frames_per_second(env: Any) -> float:
    """Returns the frames per second from the metadata of gym's environments."""
    metadata = getattr(env, "metadata", None)
    fps = metadata.get("render_fps") if isinstance(metadata, dict) else None
    return float(fps or Backend.render_fps)


FIRST, MID, LAST = (int(t) for t in (StepType.FIRST, StepType.MID, StepType.LAST))
_GYM_TRUNCATED = "TimeLimit.truncated"  # in the info of gym's own TimeLimit


class Frames(NamedTuple):
    """The time steps of a part, with observation leaves in the order of `tf.nest`."""

    step_type: np.ndarray  # [B]
    reward: np.ndarray  # [B]
    discount: np.ndarray  # [B]
    obs: list[np.ndarray]  # of [B, ...]


def frames(leaves: list[np.ndarray]) -> Frames:
    """Makes frames from the leaves of time steps: three numbers, then observations."""
    step_type, reward, discount, *obs = leaves
    return Frames(step_type, reward, discount, obs)


def _leaves(time_step: Any) -> list[Any]:
    """Returns step type, reward, discount, then the leaves of the observation."""
    numbers = [time_step.step_type, time_step.reward, time_step.discount]
    return numbers + tf.nest.flatten(time_step.observation)


class Part(abc.ABC):
    """One environment object of TF-Agents, a batch of one or more environments.

    Attributes:
      name: The id, for messages.
      num_envs: The number of environments in the batch.
    """

    def __init__(self, name: str, env: Any, num_envs: int):
        """Stores the environment.

        Args:
          name: The id, for messages.
          env: TF-Agents' environment.
          num_envs: The number of environments in the batch.
        """
        self.name, self.env, self.num_envs = name, env, num_envs
        self._action_spec = env.action_spec()

    @property
    def resets_rows(self) -> bool:
        """Whether one environment can be reset without the others."""
        return self.num_envs == 1

    @abc.abstractmethod
    def reset(self) -> Frames:
        """Starts an episode in every environment."""

    @abc.abstractmethod
    def step(self, action: list[np.ndarray], first: np.ndarray) -> Frames:
        """Takes a step; rows that are `first` begin a new episode and ignore their action.

        Args:
          action: Leaves `[B, ...]`, in the order of `tf.nest`.
          first: bool `[B]`.
        """

    def reset_row(self, index: int) -> list[np.ndarray]:
        """Starts an episode in one environment; returns the leaves of its first observation."""
        return [leaf[0] for leaf in self.reset().obs]

    def seed(self, seeds: np.ndarray) -> bool:
        """Seeds the environments, `[B]`; returns whether they support seeds."""
        seed = getattr(self.env, "seed", None)
        return seed is not None and _implemented(seed, int(seeds[0]))

    def truncated(self, index: int) -> bool:
        """Returns whether an episode's end with discount 0 was gym's time limit."""
        return False

    def render(self, index: int) -> Any:
        """Renders environment `index`."""
        picture = np.asarray(self.env.render())
        return picture[index] if picture.ndim == 4 else picture

    def close(self) -> None:
        """Closes the environment; a TFEnvironment need not have `close`."""
        close = getattr(self.env, "close", None)
        if close is not None:
            close()


class SinglePart(Part):
    """A PyEnvironment without a batch axis."""

    def __init__(self, name: str, env: PyEnvironment):
        """Stores the environment."""
        super().__init__(name, env, 1)

    def reset(self) -> Frames:
        """Starts an episode."""
        return self._frames(self.env.reset())

    def step(self, action: list[np.ndarray], first: np.ndarray) -> Frames:
        """Takes a step, or starts an episode."""
        if first[0]:
            return self.reset()
        # A copy: the environment may keep or change its arguments.
        own = [np.array(leaf[0]) for leaf in action]
        return self._frames(self.env.step(tf.nest.pack_sequence_as(self._action_spec, own)))

    def _frames(self, time_step: Any) -> Frames:
        return frames([np.asarray(x)[None] for x in _leaves(time_step)])

    def truncated(self, index: int) -> bool:
        """See `Part.truncated`; from gym's info."""
        return _ended_by_time_limit(self.env)


class BatchedPart(Part):
    """A PyEnvironment with a batch axis."""

    def __init__(self, name: str, env: PyEnvironment):
        """Stores the environment, and its single environments if they are accessible."""
        super().__init__(name, env, int(env.batch_size))
        known = isinstance(env, BatchedPyEnvironment | ParallelPyEnvironment)
        self._rows: Sequence[Any] = env.envs if known else ()

    @property
    def resets_rows(self) -> bool:
        """Whether the single environments are accessible, or there is only one."""
        return bool(self._rows) or self.num_envs == 1

    def reset(self) -> Frames:
        """Starts an episode in every environment."""
        return self._frames(self.env.reset())

    def step(self, action: list[np.ndarray], first: np.ndarray) -> Frames:
        """Takes a step; TF-Agents' environments reset themselves after the last time step."""
        own = [np.array(leaf) for leaf in action]
        new_frames = self._frames(self.env.step(tf.nest.pack_sequence_as(self._action_spec, own)))
        late = first & (new_frames.step_type != FIRST)
        if late.any() and self.resets_rows:
            new_frames = Frames(
                np.where(late, FIRST, new_frames.step_type),
                new_frames.reward,
                new_frames.discount,
                [np.array(x) for x in new_frames.obs],
            )
            for i in np.flatnonzero(late):
                for leaf, value in zip(new_frames.obs, self.reset_row(i), strict=True):
                    leaf[i] = value
        return new_frames

    def _frames(self, time_step: Any) -> Frames:
        return frames([np.asarray(x) for x in _leaves(time_step)])

    def reset_row(self, index: int) -> list[np.ndarray]:
        """Starts an episode in one environment."""
        if not self._rows:
            return super().reset_row(index)
        # TF-Agents' processes may return time steps as flat lists: observations come last.
        leaves = tf.nest.flatten(self._rows[index].reset())
        return [np.asarray(x) for x in leaves[3:]]

    def seed(self, seeds: np.ndarray) -> bool:
        """Seeds each environment if they are accessible, else all with the first seed."""
        if isinstance(self.env, ParallelPyEnvironment):
            return _implemented(self.env.seed, [int(s) for s in seeds])
        if self._rows:
            return all(
                _implemented(row.seed, int(s)) for row, s in zip(self._rows, seeds, strict=True)
            )
        return super().seed(seeds)

    def truncated(self, index: int) -> bool:
        """See `Part.truncated`; from gym's info."""
        return bool(self._rows) and _ended_by_time_limit(self._rows[index])


class GraphPart(Part):
    """A TFEnvironment; its operations are compiled into one call per step."""

    def __init__(self, name: str, env: TFEnvironment):
        """Stores the environment."""
        super().__init__(name, env, int(env.batch_size))
        leaves = [
            tf.TensorSpec([self.num_envs, *leaf.shape.as_list()], leaf.dtype)
            for leaf in tf.nest.flatten(self._action_spec)
        ]
        self._dtypes = [leaf.dtype for leaf in leaves]
        self._reset = tf.function(
            counted_separately(lambda: _leaves(env.reset())), input_signature=[]
        )
        self._step = tf.function(
            counted_separately(
                lambda *own: _leaves(env.step(tf.nest.pack_sequence_as(self._action_spec, own)))
            ),
            input_signature=leaves,
        )

    def reset(self) -> Frames:
        """Starts an episode in every environment."""
        return self._frames(self._reset())

    def step(self, action: list[np.ndarray], first: np.ndarray) -> Frames:
        """Takes a step; the environment resets itself after the last time step."""
        own = [tf.constant(a, d) for a, d in zip(action, self._dtypes, strict=True)]
        new_frames = self._frames(self._step(*own))
        if self.num_envs == 1 and first[0] and new_frames.step_type[0] != FIRST:
            return self.reset()
        return new_frames

    def _frames(self, leaves: list[tf.Tensor]) -> Frames:
        return frames([leaf.numpy() for leaf in leaves])


def make_part(name: str, env: Any) -> Part:
    """Returns the part of an environment of TF-Agents.

    Args:
      name: The id, for messages.
      env: A PyEnvironment or a TFEnvironment. A TFPyEnvironment is unwrapped to its PyEnvironment.

    Raises:
      UserError: For any other object, and for a TFPyEnvironment with a separate thread.
    """
    if isinstance(env, TFPyEnvironment):
        # It delegates unknown attributes to the PyEnvironment: read its own dict.
        if env.__dict__["_pool"] is not None:
            raise UserError(
                name,
                expected="a TFPyEnvironment without its own thread",
                got="a TFPyEnvironment with isolation",
                remedy="Return its PyEnvironment, which runs in a single thread.",
            )
        env = env.pyenv
    if isinstance(env, TFEnvironment):
        return GraphPart(name, env)
    if not isinstance(env, PyEnvironment):
        raise UserError(
            name,
            expected="a function that returns a PyEnvironment or TFEnvironment of TF-Agents",
            got=f"a function that returns {env!r}",
            remedy="Return such an environment, or use the suites gymnasium and envpool.",
        )
    return BatchedPart(name, env) if env.batched else SinglePart(name, env)


def _implemented(seed: Any, *args: Any) -> bool:
    """Calls a method; returns whether it is implemented."""
    try:
        seed(*args)
    except NotImplementedError:
        return False
    return True


def _ended_by_time_limit(env: Any) -> bool:
    """Returns whether gym's TimeLimit ended the last step; TF-Agents' GymWrapper drops this."""
    ask = env.call("get_info") if isinstance(env, ProcessPyEnvironment) else env.get_info
    try:
        info = ask()
    except NotImplementedError:
        return False
    return isinstance(info, Mapping) and bool(info.get(_GYM_TRUNCATED, False))


_SCREENS = ("DISPLAY", "WAYLAND_DISPLAY")
_NUMBERS = ("step_type", "reward", "discount")


@dataclasses.dataclass(frozen=True)
class TimeStepSource:
    """The arguments of a batch of environments.

    Attributes:
      name: The id, for messages.
      make: Makes an environment; called with the number of environments if `takes_size`.
      takes_size: Whether `make` has the argument `num_envs`.
      limit: `max_episode_steps` of `make_env`.
      action_mask: The place of the action mask, or None.
    """

    name: str
    make: Callable[..., Any]
    takes_size: bool
    limit: int | None
    action_mask: str | Splitter | None


class TFAgentsBackend(Backend):
    """Steps environments of TF-Agents, one object after another.

    The last time step of an episode is a termination if its discount is 0, else a truncation.
    """

    def __init__(self, source: TimeStepSource, num_envs: int, autoreset: Autoreset):
        """Makes the environments.

        Args:
          source: The source of the environments.
          num_envs: The number of environments (B).
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
        self._seeded, self._warned = True, False

    def _make(self) -> None:
        """Makes the needed number of environments; each may itself be a batch."""
        source, size = self._source, self.num_envs
        kwargs = {"num_envs": size} if source.takes_size else {}
        part = make_part(self.name, source.make(**kwargs))
        self._parts.append(part)
        if size % part.num_envs or source.takes_size and part.num_envs != size:
            what = f"{size}" if source.takes_size else f"a divisor of num_envs={size}"
            raise UserError(
                f"batch size of {self.name}",
                expected=f"{what}, since the batch consists of entire environments",
                got=part.num_envs,
                remedy=f"Pass num_envs={part.num_envs}, also for evaluation, or a function with "
                "the argument num_envs.",
            )
        for _ in range(size // part.num_envs - 1):
            self._parts.append(make_part(self.name, source.make()))
        if self.autoreset is Autoreset.SAME_STEP and not part.resets_rows:
            raise UserError(
                f"autoreset of {self.name}",
                expected="NEXT_STEP or DISABLED, since it cannot reset single rows",
                got="SAME_STEP",
                remedy="Pass autoreset='NEXT_STEP'.",
            )

    def _describe(self) -> None:
        """Reads specs and limits."""
        name, env = self.name, self._parts[0].env
        step_spec = env.time_step_spec()
        check_reward_spec(name, step_spec.reward)
        self._seen_spec = from_tf_agents_spec(name, "observation", step_spec.observation)
        self.action_spec = from_tf_agents_spec(name, "action", env.action_spec())
        for part in self._parts[1:]:
            other = part.env.time_step_spec().observation, part.env.action_spec()
            obs_spec = from_tf_agents_spec(name, "observation", other[0])
            action_spec = from_tf_agents_spec(name, "action", other[1])
            if (obs_spec, action_spec) != (self._seen_spec, self.action_spec):
                raise UserError(
                    name, expected="the same specs from every call of the function", got=repr(other)
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
        """Sets the step limit of the backend, at most the environments' own limit."""
        limit = self._source.limit
        if limit is not None and own is not None and not 0 < limit <= own:
            raise UserError(
                f"max_episode_steps of {self.name}",
                expected=f"at most {own}, the environment's own limit",
                got=limit,
                remedy="Leave it out, or create the environment without its time limit.",
            )
        self.max_episode_steps = own if limit is None else limit
        if limit == NO_LIMIT:
            self.max_episode_steps = None

    # Steps.

    def reset(self, seeds: np.ndarray) -> Step:
        """Seeds the environments, if they support it, and starts episodes."""
        begin = 0
        frames = []
        for part in self._parts:
            self._seeded &= part.seed(seeds[begin : begin + part.num_envs])
            begin += part.num_envs
            frames.append(self._called("reset", part.reset))
        if not self._seeded and not self._warned:
            self._warned = True
            logging.warning(
                "%s ignores seeds, so its episodes are not reproducible. Implement the "
                "environment's method seed.",
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
        """Stores the actions for `receive`."""
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
        """Calls an environment; reports its errors as the environment's."""
        try:
            return fn(*args)
        except UserError:
            raise
        except Exception as error:
            thing = f"{call} of {self.name}"
            raise env_error(error, thing, "Run the same command to reproduce it.") from error

    def _ends(self, frames: Frames, first: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns termination and truncation, and counts steps."""
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
        """Raises if episodes must end in a batch whose rows cannot be reset."""
        if over.any() and not self._parts[0].resets_rows:
            raise UserError(
                f"max_episode_steps of {self.name}",
                expected=f"episodes that end after at most {self.max_episode_steps} steps, since "
                "single rows cannot be reset",
                got=f"longer episodes in rows {np.flatnonzero(over).tolist()}",
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
        """Concatenates the rows of all environments."""
        leaves = [len(f.obs) for f in frames]
        wanted = len(tf.nest.flatten(self._seen_spec))
        if any(n != wanted for n in leaves):
            raise UserError(
                f"observation of {self.name}",
                expected=f"{wanted} arrays, as in observation_spec",
                got=max(leaves, key=lambda n: abs(n - wanted)),
                remedy="Return arrays instead of lists, in the structure of observation_spec.",
            )
        obs = [_concat([f.obs[i] for f in frames]) for i in range(wanted)]
        numbers = {n: _concat([getattr(f, n) for f in frames]) for n in _NUMBERS}
        for what, array in numbers.items():
            if array.shape != (self.num_envs,) or array.dtype.kind not in "biuf":
                raise UserError(
                    f"{what} of {self.name}",
                    expected="one number per environment",
                    got=f"{array.dtype.name} {array.tolist()}"
                    if array.shape == (self.num_envs,)
                    else f"shape {list(array.shape[1:])}",
                )
        return Frames(**numbers, obs=obs)

    def _obs(self, frames: Frames) -> Nest:
        obs = self._copy_obs(tf.nest.pack_sequence_as(self._seen_spec, frames.obs))
        return obs if self._masks is None else self._masks.read(obs)

    def _expect(self, what: str, ok: np.ndarray, wanted: str, got: np.ndarray) -> None:
        if not ok.all():
            names = {FIRST: "FIRST", LAST: "LAST"}
            raise UserError(
                f"step_type of a {what} of {self.name}",
                expected=wanted,
                got=str([names.get(int(t), "MID") for t in got]),
                remedy="Return FIRST only after reset and in the step after LAST, as "
                "PyEnvironment(handle_auto_reset=True) does.",
            )

    # Other methods.

    def copy(
        self, num_envs: int, render: bool = False, autoreset: Autoreset | None = None
    ) -> "TFAgentsBackend":
        """Returns other environments of the same task."""
        mode = autoreset or (Autoreset.NEXT_STEP if render else self.autoreset)
        if render and not any(name in os.environ for name in _SCREENS):
            os.environ.setdefault("SDL_VIDEODRIVER", "dummy")  # gym opens a window even for arrays
        return TFAgentsBackend(self._source, num_envs, mode)

    def render(self, index: int) -> np.ndarray:
        """Renders environment `index`, uint8 RGB `[H, W, 3]`."""
        for part in self._parts:
            if index < part.num_envs:
                break
            index -= part.num_envs
        picture = np.asarray(part.render(index))
        if picture.ndim != 3:
            return super().render(index)
        return np.array(picture, np.uint8)

    def close(self) -> None:
        """Closes the environments; a second call has no effect."""
        parts, self._parts = self._parts, []
        for part in parts:
            part.close()


def _concat(rows: list[np.ndarray]) -> np.ndarray:
    return rows[0] if len(rows) == 1 else np.concatenate(rows)
