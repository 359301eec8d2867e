"""Records a video of an agent in an environment."""

import dataclasses
import os
import pathlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from tfrl import seeding, struct
from tfrl.envs.core import Autoreset, Env, Wrapper
from tfrl.envs.wrappers.episode import Episode
from tfrl.errors import UserError
from tfrl.evaluation import fallback_renderer
from tfrl.evaluation.video_file import check_path, write_video
from tfrl.rollout.step import SAME_STEP_MODES, ActionFn, Loop, Stepper, autoreset_mode
from tfrl.types import EnvState

DEFAULT_FPS = 30.0


@dataclasses.dataclass(frozen=True)
class Video:
    """A recorded video.

    Attributes:
      path: The file.
      frames: How many frames it has.
      episode_returns: Undiscounted return of each recorded episode (of several agents, the sum over
        them), as far as it was recorded.
      episode_lengths: Its length in agent steps.
    """

    path: pathlib.Path
    frames: int
    episode_returns: tuple[float, ...]
    episode_lengths: tuple[int, ...]


def record_video(
    env: Env,
    agent: Any,
    agent_state: Any,
    key: tf.Tensor,
    path: str | os.PathLike,
    episodes: int = 1,
    max_frames: int = 10_000,
    fps: float | None = None,
    action_fn: ActionFn | None = None,
) -> Video:
    """Plays episodes in the first environment of the batch and writes what it looks like.

    Every state is drawn by `env.render`, the initial one included; an environment without a
    renderer is drawn as observation bars. The environment is played with autoreset DISABLED, so
    that the terminal state can be drawn too; one that does not have its autoreset from
    `tfrl.make_env` keeps its mode, and under SAME_STEP its terminal state is left out. For the
    same key the episodes are those of an `Evaluator` on this environment.

    Args:
      env: An environment with an autoreset mode; `num_envs=1` wastes nothing.
      agent: Any object with `evaluate_actions`.
      agent_state: The agent's state; leaves may be tensors or tf.Variables.
      key: int32 [2].
      path: A file name ending in .mp4 or .gif.
      episodes: How many episodes are played.
      max_frames: The recording stops after so many frames.
      fps: Frames per second; the environment's `render_fps` (30 without one) if None.
      action_fn: As in `rollout`; the agent's `evaluate_actions` if None.

    Returns:
      The file, its number of frames, returns and lengths.

    Raises:
      UserError: For another ending of the file name, a count below 1, or a bare environment.
    """
    path = check_path(path)
    for name, count in (("episodes", episodes), ("max_frames", max_frames)):
        if count < 1:
            raise UserError(
                name, expected="at least 1", got=count, remedy="Record at least one frame."
            )
    if fps is None:
        fps = float(getattr(env.unwrapped, "render_fps", DEFAULT_FPS))
    env = _without_autoreset(env)
    player = _Player(env, agent, agent_state, action_fn or agent.evaluate_actions, max_frames)
    frames = write_video(path, player.play(key, episodes), fps)
    return Video(path, frames, tuple(player.returns), tuple(player.lengths))


def _without_autoreset(env: Env) -> Env:
    """The environment with its episode layer set to DISABLED, where it has one."""
    if isinstance(env, Episode):
        return env.replace(mode=Autoreset.DISABLED)  # type: ignore[attr-defined]
    if isinstance(env, Wrapper):
        return env.replace(env=_without_autoreset(env.env))  # type: ignore[attr-defined]
    return env


class _Player:
    """Yields frames, and sums up the episodes on the way."""

    def __init__(
        self, env: Env, agent: Any, agent_state: Any, action_fn: ActionFn, max_frames: int
    ):
        self.env = env
        self.agent = agent
        self.agent_state = struct.values(agent_state)
        self.action_fn = action_fn
        self.max_frames = max_frames
        # The evaluator's limit, since it decides how many keys are drawn.
        self.limit = env.max_episode_steps or max_frames
        self.returns: list[float] = []
        self.lengths: list[int] = []
        self.frames = 0
        self.compiled_start = tf.function(self.start, autograph=False)
        self.compiled_step = tf.function(self.step, autograph=False)

    def start(self, agent_state: Any, key: tf.Tensor) -> Loop:
        """Resets the environments; the loop state before the first step."""
        state = self.env.reset(key)
        return self._stepper(Loop(env_state=state), agent_state, key).start

    def step(self, loop: Loop, agent_state: Any, key: tf.Tensor, t: tf.Tensor) -> Loop:
        """Takes one step in every environment."""
        return self._stepper(loop, agent_state, key).step(loop, t)[0]

    def _stepper(self, loop: Loop, agent_state: Any, key: tf.Tensor) -> Stepper:
        return Stepper(
            self.env,
            self.agent,
            loop.env_state,
            agent_state,
            key,
            self.limit,
            self.action_fn,
            loop.carry,
        )

    def play(self, key: tf.Tensor, episodes: int) -> Iterator[np.ndarray]:
        """Plays the episodes one after another until the frames are used up."""
        for index in range(episodes):
            if self.frames >= self.max_frames:
                return
            reset_key, step_key = tf.unstack(seeding.split(seeding.fold_in(key, index), 2))
            yield from self._episode(reset_key, step_key)

    def _episode(self, reset_key: tf.Tensor, step_key: tf.Tensor) -> Iterator[np.ndarray]:
        loop = self.compiled_start(self.agent_state, reset_key)
        draw, shows_end = self._drawer(loop.env_state)
        self.returns.append(0.0)
        self.lengths.append(0)
        self.frames += 1
        yield draw(loop.env_state)
        for t in range(self.limit):
            if self.frames >= self.max_frames:
                return
            loop = self.compiled_step(loop, self.agent_state, step_key, tf.constant(t))
            state = loop.env_state
            self.returns[-1] += _reward(state)
            self.lengths[-1] += 1
            ended = bool(state.termination[0]) or bool(state.truncation[0])
            if not ended or shows_end:
                self.frames += 1
                yield draw(state)
            if ended:
                return

    def _drawer(self, state: EnvState) -> tuple[Callable[[EnvState], np.ndarray], bool]:
        """The function that draws a state, and whether it can draw the end of an episode."""
        try:
            self.env.render(state, 0)
        except NotImplementedError:
            return self._draw_bars, True
        shows_end = autoreset_mode(self.env, state) not in SAME_STEP_MODES
        return lambda s: self.env.render(s, 0), shows_end

    def _draw_bars(self, state: EnvState) -> np.ndarray:
        # final_obs is the true successor, the terminal observation included.
        obs = tf.nest.map_structure(lambda x: x[0].numpy(), state.info["final_obs"])
        return fallback_renderer.draw(
            obs,
            self.env.obs_spec,
            reward=_reward(state),
            episode_return=self.returns[-1],
            step=self.lengths[-1],
        )


def _reward(state: EnvState) -> float:
    """The reward of environment 0; of several agents, that of all together."""
    return sum(float(r[0]) for r in tf.nest.flatten(state.reward))
