"""The gin configurable `train`, and how binaries assemble it."""

import ast
import os
import types
from collections.abc import Mapping, Sequence
from typing import Any

import gin

from tfrl import checks, struct
from tfrl.errors import UserError
from tfrl.launch import (
    configurables,  # noqa: F401  (the import registers the configurables)
    gin_files,
    gin_registry,
)
from tfrl.launch.gin_files import as_paths
from tfrl.workflows import RunOptions, Workflow


@gin.configurable("train", module="tfrl", denylist=["root_dir", "video_seed"])
@struct.logic_dataclass
class Settings(RunOptions):
    """The bindings `train.*`: the options of a run, its workflow, and its final steps.

    Attributes:
      workflow: The workflow to train.
      final_eval_episodes: Episodes of the final evaluation in `summary.json`.
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
            remedy="Add parentheses to the reference to create the object.",
        )
        checks.at_least("train.final_eval_episodes", self.final_eval_episodes, 1)


def assemble(files: Sequence[str], bindings: Sequence[str] = ()) -> Settings:
    """Reads the configuration, builds the workflow, and checks that every binding was used.

    Args:
      files: Gin files, see `gin_files.resolve`.
      bindings: Values of `--gin_bindings`.

    Returns:
      The settings, workflow included.

    Raises:
      UserError: For any mistake in them.
    """
    gin_files.parse(files, bindings)
    settings = gin_files.call(Settings)
    gin_files.check_used()
    if settings.workflow.config is Workflow.config:  # else an attribute of the user's own
        settings.workflow.config = types.MappingProxyType(gin_registry.values())
    return settings


def build_from_config(
    gin_files: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    bindings: str | Sequence[str] | Mapping[str, Any] = (),
    *,
    enable_multi_devices: bool = False,
    enable_jit: bool = True,
) -> Workflow:
    """Builds the workflow of gin files and bindings, as the binaries do.

    Args:
      gin_files: One or several gin files, relative to the working directory or the package, for
        example `ppo/tf_cartpole.gin`; later ones override earlier ones.
      bindings: Bindings that override the files: lines like `"make_env.num_envs = 8"`, or
        `{"make_env.num_envs": 8}`, where a string that begins with @ or % is a reference, also
        inside a list, tuple or dict.
      enable_multi_devices: Whether to use all devices, as `--strategy=mirrored` does; sizes are
        global.
      enable_jit: False runs everything eagerly, for a debugger; True keeps the files' modes.

    Returns:
      The workflow; its `config` has the used bindings. Pass the options of `train.*` (budget,
      evaluations) to `workflow.learn`.

    Raises:
      UserError: For any mistake in them, also unused bindings.
    """
    if isinstance(bindings, Mapping):
        bindings = binding_lines(bindings)
    elif isinstance(bindings, str):
        bindings = [bindings]
    else:
        bindings = checks.strings("bindings", bindings, remedy="Pass {'make_env.num_envs': 8}.")
    workflow = assemble(as_paths(gin_files), bindings).workflow
    if enable_multi_devices:
        from tfrl.distribute import make_strategy

        workflow.use_strategy(make_strategy("mirrored"))
    if not enable_jit:
        workflow.use_compile("eager")
    return workflow


def binding_lines(bindings: Mapping[str, Any]) -> list[str]:
    """Returns `{"make_env.num_envs": 8}` as the lines of a gin file."""
    return [f"{name} = {_in_gin(name, value)}" for name, value in bindings.items()]


def _in_gin(name: str, value: Any) -> str:
    if isinstance(value, str) and value.startswith(("@", "%")):
        return value
    if type(value) is dict:
        items = (f"{_in_gin(name, k)}: {_in_gin(name, x)}" for k, x in value.items())
        return f"{{{', '.join(items)}}}"
    if type(value) in (list, tuple):
        items = (f"{_in_gin(name, x)}, " for x in value)
        return f"[{''.join(items)}]" if type(value) is list else f"({''.join(items)})"
    text = repr(value)
    try:
        ast.literal_eval(text)
    except (SyntaxError, ValueError):
        raise UserError(
            f"Gin binding {name}",
            expected="a Python literal (numbers, text, lists, dicts), '@reference' or '%macro'",
            got=text,
            remedy="Name a registered class such as '@DQN()', or pass the object to the "
            "workflow's constructor.",
        ) from None
    return text
