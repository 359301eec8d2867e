"""`--engine=tpu_vm`: the script for gcloud, and what is refused."""

import dataclasses
import os
import shlex
import subprocess

import pytest

from tests.launch.launch_runs import in_process
from tfrl.errors import UserError
from tfrl.launch import job, launch, tpu_vm

OPTIONS = job.JobOptions(
    gin_files=("sac/tf_pendulum.gin",),
    gin_bindings=("train.total_env_steps=10 * 1000",),
    root_dir="gs://bucket/sac",
    seed=3,
    collectors=4,
    replay_servers=1,
    evaluators=0,
    wait_seconds=600.0,
    learner_flags=("--deterministic_ops=True", "--strategy=auto"),
)
COMMON = {"name": "sac", "zone": "us-central2-b"}
# Notes what it is called with. The first run is preempted, the second ends. The next queries of
# the state fail for as many lines as the file "lost" has, the next installations with the codes in
# "pip".
GCLOUD = """#!/usr/bin/env bash
case "$*" in *scp*|*ssh*|*create*|*delete*) printf '%q ' "$@" >> calls; echo >> calls;; esac
case "$*" in
  *describe*)
    if [[ -s lost ]]; then sed -i 1d lost; echo "HTTP 503" >&2; exit ${QUERY:-1}; fi
    if [[ ! -e state ]]; then echo "ERROR: (gcloud) NOT_FOUND: no $4" >&2; exit 1; fi
    cat state;;
  *create*) echo ACTIVE > state;;
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
        "--gin_bindings=train.total_env_steps=10 * 1000",
        *"--root_dir=gs://bucket/sac --seed=3 --collectors=4 --replay_servers=1".split(),
        *"--evaluators=0 --wait_seconds=600 --max_restarts=3 --deterministic_ops=True".split(),
        *"--strategy=tpu --tpu=local".split(),
    ]


def test_a_lost_ssh_is_no_end_of_the_run(tmp_path):
    text = tpu_vm.script(OPTIONS, accelerator_type="v4-8", **COMMON)
    code, noted = calls(tmp_path, text, after="ACTIVE")
    assert code == 0
    assert steps(noted) == ["create", "install", "run", "install", "run", "delete"]


def test_the_end_of_the_launcher_at_a_preemption_is_no_end_of_the_run(tmp_path):
    """The state shows it later: the TPU looks alive."""
    text = tpu_vm.script(OPTIONS, accelerator_type="v4-8", **COMMON)
    code, noted = calls(tmp_path, text, after="ACTIVE", FIRST="143")
    assert code == 0
    assert steps(noted) == ["create", "install", "run", "install", "run", "delete"]


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


@pytest.mark.parametrize("query", ["1", "0"])
def test_a_state_that_is_unknown_is_no_preemption(tmp_path, query):
    """The query fails, or prints nothing, three times."""
    text = tpu_vm.script(OPTIONS, accelerator_type="v4-8", **COMMON)
    code, noted = calls(tmp_path, text, after="ACTIVE", LOST="6", QUERY=query)
    assert code == 0
    assert steps(noted) == ["create", "install", "run", "install", "run", "delete"]


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


def test_a_wheel_of_this_machine_is_copied(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "dist").mkdir()
    (tmp_path / "dist/x.whl").touch()
    package = "dist/x.whl[reverb]"
    text = tpu_vm.script(OPTIONS, accelerator_type="v4-8", package=package, **COMMON)
    _, (upload, install) = calls(tmp_path, text, "install")
    assert upload[:6] == ["compute", "tpus", "tpu-vm", "scp", "dist/x.whl", "sac:x.whl"]
    assert install[-1].endswith("pip install -c tensorflow.txt './x.whl[reverb]'")


def test_files_of_one_name_are_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for folder in "ab":
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "x.gin").touch()
    options = dataclasses.replace(OPTIONS, gin_files=("a/x.gin", "b/x.gin"))
    with pytest.raises(UserError) as error:
        tpu_vm.script(options, accelerator_type="v4-8", **COMMON)
    assert "expected files of different names" in str(error.value)


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


def test_a_pod_slice_is_driven_from_its_first_host(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my own.gin").touch()
    options = dataclasses.replace(OPTIONS, gin_files=("my own.gin",))
    text = tpu_vm.script(options, accelerator_type="v3-32", **COMMON)
    assert "--runtime-version=tpu-vm-tf-2.15.0-pod-pjrt" in text
    (tmp_path / "once").touch()
    _, (upload, _) = calls(tmp_path, text, "install")
    assert upload[:6] == ["compute", "tpus", "tpu-vm", "scp", "my own.gin", "sac:my own.gin"]
    _, (*_, run) = calls(tmp_path, text, "run")
    assert "export TPU_NAME=sac TPU_LOAD_LIBRARY=0; flock tfrl.lock tfrl-launch" in run[-1]
    assert run[-1].endswith("--strategy=tpu --tpu=sac")


REFUSED = {
    "zone": ({}, {"zone": None}, "--zone: expected the Google Cloud zone of the TPU"),
    "name": ({}, {"name": "a_b"}, "--job_name=a_b"),
    "generation": (
        {},
        {"accelerator_type": "v1-8"},
        "--accelerator_type=v1-8: expected GENERATION",
    ),
    "size": ({}, {"accelerator_type": "v4-4"}, "v5p with a multiple of 8"),
    "strategy": ({"learner_flags": ("--strategy=mirrored",)}, {}, "--strategy=mirrored"),
    "spot": ({"root_dir": "runs/a"}, {"spot": True}, "expected gs://bucket/folder with --spot"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name):
    changed, changes, message = REFUSED[name]
    with pytest.raises(UserError) as error:
        options = dataclasses.replace(OPTIONS, **changed)
        tpu_vm.script(options, **{**COMMON, "accelerator_type": "v4-8", **changes})
    assert message in str(error.value)


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
            "learner's 8 devices, got 100. Bind OffPolicyWorkflow.batch_size to 104",
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
