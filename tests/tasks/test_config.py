import dataclasses

import pytest

from tests.tasks.scripted import Scripted
from tests.tasks.small_tasks import ScriptedTask, Weight, config
from tfrl import struct
from tfrl.errors import UserError
from tfrl.tasks import DatasetConfig, EnvironmentConfig, RLTask, RLTaskConfig, TaskWorkflow


def test_names_and_defaults():
    found = RLTaskConfig(num_update_steps=7)
    values = [(f.name, getattr(found, f.name)) for f in dataclasses.fields(found)]
    assert values[:9] == [
        ("num_env_workers", 1),
        ("env_worker_mode", "process"),
        ("env_seed", 1337),
        ("env_cleanup_time", 5.0),
        ("max_steps", 1000),
        ("num_samples", 1),
        ("num_update_steps", 7),
        ("stride", 1),
        ("replay_buffer_sample_size", 10_000),
    ]
    assert values[9:] == [
        ("batch_size", 32),
        ("num_collect_steps", 1000),
        ("on_policy", False),
        ("max_trajectory_length", None),
        ("max_episode_steps", None),
        ("min_action_batch_size", 1),
        ("max_wait_time", 0.1),
        ("force_sync", False),
        ("save_replay_buffer", True),
    ]


def test_the_updates_have_no_default():
    with pytest.raises(UserError) as error:
        RLTaskConfig()
    assert str(error.value) == (
        "num_update_steps of RLTaskConfig: expected a whole number of at least 1, got None. Pass "
        "the number of updates per collection."
    )


@struct.logic_dataclass
class Widened(RLTaskConfig):
    width: int = 3


@pytest.mark.parametrize("kind", [RLTaskConfig, Widened])
@pytest.mark.parametrize("group", [dict, EnvironmentConfig])
def test_groups_and_flat_names_are_the_same(kind, group):
    flat = kind(num_env_workers=2, env_seed=5, num_update_steps=7, num_samples=3)
    environment = group(num_env_workers=2, env_seed=5)
    nested = kind(environment=environment, dataset=DatasetConfig(num_update_steps=7, num_samples=3))
    mixed = kind(environment=environment, num_update_steps=7, num_samples=3)
    assert flat == nested == mixed
    assert nested.environment == EnvironmentConfig(num_env_workers=2, env_seed=5)
    assert (nested.dataset.num_samples, nested.dataset.num_update_steps) == (3, 7)
    assert nested.replace(env_seed=6).environment.env_seed == 6
    assert nested.replace(environment={"env_seed": 6}) == nested.replace(env_seed=6)
    whole = nested.replace(environment=EnvironmentConfig(env_seed=6))
    assert (whole.env_seed, whole.num_env_workers) == (6, 1)


@pytest.mark.parametrize(
    "values, message",
    [
        (
            {"environment": {"env_sed": 3}},
            "environment of RLTaskConfig: expected some of env_cleanup_time, env_seed, "
            "env_worker_mode, max_steps, num_env_workers, got env_sed. Did you mean env_seed?",
        ),
        (
            {"environment": {"env_seed": 3}, "env_seed": 4},
            "environment of RLTaskConfig: expected a single value of env_seed, got both 3 and 4. "
            "Set it only in the group or only as a field.",
        ),
        (
            {"dataset": 3},
            "dataset of RLTaskConfig: expected a DatasetConfig or a dict, got int. ",
        ),
    ],
)
def test_groups_that_do_not_fit(values, message):
    with pytest.raises(UserError) as error:
        RLTaskConfig(num_update_steps=1, **values)
    assert str(error.value) == message.strip()


def test_the_span_of_a_clip():
    # Samples 0, 3, 6, 9.
    assert config(num_samples=4, stride=3).clip_span == 10
    assert (config().num_pool_workers, config(num_env_workers=3).num_pool_workers) == (1, 3)


@pytest.mark.parametrize(
    "changes, message",
    [
        (
            {"num_update_steps": 0},
            "num_update_steps of RLTaskConfig: expected a whole number of at least 1, got 0. Pass "
            "the number of updates per collection.",
        ),
        (
            {"num_samples": True},
            "num_samples of RLTaskConfig: expected a whole number of at least 1, got True. Pass "
            "the number of samples in a clip.",
        ),
        (
            {"max_episode_steps": 2.0},
            "max_episode_steps of RLTaskConfig: expected a whole number of at least 1, got 2.0. "
            "Pass a number of env steps, or None for the environment's own limit.",
        ),
        (
            {"num_env_workers": -1},
            "num_env_workers of RLTaskConfig: expected a whole number of at least 0, got -1. Pass "
            "the number of processes, or 0 for one synchronous worker.",
        ),
        (
            {"env_seed": -1},
            "env_seed of RLTaskConfig: expected a whole number of at least 0, got -1. Pass the "
            "base seed of all episodes.",
        ),
        (
            {"env_cleanup_time": float("inf")},
            "env_cleanup_time of RLTaskConfig: expected a number of at least 0, got inf. Pass a "
            "time in seconds.",
        ),
        (
            {"env_worker_mode": "proces"},
            "mode of the environment workers: expected one of process, thread, got 'proces'. Did "
            "you mean process?",
        ),
        (
            {"num_samples": 4, "stride": 4},
            "num_collect_steps of RLTaskConfig: expected at least 13 env steps, the span of a "
            "clip (num_samples 4, stride 4), got 10. Raise it, or use shorter clips.",
        ),
        (
            {"num_samples": 3, "max_episode_steps": 2},
            "max_episode_steps of RLTaskConfig: expected at least 3 env steps, the span of a clip "
            "(num_samples 3, stride 1), got 2. Raise it, or use shorter clips.",
        ),
        (
            {"num_samples": 3, "max_trajectory_length": 2},
            "max_trajectory_length of RLTaskConfig: expected at least 3 env steps, the span of a "
            "clip (num_samples 3, stride 1), got 2. Raise it, or use shorter clips.",
        ),
        (
            {"replay_buffer_sample_size": 9},
            "replay_buffer_sample_size of RLTaskConfig: expected at least num_collect_steps, 10, "
            "got 9. Raise it, so that each sample is stored until an update.",
        ),
        (
            {"num_env_workers": 2, "min_action_batch_size": 3},
            "min_action_batch_size of RLTaskConfig: expected at most the 2 workers, got 3. Lower "
            "it, or raise num_env_workers: each worker waits with one state.",
        ),
    ],
)
def test_messages(changes, message):
    with pytest.raises(ValueError) as error:
        config(**changes)
    assert isinstance(error.value, UserError) and str(error.value) == message


def test_a_task_wants_a_config():
    with pytest.raises(UserError) as error:
        ScriptedTask({"num_update_steps": 3})
    assert str(error.value) == (
        "config of ScriptedTask: expected an RLTaskConfig, got dict. Pass "
        "RLTaskConfig(num_update_steps=...); num_update_steps is required."
    )


class OnlyPlays(RLTask):
    get_environment = Scripted


def test_a_task_needs_no_more_than_its_environment_for_random_clips():
    states = OnlyPlays(config()).sample_clip(return_images=False, return_states=True)
    assert len(states) == 5


def without(name):
    """ScriptedTask with the base class's method of this name."""
    return type("Small", (ScriptedTask,), {name: getattr(RLTask, name)})(config())


@pytest.mark.parametrize(
    "name, result",
    [
        ("get_model", "the model, a built tf.keras.Model"),
        ("get_actions", "actions [N, ...] for the states of N workers"),
        ("compute_loss", "the loss of a batch of clips"),
    ],
)
def test_what_a_task_lacks_is_told_before_it_is_trained(name, result):
    task = without(name)
    message = (
        f"{name} of Small: expected a method that returns {result}, got a task without this "
        f"method. Define {name}; see tfrl.tasks.RLTask.{name}."
    )
    with pytest.raises(UserError) as error:
        TaskWorkflow(task).setup(seed=0)
    assert str(error.value) == message and task.envs == []
    with pytest.raises(UserError) as error:
        getattr(task, name)(*[None] * {"get_model": 0, "get_actions": 3, "compute_loss": 4}[name])
    assert str(error.value) == message


def test_methods_may_be_attributes_of_the_object():
    task = without("get_model")
    task.get_model = Weight
    workflow = TaskWorkflow(task)
    assert workflow.model(workflow.setup(seed=0)).w.shape == []
