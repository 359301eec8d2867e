"""Records a video of an agent in an environment."""

import dataclasses
import os
import pathlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from tfrl import checks, extras, seeding, struct
from tfrl.envs.core import Autoreset, Env, Wrapper
from tfrl.envs.host import on_host
from tfrl.envs.host_env import HostEnv, task_name
from tfrl.envs.wrappers.episode import Episode
from tfrl.errors import UserError
from tfrl.evaluation.video_file import Preview, check_path, write_video
from tfrl.rollout.host_player import HostPlayer
from tfrl.rollout.step import SAME_STEP_MODES, Loop, Stepper, check_autoreset
from tfrl.traces import counted_separately
from tfrl.types import ActionFn, EnvState, EvaluatesActions, Nest

WIDTH, HEIGHT = 320, 240
_MARGIN, _TEXT_HEIGHT = 12, 44
_MAX_BARS = 64
_BACKGROUND, _INK, _AXIS, _BAR = (250, 250, 248), (40, 40, 40), (190, 190, 190), (52, 101, 164)


def draw_observation(
    obs: Any, obs_spec: Any, reward: float, episode_return: float, step: int
) -> np.ndarray:
    """Draws one observation with the step's reward, return and count above it.

    An image observation is shown unchanged; others are a row of bars around zero, scaled by the
    spec's bounds if finite, else squashed by x / (1 + |x|).

    Args:
      obs: One observation, a nest of arrays without batch axis.
      obs_spec: The nest of its specs.
      reward: The reward of the last step.
      episode_return: Sum of the rewards so far.
      step: Steps since the episode's start.

    Returns:
      uint8 RGB [240, 320, 3].
    """
    image = extras.require("PIL.Image", "video")
    drawing = extras.require("PIL.ImageDraw", "video")
    canvas = image.new("RGB", (WIDTH, HEIGHT), _BACKGROUND)
    pen = drawing.Draw(canvas)
    pen.text((_MARGIN, 8), f"step {step}   reward {reward:.3g}", fill=_INK)
    pen.text((_MARGIN, 24), f"return {episode_return:.5g}", fill=_INK)
    leaves = [np.asarray(x) for x in tf.nest.flatten(obs)]
    specs = tf.nest.flatten(obs_spec)
    picture = next((x for x in leaves if _is_image(x)), None)
    if picture is not None:
        _paste_image(canvas, image, picture)
    else:
        _draw_bars(pen, np.concatenate([_scaled(x, s) for x, s in zip(leaves, specs, strict=True)]))
    return np.asarray(canvas, np.uint8)


def _is_image(x: np.ndarray) -> bool:
    return x.dtype == np.uint8 and x.ndim == 3 and x.shape[-1] in (1, 3) and min(x.shape[:2]) > 7


def _scaled(x: np.ndarray, spec: Any) -> np.ndarray:
    """Maps values to [-1, 1], flat."""
    x = np.nan_to_num(x.astype(np.float64))
    low, high = getattr(spec, "minimum", None), getattr(spec, "maximum", None)
    squashed = x / (1.0 + np.abs(x))
    if low is None or high is None:
        return squashed.ravel()
    low = np.broadcast_to(np.asarray(low, np.float64), x.shape)
    high = np.broadcast_to(np.asarray(high, np.float64), x.shape)
    # Bounds near the largest float also mean "no bound".
    bounded = (np.abs(low) < 1e30) & (np.abs(high) < 1e30) & (high > low)
    span = np.where(bounded, high - low, 1.0)
    scaled = 2.0 * (x - np.where(bounded, low, 0.0)) / span - 1.0
    return np.clip(np.where(bounded, scaled, squashed), -1.0, 1.0).ravel()


def _draw_bars(pen: Any, values: np.ndarray) -> None:
    values = values[:_MAX_BARS]
    top, bottom = _TEXT_HEIGHT + _MARGIN, HEIGHT - _MARGIN
    zero, half = (top + bottom) / 2.0, (bottom - top) / 2.0
    slot = (WIDTH - 2 * _MARGIN) / max(1, len(values))
    for i, value in enumerate(values):
        left = _MARGIN + i * slot
        ends = sorted((zero, zero - value * half))
        pen.rectangle((left + 0.1 * slot, ends[0], left + 0.9 * slot, ends[1]), fill=_BAR)
    pen.line((_MARGIN, zero, WIDTH - _MARGIN, zero), fill=_AXIS)


def _paste_image(canvas: Any, image: Any, picture: np.ndarray) -> None:
    picture = np.repeat(picture, 3, axis=-1) if picture.shape[-1] == 1 else picture
    room = (WIDTH - 2 * _MARGIN, HEIGHT - _TEXT_HEIGHT - _MARGIN)
    factor = min(room[0] / picture.shape[1], room[1] / picture.shape[0])
    size = (max(1, int(picture.shape[1] * factor)), max(1, int(picture.shape[0] * factor)))
    # Nearest neighbour: the policy sees these very pixels.
    scaled = image.fromarray(picture).resize(size, resample=0)
    canvas.paste(scaled, ((WIDTH - size[0]) // 2, _TEXT_HEIGHT))


DEFAULT_FPS = 30.0


@dataclasses.dataclass(frozen=True)
class Video:
    """A recorded video.

    Attributes:
      path: The file.
      frames: Number of frames.
      episode_returns: Undiscounted return of each episode's recorded part (with several agents,
        their sum).
      episode_lengths: Its length in agent steps.
      fps: Frames per second.
      scene: An HTML page of the same episodes next to the file, if the environment writes one.
    """

    path: pathlib.Path
    frames: int
    episode_returns: tuple[float, ...]
    episode_lengths: tuple[int, ...]
    fps: float = DEFAULT_FPS
    scene: pathlib.Path | None = None


def record_video(
    env: Env,
    agent: EvaluatesActions,
    agent_state: Nest,
    key: tf.Tensor,
    path: str | os.PathLike,
    episodes: int = 1,
    max_frames: int = 10_000,
    fps: float | None = None,
    action_fn: ActionFn | None = None,
    preview: Preview | None = None,
) -> Video:
    """Runs episodes in the first environment of the batch and writes its frames.

    `env.render` draws every state, including the initial one; without a renderer, observation bars
    are drawn. Autoreset is set to DISABLED, to draw the terminal state too. An environment whose
    autoreset is not from `tfrl.make_env` keeps its mode, and under SAME_STEP its terminal state is
    omitted. For the same key the episodes equal those of an `Evaluator` on this environment. For a
    host environment, a renderable copy is used and closed.

    Args:
      env: An environment with an autoreset mode, preferably with `num_envs=1`.
      agent: Any object with `evaluate_actions`.
      agent_state: The agent's state; leaves may be tensors or tf.Variables.
      key: int32 [2].
      path: A file name ending in .mp4 or .gif.
      episodes: Number of episodes.
      max_frames: Maximum number of frames.
      fps: Frames per second; the environment's `render_fps` (30 without one) if None.
      action_fn: As in `rollout`; the agent's `evaluate_actions` if None.
      preview: Also receives the frames, for TensorBoard.

    Returns:
      The file, its number of frames, returns and lengths.

    Raises:
      UserError: For an unknown file suffix, a count below 1, a bare environment, or a renderer that
        fails.
    """
    path = check_path(path)
    for name, count in (("episodes", episodes), ("max_frames", max_frames)):
        checks.at_least(name, count, 1)
    if fps is None:
        fps = float(getattr(env.unwrapped, "render_fps", DEFAULT_FPS))
    if isinstance(env, HostEnv):
        env = env.copy(num_envs=1, render=True, autoreset=Autoreset.DISABLED)
    env = _without_autoreset(env)
    try:
        player = _FrameRecorder(
            env, agent, agent_state, action_fn or agent.evaluate_actions, max_frames
        )
        frames = write_video(path, _shown(player.play(key, episodes), preview), fps)
        scene = path.with_suffix(".html") if player.states else None
        if scene is not None:
            env.write_scene(player.states, scene)
    finally:
        if isinstance(env, HostEnv):
            env.close()
    return Video(path, frames, tuple(player.returns), tuple(player.lengths), fps, scene)


def check_drawable(env: Env) -> None:
    """Checks that an environment can render and a video can be encoded, by rendering once.

    `record_video` would draw observation bars instead; this check is for real pictures only.

    Args:
      env: An environment with an autoreset mode. A host environment itself is not stepped.

    Raises:
      UserError: It has no renderer, or rendering or the extra `video` fails.
    """
    for module in ("imageio_ffmpeg", "PIL.Image"):
        extras.require(module, "video")
    try:
        drawn = env.copy(1, render=True) if isinstance(env, HostEnv) else independent_env(env)
        try:
            drawn.render(drawn.reset(seeding.key(0)), 0)
        finally:
            if isinstance(drawn, HostEnv):
                drawn.close()
    except UserError:
        raise
    except Exception as error:  # renderers may raise anything without a screen or package
        raise _not_drawn(env, error) from error


def independent_env(env: Env) -> Env:
    """Returns environments that can run independently of the training's.

    Args:
      env: An environment. A device environment is returned itself, since it is stateless.
    """
    return env.with_num_envs(1) if on_host(env) and not isinstance(env, HostEnv) else env


def _not_drawn(env: Env, error: Exception) -> UserError:
    reason = (str(error).strip().splitlines() or ["no reason given"])[0].rstrip(".")
    remedy = "Leave video_interval out, or record observation bars, which need no renderer."
    if not isinstance(error, NotImplementedError):
        remedy = "Set MUJOCO_GL=egl or MUJOCO_GL=osmesa to render MuJoCo without a display."
    return UserError(
        f"rendering of {task_name(env)}",
        expected="a working renderer",
        got=f"{type(error).__name__}: {reason}",
        remedy=remedy,
    )


def _shown(frames: Iterator[np.ndarray], preview: Preview | None) -> Iterator[np.ndarray]:
    """Passes frames on, also to a preview."""
    for frame in frames:
        if preview is not None:
            preview.add(frame)
        yield frame


def _without_autoreset(env: Env) -> Env:
    """The environment with its episode layer, if any, set to DISABLED."""
    if isinstance(env, Episode):
        return env.replace(mode=Autoreset.DISABLED)  # type: ignore[attr-defined]
    if isinstance(env, Wrapper):
        return env.replace(env=_without_autoreset(env.env))  # type: ignore[attr-defined]
    return env


class _DeviceSteps:
    """Steps an agent in a device environment."""

    def __init__(self, env: Env, agent: object, agent_state: Nest, action_fn: ActionFn, limit: int):
        self._fixed = (env, agent)
        self._agent_state = struct.values(agent_state)
        self._action_fn = action_fn
        self._limit = limit
        self._start = tf.function(counted_separately(self._first), autograph=False)
        self._step = tf.function(counted_separately(self._next), autograph=False)

    def begin(self, reset_key: tf.Tensor, step_key: tf.Tensor) -> EnvState:
        """Resets the environments."""
        self._key = step_key
        self._loop = self._start(self._agent_state, reset_key)
        return self._loop.env_state

    def step(self, t: int) -> EnvState:
        """Takes step t in every environment."""
        self._loop = self._step(self._loop, self._agent_state, self._key, tf.constant(t))
        return self._loop.env_state

    def _first(self, agent_state: Nest, key: tf.Tensor) -> Loop:
        state = self._fixed[0].reset(key)
        return self._stepper(Loop(env_state=state), agent_state, key).start

    def _next(self, loop: Loop, agent_state: Nest, key: tf.Tensor, t: tf.Tensor) -> Loop:
        return self._stepper(loop, agent_state, key).step(loop, t)[0]

    def _stepper(self, loop: Loop, agent_state: Nest, key: tf.Tensor) -> Stepper:
        fixed = (*self._fixed, loop.env_state, agent_state)
        return Stepper(*fixed, key, self._limit, self._action_fn, loop.carry)


class _HostSteps:
    """Steps an agent in an environment on the host."""

    def __init__(
        self, env: HostEnv, agent: object, agent_state: Nest, action_fn: ActionFn, limit: int
    ):
        self._env, self._agent, self._agent_state = env, agent, agent_state
        self._action_fn, self._limit = action_fn, limit

    def begin(self, reset_key: tf.Tensor, step_key: tf.Tensor) -> EnvState:
        """Resets the environments."""
        state = self._env.reset(reset_key)
        fixed = (self._env, self._agent, state, self._agent_state)
        self._player = HostPlayer(*fixed, step_key, self._limit, self._action_fn, None)
        return state

    def step(self, t: int) -> EnvState:
        """Takes step t in every environment."""
        self._player.step(t)
        return self._player.state


class _FrameRecorder:
    """Yields frames, and sums up the episodes on the way."""

    def __init__(
        self, env: Env, agent: object, agent_state: Nest, action_fn: ActionFn, max_frames: int
    ):
        self.env = env
        self.max_frames = max_frames
        # The evaluator's limit, since it determines the number of keys.
        self.limit = env.max_episode_steps or max_frames
        kind: Any = _HostSteps if isinstance(env, HostEnv) else _DeviceSteps
        self.steps = kind(env, agent, agent_state, action_fn, self.limit)
        self.returns: list[float] = []
        self.lengths: list[int] = []
        self.frames = 0
        self.states: list[EnvState] = []  # of environments that make a page of them

    def play(self, key: tf.Tensor, episodes: int) -> Iterator[np.ndarray]:
        """Runs the episodes one after another until `max_frames`."""
        for index in range(episodes):
            if self.frames >= self.max_frames:
                return
            reset_key, step_key = tf.unstack(seeding.split(seeding.fold_in(key, index), 2))
            yield from self._episode(reset_key, step_key)

    def _episode(self, reset_key: tf.Tensor, step_key: tf.Tensor) -> Iterator[np.ndarray]:
        state = self.steps.begin(reset_key, step_key)
        draw, shows_end = self._drawer(state)
        self.returns.append(0.0)
        self.lengths.append(0)
        self.frames += 1
        yield draw(state)
        for t in range(self.limit):
            if self.frames >= self.max_frames:
                return
            state = self.steps.step(t)
            self.returns[-1] += _reward(state)
            self.lengths[-1] += 1
            ended = bool(state.termination[0]) or bool(state.truncation[0])
            if not ended or shows_end:
                self.frames += 1
                yield draw(state)
            if ended:
                return

    def _drawer(self, state: EnvState) -> tuple[Callable[[EnvState], np.ndarray], bool]:
        """The function that draws a state, and whether it can draw a terminal state."""
        try:
            self.env.render(state, 0)
        except NotImplementedError:
            return self._draw_bars, True
        except UserError:
            raise
        except Exception as error:  # renderers may raise anything without a screen or package
            raise _not_drawn(self.env, error) from error
        check_autoreset(self.env, state)
        shows_end = self.env.autoreset not in SAME_STEP_MODES
        keeps = getattr(self.env, "has_scenes", False)

        def draw(state: EnvState) -> np.ndarray:
            if keeps:
                self.states.append(state)
            return self.env.render(state, 0)

        return draw, shows_end

    def _draw_bars(self, state: EnvState) -> np.ndarray:
        # final_obs is the true successor, the terminal observation included.
        obs = tf.nest.map_structure(lambda x: np.asarray(x[0]), state.info["final_obs"])
        return draw_observation(
            obs,
            self.env.obs_spec,
            reward=_reward(state),
            episode_return=self.returns[-1],
            step=self.lengths[-1],
        )


def _reward(state: EnvState) -> float:
    """The reward of environment 0; with several agents, their sum."""
    return sum(float(r[0]) for r in tf.nest.flatten(state.reward))
