import gc
import logging
import pathlib

import numpy as np
import pytest
import tensorflow as tf

from tests.tasks.scripted import check_total, tag
from tests.tasks.small_tasks import Drawn, KerasTask, ScriptedTask, Weight, config
from tfrl import struct
from tfrl.errors import UserError
from tfrl.evaluation.video_file import Preview
from tfrl.keras import api as keras
from tfrl.launch import api
from tfrl.tasks import TaskWorkflow
from tfrl.workflows import RunOptions


def made(task, compile="eager", **options):
    """A workflow; eager by default, since a trace takes longer than a few updates."""
    return TaskWorkflow(task=task, compile=compile, **options)


def run(task, iterations=1, seed=0, **options):
    """Returns (workflow, state, metrics rows)."""
    workflow = made(task, **options)
    state, rows = workflow.setup(seed), []
    for _ in range(iterations):
        row, state = workflow.step(state)
        rows.append(row)
    return workflow, state, rows


def weight(state):
    return float(state.agent_state.params["model"]["params"]["000_w"])


def test_two_iterations_by_hand():
    task = ScriptedTask(config())
    workflow, state, (first, second) = run(task, 2)
    # Two episodes of 5 steps each; losses before the steps are 9 and 2.25, gradients 6 and 3.
    counts = ("env_steps", "iterations", "learner_steps", "episodes", "updates", "replay_samples")
    assert [first[name] for name in counts] == [10, 1, 2, 2, 2, 10]
    assert [second[name] for name in counts] == [20, 2, 4, 4, 2, 20]
    assert (first["loss"], first["gradient_norm"]) == (5.625, 4.5)
    assert second["loss"] == (0.5625 + 0.140625) / 2
    assert weight(state) == 3 - 3 / 16
    # 0 + 10 + 20 + 30 + 40 and the actions, which alternate from the parity of the tag.
    actions = [sum((tag(0, e) + t) % 2 for t in range(5)) for e in range(4)]
    assert first["episode_return"] == 100 + (actions[0] + actions[1]) / 2
    assert second["episode_return"] == 100 + (actions[2] + actions[3]) / 2
    assert (first["episode_length"], first["action_batch_size"]) == (5.0, 1.0)
    assert workflow.env_steps(state) == 20 and task.optimal == {False}
    assert "finite" not in first
    workflow.close()


def test_a_call_of_several_iterations_gives_the_same_rows():
    _, one, rows = run(ScriptedTask(config()), 3)
    workflow = made(ScriptedTask(config()))
    done = workflow.advance(workflow.setup(0), 3)
    assert list(done.rows) == rows and weight(done.state) == weight(one)
    assert set(done.seconds) == {"rollout", "update", "call"}
    until = workflow.advance(workflow.setup(0), 5, until=11)
    assert [row["env_steps"] for row in until.rows] == [10, 20]


class Patient(ScriptedTask):
    def epoch_is_over(self, num_updates, metrics):
        self.seen = getattr(self, "seen", [])
        self.seen.append((num_updates, float(metrics["loss"])))
        return bool(metrics["loss"] < 1.0)


def test_the_task_says_when_the_epoch_is_over():
    task = Patient(config())
    _, _, rows = run(task, 2)
    assert [row["updates"] for row in rows] == [3, 1]
    assert task.seen == [(1, 9.0), (2, 2.25), (3, 0.5625), (1, 0.140625)]


def test_the_update_is_traced_once():
    traces = []

    class Traced(ScriptedTask):
        def compute_loss(self, outputs, batch):
            traces.append(batch.reward.shape)
            return super().compute_loss(outputs, batch)

    run(Traced(config(num_samples=2)), 3, compile="graph")
    assert traces == [[4, 2]]


class Branching(ScriptedTask):
    def compute_loss(self, outputs, batch):
        if outputs > 1.0:  # a condition of the graph, by AutoGraph
            loss = 0.0 * outputs
        else:
            loss = tf.square(outputs - 3.0)
        return loss


@pytest.mark.parametrize("compile", ["graph", "eager"])
def test_losses_may_branch_on_tensors(compile):
    _, state, (row,) = run(Branching(config()), compile=compile)
    assert weight(state) == 1.5 and row["loss"] == 4.5


@pytest.mark.parametrize("on_policy", [False, True])
def test_what_updates_see(on_policy):
    task = ScriptedTask(config(on_policy=on_policy, batch_size=64, num_samples=3, stride=2))
    _, _, rows = run(task, 6)
    sizes = [10] * 6 if on_policy else [10, 20, 30, 40, 40, 40]
    assert [row["replay_samples"] for row in rows] == sizes
    for iteration in range(6):
        for (obs,) in task.batches[2 * iteration : 2 * iteration + 2]:
            assert obs.shape == (64, 3, 2)
            # Only the clip that begins at step 0 spans all of an episode of 5.
            assert obs.numpy()[:, :, 1].tolist() == [[0, 2, 4]] * 64
            newest = 2 * iteration + 2
            oldest = newest - 2 if on_policy else max(0, newest - 8)
            assert set(obs.numpy()[:, 0, 0]) == {tag(0, e) for e in range(oldest, newest)}


def test_equal_seeds_draw_equal_clips():
    def seen(seed):
        task = ScriptedTask(config())
        run(task, 2, seed)
        return [leaf.numpy().tolist() for leaves in task.batches for leaf in leaves]

    assert seen(1) == seen(1) != seen(2)


def test_steps_that_no_sample_shows_are_counted(caplog):
    # Episodes of 2, which are too short for clips of 4, and of 5.
    task = ScriptedTask(config(num_samples=4), lengths=[2, 5, 2, 5])
    _, _, (row,) = run(task)
    assert (row["env_steps"], row["discarded_samples"], row["episodes"]) == (14, 4, 2)


class Hooks(ScriptedTask):
    def postprocess_trajectory(self, model, trajectory):
        extras = {**trajectory.extras, "w2": trajectory.extras["w"] + model.w.numpy()}
        return trajectory.replace(extras=extras)

    def postprocess_trajectories(self, model, trajectories):
        assert all((t.extras["w2"] == 2 * model.w.numpy()).all() for t in trajectories)
        check_total(trajectories, 10)
        return trajectories[:1]


def test_hooks_get_the_model_that_sampled():
    _, _, rows = run(Hooks(config()), 2)
    assert [row["replay_samples"] for row in rows] == [5, 10]
    # All that was sampled counts.
    assert [row["env_steps"] for row in rows] == [10, 20]
    assert [row["episodes"] for row in rows] == [2, 4]


def test_a_schedule_of_the_learning_rate():
    class Scheduled(ScriptedTask):
        def get_learning_rate(self):
            return [[0, 0.5], [20, 0.0]]

    # At env step 10 the rate is 0.25; at 20 it is 0.
    _, state, _ = run(Scheduled(config()), 2)
    assert weight(state) == 2.25


def test_regularisers_of_layers_belong_to_the_loss():
    class Regularised(KerasTask):
        def get_model(self):
            ones = keras.initializers.Ones()
            layer = keras.layers.Dense(
                2, kernel_initializer=ones, kernel_regularizer="l2", input_shape=[4]
            )
            return keras.Sequential([layer])

        def compute_loss(self, model, batch, state, output):
            return 0.0 * tf.reduce_mean(output)

    _, _, (row,) = run(Regularised(config(num_update_steps=1)))
    assert row["loss"] == pytest.approx(0.01 * 8)


@pytest.mark.parametrize("compile", ["xla", "eager"])
@pytest.mark.variants(1)
def test_compile_modes_agree(compile):
    def values(mode):
        workflow, state, rows = run(KerasTask(config()), 2, compile=mode)
        assert workflow.compile_choices(state) == {"update": mode}
        return workflow.state_values(state), rows[-1]["loss"]

    (graph, loss), (other, other_loss) = values("graph"), values(compile)
    assert loss == pytest.approx(other_loss, rel=1e-5)
    for name in graph:
        if name.startswith("model/"):
            np.testing.assert_allclose(graph[name], other[name], rtol=1e-4, atol=1e-6)


# Saving and going on.


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.variants(1)
def test_a_restored_run_has_every_value(tmp_path, workers):
    numbers = config(num_env_workers=workers, force_sync=True)
    workflow, state, _ = run(KerasTask(numbers), 3, seed=4)
    before = workflow.state_values(state)
    workflow.save(state, tmp_path)
    other = made(KerasTask(numbers))
    restored = other.restore(tmp_path)
    after = other.state_values(restored)
    assert before.keys() == after.keys()
    for name, value in before.items():
        np.testing.assert_array_equal(value, after[name], err_msg=name)
    assert {"model/000_kernel", "optimizer/m/000_kernel", "optimizer/iterations"} <= set(before)
    assert int(before["optimizer/iterations"]) == 6 and before["progress/seed"] == 4
    # It trains on, and counts on.
    row, _ = other.step(restored)
    assert (row["env_steps"], row["learner_steps"], row["replay_samples"]) == (40, 8, 40)


def test_a_resumed_run_begins_the_episodes_that_follow(tmp_path):
    # 10 steps: an episode of 6, and 4 of the next; its number is not begun again.
    task = ScriptedTask(config(on_policy=True, batch_size=64), lengths=[6])
    workflow, state, _ = run(task)
    assert state.env_state.numpy().tolist() == [2]
    workflow.save(state, tmp_path)
    other = ScriptedTask(config(on_policy=True, batch_size=64), lengths=[6])
    resumed = made(other)
    resumed.step(resumed.restore(tmp_path))
    tags = {float(x) for leaves in other.batches for x in leaves[0].numpy()[..., 0].ravel()}
    assert tags == {tag(0, 2), tag(0, 3)}


def test_a_replay_buffer_that_is_not_saved(tmp_path):
    workflow, state, _ = run(ScriptedTask(config(save_replay_buffer=False)), 3)
    assert workflow.state_values(state)["replay"].size == 0
    workflow.save(state, tmp_path)
    row, _ = workflow.step(workflow.restore(tmp_path))
    assert row["replay_samples"] == 10


def test_a_checkpoint_of_other_sizes_is_refused(tmp_path):
    workflow, state, _ = run(ScriptedTask(config()))
    workflow.save(state, tmp_path)
    other = made(ScriptedTask(config(num_env_workers=2, force_sync=True)))
    with pytest.raises(UserError) as error:
        other.restore(tmp_path)
    assert str(error.value) == (
        "the checkpoint: expected the values of this model and 2 workers, got "
        "progress/next_episodes of shape (1,) for (2,). Use the task and the num_env_workers of "
        "the checkpoint."
    )


def test_a_snapshot_stays_as_it_is():
    workflow, state, _ = run(ScriptedTask(config()))
    copy = workflow.snapshot(state)
    _, later = workflow.step(state)
    assert (weight(copy), weight(later)) == (2.25, 3 - 3 / 16)
    with pytest.raises(
        UserError, match="got the state of iteration 1, which a later step has consumed"
    ):
        workflow.step(state)
    row, copy = workflow.step(copy)
    assert row["env_steps"] == 20 and weight(copy) == weight(later)
    workflow.close()


def test_a_state_is_values_alone():
    workflow = made(ScriptedTask(config()))
    states = [workflow.setup(0), workflow.setup(1)]
    assert all(tf.is_tensor(x) for x in tf.nest.flatten(struct.stack(states)))
    assert workflow.model(states[0]) is not workflow.model(states[1])
    assert float(workflow.model(states[1]).w) == weight(states[1])
    for stranger in (struct.values(states[0]), made(ScriptedTask(config())).setup(0)):
        with pytest.raises(UserError, match="got a state that this workflow did not make"):
            workflow.step(stranger)


def test_the_workers_end_with_the_last_state():
    workflow, state, _ = run(ScriptedTask(config()))
    copy = workflow.snapshot(state)
    _, copy = workflow.step(copy)
    pools = [workflow.runner(s)._sampler.pool for s in (state, copy)]
    del state
    gc.collect()
    assert [pool._mailbox.closed for pool in pools] == [True, False]
    workflow.close()
    assert pools[1]._mailbox.closed


def test_metrics_with_names_of_counters_are_refused():
    class Counting(ScriptedTask):
        def compute_loss(self, outputs, batch):
            loss, metrics = super().compute_loss(outputs, batch)
            return loss, {**metrics, "iterations": tf.constant(7.0)}

    with pytest.raises(UserError, match="names than those of the counters, got iterations"):
        run(Counting(config()), 2)


def test_metrics_of_other_names_than_the_first_ones_are_refused():
    class Changing(ScriptedTask):
        number = 0

        def compute_loss(self, outputs, batch):
            self.number += 1
            loss, metrics = super().compute_loss(outputs, batch)
            return loss, metrics | ({} if self.number < 3 else {"late": tf.constant(1.0)})

    workflow, state, _ = run(Changing(config()))
    with pytest.raises(UserError, match="those of the first one, .* got .*late"):
        workflow.step(state)


def test_learn_evaluates_and_keeps_a_folder(tmp_path):
    workflow = made(ScriptedTask(config()), eval_episodes=3)
    options = RunOptions(
        total_env_steps=40, root_dir=str(tmp_path), eval_interval=20, progress=False
    )
    state = workflow.learn(workflow.setup(0), options)
    assert workflow.env_steps(state) == 40 and workflow.report.stopped_by == "budget"
    lines = (tmp_path / "metrics.csv").read_text().splitlines()
    assert len(lines) == 5 and "eval_return_mean" in lines[0] and "mean_reward" in lines[0]
    assert {p.name for p in (tmp_path / "checkpoints").iterdir()} == {"ckpt-20", "ckpt-40"}


# Evaluation, videos, policy.


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_an_evaluation_by_hand(workers):
    task = ScriptedTask(config(num_env_workers=workers, force_sync=True), lengths=[3, 5])
    workflow, state, _ = run(task)
    task.optimal.clear()
    result = workflow.final_evaluation(state, 4, seed=11)
    # The first episode of an environment has 3 steps, the others 5.
    lengths = {0: [3, 5, 5, 5], 1: [3, 5, 5, 5], 3: [3, 5, 3, 3]}[workers]
    assert result.episode_lengths.tolist() == lengths
    shares = {0: [4], 1: [4], 3: [2, 1, 1]}[workers]
    tags = [tag(w, e) for w, n in enumerate(shares) for e in range(n)]
    expected = [
        sum(10 * t + (x + t) % 2 for t in range(n)) for x, n in zip(tags, lengths, strict=True)
    ]
    assert result.episode_returns.tolist() == expected
    assert task.optimal == {True}


def test_evaluations_follow_from_seed_and_iteration():
    task = ScriptedTask(config())
    workflow, state, _ = run(task)
    returns = [workflow.final_evaluation(state, 6).episode_returns.tolist() for _ in range(2)]
    metrics, state = workflow.evaluate(state)
    assert returns[0] == returns[1] and metrics["eval_episodes"] == 32
    _, state = workflow.step(state)
    assert workflow.final_evaluation(state, 6).episode_returns.tolist() != returns[0]


def test_videos(tmp_path):
    task = ScriptedTask(config())
    workflow, state, _ = run(task)
    workflow.check_video()
    preview = Preview()
    video = workflow.record_video(state, tmp_path / "clip.gif", 11, preview)
    assert (video.frames, video.episode_lengths, video.fps) == (6, (5,), 12.0)
    assert video.episode_returns == (100.0 + sum((tag(0, 0) + t) % 2 for t in range(5)),)
    assert video.path.stat().st_size > 100 and preview.frames.shape == (6, 4, 4, 3)
    task.get_environment = lambda: Drawn(shape=(3, 4, 2))
    with pytest.raises(UserError, match="got uint8"):
        workflow.check_video()


def test_the_exported_policy_acts_as_the_task(tmp_path):
    task = KerasTask(config())
    workflow, state, _ = run(task)
    assert workflow.export_policy(state, tmp_path / "policy") == tmp_path / "policy"
    policy = tf.saved_model.load(str(tmp_path / "policy"))
    obs = np.random.default_rng(0).normal(size=[50, 4]).astype(np.float32)
    action = policy.signatures["action"](observation=tf.constant(obs))["action"]
    expected = task.get_actions(workflow.model(state), obs, True)
    assert action.numpy().tolist() == expected.numpy().tolist() and len(set(action.numpy())) == 2


def test_actions_in_numpy_are_not_exported(tmp_path, caplog):
    class InNumpy(KerasTask):
        def get_actions(self, model, states, optimal):
            return np.argmax(model(tf.convert_to_tensor(states)).numpy(), -1)

    workflow, state, _ = run(InNumpy(config()))
    with caplog.at_level(logging.WARNING):
        assert workflow.export_policy(state, tmp_path / "policy") is None
    assert "get_actions of InNumpy does not run on symbolic tensors" in caplog.text
    assert not (tmp_path / "policy").exists()


def test_the_parameters_of_the_agent_state():
    workflow, state, _ = run(KerasTask(config()))
    params = workflow.agent_state(state).params
    assert list(params["model"]) == ["000_kernel", "001_bias", "002_kernel", "003_bias"]
    assert params["model"]["002_kernel"].shape == [8, 2]
    assert workflow.describe() == (
        "KerasTask, 1 environments x 10 steps in total, 2 updates on 4 clips of 1"
    )


# Mistakes.


def task_with(**methods):
    return type("Wrong", (ScriptedTask,), methods)(config())


def unbuilt(self):
    return keras.Sequential([keras.layers.Dense(2)])


LOSS = "compute_loss of Wrong: expected "


@pytest.mark.parametrize(
    "methods, message",
    [
        (
            {"get_model": lambda self: 3},
            "get_model of Wrong: expected a tf.keras.Model or tf.Module, got int. Return the "
            "built model.",
        ),
        (
            {"get_model": unbuilt},
            "get_model of Wrong: expected a model with trainable variables, got an unbuilt model. "
            "Add an Input, or call the model once on a batch of observations.",
        ),
        (
            {"get_model": lambda self: tf.Module()},
            "get_model of Wrong: expected a model with trainable variables, got a model without "
            "trainable variables. Add an Input, or call the model once on a batch of observations.",
        ),
        (
            {"get_optimizer": lambda self: 0.1},
            "get_optimizer of Wrong: expected an optimizer from tfrl.learning.optimizers or "
            "Keras, got 0.1. Create one, such as tfrl.learning.optimizers.Adam().",
        ),
        (
            {"compute_loss": lambda self, outputs, batch: None},
            LOSS
            + (
                "a scalar loss, got None. Return the loss, or a pair of the loss and a dict of "
                "metrics."
            ),
        ),
        (
            {"compute_loss": lambda self, outputs, batch: outputs * batch.reward},
            LOSS + "a scalar for the loss, got float32 (4, 1). Take the mean over the batch: "
            "tf.reduce_mean(...).",
        ),
        (
            {"compute_loss": lambda self, outputs, batch: (outputs, {"r": batch.reward})},
            LOSS + "a scalar for metric 'r', got float32 (4, 1). Take the mean over the batch: "
            "tf.reduce_mean(...).",
        ),
        (
            {"compute_loss": lambda self, outputs, batch: (outputs, {"loss": 1.0})},
            LOSS + "unreserved metric names, got the reserved name 'loss'. Choose names other "
            "than loss, gradient_norm, finite.",
        ),
        (
            {"compute_loss": lambda self, outputs, batch: tf.reduce_mean(batch.reward)},
            LOSS + "a loss that depends on the model's trainable variables, got a loss without a "
            "gradient for these variables. Compute it with TensorFlow from the result of "
            "run_model.",
        ),
        (
            {"postprocess_trajectories": lambda self, model, trajectories: []},
            "postprocess_trajectories of Wrong: expected at least one trajectory, got an empty "
            "list. Return the trajectories to store.",
        ),
    ],
)
def test_messages(methods, message):
    with pytest.raises(UserError) as error:
        run(task_with(**methods))
    assert str(error.value) == message


def test_what_is_not_finite_is_told_and_left_out():
    class Diverges(ScriptedTask):
        def compute_loss(self, outputs, batch):
            # NaN from w = 1.5 on, which the first update reaches.
            return tf.square(outputs - 3.0) * tf.where(outputs > 1.0, np.nan, 1.0)

    workflow = made(Diverges(config()))
    state = workflow.setup(0)
    with pytest.raises(UserError) as error:
        workflow.step(state)
    assert str(error.value) == (
        "the loss of Diverges at iteration 1: expected finite values and gradients, got "
        "non-finite values in 1 of 2 updates, first in update 1 (loss nan). Lower the learning "
        "rate, or check rewards and observations; these updates were skipped."
    )
    assert weight(state) == 1.5


@pytest.mark.parametrize(
    "arguments, message",
    [
        (
            {"task": ScriptedTask},
            "task of TaskWorkflow: expected an RLTask, got <class "
            "'tests.tasks.small_tasks.ScriptedTask'> of type ABCMeta. Derive a class from "
            "tfrl.tasks.RLTask and pass an instance.",
        ),
        (
            {"compile": "auto"},
            "compile of TaskWorkflow: expected one of graph, xla, eager, got 'auto'. Known: eager, "
            "graph, xla.",
        ),
    ],
)
def test_wrong_arguments(arguments, message):
    with pytest.raises(UserError) as error:
        TaskWorkflow(**{"task": ScriptedTask(config()), **arguments})
    assert str(error.value) == message


class Broken(Drawn):
    """Its second step gives another dtype; it says how often it is closed."""

    closed = 0

    def step(self, action):
        obs, *rest = super().step(action)
        return (obs.astype(np.float64) if obs[1] == 2 else obs, *rest)

    def close(self):
        type(self).closed += 1


def test_the_check_before_training():
    task = ScriptedTask(config(), lengths=[4])
    api.check_environments(TaskWorkflow(task), seed=0)
    # It draws nothing: that is left to check_video.
    assert len(task.envs) == 1 and task.envs[0].renders == 0
    Broken.closed = 0
    with pytest.raises(UserError) as error:
        api.check_environments(TaskWorkflow(ScriptedTask(config(), Broken)), seed=0)
    message = str(error.value)
    assert message.startswith("the environments (of ScriptedTask), ") and "float64" in message
    assert message.endswith("(--nocheck_env trains without this check.)") and Broken.closed == 1


def test_one_replica_only():
    devices = [device.name for device in tf.config.list_logical_devices("CPU")[:2]]
    workflow = made(ScriptedTask(config()))
    with pytest.raises(UserError, match="expected one replica for a TaskWorkflow, got 2 of Mir"):
        workflow.use_strategy(tf.distribute.MirroredStrategy(devices))
    workflow.use_strategy(tf.distribute.OneDeviceStrategy(devices[0]))
    assert not workflow.replicas.several


def test_any_module_is_a_model():
    assert [v.name for v in Weight().trainable_variables] == ["w:0"]
    workflow, state, _ = run(ScriptedTask(config()))
    assert list(workflow.runner(state).learner.saved_variables())[0] == "model/000_w"


def test_a_checkpoint_of_the_release_before_goes_on():
    """Written when counters were NumPy's, evaluations were not counted, and no Learner trained."""
    numbers = config(num_collect_steps=5, replay_buffer_sample_size=10)
    workflow = made(KerasTask(numbers))
    state = workflow.restore(pathlib.Path(__file__).parent / "data")
    values = workflow.state_values(state)
    assert values["progress/seed"] == 4 and int(values["progress/learner_steps"]) == 4
    kernel = [0.18026838, 0.1040013, 0.22439674, -0.29708868]
    np.testing.assert_allclose(values["model/000_kernel"].ravel()[:4], kernel, rtol=1e-6)
    row, _ = workflow.step(state)
    assert (row["env_steps"], row["learner_steps"], row["replay_samples"]) == (15, 6, 10)
