"""Tests of a user's Keras model as a network."""

import pathlib
import random

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized

from tfrl import distributions, networks, seeding, specs, struct
from tfrl.errors import UserError
from tfrl.keras import api as K

KEY = seeding.key(5)
SPEC = tf.TensorSpec([4])


def sequential():
    return K.Sequential(
        [
            K.layers.Dense(8),
            K.layers.BatchNormalization(momentum=0.9),
            K.layers.Activation("relu"),
            K.layers.Dropout(0.5),
            K.layers.Dense(3),
        ]
    )


def functional():
    x = K.Input([4])
    y = K.layers.Dense(8, activation="tanh")(x)
    y = K.layers.GaussianNoise(0.1)(y)
    return K.Model(x, K.layers.Add()([K.layers.Dense(3)(y), K.layers.Dense(3)(x)]))


class Subclassed(K.Model):
    def __init__(self):
        super().__init__()
        self.dense = K.layers.Dense(5)
        self.embedding = K.layers.Embedding(6, 5)
        self.gru = K.layers.GRU(3)
        self.norm = K.layers.LayerNormalization()

    def call(self, x, training=None):
        tokens = self.embedding(tf.cast(tf.abs(x) * 2, tf.int32) % 6)
        y = tf.stack([self.dense(x), tf.reduce_mean(tokens, 1)], 1)
        if tf.reduce_sum(x) > 1e9:  # a branch of the graph, made by autograph
            y *= 2.0
        return self.norm(self.gru(y))


def plain_dense():
    return K.Sequential([K.layers.Dense(3, use_bias=False)])


MODELS = {"sequential": sequential, "functional": functional, "subclassed": Subclassed}


def keras_oracle(model_fn, params):
    """The model itself with the parameters assigned."""
    model = model_fn()
    model(tf.zeros([1, 4]))
    for group, variables in (
        ("params", model.trainable_variables),
        ("state", model.non_trainable_variables),
    ):
        for variable, (_, value) in zip(variables, sorted(params[group].items()), strict=True):
            variable.assign(value)
    return model


class KerasNetworkTest(parameterized.TestCase, tf.test.TestCase):
    @parameterized.named_parameters(MODELS.items())
    def test_outputs_and_gradients_equal_the_model_s_on_every_path(self, model_fn):
        network = networks.KerasNetwork(model_fn=model_fn, spec=SPEC)
        params = network.init(KEY, SPEC)
        x = seeding.normal(KEY, [6, 4])
        model = keras_oracle(model_fn, params)
        with tf.GradientTape() as tape:
            expected = model(x, training=False)
            loss = tf.reduce_sum(tf.sin(expected))
        gradients = tape.gradient(loss, model.trainable_variables)

        def f(params):
            with tf.GradientTape(watch_accessed_variables=False) as tape:
                tape.watch(params["params"])
                y = network.apply(params, x)
                loss = tf.reduce_sum(tf.sin(y))
            gradient = tape.gradient(loss, params["params"])
            return y, tf.nest.map_structure(tf.convert_to_tensor, gradient)

        for g in (f, tf.function(f), tf.function(f, jit_compile=True)):
            y, found = g(params)
            self.assertAllClose(y, expected, 1e-4, 1e-5)
            for a, b in zip(tf.nest.flatten(found), gradients, strict=True):
                self.assertAllClose(a, tf.convert_to_tensor(b), 1e-3, 1e-5)
        self.assertEqual(network.output_size(SPEC), 3)

    @parameterized.named_parameters(MODELS.items())
    def test_leading_axes_and_population(self, model_fn):
        network = networks.KerasNetwork(model_fn=model_fn, spec=SPEC)
        stacked = networks.init_population(network.init, KEY, 2)
        x = seeding.normal(KEY, [2, 5, 6, 4])
        for inputs in (x, x[:, 0]):
            y = network.apply(stacked, inputs)
            self.assertEqual(y.shape, [*inputs.shape[:-1], 3])
            for p in range(2):
                member = network.apply(struct.take(stacked, p), inputs[p])
                self.assertAllClose(y[p], member, 1e-4, 1e-5)

    def test_moving_statistics_are_updates(self):
        network = networks.KerasNetwork(model_fn=sequential, spec=SPEC)
        params = network.init(KEY)
        self.assertEqual(list(params["state"]), ["000_moving_mean", "001_moving_variance"])
        x = 3.0 + seeding.normal(KEY, [64, 4])
        model = keras_oracle(sequential, params)
        model(x, training=True)
        f = tf.function(network.apply_with_updates)
        _, state = f(params, x, training=True, key=KEY)
        for new, variable in zip(state.values(), model.non_trainable_variables, strict=True):
            self.assertAllClose(new, variable, 1e-4, 1e-5)
        _, state = network.apply_with_updates(params, x, training=False)
        tf.nest.map_structure(self.assertAllEqual, state, params["state"])

    def test_dropout_draws_from_the_key(self):
        network = networks.KerasNetwork(model_fn=sequential, spec=SPEC)
        params = network.init(KEY)
        x = seeding.normal(KEY, [64, 4])
        run = lambda f, key: f(params, x, training=True, key=key)  # noqa: E731
        eager = run(network.apply, KEY)
        self.assertAllEqual(eager, run(network.apply, KEY))
        self.assertNotAllClose(eager, run(network.apply, seeding.key(6)))
        xla = tf.function(network.apply, jit_compile=True)
        self.assertAllClose(eager, run(xla, KEY), 1e-3, 1e-4)

    def test_rate_and_scale_of_dropout(self):
        model_fn = lambda: K.Sequential([K.layers.Dropout(0.3)])  # noqa: E731
        network = networks.KerasNetwork(model_fn=model_fn, spec=SPEC)
        y = network.apply(network.init(KEY), tf.ones([5000, 4]), training=True, key=KEY).numpy()
        self.assertAllClose(np.unique(y), [0.0, 1 / 0.7])
        self.assertAllClose((y == 0).mean(), 0.3, atol=0.02)

    def test_trains_saves_and_compiles(self):
        # y = x_0 - 2 x_1 is learnt by a network with BatchNormalization and Dropout.
        network = networks.KerasNetwork(model_fn=sequential, spec=SPEC)
        params = tf.nest.map_structure(tf.Variable, network.init(KEY))
        optimizer = K.optimizers.Adam(3e-2)
        optimizer.build(tf.nest.flatten(params["params"]))
        target = lambda x: x[:, :1] - 2 * x[:, 1:2]  # noqa: E731
        traces = []

        @tf.function(jit_compile=True)
        def step(params, key):
            traces.append(1)
            x = seeding.normal(key, [128, 4])
            with tf.GradientTape() as tape:
                y, state = network.apply_with_updates(params, x, key=seeding.fold_in(key, 1))
                loss = tf.reduce_mean(tf.square(y - target(x)))
            variables = tf.nest.flatten(params["params"])
            optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
            tf.nest.map_structure(lambda v, s: v.assign(s), params["state"], state)
            return loss

        losses = [float(step(params, seeding.fold_in(KEY, i))) for i in range(150)]
        self.assertLen(traces, 1)
        self.assertLess(np.mean(losses[-20:]), 0.4 * np.mean(losses[:5]))
        x = seeding.normal(seeding.key(99), [256, 4])
        evaluated = tf.reduce_mean(tf.square(network.apply(params, x) - target(x)))
        self.assertLess(float(evaluated), 0.5)

        prefix = str(pathlib.Path(self.get_temp_dir()) / "checkpoint")
        tf.train.Checkpoint(**struct.paths(params)).write(prefix)
        again = networks.KerasNetwork(model_fn=sequential, spec=SPEC)
        fresh = tf.nest.map_structure(tf.Variable, again.init(seeding.key(8)))
        self.assertNotAllClose(again.apply(fresh, x), network.apply(params, x))
        tf.train.Checkpoint(**struct.paths(fresh)).read(prefix).assert_consumed()
        self.assertAllEqual(again.apply(fresh, x), network.apply(params, x))

    def test_exports_as_a_saved_model(self):
        network = networks.KerasNetwork(model_fn=sequential, spec=SPEC)
        module = tf.Module()
        module.variables_ = tf.nest.map_structure(tf.Variable, network.init(KEY))
        module.f = tf.function(
            lambda x: network.apply(module.variables_, x),
            input_signature=[tf.TensorSpec([None, 4])],
        )
        folder = str(pathlib.Path(self.get_temp_dir()) / "saved")
        tf.saved_model.save(module, folder)
        x = seeding.normal(KEY, [3, 4])
        loaded = tf.saved_model.load(folder)
        self.assertAllClose(loaded.f(x), module.f(x))

    def test_no_variable_stays_in_the_graph(self):
        network = networks.KerasNetwork(model_fn=sequential, spec=SPEC)
        f = tf.function(network.apply)
        concrete = f.get_concrete_function(network.init(KEY), tf.zeros([2, 4]), True, KEY)
        self.assertEmpty(concrete.captured_inputs)
        # And the stand-ins are gone.
        self.assertNotIn("assign", network.template.trainable[0].__dict__)

    def test_state_gets_no_gradient(self):
        network = networks.KerasNetwork(model_fn=sequential, spec=SPEC)
        params = network.init(KEY)
        with tf.GradientTape() as tape:
            tape.watch(params)
            loss = tf.reduce_sum(network.apply(params, tf.ones([2, 4])))
        gradient = tape.gradient(loss, params)
        self.assertEqual([g is None for g in gradient["state"].values()], [True, True])
        self.assertNotIn(None, list(gradient["params"].values()))

    def test_init_depends_on_the_key_only(self):
        network = networks.KerasNetwork(model_fn=sequential, spec=SPEC)
        random.seed(3)
        a, after = network.init(KEY), random.random()
        random.seed(3)
        self.assertEqual(random.random(), after)
        tf.nest.map_structure(self.assertAllEqual, a, network.init(KEY))
        other = network.init(seeding.key(6))
        self.assertNotAllClose(a["params"]["000_kernel"], other["params"]["000_kernel"])
        names = ["000_kernel", "001_bias", "002_gamma", "003_beta", "004_kernel", "005_bias"]
        self.assertEqual(list(a["params"]), names)

    def test_as_the_torso_of_a_policy_on_dict_observations(self):
        def model_fn():
            a, b = K.Input([2], name="a"), K.Input([3], name="b")
            y = K.layers.Concatenate()([a, K.layers.Dense(4)(b)])
            return K.Model({"a": a, "b": b}, y)

        spec = {"a": tf.TensorSpec([2]), "b": tf.TensorSpec([3])}
        network = networks.PolicyNetwork(
            torso=networks.KerasNetwork(model_fn=model_fn, spec=spec),
            distribution=distributions.make_distribution(specs.DiscreteSpec(3)),
        )
        params = network.init(KEY, spec)
        x = specs.sample(spec, KEY, (5, 2))
        self.assertEqual(network.apply(params, x).sample(KEY).shape, [5, 2])

    def test_equal_by_function(self):
        make = lambda f: networks.KerasNetwork(model_fn=f, spec=SPEC)  # noqa: E731
        self.assertEqual(make(sequential), make(sequential))
        self.assertNotEqual(make(sequential), make(functional))

    def test_in_a_strategy(self):
        network = networks.KerasNetwork(model_fn=sequential, spec=SPEC)
        params = network.init(KEY)
        strategy = tf.distribute.MirroredStrategy(["CPU:0"])
        with strategy.scope():
            variables = tf.nest.map_structure(tf.Variable, params)

        @tf.function
        def run(x):
            values = lambda: tf.nest.map_structure(tf.convert_to_tensor, variables)  # noqa: E731
            return strategy.run(lambda x: network.apply(values(), x), args=(x,))

        x = seeding.normal(KEY, [3, 4])
        self.assertAllClose(run(x), network.apply(params, x), 1e-5)
        with strategy.scope(), pytest.raises(UserError, match="outside a distribution strategy"):
            networks.KerasNetwork(model_fn=sequential, spec=SPEC)


class ErrorsTest(tf.test.TestCase):
    def test_training_with_random_layers_needs_a_key(self):
        network = networks.KerasNetwork(model_fn=sequential, spec=SPEC)
        with pytest.raises(
            UserError, match="key: expected an int32 key, since the Keras model draw"
        ):
            tf.function(network.apply)(network.init(KEY), tf.zeros([2, 4]), training=True)

    def test_init_while_tracing(self):
        network = networks.KerasNetwork(model_fn=plain_dense, spec=SPEC)
        with pytest.raises(UserError, match="KerasNetwork.init: expected a call outside tf"):
            tf.function(network.init)(KEY)

    def test_wrong_models(self):
        with pytest.raises(UserError, match="model_fn: expected a function without arguments"):
            networks.KerasNetwork(model_fn=lambda: 3, spec=SPEC)
        with pytest.raises(UserError, match="spec: expected the spec of the KerasNetwork"):
            networks.KerasNetwork(model_fn=plain_dense, spec=SPEC).init(KEY, tf.TensorSpec([5]))
        flat = networks.KerasNetwork(
            model_fn=lambda: K.Sequential([K.layers.Reshape([2, 2])]), spec=SPEC
        )
        with pytest.raises(UserError, match=r"Keras model: expected one output of shape \[batch"):
            flat.output_size(SPEC)

    def test_decorated_call(self):
        class Decorated(K.Model):
            @tf.function
            def call(self, x):
                return x

        with pytest.raises(UserError, match="Keras model: expected plain `call` methods"):
            networks.KerasNetwork(model_fn=Decorated, spec=SPEC)
