"""`RLTaskConfig`: the settings of an `RLTask`."""

import dataclasses
import inspect
from collections.abc import Mapping
from typing import Any

from typing_extensions import Self

from tfrl import checks, struct
from tfrl.envs.workers import WorkerMode
from tfrl.errors import UserError
from tfrl.tasks.clips import clip_span

# {name: (the least value, its meaning)}
_COUNTS = {
    "max_steps": (1, "Pass the number of env steps in a clip."),
    "num_samples": (1, "Pass the number of samples in a clip."),
    "num_update_steps": (1, "Pass the number of updates per collection."),
    "stride": (1, "Pass the number of env steps between samples of a clip."),
    "replay_buffer_sample_size": (1, "Pass the number of stored env steps."),
    "batch_size": (1, "Pass the number of clips per update."),
    "num_collect_steps": (1, "Pass the number of env steps per collection."),
    "min_action_batch_size": (1, "Pass the minimum number of workers to wait for."),
    "max_trajectory_length": (1, "Pass a number of samples, or None for no bound."),
    "max_episode_steps": (
        1,
        "Pass a number of env steps, or None for the environment's own limit.",
    ),
    "num_env_workers": (0, "Pass the number of processes, or 0 for one synchronous worker."),
    "env_seed": (0, "Pass the base seed of all episodes."),
}
_OPTIONAL = ("max_trajectory_length", "max_episode_steps")


@struct.logic_dataclass
class EnvironmentConfig(struct.Struct):
    """The environments of an `RLTask`: `config.environment`.

    Attributes:
      num_env_workers: The number of environments; 0 for one in this process, in turn with the
        model.
      env_worker_mode: "process" or "thread".
      env_seed: Worker w resets its episode e with `episode_seed(env_seed, w, e)`.
      env_cleanup_time: Seconds for all environments to close before they are killed.
      max_steps: The longest clip that `sample_clip` plays, in env steps.
    """

    num_env_workers: int = 1
    env_worker_mode: str = "process"
    env_seed: int = 1337
    env_cleanup_time: float = 5.0
    max_steps: int = 1000


@struct.logic_dataclass
class DatasetConfig(struct.Struct):
    """The training clips of an `RLTask`: `config.dataset`.

    Attributes:
      num_samples: Samples of a training clip, n: batches are `[batch_size, n, ...]`.
      num_update_steps: Updates between two collections; required.
      stride: Env steps from one sample of a training clip to the next.
      replay_buffer_sample_size: Env steps to keep; the oldest are dropped.
    """

    num_samples: int = 1
    num_update_steps: int = struct.field(default=None)
    stride: int = 1
    replay_buffer_sample_size: int = 10_000


_GROUPS = {"environment": EnvironmentConfig, "dataset": DatasetConfig}


def _names(kind: type) -> list[str]:
    return [f.name for f in dataclasses.fields(kind)]


def _flat(kind: type, values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the arguments of a config with its groups flattened.

    A flat name may be given beside its group if it has the same value or the default: gin writes
    both to the configuration of a run.
    """
    defaults = {f.name: f.default for f in dataclasses.fields(kind)}
    flat = {name: value for name, value in values.items() if name not in _GROUPS}
    for name, group in values.items():
        if name not in _GROUPS or group is None:
            continue
        thing = f"{name} of {kind.__name__}"
        kinds = (_GROUPS[name], Mapping)
        checks.instance(thing, group, kinds, f"a {_GROUPS[name].__name__} or a dict")
        if not isinstance(group, Mapping):
            group = {n: getattr(group, n) for n in _names(_GROUPS[name])}
        checks.known(thing, group, _names(_GROUPS[name]))
        for own, value in group.items():
            if flat.get(own, value) not in (value, defaults[own]):
                raise UserError(
                    thing,
                    expected=f"a single value of {own}",
                    got=f"both {value!r} and {flat[own]!r}",
                    remedy="Set it only in the group or only as a field.",
                )
        flat.update(group)
    return flat


class _Grouped(type):
    """Lets a constructor take a group's values as flat arguments or as one object."""

    @property
    def __signature__(cls) -> inspect.Signature:
        """The constructor's signature with the groups, for gin."""
        signature = inspect.signature(cls.__init__)  # type: ignore[misc]
        kind = inspect.Parameter.KEYWORD_ONLY
        groups = [inspect.Parameter(name, kind, default=None) for name in _GROUPS]
        return signature.replace(parameters=[*list(signature.parameters.values())[1:], *groups])

    def __call__(cls, **values: Any) -> Any:
        return super().__call__(**_flat(cls, values))


@struct.logic_dataclass
class RLTaskConfig(DatasetConfig, EnvironmentConfig, metaclass=_Grouped):
    """How an `RLTask` samples and learns. Each epoch of updates follows a fresh collection.

    Read the values of `EnvironmentConfig` and `DatasetConfig` as `config.environment.env_seed` or
    `config.env_seed`. The constructor and `replace` take them as
    `environment=EnvironmentConfig(env_seed=3)`, `environment={"env_seed": 3}` or `env_seed=3`. In
    gin write `RLTaskConfig.env_seed = 3`, or `RLTaskConfig.environment = @EnvironmentConfig()` with
    `EnvironmentConfig.env_seed = 3`.

    Attributes:
      batch_size: Training clips per update.
      num_collect_steps: Env steps per collection, over all workers.
      on_policy: Whether to empty the replay buffer before each collection, so that updates use only
        the newest policy's samples.
      max_trajectory_length: The number of samples after which an episode is ended and its
        environment reset; None for no bound.
      max_episode_steps: The step at which episodes are truncated, beside the environment's own
        limit; None for only the latter.
      min_action_batch_size: The number of states for a call of `get_actions`, if so many arrive
        within `max_wait_time`.
      max_wait_time: The most seconds that a state waits for others; None to wait for all workers.
      force_sync: Runs all environments in this process, in turn: for debugging, and for steps of
        less than about 0.2 ms.
      save_replay_buffer: Whether checkpoints include the replay buffer (never for `on_policy`
        tasks, which empty it anyway). If False, a resumed run begins with an empty buffer.
    """

    batch_size: int = 32
    num_collect_steps: int = 1000
    on_policy: bool = False
    max_trajectory_length: int | None = None
    max_episode_steps: int | None = None
    min_action_batch_size: int = 1
    max_wait_time: float | None = 0.1
    force_sync: bool = False
    save_replay_buffer: bool = True

    def __post_init__(self) -> None:
        """Checks every value, and that they agree.

        Raises:
          UserError: For a wrong value.
        """
        for name, (least, remedy) in _COUNTS.items():
            value = getattr(self, name)
            if value is not None or name not in _OPTIONAL:
                checks.at_least(f"{name} of RLTaskConfig", value, least, remedy=remedy)
        for name in ("env_cleanup_time", "max_wait_time"):
            thing, value = f"{name} of RLTaskConfig", getattr(self, name)
            remedy, optional = "Pass a time in seconds.", name == "max_wait_time"
            checks.number(thing, value, 0, optional=optional, remedy=remedy)
        WorkerMode.of(self.env_worker_mode)
        self._check_clips()
        if self.min_action_batch_size > self.num_pool_workers:
            raise UserError(
                "min_action_batch_size of RLTaskConfig",
                expected=f"at most the {self.num_pool_workers} workers",
                got=str(self.min_action_batch_size),
                remedy="Lower it, or raise num_env_workers: each worker waits with one state.",
            )

    def replace(self, **changes: Any) -> Self:
        """Returns a copy with fields or groups changed; a dict changes only the fields it names."""
        flat = _flat(type(self), changes)
        return super().replace(**flat)

    @property
    def environment(self) -> EnvironmentConfig:
        """The environments' values, which are also attributes of this object."""
        return EnvironmentConfig(**{n: getattr(self, n) for n in _names(EnvironmentConfig)})

    @property
    def dataset(self) -> DatasetConfig:
        """The training clips' values, which are also attributes of this object."""
        return DatasetConfig(**{n: getattr(self, n) for n in _names(DatasetConfig)})

    @property
    def clip_span(self) -> int:
        """Env steps that a training clip spans: `(num_samples - 1) * stride + 1`."""
        return clip_span(self.num_samples, self.stride)

    @property
    def num_pool_workers(self) -> int:
        """The number of environments."""
        return max(1, self.num_env_workers)

    def _check_clips(self) -> None:
        """Checks that a training clip fits the bounds of trajectories and buffers."""
        span = f"{self.clip_span} env steps, the span of a clip"
        clip = f"(num_samples {self.num_samples}, stride {self.stride})"
        for name in (*_OPTIONAL, "num_collect_steps", "replay_buffer_sample_size"):
            value = getattr(self, name)
            if value is not None and value < self.clip_span:
                raise UserError(
                    f"{name} of RLTaskConfig",
                    expected=f"at least {span} {clip}",
                    got=str(value),
                    remedy="Raise it, or use shorter clips.",
                )
        if self.replay_buffer_sample_size < self.num_collect_steps:
            raise UserError(
                "replay_buffer_sample_size of RLTaskConfig",
                expected=f"at least num_collect_steps, {self.num_collect_steps}",
                got=str(self.replay_buffer_sample_size),
                remedy="Raise it, so that each sample is stored until an update.",
            )
