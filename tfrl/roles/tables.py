"""The Reverb tables of a distributed run: experience, parameters and the collectors' reports."""

import copy
import dataclasses
import re
from collections.abc import Callable, Mapping
from typing import Any, cast

import tensorflow as tf

from tfrl import seeding, struct
from tfrl.envs.core import Env
from tfrl.envs.host_env import HostEnv
from tfrl.errors import UserError
from tfrl.replay.reverb import ReverbReplay
from tfrl.replay.reverb import tables as reverb_tables
from tfrl.replay.reverb.connection import await_server, await_tables
from tfrl.replay.reverb.library import reverb
from tfrl.replay.reverb.packed import in_blocks
from tfrl.replay.reverb.sharded import goes_by_step
from tfrl.replay.reverb.signature import suits
from tfrl.roles import parameters
from tfrl.rollout.host import blank_trajectory
from tfrl.types import Nest, Trajectory
from tfrl.workflows import OffPolicyWorkflow, OnPolicyWorkflow
from tfrl.workflows.checks import check_divided, on_reverb
from tfrl.workflows.collectors import POLICY_VERSION
from tfrl.workflows.learner_workflow import LearnerWorkflow

EPISODES, HEARTBEATS, STATISTICS = "episodes", reverb_tables.HEARTBEATS, "statistics"
ROLLOUTS = "rollouts"
# The `task_id` of an evaluator's heartbeats.
EVALUATOR_TASK = -1
# Leaves of a rollout, beside the leaves of its trajectory.
REQUEST, TASK_ID = "request", "task_id"
_NUM_COLLECTORS = "the number of collectors"
# The name of the spec of TASK_ID, which states the number of collectors of a server.
_OF_COLLECTORS = "of_{}_collectors"
# The most unread reports; older ones are dropped.
_MOST_REPORTS = 100_000
_REMEDY = "Start all processes of a run with the same gin file, bindings and number of collectors."


def make_tables(
    workflow: LearnerWorkflow, num_collectors: int, num_servers: int | None = None
) -> list[Any]:
    """Returns the empty tables of a server of a distributed run.

    Args:
      workflow: The workflow of the gin file.
      num_collectors: The number of collectors.
      num_servers: The number of servers that share the replay buffer, of which the first has the
        parameters; None for that of the gin file.

    Raises:
      UserError: For a workflow that cannot be distributed.
    """
    form = agent_form(workflow)
    tables = [parameters.make_table(form), _report_table(HEARTBEATS, _HEARTBEAT)]
    if isinstance(workflow, OnPolicyWorkflow):
        signature = rollout_signature(rollout_form(workflow, num_collectors), num_collectors)
        _check_one_server(num_servers or 1)
        # A collector waits with its rollout until there is room, then plays on by newer parameters.
        # With a place for each collector, all rollouts would be a batch older.
        queue = reverb().Table.queue(ROLLOUTS, 1, signature=signature)
        return [*tables, queue]
    replay = distributed_replay(workflow, num_servers).of_one_server
    tables += [*replay.make_tables(), _report_table(EPISODES, _EPISODE)]
    if normalizes(workflow):
        leaves = struct.paths(form.normalizer)
        specs = {path: tf.TensorSpec(x.shape, x.dtype) for path, x in leaves.items()}
        tables.append(_report_table(STATISTICS, specs))
    return tables


def check_job(
    workflow: LearnerWorkflow,
    num_collectors: int,
    num_servers: int,
    num_learners: int,
    num_replicas: int = 1,
) -> None:
    """Checks the numbers of processes of a distributed run.

    Args:
      workflow: The workflow of the gin file.
      num_collectors: The number of collectors.
      num_servers: The number of servers that share the replay buffer.
      num_learners: The number of workers of the learner.
      num_replicas: The number of devices of the learner, if known.

    Raises:
      UserError: For a workflow that cannot be distributed, or numbers that do not fit it.
    """
    if num_learners * num_replicas > 1:  # each also plays a part of an evaluation
        eval_env = workflow.eval_env
        played = (
            {} if isinstance(eval_env, HostEnv) else {"num_envs of eval_env": eval_env.num_envs}
        )
        check_divided(num_learners * num_replicas, played, {})
    if isinstance(workflow, OnPolicyWorkflow):
        _check_one_server(num_servers)
        _check_env_share(workflow, num_collectors)
        if num_collectors % num_learners:
            raise UserError(
                "--collectors",
                expected=f"a multiple of the learner's {num_learners} workers, which share the "
                "rollouts",
                got=str(num_collectors),
                remedy="Change the number of collectors or workers.",
            )
        num_envs = {"make_env.num_envs": workflow.env.num_envs}
        check_divided(num_learners * num_replicas, num_envs, workflow.divided_sizes)
        return
    distributed_replay(workflow, num_servers)
    size = cast("OffPolicyWorkflow", workflow).batch_size
    shares = num_servers * num_learners * num_replicas
    if size % shares:
        by = f"the learner's {num_learners * num_replicas} replicas"
        raise UserError(
            "batch_size",
            expected=f"a multiple of {shares}, the number of replay servers times {by}",
            got=str(size),
            remedy=f"Bind OffPolicyWorkflow.batch_size to {-(-size // shares) * shares}, or change "
            "the number of servers, workers or devices.",
        )


def _check_one_server(num_servers: int) -> None:
    if num_servers > 1:
        raise UserError(
            "num_servers",
            expected="1 for on-policy training, which has no replay buffer",
            got=str(num_servers),
            remedy="Leave out --replay_servers.",
        )


_HEARTBEAT = {
    "env_steps": tf.TensorSpec([], tf.int64),
    "learner_steps": tf.TensorSpec([], tf.int64),  # of the parameters that it acts by
    "task_id": tf.TensorSpec([], tf.int32),
}
# An episode that has ended, with the means of its rollout's episodes. The learner counts them as
# it counts env steps, by inserts.
_EPISODE = {
    "episodes": tf.TensorSpec([], tf.int32),  # 1; more in a checkpoint of an earlier version
    "task_id": tf.TensorSpec([], tf.int32),
    "total_length": tf.TensorSpec([], tf.float32),
    "total_return": tf.TensorSpec([], tf.float32),
}


def agent_form(workflow: LearnerWorkflow, seed: int = 0) -> Nest:
    """Returns an agent's state before any learning, a nest of tensors."""
    key = seeding.streams(seeding.key(seed), ("agent",))["agent"]
    return workflow.setup_agent_and_optimizer(key)[0]


def normalizes(workflow: LearnerWorkflow) -> bool:
    """Whether the agent keeps statistics of the observations."""
    return bool(getattr(workflow.agent, "normalize_obs", False))


def collector_env(workflow: LearnerWorkflow, num_collectors: int) -> Env:
    """Returns the environments of one collector.

    Collectors divide the environments of an on-policy workflow among them, so that the learner's
    batch has the size of the gin file. Each collector of an off-policy workflow has the number of
    environments of the gin file.

    Raises:
      UserError: If the collectors do not divide the environments.
    """
    env = workflow.env
    if not isinstance(workflow, OnPolicyWorkflow):
        return env
    _check_env_share(workflow, num_collectors)
    return env.with_num_envs(env.num_envs // num_collectors)


def _check_env_share(workflow: LearnerWorkflow, num_collectors: int) -> None:
    num_envs = workflow.env.num_envs
    if num_envs % num_collectors:
        raise UserError(
            "The number of collectors",
            expected=f"a divisor of the {num_envs} environments, which the collectors share",
            got=str(num_collectors),
            remedy=f"Bind make_env.num_envs to a multiple of {num_collectors}.",
        )


def rollout_form(workflow: OnPolicyWorkflow, num_collectors: int) -> Trajectory:
    """Returns a `Trajectory` of zeros with the shapes of one collector's."""
    env = collector_env(workflow, num_collectors)
    player = copy.copy(workflow)
    player.replica_env = env
    env_state = env.reset(seeding.key(0))
    form = agent_form(workflow)
    if isinstance(env, HostEnv):
        fields, length = player.rollout_fields(env_state), player.rollout_length
        played = blank_trajectory(env, player.agent, env_state, form, length, fields)
        if env is not workflow.env:
            env.close()
    else:
        make_carry = getattr(player.agent, "initial_carry", None)
        carry = make_carry(env.num_envs) if make_carry else None
        collect = tf.function(player.collect_trajectory, autograph=False)
        arguments = form, env_state, carry, seeding.key(0)
        played = collect.get_concrete_function(*arguments).structured_outputs[0]
    return tf.nest.map_structure(lambda x: tf.zeros(x.shape, x.dtype), played)


def rollout_signature(form: Trajectory, num_collectors: int) -> dict[str, Any]:
    """Returns the signature of a rollout of one collector, flat: `{path: tf.TensorSpec}`.

    Args:
      form: The result of `rollout_form`.
      num_collectors: The number of collectors.
    """
    specs = {p: tf.TensorSpec(x.shape, x.dtype) for p, x in struct.paths(form).items()}
    return {
        **specs,
        POLICY_VERSION: tf.TensorSpec([], tf.int64),
        REQUEST: tf.TensorSpec([], tf.int64),
        TASK_ID: tf.TensorSpec([], tf.int32, name=_OF_COLLECTORS.format(num_collectors)),
    }


def collectors_told(info: Mapping[str, Any]) -> int:
    """Returns the number of collectors in a server's settings; 0 for a server that has none.

    Args:
      info: `{table: reverb TableInfo}`.
    """
    return int(reverb_tables.settings_of(info).get(_NUM_COLLECTORS, 0))


def collectors_of(info: Mapping[str, Any]) -> int:
    """Returns the number of collectors of a server of rollouts; 1 for any other server.

    Args:
      info: `{table: reverb TableInfo}`.
    """
    signature = info[ROLLOUTS].signature if ROLLOUTS in info else {}
    name = signature[TASK_ID].name if TASK_ID in signature else None
    count = re.fullmatch(_OF_COLLECTORS.format(r"(\d+)"), name or "")
    return int(count[1]) if count else 1  # `check_rollouts` names the difference


def shared_settings(workflow: LearnerWorkflow, num_collectors: int | None = None) -> dict[str, str]:
    """Returns the settings that all processes of a run must share, by gin name, as text.

    Nets and tables are compared by their specs. Schedules differ with the budget of a learner.

    Args:
      workflow: The workflow of the gin file.
      num_collectors: The number of collectors; None for a process that is not told.
    """
    agent = workflow.agent
    fields = dataclasses.fields(agent) if dataclasses.is_dataclass(agent) else ()
    values = {f"{type(agent).__name__}.{f.name}": getattr(agent, f.name) for f in fields}
    names = ["rollout_length"]
    if isinstance(workflow, OffPolicyWorkflow):
        names += ["batch_size", "random_steps", "learning_starts"]
    values.update({f"{type(workflow).__name__}.{n}": getattr(workflow, n) for n in names})
    if num_collectors is not None:
        values[_NUM_COLLECTORS] = num_collectors
    return {name: repr(x) for name, x in values.items() if _is_plain(x)}


def _is_plain(value: Any) -> bool:
    """Whether a value has the same text in all processes."""
    if isinstance(value, tuple):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, bool | int | float | str)


def check_settings(
    address: str,
    info: Mapping[str, Any],
    workflow: LearnerWorkflow,
    num_collectors: int | None = None,
) -> None:
    """Checks that a server was started with the settings of this process.

    Args:
      address: "host:port" of the server.
      info: `{table: reverb TableInfo}`.
      workflow: The workflow of this process.
      num_collectors: See `shared_settings`.

    Raises:
      UserError: If a setting differs; it names the setting.
    """
    served, own = reverb_tables.settings_of(info), shared_settings(workflow, num_collectors)
    for name in own:
        if served.get(name, own[name]) != own[name]:
            raise UserError(
                name,
                expected=f"{served[name]}, as in the server at {address}",
                got=own[name],
                remedy=_REMEDY,
            )


def check_rollouts(
    address: str, info: Mapping[str, Any], form: Trajectory, num_collectors: int
) -> None:
    """Raises a UserError unless a server takes these rollouts of `num_collectors` collectors."""
    want = {p: _format_spec(spec) for p, spec in rollout_signature(form, num_collectors).items()}
    table = info.get(ROLLOUTS)
    have = {} if table is None else {p: _format_spec(spec) for p, spec in table.signature.items()}
    for path in sorted(want.keys() | have.keys()):
        if want.get(path) != have.get(path):
            raise UserError(
                f"table {ROLLOUTS!r} at {address}, {path}",
                expected=want.get(path, "nothing"),
                got=have.get(path, "nothing"),
                remedy=_REMEDY,
            )
    if collectors_of(info) != num_collectors:
        raise UserError(
            f"table {ROLLOUTS!r} at {address}",
            expected=f"rollouts of {num_collectors} collectors",
            got=f"rollouts of {collectors_of(info)} collectors",
            remedy=_REMEDY,
        )


def _format_spec(spec: tf.TensorSpec) -> str:
    return f"{spec.dtype.name} {spec.shape.as_list()}"


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


def replay_at(
    workflow: LearnerWorkflow, addresses: str, wait_seconds: float, log: Callable[[str], None]
) -> ReverbReplay:
    """Returns `distributed_replay` with the addresses of its servers, once they answer.

    Args:
      workflow: The workflow of the gin file.
      addresses: "host:port" of each server, separated by commas.
      wait_seconds: Seconds to wait for an answer, and for a lost server.
      log: Takes a line for each server that does not answer at once.

    Raises:
      UserError: See `await_tables` and `check_settings`.
    """
    replay = distributed_replay(workflow, len(addresses.split(",")))
    replay = replay.replace(address=addresses, timeout=wait_seconds, reconnect_seconds=wait_seconds)
    for address in replay.addresses:
        check_settings(
            address, await_server(address, reverb().Client(address), wait_seconds, log), workflow
        )
    await_tables(replay, log)
    return replay


def distributed_replay(workflow: LearnerWorkflow, num_servers: int | None = None) -> ReverbReplay:
    """Returns the factory of a workflow's replay buffer, for collectors and a learner.

    Its items have the version of the policy. The rate limiter of its first table keeps the ratio
    `updates_per_step`, unless the gin file sets `samples_per_insert`.

    Args:
      workflow: The workflow of the gin file.
      num_servers: The number of servers that share the buffer; None for that of the gin file.

    Raises:
      UserError: For a workflow without replay, and for items other than transitions.
    """
    if not isinstance(workflow, OffPolicyWorkflow):
        raise UserError(
            "The gin file",
            expected="an OnPolicyWorkflow or OffPolicyWorkflow",
            got=type(workflow).__name__,
            remedy="Run this workflow in one process with tfrl-train.",
        )
    replay = on_reverb(workflow.replay)
    num_servers = replay.num_servers if num_servers is None else num_servers
    extras = {**(replay.policy_extras_spec or {}), POLICY_VERSION: tf.TensorSpec([], tf.int64)}
    changes: dict[str, Any] = {"policy_extras_spec": extras, "num_servers": num_servers}
    if replay.packed is None:  # no other program reads the items
        changes["packed"] = suits(replay.replace(policy_extras_spec=extras))
    first = replay.table()
    if first.is_sequence:
        raise UserError(
            f"replay table {first.name!r} of a distributed run",
            expected="transitions, one per env step",
            got="sequences",
            remedy="Leave out sequence_length and episode_length.",
        )
    if not (first.samples_per_insert or replay.tables):
        changes["samples_per_insert"] = workflow.batch_size * float(workflow.updates_per_step)
        changes["min_size"] = max(first.min_size or 1, workflow.learning_starts, 1)
    replay = replay.replace(**changes)
    if workflow.env.num_envs % num_servers and not goes_by_step(replay):
        raise UserError(
            f"the {num_servers} replay servers",
            expected="a number that divides the environments of a collector, "
            f"{workflow.env.num_envs}: all items of an environment go to one server, and all wait "
            "for the server with the fewest",
            got=str(num_servers),
            remedy="Change --replay_servers or make_env.num_envs.",
        )
    steps = workflow.rollout_length * workflow.env.num_envs
    replay = in_blocks(replay, workflow.batch_size, steps)
    if "samples_per_insert" in changes and replay.tolerance is None and replay.batches_each > 1:
        # A learner waits until it may sample the blocks of a whole batch.
        least = float(replay.batches_each * workflow.batch_size)
        replay = replay.replace(tolerance=max(replay.table().error_buffer(), least))
    return replay
