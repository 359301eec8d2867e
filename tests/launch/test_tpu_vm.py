"""`--engine=tpu_vm`: the script for gcloud, and what is refused."""

import dataclasses
import fcntl
import importlib.metadata
import os
import shlex
import subprocess
import sys

import pytest

from tests.launch.launch_runs import in_process, tree
from tfrl.errors import UserError
from tfrl.launch import job, launch, tpu_vm

OPTIONS = job.JobOptions(
    gin_files=("sac/tf_pendulum.gin",),
    gin_bindings=("train.total_env_steps = 10_000",),
    root_dir="gs://bucket/sac",
    seed=3,
    collectors=4,
    replay_servers=1,
    evaluators=0,
    wait_seconds=600.0,
    learner_flags=("--deterministic_ops=True", "--strategy=auto"),
)
COMMON = {"name": "sac", "zone": "us-central2-b"}
# Notes what it is called with. The first run is preempted, the second ends. As many queries of the
# state fail as the file "lost" has lines, as many creations as "refused" has. The next
# installations end with the codes in "pip".
GCLOUD = """#!/usr/bin/env bash
case "$*" in *scp*|*ssh*|*create*|*delete*) printf '%q ' "$@" >> calls; echo >> calls;; esac
case "$*" in
  *describe*)
    if [[ -s lost ]]; then sed -i 1d lost; echo "HTTP 503" >&2; exit ${QUERY:-1}; fi
    if [[ ! -e state ]]; then echo "ERROR: (gcloud) NOT_FOUND: no $4" >&2; exit 1; fi
    cat state;;
  *create*)
    if [[ -s refused ]]; then sed -i 1d refused; echo "HTTP 503" >&2; exit 1; fi
    echo ACTIVE > state;;
  *delete*) rm state;;
  *scp*) exit ${SCP:-0};;
  *pip*)
    if [[ -s pip ]]; then code=$(head -n1 pip); sed -i 1d pip; exit $code; fi
    exit ${PIP:-0};;
  *tfrl-launch*)
    if [[ ! -e once ]]; then
      touch once
      for ((i = 0; i < ${LOST:-0}; i++)); do echo >> lost; done
      if [[ $AFTER == NONE ]]; then rm state; else echo $AFTER > state; fi
      exit ${FIRST:-255}
    fi
    exit $CODE;;
esac
"""


def calls(tmp_path, text, step="train", code=0, after="SUSPENDED", **variables):
    """Runs a step of a script with a gcloud that only notes its calls; returns code and calls."""
    (tmp_path / "gcloud").write_text(GCLOUD)
    (tmp_path / "gcloud").chmod(0o755)
    (tmp_path / "job.sh").write_text(text)
    (tmp_path / "sleep").write_text("#!/bin/sh\n")
    (tmp_path / "sleep").chmod(0o755)
    env = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "CODE": str(code)}
    env.update(variables, AFTER=after)
    done = subprocess.run(
        ["bash", "job.sh", step], cwd=tmp_path, env=env, capture_output=True, text=True
    )
    noted = tmp_path / "calls"
    lines = noted.read_text().splitlines() if noted.exists() else []
    return done.returncode, [shlex.split(line) for line in lines]


def steps(noted):
    names = {"tfrl-launch": "run", "create": "create", "delete": "delete", "pip": "install"}
    return [next(n for sign, n in names.items() if sign in " ".join(c)) for c in noted]


def test_the_script_goes_on_after_a_preemption(tmp_path):
    text = tpu_vm.script(OPTIONS, accelerator_type="v4-8", spot=True, **COMMON)
    code, noted = calls(tmp_path, text)
    assert code == 0
    once = ["create", "install", "run"]
    assert steps(noted) == [*once, "delete", *once, "delete"]
    assert noted[0] == [
        *"compute tpus queued-resources create sac --node-id=sac --zone=us-central2-b".split(),
        *"--accelerator-type=v4-8 --runtime-version=tpu-vm-tf-2.15.0-pjrt --spot".split(),
    ]
    command = noted[2][-1].removeprefix("--command=").partition("; ")[2]
    assert shlex.split(command) == [
        *"flock tfrl.lock".split(),
        *"tfrl-launch --engine=local --gin_file=sac/tf_pendulum.gin".split(),
        "--gin_bindings=train.total_env_steps = 10_000",
        *"--root_dir=gs://bucket/sac --seed=3 --collectors=4 --replay_servers=1".split(),
        *"--evaluators=0 --wait_seconds=600 --max_restarts=3 --deterministic_ops=True".split(),
        *"--strategy=tpu --tpu=local".split(),
    ]


# After an ssh that ended while the TPU is active: a lost connection; the launcher's end at a
# preemption, which the state shows later; and queries of the state that fail, or print nothing.
NO_END = [{}, {"FIRST": "143"}, {"LOST": "6", "QUERY": "1"}, {"LOST": "6", "QUERY": "0"}]


@pytest.mark.parametrize("variables", NO_END, ids=str)
def test_what_is_no_end_of_the_run(tmp_path, variables):
    text = tpu_vm.script(OPTIONS, accelerator_type="v4-8", **COMMON)
    code, noted = calls(tmp_path, text, after="ACTIVE", **variables)
    assert code == 0
    assert steps(noted) == ["create", "install", "run", "install", "run", "delete"]


@pytest.mark.parametrize("refused", [2, 3])
def test_a_creation_that_fails_is_tried_three_times(tmp_path, refused):
    text = tpu_vm.script(OPTIONS, accelerator_type="v4-8", **COMMON)
    (tmp_path / "once").touch()
    (tmp_path / "refused").write_text(refused * "\n")
    code, noted = calls(tmp_path, text)
    goes_on = refused < 3
    assert code == (0 if goes_on else 1)
    assert steps(noted) == [*3 * ["create"], *goes_on * ["install", "run", "delete"]]


def test_an_installation_that_loses_its_connection_comes_again(tmp_path):
    text = tpu_vm.script(OPTIONS, accelerator_type="v4-8", **COMMON)
    (tmp_path / "once").touch()
    (tmp_path / "pip").write_text("255\n")
    code, noted = calls(tmp_path, text)
    assert code == 0
    assert steps(noted) == ["create", "install", "install", "run", "delete"]


def test_a_connection_that_is_always_lost_ends_the_job(tmp_path):
    text = tpu_vm.script(OPTIONS, accelerator_type="v4-8", **COMMON)
    code, noted = calls(tmp_path, text, PIP="255")
    assert code == 255
    assert steps(noted) == ["create", *10 * ["install"], "delete"]


def test_attempts_of_ten_minutes_do_not_count(tmp_path):
    text = tpu_vm.script(OPTIONS, accelerator_type="v4-8", **COMMON)
    long = text.replace("SECONDS - began > 600", "1 > 0")
    assert long != text
    (tmp_path / "pip").write_text(12 * "255\n")
    code, noted = calls(tmp_path, long)
    assert code == 0
    assert steps(noted).count("install") == 14  # and again after the preemption


def test_a_tpu_whose_state_stays_unknown_is_not_deleted(tmp_path):
    text = tpu_vm.script(OPTIONS, accelerator_type="v4-8", **COMMON)
    code, noted = calls(tmp_path, text, after="ACTIVE", LOST="1000")
    assert code == 255
    assert steps(noted) == ["create", "install", "run"]


def test_a_tpu_that_somebody_deleted_is_not_made_again(tmp_path):
    text = tpu_vm.script(OPTIONS, accelerator_type="v4-8", **COMMON)
    code, noted = calls(tmp_path, text, after="NONE")
    assert code == 255
    assert steps(noted) == ["create", "install", "run"]


def test_a_request_that_has_ended_is_replaced(tmp_path):
    text = tpu_vm.script(OPTIONS, accelerator_type="v4-8", **COMMON)
    (tmp_path / "once").touch()
    (tmp_path / "state").write_text("SUSPENDED")
    assert calls(tmp_path, text, "create") == (1, [])
    code, noted = calls(tmp_path, text)
    assert code == 0
    assert steps(noted) == ["delete", "create", "install", "run", "delete"]


def test_a_request_that_is_there_is_used(tmp_path):
    text = tpu_vm.script(OPTIONS, accelerator_type="v4-8", **COMMON)
    (tmp_path / "state").write_text("ACTIVE")
    code, noted = calls(tmp_path, text, "create")
    assert (code, noted) == (0, [])


def test_nothing_runs_after_a_failed_installation(tmp_path):
    text = tpu_vm.script(OPTIONS, accelerator_type="v4-8", **COMMON)
    code, noted = calls(tmp_path, text, PIP="1")
    assert code == 1
    assert steps(noted) == ["create", "install", "delete"]


# Copies to the folder "vm", and runs commands there.
GCLOUD_VM = """#!/usr/bin/env bash
for word; do
  case "$word" in --command=*) cd vm; exec bash -c "${word#--command=}";; esac
done
case "$4" in scp) cp "$5" vm/;; esac
"""
# Notes what pip would install.
PYTHON = f"""#!/usr/bin/env bash
if [[ "$1" == -m ]]; then printf '%s\\n' "$@" > installed; else exec {sys.executable} "$@"; fi
"""


def installed(tmp_path, text):
    """Installs on a TPU VM that is the folder "vm"; returns its files."""
    (tmp_path / "vm").mkdir(exist_ok=True)
    (tmp_path / "job.sh").write_text(text)
    bin_dir = tmp_path / "bin"
    bin_dir.mkdir(exist_ok=True)
    for name, program in {"gcloud": GCLOUD_VM, "python3": PYTHON}.items():
        (bin_dir / name).write_text(program)
        (bin_dir / name).chmod(0o755)
    env = {**os.environ, "PATH": f"{bin_dir}:{os.environ['PATH']}"}
    subprocess.run(["bash", "job.sh", "install"], cwd=tmp_path, env=env, check=True)
    return tree(tmp_path / "vm")


@pytest.fixture(name="experiment")
def fixture_experiment(tmp_path, monkeypatch):
    """A working directory with gin files, modules and a wheel; returns its options."""
    here = tmp_path / "here"
    for name, text in {
        "my own.gin": "include 'conf/base.gin'\nimport tpu_vm_task\n",
        "conf/base.gin": "include 'sac/tf_pendulum.gin'\nfrom tpu_vm_parts import part\n",
        "tpu_vm_task.py": "",
        "tpu_vm_parts/__init__.py": "",
        "tpu_vm_parts/part.py": "",
        "tpu_vm_envs.py": "",
        "other.py": "",
        "dist/tfrl.whl": "",
    }.items():
        (here / name).parent.mkdir(parents=True, exist_ok=True)
        (here / name).write_text(text)
    monkeypatch.chdir(here)
    monkeypatch.syspath_prepend(str(here))
    yield dataclasses.replace(
        OPTIONS,
        gin_files=("my own.gin",),
        gin_bindings=("make_env.env_id = 'gymnasium:tpu_vm_envs:Task-v0'",),
    )
    for name in [name for name in sys.modules if name.startswith("tpu_vm_")]:
        del sys.modules[name]


def test_the_files_of_the_configuration_are_copied(tmp_path, experiment):
    packages = ("dist/tfrl.whl[reverb]", "my_envs")
    text = tpu_vm.script(experiment, accelerator_type="v4-8", packages=packages, **COMMON)
    files = {path.as_posix(): content for path, content in installed(tmp_path, text).items()}
    constraint = files.pop("tensorflow.txt").decode().strip()
    assert constraint == f"tensorflow=={importlib.metadata.version('tensorflow')}"
    assert files.pop("installed").decode().split() == [
        *"-m pip install -c tensorflow.txt ./tfrl.whl[reverb] my_envs".split(),
    ]
    assert sorted(files) == [
        "conf/base.gin",
        "my own.gin",
        "sac.tgz",
        "tfrl.lock",
        "tfrl.whl",
        "tpu_vm_envs.py",
        "tpu_vm_parts/__init__.py",
        "tpu_vm_parts/part.py",
        "tpu_vm_task.py",
    ]
    _, (*_, run) = calls(tmp_path, text, "run")
    assert "'--gin_file=my own.gin'" in run[-1]


def test_a_run_that_goes_on_keeps_its_files(tmp_path, experiment):
    text = tpu_vm.script(experiment, accelerator_type="v4-8", **COMMON)
    (tmp_path / "vm").mkdir()
    with open(tmp_path / "vm/tfrl.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        files = installed(tmp_path, text)
    assert sorted(path.name for path in files) == ["sac.tgz", "tfrl.lock"]


def test_without_files_of_this_machine_nothing_is_copied(tmp_path):
    text = tpu_vm.script(OPTIONS, accelerator_type="v4-8", **COMMON)
    _, (install,) = calls(tmp_path, text, "install")
    assert "-m pip install -c tensorflow.txt" in install[-1] and "tfrl[reverb]" in install[-1]


def test_a_copy_that_fails_is_a_lost_connection(tmp_path, experiment):
    text = tpu_vm.script(experiment, accelerator_type="v4-8", **COMMON)
    code, noted = calls(tmp_path, text, "install", SCP="1")
    assert code == 255 and len(noted) == 1


def test_files_that_cannot_be_copied_are_refused(tmp_path, experiment, monkeypatch):
    (tmp_path / "up.gin").write_text("include 'sac/tf_pendulum.gin'\n")
    (tmp_path / "here/up.gin").write_text("include '../up.gin'\n")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere/tpu_vm_far.py").touch()
    (tmp_path / "here/far.gin").write_text("import tpu_vm_far\n")
    monkeypatch.syspath_prepend(str(tmp_path / "elsewhere"))
    for file, package, message in (
        (
            f"{tmp_path}/up.gin",
            "tfrl[reverb]",
            f"Gin file '{tmp_path}/up.gin': expected a path relative",
        ),
        ("up.gin", "tfrl[reverb]", "Gin file '../up.gin': expected a path relative to the working"),
        (
            "far.gin",
            "tfrl[reverb]",
            "Module tpu_vm_far of the gin files: expected a module of the working",
        ),
        ("my own.gin", "dist/y.whl[reverb]", "--package=dist/y.whl[reverb]: expected a wheel that"),
    ):
        options = dataclasses.replace(experiment, gin_files=(file,))
        with pytest.raises(UserError) as error:
            tpu_vm.script(options, accelerator_type="v4-8", packages=[package], **COMMON)
        assert str(error.value).startswith(message)


def test_a_run_that_fails_on_a_tpu_that_is_there_ends(tmp_path):
    text = tpu_vm.script(OPTIONS, accelerator_type="v4-8", **COMMON)
    (tmp_path / "once").touch()
    code, noted = calls(tmp_path, text, code=2)
    assert code == 2
    assert steps(noted) == ["create", "install", "run", "delete"]


def test_a_run_on_the_disk_of_the_tpu_is_not_deleted(tmp_path):
    options = dataclasses.replace(OPTIONS, root_dir="runs/sac")
    text = tpu_vm.script(options, accelerator_type="v4-8", **COMMON)
    (tmp_path / "once").touch()
    code, noted = calls(tmp_path, text)
    assert code == 0 and steps(noted) == ["create", "install", "run"]


def test_a_pod_slice_is_driven_from_its_first_host(tmp_path):
    text = tpu_vm.script(OPTIONS, accelerator_type="v3-32", **COMMON)
    assert "--runtime-version=tpu-vm-tf-2.15.0-pod-pjrt" in text
    (tmp_path / "once").touch()
    _, (*_, run) = calls(tmp_path, text, "run")
    assert "export TPU_NAME=sac TPU_LOAD_LIBRARY=0; flock tfrl.lock tfrl-launch" in run[-1]
    assert run[-1].endswith("--strategy=tpu --tpu=sac")


REFUSED = {
    "zone": ({}, {"zone": None}, "--zone: expected the Google Cloud zone of the TPU"),
    "shell": ({}, {"zone": "us-c; echo hi"}, "--zone=us-c; echo hi: expected lower-case letters"),
    "name": ({}, {"name": "a_b"}, "--job_name=a_b"),
    "generation": (
        {},
        {"accelerator_type": "v1-8"},
        "--accelerator_type=v1-8: expected GENERATION",
    ),
    "size": ({}, {"accelerator_type": "v4-4"}, "v5p with a multiple of 8"),
    "strategy": ({"learner_flags": ("--strategy=mirrored",)}, {}, "--strategy=mirrored"),
    "spot": ({"root_dir": "runs/a"}, {"spot": True}, "expected gs://bucket/folder with --spot"),
    **{
        f"package_{name}": ({}, {"packages": [name]}, "--package: expected tfrl with the extra")
        for name in ("my_envs", "mytfrlenvs[reverb]", "tfrl-envs[reverb]", "tfrl")
    },
    **{
        f"package_{package}": ({}, {"packages": ["tfrl[reverb]", package]}, f"--package={package}")
        for package in (
            "tensorflow==2.16.1",
            "tensorflow-cpu",
            "Tensorflow_CPU==2.15.0",
            "tf-nightly",
            "https://host/tensorflow-2.15.0-cp310-cp310-linux_x86_64.whl",
        )
    },
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name):
    changed, changes, message = REFUSED[name]
    with pytest.raises(UserError) as error:
        options = dataclasses.replace(OPTIONS, **changed)
        tpu_vm.script(options, **{**COMMON, "accelerator_type": "v4-8", **changes})
    assert message in str(error.value)


@pytest.mark.parametrize("package", ["tensorflow~=2.15.0", "tensorflow", "tensorflow-datasets"])
def test_packages_that_leave_the_images_tensorflow(package):
    packages = ["tfrl[reverb] @ git+https://host/me/tfrl.git", package]
    made = tpu_vm.script(OPTIONS, **{**COMMON, "accelerator_type": "v4-8", "packages": packages})
    assert package in made


def test_the_command_prints_the_script(capsys):
    code, out, err = in_process(
        launch.main,
        capsys,
        *("--engine=tpu_vm", "--gin_file=sac/tf_pendulum.gin", "--root_dir=gs://bucket/sac"),
        *("--job_name=sac", "--zone=us-central2-b", "--accelerator_type=v5litepod-4", "--spot"),
    )
    assert (code, err) == (0, "")
    assert out.startswith("#!/usr/bin/env bash\n# sac on a Cloud TPU v5litepod-4 (one host)")
    code, _, err = in_process(
        launch.main, capsys, "--engine=tpu_vm", "--learners=2", "--gin_file=sac/tf_pendulum.gin"
    )
    assert code == 2 and "--learners=2: expected 1 with --engine=tpu_vm" in err


@pytest.mark.parametrize(
    "file, binding, message",
    [
        (
            "sac/tf_pendulum.gin",
            "OffPolicyWorkflow.batch_size = 100",
            "batch_size: expected a multiple of 8, the number of replay servers times the "
            "learner's 8 replicas, got 100. Bind OffPolicyWorkflow.batch_size to 104",
        ),
        (
            "impala/tf_cartpole.gin",
            "make_env.num_envs = 12",
            "make_env.num_envs: expected a multiple of the 8 replicas, which split the "
            "environments, got 12. The nearest are 8 and 16.",
        ),
    ],
)
def test_batches_that_the_devices_do_not_divide_are_refused(capsys, file, binding, message):
    code, out, err = in_process(
        launch.main,
        capsys,
        *("--engine=tpu_vm", f"--gin_file={file}", f"--gin_bindings={binding}"),
        *("--root_dir=gs://bucket/run", "--zone=us-central2-b", "--accelerator_type=v3-8"),
    )
    assert (code, out) == (2, "") and message in err


def test_the_devices_of_a_tpu():
    types = ("v3-32", "v4-16", "v5litepod-4")
    assert [tpu_vm.replicas(each) for each in types] == [32, 8, 4]
