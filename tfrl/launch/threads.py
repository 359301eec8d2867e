"""The threads of a TensorFlow operation in a run."""

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
    """Leaves a core to Python if it steps environments while the agent learns.

    TensorFlow splits an operation over all cores. Two operations run at the same time anyway, and
    their parts compete with each other and with Python. A number that is set already stays: in
    `tf.config`, in TF_NUM_INTRAOP_THREADS, or because TensorFlow has started. A resumed run keeps
    its number, since its bits depend on it.

    Args:
      workflow: The workflow.
      root_dir: The folder of a run to resume, or None.

    Returns:
      The number of threads of an operation.
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
        except RuntimeError:  # TensorFlow has started
            return cores
    return number or cores


def _metadata(root_dir: str) -> dict[str, Any]:
    """Returns the metadata of a run, or {}; errors of its folder are reported later."""
    try:
        return RunFolder(root_dir).read_metadata() or {}
    except UserError:
        return {}
