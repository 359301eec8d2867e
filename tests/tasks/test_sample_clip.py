import pickle
import sys

import gymnasium
import numpy as np
import pytest
import tensorflow as tf
from tensorboard.backend.event_processing import event_file_loader

from tests.tasks.scripted import Scripted, check_trajectory
from tests.tasks.small_tasks import Drawn, KerasTask, ScriptedTask, config
from tfrl.envs.workers import WorkerError
from tfrl.episodes import lookback_buffer
from tfrl.errors import UserError
from tfrl.tasks import collect_samples
from tfrl.tasks.clip_recording import FrameStandard, record_video
from tfrl.tasks.environments import make_pool

ONLY = {"return_images": False, "return_states": True}


def play(env=Drawn, numbers=None, **options):
    """A clip of a task, and the task."""
    env_options = {k: options.pop(k) for k in ("lengths", "shape", "info") if k in options}
    task = ScriptedTask(config(**(numbers or {})), env, **env_options)
    return task.sample_clip(task.get_model(), **options), task


def test_frames_begin_with_the_initial_state_and_end_with_the_last():
    images, task = play(return_images=True)
    # 5 steps: steps 0 to 5 are drawn, each as ten times its number; 3 rows become 4.
    assert images.shape == (6, 4, 4, 3) and images.dtype == np.uint8
    assert images[:, 0, 0, 0].tolist() == images[:, 3, 3, 2].tolist() == [0, 10, 20, 30, 40, 50]
    assert task.optimal == {True} and len(task.envs) == 1


@pytest.mark.parametrize("lengths", [[4], [5], [100]])
def test_states_and_actions_are_those_of_iter_samples(lengths):
    (images, states), task = play(return_images=True, return_states=True, lengths=lengths)
    count = min(lengths[0], 9)
    with make_pool(task, num_workers=0, seed=task.config.env_seed) as pool:
        model = task.get_model()
        (expected,) = collect_samples(
            pool, lambda s, optimal: task.get_actions(model, s, optimal), total_samples=count
        )
    assert len(images) == count + 1
    for name in ("worker_id", "episode", "start", "cut"):
        assert getattr(states, name) == getattr(expected, name)
    assert states.cut == (lengths[0] > 9)
    found, want = tf.nest.flatten(states), tf.nest.flatten(expected)
    for x, y in zip(found, want, strict=True):
        np.testing.assert_array_equal(x, y)
        assert x.dtype == y.dtype
    # Frame t shows what action t was chosen from, the last frame what came last.
    steps = [*states.obs[:, 1], states.last_obs[1]]
    np.testing.assert_array_equal(images[:, 0, 0, 0], 10 * np.array(steps))


def test_states_alone_are_not_drawn():
    states, _ = play(Scripted, return_images=False, return_states=True, lengths=[4], seed=11)
    assert check_trajectory(states) == 4
    assert states.termination.tolist() == [False, False, False, True]


def test_max_steps_and_seed():
    states, task = play(return_images=False, return_states=True, lengths=[100], max_steps=3)
    assert len(states) == 3 and states.cut and states.truncation.tolist() == [False, False, True]
    other = task.sample_clip(task.get_model(), **ONLY, seed=5, max_steps=3)
    again = task.sample_clip(task.get_model(), **ONLY, seed=5, max_steps=3)
    assert lookback_buffer.equal(other.obs, again.obs) and not lookback_buffer.equal(
        other.obs, states.obs
    )


def test_without_a_model_actions_are_random():
    task = ScriptedTask(config(max_steps=200), lengths=[200])
    states = task.sample_clip(**ONLY)
    # 200 fair coins: the standard deviation is 7.
    assert 60 < states.action.sum() < 140 and states.extras == {} and not task.optimal
    assert lookback_buffer.equal(states.action, task.sample_clip(**ONLY).action)
    others = task.sample_clip(**ONLY, seed=3)
    assert not lookback_buffer.equal(states.action, others.action)


class Continuous(gymnasium.Wrapper):
    def __init__(self, **options):
        super().__init__(Drawn(**options))
        spaces = gymnasium.spaces
        self.action_space = spaces.Dict(a=spaces.Box(-1, 1, [2], np.float32), b=spaces.Discrete(3))

    def step(self, action):
        assert self.action_space.contains(action)
        return self.env.step(action["b"] % 2)


def test_random_actions_of_a_nest():
    states = ScriptedTask(config(), Continuous).sample_clip(**ONLY)
    assert states.action["a"].shape == (5, 2) and states.action["b"].shape == (5,)


@pytest.mark.parametrize(
    "shape, value", [((3, 4), 10), ((3, 4, 1), 10), ((3, 4, 3), 10), ((3, 4, 4), 10)]
)
def test_grey_and_rgba_become_rgb(shape, value):
    images, _ = play(return_images=True, shape=shape, max_steps=1)
    assert images.shape == (2, 4, 4, 3)
    assert images[1].tolist() == np.full([4, 4, 3], value).tolist()


def test_alpha_is_dropped_and_grey_repeated_by_hand():
    rgba = np.arange(16, dtype=np.uint8).reshape(2, 2, 4)
    assert FrameStandard()(rgba).tolist() == [[[0, 1, 2], [4, 5, 6]], [[8, 9, 10], [12, 13, 14]]]
    grey = np.uint8([[1, 2], [3, 4]])
    assert FrameStandard()(grey).tolist() == [[[1] * 3, [2] * 3], [[3] * 3, [4] * 3]]


def test_sizes_are_even_and_those_of_the_first_frame():
    standard = FrameStandard()
    row = np.uint8([[[1, 1, 1], [2, 2, 2], [3, 3, 3]]])
    # One row of three: both are repeated at their end.
    assert standard(row)[..., 0].tolist() == [[1, 2, 3, 3], [1, 2, 3, 3]]
    larger = np.arange(1, 13, dtype=np.uint8).reshape(2, 2, 3)
    # Cropped to one row, filled up in black to three columns, then made even.
    assert standard(larger)[..., 0].tolist() == [[1, 4, 0, 0], [1, 4, 0, 0]]


def test_frames_as_they_are():
    images, _ = play(return_images=True, standardize_images=False, shape=(3, 5))
    assert isinstance(images, list) and len(images) == 6
    assert all(image.shape == (3, 5) for image in images) and images[2].max() == 20


@pytest.mark.parametrize("suffix", ["mp4", "gif"])
def test_files_have_the_environments_fps(tmp_path, suffix):
    import imageio_ffmpeg

    path = tmp_path / "new" / f"clip.{suffix}"
    # 12 frames a second; of GIF's hundredths of a second the nearest is 8.
    result, _ = play(save_path=path, shape=(33, 47, 3))
    assert result is None
    assert [p.name for p in path.parent.iterdir()] == [f"clip.{suffix}"]
    reader = imageio_ffmpeg.read_frames(str(path))
    about = next(reader)
    assert about["size"] == (48, 34)
    assert about["fps"] == pytest.approx(12.0 if suffix == "mp4" else 12.5)
    assert imageio_ffmpeg.count_frames_and_secs(str(path))[0] == 6


def test_files_and_images_at_once(tmp_path):
    images, task = play(save_path=str(tmp_path / "clip.gif"), return_images=True)
    assert len(images) == 6 and (tmp_path / "clip.gif").stat().st_size > 100
    assert task.envs[0].renders == 6


@pytest.mark.parametrize("name", ["summary_writer", "writer"])
def test_tensorboard_shows_the_clip(tmp_path, name):
    writer = tf.summary.create_file_writer(str(tmp_path))
    assert play(**{name: writer}, step=7, tag="my_clip")[0] is None
    writer.close()
    (path,) = tmp_path.iterdir()
    found = [
        (event.step, value.tag, tf.make_ndarray(value.tensor))
        for event in event_file_loader.EventFileLoader(str(path)).Load()
        for value in event.summary.value
    ]
    ((step, tag, (width, height, image)),) = found
    assert (step, tag, width, height) == (7, "my_clip", b"4", b"4")
    assert image[:6] == b"GIF89a"


class Closing(Drawn):
    closed = 0

    def close(self):
        type(self).closed += 1


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"shape": (3, 4, 2)},
        {"info": {"truncated": True}},
        {"max_steps": 2},
        {"save_path": "/proc/none/clip.mp4"},
    ],
    ids=lambda options: next(iter(options), "good"),
)
def test_the_environment_is_closed_once_also_after_an_error(options):
    Closing.closed = 0
    if options.keys() & {"shape", "info", "save_path"}:
        with pytest.raises(UserError):
            play(Closing, return_images=True, **options)
    else:
        _, task = play(Closing, return_images=True, **options)
        assert Closing.closed == 0
        task.sample_clip()
        assert len(task.envs) == 1
        task.close()
        task.close()
    assert Closing.closed == 1


def test_after_an_error_there_is_a_new_environment():
    task = ScriptedTask(config(), Breaking)
    with pytest.raises(WorkerError, match="broken"):
        task.sample_clip()
    task._env = Drawn
    assert len(task.sample_clip()) == 6 and len(task.envs) == 2


def test_the_environment_of_clips_stays_here():
    task = ScriptedTask(config())
    task.sample_clip()
    assert task.get_environment_cached() is task.envs[0]
    other = pickle.loads(pickle.dumps(ScriptedTask.get_environment.__get__(task)))
    assert "_environment" not in vars(other.__self__)


@pytest.mark.parametrize("writer", ["ffmpeg", "matplotlib", "opencv"])
def test_writers(tmp_path, writer):
    import imageio_ffmpeg

    path = tmp_path / "clip.mp4"
    result, task = play(save_path=path, writer=writer, shape=(33, 47, 3))
    assert result is None
    reader = imageio_ffmpeg.read_frames(str(path))
    about = next(reader)
    assert (about["size"], about["fps"]) == ((48, 34), 12.0)
    frames = [np.frombuffer(f, np.uint8).reshape(34, 48, 3) for f in reader]
    assert len(frames) == 6
    for t, frame in enumerate(frames):
        assert abs(float(frame.mean()) - 10 * t) < 4
    if writer == "matplotlib":
        task.sample_clip(save_path=tmp_path / "clip.gif", writer=writer)
        assert imageio_ffmpeg.count_frames_and_secs(str(tmp_path / "clip.gif"))[0] == 6
    if writer == "opencv":
        with pytest.raises(UserError, match="path: expected a name that ends in .mp4, got .*gif"):
            task.sample_clip(save_path=tmp_path / "clip.gif", writer=writer)


@pytest.mark.parametrize("writer, module", [("matplotlib", "matplotlib"), ("opencv", "cv2")])
def test_a_writer_that_is_not_installed(tmp_path, monkeypatch, writer, module):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(UserError) as error:
        play(save_path=tmp_path / "clip.mp4", writer=writer)
    assert str(error.value) == (
        f"Optional dependency {module}: expected the extra 'video-writers' to be installed, got no "
        f"module named {module}. Install it with: pip install 'tfrl[video-writers]'"
    )
    assert not list(tmp_path.iterdir())


def test_what_is_returned_by_default(tmp_path):
    path = str(tmp_path / "clip.gif")
    task = ScriptedTask(config())
    assert task.sample_clip().shape == (6, 4, 4, 3)
    images, states = task.sample_clip(return_states=True)
    assert len(images) == len(states) + 1 == 6
    assert task.sample_clip(save_path=path, standardize_images=False) is None
    # More than ml, where that is an error.
    assert len(task.sample_clip(save_path=path, return_states=True)) == 5


class Breaking(Closing):
    def step(self, action):
        raise ValueError("broken")


def test_the_environment_is_closed_once_where_a_step_fails():
    Closing.closed = Breaking.closed = 0
    with pytest.raises(WorkerError, match="broken"):
        play(Breaking, **ONLY)
    assert Breaking.closed == 1


def test_an_environment_that_cannot_be_drawn_is_closed():
    class Dark(Closing):
        def __init__(self, **options):
            super().__init__(**options)
            self.render_mode = None

    Dark.closed = 0
    with pytest.raises(UserError, match="render_mode None"):
        play(Dark, return_images=True)
    assert Dark.closed == 1


@pytest.mark.parametrize("wrong", [{"seed": -1}, {"max_steps": 0}, {"save_path": "clip.avi"}])
def test_nothing_is_made_for_wrong_arguments(wrong):
    task = ScriptedTask(config())
    with pytest.raises(UserError):
        task.sample_clip(return_states=True, **wrong)
    assert task.envs == []


def test_a_clip_ends_where_training_ends_its_episodes(tmp_path):
    numbers = {"max_episode_steps": 4}
    (images, states), task = play(
        return_images=True, return_states=True, lengths=[100], numbers=numbers
    )
    assert len(images) == 5 and len(states) == 4
    assert not states.cut and states.truncation.tolist() == [False, False, False, True]
    video = record_video(task, task.get_model(), tmp_path / "clip.gif", 3, None)
    assert (video.frames, video.episode_lengths) == (5, (4,))


class Silent(Drawn):
    def __init__(self, **options):
        super().__init__(**options)
        self.render_mode = None


ASKED = "sample_clip: expected one or more of save_path, return_images, return_states and "


@pytest.mark.parametrize(
    "options, message",
    [
        (
            {"return_images": False},
            ASKED + "summary_writer, got no output. Pass save_path='clip.mp4' to write a file.",
        ),
        (
            {"save_path": "clip.avi"},
            "path: expected a name that ends in .gif or .mp4, got clip.avi.",
        ),
        (
            {"writer": "ffmpg"},
            "writer of sample_clip: expected one of ffmpeg, matplotlib, opencv, got 'ffmpg'. Did "
            "you mean ffmpeg?",
        ),
        (
            {"summary_writer": "logs"},
            "summary_writer of sample_clip: expected a tf.summary writer, got 'logs' of type str. "
            "Create it with tf.summary.create_file_writer(folder).",
        ),
        (
            {"return_states": True, "max_steps": 0},
            "max_steps: expected a whole number of at least 1, got 0. Pass the number of env "
            "steps in a clip.",
        ),
        (
            {"return_states": True, "seed": -1},
            "seed of the environment workers: expected a whole number of at least 0, got -1. Give "
            "0 or more.",
        ),
        (
            {"return_states": True, "env": lambda: 3},
            "get_environment(): expected a gymnasium.Env, got int. Derive it from gymnasium.Env "
            "(reset(seed=, options=), step with 5 values).",
        ),
        (
            {"return_images": True, "env": Silent},
            "get_environment() for a video: expected an environment with render_mode 'rgb_array', "
            "got render_mode None of ['rgb_array']. Create it with gymnasium.make(..., "
            "render_mode='rgb_array'), or pass return_images=False and return_states=True.",
        ),
        (
            {"return_images": True, "shape": (3, 4, 2)},
            "env.render() for a video: expected a uint8 frame [H, W], [H, W, 1], [H, W, 3] or [H, "
            "W, 4], got uint8 [3, 4, 2]. Fix the render method of the environment.",
        ),
        (
            {"return_states": True, "info": {"terminated": np.bool_(True)}},
            "the initial state of the clip: expected a state that takes an action, got "
            "info['terminated'] True at reset, before the first step. Start the episode in a "
            "non-terminal state, or choose a different seed.",
        ),
    ],
)
def test_messages(options, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError) as error:
        play(**options)
    assert isinstance(error.value, UserError) and str(error.value) == message
    assert not list(tmp_path.iterdir())


def test_a_terminal_start_leaves_no_file(tmp_path):
    with pytest.raises(UserError, match="initial state of the clip"):
        play(save_path=tmp_path / "clip.gif", info={"truncated": True})
    assert not list(tmp_path.iterdir())


def test_a_frame_of_nothing_is_told():
    class Nothing(Drawn):
        def render(self):
            return None

    with pytest.raises(UserError, match="got NoneType. Fix the render method"):
        play(Nothing, return_images=True)


def test_a_clip_of_cartpole():
    task = KerasTask(config(max_steps=3))
    images, states = task.sample_clip(task.get_model(), return_images=True, return_states=True)
    assert images.shape == (4, 400, 600, 3) and states.obs.shape == (3, 4)
