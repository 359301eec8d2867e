"""What the gin name `train` stands for, and how both binaries assemble it."""

import types
from collections.abc import Mapping, Sequence
from typing import Any

import gin

from tfrl import checks, struct
from tfrl.launch import (
    configurables,  # noqa: F401  (importing it registers what gin files may name)
    gin_files,
    gin_registry,
)
from tfrl.workflows import RunOptions, Workflow


@gin.configurable("train", module="tfrl", denylist=["root_dir", "video_seed"])
@struct.logic_dataclass
class Settings(RunOptions):
    """The bindings `train.*`: the options of a run, what trains, and how it is finished.

    Attributes:
      workflow: What to train.
      final_eval_episodes: Episodes of the evaluation that `summary.json` tells of.
      video: Whether to record one episode at the end.
      report: Whether to write `curve.png` and `report.html` at the end.
    """

    workflow: Workflow
    final_eval_episodes: int = 100
    video: bool = True
    report: bool = True

    def __post_init__(self) -> None:
        """Checks the numbers."""
        super().__post_init__()
        checks.instance(
            "train.workflow",
            self.workflow,
            Workflow,
            "a workflow such as @OnPolicyWorkflow()",
            remedy="A reference needs its brackets: they make the object.",
        )
        checks.at_least("train.final_eval_episodes", self.final_eval_episodes, 1)


def assemble(files: Sequence[str], bindings: Sequence[str] = ()) -> Settings:
    """Reads the configuration, builds all that it describes, and checks that all of it was used.

    Args:
      files: Gin files, as `gin_files.resolve` finds them.
      bindings: Values of `--gin_bindings`.

    Returns:
      The settings, workflow included.

    Raises:
      UserError: For anything that the user got wrong in them.
    """
    gin_files.parse(files, bindings)
    settings = gin_files.call(Settings)
    gin_files.check_used()
    settings.workflow.config = types.MappingProxyType(gin_registry.values())
    return settings


def build_from_config(
    gin_files: str | Sequence[str],
    bindings: str | Sequence[str] | Mapping[str, Any] = (),
    *,
    enable_multi_devices: bool = False,
    enable_jit: bool = True,
) -> Workflow:
    """Makes the workflow that a binary makes of the same gin files and bindings.

    Args:
      gin_files: One or several, as they stand from the working directory or in the package; later
        ones win: `ppo/tf_cartpole.gin`.
      bindings: They win over the files: lines such as `"make_env.num_envs = 8"`, or
        `{"make_env.num_envs": 8}`, where a text that begins with @ or % is a reference.
      enable_multi_devices: Whether the run is spread over all devices, as `--strategy=mirrored`
        does; sizes are those of all of them together.
      enable_jit: False runs everything eagerly, for a debugger; True leaves what the files say.

    Returns:
      The workflow, whose `config` holds the bindings that were read. What the files bind to
      `train.*` (budget, evaluations) is for `workflow.learn`.

    Raises:
      UserError: For anything that is wrong in them, bindings that nothing reads included.
    """
    if isinstance(bindings, Mapping):
        bindings = binding_lines(bindings)
    elif isinstance(bindings, str):
        bindings = [bindings]
    files = [gin_files] if isinstance(gin_files, str) else gin_files
    workflow = assemble(files, bindings).workflow
    if enable_multi_devices:
        from tfrl.distribute import make_strategy

        workflow.use_strategy(make_strategy("mirrored"))
    if not enable_jit:
        workflow.use_compile("eager")
    return workflow


def binding_lines(bindings: Mapping[str, Any]) -> list[str]:
    """Returns `{"make_env.num_envs": 8}` as the lines of a gin file."""
    return [f"{name} = {_in_gin(value)}" for name, value in bindings.items()]


def _in_gin(value: Any) -> str:
    if isinstance(value, str) and value.startswith(("@", "%")):
        return value
    return repr(value)
