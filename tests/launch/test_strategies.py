"""The binaries on two replicas: of one process, and of two processes that TF_CONFIG names."""

import json

import pytest

from tests.distribute.processes import Cluster
from tests.launch import launch_runs
from tests.launch.launch_runs import ITERATION, arguments, command, in_process, run
from tfrl.launch import evaluate, termination, train

STEPS = 4 * ITERATION
PLAIN = ("train.video=False", "train.eval_interval=64")
MIRRORED = ("--strategy=mirrored", "--num_logical_cpus=2")


@pytest.fixture(autouse=True)
def _own_signals(monkeypatch):
    """Leaves pytest its Ctrl-C."""
    monkeypatch.setattr(termination.Termination, "install", lambda self: None)


@pytest.fixture(name="mirrored", scope="module")
def fixture_mirrored(tmp_path_factory):
    """A run on two replicas of one process: (folder, completed process)."""
    root = tmp_path_factory.mktemp("mirrored") / "run"
    done = run("train", *MIRRORED, *arguments(root, STEPS, *PLAIN))
    assert done.returncode == 0, done.stdout + done.stderr
    return root, done


@pytest.mark.slow
def test_two_replicas_make_a_run_like_one(mirrored):
    root, done = mirrored
    assert "; mirrored, 2 replicas on CPU:0, CPU:1; folder " in done.stdout
    rows = [*range(ITERATION, STEPS + 1, ITERATION)]  # Each step of 4 environments, once.
    assert launch_runs.csv_steps(root) == rows
    assert launch_runs.jsonl_steps(root) == rows
    assert launch_runs.tensorboard_steps(root) == rows
    records = [json.loads(line) for line in (root / "metrics.jsonl").open()]
    assert [r["env_steps"] for r in records if r.get("eval_episodes") == 4] == [64, STEPS]
    summary = launch_runs.summary(root)
    assert (summary["env_steps"], summary["eval_episodes"]) == (STEPS, 4)
    assert json.loads((root / "metadata.json").read_text())["num_replicas"] == 2


def test_two_processes_make_the_same_run(mirrored, tmp_path):
    root = tmp_path / "run"
    args = ("--strategy=multi_worker", *arguments(root, STEPS, *PLAIN))
    with Cluster(command("train", *args), 2, tmp_path) as cluster:
        cluster.start().wait_all()
    head = cluster.out(0).splitlines()[0]
    assert "; multi_worker, 2 replicas on CPU:0 of each of 2 workers; this is worker 0 " in head
    assert (cluster.out(1), cluster.err(1)) == ("", ""), "the chief speaks for all"
    assert launch_runs.digest(root) == launch_runs.digest(mirrored[0])
    rows = [*range(ITERATION, STEPS + 1, ITERATION)]
    assert launch_runs.csv_steps(root) == launch_runs.jsonl_steps(root) == rows
    assert launch_runs.tensorboard_steps(root) == rows
    names = [sorted(p.name for p in folder.iterdir()) for folder in (root, mirrored[0])]
    assert names[0] == names[1]
    assert not list(root.rglob(".tmp-*"))


def test_a_run_stays_on_its_number_of_replicas(mirrored, capsys):
    root = mirrored[0]
    before = launch_runs.tree(root)
    args = arguments(root, 2 * STEPS, *PLAIN)
    code, out, err = in_process(train.main, capsys, "--strategy=one_device", *args)
    assert (code, out) == (2, "")
    assert err == (
        f"Error: root_dir {root}: expected 2 replicas, on which its run was started "
        "(--strategy=mirrored --num_logical_cpus=2), got 1 replica (one_device, 1 replica on "
        "CPU:0). Resume with the same number of replicas, choose another --root_dir, or move the "
        "run aside with --if_exists=new. Evaluation runs on any number.\n"
    )
    assert launch_runs.tree(root) == before


@pytest.mark.parametrize(
    "flags", [("--strategy=one_device",), ("--strategy=mirrored", "--num_logical_cpus=4")]
)
@pytest.mark.variants(1)
def test_a_run_is_evaluated_on_any_number_of_replicas(mirrored, capsys, flags):
    root = mirrored[0]
    before = launch_runs.tree(root)
    code, out, err = in_process(
        evaluate.main, capsys, f"--root_dir={root}", "--episodes=5", "--checkpoint=latest", *flags
    )
    assert (code, err) == (0, "")
    figures = json.loads(out.splitlines()[-1])
    assert (figures["eval_episodes"], figures["env_steps"]) == (5, STEPS)
    assert figures["eval_return_mean"] >= 8  # No CartPole episode is shorter.
    assert launch_runs.tree(root) == before


@pytest.mark.parametrize("binary", ["train", "evaluate"])
@pytest.mark.variants(1)
def test_a_malformed_tf_config_is_said_at_once(binary, tmp_path, monkeypatch):
    monkeypatch.setenv("TF_CONFIG", '{"cluster": {"worker": ["a:1", "b:2"]}}')
    done = run(binary, f"--root_dir={tmp_path / 'run'}")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("Error: TF_CONFIG: expected a description of the workers like ")
    assert "got no task (needs type and index of this process). Correct the" in done.stderr
    assert done.stderr.count("\n") == 1
