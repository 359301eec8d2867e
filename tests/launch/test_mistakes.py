"""Every mistake ends with one paragraph on standard error and exit code 2."""

import json
import os
import pathlib
import shutil
import subprocess
import sys

import pytest

from tests.launch import launch_runs
from tests.launch.launch_runs import arguments, in_process
from tfrl.launch import evaluate, serve, sweep, termination, train, tune
from tfrl.storage import files


@pytest.fixture(name="call", scope="module")
def fixture_call():
    def call(capsys, *args, main=train.main):
        code, out, err = in_process(main, capsys, *args)
        return code, out, err

    return call


def _leave_signals(patch):
    """Leaves pytest its Ctrl-C."""
    patch.setattr(termination.Termination, "install", lambda self: None)


@pytest.fixture(autouse=True)
def _own_signals(monkeypatch):
    _leave_signals(monkeypatch)


@pytest.fixture(name="trained", scope="module")
def fixture_trained(tmp_path_factory):
    """A finished run, with two checkpoints; the tests' own runs trace nothing anew."""
    root = tmp_path_factory.mktemp("trained") / "run"
    args = arguments(root, 128, "train.video=False", "train.checkpoint_interval=64")
    with pytest.MonkeyPatch.context() as patch:
        _leave_signals(patch)
        assert launch_runs.start_here(train.main, *args) == 0
    return root


def _paragraph(result, *, out=""):
    """Checks the form of a mistake's answer, and returns its text."""
    code, stdout, err = result
    assert code == 2, err
    assert err.startswith("Error: ")
    assert err.count("\n") == 1
    assert err.endswith(".\n") or err.endswith("?\n")
    assert ": expected " in err and ", got " in err
    if out is not None:
        assert stdout == out
    return err.removeprefix("Error: ").rstrip("\n")


BINDINGS = {
    "misspelt parameter": (
        "train.total_env_stepz=3",
        "Gin binding train.total_env_stepz (--gin_bindings): expected a parameter of train, got "
        "'total_env_stepz'. Did you mean total_env_steps",
    ),
    "misspelt configurable": (
        "trian.total_env_steps=3",
        "Gin binding trian.total_env_steps (--gin_bindings): expected the name of a configurable "
        "before the dot, got 'trian', which is unknown. Did you mean train.total_env_steps?",
    ),
    "misspelt reference": (
        "OnPolicyWorkflow.agent=@PP0",
        "Gin name @PP0 (--gin_bindings): expected the name of one configurable, got an unknown "
        "name. Did you mean PPO or PGPE or APPO?",
    ),
    "hidden parameter": (
        "train.root_dir='x'",
        "Gin binding train.root_dir (--gin_bindings): expected a parameter of train, got "
        "'root_dir'.",
    ),
    "misspelt scope": (
        "evl/make_env.num_envs=3",
        "Gin binding evl/make_env.num_envs (--gin_bindings): expected a scope that the program "
        "opens, got scope 'evl'. Did you mean eval?",
    ),
    "nothing reads it": (
        "CosineSchedule.steps=5",
        "Gin binding CosineSchedule.steps: expected bindings that this run uses, got bindings "
        "that it does not read.",
    ),
    "without a dot": (
        "total_env_steps=3",
        "Gin binding total_env_steps (--gin_bindings): expected name.parameter = value, or a "
        "macro that a value uses as %total_env_steps",
    ),
    "no value": ("train.total_env_steps", "Gin binding 'train.total_env_steps': expected"),
    "malformed": (
        "train.total_env_steps=(1,",
        "Gin binding 'train.total_env_steps=(1,' (--gin_bindings): expected name.parameter = value",
    ),
    "text without quotes": (
        "make_env.env_id=tf:CartPole-v1",
        "Gin binding 'make_env.env_id=tf:CartPole-v1' (--gin_bindings): expected",
    ),
    "wrong type": (
        "make_env.num_envs='four'",
        "Gin binding make_env.num_envs: expected int, got 'four' (str). Write make_env.num_envs = "
        "<int>.",
    ),
    "wrong type of steps": (
        "train.total_env_steps=1.5",
        "Gin binding train.total_env_steps: expected int, got 1.5 (float).",
    ),
    "wrong type in a tuple": (
        "PPO.hidden=(64, 'a')",
        "Gin binding PPO.hidden: expected tuple[int, ...] or None, got (64, 'a') (tuple).",
    ),
    "unknown environment": (
        "env_id='tf:CartPol-v1'",
        "environment tf:CartPol-v1: expected a task of the suite tf, got 'CartPol-v1'. Did you "
        "mean CartPole-v1?",
    ),
    "unknown suite": (
        "env_id='tff:CartPole-v1'",
        "environment suite 'tff': expected one of the suites of tfrl 0.1.0:",
    ),
    "no suite": (
        "env_id='CartPole-v1'",
        "env_id: expected suite:task, for example tf:CartPole-v1, got 'CartPole-v1'. Did you mean "
        "tf:CartPole-v1?",
    ),
    "unknown argument of the task": (
        "make_env.env_kwargs={'gravity_': 1.0}",
        "make_env('tf:CartPole-v1'): expected arguments of the task",
    ),
    "negative environments": (
        "make_env.num_envs=-4",
        "num_envs: expected a whole number of at least 1, got -4.",
    ),
    "no steps": ("train.total_env_steps=0", "total_env_steps: expected a positive whole number"),
    "negative checkpoints": ("train.max_to_keep=-1", "max_to_keep: expected a positive whole"),
    "negative seconds": (
        "train.checkpoint_seconds=-1",
        "checkpoint_seconds: expected a number above 0",
    ),
    "no episodes": ("train.final_eval_episodes=0", "train.final_eval_episodes: expected a whole"),
    "negative length": (
        "OnPolicyWorkflow.rollout_length=-8",
        "rollout_length: expected a whole number",
    ),
    "not dividing": (
        "OnPolicyWorkflow.num_minibatches=5",
        "num_minibatches: expected a divisor of the 32 rows of an iteration (8 steps x 4 "
        "environments), got 5. The nearest divisors are 2 and 4; or choose remainder='pad', "
        "'drop' or 'wrap'.",
    ),
    "unknown recorder": (
        "train.recorders=('cvs',)",
        "recorders: expected recorders among console, csv",
    ),
    "unknown compile mode": ("OnPolicyWorkflow.compile='jit'", "compile: expected one of xla"),
    "target without evaluation": (
        "train.target_return=3.0",
        "target_return: expected an eval_interval as well, got none.",
    ),
    "workflow without brackets": (
        "train.workflow=@OnPolicyWorkflow",
        "train.workflow: expected a workflow such as @OnPolicyWorkflow(), got",
    ),
    "out of range": ("PPO.discount=1.5", "PPO.discount: expected a number of at least 0 and at"),
}


@pytest.mark.parametrize("name", BINDINGS)
def test_bindings(call, capsys, tmp_path, name):
    binding, message = BINDINGS[name]
    more = ["train.eval_interval=None"] if "target" in name else []
    root = tmp_path / "run"
    text = _paragraph(call(capsys, *arguments(root, 64, *more, binding)))
    assert text.startswith(message), text
    assert not root.exists(), "a mistake leaves nothing behind"


def test_missing_gin_file(call, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = _paragraph(call(capsys, "--gin_file=ppo/tf_cartpoel.gin"))
    assert text.startswith("Gin file 'ppo/tf_cartpoel.gin' (--gin_file): expected a file")
    assert "Did you mean ppo/tf_cartpole.gin" in text
    assert not list(tmp_path.iterdir())


def test_incomplete_gin_files(call, capsys, tmp_path):
    path = tmp_path / "mine.gin"
    path.write_text("train.total_env_steps = 5\n")
    text = _paragraph(call(capsys, f"--gin_file={path}"))
    assert text == (
        "Gin binding train.workflow: expected a value, since there is no default, got none in the "
        "gin files and bindings. Add train.workflow = ..., or include a file that defines it."
    )
    path.write_text("train.total_env_steps = 5\ntrain.workflow = @OnPolicyWorkflow()\n")
    text = _paragraph(call(capsys, f"--gin_file={path}"))
    assert text.startswith("Gin bindings OnPolicyWorkflow.env, OnPolicyWorkflow.agent: expected a")


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (
            ["--strategy=multi_worker"],
            "--strategy=multi_worker: expected the environment variable TF_CONFIG",
        ),
        (
            ["--strategy=one_device", "--num_logical_cpus=2"],
            "--num_logical_cpus=2: expected --strategy=mirrored, which alone uses several CPU",
        ),
        (["--strategy=best"], "Flag --strategy: expected one of auto, one_device, mirrored, mult"),
        (
            ["--strategy=mirrored", "--tpu=local"],
            "--tpu: expected no TPU with --strategy=mirrored, got 'local'",
        ),
        (["--seed=-1"], "Flag --seed: expected a non-negative integer, got '-1'"),
        (["--root_dri=x"], "Flag --root_dri: expected a flag of this binary"),
        (["--gin_file=no_such.gin"], "Gin file 'no_such.gin' (--gin_file): expected a file in"),
        (["--gin_bindings=a.b=(1,"], "Gin binding 'a.b=(1,' (--gin_bindings): expected name."),
    ],
)
def test_what_needs_no_tensorflow_is_answered_without_it(tmp_path, args, message):
    code = (
        "import sys; from tfrl.launch import train; sys.argv = ['train', *sys.argv[1:]]\n"
        "try:\n    train.run()\n"
        "finally:\n    print('tensorflow' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *args], cwd=tmp_path, capture_output=True, text=True
    )
    text = _paragraph((done.returncode, done.stdout, done.stderr), out="False\n")
    assert text.startswith(message), text


def test_another_configuration_in_the_same_folder(call, capsys, trained):
    before = launch_runs.tree(trained)
    base = ["train.video=False", "train.checkpoint_interval=64"]
    args = arguments(trained, 256, *base, "PPO.discount=0.5", "make_env.num_envs=8")
    text = _paragraph(call(capsys, *args, "--seed=3"))
    assert text == (
        f"root_dir {trained}: expected the configuration of its run, got "
        "--seed = 3 (the run has 0); PPO.discount = '0.5' (the run has '0.99'); make_env.num_envs "
        "= '8' (the run has '4'). Use the run's values, another --root_dir, or --if_exists=new to "
        "move the run aside."
    )
    text = _paragraph(call(capsys, *arguments(trained, 256, "env_id='tf:Pendulum-v1'")))
    assert "make_env.env_id = \"'tf:Pendulum-v1'\" (the run has \"'tf:CartPole-v1'\")" in text
    assert launch_runs.tree(trained) == before


def test_if_exists(call, capsys, trained, tmp_path):
    root = launch_runs.copy_of(trained, tmp_path / "run")
    args = arguments(root, 64, "train.video=False")
    text = _paragraph(call(capsys, *args, "--if_exists=fail"))
    assert text.startswith(f"root_dir {root}: expected a folder without a run, because of")
    code, out, err = call(capsys, *args, "--if_exists=new")
    assert code == 0, err
    assert out.startswith(f"The run in {root} was moved to {root}.old-1\n")
    assert launch_runs.tree(tmp_path / "run.old-1") == launch_runs.tree(trained)
    assert launch_runs.summary(root)["env_steps"] == 64


def test_a_folder_in_use(call, capsys, trained):
    args = arguments(trained, 128, "train.video=False", "train.checkpoint_interval=64")
    lock = files.DirectoryLock(trained)
    for more in ([], ["--if_exists=new"]):
        assert _paragraph(call(capsys, *args, *more)) == (
            f"root_dir {trained}: expected a folder that no other process trains in, got a folder "
            "that another process is using. Wait for that process, or choose another --root_dir."
        )
    lock.close()
    code, _, err = call(capsys, *args)
    assert (code, err) == (0, "")


def test_all_checkpoints_damaged(call, capsys, trained, tmp_path):
    root = launch_runs.copy_of(trained, tmp_path / "run")
    for checkpoint in (root / "checkpoints").iterdir():
        launch_runs.damage(checkpoint)
    args = arguments(root, 128, "train.video=False", "train.checkpoint_interval=64")
    before = launch_runs.tree(root)
    text = _paragraph(call(capsys, *args), out=None)
    assert text.startswith(f"checkpoints in {root / 'checkpoints'}: expected a usable checkpoint")
    assert "ckpt-128: data.data-00000-of-00001 has" in text
    assert "--if_exists=new" in text
    assert launch_runs.tree(root) == before


def test_checkpoints_without_metadata(call, capsys, trained, tmp_path):
    root = launch_runs.copy_of(trained, tmp_path / "run")
    (root / "metadata.json").unlink()
    args = arguments(root, 128, "train.video=False", "train.checkpoint_interval=64")
    text = _paragraph(call(capsys, *args))
    assert text.startswith(f"root_dir {root}: expected metadata.json next to the checkpoints")
    (root / "metadata.json").write_text("{")
    assert f"{root / 'metadata.json'}: expected a JSON file" in _paragraph(call(capsys, *args))


@pytest.mark.parametrize("kind", ["below a file", "a file", "read only", "a checkpoint file"])
def test_unwritable_folders(call, capsys, tmp_path, kind):
    if kind == "below a file":
        (tmp_path / "file").touch()
        root = tmp_path / "file" / "run"
    elif kind == "a file":
        root = tmp_path / "run"
        root.touch()
    elif kind == "a checkpoint file":
        root = tmp_path / "run"
        root.mkdir()
        (root / "checkpoints").touch()
    else:
        root = pathlib.Path("/proc/run") if os.geteuid() == 0 else tmp_path / "closed" / "run"
        if os.geteuid():
            root.parent.mkdir(mode=0o500)
    text = _paragraph(call(capsys, *arguments(root, 64)))
    assert text.startswith(f"root_dir {root}: expected a writable folder, got"), text
    assert text.endswith("Choose another --root_dir.")


def test_non_finite_loss(call, capsys, tmp_path):
    bindings = ("ModuleConfig.lr=1e30", "ModuleConfig.grad_clip=None", "train.progress=False")
    result = call(capsys, *arguments(tmp_path / "run", 512, *bindings))
    text = _paragraph(result, out=None)
    assert text.startswith("the loss of module 'default_policy' at iteration ")
    assert ", env step " in text
    assert "got non-finite " in text
    assert "check_numerics='skip'" in text
    assert not (tmp_path / "run" / "summary.json").exists()


@pytest.mark.slow
def test_non_finite_losses_may_be_skipped(call, capsys, tmp_path):
    root = tmp_path / "run"
    bindings = (
        *("ModuleConfig.lr=1e30", "ModuleConfig.grad_clip=None", "train.progress=False"),
        *("OnPolicyWorkflow.check_numerics='skip'", "train.video=False"),
    )
    code, _, err = call(capsys, *arguments(root, 256, *bindings))
    assert code == 0, err
    rows = [json.loads(line) for line in (root / "metrics.jsonl").open()]
    assert sum(row["skipped_steps"] for row in rows) > 0


@pytest.mark.slow
def test_no_video_without_its_encoder(call, capsys, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "imageio_ffmpeg", None)
    root = tmp_path / "run"
    code, out, err = call(capsys, *arguments(root, 32, "train.progress=False"))
    assert (code, err) == (0, "")
    assert "Note: no video. Optional dependency imageio_ffmpeg: expected" in out
    assert "pip install 'tfrl[video]'" in out
    assert launch_runs.summary(root)["video"] is None
    assert not list((root / "videos").iterdir())


def test_a_killed_finish_is_made_good(call, capsys, trained, tmp_path):
    """Killed between the end of training and the summary: the next start does just the rest."""
    root = launch_runs.copy_of(trained, tmp_path / "run")
    (root / "summary.json").unlink()
    shutil.rmtree(root / "policy")
    before = launch_runs.tree(root)
    args = arguments(root, 128, "train.video=False", "train.checkpoint_interval=64")
    code, out, err = call(capsys, *args)
    assert (code, err) == (0, "")
    assert "nothing to train" in out
    old, new = launch_runs.summary(trained), launch_runs.summary(root)
    for name in ("params_digest", "eval_return_mean", "eval_return_std", "env_steps"):
        assert new[name] == old[name]
    assert new["env_steps_per_second"] > 0
    assert new["wall_seconds"] > 0
    assert (root / "policy" / "saved_model.pb").exists()
    after = launch_runs.tree(root)
    assert {p for p in before if before[p] != after[p]} == set()


@pytest.mark.slow
def test_a_reached_target_stays_reached(call, capsys, tmp_path):
    root = tmp_path / "run"
    bindings = ("train.target_return=8.0", "train.eval_interval=64", "train.video=False")
    code, _, err = call(capsys, *arguments(root, 512, *bindings))
    assert code == 0, err
    summary = launch_runs.summary(root)
    assert (summary["stopped_by"], summary["env_steps"]) == ("target_return", 64)
    for path in ("summary.json", None):  # Also when a kill came before the summary.
        if path:
            (root / path).unlink()
        code, out, err = call(capsys, *arguments(root, 512, *bindings))
        assert (code, err) == (0, "")
        assert "nothing to train" in out and "train.target_return is reached" in out
        assert launch_runs.digest(root) == summary["params_digest"]
    code, _, err = call(capsys, *arguments(root, 128, *bindings, "train.target_return=501.0"))
    assert code == 0, err
    assert launch_runs.summary(root)["env_steps"] == 128


@pytest.mark.slow
def test_a_users_module_and_evaluation_of_it(call, capsys, tmp_path, monkeypatch):
    (tmp_path / "my_part.py").write_text(
        "import gin\n"
        "from tfrl.envs.wrappers import RewardScale\n"
        "@gin.configurable\n"
        "def my_wrapper(env, scale=1.0):\n"
        "    print('wrapping by', scale)\n"
        "    return RewardScale(env=env, scale=scale)\n"
    )
    (tmp_path / "mine.gin").write_text(
        "import my_part\n"
        "include 'ppo/tf_cartpole.gin'\n"
        "make_env.wrappers = (@my_wrapper,)\n"
        "my_wrapper.scale = 0.5\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [p for p in sys.path if p not in ("", str(tmp_path))])
    args = ["--gin_file=mine.gin", *arguments("run", 64, "train.video=False")]
    code, out, err = call(capsys, *args)
    assert code == 0, err
    assert "wrapping by 0.5" in out
    assert "import my_part" in (tmp_path / "run" / "operative_config.gin").read_text()
    code, out, err = call(
        *(capsys, "--root_dir=run", "--episodes=2", "--checkpoint=latest", "--allow_code"),
        main=evaluate.main,
    )
    assert (code, err) == (0, "")
    assert "wrapping by 0.5" in out
    assert json.loads(out.splitlines()[-1])["eval_episodes"] == 2


@pytest.mark.parametrize(
    ("main", "flag"),
    [(tune.main, "root_dir"), (sweep.main, "root_dir"), (serve.main, "log_episodes")],
)
def test_folders_of_this_machine_only(call, capsys, tmp_path, monkeypatch, main, flag):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(serve.signal, "signal", lambda *_: None)
    args = ("--root_dir=run", f"--{flag}=gs://bucket/folder")
    message = _paragraph(call(capsys, *args, main=main))
    assert message.startswith(f"--{flag}=gs://bucket/folder: expected a folder of this machine")
    assert not list(tmp_path.iterdir())
