"""Options of `Workflow.learn` that do not depend on the algorithm."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from tfrl import checks, struct
from tfrl.errors import UserError, did_you_mean

RECORDERS = ("console", "csv", "jsonl", "tensorboard", "wandb")


@struct.logic_dataclass
class RunOptions(struct.Struct):
    """Budget, evaluation, checkpoints and records of a run. Counts are in env steps.

    Attributes:
      total_env_steps: The budget; the run ends with the iteration that reaches it. A larger budget
        continues the same run.
      root_dir: The run folder, or None for a run that leaves no files.
      eval_interval: Env steps between evaluations, or None for none.
      target_return: Stops at the first evaluation whose mean return reaches it, or None.
      checkpoint_seconds: Seconds between checkpoints, or None for none by time.
      checkpoint_interval: Env steps between checkpoints, or None for none by steps.
      max_to_keep: The number of newest checkpoints to keep, besides the best by return.
      recorders: The recorders of metrics rows: of console, csv, jsonl, tensorboard, wandb.
      progress: Whether to show progress (a bar on a terminal, plain lines elsewhere).
      video_interval: Env steps between videos of an episode of the greedy policy, which go to
        `videos/step_<env_steps>.mp4` and to TensorBoard; None or 0 for none in training.
      video_seed: The seed of all recorded episodes.
    """

    total_env_steps: int
    root_dir: str | None = None
    eval_interval: int | None = None
    target_return: float | None = None
    checkpoint_seconds: float | None = 60.0
    checkpoint_interval: int | None = None
    max_to_keep: int = 3
    recorders: tuple[str, ...] = ("csv", "jsonl", "tensorboard")
    progress: bool = True
    video_interval: int | None = None
    video_seed: int = 0

    def __post_init__(self) -> None:
        """Checks the numbers."""
        for name in ("total_env_steps", "eval_interval", "checkpoint_interval", "max_to_keep"):
            value: Any = getattr(self, name)
            if isinstance(value, float) and value.is_integer():
                object.__setattr__(self, name, value := int(value))  # 1e6
            if value is None and name in ("eval_interval", "checkpoint_interval"):
                continue
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise UserError(
                    name,
                    expected="a positive whole number",
                    got=repr(value),
                    remedy="Count in env steps."
                    if name != "max_to_keep"
                    else "Keep at least one checkpoint.",
                )
        interval: Any = self.video_interval
        if interval is not None and (
            isinstance(interval, bool) or not isinstance(interval, int) or interval < 0
        ):
            raise UserError(
                "video_interval",
                expected="a whole number of at least 0, or None",
                got=repr(interval),
                remedy="Pass the env steps between videos, or 0 to record none in training.",
            )
        if self.checkpoint_seconds is not None:
            remedy = "Pass the seconds between checkpoints."
            checks.positive("checkpoint_seconds", self.checkpoint_seconds, remedy=remedy)
        checks.number("target_return", self.target_return, optional=True)
        if self.root_dir is not None:
            checks.path("root_dir", self.root_dir)
        remedy = "Pass them in a tuple: ('console', 'csv')."
        checks.strings("recorders", self.recorders, remedy=remedy)
        unknown = [r for r in self.recorders if r not in RECORDERS]
        if unknown:
            raise UserError(
                "recorders",
                expected=f"recorders among {', '.join(RECORDERS)}",
                got=", ".join(map(str, unknown)),
                remedy="Name each recorder once.",
            )
        if self.target_return is not None and self.eval_interval is None:
            raise UserError(
                "target_return",
                expected="an eval_interval as well",
                got="none",
                remedy="Set eval_interval; the target applies to evaluations.",
            )


def with_changes(options: RunOptions | None, changes: Mapping[str, Any]) -> RunOptions:
    """Returns options with some fields changed.

    Args:
      options: The options to change, or None for the defaults.
      changes: `{field: value}`.

    Raises:
      UserError: For an unknown field or a wrong value.
    """
    kind: Any = RunOptions
    if options is not None:
        remedy = "Pass single options by name: learn(state, total_env_steps=100_000)."
        checks.instance("options of learn", options, RunOptions, "RunOptions", remedy=remedy)
        kind = type(options)
    known = [field.name for field in dataclasses.fields(kind)]
    for name in changes:
        if name not in known:
            raise UserError(
                f"the option {name} of learn",
                expected="a field of RunOptions",
                got=name,
                remedy=did_you_mean(name, known),
            )
    if options is not None:
        return options.replace(**changes)
    if "total_env_steps" not in changes:
        raise UserError(
            "total_env_steps",
            expected="the budget in env steps",
            got="none",
            remedy="Call learn(state, total_env_steps=100_000), for example.",
        )
    return RunOptions(**changes)
