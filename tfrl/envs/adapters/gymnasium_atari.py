"""Frames of Atari games as agents see them: Gymnasium's wrappers, or ALE's own batch of games.

No TensorFlow here: the processes of `vectorization="async"` import this module.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np
from gymnasium.wrappers import (
    AtariPreprocessing,
    ClipReward,
    FrameStackObservation,
    TimeLimit,
    TransformObservation,
)

from tfrl.errors import UserError

ENTRY_POINT = "ale_py.env:AtariEnv"


@dataclasses.dataclass(frozen=True)
class AtariOptions:
    """How frames become observations uint8 `[H, W, C]`.

    Attributes:
      frame_skip: Frames that an action is repeated for; the last two are max-pooled.
      noop_max: Most of the no-ops that begin an episode.
      screen_size: Height and width of an observation in pixels.
      grayscale: One channel a frame; three, RGB, otherwise.
      frame_stack: Frames in an observation, the oldest first, as channels.
      terminal_on_life_loss: A lost life terminates the episode, and the next one begins a new game.
      episodic_life: A lost life terminates the episode, and the next one goes on with the game.
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
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise UserError(
                    name,
                    expected=f"an int of at least {least}",
                    got=repr(value),
                    remedy="Usual are frame_skip 4, noop_max 30, screen_size 84, frame_stack 4.",
                )
        if self.terminal_on_life_loss and self.episodic_life:
            raise UserError(
                "episodic_life and terminal_on_life_loss",
                expected="at most one of them",
                got="both",
                remedy="Leave terminal_on_life_loss out: with episodic_life the game goes on after "
                "a lost life, so that later lives are played too.",
            )

    @classmethod
    def names(cls) -> list[str]:
        """Returns the names of the options."""
        return [f.name for f in dataclasses.fields(cls)]

    def task_kwargs(self, kwargs: Mapping[str, Any], limit: int | None) -> dict[str, Any]:
        """Returns the arguments of the bare game; a limit in place of its own takes that away."""
        own = {} if limit is None else {"max_num_frames_per_episode": 0}
        return {**kwargs, **own, "frameskip": 1}

    def wrap(self, env: gymnasium.Env, limit: int | None) -> gymnasium.Env:
        """Puts the wrappers on a game.

        Args:
          env: A game that skips no frames.
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
        # Zeros before the first frame, as ALE's own batch of games has them.
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
        """Returns arguments of ALE's own batch of games, or None if it cannot do the same.

        Args:
          limit: Steps after which a game is truncated; None for its own limit, -1 for none.
        """
        if self.episodic_life or self.terminal_on_life_loss:
            # Its option episodic_life begins a new game after a lost life, and goes on to the end
            # of a skip, where Gymnasium's wrapper stops.
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
    """Terminates an episode when a life is lost; the next one goes on with the same game.

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
        """Starts a new game where one is over or a seed is given, else goes on by one no-op."""
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
    """Turns stacked frames into the channels of one picture.

    Args:
      frames: `[..., S, H, W]`, or `[..., S, H, W, 3]`.
      colours: 3 for the second form.

    Returns:
      `[..., H, W, S * colours]`; several times as fast as a transposition with a copy.
    """
    if colours == 1:
        frames = frames[..., np.newaxis]
    stack, height, width, _ = frames.shape[-4:]
    picture = np.empty((*frames.shape[:-4], height, width, stack * colours), frames.dtype)
    for i in range(stack):
        picture[..., i * colours : (i + 1) * colours] = frames[..., i, :, :, :]
    return picture
