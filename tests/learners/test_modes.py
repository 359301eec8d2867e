"""Updates are the same eagerly, in a graph and compiled by XLA, whatever a learner is made of."""

import numpy as np
import pytest
import tensorflow as tf

from tests.learners.learner_fakes import (
    PLAIN,
    Dot,
    EncoderHead,
    RegressionAgent,
    SumAgent,
    built,
    column,
    values,
)
from tfrl import seeding, struct
from tfrl.keras import api as tf_keras
from tfrl.learners import ALL_MODULES, KerasModule, Learner

pytestmark = pytest.mark.usefixtures("grappler")

KEY = seeding.key(0)


def adam(config):
    return tf_keras.optimizers.legacy.Adam()


@struct.logic_dataclass
class Root(Dot):
    """The loss is 0 at the start, and its gradient is not finite."""

    def loss(self, params, batch, outputs, key):
        return tf.sqrt(tf.reduce_mean(outputs) - tf.reduce_mean(tf.reduce_sum(batch["w"], -1)))


@struct.logic_dataclass
class Delayed(Dot):
    """Trained in every second step, with a hook that is due now and then."""

    def init(self, key):
        state = super().init(key)
        return state.replace(target_params=state.params, extra=tf.constant(0))

    @property
    def updates(self):
        (update,) = super().updates
        return (update.replace(every=2),)

    def adapt(self, state, metrics):
        return state.replace(extra=state.extra + 1)

    def after_update_due(self, state, timesteps):
        return tf.equal(state.extra % 2, 0)

    def after_update(self, state, timesteps):
        return state.replace(target_params=state.params)


class Joint(Learner):
    """Both modules have one optimizer and one loss, and no other."""

    def configure_optimizers(self):
        params = [p for m in self.modules for p in self.get_parameters(m)]
        self.register_optimizer(ALL_MODULES, "joint", adam(None), params, 0.125)

    def compute_losses(self, *, updates, states, batch, keys):
        a, b = (states[m].params["w"] for m in "ab")
        loss = tf.reduce_mean(batch["a"]["w"]) * tf.reduce_sum((a - b - 1.0) ** 2)
        return {"a": (loss, {"gap": tf.norm(a - b)}), "b": tf.constant(0.0)}


def normalised():
    layers = tf_keras.layers
    return tf_keras.Sequential(
        [
            tf_keras.Input([2]),
            layers.Dense(3, activation="tanh"),
            layers.BatchNormalization(momentum=0.5),
            layers.Dropout(0.2),
            layers.Dense(1),
        ]
    )


def of_many_kinds():
    """Modules that share, are delayed, stop, and are left out where they are not finite."""
    modules = {
        "lends": EncoderHead(head=2.0),
        "borrows": EncoderHead(head=3.0),
        "delayed": RegressionAgent(delay=2),
        "later": RegressionAgent(delay=3),
        "stops": Dot(stop_above=1.5),
        "nan": Dot(),
        "root": Root(),
    }
    config = PLAIN.replace(lr=[[0, 0.25], [100, 0.125]], grad_clip=3.0)
    config = {m: config.replace(log_gradients=m != "root") for m in modules}
    return built(
        modules, config=config, optimizer_fn=adam, shared={"lends/encoder": ["borrows/encoder"]}
    )


def joint():
    return built({"a": Dot(), "b": Delayed()}, Joint)


def keras():
    model = KerasModule(model_fn=normalised, loss_fn="mse")
    return built({"model": model, "sum": SumAgent(), "delayed": RegressionAgent(delay=2)})


X = seeding.normal(KEY, [6, 2])
ROWS = {"x": X, "y": tf.range(6.0)}
CASES = {
    "of_many_kinds": (
        of_many_kinds,
        {
            "lends": column([1.0, 2.0], [0.5, -1.0], [3.0, 1.0]),
            "borrows": column([4.0, 0.5]),
            "delayed": {"x": X[:3], "y": tf.range(3.0)},
            "later": {"x": X[3:], "y": tf.range(3.0)},
            "stops": column([1, 1], [2, 2], [1, 1]),
            "nan": column([1, 1], [np.nan, 1], [2, 1]),
            "root": column([1.0, 2.0], [2.0, 2.0], [3.0, 1.0]),
        },
        {"minibatch_size": 1},
    ),
    "joint": (joint, {"a": {"w": X}, "b": {"w": X}}, {"minibatch_size": 2}),
    "keras": (
        keras,
        {"model": ROWS, "sum": {"x": X}, "delayed": ROWS},
        {"num_epochs": 2, "minibatch_size": 4, "remainder": "pad"},
    ),
}


@pytest.mark.parametrize(
    "name", ["of_many_kinds", "joint", pytest.param("keras", marks=pytest.mark.slow)]
)
def test_updates_are_the_same(name):
    make, batch, options = CASES[name]
    found = {}
    for mode in ("eager", "graph", "xla"):
        learner = make()
        start = values(learner)
        for step in range(2):
            row = learner.update_from_batch(batch, compile=mode, timesteps=50 * step, **options)
        found[mode] = {**values(learner), **struct.paths(row)}
        moved = [p for p, v in start.items() if not np.array_equal(v, found[mode][p])]
        assert len(moved) > len(start) / 2
    for mode in ("graph", "xla"):
        assert list(found[mode]) == list(found["eager"])
        for path, value in found["eager"].items():
            np.testing.assert_allclose(
                found[mode][path], value, rtol=1e-4, atol=1e-5, err_msg=f"{mode} {path}"
            )
