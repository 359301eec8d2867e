"""A Keras model with a loss function as a module."""

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized

from tfrl import seeding, struct
from tfrl.agents.core import PARAM_UPDATES
from tfrl.errors import UserError
from tfrl.keras import api as K
from tfrl.learners import Learner, ModuleConfig, train_step
from tfrl.learners.keras_module import KerasModule

KEY = seeding.key(0)


def message(fn, *args, **kwargs):
    with pytest.raises(UserError) as error:
        fn(*args, **kwargs)
    return str(error.value)


def dense(units=1):
    return K.Sequential([K.Input([2]), K.layers.Dense(units)])


def noisy():
    return K.Sequential(
        [
            K.Input([2]),
            K.layers.Dense(16, activation="tanh"),
            K.layers.BatchNormalization(momentum=0.5),
            K.layers.Dropout(0.2),
            K.layers.Dense(1),
        ]
    )


def line(n=64):
    x = seeding.normal(seeding.key(1), [n, 2])
    return {"x": x, "y": x[:, 0] - 2.0 * x[:, 1] + 0.5}


def squared_error(batch, outputs):
    return tf.square(outputs[:, 0] - batch["y"])


def loss_of(module, batch, params=None):
    params = module.init(KEY).params if params is None else params
    return float(module.update_loss(params, None, batch, KEY)[0])


def train(module, batch, steps, rate=0.05):
    """Takes train steps on one batch; the losses before each, and the parameters after them."""
    learner = Learner(module, config=ModuleConfig(lr=rate, grad_clip=None))
    learner.build(KEY)

    @tf.function(autograph=False)
    def step(i):
        rows = {"default_policy": batch}
        _, metrics = train_step(learner, learner.learner_state, rows, seeding.fold_in(KEY, i))
        return metrics.values["default_policy"]["loss"]

    losses = [float(step(tf.constant(i))) for i in range(steps)]
    return losses, struct.values(learner.state.params)


class TrainingTest(parameterized.TestCase):
    def test_a_linear_model_finds_the_line(self):
        module = KerasModule(model_fn=dense, loss_fn="mse")
        losses, params = train(module, line(), 300)
        assert losses[-1] < losses[0] / 2
        found = module.predict(params, tf.constant([[1.0, 0.0], [0.0, 1.0], [0.0, 0.0]]))
        np.testing.assert_allclose(found[:, 0], [1.5, -1.5, 0.5], atol=1e-2)

    def test_the_learner_trains_it(self):
        module = KerasModule(model_fn=noisy, loss_fn=squared_error)
        learner = Learner(module, config=ModuleConfig(lr=0.05, grad_clip=None))
        learner.build(KEY)
        before = struct.values(learner.state.params["model"]["state"])
        options = {"num_epochs": 20, "minibatch_size": 24, "remainder": "pad"}
        first = learner.update_from_batch(line(), **options)["default_policy"]
        second = learner.update_from_batch(line(), **options)["default_policy"]
        assert second["loss"] < first["loss"]
        assert first["gradient_steps"] == 60
        for name, value in learner.state.params["model"]["state"].items():
            assert not np.allclose(value, before[name]), name

    def test_the_given_model_is_the_start_and_stays_as_it_is(self):
        model = dense()
        weights = [w.numpy() for w in model.weights]
        module = KerasModule(model=model, loss_fn="mse")
        start = module.init(KEY).params["model"]["params"]
        for value, w in zip(start.values(), weights, strict=True):
            np.testing.assert_array_equal(value, w)
        _, params = train(module, line(), 5)
        for a, b in zip(model.weights, weights, strict=True):
            np.testing.assert_array_equal(a.numpy(), b)
        module.load_into(model, params)
        x = line()["x"]
        np.testing.assert_allclose(model(x), module.predict(params, x), rtol=1e-6)

    def test_a_classifier(self):
        x = line(128)["x"]
        batch = {"obs": x, "action": tf.cast(x[:, 0] > x[:, 1], tf.int32)}
        module = KerasModule(
            model_fn=lambda: dense(2),
            loss_fn=K.losses.SparseCategoricalCrossentropy(from_logits=True),
            x="obs",
            y="action",
        )
        losses, params = train(module, batch, 150)
        assert losses[0] > 0.3 and losses[-1] < 0.2
        found = np.argmax(module.predict(params, x), axis=1)
        assert np.mean(found == batch["action"].numpy()) > 0.97

    def test_several_inputs_and_outputs(self):
        def two():
            a, b = K.Input([2], name="a"), K.Input([3], name="b")
            both = K.layers.Concatenate()([a, b])
            return K.Model({"a": a, "b": b}, [K.layers.Dense(1)(both), K.layers.Dense(2)(both)])

        def total(batch, outputs):
            loss = tf.square(outputs[0][:, 0]) + tf.reduce_sum(tf.square(outputs[1]), -1)
            return loss, {"first": tf.reduce_mean(outputs[0])}

        module = KerasModule(model_fn=two, loss_fn=total, x={"a": "left", "b": "right"})
        batch = {"left": tf.ones([4, 2]), "right": tf.ones([4, 3])}
        losses, _ = train(module, batch, 30)
        assert losses[-1] < losses[0]
        _, metrics = module.update_loss(module.init(KEY).params, None, batch, KEY)
        assert "first" in metrics


class Spanning(Learner):
    """One optimizer for all modules."""

    def configure_optimizers(self):
        params = [v for m in self.modules for v in self.get_parameters(m) if v.trainable]
        self.register_optimizer(optimizer=K.optimizers.SGD(), params=params, lr_or_lr_schedule=0.01)


def moving_means(learner, compile="graph"):
    learner.build(KEY)
    if compile == "pure":
        batch = {m: line() for m in learner.modules}
        timesteps = tf.constant(0, tf.int64)
        state = struct.values(learner.learner_state)
        states = learner.fit(state, batch, key=KEY, timesteps=timesteps)[0].agent_state
    else:
        learner.update_from_batch({m: line() for m in learner.modules}, compile=compile, key=KEY)
        states = learner.learner_state.agent_state
    return {
        m: next(x.numpy() for p, x in struct.paths(own).items() if "moving_mean" in p)
        for m, own in states.items()
    }


@pytest.mark.parametrize("compile", ["graph", "eager"])
def test_untrained_leaves_change_whoever_owns_the_optimizer(compile):
    modules = {m: KerasModule(model_fn=noisy, loss_fn="mse") for m in "ab"}
    own, spanning = (moving_means(kind(modules), compile) for kind in (Learner, Spanning))
    for m in "ab":
        assert np.abs(own[m]).max() > 0.01
        np.testing.assert_allclose(own[m], spanning[m], rtol=1e-5)
    borrower = Learner(modules, shared={"a/model": ["b/model"]})
    borrower.build(KEY)
    borrower.update_from_batch({"b": line()}, compile=compile, key=KEY)
    state = struct.paths(borrower.module_state("b"))
    assert any(np.abs(x).max() > 0.01 for p, x in state.items() if "moving_mean" in p)


class LossTest(parameterized.TestCase):
    @parameterized.named_parameters(
        ("name", "mse"),
        ("class_name", "MeanSquaredError"),
        ("object", K.losses.MeanSquaredError()),
        ("keras_function", K.losses.mean_squared_error),
        ("rows", squared_error),
        ("scalar", lambda batch, outputs: tf.reduce_mean(squared_error(batch, outputs))),
    )
    def test_every_form_is_the_mean_over_the_rows(self, loss_fn):
        module = KerasModule(model_fn=dense, loss_fn=loss_fn)
        batch = line(8)
        params = module.init(KEY).params
        output = module.predict(params, batch["x"])[:, 0]
        expected = np.mean(np.square(output - batch["y"]))
        np.testing.assert_allclose(loss_of(module, batch, params), expected, rtol=1e-6)
        # Targets [N, 1] instead of [N].
        if loss_fn is not squared_error and not hasattr(loss_fn, "__code__"):
            wide = {**batch, "y": batch["y"][:, tf.newaxis]}
            np.testing.assert_allclose(loss_of(module, wide, params), expected, rtol=1e-6)

    @parameterized.parameters("mse", K.losses.Huber(), squared_error)
    def test_masked_rows_change_nothing(self, loss_fn):
        module = KerasModule(model_fn=dense, loss_fn=loss_fn)
        batch = line(8)
        mask = tf.constant([True] * 5 + [False] * 3)
        few = {k: v[:5] for k, v in batch.items()}
        bad = tf.where(mask, batch["y"], 1e6)
        masked = loss_of(module, {**batch, "y": bad, "mask": mask})
        np.testing.assert_allclose(masked, loss_of(module, few), rtol=1e-6)

    def test_outputs_without_an_axis_for_their_one_number(self):
        def flat():
            return K.Sequential([K.Input([2]), dense(), K.layers.Reshape([])])

        one, other = (KerasModule(model_fn=m, loss_fn="mse") for m in (flat, dense))
        mask = tf.constant([True, False] * 4)
        batch = {**line(8), "mask": mask}
        params = one.init(KEY).params
        np.testing.assert_allclose(loss_of(one, batch, params), loss_of(other, batch, params))

    def test_sequences(self):
        # [B, T] rows: the loss of each step, those that the mask counts.
        module = KerasModule(model_fn=dense, loss_fn="mse")
        flat = line(6)
        mask = tf.constant([[True, True, False], [True, False, False]])
        rows = {k: tf.reshape(v, [2, 3, *v.shape[1:]]) for k, v in flat.items()}
        flat["mask"] = tf.reshape(mask, [6])
        rows["mask"] = mask
        np.testing.assert_allclose(loss_of(module, rows), loss_of(module, flat), rtol=1e-6)

    def test_the_state_after_the_call_is_reported_only_where_there_is_one(self):
        batch = line(8)
        for make, expected in ((dense, False), (noisy, True)):
            module = KerasModule(model_fn=make, loss_fn="mse")
            _, metrics = module.update_loss(module.init(KEY).params, None, batch, KEY)
            assert (PARAM_UPDATES in metrics) == expected

    def test_without_loss_or_weights_nothing_is_trained(self):
        assert KerasModule(model_fn=dense).updates == ()
        bare = K.Sequential([K.Input([2]), K.layers.Flatten()])
        assert KerasModule(model=bare, loss_fn="mse").updates == ()

    def test_records_are_batches_too(self):
        @struct.dataclass
        class Rows:
            x: tf.Tensor
            y: tf.Tensor
            mask: tf.Tensor | None = None

        module = KerasModule(model_fn=dense, loss_fn="mse")
        batch = line(8)
        assert loss_of(module, Rows(**batch)) == loss_of(module, batch)
        assert loss_of(module, struct.TensorDict(batch)) == loss_of(module, batch)


def subclassed():
    class Mine(K.Model):
        def __init__(self):
            super().__init__()
            self.dense = K.layers.Dense(1)

        def call(self, x):
            return self.dense(x)

    return Mine()


def regularised():
    return K.Sequential([K.Input([2]), K.layers.Dense(1, kernel_regularizer="l2")])


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, "KerasModule: expected either model_fn=make_model or model=model, got neither."),
        (
            {"model_fn": dense, "model": dense()},
            "got both. Pass one of them; model_fn creates fresh",
        ),
        ({"model": dense}, "KerasModule.model: expected a tf.keras.Model, got <function dense"),
        ({"model_fn": subclassed}, "KerasModule.spec: expected the spec of one input, since the"),
        ({"model_fn": regularised}, "Keras model: expected no layer losses (regularizers"),
        ({"model_fn": dense, "loss_fn": "mean_sqared_error"}, "Did you mean mean_squared_error"),
        ({"model_fn": dense, "loss_fn": 3}, "expected a function (batch, outputs), a Keras loss"),
        (
            {"model_fn": dense, "loss_fn": K.losses.MeanSquaredError(reduction="sum")},
            "expected a loss that is a mean over the rows, got MeanSquaredError(reduction='sum')",
        ),
    ],
)
def test_messages(settings, expected):
    assert expected in message(KerasModule, **settings)


def test_a_subclassed_model_with_a_spec():
    module = KerasModule(model_fn=subclassed, loss_fn="mse", spec=tf.TensorSpec([2]))
    assert np.isfinite(loss_of(module, line(8)))


def test_messages_of_a_batch_and_of_loading():
    module = KerasModule(model_fn=dense, loss_fn="mse")
    params = module.init(KEY).params
    batch = line(8)
    assert "expected a column 'y', got columns ['x']. Name the columns with" in message(
        module.update_loss, params, None, {"x": batch["x"]}, KEY
    )
    found = message(module.load_into, dense(2), params)
    assert "load_into: expected a model with weights of shapes [(2, 1), (1,)], got [(2, 2)" in found


EXPECTED_LOSS = "KerasModule.loss_fn: expected a function of two arguments, (batch, outputs), got "
EXPECTED_FN = (
    "KerasModule.model_fn: expected a function without arguments that returns a model, got "
)


@pytest.mark.parametrize(
    ("loss_fn", "expected"),
    [
        (
            lambda y_true, y_pred: 0.0,
            f"{EXPECTED_LOSS}a function of (y_true, y_pred). Write loss_fn=lambda batch, outputs: "
            "my_loss(batch['y'], outputs).",
        ),
        (
            lambda a, b, c: 0.0,
            f"{EXPECTED_LOSS}a function of (a, b, c). Write loss_fn(batch, outputs)",
        ),
        (lambda batch: 0.0, f"{EXPECTED_LOSS}a function of (batch). Write loss_fn(batch, outputs)"),
        (
            K.losses.Huber,
            "KerasModule.loss_fn: expected an instance of a Keras loss, got the class Huber. Pass "
            "an instance: "
            "loss_fn=tf.keras.losses.Huber().",
        ),
        (
            5,
            "KerasModule.loss_fn: expected a function (batch, outputs), a Keras loss, or the",
        ),
    ],
)
def test_losses_of_other_arguments(loss_fn, expected):
    assert expected in message(KerasModule, model_fn=dense, loss_fn=loss_fn)


def test_a_loss_of_further_optional_arguments_is_fine():
    module = KerasModule(model_fn=dense, loss_fn=lambda batch, out, power=2: tf.pow(out[:, 0], 2))
    assert loss_of(module, line()) >= 0.0


def test_what_is_no_model_and_makes_none():
    model = K.Sequential([K.Input([2]), K.layers.Dense(1)], name="net")
    assert message(KerasModule, model_fn=model, loss_fn="mse") == (
        f"{EXPECTED_FN}the model 'net' itself. Write model=model."
    )
    assert message(KerasModule, model_fn="dense", loss_fn="mse") == (
        f"{EXPECTED_FN}'dense'. Write model_fn=make_model, without parentheses."
    )
    assert message(KerasModule, model_fn=lambda units: dense(units), loss_fn="mse") == (
        f"{EXPECTED_FN}a function of (units). Bind the arguments: model_fn=lambda: make_model(...)."
    )
    for given in (dense, 5, K.Model):
        found = message(KerasModule, model=given, loss_fn="mse", spec=tf.TensorSpec([2]))
        assert found.startswith(f"KerasModule.model: expected a tf.keras.Model, got {given!r}")
        assert found.endswith("or model_fn=make_model for a function that returns a model.")
