import sys

import imageio_ffmpeg
import numpy as np
import pytest
import tensorflow as tf
from PIL import Image, ImageSequence

from tests.envs.host_backends import Scripted
from tests.rollout import rollout_fakes as fakes
from tfrl import make_env, seeding, specs, struct
from tfrl.envs.core import Autoreset, Wrapper
from tfrl.envs.host_env import HostEnv
from tfrl.envs.registry import finish
from tfrl.errors import UserError
from tfrl.evaluation import Evaluator, record_video
from tfrl.evaluation.video import _BAR, HEIGHT, WIDTH, check_drawable, draw_observation
from tfrl.evaluation.video_file import Preview, write_video
from tfrl.types import ActionOutput

KEY = seeding.key(5)


def read(path):
    """Frames [N, H, W, 3] and frames per second."""
    if path.suffix == ".gif":
        with Image.open(path) as image:
            frames = [np.array(f.convert("RGB")) for f in ImageSequence.Iterator(image)]
            return np.stack(frames), 1000 / image.info["duration"]
    reader = imageio_ffmpeg.read_frames(str(path))
    meta = next(reader)
    width, height = meta["size"]
    frames = [np.frombuffer(f, np.uint8).reshape(height, width, 3) for f in reader]
    return np.stack(frames), meta["fps"]


def episodes_env(mode, lengths=(4, 2), **kwargs):
    """Scripted episodes of one environment, with the library's own episode layer."""
    bare = fakes.Rendered(lengths=(lengths,), mode=None, step_reward=(1.0,), **kwargs)
    return finish(bare, autoreset=Autoreset[mode], max_episode_steps=None, task_limit=8)


@pytest.mark.parametrize("ending", [".mp4", ".gif"])
@pytest.mark.parametrize("mode", ["SAME_STEP", "NEXT_STEP", "DISABLED"])
@pytest.mark.variants(2)
def test_frames_from_first_to_terminal_state(tmp_path, ending, mode, capfd):
    path = tmp_path / "videos" / f"a{ending}"
    video = record_video(episodes_env(mode), fakes.PlainAgent(), {}, KEY, path)
    assert video.path == path and video.frames == 5
    # Rewards 1 + age / 4: 1.25 + 1.5 + 1.75 + 2 = 6.5.
    assert video.episode_returns == (6.5,) and video.episode_lengths == (4,)
    frames, fps = read(path)
    assert frames.shape == (5, 42, 64, 3)  # 41 x 63 made even
    assert fps == 10
    # Age 0 to 4 is drawn as red 20 x age.
    np.testing.assert_allclose(frames[:, 10, 10, 0], [0, 20, 40, 60, 80], atol=6)
    assert [p.name for p in path.parent.iterdir()] == [path.name]
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("mode", ["SAME_STEP", "NEXT_STEP"])
def test_of_an_environment_on_the_host_a_copy_is_played(tmp_path, mode):
    env = HostEnv(Scripted((4, 3), mode), mode)
    env.reset(0)

    class Agent(fakes.PlainAgent):
        def evaluate_actions(self, state, obs, key, carry=None):
            return ActionOutput(action=tf.zeros(obs.shape[:1], tf.int64))

    video = record_video(env, Agent(), {}, KEY, tmp_path / "a.mp4", episodes=2)
    assert video.episode_lengths == (4, 4) and video.episode_returns == (10.0, 10.0)
    frames, fps = read(tmp_path / "a.mp4")
    assert frames.shape == (10, 32, 48, 3) and fps == 10
    np.testing.assert_allclose(frames[:, 10, 10, 0], [0, 20, 40, 60, 80] * 2, atol=6)
    assert env.backend.taken == [] and env.backend.closed == 0
    assert env.backend.copies[0].closed == 1


def test_several_episodes_and_their_returns(tmp_path):
    env = make_env("tf:CartPole-v1", num_envs=1, max_episode_steps=60)

    class Agent(fakes.NoisyAgent):
        def evaluate_actions(self, state, obs, key, carry=None):
            output = self.compute_actions(state, {"age": obs[:, 0]}, key)
            return output.replace(action=output.action % 2)

    video = record_video(env, Agent(), {}, KEY, tmp_path / "a.mp4", episodes=3)
    evaluated = Evaluator(env=env, agent=Agent(), num_episodes=3).evaluate({}, KEY)
    np.testing.assert_allclose(video.episode_returns, evaluated.episode_returns)
    np.testing.assert_array_equal(video.episode_lengths, evaluated.episode_lengths)
    frames, fps = read(tmp_path / "a.mp4")
    assert len(frames) == video.frames == sum(video.episode_lengths) + 3
    assert len(np.unique(frames[0])) > 1  # something is drawn


def test_recurrent_agent_and_fps(tmp_path):
    class Agent(fakes.CountingAgent):
        def evaluate_actions(self, state, obs, key, carry=None):
            return self.compute_actions(state, obs, key, carry)

    env = episodes_env("NEXT_STEP")
    video = record_video(
        env, Agent(), {"weight": np.float32(1)}, KEY, tmp_path / "a.gif", episodes=2, fps=25
    )
    # Actions 2, 0, 1, 2 add 5 / 8 to 6.5, in both episodes.
    assert video.episode_returns == (7.125, 7.125)
    assert read(tmp_path / "a.gif")[1] == 25


@pytest.mark.parametrize(("max_frames", "returns"), [(3, (2.75,)), (5, (6.5,)), (7, (6.5, 1.25))])
@pytest.mark.variants(1)
def test_max_frames(tmp_path, max_frames, returns):
    video = record_video(
        episodes_env("SAME_STEP"), fakes.PlainAgent(), {}, KEY, tmp_path / "a.mp4",
        episodes=2, max_frames=max_frames,
    )  # fmt: skip
    assert video.frames == max_frames
    assert video.episode_returns == returns
    assert len(read(tmp_path / "a.mp4")[0]) == max_frames


def test_own_autoreset_leaves_the_terminal_state_out(tmp_path):
    # The fake resets itself, so nobody can switch that off.
    env = fakes.Rendered(lengths=((4, 2),), mode="SAME_STEP", limit=9)
    video = record_video(env, fakes.PlainAgent(), {}, KEY, tmp_path / "a.mp4")
    assert video.frames == 4 and video.episode_lengths == (4,)


def test_episode_layer_below_a_wrapper(tmp_path):
    @struct.logic_dataclass
    class Halved(Wrapper):
        def step(self, state, action):
            new = self.env.step(state, action)
            return new.replace(reward=new.reward / 2)

    env = Halved(env=episodes_env("SAME_STEP"))
    video = record_video(env, fakes.PlainAgent(), {}, KEY, tmp_path / "a.mp4")
    assert video.frames == 5 and video.episode_returns == (3.25,)


@pytest.mark.parametrize("mode", ["SAME_STEP", "NEXT_STEP", "DISABLED"])
def test_fallback_renderer(tmp_path, mode):
    env = fakes.Scripted(lengths=((4, 2),), mode=mode, limit=9)
    video = record_video(env, fakes.PlainAgent(), {}, KEY, tmp_path / "a.gif")
    frames, fps = read(tmp_path / "a.gif")
    assert video.frames == len(frames) == 5
    assert frames.shape[1:] == (HEIGHT, WIDTH, 3)
    assert fps == pytest.approx(30, rel=0.15)  # GIF counts hundredths of a second
    changes = np.abs(np.diff(frames.astype(int), axis=0)).sum(axis=(1, 2, 3))
    assert (changes > 0).all()


def bar_pixels(value, spec):
    frame = draw_observation(np.array([value]), spec, 0.0, 0.0, 0)
    bar = np.all(frame == _BAR, axis=-1)
    rows = np.nonzero(bar.any(axis=1))[0]
    return bar.any(axis=1).sum(), rows.mean() if len(rows) else None


def test_fallback_bars():
    spec = tf.TensorSpec([1], tf.float32)
    bounded = tensor_spec(-4.0, 4.0)
    # Without bounds 1 is drawn at 1 / (1 + 1); so is 2 in [-4, 4], and nothing is above 4.
    half, centre = bar_pixels(1.0, spec)
    assert bar_pixels(2.0, bounded)[0] == half
    full = bar_pixels(4.0, bounded)[0]
    assert full == bar_pixels(9.0, bounded)[0] == pytest.approx(2 * half, abs=2)
    largest = np.finfo(np.float32).max
    assert bar_pixels(1.0, tensor_spec(-largest, largest))[0] == half
    assert bar_pixels(-1.0, spec)[1] > centre  # downwards
    bar_pixels(np.nan, spec)
    bar_pixels(1e38, spec)


def tensor_spec(low, high):
    return specs.BoundedTensorSpec([1], tf.float32, low, high)


def test_fallback_shows_images_as_they_are():
    image = np.zeros((16, 16, 1), np.uint8)
    image[:8] = 200
    frame = draw_observation(image, tf.TensorSpec([16, 16, 1], tf.uint8), 0.0, 0.0, 0)
    assert (frame == 200).all(axis=-1).sum() == (frame == 0).all(axis=-1).sum() > 10_000


def test_odd_frames_are_padded_by_their_edge(tmp_path):
    frames = np.zeros((3, 5, 7, 3), np.uint8)
    frames[:, :, -1, 0] = 250
    frames[1:, 0, 0, 1] = np.array([90, 180])  # no two frames alike
    assert write_video(tmp_path / "a.gif", iter(frames), fps=20) == 3
    found, fps = read(tmp_path / "a.gif")
    assert found.shape == (3, 6, 8, 3) and fps == 20
    np.testing.assert_array_equal(found[0, :, 6:, 0], np.full((6, 2), 250))


def error(path, **kwargs):
    with pytest.raises(UserError) as caught:
        record_video(episodes_env("SAME_STEP"), fakes.PlainAgent(), {}, KEY, path, **kwargs)
    return str(caught.value)


def test_errors(tmp_path):
    assert error("a.avi") == ("path: expected a name that ends in .gif or .mp4, got a.avi.")
    (tmp_path / "file").touch()
    message = error(tmp_path / "file" / "a.mp4")
    assert message.startswith("path: expected a writable file, got ")
    assert message.endswith(").")
    assert error(tmp_path / "a.mp4", episodes=0) == (
        "episodes: expected a whole number of at least 1, got 0. Give 1 or more."
    )
    assert error(tmp_path / "a.mp4", max_frames=0).startswith("max_frames: expected a whole number")


def test_wrong_frame_leaves_no_file(tmp_path):
    with pytest.raises(UserError, match=r"frame: expected a uint8 RGB .* got float64 \[4, 4, 3\]"):
        write_video(tmp_path / "a.mp4", iter([np.zeros((4, 4, 3))]), 10)
    with pytest.raises(ValueError, match="at least one frame"):
        write_video(tmp_path / "a.gif", iter([]), 10)
    assert not list(tmp_path.iterdir())


def test_missing_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "imageio_ffmpeg", None)
    with pytest.raises(UserError, match=r"pip install 'tfrl\[video\]'"):
        write_video(tmp_path / "a.mp4", iter([np.zeros((4, 4, 3), np.uint8)]), 10)


def test_bare_environment(tmp_path):
    env = fakes.Rendered(lengths=((4,),), mode=None)
    with pytest.raises(UserError, match="tfrl.make_env"):
        record_video(env, fakes.PlainAgent(), {}, KEY, tmp_path / "a.mp4")


def test_preview_sees_the_same_frames(tmp_path):
    preview = Preview()
    args = (episodes_env("SAME_STEP"), fakes.PlainAgent(), {}, KEY, tmp_path / "a.mp4")
    video = record_video(*args, preview=preview)
    assert video.fps == 10 and video.frames == 5
    # Not encoded: the ages 0 to 4 to the bit.
    assert preview.frames[:, 0, 0, 0].tolist() == [0, 20, 40, 60, 80]


@struct.logic_dataclass
class NoScreen(fakes.Rendered):
    def render(self, state, index=0):
        raise RuntimeError("no OpenGL context.\nsecond line")


def test_a_renderer_that_fails_is_named(tmp_path):
    env = finish(
        NoScreen(lengths=((4,),), mode=None, step_reward=(1.0,)),
        autoreset=Autoreset.SAME_STEP, max_episode_steps=None, task_limit=8,
    )  # fmt: skip
    expected = (
        "rendering of NoScreen: expected a working renderer, got RuntimeError: no "
        "OpenGL context. Set MUJOCO_GL=egl or MUJOCO_GL=osmesa to render MuJoCo without a display."
    )
    for call in (
        lambda: check_drawable(env),
        lambda: record_video(env, fakes.PlainAgent(), {}, KEY, tmp_path / "a.mp4"),
    ):
        with pytest.raises(UserError) as caught:
            call()
        assert str(caught.value) == expected
    assert not list(tmp_path.iterdir())


def test_check_drawable(monkeypatch):
    assert check_drawable(episodes_env("SAME_STEP")) is None
    env = HostEnv(Scripted((4, 3)), "SAME_STEP")
    env.reset(0)
    assert check_drawable(env) is None
    assert env.backend.taken == [] and env.backend.closed == 0
    assert env.backend.copies[0].closed == 1
    bare = finish(
        fakes.Scripted(lengths=((4,),), mode=None), autoreset=Autoreset.SAME_STEP,
        max_episode_steps=None, task_limit=8,
    )  # fmt: skip
    with pytest.raises(UserError) as caught:
        check_drawable(bare)
    assert str(caught.value) == (
        "rendering of Scripted: expected a working renderer, got NotImplementedError: "
        "Scripted has no renderer. Leave video_interval out, or record observation bars, which "
        "need no renderer."
    )
    monkeypatch.setitem(sys.modules, "imageio_ffmpeg", None)
    with pytest.raises(UserError, match=r"pip install 'tfrl\[video\]'"):
        check_drawable(episodes_env("SAME_STEP"))
