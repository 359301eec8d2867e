"""`bin/launch.py`: one command for all processes of a distributed run."""

import importlib.util
import math
import os
import pathlib
import sys
from collections.abc import Sequence

from absl import flags

from tfrl.distribute import choice
from tfrl.errors import UserError
from tfrl.launch import (
    api,
    app,
    gin_files,
    kubernetes,
    ray_engine,
    resources,
    shared_flags,
    tpu_vm,
)
from tfrl.launch import flags as common_flags
from tfrl.launch.job import LEARNER, SERVER_CHECKPOINTS, SERVERS, JobOptions, Role, roles
from tfrl.launch.local_engine import TABLE_SECONDS, LocalEngine, free_ports
from tfrl.launch.termination import Termination
from tfrl.storage import remote

DOC = """Starts a replay server, a learner and collectors for distributed training with a gin file.

  tfrl-launch --gin_file=dqn/gymnasium_cartpole.gin --collectors=2 --root_dir=runs/dqn_2
  tfrl-launch --gin_file=impala/tf_cartpole.gin --collectors=4 --dry_run
  tfrl-launch --gin_file=impala/tf_cartpole.gin --collectors=64 --engine=kubernetes \\
      --image=REGISTRY/tfrl --volume=CLAIM:/runs --root_dir=/runs/impala | kubectl apply -f -

The same command resumes a stopped run. --root_dir is the learner's run folder; it also has logs/ of
all processes and servers/. The logs of a run in gs://bucket/folder are in runs/bucket_folder/."""

# Flags that are passed on.
_LEARNER_FLAGS = (
    "strategy",
    "tpu",
    "num_logical_cpus",
    "deterministic_ops",
    "synchronous",
    "max_policy_lag",
)
_COLLECTOR_FLAGS = ("pull_seconds",)
# Engines that print what other programs start.
_RENDERED = ("kubernetes", "tpu_vm")
ENGINES = ("local", "ray", "kubernetes", "tpu_vm")
# The engines of each flag that not all of them take.
_ENGINES_OF = {
    "accelerator_type": ("tpu_vm",),
    "image": ("kubernetes",),
    "job_name": ("kubernetes", "tpu_vm"),
    "node_selector": ("kubernetes",),
    "package": ("tpu_vm",),
    "ray_address": ("ray",),
    "resources": ("local", "ray", "kubernetes"),
    "service_account": ("kubernetes",),
    "spot": ("tpu_vm",),
    "tpu": ("local", "ray", "kubernetes"),
    "tpu_topology": ("kubernetes",),
    "volume": ("kubernetes",),
    "zone": ("tpu_vm",),
}

shared_flags.define(
    "total_env_steps", "synchronous", "max_policy_lag", "pull_seconds", "wait_seconds"
)
flags.DEFINE_enum("engine", "local", ENGINES, "Starts and supervises the processes.")
flags.DEFINE_integer(
    "learners", 1, "Number of learner workers, which share each update.", lower_bound=1
)
flags.DEFINE_integer("collectors", 2, "Number of collector processes.", lower_bound=1)
flags.DEFINE_integer(
    "replay_servers",
    None,
    "Number of servers that share the replay buffer; default: ReverbReplay.num_servers.",
    lower_bound=1,
)
flags.DEFINE_integer(
    "evaluators",
    0,
    "Number of processes that evaluate the newest checkpoints.",
    lower_bound=0,
    upper_bound=1,
)
flags.DEFINE_integer("max_restarts", 3, "Number of restarts of a failed process.", lower_bound=0)
flags.DEFINE_boolean(
    "dry_run", False, "Only print the processes, with addresses and sizes; start none."
)


def main() -> int:
    """Launches as the flags say; returns the exit code."""
    termination = Termination()
    termination.install()
    values, asked = common_flags.common(), flags.FLAGS
    if not values.gin_file:
        raise UserError(
            "--gin_file",
            expected="the gin file of a training",
            got="no value",
            remedy="Pass the same file as to tfrl-train.",
        )
    bindings = gin_files.read(values.gin_file, values.gin_bindings)
    root = values.root_dir or api.default_root_dir(list(values.gin_file))
    where = resources.parsed(asked.resources)
    if asked.engine == "ray" and not remote.is_remote(root):
        root = os.path.abspath(os.path.expanduser(root))  # nodes may have other working directories
    _check(values, asked, root, where)
    shared_flags.pull_seconds()
    renders = asked.engine in _RENDERED
    options = JobOptions(
        gin_files=values.gin_file,
        gin_bindings=shared_flags.with_budget(values.gin_file, values.gin_bindings),
        root_dir=root,
        seed=values.seed,
        collectors=asked.collectors,
        replay_servers=asked.replay_servers or _num_servers(bindings),
        evaluators=asked.evaluators,
        wait_seconds=shared_flags.wait_seconds(),
        common_flags=("--quiet",) if asked.quiet and not (asked.dry_run or renders) else (),
        learner_flags=_passed(values, _LEARNER_FLAGS),
        collector_flags=_passed(values, _COLLECTOR_FLAGS),
        learners=asked.learners,
    )
    if asked.dry_run or renders:
        text = _rendered(options, asked, where) if renders else ""
        job, addresses, num_replicas = _planned(options, asked, where)
        from tfrl.launch import sizes

        if asked.dry_run:
            size = sizes.described(options, job, num_replicas)
            text = "\n".join([described(job), f"Replay servers: {', '.join(addresses)}", size])
        elif importlib.util.find_spec("reverb"):  # a machine without Reverb renders unchecked
            sizes.checked_workflow(options, num_replicas)
        print(text, flush=True)  # also with --quiet
        return 0
    if values.if_exists != "resume":
        from tfrl.launch import training

        # Once for the job: a restarted learner must resume.
        training.apply_if_exists(root, values.if_exists)
    if remote.is_remote(root):
        remote.connect(root)  # here, before all processes start and fail
    else:
        _check_servers(root, options.replay_servers)
    here = api.default_root_dir([root]) if remote.is_remote(root) else root
    log_dir = pathlib.Path(here).expanduser() / "logs"
    table_seconds = math.inf if asked.quiet else TABLE_SECONDS
    if asked.engine == "ray":
        return ray_engine.run(
            lambda addresses, bind: roles(options, addresses, bind=bind),
            log_dir,
            termination,
            num_servers=options.replay_servers,
            resources=where,
            max_restarts=asked.max_restarts,
            wait_seconds=options.wait_seconds,
            table_seconds=table_seconds,
        )
    job, _, _ = _planned(options, asked, where)
    engine = LocalEngine(
        job,
        log_dir,
        max_restarts=asked.max_restarts,
        wait_seconds=options.wait_seconds,
        table_seconds=table_seconds,
        gpu_kinds=resources.gpu_kinds(where),
    )
    return engine.run(termination)


def _rendered(options: JobOptions, asked: flags.FlagValues, where: resources.RoleResources) -> str:
    """Returns the output of an engine that prints what other programs start."""
    if asked.engine == "kubernetes":
        return kubernetes.rendered(options, asked.max_restarts, where)
    return tpu_vm.rendered(options, asked.max_restarts)


def _planned(
    options: JobOptions, asked: flags.FlagValues, where: resources.RoleResources
) -> tuple[list[Role], Sequence[str], int]:
    """Returns what an engine starts, as far as it is known before.

    Args:
      options: The configuration of the job.
      asked: All flags.
      where: The value of --resources.

    Returns:
      The processes, the servers' addresses, and the number of the learner's devices.
    """
    servers = range(options.replay_servers)
    devices = int(options.learner_flag("num_logical_cpus") or 1)
    if asked.engine in ("ray", "kubernetes") and asked.strategy != "one_device":
        devices = max(devices, int(where.of(LEARNER).get("gpu", 1)))
    if asked.engine == "kubernetes":
        job = kubernetes.job(options, asked.job_name, asked.tpu_topology)
        num_replicas = kubernetes.replicas(asked.tpu_topology) if asked.tpu_topology else devices
        return job, kubernetes.addresses(options, asked.job_name), num_replicas
    if asked.engine == "tpu_vm":
        addresses = [f"localhost:PORT-OF-SERVER-{i}" for i in servers]
        there = tpu_vm.on_host(options, asked.job_name, asked.accelerator_type)
        return roles(there, addresses), addresses, tpu_vm.replicas(asked.accelerator_type)
    if asked.engine == "ray" and asked.ray_address:
        addresses = [f"NODE-OF-SERVER-{i}:PORT" for i in servers]
        return roles(options, addresses, bind="0.0.0.0"), addresses, devices  # nosec B104
    workers = options.learners if options.learners > 1 else 0
    free = [f"localhost:{port}" for port in free_ports(options.replay_servers + workers)]
    addresses, learner_addresses = free[: len(servers)], free[len(servers) :]
    return roles(options, addresses, learner_addresses=learner_addresses), addresses, devices


def _check(
    values: common_flags.CommonFlags,
    asked: flags.FlagValues,
    root: str,
    where: resources.RoleResources,
) -> None:
    """Checks flags that do not go together.

    Args:
      values: The flags of every training.
      asked: All flags.
      root: The run folder.
      where: The value of --resources.

    Raises:
      UserError: For such flags.
    """
    for name, engines in _ENGINES_OF.items():
        if asked[name].present and asked.engine not in engines:
            raise UserError(
                f"--{name}",
                expected=f"no value with --engine={asked.engine}",
                got=str(asked[name].value),
                remedy=f"Leave it out: it is a flag of --engine={', '.join(engines)}.",
            )
    names = {name for amounts in where.asked.values() for name in amounts}
    if asked.engine == "local" and names - {"gpu"}:
        raise UserError(
            "--resources",
            expected="only gpu with --engine=local, which gives each process the whole machine",
            got=", ".join(sorted(names)),
            remedy="Leave the others out, or choose --engine=ray.",
        )
    _check_devices(values, asked)
    if values.if_exists != "resume" and asked.engine in _RENDERED:
        raise UserError(
            f"--if_exists={values.if_exists}",
            expected=f"resume with --engine={asked.engine}, whose learner restarts with its "
            "checkpoint",
            got=values.if_exists,
            remedy="Choose a --root_dir without a run.",
        )
    if root.startswith("ram://"):
        raise UserError(
            f"--root_dir={root}",
            expected="a folder that all processes share",
            got="the memory of one process",
            remedy="Choose a local folder or gs://bucket/folder.",
        )


def _check_devices(values: common_flags.CommonFlags, asked: flags.FlagValues) -> None:
    """Checks the learner's strategy and devices, and the number of its workers."""
    if asked.learners > 1 and asked.engine not in ("local", "kubernetes"):
        raise UserError(
            f"--learners={asked.learners}",
            expected=f"1 with --engine={asked.engine}",
            got=str(asked.learners),
            remedy="--strategy=mirrored takes all GPUs of a machine, --strategy=tpu a whole slice; "
            "--engine=local and kubernetes start several workers.",
        )
    if asked.learners > 1 and values.strategy not in ("auto", "multi_worker"):
        raise UserError(
            f"--strategy={values.strategy}",
            expected=f"auto or multi_worker for the {asked.learners} workers of --learners",
            got=values.strategy,
            remedy="Leave it out: the workers share each update.",
        )
    if asked.learners == 1 and values.strategy == "multi_worker":
        raise UserError(
            "--strategy=multi_worker",
            expected="several workers",
            got="--learners=1",
            remedy="Pass --learners=N, which connects the workers.",
        )
    if asked.learners > 1 and values.num_logical_cpus > 1:
        raise UserError(
            f"--num_logical_cpus={values.num_logical_cpus}",
            expected=f"1 with --learners={asked.learners}: each worker is one replica",
            got=str(values.num_logical_cpus),
            remedy="Leave it out.",
        )
    if asked.learners > 1 and values.tpu is not None:
        raise UserError(
            f"--tpu={values.tpu}",
            expected="--learners=1: one learner drives a TPU",
            got=f"--learners={asked.learners}",
            remedy="Leave one of them out.",
        )
    if asked.learners == 1:
        on_tpu = asked.engine == "tpu_vm" or asked.tpu_topology
        choice.choose(
            "tpu" if on_tpu else values.strategy,
            tpu=values.tpu,
            num_logical_cpus=values.num_logical_cpus,
            environ={},
        )


def _check_servers(root: str, count: int) -> None:
    """Checks that a run goes on with as many replay servers as have its experience."""
    folder = pathlib.Path(root).expanduser() / SERVERS
    earlier = len([p for p in folder.glob("*") if (p / SERVER_CHECKPOINTS).is_dir()])
    if earlier and earlier != count:
        raise UserError(
            f"--replay_servers={count}",
            expected=f"{earlier}, the servers that have the experience of the run in {root}",
            got=str(count),
            remedy=f"Pass --replay_servers={earlier}; or remove {folder} and pass "
            "--gin_bindings='OffPolicyWorkflow.checkpoint_replay = False' to go on with empty "
            "servers.",
        )


def _num_servers(bindings: Sequence[gin_files.Binding]) -> int:
    """Returns the number of servers of a gin file."""
    asked = [b for b in bindings if b.parameter == "num_servers"]
    value = asked[-1].value if asked else 1
    if isinstance(value, gin_files.Macro):
        named = [b.value for b in bindings if not b.parameter and b.selector == value.name]
        value = named[-1] if named else value
    if type(value) is not int or value < 1:
        raise UserError(
            f"{asked[-1].key} ({asked[-1].where})",
            expected="a whole number of at least 1",
            got=repr(value),
        )
    return value


def _passed(values: common_flags.CommonFlags, names: Sequence[str]) -> tuple[str, ...]:
    """Returns those flags that the command line sets."""
    present = [name for name in names if flags.FLAGS[name].present]
    return tuple(f"--{n}={getattr(values, n, flags.FLAGS[n].value)}" for n in present)


def described(job: Sequence[Role]) -> str:
    """Returns the commands of a job, as a user would type them."""
    return "\n".join(f"{role.name:<12} {role.typed}" for role in job)


def run() -> None:
    """Entry point of `tfrl-launch` and `bin/launch.py`."""
    app.run(main, doc=DOC, argv=sys.argv, without=("allow_code",))
