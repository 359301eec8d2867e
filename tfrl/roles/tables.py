"""The Reverb tables of a distributed run: experience, parameters, and what collectors report."""

from typing import Any

import tensorflow as tf

from tfrl import seeding
from tfrl.errors import UserError
from tfrl.replay.reverb import ReverbReplay
from tfrl.replay.reverb.library import reverb
from tfrl.roles import parameters
from tfrl.types import Nest
from tfrl.workflows import OffPolicyWorkflow
from tfrl.workflows.checks import on_reverb
from tfrl.workflows.collectors import POLICY_VERSION

EPISODES, HEARTBEATS, STATISTICS = "episodes", "heartbeats", "statistics"
# Reports that no learner has read yet, at most; older ones go.
_MOST_REPORTS = 100_000


def make_tables(workflow: OffPolicyWorkflow) -> list[Any]:
    """Returns the empty tables that the processes of a distributed run share.

    Args:
      workflow: What the gin file describes.

    Raises:
      UserError: As `distributed_replay`.
    """
    replay = distributed_replay(workflow)
    form = agent_form(workflow)
    signatures: dict[str, Any] = {
        EPISODES: {
            "episode_length": tf.TensorSpec([], tf.float32),
            "episode_return": tf.TensorSpec([], tf.float32),
            "task_id": tf.TensorSpec([], tf.int32),
        },
        HEARTBEATS: {
            "env_steps": tf.TensorSpec([], tf.int64),
            "task_id": tf.TensorSpec([], tf.int32),
        },
    }
    if normalizes(workflow):
        leaves = tf.nest.flatten(form.normalizer)
        signatures[STATISTICS] = [tf.TensorSpec(x.shape, x.dtype) for x in leaves]
    reports = [_report_table(name, signature) for name, signature in signatures.items()]
    return [*replay.make_tables(), parameters.make_table(form), *reports]


def agent_form(workflow: OffPolicyWorkflow, seed: int = 0) -> Nest:
    """Returns an agent's state before any learning, a nest of tensors."""
    key = seeding.streams(seeding.key(seed), ("agent",))["agent"]
    return workflow.setup_agent_and_optimizer(key)[0]


def normalizes(workflow: OffPolicyWorkflow) -> bool:
    """Whether the agent keeps statistics of the observations."""
    return bool(getattr(workflow.agent, "normalize_obs", False))


def _report_table(name: str, signature: Any) -> Any:
    library = reverb()
    fifo = library.selectors.Fifo
    return library.Table(
        name=name,
        sampler=fifo(),
        remover=fifo(),
        max_size=_MOST_REPORTS,
        max_times_sampled=1,
        rate_limiter=library.rate_limiters.MinSize(1),
        signature=signature,
    )


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
