"""The state of a run of a `TaskWorkflow`, and its values for checkpoints."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from tfrl import keras, struct
from tfrl.envs.workers import episode_seed
from tfrl.errors import UserError
from tfrl.tasks.episode_returns import EpisodeReturns
from tfrl.tasks.program import TaskProgram


@struct.dataclass
class TaskProgress(struct.Struct):
    """Counters of a run of a `TaskWorkflow`, NumPy scalars.

    Attributes:
      seed: Of the run.
      iterations: Collections with their updates.
      env_steps: Env steps whose result was seen.
      learner_steps: Updates.
      episodes: Whole episodes that ended.
      episode_return: Mean over those that ended last; NaN before the first.
      episode_length: Likewise.
      next_episodes: Of each worker the next episode, int64 `[workers]`.
    """

    seed: Any
    iterations: Any
    env_steps: Any
    learner_steps: Any
    episodes: Any
    episode_return: Any
    episode_length: Any
    next_episodes: Any


@struct.dataclass
class TaskState(struct.Struct):
    """A run of a `TaskWorkflow`.

    Attributes:
      progress: Its counters.
      program: What its states share.
      returns: Episodes that are under way.
      version: Which step made this state; an older one was consumed.
    """

    progress: TaskProgress
    program: TaskProgram = struct.field(static=True)
    returns: EpisodeReturns = struct.field(static=True)
    version: int = struct.field(static=True, default=0)


def fresh_progress(seed: int, num_workers: int) -> TaskProgress:
    """Returns the counters of a run that begins."""
    zero, nan = np.int64(0), np.float32(np.nan)
    return TaskProgress(
        seed=np.int64(seed),
        iterations=zero,
        env_steps=zero,
        learner_steps=zero,
        episodes=zero,
        episode_return=nan,
        episode_length=nan,
        next_episodes=np.zeros([num_workers], np.int64),
    )


def state_values(state: TaskState) -> dict[str, Any]:
    """Returns every value of a run by path."""
    values: dict[str, Any] = {f"progress/{p}": v for p, v in struct.paths(state.progress).items()}
    variables = state.program.training.variables()
    values.update({name: v.numpy() for name, v in variables.items()})
    values["replay"] = state.program.replay_bytes()
    return values


def load_values(state: TaskState, values: Mapping[str, Any]) -> TaskState:
    """Returns a state with every value replaced; its workers are ended, to begin anew.

    Args:
      state: The state.
      values: What `state_values` returned.

    Raises:
      UserError: They are those of another model or another number of workers.
    """
    variables = state.program.training.variables()
    _check_shapes(
        {**variables, "progress/next_episodes": state.progress.next_episodes},
        values,
        len(state.progress.next_episodes),
    )
    for name, variable in variables.items():
        variable.assign(values[name])
    state.program.load_replay(np.asarray(values["replay"]))
    state.program.close()
    leaves = [np.asarray(values[f"progress/{p}"])[()] for p in struct.paths(state.progress)]
    progress = tf.nest.pack_sequence_as(state.progress, leaves)
    # What models draw by themselves is not repeated from the start of the run.
    keras.seed_all(episode_seed(int(progress.seed) % 2**31, 0, int(progress.iterations)))
    state.program.version += 1
    return state.replace(progress=progress, returns=EpisodeReturns(), version=state.program.version)


def _check_shapes(want: Mapping[str, Any], values: Mapping[str, Any], num_workers: int) -> None:
    wrong = [
        f"{name} of shape {list(np.shape(values[name]))} for {list(x.shape)}"
        for name, x in want.items()
        if tuple(np.shape(values[name])) != tuple(x.shape)
    ]
    if wrong:
        raise UserError(
            "the checkpoint",
            expected=f"the values of this model and of {num_workers} workers",
            got="; ".join(wrong[:3]),
            remedy="Go on with the task and the num_env_workers that it was saved with.",
        )
