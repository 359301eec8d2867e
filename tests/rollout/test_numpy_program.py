"""Tests of programs in NumPy: operations against TensorFlow's own, and what depends on what."""

import warnings

import numpy as np
import tensorflow as tf
from absl.testing import parameterized

from tests.envs.host_backends import Scripted
from tfrl import seeding, specs
from tfrl.agents import PPO
from tfrl.rollout import numpy_program
from tfrl.rollout.numpy_ops import OPS
from tfrl.rollout.numpy_program import NotInNumpy, NumpyProgram

raw = tf.raw_ops

# For each operation a function of x float32 [3, 4] (values around 0) and w float32 [4, 5].
CASES = {
    "Abs": lambda x, w: tf.abs(x),
    "Add": lambda x, w: raw.Add(x=x, y=x[0]),
    "AddN": lambda x, w: tf.add_n([x, x, 2 * x]),
    "AddV2": lambda x, w: x + x[0],
    "All": lambda x, w: tf.reduce_all(x > -1.0, axis=[0]),
    "Any": lambda x, w: tf.reduce_any(x > 1.0, axis=-1, keepdims=True),
    "ArgMax": lambda x, w: [tf.argmax(x, -1, tf.int32), tf.argmax(x[0])],
    "Atanh": lambda x, w: tf.atanh(x / 10),
    "BatchMatMul": lambda x, w: raw.BatchMatMul(x=x[tf.newaxis], y=w[tf.newaxis]),
    "BatchMatMulV2": lambda x, w: tf.matmul(x[tf.newaxis], w[tf.newaxis], adjoint_b=False),
    "BiasAdd": lambda x, w: tf.nn.bias_add(x, w[:, 0]),
    "BroadcastArgs": lambda x, w: raw.BroadcastArgs(s0=tf.shape(x)[:1], s1=tf.shape(x[:1])[:1]),
    "BroadcastTo": lambda x, w: tf.broadcast_to(x, [2, 3, 4]),
    "Cast": lambda x, w: tf.cast(100 * x, tf.int32),
    "ClipByValue": lambda x, w: raw.ClipByValue(t=x, clip_value_min=-0.5, clip_value_max=0.5),
    "ConcatV2": lambda x, w: tf.concat([x, x], -1),
    "Cumsum": lambda x, w: tf.cumsum(x, axis=-1),
    "Elu": lambda x, w: tf.nn.elu(x),
    "EnsureShape": lambda x, w: tf.ensure_shape(x, [3, 4]),
    "Equal": lambda x, w: tf.equal(x, x[0]),
    "Exp": lambda x, w: tf.exp(x),
    "ExpandDims": lambda x, w: tf.expand_dims(x, 1),
    "Expm1": lambda x, w: tf.math.expm1(x),
    "Fill": lambda x, w: tf.fill([2, 3], x[0, 0]),
    "Floor": lambda x, w: tf.floor(10 * x),
    "GatherV2": lambda x, w: tf.gather(x, [2, 0, 2]),
    "Greater": lambda x, w: x > 0.0,
    "GreaterEqual": lambda x, w: x >= x[0],
    "Identity": lambda x, w: tf.identity(x),
    "IsFinite": lambda x, w: tf.math.is_finite(tf.math.log(x)),
    "IsNan": lambda x, w: tf.math.is_nan(tf.math.log(x)),
    "LeakyRelu": lambda x, w: tf.nn.leaky_relu(x, 0.3),
    "Less": lambda x, w: x < 0.0,
    "LessEqual": lambda x, w: x <= x[0],
    "Log": lambda x, w: tf.math.log(tf.abs(x)),
    "Log1p": lambda x, w: tf.math.log1p(tf.abs(x)),
    "LogSoftmax": lambda x, w: tf.nn.log_softmax(100 * x),
    "LogicalAnd": lambda x, w: (x > 0.0) & (x < 1.0),
    "LogicalNot": lambda x, w: ~(x > 0.0),
    "LogicalOr": lambda x, w: (x > 0.5) | (x < -0.5),
    "MatMul": lambda x, w: tf.matmul(w, x, transpose_a=True, transpose_b=True),
    "Max": lambda x, w: tf.reduce_max(x, axis=0),
    "Maximum": lambda x, w: tf.maximum(x, 0.1),
    "Mean": lambda x, w: tf.reduce_mean(x, axis=[0, 1]),
    "Min": lambda x, w: tf.reduce_min(x, axis=[-1], keepdims=True),
    "Minimum": lambda x, w: tf.minimum(x, 0.1),
    "Mul": lambda x, w: x * x[:, :1],
    "Neg": lambda x, w: -x,
    "NotEqual": lambda x, w: tf.not_equal(x, x[0]),
    "OneHot": lambda x, w: tf.one_hot(tf.argmax(x, -1), 6, on_value=2.0, off_value=-1.0),
    "OnesLike": lambda x, w: raw.OnesLike(x=x),
    "Pack": lambda x, w: tf.stack([x, x + 1], axis=1),
    "Pow": lambda x, w: tf.pow(tf.abs(x), 1.5),
    "Prod": lambda x, w: tf.reduce_prod(x, axis=1),
    "RealDiv": lambda x, w: x / (1 + tf.abs(x)),
    "Relu": lambda x, w: tf.nn.relu(x),
    "Reshape": lambda x, w: tf.reshape(x, [2, -1]),
    "Rsqrt": lambda x, w: tf.math.rsqrt(tf.abs(x)),
    "Select": lambda x, w: raw.Select(condition=x > 0, x=x, y=-x),
    "SelectV2": lambda x, w: tf.where(x > 0, x, 7.0),
    "Selu": lambda x, w: tf.nn.selu(x),
    "Shape": lambda x, w: raw.Shape(input=x),
    "Sigmoid": lambda x, w: [tf.sigmoid(50 * x), tf.sigmoid(tf.cast(x[0, 0], tf.float64))],
    "Sign": lambda x, w: tf.sign(x),
    "Slice": lambda x, w: tf.slice(x, [0, 1], [-1, 2]),
    "Softmax": lambda x, w: tf.nn.softmax(100 * x),
    "Softplus": lambda x, w: tf.nn.softplus(50 * x),
    "Split": lambda x, w: [tf.split(x, 2, axis=-1), tf.split(x, 3), tf.split(x[1], 4)],
    "SplitV": lambda x, w: tf.split(x, [1, 3], axis=-1),
    "Sqrt": lambda x, w: tf.sqrt(tf.abs(x)),
    "Square": lambda x, w: tf.square(x),
    "SquaredDifference": lambda x, w: tf.math.squared_difference(x, x[0]),
    "Squeeze": lambda x, w: tf.squeeze(x[:, :1], -1),
    "StopGradient": lambda x, w: tf.stop_gradient(x),
    "StridedSlice": lambda x, w: [x[1], x[:, ::2], x[..., -1], x[:, tf.newaxis], x[1:, 0]],
    "Sub": lambda x, w: x - x[0],
    "Sum": lambda x, w: tf.reduce_sum(tf.cast(10 * x, tf.int32), axis=0),
    "Tanh": lambda x, w: tf.tanh(x),
    "Tile": lambda x, w: tf.tile(x, [2, 1]),
    "Transpose": lambda x, w: tf.transpose(x),
    "Unpack": lambda x, w: tf.unstack(x, axis=1),
    "ZerosLike": lambda x, w: raw.ZerosLike(x=x),
}


def values(seed=0):
    rng = np.random.default_rng(seed)
    return (rng.normal(size=s).astype(np.float32) for s in ((3, 4), (4, 5)))


def program_of(fn):
    """`fn(x, w)` with x of the step and w of the state."""
    x, w = values()
    spec = tf.TensorSpec([4, 5], tf.float32)
    program = NumpyProgram(
        lambda state, key, x: fn(x, state["w"]), {"w": spec}, [tf.TensorSpec([3, 4], tf.float32)]
    )
    program.begin({"w": w}, seeding.key(0), 2)
    return program, x, w


class OperationTest(parameterized.TestCase):
    def test_every_operation_has_a_case(self):
        self.assertEqual(sorted(OPS), sorted(CASES))

    @parameterized.parameters(*CASES)
    def test_it_is_tensorflows(self, name):
        program, x, w = program_of(CASES[name])
        got = program.run(0, [x])
        want = CASES[name](tf.constant(x), tf.constant(w))
        graph = (
            tf.function(CASES[name], autograph=False)
            .get_concrete_function(tf.TensorSpec([3, 4]), tf.TensorSpec([4, 5]))
            .graph
        )
        self.assertIn(name, {op.type for op in graph.get_operations()})
        for a, b in zip(tf.nest.flatten(got), tf.nest.flatten(want), strict=True):
            b = b.numpy()
            self.assertEqual((a.dtype, a.shape), (b.dtype, b.shape))
            np.testing.assert_allclose(a, b, rtol=2e-6, atol=1e-6)

    def test_it_warns_as_little_as_tensorflow(self):
        program, x, w = program_of(lambda x, w: (x / tf.zeros_like(x), tf.math.log(-tf.abs(w))))
        before = np.geterr()
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            program.begin({"w": w}, seeding.key(0), 2)
            program.run(0, [x])
        self.assertEqual(np.geterr(), before)

    def test_an_unknown_operation_is_named(self):
        with self.assertRaisesRegex(NotInNumpy, "the operation Conv2D"):
            program_of(
                lambda x, w: tf.nn.conv2d(
                    x[tf.newaxis, ..., tf.newaxis], w[tf.newaxis, tf.newaxis, :1], 1, "SAME"
                )
            )

    @parameterized.parameters(
        (lambda x, w: tf.cumsum(x, exclusive=True), "Cumsum"),
        (lambda x, w: tf.gather(x, [[0], [0], [0]], batch_dims=1), "GatherV2"),
        (lambda x, w: tf.one_hot(tf.argmax(x, -1), 3, axis=0), "OneHot"),
    )
    def test_a_form_that_is_not_known_is_named(self, fn, name):
        with self.assertRaisesRegex(NotInNumpy, name):
            program_of(fn)

    def test_values_from_outside_are_refused(self):
        outside = tf.constant(np.ones([3, 4], np.float32))
        variable = tf.Variable(1.0)
        for fn in (lambda x, w: x + outside, lambda x, w: x * variable):
            with self.assertRaisesRegex(NotInNumpy, "values captured from outside|operation"):
                program_of(fn)


class DependenceTest(parameterized.TestCase):
    def test_draws_are_tensorflows_to_the_bit(self):
        def fn(state, key, x):
            noise = seeding.uniform(key, [3])
            return {"noise": noise, "scaled": noise * state, "sum": x + noise}

        program = NumpyProgram(fn, tf.TensorSpec([]), [tf.TensorSpec([3])])
        keys = seeding.split(seeding.key(5), 4)
        program.begin(np.float32(3), seeding.key(5), 4)
        x = np.arange(3, dtype=np.float32)
        for t in (0, 3, 1):
            want = fn(tf.constant(3.0), keys[t], tf.constant(x))
            got = program.run(t, [x])
            for name in want:
                np.testing.assert_array_equal(got[name], want[name], err_msg=name)

    def test_a_new_state_and_new_keys_count(self):
        program = NumpyProgram(
            lambda state, key, x: (tf.exp(state) * x, seeding.uniform(key, [])),
            tf.TensorSpec([]),
            [tf.TensorSpec([])],
        )
        found = []
        for state, seed in ((0.0, 0), (1.0, 0), (1.0, 1)):
            program.begin(np.float32(state), seeding.key(seed), 2)
            found.append(program.run(1, [np.float32(2)]))
        np.testing.assert_allclose([f[0] for f in found], [2, 2 * np.e, 2 * np.e], rtol=1e-6)
        self.assertEqual(found[0][1], found[1][1])
        self.assertNotEqual(found[1][1], found[2][1])

    @parameterized.named_parameters(
        ("discrete", specs.DiscreteSpec(5), {}),
        ("started", specs.DiscreteSpec(5, start=-2), {"normalize_obs": True}),
        ("many", specs.MultiDiscreteSpec([3, 2]), {}),
        ("bits", specs.BinarySpec([3]), {}),
        ("box", specs.BoundedTensorSpec([2], tf.float32, -2.0, 2.0), {"normalize_obs": True}),
        ("squashed", specs.BoundedTensorSpec([2], tf.float32, -2.0, 2.0), {"squash": True}),
        ("gru", specs.DiscreteSpec(3), {"memory": "gru"}),
        ("lstm", specs.DiscreteSpec(3), {"memory": "lstm", "shared_torso": True}),
        (
            "nest",
            {"a": specs.DiscreteSpec(3), "b": specs.BoundedTensorSpec([1], tf.float32, -1.0, 1.0)},
            {},
        ),
    )
    def test_every_kind_of_action_can_be_taken_in_numpy(self, action_spec, options):
        env = Scripted((2, 2, 2))
        agent = PPO(obs_spec=env.obs_spec, action_spec=action_spec, **options)
        state = agent.init(seeding.key(0))
        carry = agent.initial_carry(3)
        obs = np.random.default_rng(0).normal(size=(3, 3)).astype(np.float32)

        def like(nest):
            return tf.nest.map_structure(lambda x: tf.TensorSpec(x.shape, x.dtype), nest)

        for act in (agent.compute_actions, agent.evaluate_actions):

            def fn(state, key, obs, carry, act=act):
                output = act(state, obs, key, None if carry == () else carry)
                return tuple(
                    x for x in (output.action, output.carry, output.extras) if x is not None
                )

            before = () if carry is None else carry
            program = NumpyProgram(fn, like(state), [tf.TensorSpec([3, 3]), like(before)])
            keys = seeding.split(seeding.key(1), 3)
            program.begin(state, seeding.key(1), 3)
            got = program.run(2, [obs, tf.nest.map_structure(np.asarray, before)])
            want = fn(state, keys[2], tf.constant(obs), before)
            for a, b in zip(tf.nest.flatten(got), tf.nest.flatten(want), strict=True):
                self.assertEqual((a.dtype, a.shape), (b.dtype.as_numpy_dtype, b.shape))
                np.testing.assert_allclose(a, b, atol=2e-5)


class BlasTest(parameterized.TestCase):
    def test_a_step_takes_one_thread_and_gives_the_others_back(self):
        blas = numpy_program._BLAS
        before = blas.threads()
        self.addCleanup(blas.set_threads, before)
        blas.set_threads(2)
        if blas.threads() != 2:
            self.skipTest("NumPy uses no OpenBLAS of several threads here")
        program = NumpyProgram(lambda state, key, x: 2 * x, (), [tf.TensorSpec([2], tf.float32)])
        program.begin((), seeding.key(0), 1)
        found, step = [], program._step

        def seen(kept, given):
            found.append(blas.threads())
            return step(kept, given)

        program._step = seen
        program.run(0, [np.ones(2, np.float32)])
        self.assertEqual((found, blas.threads()), ([1], 2))
