"""The methods of a task that `TaskWorkflow` calls, overridden."""

import numpy as np
import pytest
import tensorflow as tf

from tests.tasks.scripted import SEED, Scripted
from tests.tasks.small_tasks import ScriptedTask, config
from tfrl.envs.workers import SyncEnvironmentWorker, WorkerPool, episode_seed
from tfrl.errors import UserError
from tfrl.tasks import (
    MultiReplaySamples,
    ReplayDataset,
    ReplaySamples,
    Sampler,
    TaskWorkflow,
    TrainingState,
)
from tfrl.tasks.task import CallForms, call_forms


def run(task, iterations=1):
    """Returns (workflow, state, metrics rows)."""
    workflow = TaskWorkflow(task=task)
    state, rows = workflow.setup(0), []
    for _ in range(iterations):
        row, state = workflow.step(state)
        rows.append(row)
    return workflow, state, rows


class WithState(ScriptedTask):
    """The same in the form with model and state, which it takes notes of."""

    def run_model(self, model, batch, state):
        assert isinstance(state, TrainingState)
        counts = [state.num_epochs, state.num_samples, state.num_steps, state.num_epoch_steps]
        tf.py_function(lambda *x: self.batches.append([int(n) for n in x]), counts, [])
        return model.w

    def compute_loss(self, model, batch, state, output):
        assert model.w is output and state.env_steps.dtype == tf.int64
        return super().compute_loss(output, batch)


@pytest.mark.parametrize("compile", ["graph", "eager"])
def test_losses_get_model_and_state(compile):
    task = WithState(config())
    workflow = TaskWorkflow(task=task, compile=compile)
    first, state = workflow.step(workflow.setup(0))
    second, state = workflow.step(state)
    assert task.batches == [[1, 10, 0, 0], [1, 10, 1, 1], [2, 20, 2, 0], [2, 20, 3, 1]]
    _, _, rows = run(ScriptedTask(config()), 2)
    assert [first, second] == rows
    (module,) = workflow.runner(state).learner.modules.values()
    forward = module.forward({}, None, None)
    assert float(forward) == 3 - 3 / 16


@pytest.mark.parametrize(
    "methods, forms",
    [
        ({}, (True, True)),
        ({"run_model": lambda self, model, batch, training=True: 0}, (False, True)),
        ({"run_model": lambda self, model, batch, state=None: 0}, (True, True)),
        ({"run_model": lambda self, m, b, s: 0}, (True, True)),
        ({"compute_loss": lambda self, outputs, batch, scale=1.0: 0}, (True, False)),
        ({"compute_loss": lambda self, m, b, s, o: 0}, (True, True)),
    ],
)
def test_the_forms_are_told_apart_by_the_signature(methods, forms):
    base = {"run_model": WithState.run_model, "compute_loss": WithState.compute_loss}
    task = type("Small", (ScriptedTask,), {**base, **methods})(config())
    assert call_forms(task) == CallForms(*forms)


def test_a_method_of_neither_form_is_told_before_training():
    task = type("Small", (ScriptedTask,), {"compute_loss": lambda self, batch: 0})(config())
    with pytest.raises(UserError) as error:
        TaskWorkflow(task).setup(0)
    assert str(error.value) == (
        "compute_loss of Small: expected a method compute_loss(model, batch, state, output), got "
        "compute_loss(batch). Change its signature to these arguments."
    )


def test_samples_of_the_methods():
    task = ScriptedTask(config(num_env_workers=2, force_sync=True, num_samples=2), lengths=[4])
    model = task.get_model()
    with task.get_worker_pool() as pool:
        assert [type(w) for w in pool._workers] == [SyncEnvironmentWorker] * 2
        samples = task.collect_samples(model, pool, 16)
        assert isinstance(samples, MultiReplaySamples) and len(samples) == 16
        assert task.optimal == {True}
        stream = task.iter_samples(model, pool, max_trajectory_length=3, optimal=False)
        assert [len(next(stream)) for _ in range(5)] == [3] * 5 and False in task.optimal
        batch = next(iter(task.build_rl_dataset(samples)))
        assert batch.obs.shape == [4, 2, 2]
        with pytest.raises(UserError, match="total_samples: expected .* 2, got 1"):
            task.collect_samples(model, pool, 1)


def test_a_dataset_over_samples():
    task = ScriptedTask(config(num_env_workers=2, force_sync=True))
    with task.get_worker_pool() as pool:
        samples = task.collect_samples(task.get_model(), pool, 20)
    again = MultiReplaySamples([ReplaySamples(t) for t in samples.in_order()])
    assert len(again) == 20
    dataset = ReplayDataset(again, 3, 2)
    clip = next(iter(dataset))
    assert clip.obs.shape == [3, 2] and clip.last_obs.shape == [2]
    batch = next(iter(dataset.as_dataset().batch(5)))
    assert batch.obs.shape == [5, 3, 2] and batch.last_obs.shape == [5, 2]


class Own(ScriptedTask):
    """Overrides all of it, with ml's arguments."""

    calls = ()

    def get_environment_workers(self, force_sync=False):
        self.calls += (("workers", self.config.environment.num_env_workers, force_sync),)
        seed = self.config.environment.env_seed + 1
        return [SyncEnvironmentWorker(self.get_environment, worker_id=w, seed=seed) for w in (0, 1)]

    def collect_samples(self, model, worker_pool, total_samples, *, optimal=True, **options):
        assert isinstance(worker_pool, Sampler) and len(worker_pool) == 2 and not optimal
        self.calls += (("collect", total_samples),)
        return super().collect_samples(model, worker_pool, total_samples, **options)

    def build_rl_dataset(self, samples):
        self.calls += (("dataset", len(samples)),)
        return super().build_rl_dataset(samples).as_dataset().take(3)


def test_the_workflow_calls_what_is_overridden():
    task = Own(config(num_env_workers=2, num_update_steps=9))
    workflow, state, rows = run(task, 2)
    assert [row["updates"] for row in rows] == [3, 3] and task.optimal == {True}
    assert task.calls == (
        *(("workers", 2, False), ("collect", 10), ("dataset", 10)),
        *(("collect", 10), ("dataset", 20)),
    )
    (clips,) = workflow.runner(state)._replay.workers[0].trajectories[:1]
    assert clips.obs[0, 0] == episode_seed(SEED + 1, 0, 0) % 2**20
    result = workflow.final_evaluation(state, 3)
    assert len(result.episode_returns) == 3 and len(task.calls) == 5
    workflow.close()


class Elsewhere(ScriptedTask):
    """Plays by its own loop over the pool's states."""

    def collect_samples(self, model, worker_pool, total_samples, **options):
        worker_pool.reset()
        for _ in range(3):
            state = worker_pool.get_state()
            worker_pool.send_action(0, state.worker_id)
        with WorkerPool(Scripted, 0, seed=3) as pool:
            return super().collect_samples(model, pool, 7)


def test_env_steps_of_a_task_that_samples_otherwise():
    _, _, (row,) = run(Elsewhere(config()))
    assert (row["env_steps"], row["replay_samples"], row["episodes"]) == (7, 7, 1)
    assert row["action_batch_size"] == 0


@pytest.mark.parametrize(
    "methods, message",
    [
        (
            {"get_worker_pool": lambda self, force_sync=False: WorkerPool(Scripted, 3)},
            "get_worker_pool of Wrong: expected 1 workers, as set by num_env_workers, got 3. "
            "Create this number of workers: a checkpoint stores one next episode per worker.",
        ),
        (
            {"get_worker_pool": lambda self, force_sync=False: 3},
            "get_worker_pool of Wrong: expected a WorkerPool, got int.",
        ),
        (
            {"collect_samples": lambda self, **options: []},
            "collect_samples of Wrong: expected MultiReplaySamples, got list.",
        ),
        (
            {"build_rl_dataset": lambda self, samples: []},
            "build_rl_dataset of Wrong: expected at least one batch, got an empty dataset. Return "
            "a dataset of batches of clips.",
        ),
    ],
)
def test_messages(methods, message):
    workflow = TaskWorkflow(type("Wrong", (ScriptedTask,), methods)(config()))
    with pytest.raises(UserError) as error:
        workflow.step(workflow.setup(0))
    assert str(error.value) == message
    workflow.close()


def test_long_episodes_count_as_ended():
    task = ScriptedTask(config(max_trajectory_length=5, replay_buffer_sample_size=20), lengths=[99])
    workflow, state, (row,) = run(task)
    assert (row["episodes"], row["episode_length"]) == (2, 5.0)
    assert [t.truncation[-1] for t in workflow.runner(state)._replay.in_order()] == [True] * 2
    assert np.all([t.start == 0 for t in workflow.runner(state)._replay.in_order()])
