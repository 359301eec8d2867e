"""Plays an episode frame by frame, and hands the frames to files, TensorBoard and the caller."""

from collections.abc import Callable, Iterator
from typing import Any

import gymnasium
import numpy as np

from tfrl.envs.workers import WorkerPool, WorkerState
from tfrl.envs.workers.runner import checked_env
from tfrl.episodes import lookback_buffer
from tfrl.errors import UserError
from tfrl.evaluation import video_file
from tfrl.tasks.bounds import GetActions, batched_actions
from tfrl.tasks.clips import ClipOptions
from tfrl.tasks.frames import FrameStandard
from tfrl.tasks.samples import SampledTrajectory, Track

DEFAULT_FPS = 30.0


class ClipPlayer:
    """One episode in an environment of its own, with samples as `iter_samples` gives them.

    Attributes:
      fps: The environment's frames per second.
      trajectory: The samples, once `frames` is through.
    """

    def __init__(
        self,
        get_environment: Callable[[], gymnasium.Env],
        get_actions: GetActions | None,
        *,
        optimal: bool,
        max_steps: int,
        max_episode_steps: int | None,
        seed: int,
        renders: bool,
    ):
        """Makes the environment, which `close` closes.

        Args:
          get_environment: Makes it.
          get_actions: States and `optimal` to actions; None for random ones.
          optimal: Handed on.
          max_steps: Env steps at most; the episode then goes on unseen.
          max_episode_steps: The episode is truncated there, as in training.
          seed: As of a pool, whose worker 0 plays its episode 0; and of random actions.
          renders: Whether frames are drawn.

        Raises:
          UserError: It is no environment, or shall be drawn and has another render mode than
            "rgb_array".
        """
        self._env = checked_env(get_environment(), "get_environment()")
        self._open = True
        self._get_actions = get_actions or self._random
        self._optimal = optimal
        self._max_steps = max_steps
        self._max_episode_steps = max_episode_steps
        self._seed = seed
        self._renders = renders
        self.trajectory: SampledTrajectory | None = None
        try:
            self.fps = float((self._env.metadata or {}).get("render_fps") or DEFAULT_FPS)
            if renders:
                check_drawable(self._env)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Closes the environment, once: not every one can be closed twice."""
        if self._open:
            self._open = False
            self._env.close()

    def frames(self) -> Iterator[Any]:
        """Plays; yields what `env.render()` gives for every state, the initial one included.

        Raises:
          UserError: The initial state is terminal.
        """
        # The pool checks what the environment returns; in this process, so that it can be drawn.
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
            pool.send_action(0, lookback_buffer.take(actions, 0), state.generation)
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
    """An environment that the pool does not close."""

    def close(self) -> None:
        """Leaves it to the `ClipPlayer`."""


def check_drawable(env: gymnasium.Env) -> None:
    """Raises a UserError for an environment that gives no pictures."""
    if env.render_mode != "rgb_array":
        modes = list((env.metadata or {}).get("render_modes", ()))
        raise UserError(
            "get_environment() for a clip",
            expected="an environment with render_mode 'rgb_array'",
            got=f"render_mode {env.render_mode!r} of {modes}",
            remedy="Make it with gymnasium.make(..., render_mode='rgb_array'): frames are drawn "
            "only for clips. Or ask for return_states alone.",
        )


def record(
    clip: ClipPlayer,
    options: ClipOptions,
    *,
    step: int,
    tag: str,
    preview: video_file.Preview | None = None,
) -> list[Any]:
    """Plays a clip to wherever the options say, and closes its environment.

    Args:
      clip: What plays; this once.
      options: Of `sample_clip`.
      step: Of the summary.
      tag: Name of the summary.
      preview: Takes the frames too; one of its own is made for the summary.

    Returns:
      The frames if they are to be returned, else an empty list.
    """
    kept: list[Any] = []
    if options.writer is not None:
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

    try:
        if options.save_path is not None:
            video_file.write_video(options.save_path, shown(), clip.fps)
        else:
            for _ in shown():
                pass
    finally:
        clip.close()
    if options.writer is not None and preview is not None:
        fps = clip.fps / preview.every
        video_file.write_summary(options.writer, tag, preview.frames, step, fps)
    return kept


def _next(pool: WorkerPool) -> WorkerState:
    state = pool.get_state()
    if not isinstance(state, WorkerState):
        raise RuntimeError(f"A synchronous worker answers at once, got {state}.")
    return state


def _check_start(state: WorkerState) -> None:
    """Gymnasium's reset has no end flags; environments that may end there say so in `info`."""
    for flag in ("terminated", "truncated"):
        if np.any(state.info.get(flag, False)):
            raise UserError(
                "the initial state of the clip",
                expected="one in which an action can be taken",
                got=f"info[{flag!r}] is true at reset: the episode is over before its first step",
                remedy="Let reset begin where the episode goes on, or choose another seed.",
            )
