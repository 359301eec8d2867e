"""The suite `envpool`: EnvPool's environments, which step in C++ threads."""

import contextlib
import math
import numbers
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfrl import extras, specs
from tfrl.envs.adapters import host_spaces
from tfrl.envs.adapters.gymnasium_env import channels_last
from tfrl.envs.backend import Backend, Step
from tfrl.envs.core import Autoreset
from tfrl.envs.host import refuse_cached
from tfrl.envs.host_env import HostEnv
from tfrl.envs.host_halves import buffered
from tfrl.envs.host_wrappers import reward_wrappers
from tfrl.envs.registry import unknown_argument
from tfrl.errors import UserError, did_you_mean, nearest
from tfrl.types import Nest

_NO_LIMIT = 2**31 - 1  # a count of steps that is never reached
# Without a screen its renderer ends the whole process.
_NOT_DRAWN = "envpool.mujoco"


class EnvPoolBackend(Backend):
    """Steps an EnvPool, which every `reset` re-creates, as EnvPool takes seeds only then."""

    def __init__(
        self,
        task: str,
        num_envs: int,
        *,
        autoreset: Autoreset,
        max_episode_steps: int | None,
        info_fields: tuple[str, ...],
        options: Mapping[str, Any],
        draw: bool = False,
    ):
        """Reads the specs; no environment is made yet.

        Args:
          task: An id of EnvPool.
          num_envs: Number of environments (B).
          autoreset: NEXT_STEP or SAME_STEP.
          max_episode_steps: Steps after which an episode is truncated; None for the task's own
            limit, -1 for none.
          info_fields: Names of numbers in `info`.
          options: EnvPool's options.
          draw: Whether the environments can be rendered.
        """
        import envpool
        from envpool.registration import registry

        self.name, self.num_envs, self.autoreset = f"envpool:{task}", num_envs, autoreset
        self._task, self._arguments = task, (max_episode_steps, info_fields, dict(options))
        self._options = dict(options)
        if max_episode_steps is not None:
            limit = _NO_LIMIT if max_episode_steps < 0 else max_episode_steps
            self._options["max_episode_steps"] = limit
        self._draws = draw and not registry.specs[task][0].startswith(_NOT_DRAWN)
        self._pool: Any = None
        spec = envpool.make_spec(task, num_envs=num_envs, **self._options)
        limit = getattr(spec.config, "max_episode_steps", _NO_LIMIT)
        self.max_episode_steps = None if limit == _NO_LIMIT else limit
        self.info_spec = {name: tf.TensorSpec([], tf.float32) for name in info_fields}
        self.info_fields = tuple(info_fields)
        self._describe(spec)

    def _describe(self, spec: Any) -> None:
        with _quietly():
            observation = _space(spec.gymnasium_observation_space)
            action = _space(spec.gymnasium_action_space)
        obs_spec = host_spaces.space_spec(self.name, "observation", observation)
        self.action_spec = host_spaces.space_spec(self.name, "action", action)
        if isinstance(self.action_spec, specs.DiscreteSpec):
            self._first = self.action_spec.start
            self._last = self._first + self.action_spec.num_values - 1
        self.obs_spec = tf.nest.map_structure(_picture_spec, obs_spec)
        self._pictures = _pictures(obs_spec)
        thing = f"observation of {self.name}"
        self._copy_obs = host_spaces.copier(self.obs_spec, thing, self.num_envs)
        self._copy_action = host_spaces.copier(
            self.action_spec, f"action for {self.name}", self.num_envs
        )

    def reset(self, seeds: np.ndarray) -> Step:
        """Creates the environments with their seeds, and starts an episode in each."""
        import envpool

        self.close()
        more = {"render_mode": "rgb_array"} if self._draws else {}
        self._pool = envpool.make(
            self._task,
            env_type="gymnasium",
            num_envs=self.num_envs,
            seed=[int(s) for s in seeds],
            **self._options,
            **more,
        )
        with _quietly():  # it creates its spaces again
            obs, infos = self._pool.reset()
        none = np.zeros(self.num_envs, bool)
        reward = np.zeros(self.num_envs, np.float32)
        return Step(self._obs(obs), reward, none, none, None, self._info(infos))

    def send(self, action: Nest) -> None:
        """Sends the actions to the threads."""
        action = self._copy_action(action)
        self._check(action)
        self._pool.send(action)

    def _check(self, action: Nest) -> None:
        """Refuses discrete actions out of bounds, as C++ would read invalid memory."""
        if not isinstance(self.action_spec, specs.DiscreteSpec):
            return
        low, high = self._first, self._last
        if action.min() < low or action.max() > high:
            raise UserError(
                f"action for {self.name}",
                expected=f"numbers from {low} to {high}",
                got=str(action[(action < low) | (action > high)].tolist()),
            )

    def receive(self) -> Step:
        """Waits for the threads."""
        obs, reward, termination, truncation, infos = self._pool.recv()
        step = Step(
            self._obs(obs),
            host_spaces.numbers(f"rewards of {self.name}", reward, self.num_envs),
            host_spaces.flags(f"terminations of {self.name}", termination, self.num_envs),
            host_spaces.flags(f"truncations of {self.name}", truncation, self.num_envs),
            None,
            self._info(infos),
        )
        if self.autoreset is Autoreset.SAME_STEP:
            ended = step.termination | step.truncation
            if ended.any():
                step.final_obs = step.obs
                step.obs = self._restarted(step.obs, np.flatnonzero(ended))
        return step

    def _restarted(self, obs: Nest, rows: np.ndarray) -> Nest:
        """Starts episodes in some rows; returns the observations with these rows replaced."""
        first, infos = self._pool.reset(rows.astype(np.int32))
        order = np.asarray(infos["env_id"])
        new = tf.nest.map_structure(np.copy, obs)

        def put(batch: np.ndarray, part: Any) -> None:
            batch[order] = part

        for batch, part in zip(
            tf.nest.flatten(new), tf.nest.flatten(self._pictures(first)), strict=True
        ):
            put(batch, part)
        return new

    def _obs(self, obs: Any) -> Nest:
        return self._copy_obs(self._pictures(obs))

    def _info(self, infos: Mapping[str, Any]) -> dict[str, np.ndarray]:
        columns = {}
        for name in self.info_spec:
            value = infos.get(name)
            if not isinstance(value, np.ndarray) or value.shape != (self.num_envs,):
                numbers = [k for k, v in infos.items() if np.shape(v) == (self.num_envs,)]
                raise UserError(
                    f"info_fields of {self.name}",
                    expected=f"names of numeric info items ({', '.join(sorted(numbers))})",
                    got=repr(name),
                )
            columns[name] = value.astype(np.float32)
        return columns

    def copy(
        self, num_envs: int, render: bool = False, autoreset: Autoreset | None = None
    ) -> "EnvPoolBackend":
        """Returns new environments of the same task; `render` makes them renderable."""
        limit, info_fields, options = self._arguments
        return EnvPoolBackend(
            self._task,
            num_envs,
            autoreset=autoreset or self.autoreset,
            max_episode_steps=limit,
            info_fields=info_fields,
            options=options,
            draw=render,
        )

    def render(self, index: int) -> np.ndarray:
        """Renders environment `index`, uint8 RGB `[H, W, 3]`."""
        if not self._draws or self._pool is None:
            raise NotImplementedError(f"{self.name} cannot be rendered; use the suite gymnasium")
        return np.array(self._pool.render(index)[0], np.uint8)

    def close(self) -> None:
        """Ends the threads; a second call does nothing."""
        if self._pool is not None:
            self._pool.close()
            self._pool = None


@contextlib.contextmanager
def _quietly() -> Iterator[None]:
    """Drops Gymnasium's warnings about EnvPool's float64 bounds of float32 spaces."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*precision lowered.*")
        yield


def _space(space: Any) -> Any:
    """Converts EnvPool's plain dicts of spaces to `Dict` spaces."""
    from gymnasium import spaces

    if isinstance(space, Mapping) and not isinstance(space, spaces.Space):
        return spaces.Dict({k: _space(s) for k, s in space.items()})
    return space


def _is_stack(spec: tf.TensorSpec) -> bool:
    """Whether a leaf is an image with its channels first, by far the shortest axis."""
    shape = spec.shape.as_list()
    return spec.dtype == tf.uint8 and len(shape) == 3 and 2 * shape[0] < min(shape[1:])


def _picture_spec(spec: tf.TensorSpec) -> tf.TensorSpec:
    if not _is_stack(spec):
        return spec
    channels, height, width = spec.shape.as_list()
    return specs.BoundedTensorSpec([height, width, channels], spec.dtype, 0, 255)


def _pictures(spec: Nest) -> Callable[[Any], Nest]:
    """Returns a function that moves the channels of all images last."""
    if isinstance(spec, Mapping):
        parts = {k: _pictures(s) for k, s in spec.items()}
        return lambda obs: {k: part(obs[k]) for k, part in parts.items()}
    if _is_stack(spec):
        return lambda obs: channels_last(obs)
    return lambda obs: obs


# Options that tfrl sets itself or that would break a batch, each with its replacement.
_OWN = {
    "batch_size": "Leave it out: all environments step together.",
    "env_seed": "Pass the seed to reset.",
    "env_type": "Leave it out: it is always gymnasium.",
    "gym_reset_return_info": "Leave it out: it is always True.",
    "max_num_players": "Leave it out: multiplayer environments are not supported.",
    "render_mode": "Use env.copy(render=True) to render.",
    "seed": "Pass the seed to reset.",
}


def make_envpool(
    task: str,
    *,
    num_envs: int,
    autoreset: Autoreset,
    max_episode_steps: int | None,
    wrappers: Sequence[Callable[..., Any]] = (),
    outer_wrappers: Sequence[Callable[..., Any]] = (),
    info_fields: Sequence[str] = (),
    double_buffer: bool = False,
    **kwargs: Any,
) -> HostEnv:
    """Makes `envpool:<id>`, for example `envpool:Pong-v5`.

    EnvPool seeds environments only at creation, so `reset` re-creates them and is reproducible. An
    episode that terminates at its time limit is reported as truncated, as EnvPool does not
    distinguish the two. Frames `[C, H, W]` become `[H, W, C]`.

    Args:
      task: An id of `envpool.list_all_envs()`.
      num_envs: Number of environments (B).
      autoreset: NEXT_STEP (EnvPool's own), SAME_STEP (by resets of single environments), or
        DISABLED.
      max_episode_steps: See `make_env`.
      wrappers: None: single environments have no Python side to wrap.
      outer_wrappers: `RewardScale`, `RewardClip` and `RewardNormalize` only.
      info_fields: Names of numbers in `info` to keep in each state's `info`, float32 `[B]`.
      double_buffer: Whether one half of the batch steps in EnvPool's threads while the policy acts
        for the other.
      **kwargs: EnvPool's own options of the task, for example `num_threads`, `episodic_life`,
        `reward_clip`, `repeat_action_probability`.

    Raises:
      UserError: If EnvPool is not installed, for an unknown task or option (with the nearest
        names), for wrappers, and for an unsupported autoreset mode.
    """
    name = f"envpool:{task}"
    extras.require("envpool", "envpool")
    import envpool

    refuse_cached(name, autoreset)
    rewards = reward_wrappers(name, [*outer_wrappers, *wrappers], "Use EnvPool's own options.")
    known = envpool.list_all_envs()
    if task not in known:
        raise UserError(
            f"environment {name}",
            expected=f"one of the {len(known)} tasks of envpool.list_all_envs()",
            got=repr(task),
            remedy=did_you_mean(task, near)
            if (near := nearest(task, known))
            else "Choose one of them.",
        )
    config = envpool.make_spec(task).config
    _check_options(name, config._fields, kwargs, max_episode_steps)
    _check_values(name, config, kwargs)
    mode = Autoreset.SAME_STEP if autoreset is Autoreset.SAME_STEP else Autoreset.NEXT_STEP

    def make(size: int) -> HostEnv:
        backend = EnvPoolBackend(
            task,
            size,
            autoreset=mode,
            max_episode_steps=max_episode_steps,
            info_fields=tuple(info_fields),
            options=kwargs,
        )
        return HostEnv(backend, autoreset)

    return buffered(name, make, num_envs, double_buffer).wrapped(rewards)


def _check_values(name: str, config: Any, kwargs: dict[str, Any]) -> None:
    """Refuses invalid values, which may crash the process in C++."""
    at_least_one = ("frame_skip", "img_height", "img_width", "stack_num", "max_episode_steps")
    for option, value in kwargs.items():
        usual = getattr(config, option)
        integral = isinstance(value, numbers.Integral) and not isinstance(value, bool)
        if isinstance(usual, bool):
            fits, expected = isinstance(value, bool), "True or False"
        elif isinstance(usual, int):
            low = 1 if option in at_least_one else -1 if usual < 0 else 0
            fits, expected = integral and value >= low, f"a whole number of at least {low}"
        elif isinstance(usual, float):
            real = isinstance(value, numbers.Real) and not isinstance(value, bool)
            fits, expected = real and math.isfinite(value), "a finite number"
        elif isinstance(usual, str):
            fits, expected = isinstance(value, str), "a string"
        else:
            continue
        if option == "repeat_action_probability" and fits:
            fits, expected = 0 <= value <= 1, "a probability from 0 to 1"
        if not fits:
            raise UserError(
                f"make_env({name!r}): {option}",
                expected=expected,
                got=repr(value),
                remedy=f"EnvPool's default is {usual!r}.",
            )


def _check_options(
    name: str, fields: Sequence[str], kwargs: dict[str, Any], limit: int | None
) -> None:
    """Refuses options that the task lacks or that tfrl sets itself."""
    taken = sorted(set(kwargs) & set(_OWN))
    if taken:
        raise UserError(
            f"make_env({name!r})",
            expected=f"options of the task without {taken[0]}, which tfrl sets",
            got=f"{taken[0]}={kwargs[taken[0]]!r}",
            remedy=_OWN[taken[0]],
        )
    hidden = {*_OWN, "base_path", "num_envs", "max_episode_steps", "reward_threshold"}
    own = sorted(set(fields) - hidden)
    unknown = sorted(set(kwargs) - set(own))
    if unknown:
        raise unknown_argument(name, unknown[0], own, ("info_fields", "double_buffer"))
    if limit is not None and "max_episode_steps" not in fields:
        raise UserError(
            f"max_episode_steps of {name}", expected="None: the task has no step limit", got=limit
        )
