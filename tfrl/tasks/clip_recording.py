"""Clips of a task: the frames of an episode, to a file, to TensorBoard or to the caller."""

import dataclasses
import os
import pathlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np

from tfrl import checks, extras
from tfrl.envs.workers import WorkerPool, WorkerState
from tfrl.envs.workers.runner import check_seed
from tfrl.episodes import lookback_buffer
from tfrl.errors import UserError
from tfrl.evaluation import video_file
from tfrl.evaluation.video import Video
from tfrl.tasks.samples import GetActions, SampledTrajectory, Track, batched_actions

if TYPE_CHECKING:
    from tfrl.tasks.task import RLTask

DEFAULT_FPS = 30.0


@dataclasses.dataclass(frozen=True)
class ClipOptions:
    """Checked arguments of `RLTask.sample_clip`."""

    save_path: pathlib.Path | None
    keeps_images: bool
    writer: str
    summary_writer: Any
    standardize_images: bool
    max_steps: int
    seed: int

    @property
    def renders(self) -> bool:
        """Whether the clip renders frames."""
        return self.keeps_images or self.save_path is not None or self.summary_writer is not None


def clip_options(
    *,
    save_path: str | os.PathLike | None,
    return_images: bool | None,
    return_states: bool,
    writer: Any = "ffmpeg",
    summary_writer: Any = None,
    standardize_images: bool = True,
    max_steps: Any,
    seed: Any,
) -> ClipOptions:
    """Returns the options of a clip.

    Raises:
      UserError: The clip has no output, or arguments contradict each other.
    """
    if hasattr(writer, "as_default"):
        writer, summary_writer = "ffmpeg", writer
    shown = save_path is not None or summary_writer is not None
    images = not shown if return_images is None else return_images
    if not (shown or images or return_states):
        raise UserError(
            "sample_clip",
            expected="one or more of save_path, return_images, return_states and summary_writer",
            got="no output",
            remedy="Pass save_path='clip.mp4' to write a file.",
        )
    if summary_writer is not None and not hasattr(summary_writer, "as_default"):
        raise UserError(
            "summary_writer of sample_clip",
            expected="a tf.summary writer",
            got=f"{summary_writer!r} of type {type(summary_writer).__name__}",
            remedy="Create it with tf.summary.create_file_writer(folder).",
        )
    checks.one_of("writer of sample_clip", writer, video_file.WRITERS)
    path = None if save_path is None else video_file.check_path(save_path, writer)
    remedy = "Pass the number of env steps in a clip."
    checks.at_least("max_steps", max_steps, 1, remedy=remedy)
    return ClipOptions(
        save_path=path,
        keeps_images=images,
        writer=writer,
        summary_writer=summary_writer,
        standardize_images=standardize_images,
        max_steps=int(max_steps),
        seed=check_seed(seed),
    )


class ClipPlayer:
    """Plays one episode in an environment, with samples as from `iter_samples`.

    Attributes:
      fps: The environment's frames per second.
      trajectory: The samples, once `frames` has ended.
    """

    def __init__(
        self,
        env: gymnasium.Env,
        get_actions: GetActions | None,
        *,
        optimal: bool,
        max_steps: int,
        max_episode_steps: int | None,
        seed: int,
        renders: bool,
    ):
        """Checks the environment.

        Args:
          env: The environment, which stays open.
          get_actions: States and `optimal` to actions; None for random actions.
          optimal: Passed to `get_actions`.
          max_steps: The most env steps of the clip; the episode itself is not ended there.
          max_episode_steps: The step at which the episode is truncated, as in training.
          seed: The seed of a pool, whose worker 0 plays its episode 0; also of random actions.
          renders: Whether to render frames.

        Raises:
          UserError: Frames are needed, and the render mode is not "rgb_array".
        """
        self._env = env
        self._get_actions = get_actions or self._random
        self._optimal = optimal
        self._max_steps = max_steps
        self._max_episode_steps = max_episode_steps
        self._seed = seed
        self._renders = renders
        self.trajectory: SampledTrajectory | None = None
        self.fps = fps_of(env)
        if renders:
            check_drawable(env)

    def frames(self) -> Iterator[Any]:
        """Plays; yields the result of `env.render()` for every state, also the initial one.

        Raises:
          UserError: The initial state is terminal.
        """
        # The pool checks the environment's outputs; it runs in this process, to render.
        with WorkerPool(
            lambda: _KeptOpen(self._env),
            0,
            seed=self._seed,
            max_episode_steps=self._max_episode_steps,
        ) as pool:
            yield from self._play(pool)

    def _play(self, pool: WorkerPool) -> Iterator[Any]:
        pool.reset()
        state = _next(pool)
        _check_start(state)
        self._env.action_space.seed(self._seed)
        track = Track(0)
        track.receive(state, 0.0)
        yield self._frame()
        for _ in range(self._max_steps):
            actions, extras = batched_actions(self._get_actions, [state], self._optimal)
            track.act(
                lookback_buffer.take(actions, (0, ...)),
                lookback_buffer.take(extras, (0, ...)) if extras else {},
            )
            pool.send_action(lookback_buffer.take(actions, 0), 0, state.generation)
            state = _next(pool)
            track.receive(state, 0.0)
            yield self._frame()
            if state.last:
                break
        self.trajectory = track.close(state.obs, cut=not state.last)

    def _frame(self) -> Any:
        return self._env.render() if self._renders else None

    def _random(self, states: Any, optimal: bool) -> Any:
        action = lookback_buffer.as_arrays(self._env.action_space.sample(), "action_space.sample()")
        return lookback_buffer.stack([action])


class _KeptOpen(gymnasium.Wrapper):
    """Keeps an environment open when the pool closes it."""

    def close(self) -> None:
        """Does nothing."""


def check_drawable(env: gymnasium.Env) -> None:
    """Raises a UserError for an environment that cannot render images."""
    if env.render_mode != "rgb_array":
        modes = list((env.metadata or {}).get("render_modes", ()))
        raise UserError(
            "get_environment() for a video",
            expected="an environment with render_mode 'rgb_array'",
            got=f"render_mode {env.render_mode!r} of {modes}",
            remedy="Create it with gymnasium.make(..., render_mode='rgb_array'), or pass "
            "return_images=False and return_states=True.",
        )


def record(
    clip: ClipPlayer,
    options: ClipOptions,
    *,
    step: int,
    tag: str,
    preview: video_file.Preview | None = None,
) -> list[Any]:
    """Plays a clip and writes it to the outputs of the options.

    Args:
      clip: The player, which plays once.
      options: The options of `sample_clip`.
      step: The step of the summary.
      tag: The name of the summary.
      preview: Also takes the frames; for a summary a new one is made.

    Returns:
      The frames if they are to be returned, else an empty list.
    """
    kept: list[Any] = []
    if options.summary_writer is not None:
        preview = video_file.Preview()

    def shown() -> Iterator[np.ndarray]:
        standard = FrameStandard()
        for frame in clip.frames():
            if not options.renders:
                continue
            picture = standard(frame)
            if options.keeps_images:
                kept.append(picture if options.standardize_images else np.array(frame))
            if preview is not None:
                preview.add(picture)
            yield picture

    if options.save_path is not None:
        video_file.write_video(options.save_path, shown(), clip.fps, options.writer)
    else:
        for _ in shown():
            pass
    if options.summary_writer is not None and preview is not None:
        fps = clip.fps / preview.every
        video_file.write_summary(options.summary_writer, tag, preview.frames, step, fps)
    return kept


def play(
    task: "RLTask",
    model: Any,
    options: ClipOptions,
    *,
    optimal: bool,
    step: int = 0,
    tag: str = "clip",
    preview: video_file.Preview | None = None,
) -> tuple[ClipPlayer, list[Any]]:
    """Plays a clip in a task's environment for clips.

    Args:
      task: The task. Its environment is closed if the clip fails.
      model: The result of `get_model`; None for random actions.
      options: The options of `sample_clip`.
      optimal: Passed to `get_actions`.
      step: The step of the summary.
      tag: The name of the summary.
      preview: See `record`.

    Returns:
      The player, after the episode, and the frames to return.
    """

    def get_actions(states: Any, best: bool) -> Any:
        return task.get_actions(model, states, best)

    try:
        clip = ClipPlayer(
            task.get_environment_cached(),
            None if model is None else get_actions,
            optimal=optimal,
            max_steps=options.max_steps,
            max_episode_steps=task.config.max_episode_steps,
            seed=options.seed,
            renders=options.renders,
        )
        return clip, record(clip, options, step=step, tag=tag, preview=preview)
    except BaseException:
        task.close()
        raise


def _next(pool: WorkerPool) -> WorkerState:
    state = pool.get_state()
    if not isinstance(state, WorkerState):
        raise RuntimeError(f"A synchronous worker must return a state immediately, got {state}.")
    return state


def _check_start(state: WorkerState) -> None:
    """Raises a UserError if a reset ends the episode, which environments report in `info`."""
    for flag in ("terminated", "truncated"):
        if np.any(state.info.get(flag, False)):
            raise UserError(
                "the initial state of the clip",
                expected="a state that takes an action",
                got=f"info[{flag!r}] True at reset, before the first step",
                remedy="Start the episode in a non-terminal state, or choose a different seed.",
            )


def check_video(task: "RLTask") -> None:
    """Checks by one frame that the task's environment renders and its video can be encoded.

    Raises:
      UserError: If not.
    """
    for module in ("imageio_ffmpeg", "PIL.Image"):
        extras.require(module, "video")
    env = task.get_environment()
    try:
        check_drawable(env)
        env.reset(seed=0)
        as_rgb(env.render())
    except UserError:
        raise
    except Exception as error:  # any error of a renderer without a screen or a package
        lines = str(error).strip().splitlines() or ["no reason given"]
        raise UserError(
            "video_interval",
            expected="an environment that renders",
            got=f"an environment that does not render ({type(error).__name__}: {lines[0]})",
            remedy="Leave video_interval out.",
        ) from error
    finally:
        env.close()


def record_video(
    task: "RLTask",
    model: Any,
    path: str | pathlib.Path,
    seed: int,
    preview: video_file.Preview | None,
) -> Video:
    """Records one episode by the task's `sample_clip`.

    Args:
      task: The task.
      model: The result of `get_model`.
      path: A file name ending in .mp4 or .gif.
      seed: The seed of the episode.
      preview: Also takes the frames.

    Raises:
      UserError: See `RLTask.sample_clip`.
    """
    trajectory = task.sample_clip(model, path, return_states=True, seed=seed, preview=preview)
    return Video(
        path=pathlib.Path(path),
        frames=len(trajectory) + 1,
        episode_returns=(float(np.sum(trajectory.reward)),),
        episode_lengths=(len(trajectory),),
        fps=fps_of(task.get_environment_cached()),
    )


def fps_of(env: gymnasium.Env) -> float:
    """Returns an environment's frames per second."""
    return float((env.metadata or {}).get("render_fps") or DEFAULT_FPS)


class FrameStandard:
    """Converts frames to uint8 RGB of the first frame's size, rounded up to even.

    Grey frames are repeated in three channels, and an alpha channel is dropped. An odd height or
    width repeats its last row or column, since H.264 requires even sizes. A later frame of another
    size is cropped at the lower right and padded in black.
    """

    def __init__(self) -> None:
        """The first frame sets the size."""
        self._size: tuple[int, int] | None = None

    def __call__(self, frame: Any) -> np.ndarray:
        """Returns a frame as uint8 `[H, W, 3]`.

        Args:
          frame: uint8 `[h, w]`, `[h, w, 1]`, `[h, w, 3]` or `[h, w, 4]`.

        Raises:
          UserError: For any other array.
        """
        picture = as_rgb(frame)
        if self._size is None:
            self._size = (picture.shape[0], picture.shape[1])
        height, width = self._size
        if picture.shape[:2] != self._size:
            picture = picture[:height, :width]
            lacking = (height - picture.shape[0], width - picture.shape[1])
            picture = np.pad(picture, ((0, lacking[0]), (0, lacking[1]), (0, 0)))
        return np.pad(picture, ((0, height % 2), (0, width % 2), (0, 0)), mode="edge")


def as_rgb(frame: Any) -> np.ndarray:
    """Copies a grey, RGB or RGBA frame to uint8 `[H, W, 3]`; raises a UserError for others."""
    picture = np.array(frame) if frame is not None else np.array(None)
    if picture.dtype == np.uint8 and picture.ndim == 2:
        picture = picture[..., None]
    shape = picture.shape
    if picture.dtype != np.uint8 or picture.ndim != 3 or shape[-1] not in (1, 3, 4) or 0 in shape:
        raise UserError(
            "env.render() for a video",
            expected="a uint8 frame [H, W], [H, W, 1], [H, W, 3] or [H, W, 4]",
            got=type(frame).__name__
            if picture.dtype == object
            else f"{picture.dtype} {list(picture.shape)}",
            remedy="Fix the render method of the environment.",
        )
    return np.repeat(picture, 3, axis=-1) if shape[-1] == 1 else picture[..., :3]
