"""Agreement of a run's processes on command, run folder and checkpoint.

All processes call every function at the same place. A single process needs no agreement.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tfrl.distribute import describe, workers_of
from tfrl.errors import UserError
from tfrl.experiment.checkpoints import CheckpointManager, Restored
from tfrl.experiment.run_folder import RunFolder
from tfrl.launch import gin_registry
from tfrl.launch.app import say
from tfrl.storage import working_copy

if TYPE_CHECKING:
    from tfrl.workflows import Workflow


def check_same_command(workflow: Workflow, **flags: Any) -> None:
    """Raises for workers with different configurations, which would diverge or hang.

    Args:
      workflow: The workflow.
      **flags: Values of flags that must also agree.

    Raises:
      UserError: In every process, naming the workers that differ from the chief.
    """
    if workflow.worker_group is None:
        return
    text = json.dumps({**flags, **gin_registry.configuration()}, sort_keys=True, default=repr)
    codes = workflow.worker_group.all_gather(zlib.crc32(text.encode()))
    others = [i for i, code in enumerate(codes) if code != codes[0]]
    if others:
        workers = workers_of(workflow.replicas.strategy)
        raise UserError(
            "The workers",
            expected="the same gin files, bindings and seed in every process",
            got=f"different ones in {workers.names(others)} than in {workers.name(0)}",
            remedy="Start all workers with one command, and a --root_dir that all of them see.",
        )


def check_replicas(
    folder: RunFolder, metadata: Mapping[str, Any] | None, workflow: Workflow
) -> None:
    """Raises if a run is resumed on another number of replicas than it was started on.

    Environments and keys belong to replicas. Replicas may move between processes and devices.

    Args:
      folder: The run folder.
      metadata: The metadata of the run, or None for a fresh run.
      workflow: The workflow.

    Raises:
      UserError: The numbers differ.
    """
    now = workflow.replicas.num_replicas
    before = (metadata or {}).get("num_replicas", now)
    if before != now:
        flags = (metadata or {}).get("flags", {})
        same = " ".join(f"--{name}={flags[name]}" for name in _PLACES if name in flags)
        raise UserError(
            f"root_dir {folder.root}",
            expected=f"{_replicas(before)}, on which its run was started ({same})",
            got=f"{_replicas(now)} ({describe(workflow.replicas.strategy)})",
            remedy="Resume with the same number of replicas, choose another --root_dir, or move "
            "the run aside with --if_exists=new. Evaluation runs on any number.",
        )


_PLACES = ("strategy", "num_logical_cpus")


def restore(manager: CheckpointManager, group: Any, which: str | int = "latest") -> Restored | None:
    """Restores, in every process, the checkpoint that the chief chooses.

    Args:
      manager: The manager of the checkpoints' folder.
      group: The workflow's group, or None for one process.
      which: See `CheckpointManager.restore`.

    Returns:
      The content of the checkpoint, or None without one.

    Raises:
      UserError: See `CheckpointManager.restore`; or this process cannot read the chief's
        checkpoint.
    """
    if group is None:
        return manager.restore(which)
    if group.is_chief:
        restored = manager.restore(which)
        group.broadcast(-1 if restored is None else restored.step)
        return restored
    step = group.broadcast(-1)
    if step < 0:
        return None
    working_copy.refresh(manager.directory)
    restored = manager.restore(step)
    if restored is None:
        raise UserError(
            f"The checkpoints in {manager.directory}",
            expected=f"the checkpoint of {step} env steps, from which worker 0 resumes",
            got="no such checkpoint",
            remedy="Pass every process the same --root_dir in a shared file system.",
        )
    return restored


def restore_run(folder: RunFolder, group: Any, which: str | int) -> Restored:
    """Restores a checkpoint from a folder that is only read; see `restore` for arguments.

    Raises:
      UserError: There is no such checkpoint.
    """
    manager = CheckpointManager(folder.checkpoints, read_only=True, log=say)
    restored = restore(manager, group, which)
    if restored is None:
        raise UserError(
            f"--root_dir={folder.root}",
            expected="a run with a checkpoint",
            got="none so far",
            remedy="Wait for the first checkpoint of the training.",
        )
    return restored


def _replicas(number: int) -> str:
    return f"{number} replica{'s' * (number != 1)}"
