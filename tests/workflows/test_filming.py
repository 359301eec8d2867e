"""Videos in training: their times, no effect on the training, and resumed runs."""

import io
import json

import numpy as np
import pytest
from PIL import Image
from tensorboard.backend.event_processing import event_file_loader

import tfrl
from tests.envs.host_backends import Scripted
from tests.rollout import rollout_fakes as fakes
from tfrl.agents import PPO
from tfrl.envs.core import Autoreset
from tfrl.envs.host_env import HostEnv
from tfrl.envs.registry import finish
from tfrl.errors import UserError
from tfrl.experiment.callbacks import STOP
from tfrl.experiment.metadata import params_digest
from tfrl.workflows import OnPolicyWorkflow
from tfrl.workflows.loop import _next_multiple

HOST = "host"


def workflow(env_id="tf:CartPole-v1", **options):
    if env_id == HOST:
        env = HostEnv(Scripted((2, 3, 1, 5)), "SAME_STEP")
    else:
        env = tfrl.make_env(env_id, num_envs=4, autoreset="SAME_STEP")
    return OnPolicyWorkflow(
        env=env,
        agent=lambda **specs: PPO(**specs, hidden=(8,)),
        rollout_length=8,
        num_epochs=1,
        num_minibatches=2,
        eval_episodes=2,
        compile="graph",
        **options,
    )


def learn(w, state, total, root, **options):
    options = {"progress": False, "recorders": ("jsonl", "tensorboard"), **options}
    return w.learn(state, total_env_steps=total, root_dir=str(root), **options)


def videos(root):
    return sorted(int(p.stem.removeprefix("step_")) for p in (root / "videos").glob("*"))


def summaries(root):
    """`{env steps: [encoded image]}` over all event files on the disk."""
    found = {}
    for path in sorted((root / "tensorboard").iterdir()):
        for event in event_file_loader.LegacyEventFileLoader(str(path)).Load():
            for value in event.summary.value:
                if value.tag == "eval/video":
                    found.setdefault(event.step, []).append(value.image.encoded_image_string)
    return found


def digest(w, state):
    return params_digest(w.agent_state(state).params)


@pytest.mark.slow
@pytest.mark.parametrize("env_id", ["tf:CartPole-v1", "gymnasium:CartPole-v1"])
def test_tasks(tmp_path, env_id):
    check_the_first_iteration_at_each_multiple(tmp_path, env_id)


@pytest.mark.slow
def test_the_first_iteration_at_each_multiple(tmp_path):
    check_the_first_iteration_at_each_multiple(tmp_path, HOST)


def check_the_first_iteration_at_each_multiple(tmp_path, env_id):
    """Iterations have 32 env steps, so 128, 224 and 320 are the first after 100, 200 and 300."""
    found = []
    for calls, interval in ((1, 100), (7, 100), (7, None)):
        root = tmp_path / f"{calls}_{interval}"
        w = workflow(env_id, iterations_per_call=calls)
        state = learn(w, w.setup(3), 320, root, video_interval=interval)
        found.append(digest(w, state))
        w.close()
        if interval is None:
            assert not (root / "videos").exists() and summaries(root) == {}
            continue
        assert videos(root) == [128, 224, 320]
        shown = summaries(root)
        assert {step: len(images) for step, images in shown.items()} == {128: 1, 224: 1, 320: 1}
        image = Image.open(io.BytesIO(shown[128][0]))
        assert image.format == "GIF" and max(image.size) <= 256
        rows = [json.loads(line) for line in (root / "metrics.jsonl").open()]
        timed = [r["env_steps"] for r in rows if "time/video" in r]
        assert timed == [128, 224, 320]
    # Neither the number of calls nor the videos change the learning.
    assert found[0] == found[1] == found[2]


@pytest.mark.slow
def test_videos_do_not_depend_on_the_calls(tmp_path):
    for calls in (1, 5):
        w = workflow(iterations_per_call=calls)
        learn(w, w.setup(0), 128, tmp_path / str(calls), video_interval=64)
    for name in ("step_64.mp4", "step_128.mp4"):
        one, five = ((tmp_path / n / "videos" / name).read_bytes() for n in "15")
        assert one == five and len(one) > 1000


@pytest.mark.slow
def test_a_run_goes_on_without_writing_one_twice(tmp_path):
    w = workflow(iterations_per_call=1)
    learn(w, w.setup(0), 256, tmp_path / "straight", video_interval=64)
    root = tmp_path / "run"
    w = workflow(iterations_per_call=1)
    learn(w, w.setup(0), 160, root, video_interval=64, checkpoint_interval=96)
    assert videos(root) == [64, 128]
    made = (root / "videos" / "step_64.mp4").stat().st_mtime_ns
    # From the checkpoint at 96 steps, as after a kill: the run repeats 128, not 64.
    w = workflow(iterations_per_call=1)
    state = w.restore(root / "checkpoints", 96)
    learn(w, state, 256, root, video_interval=64, checkpoint_interval=96)
    assert videos(root) == [64, 128, 192, 256]
    assert {step: len(images) for step, images in summaries(root).items()} == {
        64: 1, 128: 1, 192: 1, 256: 1,
    }  # fmt: skip
    assert (root / "videos" / "step_64.mp4").stat().st_mtime_ns == made
    for step in videos(root):
        name = f"videos/step_{step}.mp4"
        assert (root / name).read_bytes() == (tmp_path / "straight" / name).read_bytes()


@pytest.mark.slow
def test_later_videos_go_with_the_run_that_they_are_of(tmp_path):
    w = workflow(iterations_per_call=1)
    learn(w, w.setup(0), 128, tmp_path, video_interval=32, checkpoint_interval=64)
    (tmp_path / "videos" / "step_x.mp4").touch()  # a user's file
    (tmp_path / "videos" / "final.mp4").touch()
    w = workflow(iterations_per_call=1)
    learn(w, w.restore(tmp_path / "checkpoints", 64), 96, tmp_path)
    assert {p.name for p in (tmp_path / "videos").iterdir()} == {
        "step_32.mp4", "step_64.mp4", "step_x.mp4", "final.mp4",
    }  # fmt: skip


class StopAt:
    def __init__(self, env_steps):
        self.env_steps = env_steps

    def on_step(self, event):
        return STOP if event.env_steps >= self.env_steps else None


def test_a_run_stopped_at_a_video_has_it_and_its_checkpoint(tmp_path):
    w = workflow()
    w.learn(
        w.setup(0), total_env_steps=320, root_dir=str(tmp_path), video_interval=64,
        progress=False, callbacks=StopAt(64),
    )  # fmt: skip
    assert videos(tmp_path) == [64]
    assert [p.name for p in (tmp_path / "checkpoints").iterdir()] == ["ckpt-64"]


def test_a_video_that_fails_does_not_end_the_training(tmp_path, monkeypatch, capsys):
    w = workflow()

    def fails(*args, **kwargs):
        raise UserError("path", expected="a file", got="a full disk", remedy="Make room.")

    monkeypatch.setattr(w, "record_video", fails)
    state = learn(w, w.setup(0), 64, tmp_path, video_interval=64)
    assert w.env_steps(state) == 64 and summaries(tmp_path) == {}
    assert capsys.readouterr().out == (
        "Note: no video at 64 env steps. path: expected a file, got a full disk. Make room.\n"
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"video_interval": 32},
            "video_interval: expected a root_dir as well, got none. Pass root_dir; the videos are "
            "written to its folder videos/.",
        ),
        (
            {"video_interval": -1},
            "video_interval: expected a whole number of at least 0, or None, got -1. Pass the env "
            "steps between videos, or 0 to record none in training.",
        ),
        (
            {"video_interval": True},
            "video_interval: expected a whole number of at least 0, or None, got True. Pass the "
            "env steps between videos, or 0 to record none in training.",
        ),
    ],
)
def test_mistakes(options, message):
    w = workflow()
    state = w.setup(0)
    with pytest.raises(UserError) as caught:
        w.learn(state, total_env_steps=64, progress=False, **options)
    assert str(caught.value) == message
    assert w.env_steps(w.snapshot(state)) == 0  # the state is still valid: no training took place


def test_what_cannot_be_drawn_is_refused_before_the_training(tmp_path):
    bare = fakes.Scripted(lengths=((4,), (2,)), mode=None)
    env = finish(bare, autoreset=Autoreset.SAME_STEP, max_episode_steps=None, task_limit=8)
    w = workflow()
    w.eval_env = env
    state = w.setup(0)
    with pytest.raises(UserError, match="NotImplementedError: Scripted has no renderer"):
        learn(w, state, 64, tmp_path / "run", video_interval=32)
    assert not (tmp_path / "run").exists()
    assert w.env_steps(w.snapshot(state)) == 0


def test_the_next_multiple():
    steps = [_next_multiple(100, n) for n in (0, 99, 100, 101, 250)]
    np.testing.assert_array_equal(steps, [100, 100, 200, 200, 300])
