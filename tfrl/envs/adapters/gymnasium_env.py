"""Constructs one Gymnasium environment of a batch, in this process or in a worker.

No TensorFlow here: the processes of `vectorization="async"` import this module.
"""

import copy
import dataclasses
import logging
from collections.abc import Callable, Mapping
from typing import Any

import gymnasium
import numpy as np
from gymnasium.envs.registration import EnvSpec
from gymnasium.wrappers import (
    AtariPreprocessing,
    ClipReward,
    FrameStackObservation,
    TimeLimit,
    TransformObservation,
)

from tfrl import checks
from tfrl.envs.env_calls import LOST, env_error
from tfrl.envs.gymnasium_values import (
    RESET,
    STEP,
    bad_step,
    check_end,
    check_layout,
    number,
    observation_fits,
)
from tfrl.errors import UserError

ENTRY_POINT = "ale_py.env:AtariEnv"


@dataclasses.dataclass(frozen=True)
class AtariOptions:
    """Preprocessing of frames into observations uint8 `[H, W, C]`.

    Attributes:
      frame_skip: Number of frames to repeat an action for; the last two are max-pooled.
      noop_max: Maximum number of no-ops at the start of an episode.
      screen_size: Height and width of an observation in pixels.
      grayscale: True for one channel a frame, False for three (RGB).
      frame_stack: Frames in an observation, the oldest first, as channels.
      terminal_on_life_loss: A lost life terminates the episode, and the next one starts a new game.
      episodic_life: A lost life terminates the episode, and the next one continues the game.
      reward_clip: Rewards are clipped to [-1, 1].
    """

    frame_skip: int = 4
    noop_max: int = 30
    screen_size: int = 84
    grayscale: bool = True
    frame_stack: int = 4
    terminal_on_life_loss: bool = False
    episodic_life: bool = False
    reward_clip: bool = False

    def __post_init__(self) -> None:
        """Checks the sizes."""
        for name in ("frame_skip", "screen_size", "frame_stack", "noop_max"):
            least, value = int(name != "noop_max"), getattr(self, name)
            checks.at_least(name, value, least)
        if self.terminal_on_life_loss and self.episodic_life:
            raise UserError(
                "episodic_life and terminal_on_life_loss",
                expected="at most one of them",
                got="both",
                remedy="Leave terminal_on_life_loss out: with episodic_life the game continues "
                "after a lost life.",
            )

    @classmethod
    def names(cls) -> list[str]:
        """Returns the names of the options."""
        return [f.name for f in dataclasses.fields(cls)]

    def task_kwargs(self, kwargs: Mapping[str, Any], limit: int | None) -> dict[str, Any]:
        """Returns the arguments of the bare game; a given `limit` removes the game's own."""
        own = {} if limit is None else {"max_num_frames_per_episode": 0}
        return {**kwargs, **own, "frameskip": 1}

    def wrap(self, env: gymnasium.Env, limit: int | None) -> gymnasium.Env:
        """Applies the wrappers to a game.

        Args:
          env: A game without frame skipping.
          limit: Steps after which a game is truncated, or None.
        """
        env = AtariPreprocessing(
            env,
            noop_max=self.noop_max,
            frame_skip=self.frame_skip,
            screen_size=self.screen_size,
            terminal_on_life_loss=self.terminal_on_life_loss,
            grayscale_obs=self.grayscale,
        )
        if limit is not None:
            env = TimeLimit(env, limit)
        if self.episodic_life:
            env = EpisodicLife(env)
        if self.reward_clip:
            env = ClipReward(env, -1.0, 1.0)
        # Zeros before the first frame, as in ALE's vector environment.
        env = FrameStackObservation(env, self.frame_stack, padding_type="zero")
        colours = 1 if self.grayscale else 3
        return TransformObservation(env, lambda x: channels_last(x, colours), self.space)

    @property
    def space(self) -> gymnasium.Space:
        """The space of one observation."""
        channels = self.frame_stack * (1 if self.grayscale else 3)
        size = (self.screen_size, self.screen_size, channels)
        return gymnasium.spaces.Box(0, 255, size, np.uint8)

    def vector_kwargs(self, limit: int | None) -> dict[str, Any] | None:
        """Returns arguments of ALE's vector environment, or None if it cannot do the same.

        Args:
          limit: Steps after which a game is truncated; None for its own limit, -1 for none.
        """
        if self.episodic_life or self.terminal_on_life_loss:
            # Its option episodic_life starts a new game after a lost life, and completes the frame
            # skip, where Gymnasium's wrapper stops.
            return None
        kwargs: dict[str, Any] = {
            "frameskip": self.frame_skip,
            "noop_max": self.noop_max,
            "img_height": self.screen_size,
            "img_width": self.screen_size,
            "grayscale": self.grayscale,
            "stack_num": self.frame_stack,
            "reward_clipping": self.reward_clip,
            "use_fire_reset": False,
        }
        if limit is not None:
            frames = 2**31 - 1 if limit < 0 else limit * self.frame_skip
            kwargs["max_num_frames_per_episode"] = frames
        return kwargs

    def max_episode_steps(self, kwargs: Mapping[str, Any], limit: int | None) -> int | None:
        """Returns the limit in steps."""
        if limit is not None:
            return None if limit < 0 else limit
        frames = kwargs.get("max_num_frames_per_episode")
        return -(-frames // self.frame_skip) if frames else None


class EpisodicLife(gymnasium.Wrapper):
    """Terminates an episode when a life is lost; the next one continues the game.

    Source: Mnih et al. (2015), https://doi.org/10.1038/nature14236, Methods, "Training details".
    """

    def __init__(self, env: gymnasium.Env):
        """Wraps a game.

        Args:
          env: A game with `AtariPreprocessing`.
        """
        super().__init__(env)
        self._lives = 0
        self._over = True

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Starts a new game if the last is over or a seed is given, else takes one no-op."""
        fresh = self._over or seed is not None
        if not fresh:
            obs, _, termination, truncation, info = self.env.step(0)
            fresh = bool(termination or truncation)
        if fresh:
            obs, info = self.env.reset(seed=seed, options=options)
        self._over = False
        self._lives = self._left()
        return obs, info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Takes a step."""
        obs, reward, termination, truncation, info = self.env.step(action)
        self._over = bool(termination or truncation)
        lives = self._left()
        lost = lives < self._lives
        self._lives = lives
        return obs, reward, bool(termination or lost), truncation, info

    def _left(self) -> int:
        game: Any = self.env.unwrapped
        return game.ale.lives()


def channels_last(frames: np.ndarray, colours: int = 1) -> np.ndarray:
    """Turns stacked frames into the channels of one image.

    Args:
      frames: `[..., S, H, W]`, or `[..., S, H, W, 3]`.
      colours: 3 for the second form.

    Returns:
      `[..., H, W, S * colours]`, several times faster than a transposed copy.
    """
    if colours == 1:
        frames = frames[..., np.newaxis]
    stack, height, width, _ = frames.shape[-4:]
    picture = np.empty((*frames.shape[:-4], height, width, stack * colours), frames.dtype)
    for i in range(stack):
        picture[..., i * colours : (i + 1) * colours] = frames[..., i, :, :, :]
    return picture


MASK = "action_mask"
INFO_KEYS = "tfrl_info_keys"  # of the last step of an episode that misses one of the info_fields
NO_LIMIT = -1
_LOG = logging.getLogger(__name__)

EnvWrapper = Callable[[gymnasium.Env], gymnasium.Env]


@dataclasses.dataclass(frozen=True)
class EnvFactory:
    """Creates one environment; can be pickled for another process.

    Attributes:
      name: The id, `gymnasium:task`, for messages.
      spec: The task's entry in Gymnasium's registry, so that a worker need not register it.
      kwargs: Arguments of the task.
      max_episode_steps: Time limit in steps outside all wrappers; None for the task's own limit, -1
        for none.
      wrappers: The user's wrappers, from the innermost to the outermost.
      atari: Preprocessing of frames, or None.
      info_fields: Names of requested numbers in `info`.
      whole_info: Whether to keep the rest of `info` too.
      index: The environment's index in the batch, for messages.
      tolerant: Whether exceptions end the episode, see `LostEpisode`.
      lost: Whether the current episode is lost already.
    """

    name: str
    spec: EnvSpec
    kwargs: Mapping[str, Any]
    max_episode_steps: int | None
    wrappers: tuple[EnvWrapper, ...] = ()
    atari: AtariOptions | None = None
    info_fields: tuple[str, ...] = ()
    whole_info: bool = False
    index: int = 0
    tolerant: bool = False
    lost: bool = False

    def __call__(self) -> gymnasium.Env:
        """Creates the environment."""
        return LostEpisode(self.make, self.lost) if self.tolerant else self.make()

    def make(self) -> gymnasium.Env:
        """Creates the environment without tolerance of its errors."""
        limit = None if self.max_episode_steps == NO_LIMIT else self.max_episode_steps
        own = None if self.max_episode_steps is None else NO_LIMIT
        kwargs = dict(self.kwargs)
        if self.atari is not None:
            kwargs = self.atari.task_kwargs(kwargs, self.max_episode_steps)
        env = gymnasium.make(self.spec, max_episode_steps=own, **kwargs)
        if self.atari is not None:
            env, limit = self.atari.wrap(env, limit), None
        for wrapper in self.wrappers:
            env = self._wrapped(wrapper, env)
        if limit is not None:
            env = gymnasium.wrappers.TimeLimit(env, limit)
        return Member(env, self.name, self.info_fields, self.whole_info, self.index)

    def _wrapped(self, wrapper: EnvWrapper, env: gymnasium.Env) -> gymnasium.Env:
        wrapped = wrapper(env)
        if isinstance(wrapped, gymnasium.Env):
            return wrapped
        raise UserError(
            f"wrappers of {self.name}",
            expected="functions gymnasium.Env -> gymnasium.Env",
            got=f"a function that returns a {type(wrapped).__name__}",
        )


class LostEpisode(gymnasium.Wrapper):
    """Ends an episode when the environment fails; the next reset with a seed creates a new one.

    An environment fails if it raises, or returns a number that is not finite. The final step
    repeats the last observation (any valid one if unknown), with reward 0 and 1.0 under `LOST` in
    `info`. So does every step up to the next seed: an episode that an autoreset would begin there
    counts for nobody, and might fail again.
    """

    def __init__(self, make: Callable[[], gymnasium.Env], lost: bool = False):
        """Takes the environment's constructor, and whether the current episode is lost."""
        super().__init__(make())
        self._make = make
        self._obs: Any = self._any_observation() if lost else None
        self._failed = lost

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Starts an episode; if that fails, the episode is lost at its first step."""
        if self._failed and seed is None:
            return self._obs, {}
        try:
            if self._failed:
                self.env.close()
                self.env = self._make()
            obs, info = self.env.reset(seed=seed, options=options)
            _check_finite("reset", obs)
            self._obs, self._failed = obs, False
        except Exception as error:
            self._note(error, "reset()")
            self._obs, info = self._any_observation(), {}
        return self._obs, info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Takes a step."""
        if not self._failed:
            try:
                answer = self.env.step(action)
                _check_finite("step", answer[:2])
            except Exception as error:
                self._note(error, "step()", action)
            else:
                self._obs = answer[0]
                return answer
        return self._obs, 0.0, True, False, {LOST: 1.0}

    def _any_observation(self) -> Any:
        """Returns a valid observation, always the same."""
        space = copy.deepcopy(self.observation_space)
        space.seed(0)
        return space.sample()

    def _note(self, error: Exception, call: str, action: Any = None) -> None:
        self._failed = True
        if isinstance(self.env, Member):  # says which environment it was, and its seed
            error = self.env.raised(error, call, action)
        _LOG.warning("Lost an episode: %s", error)


class Member(gymnasium.Wrapper):
    """Makes the outputs of one environment stackable in a batch.

    Gymnasium stacks `info` entry by entry, in Python, with the dtype of the first environment. So
    unrequested entries are dropped and all numbers are floats. Final observations are copied, as an
    environment may write its next observation into the same arrays.
    """

    def __init__(
        self,
        env: gymnasium.Env,
        name: str,
        info_fields: tuple[str, ...],
        whole_info: bool,
        index: int = 0,
    ):
        """Wraps the environment.

        Args:
          env: The environment with all other wrappers.
          name: The id, for messages.
          info_fields: Names of numbers in `info` to keep.
          whole_info: Whether to keep the rest too.
          index: The environment's index in the batch.
        """
        super().__init__(env)
        # A copy: a vector environment writes its autoreset mode into the class's dict.
        self._metadata = dict(env.metadata)
        self._name = name
        self._fields = info_fields
        self._whole_info = whole_info
        self._masked = False
        self._check = observation_fits(env.observation_space, f"observation of {name}")
        self._index = index
        self._seed: int | None = None  # the last given seed
        self._episode, self._step = 0, 0  # since that seed, and in the episode

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Starts an episode."""
        if seed is not None:
            self._seed, self._episode = seed, 0
        self._episode, self._step = self._episode + 1, 0
        try:
            answer = self.env.reset(seed=seed, options=options)
        except UserError:
            raise
        except Exception as error:
            raise self.raised(error, "reset()") from error
        try:
            check_layout(f"reset() of {self._name}", answer, RESET)
            obs, info = answer
            self._check(obs)
        except UserError as error:
            raise self._placed(error) from None
        self._masked = self._masked or MASK in info
        return obs, self._select_info(info, ended=False)

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Takes a step."""
        self._step += 1
        try:
            answer = self.env.step(action)
        except UserError:
            raise
        except ValueError as error:
            if "values to unpack" in str(error):  # from Gymnasium's wrappers in between
                raise self._placed(bad_step(self._name, str(error))) from error
            raise self.raised(error, "step()", action) from error
        except Exception as error:
            raise self.raised(error, "step()", action) from error
        try:
            # Gymnasium's own wrappers detect the other mistakes.
            if not isinstance(answer, tuple) or len(answer) != len(STEP):
                check_layout(f"step() of {self._name}", answer, STEP)
            obs, reward, termination, truncation, info = answer
            self._check(obs)
            if type(reward) is not float:
                reward = number(f"reward of {self._name}", reward)
            if type(termination) is not bool or type(truncation) is not bool:
                check_end(self._name, termination, truncation)
        except UserError as error:
            raise self._placed(error) from None
        ended = bool(termination or truncation)
        if not ended and not info and not self._masked:
            return obs, reward, termination, truncation, info
        if ended:
            obs, info = copy.deepcopy((obs, info))
        return obs, reward, termination, truncation, self._select_info(info, ended)

    def _place(self) -> str:
        return f"environment {self._index}, step {self._step}"

    def _placed(self, error: UserError) -> UserError:
        """Returns the error with the index of the environment and the step."""
        return UserError(
            f"{error.thing}, {self._place()}",
            expected=error.expected,
            got=error.got,
            remedy=error.remedy,
        )

    def raised(self, error: Exception, call: str, action: Any = None) -> UserError:
        """Returns the error to raise for an exception of the environment."""
        task = self._name.partition(":")[2]
        begin = f"reset(seed={self._seed})" if self._seed is not None else "reset()"
        message = (
            f"Reproduce it: gymnasium.make({task!r}) with the same arguments and wrappers, {begin}"
        )
        if self._episode > 1 or action is not None:
            message += f", then the same actions; this was step {self._step} of episode "
            message += f"{self._episode} from that seed"
        if action is not None:
            shown = action.item() if isinstance(action, np.generic) else action
            text = " ".join(repr(shown).split())
            message += f", its action {text if len(text) <= 80 else text[:77] + '...'}"
        return env_error(error, f"{call} of {self._name}, {self._place()}", f"{message}.")

    def _select_info(self, info: Mapping[str, Any], ended: bool) -> dict[str, Any]:
        kept_info = dict(info) if self._whole_info else {}
        for name in self._fields:
            if name in info:
                kept_info[name] = self._number(name, info[name])
            elif ended and name != LOST:
                kept_info[INFO_KEYS] = ", ".join(sorted(map(str, info))) or "none"
        if MASK in info:
            kept_info[MASK] = stacked_mask(self._name, self.action_space, info[MASK])
        elif self._masked and ended:  # many give no mask where no action follows
            kept_info[MASK] = full_mask(self.action_space)
        elif self._masked:
            raise UserError(
                f"info of {self._name}",
                expected=f"{MASK!r} after every reset and step, as after the first reset",
                got=f"the items {sorted(info)}",
            )
        return kept_info

    def _number(self, name: str, value: Any) -> float:
        array = np.asarray(value)
        if array.size == 1 and array.dtype.kind in "biuf":
            return float(array.reshape(()))
        raise UserError(f"info[{name!r}] of {self._name}", expected="a number", got=repr(value))


def stacked_mask(name: str, space: gymnasium.Space, mask: Any) -> Any:
    """Turns the mask of one action, in the forms of `space.sample`, into bool arrays.

    Args:
      name: The environment's id, for messages.
      space: The action space.
      mask: Its mask.

    Returns:
      Bool `[A]` for Discrete, `[K, max(nvec)]` for MultiDiscrete, `[K]` for MultiBinary; a dict of
      them for Dict and, by position, for Tuple.

    Raises:
      UserError: If the mask does not fit.
    """
    want: tuple[int, ...]
    if isinstance(space, gymnasium.spaces.Dict):
        return {k: stacked_mask(name, s, mask[k]) for k, s in space.spaces.items()}
    if isinstance(space, gymnasium.spaces.Tuple):
        return {str(i): stacked_mask(name, s, mask[i]) for i, s in enumerate(space.spaces)}
    if isinstance(space, gymnasium.spaces.MultiDiscrete) and isinstance(mask, tuple | list):
        mask = _padded(space, mask)
    want = full_mask(space).shape
    array = np.asarray(mask)
    if array.dtype.kind in "biu" and array.size == np.prod(want):
        return array.reshape(want) != 0
    raise UserError(
        f"info[{MASK!r}] of {name}",
        expected=f"bools or integers of shape {list(want)} for {space}",
        got=f"{array.dtype} of shape {list(array.shape)}",
    )


def full_mask(space: gymnasium.Space) -> Any:
    """Returns the mask that allows every action of a space, in the form of `stacked_mask`."""
    if isinstance(space, gymnasium.spaces.Dict):
        return {k: full_mask(s) for k, s in space.spaces.items()}
    if isinstance(space, gymnasium.spaces.Tuple):
        return {str(i): full_mask(s) for i, s in enumerate(space.spaces)}
    if isinstance(space, gymnasium.spaces.Discrete):
        count: Any = space.n
        return np.ones(int(count), bool)
    if isinstance(space, gymnasium.spaces.MultiDiscrete):
        return np.ones((space.nvec.size, max(space.nvec.ravel().tolist())), bool)
    return np.ones(int(np.prod(space.shape or ())), bool)


def _padded(space: gymnasium.spaces.MultiDiscrete, rows: Any) -> np.ndarray:
    """Pads Gymnasium's tuple of rows of different lengths to one array."""
    padded = np.zeros((space.nvec.size, max(space.nvec.ravel().tolist())), bool)
    for row, values in zip(padded, rows, strict=True):
        row[: len(values)] = np.asarray(values) != 0
    return padded


def _check_finite(method: str, values: Any) -> None:
    """Raises a ValueError for a number in dicts and tuples that is not finite in float32."""
    if isinstance(values, Mapping):
        values = tuple(values.values())
    if isinstance(values, tuple):
        for value in values:
            _check_finite(method, value)
        return
    array = np.asarray(values)
    if array.dtype.kind != "f":
        return
    with np.errstate(over="ignore"):
        array = array.astype(np.float32, copy=False)
    if not np.isfinite(array).all():
        raise ValueError(f"{method}() returned a number that is not finite")
