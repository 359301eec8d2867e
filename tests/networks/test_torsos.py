"""Tests of MLPs, convolutional networks, initialisers and leading axes."""

import math

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized

from tfrl import networks, seeding, specs, struct
from tfrl.errors import UserError
from tfrl.keras import api as tf_keras
from tfrl.networks import layers

KEY = seeding.key(7)
IMAGE = specs.BoundedTensorSpec([36, 36, 2], tf.uint8, 0, 255)
SMALL = specs.BoundedTensorSpec([9, 8, 3], tf.uint8, 0, 255)
NATURE = networks.NatureCNN(hidden=6, filters=((4, 8, 4), (5, 4, 2), (3, 2, 1)))
IMPALA = networks.ImpalaCNN(hidden=6, depths=(3, 4), blocks=1)
MIXED = {
    "cards": specs.MultiDiscreteSpec([2, 3], start=[0, 1]),
    "grid": specs.BoundedTensorSpec([2, 2], tf.int32, 0, 9),
    "position": tf.TensorSpec([3]),
    "room": specs.DiscreteSpec(4, start=1),
}
# name: (torso, spec, size of the output)
TORSOS = {
    "mlp": (networks.MLP(hidden=(5, 6)), tf.TensorSpec([3]), 6),
    "mlp_norm": (networks.MLP(hidden=(5, 6), layer_norm=True), tf.TensorSpec([3]), 6),
    "mlp_open": (
        networks.MLP(hidden=(5, 6), activate_final=False, kernel_init="lecun_normal"),
        tf.TensorSpec([3]),
        6,
    ),
    "linear": (networks.Linear(size=6), tf.TensorSpec([3]), 6),
    "nature": (NATURE, IMAGE, 6),
    "impala": (IMPALA, SMALL, 6),
    "mixed": (networks.make_torso(MIXED, hidden=(6,)), MIXED, 6),
    "image_by_key": (
        networks.ObservationTorso(obs_spec={"i": SMALL, "v": MIXED}, body=IMPALA, obs_key="i"),
        {"i": SMALL, "v": MIXED},
        6,
    ),
}


def _named():
    return [(name, *case) for name, case in TORSOS.items()]


class LeadingAxesTest(parameterized.TestCase, tf.test.TestCase):
    @parameterized.named_parameters(_named())
    def test_batch_and_time(self, torso, spec, size):
        params = torso.init(KEY, spec)
        x = specs.sample(spec, KEY, (4, 3))
        y = torso.apply(params, x)
        self.assertEqual((y.shape, y.dtype), ([4, 3, size], tf.float32))
        self.assertEqual(torso.output_size(spec), size)
        for t in range(4):
            self.assertAllClose(y[t], torso.apply(params, struct.take(x, t)), 1e-4, 1e-5)
        one = torso.apply(params, tf.nest.map_structure(lambda v: v[0, 0], x))
        self.assertAllClose(y[0, 0], one, 1e-4, 1e-5)

    @parameterized.named_parameters(_named())
    def test_population_equals_a_loop_over_members(self, torso, spec, size):
        stacked = networks.init_population(torso.init, KEY, 2, spec)
        for lead in ((2, 3), (2, 4, 3)):
            x = specs.sample(spec, KEY, lead)
            with tf.GradientTape() as tape:
                tape.watch(stacked)
                y = torso.apply(stacked, x)
                loss = tf.reduce_sum(tf.sin(y))
            self.assertEqual(y.shape, [*lead, size])
            gradient = tape.gradient(loss, stacked)
            for p in range(2):
                member = torso.init(seeding.fold_in(KEY, p), spec)
                tf.nest.map_structure(self.assertAllEqual, member, struct.take(stacked, p))
                with tf.GradientTape() as tape:
                    tape.watch(member)
                    mine = torso.apply(member, struct.take(x, p))
                    loss = tf.reduce_sum(tf.sin(mine))
                self.assertAllClose(y[p], mine, 1e-4, 1e-5)
                tf.nest.map_structure(
                    lambda a, b: self.assertAllClose(a, b, 1e-3, 1e-4),
                    struct.take(gradient, p),
                    tape.gradient(loss, member),
                )

    @parameterized.named_parameters(_named())
    def test_graph_and_xla_agree_with_eager(self, torso, spec, size):
        params = torso.init(KEY, spec)
        x = specs.sample(spec, KEY, (2, 3))

        def f(params, x):
            with tf.GradientTape() as tape:
                tape.watch(params)
                y = torso.apply(params, x)
                loss = tf.reduce_sum(tf.square(y))
            return y, tape.gradient(loss, params)

        eager = tf.nest.flatten(f(params, x))
        for jit in (False, True):
            other = tf.nest.flatten(tf.function(f, jit_compile=jit)(params, x))
            for a, b in zip(eager, other, strict=True):
                self.assertAllClose(a, b, 1e-3, 1e-4)

    @parameterized.named_parameters(_named())
    def test_batch_of_unknown_size(self, torso, spec, size):
        params = torso.init(KEY, spec)
        batched = specs.add_batch(specs.add_batch(spec, None), None)
        f = tf.function(
            torso.apply,
            input_signature=[
                tf.nest.map_structure(lambda p: tf.TensorSpec(p.shape, p.dtype), params),
                batched,
            ],
        )
        concrete = f.get_concrete_function()
        self.assertEqual(concrete.structured_outputs.shape.as_list(), [None, None, size])
        x = specs.sample(spec, KEY, (2, 3))
        self.assertAllClose(f(params, x), torso.apply(params, x), 1e-4, 1e-5)

    def test_parameters_as_variables(self):
        torso, spec, _ = TORSOS["mlp_norm"]
        params = torso.init(KEY, spec)
        variables = tf.nest.map_structure(tf.Variable, params)
        x = specs.sample(spec, KEY, (4,))
        self.assertAllEqual(torso.apply(params, x), torso.apply(variables, x))

    def test_one_matmul_per_layer_and_one_trace(self):
        torso = networks.MLP(hidden=(5, 6, 7))
        traces = []

        @tf.function
        def f(torso, params, x):
            traces.append(1)
            return torso.apply(params, x)

        params = torso.init(KEY, tf.TensorSpec([3]))
        args = (params, tf.zeros([8, 4, 3]))
        f(torso, *args)
        f(networks.MLP(hidden=(5, 6, 7)), *args)
        self.assertLen(traces, 1)
        ops = [op.type for op in f.get_concrete_function(torso, *args).graph.get_operations()]
        self.assertEqual((ops.count("MatMul"), ops.count("Reshape")), (3, 2))
        self.assertNotIn("BatchMatMulV2", ops)
        f(networks.MLP(hidden=(5, 6, 7), activation="relu"), *args)
        self.assertLen(traces, 2)

    def test_stacked_parameters_need_stacked_inputs(self):
        torso = networks.MLP(hidden=(5,))
        stacked = networks.init_population(torso.init, KEY, 2, tf.TensorSpec([3]))
        with pytest.raises(UserError, match="network input: expected a leading population axis"):
            torso.apply(stacked, tf.zeros([3]))


class MLPTest(parameterized.TestCase, tf.test.TestCase):
    def test_against_numpy(self):
        torso = networks.MLP(hidden=(4, 5))
        params = tf.nest.map_structure(lambda p: p + 0.1, torso.init(KEY, tf.TensorSpec([3])))
        x = np.random.default_rng(0).normal(size=(6, 3)).astype(np.float32)
        y = x
        for name in ("layer_0", "layer_1"):
            y = np.tanh(y @ params[name]["kernel"].numpy() + params[name]["bias"].numpy())
        self.assertAllClose(torso.apply(params, x), y, 1e-5)

    def test_layer_norm_against_numpy(self):
        x = np.random.default_rng(0).normal(2.0, 3.0, size=(6, 5)).astype(np.float32)
        params = {"scale": tf.constant([1.0, 2.0, 0.5, -1.0, 0.0]), "offset": tf.range(5.0)}
        mean, variance = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
        expected = (x - mean) / np.sqrt(variance + 1e-5) * params["scale"] + params["offset"]
        self.assertAllClose(layers.layer_norm(params, tf.constant(x)), expected, 1e-5, 1e-5)
        # Equal features have zero variance.
        with tf.GradientTape() as tape:
            same = tf.ones([2, 5])
            tape.watch(same)
            y = layers.layer_norm(params, same)
        self.assertAllClose(y, [np.arange(5.0)] * 2)
        self.assertTrue(np.all(np.isfinite(tape.gradient(y, same))))

    def test_norm_comes_before_each_activation(self):
        torso = networks.MLP(hidden=(4,), layer_norm=True, activation="identity")
        params = torso.init(KEY, tf.TensorSpec([3]))
        y = torso.apply(params, seeding.normal(KEY, [6, 3]))
        self.assertAllClose(tf.reduce_mean(y, -1), tf.zeros([6]), atol=1e-5)
        self.assertAllClose(tf.math.reduce_std(y, -1), tf.ones([6]), 1e-2)
        closed = networks.MLP(hidden=(4,), layer_norm=True, activate_final=False)
        self.assertNotIn("norm", closed.init(KEY, tf.TensorSpec([3]))["layer_0"])

    def test_final_activation(self):
        x = 100 * seeding.normal(KEY, [6, 3])
        for final, bounded in ((True, True), (False, False)):
            torso = networks.MLP(hidden=(4,), activate_final=final)
            y = torso.apply(torso.init(KEY, tf.TensorSpec([3])), x)
            self.assertEqual(bool(tf.reduce_all(tf.abs(y) <= 1.0)), bounded)

    def test_no_layers(self):
        torso = networks.MLP(hidden=())
        x = tf.ones([2, 3])
        self.assertEqual(torso.init(KEY, tf.TensorSpec([3])), {})
        self.assertAllEqual(torso.apply({}, x), x)
        self.assertEqual(torso.output_size(tf.TensorSpec([3])), 3)

    def test_nest_of_vectors_is_concatenated(self):
        torso = networks.MLP(hidden=(4,))
        spec = {"b": tf.TensorSpec([2]), "a": specs.BoundedTensorSpec([1], tf.uint8, 0, 9)}
        params = torso.init(KEY, spec)
        x = {"b": tf.constant([[1.0, 2.0]]), "a": tf.constant([[3]], tf.uint8)}
        self.assertAllEqual(
            torso.apply(params, x), torso.apply(params, tf.constant([[3.0, 1.0, 2.0]]))
        )

    @parameterized.parameters("elu", "gelu", "identity", "leaky_relu", "relu", "silu", "softplus")
    def test_activations_by_name(self, name):
        torso = networks.MLP(hidden=(4,), activation=name)
        y = torso.apply(torso.init(KEY, tf.TensorSpec([3])), tf.zeros([2, 3]))
        self.assertAllClose(y, tf.fill([2, 4], math.log(2) if name == "softplus" else 0.0))

    def test_errors(self):
        with pytest.raises(UserError, match="activation: expected one of .* Did you mean tanh?"):
            networks.MLP(activation="tan")
        with pytest.raises(UserError, match="kernel_init: expected one of .*orthogonal"):
            networks.MLP(kernel_init="ortogonal")
        with pytest.raises(UserError, match="MLP.hidden: expected a tuple of sizes"):
            networks.MLP(hidden=(3, 0))
        with pytest.raises(
            UserError, match=r"spec a of an MLP's input: expected rank 1, got shape"
        ):
            networks.MLP().init(KEY, {"a": tf.TensorSpec([2, 2])})


class InitializersTest(parameterized.TestCase, tf.test.TestCase):
    @parameterized.parameters(((64, 64),), ((8, 3),), ((3, 8),), ((3, 3, 4, 5),), ((5, 1),))
    def test_orthogonal(self, shape):
        scale = 1.7
        q = layers.orthogonal(KEY, shape, scale).numpy().reshape(-1, shape[-1])
        gram = q.T @ q if q.shape[0] >= q.shape[1] else q @ q.T
        self.assertAllClose(gram, scale**2 * np.eye(len(gram)), atol=1e-5)

    def test_orthogonal_is_uniform(self):
        # Over many draws each entry has mean 0 (QR without the signs has not) and variance 1/3.
        draws = np.stack([layers.orthogonal(seeding.fold_in(KEY, i), (3, 3)) for i in range(500)])
        self.assertAllClose(draws.mean(0), np.zeros((3, 3)), atol=0.1)
        self.assertAllClose(draws.var(0), np.full((3, 3), 1 / 3), atol=0.06)

    @parameterized.parameters("lecun_normal", "lecun_uniform")
    def test_lecun_variance(self, name):
        for shape in ((200, 300), (5, 5, 8, 300)):
            kernel = layers.initializer(name)(KEY, shape, 1.5).numpy()
            self.assertAllClose(kernel.mean(), 0.0, atol=2e-3)
            fan_in = np.prod(shape[:-1])
            self.assertAllClose(kernel.var() * fan_in, 1.5**2, rtol=2e-2)
        if name == "lecun_uniform":
            self.assertLessEqual(np.abs(kernel).max(), 1.5 * math.sqrt(3 / fan_in))

    @parameterized.parameters("lecun_normal", "lecun_uniform", "orthogonal")
    def test_every_path_agrees(self, name):
        f = lambda key: layers.initializer(name)(key, (16, 12), 1.4)  # noqa: E731
        eager = f(KEY)
        for jit in (False, True):
            other = tf.function(f, jit_compile=jit)(KEY)
            if name == "lecun_uniform":
                self.assertAllEqual(eager, other)
            self.assertAllClose(eager, other, 1e-4, 1e-5)

    def test_members_and_layers_differ(self):
        torso = networks.MLP(hidden=(4, 4, 4))
        stacked = networks.init_population(torso.init, KEY, 3, tf.TensorSpec([4]))
        kernels = [stacked[f"layer_{i}"]["kernel"][p] for i in range(3) for p in range(3)]
        self.assertLen({k.numpy().tobytes() for k in kernels}, 9)


class ConvolutionTest(parameterized.TestCase, tf.test.TestCase):
    def test_nature_against_keras(self):
        params = NATURE.init(KEY, IMAGE)
        params = tf.nest.map_structure(lambda p: p + 0.01, params)
        x = specs.sample(IMAGE, KEY, (3,))
        keras = tf_keras.Sequential(
            [tf_keras.layers.Rescaling(1 / 255)]
            + [
                tf_keras.layers.Conv2D(c, k, s, padding="valid", activation="relu")
                for c, k, s in NATURE.filters
            ]
            + [tf_keras.layers.Flatten(), tf_keras.layers.Dense(6, activation="relu")]
        )
        keras(x)
        names = ("conv_0", "conv_1", "conv_2", "dense")
        keras.set_weights([params[n][w].numpy() for n in names for w in ("kernel", "bias")])
        self.assertAllClose(NATURE.apply(params, x), keras(x), 1e-4, 1e-5)

    def test_impala_against_keras(self):
        params = tf.nest.map_structure(lambda p: p + 0.01, IMPALA.init(KEY, SMALL))
        x = specs.sample(SMALL, KEY, (3,))

        def conv(p, y):
            layer = tf_keras.layers.Conv2D(p["bias"].shape[0], 3, padding="same")
            layer.build(y.shape)
            layer.set_weights([p["kernel"].numpy(), p["bias"].numpy()])
            return layer(y)

        y = tf.cast(x, tf.float32) / 255
        for name in ("section_0", "section_1"):
            y = tf_keras.layers.MaxPool2D(3, 2, "same")(conv(params[name]["conv"], y))
            block = params[name]["block_0"]
            y += conv(block["conv_1"], tf.nn.relu(conv(block["conv_0"], tf.nn.relu(y))))
        y = tf.reshape(tf.nn.relu(y), [3, -1])
        y = tf.nn.relu(y @ params["dense"]["kernel"] + params["dense"]["bias"])
        self.assertAllClose(IMPALA.apply(params, x), y, 1e-4, 1e-5)

    def test_standard_sizes(self):
        spec = specs.BoundedTensorSpec([84, 84, 4], tf.uint8, 0, 255)
        count = lambda p: sum(x.shape.num_elements() for x in tf.nest.flatten(p))  # noqa: E731
        torso = networks.NatureCNN(kernel_init="lecun_uniform")
        # 8208 + 32 + 32768 + ... : the well-known 1,684,128 for four frames of 84 x 84.
        self.assertEqual(count(torso.init(KEY, spec)), 1_684_128)
        impala = networks.ImpalaCNN(kernel_init="lecun_uniform")
        dense = impala.init(KEY, spec)["dense"]["kernel"]
        self.assertEqual(dense.shape, [11 * 11 * 32, 256])

    @parameterized.named_parameters(("nature", NATURE, IMAGE), ("impala", IMPALA, SMALL))
    def test_channels_first_and_float_pixels(self, torso, spec):
        params = torso.init(KEY, spec)
        x = specs.sample(spec, KEY, (3,))
        y = torso.apply(params, x)
        h, w, c = spec.shape
        first = torso.replace(channels_first=True)
        first_spec = specs.BoundedTensorSpec([c, h, w], tf.uint8, 0, 255)
        tf.nest.map_structure(self.assertAllEqual, first.init(KEY, first_spec), params)
        self.assertAllClose(first.apply(params, tf.transpose(x, [0, 3, 1, 2])), y, 1e-5)
        # Floats are taken as they are.
        self.assertAllClose(torso.apply(params, tf.cast(x, tf.float32) / 255), y, 1e-5)

    def test_errors(self):
        with pytest.raises(UserError, match="expected one image of shape"):
            networks.NatureCNN().init(KEY, tf.TensorSpec([3]))
        with pytest.raises(UserError, match="image: expected a size of at least 36 x 36"):
            networks.NatureCNN().init(KEY, SMALL)


class ObservationTest(parameterized.TestCase, tf.test.TestCase):
    def test_concatenation_by_hand(self):
        torso = networks.ObservationTorso(obs_spec=MIXED, body=networks.MLP(hidden=()))
        x = {
            "cards": tf.constant([[1, 3]], tf.int64),
            "grid": tf.constant([[[1, 2], [3, 4]]], tf.int32),
            "position": tf.constant([[0.5, 0.6, 0.7]]),
            "room": tf.constant([2], tf.int64),
        }
        cards, grid, position, room = [0, 1, 0, 0, 1], [1, 2, 3, 4], [0.5, 0.6, 0.7], [0, 1, 0, 0]
        self.assertAllClose(torso.apply({}, x), [cards + grid + position + room])
        self.assertEqual(torso.output_size(MIXED), 16)
        plain = torso.replace(one_hot=False)
        self.assertAllClose(plain.apply({}, x), [[1, 3] + grid + position + [2]])
        by_key = torso.replace(obs_key="position")
        self.assertAllClose(by_key.apply({}, x), [position])

    def test_nested_key(self):
        spec = {"a": {"b": tf.TensorSpec([2]), "c": tf.TensorSpec([5])}}
        torso = networks.make_torso(spec, obs_key="a/b", hidden=(3,))
        x = {"a": {"b": tf.ones([4, 2]), "c": tf.ones([4, 5])}}
        params = torso.init(KEY, spec)
        self.assertEqual(params["layer_0"]["kernel"].shape, [2, 3])
        self.assertEqual(torso.apply(params, x).shape, [4, 3])

    def test_kinds(self):
        self.assertIsInstance(networks.make_torso(IMAGE).body, networks.NatureCNN)
        self.assertIsInstance(networks.make_torso(IMAGE, "impala_cnn").body, networks.ImpalaCNN)
        self.assertIsInstance(networks.make_torso(IMAGE, "mlp").body, networks.MLP)
        self.assertIsInstance(networks.make_torso(MIXED).body, networks.MLP)
        frames = specs.BoundedTensorSpec([4, 84, 84], tf.uint8, 0, 255)
        self.assertTrue(networks.make_torso(frames).body.channels_first)
        self.assertFalse(networks.make_torso(IMAGE).body.channels_first)
        torso = networks.make_torso(IMAGE, hidden=(7,), activation="elu")
        self.assertEqual((torso.body.hidden, torso.body.activation), (7, "elu"))
        torso = networks.make_torso(MIXED, hidden=(7, 8), layer_norm=True)
        self.assertEqual((torso.body.hidden, torso.body.layer_norm), ((7, 8), True))

    def test_errors(self):
        both = {"image": IMAGE, "speed": tf.TensorSpec([1])}
        with pytest.raises(UserError) as error:
            networks.make_torso(both)
        self.assertEqual(
            str(error.value),
            "observation: expected at most one image, got images image among other items. "
            "Choose one with obs_key='image', or make_torso(kind='mlp') for all.",
        )
        with pytest.raises(UserError, match="obs_key: expected .* got 'imag'. Did you mean image?"):
            networks.make_torso(both, obs_key="imag")
        with pytest.raises(UserError, match="kind of torso: expected one of auto, mlp"):
            networks.make_torso(both, kind="cnn")
        with pytest.raises(UserError, match="observation: expected one image of rank 3 for a CNN"):
            networks.make_torso(both, kind="impala_cnn")
        with pytest.raises(UserError, match="hidden: expected one size"):
            networks.make_torso(IMAGE, hidden=(3, 4))
        with pytest.raises(UserError, match="spec: expected the spec of the torso"):
            networks.make_torso(IMAGE).init(KEY, SMALL)
