"""examples/task_ppo.py: its advantages, a short run, and (slow) that it solves CartPole."""

import re
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

from examples import task_ppo
from tests.docs_helpers import ROOT
from tests.launch import launch_runs
from tests.tasks.test_clips import trajectory
from tfrl.errors import UserError
from tfrl.launch import settings
from tfrl.tasks import TaskWorkflow

SHORT = (
    "train.total_env_steps=256",
    "train.checkpoint_interval=64",
    "train.eval_interval=1000",
    "train.final_eval_episodes=2",
    "TaskWorkflow.eval_episodes=2",
    "RLTaskConfig.num_collect_steps=64",
    "RLTaskConfig.num_update_steps=2",
    "RLTaskConfig.batch_size=16",
    "RLTaskConfig.max_steps=20",
)


def short(root, *more):
    """The flags of a short run of the example."""
    merged = {text.partition("=")[0]: text for text in (*SHORT, *more)}
    gin_file = f"--gin_file={ROOT / 'examples' / 'task_ppo.gin'}"
    return [gin_file, f"--root_dir={root}", *(f"--gin_bindings={text}" for text in merged.values())]


@pytest.mark.parametrize("terminates", [False, True])
def test_advantages_by_hand(monkeypatch, terminates):
    # Discount 0.5 and lambda 0.5: a delta two steps ahead counts a sixteenth.
    monkeypatch.setattr(task_ppo, "DISCOUNT", 0.5)
    monkeypatch.setattr(task_ppo, "GAE_LAMBDA", 0.5)
    monkeypatch.setattr(task_ppo, "_call", lambda model, states: (None, tf.constant([[8.0]])))
    task = task_ppo.PPOTask(task_ppo.config())
    sampled = trajectory(3).replace(
        reward=np.float32([1, 2, 3]),
        termination=np.array([False, False, terminates]),
        last_obs=np.zeros([4], np.float32),
        extras={"value": np.float32([4, 2, 6])},
    )
    found = task.postprocess_trajectory(None, sampled).extras
    # 1 + 2/2 - 4 = -2; 2 + 6/2 - 2 = 3; 3 + 8/2 - 6 = 1, or 3 - 6 = -3 where nothing follows.
    last = -3.0 if terminates else 1.0
    advantages = [-2 + 3 / 4 + last / 16, 3 + last / 4, last]
    assert found["advantage"].tolist() == advantages
    np.testing.assert_allclose(found["target"], np.add(advantages, [4, 2, 6]))
    assert found["advantage"].dtype == found["target"].dtype == np.float32


def test_a_few_updates():
    config = task_ppo.config(num_collect_steps=128, num_update_steps=3, batch_size=32)
    workflow = TaskWorkflow(task=task_ppo.PPOTask(config))
    row, state = workflow.step(workflow.setup(0))
    assert (row["env_steps"], row["learner_steps"], row["action_batch_size"]) == (128, 3, 8.0)
    # At first both actions are about as likely, and one step changes little.
    assert row["entropy"] == pytest.approx(np.log(2), abs=1e-3) and 0 <= row["kl"] < 1e-2
    assert np.isfinite(row["loss"]) and 1 <= workflow.final_evaluation(state, 2).mean <= 500
    workflow.close()


def test_the_gin_file_has_the_numbers_of_the_script():
    built = settings.assemble([str(ROOT / "examples" / "task_ppo.gin")])
    assert isinstance(built.workflow.task, task_ppo.PPOTask)
    assert built.workflow.task.config == task_ppo.config()


def test_gin_names_the_number_that_is_required(tmp_path):
    lines = (ROOT / "examples" / "task_ppo.gin").read_text().splitlines()
    kept = [line for line in lines if "num_update_steps" not in line]
    (tmp_path / "my.gin").write_text("\n".join(kept))
    with pytest.raises(UserError) as error:
        settings.assemble([str(tmp_path / "my.gin")])
    assert error.value.thing == "num_update_steps of RLTaskConfig"


def test_the_example_is_short():
    assert len((ROOT / "examples" / "task_ppo.py").read_text().splitlines()) < 150


@pytest.mark.slow
def test_the_binaries_run_a_task(tmp_path):
    root = tmp_path / "run"
    done = launch_runs.run("train", *short(root), cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    assert {p.name for p in root.iterdir()} >= {
        *("operative_config.gin", "metadata.json", "metrics.csv", "metrics.jsonl"),
        *("tensorboard", "checkpoints", "policy", "videos", "summary.json"),
    }
    rows = [64, 128, 192, 256]
    assert launch_runs.csv_steps(root) == launch_runs.tensorboard_steps(root) == rows
    told = launch_runs.summary(root)
    assert (told["env_steps"], told["eval_episodes"]) == (256, 2)
    assert (root / told["video"]).stat().st_size > 1000
    policy = tf.saved_model.load(str(root / "policy")).signatures["action"]
    assert policy(observation=tf.zeros([3, 4]))["action"].shape == [3]
    video = tmp_path / "clip.gif"
    flags = (f"--root_dir={root}", "--episodes=3", f"--video={video}", "--allow_code")
    again = launch_runs.run("evaluate", *flags)
    assert again.returncode == 0, again.stdout + again.stderr
    assert video.stat().st_size > 1000 and '"eval_episodes": 3' in again.stdout


@pytest.mark.slow
def test_a_run_that_is_terminated_goes_on(tmp_path):
    root, log = tmp_path / "run", tmp_path / "log"
    command = short(root, "train.total_env_steps=1_000_000")
    process = launch_runs.start("train", *command, log=log)
    try:
        launch_runs.wait_for_steps(process, root, 128)
        process.terminate()
        assert process.wait(300) == 143, log.read_text()
    finally:
        process.kill()
    stopped = launch_runs.csv_steps(root)
    assert stopped == list(range(64, stopped[-1] + 1, 64))
    assert (root / "checkpoints" / f"ckpt-{stopped[-1]}").is_dir()
    total = stopped[-1] + 128
    done = launch_runs.run("train", *short(root, f"train.total_env_steps={total}"), cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"going on at {stopped[-1]:,} of {total:,} env steps" in done.stdout
    assert launch_runs.csv_steps(root) == list(range(64, total + 1, 64))
    assert launch_runs.summary(root)["env_steps"] == total


@pytest.mark.slow
def test_it_solves_cartpole():
    script = [sys.executable, "examples/task_ppo.py", "--seed=0"]
    done = subprocess.run(script, cwd=ROOT, capture_output=True, text=True, timeout=1200)
    assert done.returncode == 0, done.stderr
    mean = float(re.search(r"seed 0: ([\d.]+) \+- ", done.stdout)[1])
    assert mean >= 475.0
