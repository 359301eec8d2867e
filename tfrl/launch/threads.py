"""How many threads an operation of TensorFlow has in a run."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from tfrl.envs.host import on_host
from tfrl.errors import UserError
from tfrl.experiment import metadata
from tfrl.experiment.run_folder import RunFolder

if TYPE_CHECKING:
    from tfrl.workflows import Workflow


def settle(workflow: Workflow, root_dir: str | None = None) -> int:
    """Leaves a core to Python where it steps environments while the agent learns.

    TensorFlow splits an operation over all cores. Two operations run at a time anyway, and what
    they are split into gets in each other's way, and in Python's. What somebody has set stays: in
    `tf.config`, in TF_NUM_INTRAOP_THREADS, or by computing already. A run that goes on keeps its
    number, since its bits depend on it.

    Args:
      workflow: What will train.
      root_dir: The folder of a run to go on with, if there is one.

    Returns:
      The threads of an operation.
    """
    if tf.config.threading.get_intra_op_parallelism_threads() or metadata.asked_threads():
        return metadata.intra_op_threads()
    cores = len(os.sched_getaffinity(0))
    before = {} if root_dir is None else _metadata(root_dir)
    if before:
        number = before.get("intra_op_threads")
        number = number if isinstance(number, int) and 0 < number < cores else 0
    elif tf.config.list_physical_devices("GPU"):
        number = 0
    else:
        steps = workflow.env is not None and on_host(workflow.env)
        number = max(1, cores - 1) if steps and getattr(workflow, "overlap", False) else 0
    if number:
        try:
            tf.config.threading.set_intra_op_parallelism_threads(number)
        except RuntimeError:  # it has computed
            return cores
    return number or cores


def _metadata(root_dir: str) -> dict[str, Any]:
    """What a run was made with, if it says so; what is wrong with its folder is told later."""
    try:
        return RunFolder(root_dir).read_metadata() or {}
    except UserError:
        return {}
