"""The replay tables of a distributed run."""

from typing import Any

import tensorflow as tf

from tfrl.errors import UserError
from tfrl.replay.reverb import ReverbReplay
from tfrl.workflows import OffPolicyWorkflow
from tfrl.workflows.checks import on_reverb
from tfrl.workflows.collectors import POLICY_VERSION


def distributed_replay(workflow: OffPolicyWorkflow) -> ReverbReplay:
    """Returns the maker of a workflow's replay, for collectors and a learner.

    Its items carry the version of the policy. Its first table keeps `updates_per_step` by its
    limiter, unless the gin file sets `samples_per_insert`: whoever is ahead waits.

    Args:
      workflow: What the gin file describes.

    Raises:
      UserError: For a workflow without replay, and for items that are no transitions.
    """
    if not isinstance(workflow, OffPolicyWorkflow):
        raise UserError(
            "The gin file",
            expected="an off-policy training: OffPolicyWorkflow",
            got=type(workflow).__name__,
            remedy="Collectors and a learner exchange experience through a replay buffer.",
        )
    replay = on_reverb(workflow.replay)
    extras = {**(replay.policy_extras_spec or {}), POLICY_VERSION: tf.TensorSpec([], tf.int64)}
    changes: dict[str, Any] = {"policy_extras_spec": extras}
    first = replay.table()
    if first.is_sequence:
        raise UserError(
            f"replay table {first.name!r} of a distributed run",
            expected="transitions, of which each env step makes one",
            got="sequences",
            remedy="Leave sequence_length and episode_length out.",
        )
    if not (first.samples_per_insert or replay.tables):
        changes["samples_per_insert"] = workflow.batch_size * float(workflow.updates_per_step)
        changes["min_size"] = max(first.min_size or 1, workflow.learning_starts, 1)
    return replay.replace(**changes)
