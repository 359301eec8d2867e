"""`--engine=tpu_vm`: renders a script that creates a Cloud TPU and runs a job on it."""

import pathlib
import re
import shlex
from collections.abc import Sequence

from absl import flags

from tfrl.errors import UserError
from tfrl.launch.job import JobOptions
from tfrl.launch.shipped_files import shipped

flags.DEFINE_string("zone", None, "Google Cloud zone of the TPU (tpu_vm).")
flags.DEFINE_string("accelerator_type", "v4-8", "Cloud TPU, such as v5litepod-8 or v3-32 (tpu_vm).")
flags.DEFINE_boolean("spot", False, "Use a preemptible TPU at a lower price (tpu_vm).")
flags.DEFINE_multi_string(
    "package",
    ["tfrl[reverb]"],
    "Package for pip on the TPU VM: a name that a package index has, a URL, or a wheel of this "
    "machine such as 'dist/tfrl-1.0-py3-none-any.whl[reverb]', which is copied; may be repeated. "
    "One of them is tfrl with the extra reverb (tpu_vm).",
)

# Images of a single-host TPU, and of a pod slice. Only their TensorFlow has TPU kernels.
RUNTIME, POD_RUNTIME = "tpu-vm-tf-2.15.0-pjrt", "tpu-vm-tf-2.15.0-pod-pjrt"
_TENSORFLOWS = (
    *("tensorflow", "tensorflow-cpu", "tensorflow-gpu", "tensorflow-intel", "tensorflow-rocm"),
    *("tf-nightly", "tf-nightly-cpu", "tf-nightly-gpu"),
)
# Sizes count TensorCores, or chips for v5e; one host has up to 8 of either.
_ONE_HOST = 8
_SMALL = (1, 4, 8)

# Prints the image's TensorFlow, also one of a wheel or URL, as pip's constraint.
_PIN = (
    "python3 -c 'from importlib.metadata import version; "
    """print("tensorflow==" + version("tensorflow"))' > tensorflow.txt"""
)
_UPLOAD = """\
tar -czf "$name.tgz" --exclude=__pycache__ {files} || return
  gcloud compute tpus tpu-vm scp "$name.tgz" "$name": --zone="$zone" --worker=0 || return 255
  """

_SCRIPT = """\
#!/usr/bin/env bash
# {name} on a Cloud TPU {accelerator_type} ({place}), by gcloud:
#   bash THIS_FILE train     all of it: goes on after each preemption until the run has ended
#   bash THIS_FILE create | install | run | resume | delete     one step
# The TPU costs until it is deleted. Google keeps TPU VMs and queued resources in maintenance and
# points to GKE for new work: tfrl-launch --engine=kubernetes --tpu_topology=...
set -euo pipefail

name={name}
zone={zone}

on_worker() {{
  gcloud compute tpus tpu-vm ssh "$name" --zone="$zone" --worker="$1" --command="$2"
}}

describe() {{
  gcloud compute tpus queued-resources describe "$name" --zone="$zone" \\
    --format='value(state.state)'
}}

# Prints the state of the request, NONE without one. It asks again while gcloud fails.
state() {{
  local now said
  if ! command -v gcloud > /dev/null; then
    echo "$name: gcloud is not installed: https://cloud.google.com/sdk/docs/install" >&2
    exit 2
  fi
  for _ in {{1..10}}; do
    now="$(describe 2> /dev/null)" || now=""
    if [[ -n "$now" ]]; then echo "$now"; return; fi
    said="$(describe 2>&1)" || true
    if [[ "$said" == *NOT_FOUND* ]]; then echo NONE; return; fi
    echo "$name: gcloud does not tell the state of the request: ${{said##*$'\n'}}" >&2
    sleep 30
  done
  echo "$name: unknown whether the TPU is there, and costs" >&2
  return 1
}}

create() {{
  local now failed=0
  while now="$(state)" || return; [[ "$now" != ACTIVE ]]; do
    case "$now" in
      NONE)
        gcloud compute tpus queued-resources create "$name" --node-id="$name" --zone="$zone" \\
          --accelerator-type={accelerator_type} --runtime-version={runtime}{spot} \
          || ((++failed < 3)) || return ;;
      FAILED | SUSPENDED | SUSPENDING) echo "The request has ended: $now" >&2; return 1 ;;
    esac
    echo "$name: $now"
    sleep 30
  done
}}

# pip must not replace the image's TensorFlow: PyPI's has no TPU kernels.
install() {{
  {upload}on_worker 0 {install}
}}

# If ssh loses its connection the run goes on there: a second command waits for its end.
run() {{
  on_worker 0 {run}
}}

delete() {{
  gcloud compute tpus queued-resources delete "$name" --zone="$zone" --force --quiet
}}

# A preempted request is over: another one takes its place. The run goes on from its checkpoint.
resume() {{
  local now
  now="$(state)" || return
  case "$now" in FAILED | SUSPENDED | SUSPENDING) delete || return ;; esac
  create && install && run
}}

# The run goes on after a preemption, a lost connection (255 is ssh's own code) and a SIGTERM (143),
# unless ten attempts in a row end within ten minutes each.
train() {{
  local began code now quick=0
  while began=$SECONDS; resume && code=0 || code=$?; [[ $code != 0 ]]; do
    sleep 30  # the state shows a preemption with a delay
    now="$(state)" || exit $code
    if [[ "$now" == NONE ]]; then exit $code; fi
    if [[ "$now" == ACTIVE && $code != 255 && $code != 143 ]]; then break; fi
    if ((SECONDS - began > 600)); then quick=0; fi
    if ((++quick >= 10)); then echo "$name: given up after $quick attempts" >&2; break; fi
  done
  {end}
  exit $code
}}

case "${{1:-}}" in
  train | create | install | run | resume | delete) "$1" ;;
  *) sed -n '2,6p' "$0" ; exit 2 ;;
esac
"""


def script(
    options: JobOptions,
    *,
    name: str,
    zone: str | None,
    accelerator_type: str,
    spot: bool = False,
    packages: Sequence[str] = ("tfrl[reverb]",),
    max_restarts: int = 3,
) -> str:
    """Returns a bash script with the steps of a job on one Cloud TPU.

    The local engine runs all processes on the TPU's first host. The other hosts of a pod slice
    serve their chips to its learner.

    Args:
      options: The configuration of the job.
      name: The name of the TPU and of the request for it.
      zone: The zone of the TPU.
      accelerator_type: Its generation and size.
      spot: Whether to use a spot TPU, which Google may preempt.
      packages: The packages that pip installs.
      max_restarts: The most restarts of each process.

    Raises:
      UserError: For any setting that cannot run.
    """
    _check(options, name, zone, accelerator_type, spot)
    pod = _is_pod(accelerator_type)
    options = on_host(options, name, accelerator_type)
    command = [
        "tfrl-launch",
        "--engine=local",
        *(f"--gin_file={file}" for file in options.gin_files),
        *(f"--gin_bindings={binding}" for binding in options.gin_bindings),
        f"--root_dir={options.root_dir}",
        f"--seed={options.seed}",
        f"--collectors={options.collectors}",
        f"--replay_servers={options.replay_servers}",
        f"--evaluators={options.evaluators}",
        f"--wait_seconds={options.wait_seconds:g}",
        f"--max_restarts={max_restarts}",
        *options.collector_flags,
        *options.learner_flags,
    ]
    path = "export PATH=$HOME/.local/bin:$PATH"
    environment = f"export TPU_NAME={name} TPU_LOAD_LIBRARY=0; " if pod else ""
    kept = f"{options.root_dir} is on the TPU VM: copy it, then delete the TPU."
    files, names = _copied(options, packages)
    _check_packages(packages)
    unpack = f"tar -xzf {name}.tgz && " if files else ""
    pip = f"{unpack}{_PIN} && python3 -m pip install -c tensorflow.txt {shlex.join(names)}"
    # A run that goes on keeps its files.
    install = f"flock -n -E 0 tfrl.lock bash -c {shlex.quote(pip)}"
    return _SCRIPT.format(
        name=name,
        zone=zone,
        accelerator_type=accelerator_type,
        place="a pod slice of several hosts" if pod else "one host",
        runtime=POD_RUNTIME if pod else RUNTIME,
        spot=" --spot" if spot else "",
        install=shlex.quote(install),
        upload=_UPLOAD.format(files=shlex.join(files)) if files else "",
        end="delete" if options.root_dir.startswith("gs://") else f"echo {shlex.quote(kept)}",
        run=shlex.quote(f"{path}; {environment}flock tfrl.lock {shlex.join(command)}"),
    )


def _copied(options: JobOptions, packages: Sequence[str]) -> tuple[list[str], list[str]]:
    """Finds the files of this machine that the TPU VM needs.

    Args:
      options: The configuration of the job.
      packages: The packages that pip installs.

    Returns:
      The arguments for tar, and the packages by their names there.

    Raises:
      UserError: A file is not where it can be copied from.
    """
    own = shipped(options.gin_files, options.gin_bindings)
    files = ["-C", str(pathlib.Path.cwd()), *own] if own else []
    names = []
    for package in packages:
        wheel, bracket, extras = package.partition("[")
        path = pathlib.Path(wheel).absolute()
        if path.is_file():
            files += ["-C", str(path.parent), path.name]
            package = f"./{path.name}{bracket}{extras}"
        elif wheel.endswith(".whl") and "://" not in wheel:
            raise UserError(
                f"--package={package}",
                expected="a wheel that exists, or the name or URL of a package",
                got=f"no file at {path}",
                remedy="Build one of tfrl with `pip wheel --no-deps -w dist .`.",
            )
        names.append(package)
    return files, names


def _check_packages(packages: Sequence[str]) -> None:
    """Checks that pip installs tfrl and Reverb, and leaves the image's TensorFlow."""
    extras = dict(map(_name_and_extras, packages))
    if "tfrl" not in extras or not ("reverb" in extras["tfrl"] or "dm-reverb" in extras):
        raise UserError(
            "--package",
            expected="tfrl with the extra reverb among the packages",
            got=", ".join(packages),
            remedy="Add --package='tfrl[reverb]', or a wheel of it.",
        )
    for package in packages:
        name, _ = _name_and_extras(package)
        accepted = re.fullmatch(r"tensorflow\s*((~=|==)\s*2\.15\.0)?", package)
        if name in _TENSORFLOWS and not accepted:
            raise UserError(
                f"--package={package}",
                expected="the image's TensorFlow 2.15.0, which alone has TPU kernels",
                got=package,
                remedy="Leave it out; tensorflow~=2.15.0 is there.",
            )


def _name_and_extras(package: str) -> tuple[str, list[str]]:
    """Returns the name and the extras of an argument of pip."""
    text = package.partition("#egg=")[2] or package.partition(" @ ")[0].rpartition("/")[2]
    name = re.split(r"-\d|\.git|\.whl|[^-\w.]", text)[0].lower().replace("_", "-")
    extras = re.search(r"\[(.*?)\]", text)
    return name, re.split(r"\s*,\s*", extras[1].strip()) if extras else []


def on_host(options: JobOptions, name: str, accelerator_type: str) -> JobOptions:
    """Returns the configuration of a job as the local engine of the TPU's first host gets it.

    Args:
      options: The configuration of the job.
      name: The name of the TPU.
      accelerator_type: Its generation and size.
    """
    return options.on_tpu(name if _is_pod(accelerator_type) else "local")


def _is_pod(accelerator_type: str) -> bool:
    """Whether a TPU has several hosts."""
    return int(accelerator_type.rpartition("-")[2]) > _ONE_HOST


def _check(
    options: JobOptions, name: str, zone: str | None, accelerator_type: str, spot: bool
) -> None:
    if not zone:
        raise UserError(
            "--zone",
            expected="the Google Cloud zone of the TPU",
            got="no value",
            remedy="List a zone's types with gcloud compute tpus accelerator-types list "
            "--zone=ZONE.",
        )
    for flag, value in (("zone", zone), ("job_name", name)):
        if not re.fullmatch(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?", value):
            raise UserError(
                f"--{flag}={value}",
                expected="lower-case letters, digits and -, beginning with a letter",
                got=value,
            )
    match = re.fullmatch(r"(v2|v3|v4|v5litepod|v5p)-(\d+)", accelerator_type)
    size = int(match[2]) if match else 0
    chips = match is not None and match[1] == "v5litepod"
    if not size or (size % _ONE_HOST and not (chips and size in _SMALL)):
        raise UserError(
            f"--accelerator_type={accelerator_type}",
            expected="GENERATION-SIZE: v2, v3, v4 or v5p with a multiple of 8, v5litepod with 1, "
            "4 or a multiple of 8",
            got=accelerator_type,
        )
    strategy = options.learner_flag("strategy") or "tpu"
    if strategy not in ("auto", "tpu"):
        raise UserError(f"--strategy={strategy}", expected="tpu with --engine=tpu_vm", got=strategy)
    if spot and not options.root_dir.startswith("gs://"):
        raise UserError(
            f"--root_dir={options.root_dir}",
            expected="gs://bucket/folder with --spot",
            got="a folder of the TPU VM's own disk, which is lost with it",
        )


def replicas(accelerator_type: str) -> int:
    """Returns the number of devices of a TPU: a core of v2 and v3, else a chip."""
    generation, _, size = accelerator_type.partition("-")
    return int(size) // 2 if generation in ("v4", "v5p") else int(size)


def rendered(options: JobOptions, max_restarts: int) -> str:
    """Returns the output of `--engine=tpu_vm` for the flags."""
    values = flags.FLAGS
    return script(
        options,
        name=values.job_name,
        zone=values.zone,
        accelerator_type=values.accelerator_type,
        spot=values.spot,
        packages=values.package,
        max_restarts=max_restarts,
    )
