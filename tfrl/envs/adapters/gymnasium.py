"""The suite `gymnasium`: any environment of Gymnasium's registry, Atari and MuJoCo included."""

import dataclasses
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from gymnasium.vector import AutoresetMode

from tfrl import checks
from tfrl.envs.action_masks import MASK, join_mask
from tfrl.envs.adapters import gymnasium_vector, host_spaces
from tfrl.envs.adapters.gymnasium_async import ProcessVectorEnv
from tfrl.envs.adapters.gymnasium_env import (
    ENTRY_POINT,
    INFO_KEYS,
    AtariOptions,
    channels_last,
    full_mask,
)
from tfrl.envs.adapters.gymnasium_vector import VECTORIZATIONS, VectorSource, image, make_vector
from tfrl.envs.backend import Backend, Step
from tfrl.envs.central_inference import CentralInference
from tfrl.envs.core import Autoreset
from tfrl.envs.env_calls import LOST, env_error
from tfrl.envs.gymnasium_values import STEP, check_layout
from tfrl.envs.host import refuse_cached
from tfrl.envs.host_env import HostEnv, where
from tfrl.envs.host_halves import buffered
from tfrl.envs.host_wrappers import refuse_device_wrappers, split_wrappers
from tfrl.errors import UserError
from tfrl.types import Nest

_warned: set[tuple[str, str]] = set()  # ids of environments, and fields
_REPEAT = "Reproduce it with the same make_env arguments and the same command or actions."


class GymnasiumBackend(Backend):
    """Steps a vector environment of any vectorization and autoreset mode.

    The backend resets a vector environment with mode DISABLED in the same step, by the option
    `reset_mask`.
    """

    def __init__(self, source: VectorSource, num_envs: int):
        """Makes the environments, and resets them once to inspect their results.

        Args:
          source: The factory of the environments.
          num_envs: Number of environments (B).
        """
        self.name, self.num_envs = source.name, num_envs
        self._source = source
        vector = make_vector(source, num_envs)
        self._vector, self._native, self._mode = vector.vector, vector.native, vector.mode
        self.stepped = vector.stepped
        self.clips_actions = any(
            getattr(w, "__name__", "") == "ClipAction" for w in source.wrappers
        )
        try:
            self._describe()
        except BaseException:
            self._vector.close()
            raise

    def _describe(self) -> None:
        """Reads spaces, and from a first reset the content of observations and `info`."""
        vector, source, name = self._vector, self._source, self.name
        next_step = self._mode is AutoresetMode.NEXT_STEP
        self.autoreset = Autoreset.NEXT_STEP if next_step else Autoreset.SAME_STEP
        self.max_episode_steps = source.limit
        self.render_fps = float(vector.metadata.get("render_fps") or Backend.render_fps)
        self.info_spec = {n: tf.TensorSpec([], tf.float32) for n in source.info_fields}
        self.info_fields = tuple(name for name in source.info_fields if name != LOST)
        self._missing = set(self.info_fields)  # those that no ended episode had so far
        self._colours = 0  # channels of frames that a native vector environment stacks first
        space = vector.single_observation_space
        if self._native and source.atari is not None:
            self._colours, space = (1 if source.atari.grayscale else 3), source.atari.space
        self._seen_spec = host_spaces.space_spec(name, "observation", space)
        self.action_spec = host_spaces.space_spec(name, "action", vector.single_action_space)
        size = self.num_envs
        self._copy_obs = host_spaces.copier(self._seen_spec, f"observation of {name}", size)
        self._copy_action = host_spaces.copier(self.action_spec, f"action for {name}", size)
        self._masks: Callable[[Any], Nest] | None = None
        self._action: Nest = None
        self._pending = False
        obs, infos = self._reset(np.arange(size))
        self.obs_spec = self._seen_spec
        if MASK in infos:
            self._describe_mask()
        host_spaces.check_dtypes(f"observation of {name}", self._seen_spec, self._picture(obs))
        self._obs(obs, infos)

    def _describe_mask(self) -> None:
        """Puts the mask into the observation, like the wrapper ActionMask."""
        if isinstance(self._seen_spec, Mapping) and MASK in self._seen_spec:
            raise UserError(
                f"the observation of {self.name}",
                expected=f"no item {MASK!r} in addition to the one in info",
                got=f"items {sorted(self._seen_spec)}",
            )
        spec = host_spaces.mask_spec(self.name, self.action_spec)
        copy = host_spaces.copier(spec, f"info[{MASK!r}] of {self.name}", self.num_envs)
        self._masks = lambda mask: copy(host_spaces.positional(spec, mask))
        self._full = full_mask(self._vector.single_action_space)
        self.obs_spec = join_mask(self._seen_spec, spec)

    # Steps.

    def reset(self, seeds: np.ndarray) -> Step:
        """Starts an episode in every environment; a native one takes one seed for all."""
        if self._pending:
            self.receive()
        obs, infos = self._reset(seeds)
        none = np.zeros(self.num_envs, bool)
        reward = np.zeros(self.num_envs, np.float32)
        return Step(self._obs(obs, infos), reward, none, none, None, self._info(infos, none))

    def _reset(self, seeds: np.ndarray) -> tuple[Any, dict[str, Any]]:
        seed: Any = [int(s) for s in seeds]
        if self._native:
            seed = np.asarray(seeds) if self._colours else seed[0]
        return self._called("reset()", self._vector.reset, seed=seed)

    def _called(self, call: str, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Calls the environments; attributes exceptions to them."""
        try:
            return fn(*args, **kwargs)
        except UserError:
            raise
        except Exception as error:
            raise env_error(error, f"{call} of {self.name}", _REPEAT) from error

    def send(self, action: Nest) -> None:
        """Stores the actions, or sends them to the processes."""
        # A copy, since environments may keep or change their arguments.
        self._action = self._copy_action(action)
        if isinstance(self._vector, ProcessVectorEnv):
            self._called("step()", self._vector.step_async, self._action)
        self._pending = True

    def receive(self) -> Step:
        """Steps the environments, or waits for the processes."""
        self._pending = False
        if isinstance(self._vector, ProcessVectorEnv):
            stepped = self._called("step()", self._vector.step_wait)
        else:
            stepped = self._called("step()", self._vector.step, self._action)
        if not isinstance(stepped, tuple) or len(stepped) != len(STEP):
            check_layout(f"step() of {self.name}", stepped, STEP)
        obs, reward, termination, truncation, infos = stepped
        size = self.num_envs
        reward = host_spaces.numbers(f"rewards of {self.name}", reward, size)
        termination = host_spaces.flags(f"terminations of {self.name}", termination, size)
        truncation = host_spaces.flags(f"truncations of {self.name}", truncation, size)
        ended = termination | truncation
        final = None
        info = self._info(infos, ended)
        if self.autoreset is Autoreset.SAME_STEP and ended.any():
            if self._mode is AutoresetMode.DISABLED:
                final = self._obs(obs, infos, ended)
                obs, infos = self._reset_rows(obs, ended)
            else:
                final = self._final(obs, infos, ended)
        return Step(
            self._obs(obs, infos, None if self.autoreset is Autoreset.SAME_STEP else ended),
            reward,
            termination,
            truncation,
            final,
            info,
        )

    def _reset_rows(self, obs: Any, rows: np.ndarray) -> tuple[Any, dict[str, Any]]:
        """Starts episodes in some rows of a vector environment without autoreset."""
        before = self._copy_obs(self._picture(obs))
        options = {"reset_mask": rows.copy()}
        obs, infos = self._called("reset()", self._vector.reset, options=options)
        return where(rows, self._copy_obs(self._picture(obs)), before), infos

    # Conversion of results.

    def _picture(self, obs: Any) -> Any:
        return channels_last(obs, self._colours) if self._colours else obs

    def _obs(self, obs: Any, infos: Mapping[str, Any], over: np.ndarray | None = None) -> Nest:
        """Copies observations with their masks, which rows in `over` may lack."""
        copied = self._copy_obs(self._picture(obs))
        if self._masks is None:
            return copied
        mask = infos.get(MASK)
        there = np.asarray(infos.get(f"_{MASK}", np.full(self.num_envs, mask is not None)))
        missing = ~there
        if over is not None:
            missing &= ~over
        if missing.any():
            raise UserError(
                f"infos of {self.name}",
                expected=f"{MASK!r} for every environment, as after the first reset",
                got=f"no mask for environment {', '.join(map(str, np.flatnonzero(missing)))}",
            )
        return join_mask(copied, self._mask_rows(mask, there))

    def _mask_rows(self, mask: Any, there: np.ndarray) -> Nest:
        """Masks `[B, ...]`; all True in rows without one."""
        full = tf.nest.map_structure(lambda m: np.stack([m] * self.num_envs), self._full)
        if not there.any():
            return self._masks(full)  # type: ignore[misc]
        masks = self._masks(mask)  # type: ignore[misc]
        return masks if there.all() else where(there, masks, self._masks(full))  # type: ignore[misc]

    def _final(self, obs: Any, infos: Mapping[str, Any], ended: np.ndarray) -> Nest:
        """The true successors in rows that the vector environment has reset itself."""
        if "final_obs" not in infos:
            raise UserError(
                f"infos of {self.name}",
                expected="'final_obs' at episode end, as autoreset mode SAME_STEP requires",
                got=f"the items {sorted(k for k in infos if not k.startswith('_'))}",
                remedy="Return it from the vector environment, or pass autoreset='NEXT_STEP'.",
            )
        final_obs = infos["final_obs"]
        final = self._copy_obs(self._picture(obs))
        if isinstance(final_obs, np.ndarray) and final_obs.dtype == object:
            for i in np.flatnonzero(ended):  # one observation per row
                host_spaces.set_row(final, i, final_obs[i])
        else:  # a batch
            final = where(ended, self._copy_obs(self._picture(final_obs)), final)
        if self._masks is None:
            return final
        last = infos.get("final_info", {})
        there = np.asarray(last.get(f"_{MASK}", np.full(self.num_envs, MASK in last))) & ended
        masks = self._mask_rows(last.get(MASK), there)
        # In continuing rows the successor is the current observation, with the current mask.
        now = np.asarray(infos.get(f"_{MASK}", np.full(self.num_envs, MASK in infos)))
        return join_mask(final, where(ended, masks, self._mask_rows(infos.get(MASK), now)))

    def _info(self, infos: Mapping[str, Any], ended: np.ndarray) -> dict[str, np.ndarray]:
        """The requested numbers; at an episode end, those of its last step."""
        if not self._source.info_fields:
            return {}
        last: Mapping[str, Any] | None = None
        if self._mode is AutoresetMode.SAME_STEP and ended.any():
            last = infos.get("final_info", {})
        return {name: self._numbers(name, infos, last, ended) for name in self.info_spec}

    def _numbers(
        self, name: str, infos: Mapping[str, Any], last: Mapping[str, Any] | None, ended: np.ndarray
    ) -> np.ndarray:
        zeros = np.zeros(self.num_envs, np.float32)
        values = np.array(infos.get(name, zeros), np.float32)
        if last is not None:
            values = np.where(ended, np.asarray(last.get(name, zeros), np.float32), values)
        if values.shape != (self.num_envs,):
            raise UserError(
                f"infos[{name!r}] of {self.name}",
                expected=f"numbers [{self.num_envs}]",
                got=f"shape {list(values.shape)}",
            )
        if name in self._missing and ended.any():
            last = infos if last is None else last
            there = np.asarray(last.get(f"_{name}", np.full(self.num_envs, name in last)))
            if (there & ended).any():
                self._missing.discard(name)
            else:
                self._warn(name, last)
        return values

    def _warn(self, name: str, infos: Mapping[str, Any]) -> None:
        """Warns once of a field that no ended episode had so far."""
        keys = next((text for text in infos.get(INFO_KEYS, ()) if text), None)
        if (self.name, name) in _warned or keys is None and not self._native:  # a lost episode
            return
        _warned.add((self.name, name))
        keys = keys or ", ".join(sorted(k for k in infos if not k.startswith("_"))) or "none"
        warnings.warn(
            f"info_fields of {self.name}: no ended episode had {name!r} so far, which counts as 0; "
            f"the keys of info at the end of an episode: {keys}.",
            stacklevel=2,
        )

    # The rest.

    @property
    def pipe(self) -> Any:
        """The pipe that becomes readable when the first process has answered; only for `async`."""
        return self._vector.parent_pipes[0]  # type: ignore[attr-defined]

    @property
    def timeout(self) -> float:
        """The timeout of processes in seconds."""
        return self._source.timeout

    def copy(
        self, num_envs: int, render: bool = False, autoreset: Autoreset | None = None
    ) -> "GymnasiumBackend":
        """Returns new environments of the same task, optionally with rendering."""
        source = self._source
        if autoreset is not None:
            source = dataclasses.replace(source, autoreset=autoreset)
        if render:
            source = dataclasses.replace(source, vectorization="sync", render_mode="rgb_array")
        return GymnasiumBackend(source, num_envs)

    def tolerant(self) -> "GymnasiumBackend":
        """Returns new environments of the same task, whose failures end episodes."""
        fields = tuple(dict.fromkeys((*self._source.info_fields, LOST)))
        source = dataclasses.replace(self._source, tolerant=True, info_fields=fields)
        return GymnasiumBackend(source, self.num_envs)

    def render(self, index: int) -> np.ndarray:
        """Renders environment `index` now, uint8 RGB `[H, W, 3]`."""
        if self._vector.render_mode != "rgb_array" or not hasattr(self._vector.unwrapped, "envs"):
            return super().render(index)
        picture = self._called("render()", image, self._vector, index)
        if picture is None:
            return super().render(index)
        return np.array(picture, np.uint8)

    def close(self) -> None:
        """Closes the environments; a second call does nothing."""
        if not self._vector.closed:
            self._vector.close()


_ATARI_OWN = ("frameskip", "obs_type", "sound_obs")  # set by the preprocessing


def make_gymnasium(
    task: str,
    *,
    num_envs: int,
    autoreset: Autoreset,
    max_episode_steps: int | None,
    wrappers: Sequence[Callable[..., Any]] = (),
    outer_wrappers: Sequence[Callable[..., Any]] = (),
    vectorization: str = "auto",
    render_mode: str | None = None,
    info_fields: Sequence[str] = (),
    atari: bool = True,
    timeout: float = 60.0,
    double_buffer: bool = False,
    max_wait_time: float | None = None,
    **kwargs: Any,
) -> HostEnv:
    """Makes `gymnasium:<id>`, for example `gymnasium:HalfCheetah-v5`.

    Args:
      task: An id of Gymnasium's registry; `module:Name-v0` imports the module first.
      num_envs: Number of environments (B).
      autoreset: NEXT_STEP, SAME_STEP or DISABLED.
      max_episode_steps: As in `make_env`.
      wrappers: Functions `gymnasium.Env -> gymnasium.Env` around each environment, inside the time
        limit given here and outside the task's own.
      outer_wrappers: Functions `gymnasium.vector.VectorEnv -> gymnasium.vector.VectorEnv`; and
        `RewardScale`, `RewardClip`, `RewardNormalize`, outside of them and of the episode
        statistics.
      vectorization: `native`, the task's own vector environment; `sync`, one environment after
        another; `async`, each in a spawned process; `auto`, native if it supports all options, else
        sync.
      render_mode: As in `gymnasium.make`.
      info_fields: Names of numbers in `info` to copy to each state's `info`, float32 `[B]`; 0 if
        missing. Their means over the last steps of episodes are metrics. A warning names the keys
        of `info` if the first ended episodes do not have one of them.
      atari: False to not preprocess frames of Atari games, else see `AtariOptions`, whose fields
        are also arguments.
      timeout: Seconds for the start, a reset or a step of `async` processes.
      double_buffer: Whether two halves of the batch step in turn: with `async` one half steps while
        the policy acts for the other.
      max_wait_time: Seconds. With `async`, a rollout calls the policy for the environments that
        have answered, and waits at most this long for others, see `CentralInference`. None to step
        all together.
      **kwargs: Arguments of the task.

    Raises:
      UserError: For an unknown id or argument (with the nearest names), a missing package, a space
        without a spec, and incompatible options.
    """
    name = f"gymnasium:{task}"
    _check_options(name, autoreset, vectorization, info_fields, timeout)
    refuse_device_wrappers(
        name, wrappers, "functions gymnasium.Env -> gymnasium.Env", "gymnasium.wrappers"
    )
    rewards, outer_wrappers = split_wrappers(outer_wrappers)
    spec = gymnasium_vector.find_spec(task)
    gymnasium_vector.require_packages(name, spec)
    options = _atari_options(name, spec.entry_point, atari, kwargs)
    gymnasium_vector.check_kwargs(name, spec, kwargs, _general(options))
    source = VectorSource(
        name=name,
        spec=spec,
        kwargs=kwargs,
        autoreset=autoreset,
        max_episode_steps=max_episode_steps,
        wrappers=tuple(wrappers),
        outer_wrappers=tuple(outer_wrappers),
        vectorization=vectorization,
        render_mode=render_mode,
        info_fields=tuple(info_fields),
        atari=options,
        timeout=timeout,
    )

    def make(count: int) -> HostEnv:
        return HostEnv(GymnasiumBackend(source, count), autoreset)

    if max_wait_time is None:
        return buffered(name, make, num_envs, double_buffer).wrapped(rewards)
    if vectorization != "async" or double_buffer or source.outer_wrappers:
        raise UserError(
            f"max_wait_time of {name}",
            expected="vectorization='async' without double_buffer and vector wrappers",
            got=f"vectorization={vectorization!r}, double_buffer={double_buffer}, "
            f"{len(source.outer_wrappers)} vector wrappers",
            remedy="Run each environment in its own process.",
        )
    return CentralInference([make(1) for _ in range(num_envs)], max_wait_time).wrapped(rewards)


def _general(options: AtariOptions | None) -> list[str]:
    """The names of the suite's own arguments."""
    names = list(gymnasium_vector.GENERAL)
    return names if options is None else [*names, "atari", *AtariOptions.names()]


def _check_options(
    name: str, autoreset: Autoreset, vectorization: str, info_fields: Any, timeout: float
) -> None:
    refuse_cached(name, autoreset)
    checks.one_of(f"vectorization of {name}", vectorization, VECTORIZATIONS)
    checks.strings(f"info_fields of {name}", info_fields)
    remedy = "Pass the maximum time of a reset or step in seconds."
    checks.positive(f"timeout of {name}", timeout, remedy=remedy)


def _atari_options(
    name: str, entry_point: Any, atari: bool, kwargs: dict[str, Any]
) -> AtariOptions | None:
    """Removes the preprocessing options from the arguments, if there is preprocessing."""
    if entry_point != ENTRY_POINT or not atari:
        return None
    taken = [k for k in _ATARI_OWN if k in kwargs]
    if taken:
        raise UserError(
            f"make_env({name!r})",
            expected="raw frames, which the preprocessing skips, scales and stacks",
            got=f"{taken[0]}={kwargs[taken[0]]!r}",
            remedy="Pass frame_skip=." if taken[0] == "frameskip" else "Pass atari=False with it.",
        )
    return AtariOptions(**{n: kwargs.pop(n) for n in AtariOptions.names() if n in kwargs})
