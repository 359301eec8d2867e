"""What readers of ml's task know works here under the names of `ml_items`."""

import inspect

import numpy as np
import pytest
import tensorflow as tf

import tfrl
from tests import docs_helpers
from tests.coming_from import ml_items, pages
from tests.tasks.scripted import SEED, Gate, Scripted, check_total, choose
from tests.tasks.small_tasks import Drawn, Weight
from tfrl.envs.workers import (
    AsyncEnvironmentWorker,
    EnvironmentWorker,
    NoState,
    SyncEnvironmentWorker,
    WorkerLimits,
    WorkerMode,
    WorkerPool,
)
from tfrl.errors import UserError
from tfrl.evaluation.video_file import write_video
from tfrl.keras import api as keras
from tfrl.tasks import (
    DatasetConfig,
    EnvironmentConfig,
    MultiReplaySamples,
    ReplayDataset,
    ReplaySamples,
    RLTask,
    RLTaskConfig,
    TaskWorkflow,
    iter_samples,
)
from tfrl.tasks.clip_recording import FrameStandard

rows = pages.Rows(ml_items.ITEMS)


class Ported(RLTask[RLTaskConfig, Weight, np.ndarray, np.ndarray, tf.Tensor, tf.Tensor]):
    """A task as one of ml: its methods and their arguments."""

    lengths = (5,)
    info = None

    def __init__(self, config):
        super().__init__(config)
        self.optimal, self.sizes, self.made, self.epochs = set(), [], 0, []

    def get_environment(self):
        self.made += 1
        return Drawn(self.lengths, info=self.info)

    def get_model(self):
        return Weight()

    def get_actions(self, model, states, optimal):
        assert not tf.executing_eagerly() or states.shape[1:] == (2,)
        self.optimal.add(optimal)
        self.sizes.append(len(states))
        return choose(states), {"step": states[:, 1] * 2, "net": {"tag": states[:, 0]}}

    def run_model(self, model, batch, state):
        return model.w * tf.cast(state.num_steps + 1, tf.float32)

    def compute_loss(self, model, batch, state, output):
        return tf.square(output - 3.0) + 0.0 * model.w


def config(num_env_workers=2, env_worker_mode="process", **changes):
    environment = EnvironmentConfig(
        num_env_workers=num_env_workers,
        env_worker_mode=env_worker_mode,
        env_seed=SEED,
        max_steps=9,
    )
    numbers = {
        "environment": environment,
        "dataset": DatasetConfig(num_update_steps=2),
        "force_sync": True,
        "num_collect_steps": 10,
        "batch_size": 4,
    }
    return RLTaskConfig(**{**numbers, **changes})


def ported(lengths=(5,), **changes):
    """A task and a model."""
    task = Ported(config(**changes))
    task.lengths = lengths
    return task, task.get_model()


def defaults(method, *names):
    parameters = inspect.signature(method).parameters
    return [parameters[name].default for name in names]


class TestConfig:
    @rows(
        "`ReinforcementLearningTaskConfig`",
        "`num_env_workers =",
        "`env_worker_mode =",
        "`env_seed =",
        "`env_cleanup_time =",
        "`max_steps =",
        "`num_samples = 1`",
        "`stride =",
        "`replay_buffer_sample_size",
    )
    def test_names_and_defaults(self):
        found = RLTaskConfig(num_update_steps=3)
        environment, dataset = found.environment, found.dataset
        assert (environment.num_env_workers, environment.env_worker_mode) == (1, "process")
        assert (environment.env_seed, environment.env_cleanup_time) == (1337, 5.0)
        assert (environment.max_steps, dataset.num_samples, dataset.stride) == (1000, 1, 1)
        assert (dataset.replay_buffer_sample_size, dataset.num_update_steps) == (10_000, 3)
        for group in (environment, dataset):
            for name in inspect.signature(type(group)).parameters:
                assert getattr(found, name) == getattr(group, name)

    def test_groups_in_gin(self, tmp_path):
        # The second time as a run writes it, with all defaults beside what was bound.
        for flat in ("", "RLTaskConfig.env_seed = 1337", "RLTaskConfig.env_seed = 5"):
            (tmp_path / "task.gin").write_text(
                "import examples.task_ppo\n"
                "train.workflow = @TaskWorkflow()\n"
                "train.total_env_steps = 80\n"
                "TaskWorkflow.task = @PPOTask()\n"
                "PPOTask.config = @RLTaskConfig()\n"
                "RLTaskConfig.environment = @EnvironmentConfig()\n"
                "RLTaskConfig.dataset = @DatasetConfig()\n"
                f"EnvironmentConfig.env_seed = 5\nDatasetConfig.num_update_steps = 4\n{flat}\n"
            )
            found = tfrl.build_from_config(str(tmp_path / "task.gin")).task.config
            assert found.environment == EnvironmentConfig(env_seed=5)
            assert found.dataset.num_update_steps == found.num_update_steps == 4

    @rows("`num_update_steps =")
    def test_what_is_missing_or_negative(self):
        with pytest.raises(UserError, match="num_update_steps of RLTaskConfig: .* got None"):
            RLTaskConfig()
        with pytest.raises(UserError, match="0 for one synchronous worker"):
            config(num_env_workers=-1)


class TestWorkers:
    @rows(
        "`get_environment_workers(",
        "`get_worker_pool(force",
        "no worker, or",
        "`SyncEnvironmentWorker(",
        "`BaseEnvironmentWorker`",
    )
    def test_workers_and_pools_of_a_task(self):
        task, _ = ported(force_sync=False, env_worker_mode="thread")
        workers = task.get_environment_workers(force_sync=True)
        assert [type(w) for w in workers] == [SyncEnvironmentWorker] * 2
        with task.get_worker_pool(force_sync=True) as pool:
            assert len(pool) == 2 and pool.pids == []
        with task.get_worker_pool() as pool:
            assert {type(w) for w in pool._workers} == {AsyncEnvironmentWorker}
        none, _ = ported(num_env_workers=0, force_sync=False)
        (worker,) = none.get_environment_workers()
        assert isinstance(worker, SyncEnvironmentWorker)
        assert isinstance(worker, EnvironmentWorker)

    @rows("`AsyncEnvironmentWorker(", "`get_worker_pool(workers")
    def test_processes_of_ones_own(self):
        limits = WorkerLimits(cleanup_time=3.0)
        workers = [
            AsyncEnvironmentWorker(Scripted, worker_id=w, seed=SEED, mode="process", limits=limits)
            for w in range(2)
        ]
        with WorkerPool.from_workers(workers) as pool:
            pool.reset()
            assert len(set(pool.pids)) == 2
            assert sorted(pool.get_state().worker_id for _ in range(2)) == [0, 1]

    @rows('state `"terminated"`')
    def test_a_loop_over_a_pool(self):
        # As written for ml: it resets what has ended by itself.
        workers = [SyncEnvironmentWorker(Scripted, worker_id=w, seed=SEED) for w in range(2)]
        ends, steps = 0, []
        with WorkerPool.from_workers(workers) as pool:
            pool.reset()
            while ends < 4:
                state = pool.get_state()
                if state.last:
                    assert state.terminated != state.truncated
                    ends += 1
                    pool.send_action("reset", state.worker_id)
                else:
                    steps.append(state.step)
                    pool.send_action(0, state.worker_id)
        assert len(steps) == 4 * 5

    @rows("`WorkerPool`", '`send_action("reset"')
    def test_a_single_worker_and_timeouts(self):
        gate = Gate()
        with WorkerPool(
            lambda: Scripted([9], gates={0: gate}), 2, mode="thread", seed=SEED
        ) as pool:
            with gate:
                pool.reset()
                assert {pool.get_state().worker_id for _ in range(2)} == {0, 1}
                pool.send_action(1, 0)
                assert pool.get_state(timeout=0.01) is NoState.TIMED_OUT and not NoState.TIMED_OUT
                pool.send_action("reset", 1)
                assert pool.get_state()[0:4:3] == (1, 0)
            assert pool.get_state().step == 1
            pool.reset(0)
            assert pool.get_state()[0:4:3] == (0, 0)
            with pytest.raises(UserError, match="close"):
                pool.send_action("close", 0)

    @rows("`cast_worker_mode")
    def test_modes(self):
        assert WorkerMode.of("thread") is WorkerMode.THREAD
        with pytest.raises(ValueError, match="mode of the environment workers"):
            WorkerMode.of("greenlet")


class TestSampling:
    def test_arguments_and_defaults(self):
        names = ("min_trajectory_length", "max_trajectory_length", "min_batch_size")
        more = ("max_batch_size", "max_wait_time", "optimal")
        for method in (RLTask.iter_samples, RLTask.collect_samples):
            assert defaults(method, *names, *more) == [1, None, 1, None, None, True]
            parameters = inspect.signature(method).parameters
            assert list(parameters)[1:3] == ["model", "worker_pool"]
        assert defaults(RLTask.iter_samples, "total_samples") == [None]

    @rows(
        "`task.collect_samples(",
        "`task.iter_samples(",
        "`get_actions(",
        "`get_environment()`",
        "running trajectories",
        "`optimal=True`",
    )
    def test_collections(self):
        task, model = ported()
        with task.get_worker_pool() as pool:
            samples = task.collect_samples(model=model, worker_pool=pool, total_samples=23)
        assert isinstance(samples, MultiReplaySamples) and task.optimal == {True}
        check_total(samples.in_order(), 23)
        assert samples.in_order()[-1].cut  # what was running at the end
        assert set(task.sizes[:-1]) == {2}

    @rows("`total_samples=None`", "`max_trajectory_length`", "`max_batch_size=None`")
    def test_a_stream_without_an_end(self):
        task, model = ported(lengths=(9,))
        with task.get_worker_pool() as pool:
            stream = task.iter_samples(model, pool, max_trajectory_length=4, max_batch_size=1)
            found = [next(stream) for _ in range(6)]
        assert {(t.start, len(t)) for t in found} == {(0, 4)} and set(task.sizes) == {1}
        assert all(t.truncation.tolist() == [False] * 3 + [True] for t in found)

    @rows("`min_trajectory_length=1`", "short trajectories", "ValueError for `min_traj")
    def test_short_trajectories(self, caplog):
        task, model = ported(lengths=(2, 5), num_env_workers=1)
        with task.get_worker_pool() as pool:
            samples = task.collect_samples(model, pool, 10, min_trajectory_length=4)
        assert [len(t) for t in samples.in_order()] == [5, 5]
        assert "Discarded a trajectory of 2 samples" in caplog.text
        task, model = ported(dataset=DatasetConfig(num_update_steps=1, num_samples=3))
        with task.get_worker_pool() as pool:
            for wrong in (
                {"total_samples": 2},
                {"total_samples": 9, "min_batch_size": 2, "max_batch_size": 1},
            ):
                with pytest.raises(ValueError):
                    task.collect_samples(model, pool, **wrong)

    @rows("`max_wait_time=None`", "`min_batch_size=1`")
    def test_a_full_batch_is_waited_for(self):
        task, model = ported(force_sync=False, env_worker_mode="thread", num_env_workers=3)
        with task.get_worker_pool() as pool:
            task.collect_samples(model, pool, 30)
            assert task.sizes[:5] == [3] * 5
            task.sizes.clear()
            task.collect_samples(model, pool, 30, min_batch_size=2, max_wait_time=10.0)
            assert min(task.sizes[:5]) >= 2

    @rows("`postprocess_traj")
    def test_hooks(self):
        class Hooked(Ported):
            def postprocess_trajectory(self, model, trajectory):
                doubled = {**trajectory.extras, "double": 2 * trajectory.reward}
                return trajectory.replace(extras=doubled)

            def postprocess_trajectories(self, model, trajectories):
                return trajectories[1:]

        task = Hooked(config())
        with task.get_worker_pool() as pool:
            samples = task.collect_samples(task.get_model(), pool, 10)
        (only,) = samples.in_order()
        np.testing.assert_array_equal(only.extras["double"], 2 * only.reward)

    @rows("progress bar")
    def test_progress(self, capsys):
        task, _ = ported()
        with task.get_worker_pool() as pool:
            list(iter_samples(pool, lambda s, best: choose(s), total_samples=20, progress=True))
        assert "samples 100% 20/20" in capsys.readouterr().err

    @rows("`ReplaySamples(", "`MultiReplaySamples(", "`ReplayDataset(", "`build_rl_dataset(")
    def test_replay_samples(self):
        task, model = ported()
        with task.get_worker_pool() as pool:
            trajectories = task.collect_samples(model, pool, 20).in_order()
        one = ReplaySamples(trajectories[0])
        assert one.sample(2, stride=2, only_last=True).obs[:, 1].tolist() == [2, 4]
        every = MultiReplaySamples([ReplaySamples(t) for t in trajectories])
        assert len(every) == 20 and every.sample(3).obs.shape == (3, 2)
        assert next(iter(ReplayDataset(every, 3, 2))).obs.shape == [3, 2]
        assert next(iter(task.build_rl_dataset(every))).obs.shape == [4, 1, 2]


class TestClips:
    def test_arguments_and_defaults(self):
        names = ("save_path", "return_states", "model", "writer", "standardize_images", "optimal")
        assert defaults(RLTask.sample_clip, *names) == [None, False, None, "ffmpeg", True, True]

    @rows(
        "`sample_clip()`",
        "`return_states=True`",
        "`save_path`: returns",
        "`standardize_images",
        "`optimal=True` of",
        "`model=None`",
        "pairs of an action",
        "ValueError for `save_path`",
        "ValueError for neither",
        "`get_environment_cached",
    )
    def test_what_is_returned(self, tmp_path):
        task, model = ported()
        images = task.sample_clip()
        assert images.shape == (6, 4, 4, 3) and images.dtype == np.uint8 and not task.optimal
        images, states = task.sample_clip(return_states=True, model=model)
        assert len(images) == 6 and check_total([states], 5) is None and task.optimal == {True}
        states = task.sample_clip(return_images=False, return_states=True, model=model)
        assert len(states) == 5
        assert task.made == 1 and task.get_environment_cached() is task._environment
        path = tmp_path / "clip.mp4"
        assert task.sample_clip(save_path=path, model=model) is None and path.stat().st_size
        assert len(task.sample_clip(save_path=path, return_states=True)) == 5
        with pytest.raises(ValueError):
            task.sample_clip(return_images=False, return_states=False)
        raw = task.sample_clip(standardize_images=False)
        assert isinstance(raw, list) and raw[0].shape == (3, 4, 3)

    @rows("`writer=", "fps of", "`write_video`")
    @pytest.mark.parametrize("writer", ["ffmpeg", "matplotlib", "opencv"])
    def test_writers(self, tmp_path, writer):
        imageio_ffmpeg = pytest.importorskip("imageio_ffmpeg")
        pytest.importorskip({"matplotlib": "matplotlib", "opencv": "cv2"}.get(writer, "PIL"))
        path = str(tmp_path / "clip.mp4")
        ported()[0].sample_clip(save_path=path, writer=writer)
        # The environment's fps.
        assert next(imageio_ffmpeg.read_frames(path))["fps"] == 12.0
        frames = [FrameStandard()(np.full([3, 4], t, np.uint8)) for t in range(4)]
        assert write_video(path, frames, 10, writer) == 4

    @rows("`max_steps` bounds", "RuntimeError")
    def test_where_it_ends(self):
        task, _ = ported(lengths=(100,))
        assert len(task.sample_clip()) == 9 + 1
        task, _ = ported()
        task.info = {"terminated": True}
        with pytest.raises(UserError, match="the initial state of the clip"):
            task.sample_clip()


class TestTraining:
    @rows(
        "`ReinforcementLearningTask`",
        "`ReinforcementLearningTask[",
        "`run_model(",
        "`compute_loss(",
        "`epoch_is_over",
        "no gradients",
        "`ReinforcementLearningTrainer`",
    )
    def test_a_run(self, tmp_path):
        class Watched(Ported):
            clips = 0

            def sample_clip(self, *args, **kwargs):
                self.clips += 1
                return super().sample_clip(*args, **kwargs)

            def epoch_is_over(self, num_updates, metrics):
                self.epochs.append((num_updates, float(metrics["loss"])))
                return super().epoch_is_over(num_updates, metrics)

            def get_optimizer(self):
                return keras.optimizers.SGD(0.25)

            def get_actions(self, model, states, optimal):
                with tf.GradientTape() as tape:
                    tape.watch(model.w)
                assert tape.gradient(model.w * 1.0, model.w) is None  # no tape is recording
                return super().get_actions(model, states, optimal)

        task = Watched(config())
        workflow = TaskWorkflow(task=task, eval_episodes=2)
        state = workflow.setup(0)
        row, state = workflow.step(state)
        # Output w * (updates + 1): 0, then 1.5 * 2, which is the target.
        assert task.epochs == [(1, 9.0), (2, 0.0)] and task.optimal == {False}
        assert float(workflow.model(state).w) == 1.5
        metrics, state = workflow.evaluate(state)
        assert metrics["eval_episodes"] == 2 and task.optimal == {False, True}
        video = workflow.record_video(state, tmp_path / "clip.gif", 3)
        assert (task.clips, video.frames, video.fps) == (1, 6, 12.0)
        workflow.close()


def test_every_item_has_a_row():
    assert len(ml_items.ITEMS) == 64
    assert all(len(row) == 3 and row[0] and row[1] for row in ml_items.ITEMS)


def test_every_row_is_run():
    assert rows.not_run() == []


def test_the_page_has_the_table():
    assert pages.shown("docs/coming_from_ml.md", "ml") == pages.table("ml", ml_items.ITEMS)
    noted = [here for name, here, note in ml_items.ITEMS if note]
    assert not [here for here in noted if here.startswith("the same")]


def test_the_page_runs():
    text = (pages.ROOT / "docs/coming_from_ml.md").read_text(encoding="utf-8")
    (block,) = docs_helpers.session(docs_helpers.blocks(text))
    names = {"__name__": "page"}
    exec(block, names)  # noqa: S102  our own page
    assert names["metrics"]["updates"] == 5 and len(names["samples"]) == 20
