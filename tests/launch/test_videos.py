"""`--video_interval` of `bin/train.py`."""

import json

import pytest

from tests.launch import launch_runs
from tests.launch.launch_runs import arguments, in_process
from tfrl.envs.tf.cartpole import CartPole
from tfrl.launch import termination, train

ONE_DEVICE = "--strategy=one_device"  # pytest has several CPUs


@pytest.fixture(autouse=True)
def _own_signals(monkeypatch):
    """Leaves pytest its Ctrl-C."""
    monkeypatch.setattr(termination.Termination, "install", lambda self: None)


def names(root):
    return {p.name for p in (root / "videos").iterdir()}


def mistake(capsys, *args):
    code, out, err = in_process(train.main, capsys, *args)
    assert (code, out) == (2, "")
    return err


def test_a_flag_that_makes_no_sense(capsys, tmp_path):
    root = tmp_path / "run"
    err = mistake(capsys, *arguments(root, 64), "--video_interval=-1")
    assert err == (
        "Error: Flag --video_interval: expected a non-negative integer, got '-1' (-1 is not a "
        "non-negative integer). --help explains the flags.\n"
    )
    err = mistake(capsys, *arguments(root, 64, "train.video_interval=-5"))
    assert err.startswith("Error: video_interval: expected a whole number of at least 0, or None")
    err = mistake(capsys, *arguments(root, 64, "train.video_seed=5"))
    assert err.startswith("Error: Gin binding train.video_seed (--gin_bindings): expected a param")
    assert not root.exists()


def test_what_cannot_be_drawn_ends_before_there_is_a_folder(capsys, tmp_path, monkeypatch):
    def render(self, state, index=0):
        raise NotImplementedError("CartPole has no renderer")

    monkeypatch.setattr(CartPole, "render", render)
    root = tmp_path / "run"
    expected = (
        "Error: rendering of CartPole: expected a working renderer, got "
        "NotImplementedError: CartPole has no renderer. Leave video_interval out, or record "
        "observation bars, which need no renderer.\n"
    )
    assert mistake(capsys, *arguments(root, 64), "--video_interval=64") == expected
    assert mistake(capsys, *arguments(root, 64, "train.video_interval=64")) == expected
    assert not root.exists()


@pytest.mark.slow
def test_videos_of_a_run_that_goes_on(capsys, tmp_path):
    root = tmp_path / "run"
    args = [*arguments(root, 128, "train.progress=False"), ONE_DEVICE, "--video_interval=50"]
    code, _, err = in_process(train.main, capsys, *args)
    assert (code, err) == (0, "")
    # Iterations of 32 env steps: 50 is reached at 64, 100 at 128.
    assert names(root) == {"step_64.mp4", "step_128.mp4", "final.mp4"}
    # The last parameters, the same episode.
    final = (root / "videos" / "final.mp4").read_bytes()
    assert final == (root / "videos" / "step_128.mp4").read_bytes()
    assert launch_runs.tensorboard_steps(root, "eval/video") == [64, 128]
    # Another interval is no other run; neither is none, and the flag wins over gin.
    more = [*arguments(root, 256, "train.progress=False"), ONE_DEVICE]
    code, _, err = in_process(train.main, capsys, *more, "--video_interval=200")
    assert (code, err) == (0, "")
    assert names(root) == {"step_64.mp4", "step_128.mp4", "step_224.mp4", "final.mp4"}
    assert launch_runs.tensorboard_steps(root, "eval/video") == [64, 128, 224]
    more = arguments(root, 288, "train.progress=False", "train.video_interval=32")
    code, _, err = in_process(train.main, capsys, *more, ONE_DEVICE, "--video_interval=0")
    assert (code, err) == (0, "")
    assert "step_288.mp4" not in names(root)
    assert json.loads((root / "summary.json").read_text())["video"] == "videos/final.mp4"
