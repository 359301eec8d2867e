"""What losses and hooks log: traced values come out with the results of their update."""

import numpy as np
import pytest
import tensorflow as tf

from tests.learners.learner_fakes import PLAIN, Dot, RegressionAgent, built, column, param, sgd
from tfrl.errors import UserError
from tfrl.learners import ALL_MODULES, Learner

ID = "default_policy"


class Logging(Learner):
    """Logs in every hook."""

    def compute_loss_for_module(self, module_id, update, params, state, batch, key):
        loss, metrics = super().compute_loss_for_module(
            module_id, update, params, state, batch, key
        )
        x = tf.reduce_mean(batch["w"][:, 0])
        self.metrics.log_value((module_id, "mean_of_x"), x)
        self.metrics.log_value((module_id, "last_x"), x, window=1)
        self.metrics.log_value((module_id, "sum_of_x"), x, reduce="sum", clear_on_reduce=True)
        self.metrics.log_value((module_id, "all_of_x"), x, reduce="sum")
        self.metrics.log_value((module_id, "least", "x"), x, reduce="min", window=1000)
        self.metrics.log_value((module_id, "greatest"), x, reduce="max", clear_on_reduce=True)
        self.metrics.log_value("rows", tf.shape(batch["w"])[0], window=1)
        return loss, metrics

    def compute_gradients(self, loss_per_module, gradient_tape, params):
        self.metrics.log_value((ALL_MODULES, "total"), loss_per_module[ALL_MODULES], window=1)
        return super().compute_gradients(loss_per_module, gradient_tape, params)

    def postprocess_gradients_for_module(self, module_id, config, gradients_dict):
        norm = tf.linalg.global_norm(list(gradients_dict.values()))
        self.metrics.log_value((module_id, "own_norm"), norm, window=1)
        return super().postprocess_gradients_for_module(module_id, config, gradients_dict)

    def before_gradient_based_update(self, *, timesteps):
        self.metrics.log_value("before", timesteps, window=1)

    def after_gradient_based_update(self, *, timesteps):
        self.metrics.log_value("after", tf.convert_to_tensor(self.learner_steps), window=1)

    def on_update_begin(self, *, timesteps):
        self.metrics.log_value("begun", 1, reduce="sum")

    def on_update_end(self, *, timesteps, results):
        self.metrics.log_value("ended", timesteps, window=1)
        results["seen"] = results[ID]["loss"]


@pytest.fixture(scope="module")
def learner():
    return built(Dot(), Logging)


def batch():
    return column([1, 0], [5, 0], [2, 0], [4, 0])


@pytest.mark.parametrize("mode", ["graph", "xla", "eager"])
def test_of_all_minibatches(learner, mode):
    start = int(learner.weights_seq_no.numpy())
    before = learner.metrics.peek((ID, "all_of_x"), default=0.0)
    found = learner.update_from_batch(
        batch(), minibatch_size=1, shuffle=False, timesteps=7, compile=mode
    )
    row = found[ID]
    assert round(row["mean_of_x"], 6) == 3.0 and row["last_x"] == 4.0 and row["sum_of_x"] == 12.0
    assert row["all_of_x"] == before + 12.0
    assert row["least"] == {"x": 1.0} and row["greatest"] == 5.0
    assert found["rows"] == 1.0 and row["own_norm"] == 4.0
    assert found["before"] == found["ended"] == 7 and found["after"] == int(learner.learner_steps)
    assert found["begun"] == start + 1
    assert found["seen"] == row["loss"] and "total" in found[ALL_MODULES]
    assert learner.metrics.peek((ID, "last_x")) == 4.0


def test_of_one_step(learner):
    for size in (4, 2):  # the second time a learner of equal logic made the trace
        other = built(Dot(), Logging)
        row = other.update_from_batch(batch(), minibatch_size=size, shuffle=False)[ID]
        assert row["mean_of_x"] == 3.0 and row["sum_of_x"] == {4: 3.0, 2: 6.0}[size]


def test_what_was_logged_between_updates_is_in_the_next(learner):
    learner.metrics.log_value((ID, "episode_return"), 21.0, window=100)
    learner.metrics.log("plain", 1.0)
    found = learner.update_from_batch(batch(), minibatch_size=1, shuffle=False)
    assert found[ID]["episode_return"] == 21.0 and found["plain"] == 1.0
    found = learner.update_from_batch(batch(), minibatch_size=1, shuffle=False)
    assert "episode_return" not in found[ID] and "plain" not in found
    assert learner.metrics.peek("plain") == 1.0  # until reduce()


def test_an_update_in_a_graph_returns_what_is_logged(learner):
    @tf.function(autograph=False)
    def update():
        return learner.update(batch(), key=tf.constant([0, 0]), timesteps=tf.constant(3, tf.int64))

    found = update()
    assert found[ID]["mean_of_x"] == 3.0 and found[ALL_MODULES]["before"] == 3.0


def test_updates_that_wait():
    class Delayed(Learner):
        def compute_loss_for_module(self, module_id, update, *args):
            if update.name == "actor":
                self.metrics.log_value("actor_steps", 1.0, reduce="sum", clear_on_reduce=True)
            return super().compute_loss_for_module(module_id, update, *args)

    learner = Delayed(RegressionAgent(), config=PLAIN, optimizer_fn=sgd)
    learner.build(0)
    rows = {"x": tf.ones([4, 2]), "y": tf.ones([4])}
    assert learner.update_from_batch(rows, minibatch_size=1)["actor_steps"] == 2.0


def test_what_cannot_come_out_says_so():
    class InApply(Learner):
        def apply_gradients(self, gradients_dict):
            self.metrics.log_value("norm", tf.linalg.global_norm(list(gradients_dict.values())))
            super().apply_gradients(gradients_dict)

    with pytest.raises(UserError, match="Log it in postprocess_gradients"):
        built(Dot(), InApply).update_from_batch(batch())

    class Vector(Learner):
        def compute_losses(self, **kwargs):
            self.metrics.log_value("v", tf.ones([3]))
            return super().compute_losses(**kwargs)

    with pytest.raises(UserError, match="metric v: expected one number"):
        built(Dot(), Vector).update_from_batch(batch())


def test_rows_trained_are_counted():
    learner = built({"a": Dot(), "b": Dot()})
    rows = {"a": column(*[[1, 1]] * 12), "b": column(*[[1, 1]] * 5)}
    for i in range(2):
        found = learner.update_from_batch(rows, 2, {"a": 4, "b": 2})
        assert found["a"]["num_module_steps_trained"] == 24
        assert found["b"]["num_module_steps_trained"] == 12  # it goes round
        assert found["a"]["num_module_steps_trained_lifetime"] == 24 * (i + 1)
        assert found["a"]["module_train_batch_size_mean"] == 4.0
        assert found["a"]["weights_seq_no"] == i + 1
        both = found[ALL_MODULES]
        assert both["num_module_steps_trained"] == 36 and both["num_env_steps_trained"] == 24
        assert both["num_env_steps_trained_lifetime"] == 24 * (i + 1)
        speed = (ALL_MODULES, "num_env_steps_trained_lifetime_per_second")
        assert learner.metrics.peek(speed) > 0 and speed[1] not in both
    assert learner.metrics.reduce()["a"]["num_module_steps_trained"] == 48
    found = learner.update_from_batch({"a": rows["a"]}, minibatch_size=5, remainder="pad")
    assert found["a"]["num_module_steps_trained"] == 12
    assert learner.clone().metrics.peek(("a", "num_module_steps_trained_lifetime")) == 60


def test_results_merge_over_learners():
    first, second, root = built(Dot()), built(Dot()), Learner(Dot()).metrics
    first.update_from_batch(column([1, 1], [3, 3]))
    for _ in range(2):
        second.update_from_batch(column([2, 2]))
    root.merge([first.metrics, second.metrics])
    row = root.reduce()[ID]
    assert row["num_module_steps_trained"] == 4 and row["gradient_steps"] == 3
    assert row["num_module_steps_trained_lifetime"] == 4


class Calls(Learner):
    """Notes the gradients of every call."""

    calls = ()

    def apply_gradients(self, gradients_dict):
        self.calls = (*self.calls, len(gradients_dict))
        super().apply_gradients(gradients_dict)


def test_gradients_are_applied_in_one_call():
    both = {"a": column([1, 2]), "b": column([3, 4])}
    learner = built({"a": Dot(), "b": Dot()}, Calls)
    learner.update_from_batch(both, compile="eager")
    assert learner.calls == (2,)
    learner.update_from_batch({**both, "b": column([np.nan, 1])}, compile="eager")
    assert learner.calls == (2, 1)  # only those of module a
    np.testing.assert_array_equal(param(learner, "a"), [0.75, 0.5])
    np.testing.assert_array_equal(param(learner, "b"), [1 - 3 / 8, 0.5])
    traced = built({"a": Dot(), "b": Dot()}, Calls)
    traced.update_from_batch(both)
    assert traced.calls == (2, 1, 1)  # for the case that one is left out


def test_an_apply_that_needs_all_gradients():
    class Rescaled(Learner):
        def apply_gradients(self, gradients_dict):
            norm = tf.linalg.global_norm(list(gradients_dict.values()))
            super().apply_gradients({ref: g / norm for ref, g in gradients_dict.items()})

    learner = built({"a": Dot(), "b": Dot()}, Rescaled)
    learner.update_from_batch({"a": column([3, 0]), "b": column([0, 4])})
    np.testing.assert_allclose(param(learner, "a"), [1 - 0.6 / 8, 1.0])
    np.testing.assert_allclose(param(learner, "b"), [1.0, 1 - 0.8 / 8])


@pytest.mark.parametrize("name", ["clip_function", "_get_clip_function"])
def test_how_gradients_are_clipped_is_a_hook(name):
    def halve(gradients_dict, *, grad_clip, grad_clip_by):
        for ref, g in gradients_dict.items():
            gradients_dict[ref] = g / 2

    kind = type("Halved", (Learner,), {name: lambda self: halve})
    learner = built(Dot(), kind)
    learner.update_from_batch(column([2, 4]))
    np.testing.assert_array_equal(param(learner, ID), [1 - 1 / 8, 1 - 2 / 8])


@pytest.mark.parametrize("name", ["global_norm_function", "_get_global_norm_function"])
def test_the_norm_is_a_hook(name):
    def greatest(gradients):
        return tf.reduce_max([tf.reduce_max(tf.abs(g)) for g in gradients])

    learner = built(Dot(), type("Greatest", (Learner,), {name: lambda self: greatest}))
    assert learner.update_from_batch(column([2, -4]))[ID]["grad_norm"] == 4.0
