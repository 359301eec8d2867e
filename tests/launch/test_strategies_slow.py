"""The binaries in several processes: signals, losses, mistakes, and how runs go on after them."""

import json
import signal
import time

import pytest

from tests.distribute.processes import Cluster
from tests.launch import launch_runs
from tests.launch.launch_runs import ITERATION, arguments, command, run

pytestmark = pytest.mark.slow

STEPS = 64 * ITERATION
SETTINGS = (
    "train.video=False",
    f"train.checkpoint_interval={ITERATION}",
    "OnPolicyWorkflow.iterations_per_call=1",
)
MIRRORED = ("--strategy=mirrored", "--num_logical_cpus=2")
WORKERS = "--strategy=multi_worker"


def spread(root, folder, *args):
    """Two workers of a training that are not started yet."""
    folder.mkdir(exist_ok=True)
    args = args or arguments(root, STEPS, *SETTINGS)
    return Cluster(command("train", WORKERS, *args), 2, folder)


def newest(root):
    return max(int(p.parent.name[5:]) for p in (root / "checkpoints").glob("ckpt-*/COMPLETE"))


def wait_for(cluster, root, steps):
    deadline = time.monotonic() + 60.0
    while not (root / "checkpoints").is_dir() or newest_or(root, 0) < steps:
        assert time.monotonic() < deadline, cluster.report()
        time.sleep(0.002)


def newest_or(root, default):
    try:
        return newest(root)
    except (ValueError, OSError):  # There is none; or one goes while it is looked at.
        return default


@pytest.fixture(name="straight", scope="module")
def fixture_straight(tmp_path_factory):
    """The digest of a run on two replicas that nothing interrupts, in one process."""
    root = tmp_path_factory.mktemp("straight") / "run"
    done = run("train", *MIRRORED, *arguments(root, STEPS, *SETTINGS))
    assert done.returncode == 0, done.stderr
    return launch_runs.digest(root)


def check_records(root):
    rows = [*range(ITERATION, STEPS + 1, ITERATION)]
    assert launch_runs.csv_steps(root) == rows
    assert launch_runs.jsonl_steps(root) == rows
    assert launch_runs.tensorboard_steps(root) == rows
    assert not list(root.rglob(".tmp-*"))


@pytest.mark.parametrize("asked", [0, 1])
def test_sigterm_to_one_worker_ends_both_and_the_run_goes_on(straight, tmp_path, asked):
    root = tmp_path / "run"
    with spread(root, tmp_path / "logs") as cluster:
        cluster.start()
        wait_for(cluster, root, 3 * ITERATION)
        cluster.signal(asked, signal.SIGTERM)
        assert [cluster.wait(i, 60.0) for i in (0, 1)] == [143, 143], cluster.report()
        steps = newest(root)
        who = "SIGTERM" if asked == 0 else "another worker"
        assert cluster.out(0).splitlines()[-1] == (
            f"Stopped by {who} at {steps:,} env steps; saved. The same command goes on."
        )
        assert launch_runs.csv_steps(root)[-1] == steps
        assert not (root / "summary.json").exists()
        cluster.start().wait_all()
    assert f"going on at {steps:,} of" in cluster.out(0)
    assert launch_runs.digest(root) == straight
    check_records(root)


@pytest.mark.parametrize("lost", [0, 1])
def test_a_killed_worker_ends_the_other_with_one_paragraph(straight, tmp_path, lost):
    root = tmp_path / "run"
    with spread(root, tmp_path / "logs") as cluster:
        cluster.start()
        wait_for(cluster, root, 3 * ITERATION)
        cluster.signal(lost, signal.SIGKILL)
        assert cluster.wait(1 - lost, 30.0) == 75, cluster.report()
        said = [line for line in cluster.err(1 - lost).splitlines() if "env steps" not in line]
        assert len(said) == 1, cluster.report()
        assert said[0].startswith(
            f"Error: Worker {lost} (127.0.0.1:{cluster.ports[lost]}): expected every worker to "
            "answer until the run ends, got a lost connection ("
        )
        assert said[0].endswith(
            "). Restart all workers with the same command to resume from the last complete "
            "checkpoint."
        )
        steps = newest(root)
        cluster.wait(lost)
        cluster.start().wait_all()
    assert f"going on at {steps:,} of" in cluster.out(0)
    assert launch_runs.digest(root) == straight
    check_records(root)


def test_processes_and_devices_take_each_others_place(straight, tmp_path):
    root = tmp_path / "run"
    args = arguments(root, STEPS // 2, *SETTINGS)
    with spread(root, tmp_path / "logs", *args) as cluster:
        cluster.start().wait_all()
    done = run("train", *MIRRORED, *arguments(root, STEPS, *SETTINGS))
    assert done.returncode == 0, done.stderr
    assert f"going on at {STEPS // 2:,} of {STEPS:,}" in done.stdout
    assert "flags.strategy: multi_worker -> mirrored" in done.stdout
    assert launch_runs.digest(root) == straight
    check_records(root)

    # Nothing left to train: all processes agree on that too, and change nothing.
    before = launch_runs.tree(root)
    with spread(root, tmp_path / "done") as cluster:
        cluster.start().wait_all()
    assert f"nothing to train in {root}: the budget is done" in cluster.out(0)
    assert (cluster.out(1), cluster.err(1)) == ("", "")
    assert launch_runs.tree(root) == before

    # Two processes share the episodes of an evaluation; one tells.
    (tmp_path / "evaluation").mkdir()
    program = command("evaluate", WORKERS, f"--root_dir={root}", "--episodes=5")
    with Cluster(program, 2, tmp_path / "evaluation") as cluster:
        cluster.start().wait_all()
    figures = json.loads(cluster.out(0).splitlines()[-1])
    assert (figures["eval_episodes"], figures["env_steps"]) == (5, STEPS)
    assert (cluster.out(1), cluster.err(0), cluster.err(1)) == ("", "", "")
    assert launch_runs.tree(root) == before


def both_end(cluster):
    """The one line that each worker says before it ends with code 2."""
    cluster.start()
    assert [cluster.wait(i, 60.0) for i in (0, 1)] == [2, 2], cluster.report()
    lines = [cluster.err(i).splitlines() for i in (0, 1)]
    assert [len(each) for each in lines] == [1, 1], cluster.report()
    return [each[0] for each in lines]


def test_mistakes_end_all_workers_with_the_same_paragraph(tmp_path):
    root = tmp_path / "run"
    args = arguments(root, STEPS, *SETTINGS, "make_env.num_envs=5",
                     "OnPolicyWorkflow.num_minibatches=5")  # fmt: skip
    with spread(root, tmp_path / "odd", *args) as cluster:
        first, second = both_end(cluster)
    assert first == second
    assert first.startswith("Error: num_envs: expected a multiple of the 2 replicas, which split")

    done = run("train", *MIRRORED, *arguments(root, 2 * ITERATION, *SETTINGS))
    assert done.returncode == 0, done.stderr
    args = arguments(root, STEPS, *SETTINGS, "PPO.clip=0.3")
    with spread(root, tmp_path / "other", *args) as cluster:
        first, second = both_end(cluster)
    assert first == second
    assert "got PPO.clip = '0.3' (the run has '0.2'). Use the run's values" in first


def test_workers_with_different_commands(tmp_path):
    # A shell gives each process what only it has.
    root = tmp_path / "run"
    binary, *rest = command("train", WORKERS, *arguments(root, STEPS, *SETTINGS))
    program = [
        "bash", "-c",
        'case "$TF_CONFIG" in *\'"index": 1\'*) set -- "$@" --seed=7;; esac; exec "$@"',
        "bash", binary, *rest,
    ]  # fmt: skip
    with Cluster(program, 2, tmp_path) as cluster:
        first, second = both_end(cluster)
    assert first == second
    assert first == (
        "Error: The workers: expected the same gin files, bindings and seed in every process, got "
        f"different ones in worker 1 (127.0.0.1:{cluster.ports[1]}) than in worker 0 "
        f"(127.0.0.1:{cluster.ports[0]}). Start all workers with one command, and "
        "a --root_dir that all of them see."
    )


def test_workers_that_do_not_see_the_same_folder(tmp_path):
    # Each has a folder of its own, as on machines without a common file system.
    folders = [tmp_path / "a", tmp_path / "b"]
    binary, *rest = command("train", WORKERS, *arguments("run", 2 * ITERATION, *SETTINGS))
    for folder in folders:
        folder.mkdir()
    choose = f'case "$TF_CONFIG" in *\'"index": 1\'*) cd {folders[1]};; *) cd {folders[0]};; esac'
    with Cluster(["bash", "-c", f'{choose}; exec "$@"', "bash", binary, *rest], 2, tmp_path) as c:
        c.start().wait_all()  # A fresh run needs nothing from the folder.
        assert not list(folders[1].iterdir())
    longer = arguments("run", STEPS, *SETTINGS)
    program = command("train", WORKERS, *longer)
    with Cluster(["bash", "-c", f'{choose}; exec "$@"', "bash", *program], 2, tmp_path) as cluster:
        cluster.start()
        assert [cluster.wait(i, 60.0) for i in (0, 1)] == [2, 2], cluster.report()
    assert "a --root_dir that all of them see" in cluster.err(1)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (
            ["--strategy=mirrored"],
            "Error: --strategy=mirrored: expected a GPU, or a CPU split into several devices, got "
            "1 CPU device and no GPU. Add --num_logical_cpus=2",
        ),
        (["--strategy=tpu"], "Error: --strategy=tpu: expected a TPU at 'local'"),
        (["--tpu=local"], "Error: --strategy=tpu: expected a TPU at 'local' (from --tpu)"),
    ],
)
def test_what_is_not_there(tmp_path, flags, message):
    done = run("train", f"--root_dir={tmp_path / 'run'}", *flags)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(message), done.stderr
    assert done.stderr.count("\n") == 1, done.stderr
    assert not (tmp_path / "run").exists()
