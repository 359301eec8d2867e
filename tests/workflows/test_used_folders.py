"""Folders with a run: its identity, files that may be dropped, and checkpoint content."""

import json

import numpy as np
import pytest

import tfrl
from tfrl.agents import PPO
from tfrl.errors import UserError
from tfrl.experiment.callbacks import STOP, Callback
from tfrl.experiment.checkpoints import CheckpointManager
from tfrl.workflows import OnPolicyWorkflow


def workflow(compile="graph"):
    env = tfrl.make_env("tf:CartPole-v1", num_envs=4, autoreset="SAME_STEP")
    agent = PPO(obs_spec=env.obs_spec, action_spec=env.action_spec, hidden=(8,))
    return OnPolicyWorkflow(
        env=env,
        agent=agent,
        rollout_length=8,
        num_epochs=1,
        num_minibatches=2,
        eval_episodes=2,
        compile=compile,
        iterations_per_call=1,
    )


def learn(w, state, total, root=None, **options):
    options = {"progress": False, "recorders": ("csv", "jsonl"), **options}
    if root is not None:
        options["root_dir"] = str(root)
    return w.learn(state, total_env_steps=total, **options)


def steps_of(folder):
    return CheckpointManager(folder, read_only=True).steps


def rows_of(root):
    lines = (root / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line)["env_steps"] for line in lines]


@pytest.fixture(scope="module")
def w():
    return workflow()


@pytest.fixture
def used(w, tmp_path):
    """A run of 96 env steps with a checkpoint at each 32, and its last state."""
    root = tmp_path / "run"
    state = learn(w, w.setup(0), 96, root, checkpoint_interval=32)
    assert steps_of(root / "checkpoints") == rows_of(root) == [32, 64, 96]
    return root, state


def content(root):
    return {p: p.read_bytes() for p in root.rglob("*") if p.is_file()}


def test_saving_an_older_state_keeps_the_newer(w, tmp_path, recwarn):
    _, state = w.step(w.setup(0))
    copy = w.snapshot(state)
    _, state = w.step(state)
    w.save(state, tmp_path)
    w.save(copy, tmp_path)
    assert steps_of(tmp_path) == [32, 64]
    assert not [m for m in recwarn if "removed" in str(m.message)]


def test_a_fresh_state_leaves_the_folder_of_another_run_alone(w, used):
    root, state = used
    before, time = content(root), w.run_time_of(state)
    with pytest.raises(UserError) as error:
        learn(w, w.setup(1), 64, root)
    assert str(error.value) == (
        f"root_dir {root}: expected a folder without a run, or the run folder of this state of 0 "
        "env steps, got checkpoints of the steps 32, 64, 96 and "
        f"metrics.csv and metrics.jsonl of another run. Restore from {root}/checkpoints to resume "
        "that run, or choose another root_dir."
    )
    assert content(root) == before
    assert w.run_time_of(state) is time


def test_a_state_that_is_further_does_not_join_another_run(w, used):
    root, _ = used
    other = learn(w, w.setup(1), 128)
    with pytest.raises(UserError, match="run folder of this state of 128 env steps"):
        learn(w, other, 160, root)
    assert rows_of(root) == [32, 64, 96]


def test_rows_without_a_checkpoint_are_a_run_too(w, tmp_path):
    (tmp_path / "metrics.jsonl").write_text('{"env_steps": 32}\n')
    state = w.setup(0)
    with pytest.raises(UserError) as error:
        learn(w, state, 32, tmp_path)
    assert str(error.value).endswith("got metrics.jsonl of another run. Choose another root_dir.")
    w.adopt(state, tmp_path / "checkpoints")
    learn(w, state, 32, tmp_path)
    assert rows_of(tmp_path) == [32]


def test_the_state_out_of_learn_goes_on_in_its_folder(w, used):
    root, state = used
    _, state = w.step(state)
    learn(w, state, 160, root, max_to_keep=9)
    assert rows_of(root) == [32, 64, 96, 160]
    assert steps_of(root / "checkpoints") == [32, 64, 96, 160]


@pytest.mark.parametrize("cause", ["chosen", "damaged"])
def test_a_restored_state_drops_what_comes_after_it(used, cause, monkeypatch):
    root, _ = used
    other = workflow()
    # Another spelling of the same folder.
    monkeypatch.chdir(root)
    if cause == "damaged":
        (root / "checkpoints" / "ckpt-96" / "COMPLETE").unlink()
        with pytest.warns(UserWarning, match="ckpt-96 is damaged"):
            state = other.restore("checkpoints")
    else:
        state = other.restore("checkpoints", 64)
    assert other.env_steps(state) == 64
    learn(other, state, 65, root, callbacks=[])
    assert rows_of(root) == [32, 64, 96]
    assert steps_of(root / "checkpoints") == [32, 64, 96]
    metrics = [json.loads(s) for s in (root / "metrics.jsonl").read_text().splitlines()]
    assert metrics[-1]["iterations"] == 3


def test_a_state_restored_elsewhere_does_not_take_a_used_folder(w, used, tmp_path):
    root, state = used
    w.save(state, tmp_path / "saved")
    restored = w.restore(tmp_path / "saved")
    with pytest.raises(UserError, match="or choose another root_dir"):
        learn(w, restored, 128, root)
    learn(w, restored, 128, tmp_path / "new")
    assert rows_of(tmp_path / "new") == [128]


@pytest.mark.slow
def test_restore_goes_on_in_the_modes_that_were_saved(tmp_path):
    choices = {"loop": "graph", "rollout": "graph", "update": "xla", "evaluation": "graph"}
    first = workflow(choices)
    state = learn(first, first.setup(0), 64, tmp_path / "run")
    path = first.save(state, tmp_path / "saved")
    manifests = [
        json.loads((p / "manifest.json").read_text())["manifest"]
        for p in (path, tmp_path / "run" / "checkpoints" / "ckpt-64")
    ]
    # Only a run has metrics files.
    assert manifests[1].pop("num_rows") == {"metrics.csv": 2, "metrics.jsonl": 2}
    assert manifests[0] == manifests[1]
    assert manifests[0]["compile_choices"] == choices
    assert manifests[0]["env_steps"] == 64
    second = workflow("auto")
    restored = second.restore(tmp_path / "saved")
    assert second.compile_choices(restored) == choices
    assert second.run_time_of(restored) == first.run_time_of(state)
    assert second.run_time_of(restored).wall_seconds > 0
    _, one = first.step(state)
    _, two = second.step(restored)
    values = second.state_values(two)
    for name, value in first.state_values(one).items():
        np.testing.assert_array_equal(value, values[name], err_msg=name)


def test_a_misspelt_option_is_named(w):
    with pytest.raises(UserError) as error:
        w.learn(w.setup(0), total_env_stepz=32)
    assert str(error.value) == (
        "the option total_env_stepz of learn: expected a field of RunOptions, got "
        "total_env_stepz. Did you mean total_env_steps?"
    )
    with pytest.raises(UserError, match="total_env_steps: expected the budget in env steps, got n"):
        w.learn(w.setup(0))


def test_a_callback_needs_one_method_only(w):
    class Stops:
        def on_evaluate(self, event):
            return STOP

    state = learn(w, w.setup(0), 320, eval_interval=32, callbacks=[Stops()])
    assert (w.env_steps(state), w.report.stopped_by) == (32, "callback")


def test_rows_that_were_lost_are_counted(w, used, capsys):
    root, state = used
    path = root / "metrics.jsonl"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[1:]))
    (root / "metrics.csv").unlink()
    capsys.readouterr()
    learn(w, state, 128, root)
    said = capsys.readouterr().out
    goes_on = "rows up to 96 env steps; the run goes on without them."
    assert f"Note: metrics.jsonl lacks 1 of the 3 {goes_on}" in said
    assert f"Note: metrics.csv lacks 3 of the 3 {goes_on}" in said
    # The next start counts from the existing files.
    learn(w, w.load(w.setup(0), CheckpointManager(root / "checkpoints").restore()), 160, root)
    assert "lacks" not in capsys.readouterr().out


def test_a_damaged_header_is_refused_before_anything_is_deleted(w, used):
    root, state = used
    table = (root / "metrics.csv").read_bytes()
    (root / "metrics.csv").write_bytes(table.replace(b"env_steps", b"env_stXps", 1))
    with (root / "metrics.jsonl").open("a") as file:
        file.write('{"env_steps": 128}\n{"half')
    before = {p: p.read_bytes() for p in root.rglob("*") if p.is_file()}
    with pytest.raises(UserError, match="got the header 'env_stXps"):
        learn(w, state, 128, root)
    assert {p: p.read_bytes() for p in root.rglob("*") if p.is_file()} == before


@pytest.mark.parametrize("recorders", [("csv", "jsonl"), ("csv", "jsonl", "tensorboard")])
def test_a_folder_that_is_renamed_in_training_ends_it(w, tmp_path, recorders):
    root, moved = tmp_path / "run", tmp_path / "moved"

    class Rename(Callback):
        def on_step(self, event):
            if event.env_steps == 64:
                root.rename(moved)

    with pytest.raises(UserError, match="it was renamed or deleted"):
        learn(
            w,
            w.setup(0),
            320,
            root,
            checkpoint_interval=32,
            recorders=recorders,
            callbacks=[Rename()],
        )
    assert not root.exists()
    assert steps_of(moved / "checkpoints") == [32]
