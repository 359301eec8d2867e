"""`--engine=kubernetes`: renders a job as a JobSet (https://jobset.sigs.k8s.io), for kubectl."""

import dataclasses
import json
import math
import pathlib
import posixpath
import re
from collections.abc import Mapping, Sequence
from typing import Any

from absl import flags

from tfrl.errors import UserError
from tfrl.launch import gin_files
from tfrl.launch.job import COLLECTOR, EVALUATOR, LEARNER, SERVER, JobOptions, Role, roles
from tfrl.launch.resources import KINDS, RoleResources

flags.DEFINE_string("image", None, "Container image with tfrl and the gin files (kubernetes).")
flags.DEFINE_string("job_name", "tfrl", "Name of the job (kubernetes, tpu_vm).")
flags.DEFINE_string(
    "volume",
    None,
    "CLAIM:/folder, a persistent volume claim that all pods mount at /folder; --root_dir must be "
    "below it (kubernetes).",
)
flags.DEFINE_multi_string(
    "node_selector",
    [],
    "ROLE:LABEL=VALUE, a node label for the pods of a role; may be repeated (kubernetes).",
)
flags.DEFINE_string(
    "tpu_topology",
    None,
    "TYPE:TOPOLOGY of the learner's TPU, such as v5e:2x4 (kubernetes on GKE).",
)

flags.DEFINE_string(
    "service_account",
    None,
    "Kubernetes service account of the pods, for example with access to a gs:// run folder "
    "(kubernetes).",
)

PORT, WORKER_PORT = 8000, 2222
# Topologies of one host by GKE's name of the TPU; TensorFlow drives only one host from a pod.
TPUS = {
    "v4": ("tpu-v4-podslice", ("2x2x1",)),
    "v5e": ("tpu-v5-lite-podslice", ("1x1", "2x2", "2x4")),
    "v5p": ("tpu-v5p-slice", ("2x2x1",)),
}
_RESOURCES = {"cpu": "cpu", "memory": "memory", "gpu": "nvidia.com/gpu", "tpu": "google.com/tpu"}
_INDEX = "TFRL_INDEX"
# Annotations of JobSet and Kubernetes with a pod's indices.
_JOB_INDEX = "jobset.sigs.k8s.io/job-index"
_POD_INDEX = "batch.kubernetes.io/job-completion-index"
# Grace periods after which Kubernetes kills a pod: servers and learners save meanwhile.
_GRACE_SECONDS = {SERVER: 120, LEARNER: 120, COLLECTOR: 30, EVALUATOR: 30}
_STARTS_AFTER = {LEARNER: SERVER, COLLECTOR: LEARNER, EVALUATOR: LEARNER}
# The flag whose value ends with the index of a role's process.
_NUMBERED = {SERVER: "--root_dir=", COLLECTOR: "--task_id="}
_FOR_EVER = 2**31 - 1  # the most pods
# Names of objects, and parts of labels, as Kubernetes writes them.
_DNS_NAME = r"(?=.{1,253}(?:$|/))[a-z0-9]+(?:-+[a-z0-9]+)*(?:\.[a-z0-9]+(?:-+[a-z0-9]+)*)*"
_LABEL = r"[A-Za-z0-9](?:[-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"
# Host names have at most 63 characters; role, numbers and a random suffix take the rest.
_MOST_NAME = 40


def check(
    options: JobOptions,
    *,
    name: str,
    image: str | None,
    volume: str | None,
    tpu_topology: str | None,
    resources: RoleResources,
    service_account: str | None = None,
) -> None:
    """Checks that a cluster could run the job.

    Args:
      options: The configuration of the job.
      name: Value of `--job_name`.
      image: Value of `--image`.
      volume: Value of `--volume`.
      tpu_topology: Value of `--tpu_topology`.
      resources: Resources of the roles.
      service_account: Value of `--service_account`.

    Raises:
      UserError: For any setting that cannot run.
    """
    _check_names(name, image, service_account)
    mount = _mount(volume)[1] if volume else None
    root = pathlib.PurePosixPath(posixpath.normpath(options.root_dir))
    if not re.match("gs://[^/]", options.root_dir) and (
        mount is None or mount not in (root, *root.parents)
    ):
        raise UserError(
            f"--root_dir={options.root_dir}",
            expected="a folder of --volume, or gs://bucket/folder",
            got=f"a folder of the pod's own disk, which is lost with it (--volume={volume})",
            remedy="Pass --volume=CLAIM:/runs --root_dir=/runs/NAME.",
        )
    for file in options.gin_files:
        _check_file(f"--gin_file={file}", file, mount)
    for file in gin_files.included(options.gin_files):
        _check_file(f"include '{file}'", file, mount)
    strategy = options.learner_flag("strategy") or "auto"
    tpu = options.learner_flag("tpu") or "local"
    if strategy == "tpu" and tpu == "local" and not tpu_topology:
        raise UserError(
            "--strategy=tpu",
            expected="--tpu_topology, from which the chips of the learner follow",
            got="no value",
            remedy="Pass for example --tpu_topology=v5e:2x4.",
        )
    if tpu_topology:
        _tpu(tpu_topology)
        if options.learners > 1 or strategy not in ("auto", "tpu") or tpu != "local":
            raise UserError(
                f"--tpu_topology={tpu_topology}",
                expected="--learners=1 --strategy=tpu --tpu=local: one process drives the chips of "
                "a host",
                got=f"--learners={options.learners} --strategy={strategy} --tpu={tpu}",
            )
    for kind in KINDS:
        if "tpu" in resources.of(kind):
            raise UserError(
                f"--resources={kind}:tpu={resources.of(kind)['tpu']}",
                expected="--tpu_topology, from which the chips of the learner follow; no other "
                "role takes a TPU",
                got=f"a tpu in --resources, and --tpu_topology={tpu_topology or ''}",
                remedy="Leave tpu out of --resources, and pass for example --tpu_topology=v5e:2x4.",
            )


def _check_file(thing: str, file: str, mount: pathlib.PurePosixPath | None) -> None:
    path = posixpath.normpath(file)
    if path.startswith(("/", "../", "~", "ram:")) and not (mount and path.startswith(f"{mount}/")):
        raise UserError(
            thing,
            expected="a file of the image's working folder, of the package or of --volume",
            got="a path of this machine",
            remedy="Put it into the image, and pass its path from the working folder there.",
        )


def _check_names(name: str, image: str | None, service_account: str | None) -> None:
    """Checks the form of what the cluster takes as it is."""
    if not re.fullmatch(r"[a-z]([-a-z0-9]*[a-z0-9])?", name) or len(name) > _MOST_NAME:
        raise UserError(
            f"--job_name={name}",
            expected=f"at most {_MOST_NAME} lower-case letters, digits and -, beginning with a "
            "letter",
            got=name,
            remedy="It becomes part of the pods' host names.",
        )
    if not image or re.search(r"\s", image):
        raise UserError(
            "--image",
            expected="the container image of the pods",
            got=repr(image) if image else "no value",
            remedy="Build the repository's Dockerfile and push it to a registry of the cluster.",
        )
    if service_account and not re.fullmatch(_DNS_NAME, service_account):
        raise UserError(
            f"--service_account={service_account}",
            expected="lower-case letters, digits, - and .",
            got=service_account,
        )


def job_set(
    options: JobOptions,
    *,
    name: str,
    image: str,
    volume: str | None = None,
    tpu_topology: str | None = None,
    node_selectors: Mapping[str, Mapping[str, str]] | None = None,
    resources: RoleResources | None = None,
    service_account: str | None = None,
    max_restarts: int = 3,
) -> dict[str, Any]:
    """Returns the JobSet of a job as a nest of YAML types.

    The learner has one Job, with a pod for each worker. Every server and collector has a separate
    Job, so that it restarts alone. A Job replaces a failed pod up to `max_restarts` times, not
    counting evictions by the cluster; exit code 2 ends the JobSet. The JobSet succeeds with its
    learner. An evaluator is replaced as often as it fails, so the job goes on without it.

    Args:
      options: The configuration of the job.
      name: The name of the JobSet, the first part of every host name.
      image: The container image, with `tfrl` and the gin files.
      volume: "claim:/folder", a volume that all pods mount.
      tpu_topology: "type:topology" of the learner's TPU.
      node_selectors: Labels of the nodes, by role.
      resources: Resources of the roles.
      service_account: The service account of the pods; the namespace's default if None.
      max_restarts: The most restarts of each pod.

    Raises:
      UserError: For any setting that cannot run.
    """
    resources = resources or RoleResources({})
    check(
        options,
        name=name,
        image=image,
        volume=volume,
        tpu_topology=tpu_topology,
        service_account=service_account,
        resources=resources,
    )
    selectors = {kind: dict(labels) for kind, labels in (node_selectors or {}).items()}
    amounts = {k: dict(resources.of(k)) for k in KINDS}
    if tpu_topology:
        chips, labels = _tpu(tpu_topology)
        amounts[LEARNER]["tpu"] = str(chips)
        selectors[LEARNER] = {**labels, **selectors.get(LEARNER, {})}
    by_kind: dict[str, list[Role]] = {}
    for role in job(options, name, tpu_topology):
        by_kind.setdefault(role.kind, []).append(role)
    jobs = []
    for kind, of_kind in by_kind.items():
        workers = options.learners if kind == LEARNER else 1
        meeting = learner_addresses(options, name) if kind == LEARNER else []
        container = _container(of_kind[0], image, amounts[kind], meeting)
        pod: dict[str, Any] = {
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": _GRACE_SECONDS[kind],
            "containers": [container],
        }
        if volume:
            claim, folder = _mount(volume)
            pod["volumes"] = [{"name": "runs", "persistentVolumeClaim": {"claimName": claim}}]
            container["volumeMounts"] = [{"name": "runs", "mountPath": str(folder)}]
        if service_account:
            pod["serviceAccountName"] = service_account
        if kind in selectors:
            pod["nodeSelector"] = selectors[kind]
        replicated: dict[str, Any] = {"name": kind, "replicas": len(of_kind) // workers}
        if kind in _STARTS_AFTER:
            replicated["dependsOn"] = [{"name": _STARTS_AFTER[kind], "status": "Ready"}]
        replicated["template"] = {
            "spec": {
                "completionMode": "Indexed",
                "completions": workers,
                "parallelism": workers,
                "backoffLimit": _FOR_EVER if kind == EVALUATOR else max_restarts * workers,
                "podFailurePolicy": {"rules": _failure_rules(kind)},
                "template": {"spec": pod},
            }
        }
        jobs.append(replicated)
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {"name": name, "labels": {"app.kubernetes.io/name": "tfrl"}},
        "spec": {
            "network": {"enableDNSHostnames": True, "publishNotReadyAddresses": True},
            "successPolicy": {"operator": "All", "targetReplicatedJobs": [LEARNER]},
            "failurePolicy": {"maxRestarts": 0},
            "replicatedJobs": jobs,
        },
    }


def job(options: JobOptions, name: str, tpu_topology: str | None = None) -> list[Role]:
    """Returns the processes of a job as its pods start them.

    Args:
      options: The configuration of the job.
      name: The name of the JobSet.
      tpu_topology: "type:topology" of the learner's TPU.
    """
    processes = roles(
        options.on_tpu("local") if tpu_topology else options,
        addresses(options, name),
        bind="0.0.0.0",  # nosec B104
        learner_addresses=learner_addresses(options, name),
    )
    # An orderly end by an eviction must not count as done: the pod would not come back.
    more = {SERVER: ("--signal_exit_code=143",)}
    return [dataclasses.replace(r, flags=(*r.flags, *more.get(r.kind, ()))) for r in processes]


def addresses(options: JobOptions, name: str) -> list[str]:
    """Returns "host:port" of each server of the job `name`."""
    return [f"{_host(name, SERVER, i, 0)}:{PORT}" for i in range(options.replay_servers)]


def learner_addresses(options: JobOptions, name: str) -> list[str]:
    """Returns "host:port" of each of several workers of the learner of the job `name`."""
    hosts = [_host(name, LEARNER, 0, i) for i in range(options.learners)]
    return [f"{host}:{WORKER_PORT}" for host in hosts] if len(hosts) > 1 else []


def _host(name: str, kind: str, job: int, pod: int) -> str:
    """Returns the host name of a pod in a JobSet."""
    return f"{name}-{kind}-{job}-{pod}.{name}"


def text(nest: Mapping[str, Any]) -> str:
    """Returns a nest as JSON, which is also YAML."""
    return json.dumps(nest, indent=2)


def _container(
    role: Role, image: str, resources: Mapping[str, str], workers: Sequence[str]
) -> dict[str, Any]:
    command = [word.replace("$", "$$") for word in role.command]  # Kubernetes expands $(NAME)
    env = [{"name": "PYTHONUNBUFFERED", "value": "1"}]
    container: dict[str, Any] = {"name": role.kind, "image": image, "command": command, "env": env}
    if role.kind in _NUMBERED:  # each Job has its index
        flag = _NUMBERED[role.kind]
        command[:] = [f"{c[:-1]}$({_INDEX})" if c.startswith(flag) else c for c in command]
        env.append(_annotation(_INDEX, _JOB_INDEX))
    if role.kind == SERVER:
        container["ports"] = [{"name": "reverb", "containerPort": PORT}]
        container["readinessProbe"] = {"tcpSocket": {"port": PORT}, "periodSeconds": 2}
    if workers:
        cluster = json.dumps({"worker": workers})
        task = f'{{"type": "worker", "index": $({_INDEX})}}'
        env.append(_annotation(_INDEX, _POD_INDEX))
        env.append({"name": "TF_CONFIG", "value": f'{{"cluster": {cluster}, "task": {task}}}'})
        container["ports"] = [{"name": "tensorflow", "containerPort": WORKER_PORT}]
    asked = {_RESOURCES[key]: value for key, value in resources.items()}
    # Kubernetes requires devices as limits, in whole numbers.
    devices = {key: value for key, value in asked.items() if "/" in key}
    shares = {key: value for key, value in asked.items() if "/" not in key}
    container["resources"] = {"requests": shares, **({"limits": devices} if devices else {})}
    return container


def _annotation(variable: str, annotation: str) -> dict[str, Any]:
    path = f"metadata.annotations['{annotation}']"
    return {"name": variable, "valueFrom": {"fieldRef": {"fieldPath": path}}}


def _failure_rules(kind: str) -> list[dict[str, Any]]:
    evicted = {"type": "DisruptionTarget", "status": "True"}
    mistake = {"containerName": kind, "operator": "In", "values": [UserError.exit_code]}
    ignored = {"action": "Ignore", "onPodConditions": [evicted]}
    fatal = {"action": "FailJob", "onExitCodes": mistake}
    return [ignored] if kind == EVALUATOR else [ignored, fatal]


def _mount(volume: str) -> tuple[str, pathlib.PurePosixPath]:
    claim, _, folder = volume.partition(":")
    is_folder = re.fullmatch("/[^:]+", folder) and folder.strip("/")
    if not re.fullmatch(_DNS_NAME, claim) or not is_folder:
        raise UserError(
            f"--volume={volume}",
            expected="CLAIM:/folder, a folder below /",
            got=volume,
            remedy="CLAIM is the name of a persistent volume claim of the namespace: lower-case "
            "letters, digits, - and .",
        )
    return claim, pathlib.PurePosixPath(folder)


def _tpu(asked: str) -> tuple[int, dict[str, str]]:
    """Returns the chips of a TPU, and the labels of its nodes."""
    kind, _, topology = asked.partition(":")
    if kind not in TPUS or topology not in TPUS[kind][1]:
        known = ", ".join(f"{k}:{t}" for k, (_, ts) in TPUS.items() for t in ts)
        raise UserError(
            f"--tpu_topology={asked}",
            expected=f"one of {known}",
            got=asked,
            remedy="These are the slices of one host; TensorFlow 2.15 drives several hosts "
            "from outside of their pods only. --engine=tpu_vm has pod slices.",
        )
    label = TPUS[kind][0]
    chips = math.prod(int(side) for side in topology.split("x"))
    return chips, {
        "cloud.google.com/gke-tpu-accelerator": label,
        "cloud.google.com/gke-tpu-topology": topology,
    }


def replicas(topology: str | None) -> int:
    """Returns the number of chips of a `--tpu_topology`; 1 without one."""
    return _tpu(topology)[0] if topology else 1


def node_selectors(values: Sequence[str]) -> dict[str, dict[str, str]]:
    """Returns the labels of `--node_selector`, by role.

    Raises:
      UserError: For a malformed value.
    """
    result: dict[str, dict[str, str]] = {}
    form = rf"({'|'.join(KINDS)}):((?:{_DNS_NAME}/)?{_LABEL})=({_LABEL}|)"
    for value in values:
        match = re.fullmatch(form, value)
        if match is None:
            raise UserError(
                f"--node_selector={value}",
                expected=f"ROLE:LABEL=VALUE, ROLE one of {', '.join(KINDS)}, LABEL and VALUE as "
                "Kubernetes writes them",
                got=value,
                remedy="Write for example learner:cloud.google.com/gke-nodepool=big.",
            )
        result.setdefault(match[1], {})[match[2]] = match[3]
    return result


def rendered(options: JobOptions, max_restarts: int, resources: RoleResources) -> str:
    """Returns the output of `--engine=kubernetes` for the flags."""
    values = flags.FLAGS
    nest = job_set(
        options,
        name=values.job_name,
        image=values.image,
        volume=values.volume,
        tpu_topology=values.tpu_topology,
        node_selectors=node_selectors(values.node_selector),
        resources=resources,
        service_account=values.service_account,
        max_restarts=max_restarts,
    )
    return text(nest)
