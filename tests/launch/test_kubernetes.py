"""`--engine=kubernetes`: the JobSet of a job, and what is refused."""

import dataclasses
import json
import pathlib

import pytest

from tests.launch import jobset_pods
from tests.launch.launch_runs import in_process
from tfrl.distribute import multi_worker
from tfrl.errors import UserError
from tfrl.launch import job, kubernetes, launch, resources

GOLDENS = pathlib.Path(__file__).parent / "goldens"
OPTIONS = job.JobOptions(
    gin_files=("dqn/gymnasium_cartpole.gin",),
    gin_bindings=("train.total_env_steps=1000",),
    root_dir="/runs/dqn",
    seed=3,
    collectors=2,
    replay_servers=1,
    evaluators=1,
    wait_seconds=600.0,
)
COMMON = {"name": "dqn", "image": "example.com/tfrl:1", "volume": "claim:/runs"}
CASES = {
    "cpu": (OPTIONS, {}),
    "gpu_workers": (
        dataclasses.replace(OPTIONS, learners=2, replay_servers=2, evaluators=0),
        {
            "resources": resources.parsed(["learner:cpu=4,memory=16Gi,gpu=1", "server:memory=8Gi"]),
            "node_selectors": kubernetes.node_selectors(
                ["learner:cloud.google.com/gke-accelerator=nvidia-l4"]
            ),
        },
    ),
    "tpu": (
        dataclasses.replace(OPTIONS, root_dir="gs://bucket/dqn", evaluators=0),
        {
            "volume": None,
            "tpu_topology": "v5e:2x4",
            "service_account": "tfrl",
            "max_restarts": 5,
        },
    ),
}


def rendered(name):
    options, changes = CASES[name]
    return kubernetes.job_set(options, **{**COMMON, **changes})


@pytest.mark.parametrize("name", CASES)
def test_goldens(name):
    """After a change that is meant: write what this returns into the file."""
    golden = GOLDENS / f"jobset_{name}.json"
    assert kubernetes.text(rendered(name)) + "\n" == golden.read_text()


@pytest.mark.parametrize("name", CASES)
def test_kubernetes_takes_the_pods(name):
    validate = pytest.importorskip("kubernetes_validate")
    names = []
    for replicated in rendered(name)["spec"]["replicatedJobs"]:
        nest = {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": {"name": replicated["name"]},
            "spec": replicated["template"]["spec"],
        }
        validate.validate(nest, "1.31", strict=True)
        names.append(replicated["name"])
        nest["spec"]["template"]["spec"]["containers"][0]["comand"] = []
        with pytest.raises(validate.ValidationError, match="comand"):
            validate.validate(nest, "1.31", strict=True)
    evaluator = ["evaluator"] * CASES[name][0].evaluators
    assert names == ["server", "learner", "collector", *evaluator]


def test_each_pod_knows_its_place():
    pods = jobset_pods.pods(rendered("gpu_workers"))
    assert [pod.host for pod in pods] == [
        "dqn-server-0-0.dqn",
        "dqn-server-1-0.dqn",
        "dqn-learner-0-0.dqn",
        "dqn-learner-0-1.dqn",
        "dqn-collector-0-0.dqn",
        "dqn-collector-1-0.dqn",
    ]
    servers, learners, collector = pods[:2], pods[2:4], pods[-1]
    assert [word for pod in servers for word in pod.command if "root_dir" in word] == [
        "--root_dir=/runs/dqn/servers/0",
        "--root_dir=/runs/dqn/servers/1",
    ]
    replay = ",".join(f"{server.host}:8000" for server in servers)
    addresses = ["dqn-learner-0-0.dqn:2222", "dqn-learner-0-1.dqn:2222"]
    for i, learner in enumerate(learners):
        assert json.loads(learner.env["TF_CONFIG"]) == {
            "cluster": {"worker": addresses},
            "task": {"type": "worker", "index": i},
        }
        assert f"--replay_server={replay}" in learner.command
    assert "--task_id=1" in collector.command and "--num_tasks=2" in collector.command
    assert "TF_CONFIG" not in collector.env


@pytest.mark.parametrize("name", CASES)
def test_a_mistake_ends_the_job_and_workers_that_do_not_meet_do_not(name):
    for replicated in rendered(name)["spec"]["replicatedJobs"]:
        rules = replicated["template"]["spec"]["podFailurePolicy"]["rules"]
        fatal = [r["onExitCodes"] for r in rules if r["action"] == "FailJob"]
        if replicated["name"] == "evaluator":  # the job goes on without it
            assert not fatal and replicated["template"]["spec"]["backoffLimit"] > 10**9
            continue
        (fatal,) = fatal
        codes = {error.exit_code for error in (UserError, multi_worker.RendezvousError)}
        assert fatal["containerName"] == replicated["name"] and fatal["operator"] == "In"
        assert codes & set(fatal["values"]) == {UserError.exit_code}


def test_arguments_reach_the_binaries_as_they_are():
    bindings = ("a = '$(TFRL_INDEX)$$'", "b = '--task_id=0'", "c = '/servers/0")
    options = dataclasses.replace(OPTIONS, gin_bindings=bindings)
    for pod in jobset_pods.pods(kubernetes.job_set(options, **COMMON)):
        given = [word for word in pod.command if word.startswith("--gin_bindings=")]
        assert given == [f"--gin_bindings={binding}" for binding in bindings]


REFUSED = {
    "name": ({}, {"name": "A_b"}, "--job_name=A_b: expected at most 40 lower-case letters"),
    "image": ({}, {"image": None}, "--image: expected the container image of the pods"),
    "spaced_image": ({}, {"image": "x y"}, "got 'x y'"),
    "account": ({}, {"service_account": "Bad Name"}, "--service_account=Bad Name"),
    "bucket": ({"root_dir": "gs://"}, {}, "expected a folder of --volume, or gs://bucket/folder"),
    "own_disk": ({"root_dir": "runs/x"}, {}, "a folder of the pod's own disk"),
    "beside": ({"root_dir": "/runs/../tmp"}, {}, "a folder of the pod's own disk"),
    "no_volume": ({}, {"volume": None}, "expected a folder of --volume, or gs://bucket/folder"),
    "volume": ({}, {"volume": "runs"}, "--volume=runs: expected CLAIM:/folder"),
    "claim": ({}, {"volume": "Claim_1:/runs"}, "--volume=Claim_1:/runs: expected CLAIM:/folder"),
    "whole_volume": ({}, {"volume": "claim:/"}, "--volume=claim:/: expected CLAIM:/folder"),
    "long_claim": ({}, {"volume": f"{'a' * 300}:/runs"}, "expected CLAIM:/folder"),
    "account_dots": (
        {},
        {"service_account": "a..b"},
        "--service_account=a..b: expected lower-case",
    ),
    "gin_file": ({"gin_files": ("/home/me/a.gin",)}, {}, "got a path of this machine"),
    "gin_file_above": ({"gin_files": ("../a.gin",)}, {}, "got a path of this machine"),
    "gin_file_at_home": ({"gin_files": ("~/a.gin",)}, {}, "got a path of this machine"),
    "volume_of_two": ({}, {"volume": "claim:/runs:ro"}, "--volume=claim:/runs:ro: expected CLAIM:"),
    "topology": ({}, {"tpu_topology": "v5e:4x4"}, "expected one of v4:2x2x1, v5e:1x1"),
    "no_topology": (
        {"learner_flags": ("--strategy=tpu",)},
        {},
        "--strategy=tpu: expected --tpu_topology",
    ),
    "tpu_workers": ({"learners": 2}, {"tpu_topology": "v4:2x2x1"}, "got --learners=2"),
    "strategy": (
        {"learner_flags": ("--strategy=mirrored",)},
        {"tpu_topology": "v4:2x2x1"},
        "got --learners=1 --strategy=mirrored --tpu=local",
    ),
    "tpu": (
        {"learner_flags": ("--tpu=grpc://a:8470",)},
        {"tpu_topology": "v4:2x2x1"},
        "got --learners=1 --strategy=auto --tpu=grpc://a:8470",
    ),
    "chips": ({}, {"resources": resources.parsed(["learner:tpu=4"])}, "expected --tpu_topology"),
    "both": (
        {},
        {"resources": resources.parsed(["learner:tpu=4"]), "tpu_topology": "v4:2x2x1"},
        "--resources=learner:tpu=4: expected --tpu_topology",
    ),
    "collector": (
        {},
        {"resources": resources.parsed(["collector:tpu=4"])},
        "--resources=collector:tpu=4: expected --tpu_topology",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name):
    changed, changes, message = REFUSED[name]
    with pytest.raises(UserError) as error:
        kubernetes.job_set(dataclasses.replace(OPTIONS, **changed), **{**COMMON, **changes})
    assert message in str(error.value)


def test_an_included_file_of_this_machine_is_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "base.gin").touch()
    (tmp_path / "mine.gin").write_text(f"include '{tmp_path}/base.gin'\n")
    options = dataclasses.replace(OPTIONS, gin_files=("mine.gin",))
    with pytest.raises(UserError, match="^include '.*/base.gin': expected a file of the image"):
        kubernetes.job_set(options, **COMMON)


@pytest.mark.parametrize(
    "label", ["a b=c", "a/b/c=d", "é=d", "-a=d", "a=-d", "A.b/c=d", "a" * 64 + "=d"]
)
def test_labels_of_another_form_are_refused(label):
    with pytest.raises(UserError) as error:
        kubernetes.node_selectors([f"learner:{label}"])
    assert str(error.value).startswith(f"--node_selector=learner:{label}: expected ROLE:LABEL=VAL")


def test_labels():
    found = kubernetes.node_selectors(["learner:cloud.google.com/gke-pool=Big_1", "learner:a="])
    assert found == {"learner": {"cloud.google.com/gke-pool": "Big_1", "a": ""}}


@pytest.mark.parametrize(
    "value",
    [
        *("learner", "actor:cpu=1", "learner:cpu=x", "learner:ram=1Gi", "a:cpu=2n"),
        *("learner:cpu=\N{ARABIC-INDIC DIGIT THREE}", "learner:cpu=0.0001"),
    ],
)
def test_resources_of_another_form_are_refused(value):
    with pytest.raises(UserError) as error:
        resources.parsed([value])
    assert str(error.value).startswith(f"--resources={value}: expected ROLE:NAME=AMOUNT")


def test_gpus_are_for_the_learner_and_who_asks():
    for asked, kinds in ((), ["learner"]), (["collector:gpu=1"], ["learner", "collector"]):
        assert resources.gpu_kinds(resources.parsed(asked)) == kinds
    none = resources.parsed(["learner:gpu=0", "collector:gpu=0"])
    assert resources.gpu_kinds(none) == []


def test_amounts_in_kubernetes_notation():
    asked = resources.parsed(["collector:cpu=500m,memory=2G", "learner:cpu=1.5,memory=1Ki"])
    amounts = [asked.of("collector"), asked.of("learner")]
    assert [resources.in_cores(a["cpu"]) for a in amounts] == [0.5, 1.5]
    assert [resources.in_bytes(a["memory"]) for a in amounts] == [2 * 10**9, 1024]


def test_the_command_prints_a_file_for_kubectl(capsys):
    code, out, err = in_process(
        launch.main,
        capsys,
        "--engine=kubernetes",
        "--quiet",
        "--gin_file=dqn/gymnasium_cartpole.gin",
        "--gin_bindings=train.total_env_steps=1000",
        "--seed=3",
        "--evaluators=1",
        "--root_dir=/runs/dqn",
        "--job_name=dqn",
        "--image=example.com/tfrl:1",
        "--volume=claim:/runs",
    )
    assert (code, err) == (0, "")
    assert out == (GOLDENS / "jobset_cpu.json").read_text()
