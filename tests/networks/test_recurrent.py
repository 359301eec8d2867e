"""Recurrent torsos: the cells against NumPy, unrolling, starts, gradients, messages."""

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized

from tfrl import networks, seeding, struct
from tfrl.errors import UserError
from tfrl.keras import api as keras

KEY = seeding.key(5)
OBS = tf.TensorSpec([3])
CELLS = ("lstm", "gru")


def made(cell, size=4, body=None):
    body = networks.MLP(hidden=(5,)) if body is None else body
    torso = networks.RecurrentTorso(body=body, cell=cell, size=size)
    params = torso.init(KEY, OBS)
    # Biases are zeros at first, which would hide a wrong one.
    for i, part in enumerate(("input", "recurrent")):
        bias = seeding.normal(seeding.fold_in(KEY, i), params[part]["bias"].shape)
        params = {**params, part: {**params[part], "bias": bias}}
    return torso, params


def carry_of(torso, batch, seed=9):
    return tf.nest.map_structure(
        lambda x: seeding.normal(seeding.key(seed), x.shape), torso.initial_carry(batch)
    )


def sigmoid(x):
    return 1.0 / (1.0 + np.exp(-x))


def oracle(cell, params, features, carry):
    """One step in float64 with the gates one by one."""
    f64 = lambda x: np.asarray(x, np.float64)  # noqa: E731
    h, x = f64(carry["hidden"]), f64(features)
    w, u = f64(params["input"]["kernel"]), f64(params["recurrent"]["kernel"])
    b, d = f64(params["input"]["bias"]), f64(params["recurrent"]["bias"])
    n = h.shape[-1]
    gate = lambda i: slice(i * n, (i + 1) * n)  # noqa: E731
    given = [x @ w[:, gate(i)] + b[gate(i)] for i in range(w.shape[1] // n)]
    own = [h @ u[:, gate(i)] + d[gate(i)] for i in range(w.shape[1] // n)]
    if cell == "gru":
        r, z = sigmoid(given[0] + own[0]), sigmoid(given[1] + own[1])
        new = np.tanh(given[2] + r * own[2])
        return {"hidden": (1 - z) * new + z * h}
    i, f, g, o = (p + q for p, q in zip(given, own, strict=True))
    c = sigmoid(f + 1.0) * f64(carry["cell"]) + sigmoid(i) * np.tanh(g)
    return {"hidden": sigmoid(o) * np.tanh(c), "cell": c}


def stepped(torso, params, x, carry, starts):
    """`unroll` as a Python loop of `step` over [T, B, ...]."""
    outputs = []
    fresh = torso.initial_carry(x.shape[1])
    for t in range(x.shape[0]):
        first = starts[t][:, tf.newaxis]
        carry = tf.nest.map_structure(lambda a, b, f=first: tf.where(f, a, b), fresh, carry)
        y, carry = torso.step(params, x[t], carry)
        outputs.append(y)
    return tf.stack(outputs)


class CellTest(parameterized.TestCase, tf.test.TestCase):
    @parameterized.product(cell=CELLS, mode=["eager", "graph", "xla"])
    def test_against_numpy(self, cell, mode):
        torso, params = made(cell)
        x, carry = seeding.normal(KEY, [6, 3]), carry_of(torso, 6)
        step = torso.step
        if mode != "eager":
            step = tf.function(torso.step, jit_compile=mode == "xla", autograph=False)
        y, after = step(params, x, carry)
        expected = oracle(cell, params, torso.body.apply(params["body"], x), carry)
        self.assertEqual(set(after), set(expected))
        for name, value in expected.items():
            self.assertAllClose(after[name], value, 1e-5, 1e-6, msg=name)
        self.assertAllEqual(y, after["hidden"])

    def test_lstm_by_hand(self):
        # One unit, every kernel and bias 0, x whatever. Gates i = o = 1/2, f = sigmoid(1) since the
        # forget gate has 1 added, g = 0: c' = 0.7310586 * 2 = 1.4621172, h' = tanh(c') / 2 =
        # 0.4490316.
        torso = networks.RecurrentTorso(body=networks.MLP(hidden=()), cell="lstm", size=1)
        params = tf.nest.map_structure(tf.zeros_like, torso.init(KEY, OBS))
        carry = {"hidden": tf.constant([[3.0]]), "cell": tf.constant([[2.0]])}
        y, after = torso.step(params, tf.ones([1, 3]), carry)
        self.assertAllClose(after["cell"], [[1.4621172]], 1e-6)
        self.assertAllClose(y, [[0.4490316]], 1e-6)

    def test_gru_by_hand(self):
        # Everything 0: n = 0, z = 1/2, so half of h stays.
        torso = networks.RecurrentTorso(body=networks.MLP(hidden=()), cell="gru", size=1)
        params = tf.nest.map_structure(tf.zeros_like, torso.init(KEY, OBS))
        y, _ = torso.step(params, tf.ones([1, 3]), {"hidden": tf.constant([[3.0]])})
        self.assertAllClose(y, [[1.5]])
        # The reset gate stands behind the recurrent matrix: r = 1/2, U h + b = 3 * 2 + 1 = 7,
        # n = tanh(3.5) = 0.9981779, h' = (n + 3) / 2 = 1.9990890.
        kernel, bias = tf.constant([[0.0, 0.0, 2.0]]), tf.constant([0.0, 0.0, 1.0])
        params = {**params, "recurrent": {"kernel": kernel, "bias": bias}}
        y, _ = torso.step(params, tf.ones([1, 3]), {"hidden": tf.constant([[3.0]])})
        self.assertAllClose(y, [[1.999089]], 1e-6)

    @parameterized.parameters(*CELLS)
    def test_parameters(self, cell):
        torso = networks.RecurrentTorso(body=networks.MLP(hidden=(5,)), cell=cell, size=4)
        gates = {"lstm": 4, "gru": 3}[cell]
        params = torso.init(KEY, OBS)
        shapes = {path: x.shape.as_list() for path, x in struct.paths(params).items()}
        self.assertEqual(
            shapes,
            {
                "body/layer_0/bias": [5],
                "body/layer_0/kernel": [3, 5],
                "input/bias": [4 * gates],
                "input/kernel": [5, 4 * gates],
                "recurrent/bias": [4 * gates],
                "recurrent/kernel": [4, 4 * gates],
            },
        )
        # Each gate's block is orthogonal on its own, and another one.
        blocks = np.split(params["recurrent"]["kernel"].numpy(), gates, axis=1)
        for i, block in enumerate(blocks):
            self.assertAllClose(block.T @ block, np.eye(4), atol=1e-5)
            self.assertNotAllClose(block, blocks[i - 1])
        self.assertAllEqual(params["input"]["bias"], np.zeros(4 * gates))
        self.assertEqual(torso.output_size(OBS), 4)
        self.assertTrue(torso.recurrent)

    def test_the_carry_of_a_start_is_zeros(self):
        for cell, names in (("gru", ["hidden"]), ("lstm", ["cell", "hidden"])):
            carry = made(cell)[0].initial_carry(6)
            self.assertEqual(sorted(carry), names)
            for x in carry.values():
                self.assertAllEqual(x, np.zeros([6, 4]))

    @parameterized.parameters(*CELLS)
    def test_population(self, cell):
        torso, _ = made(cell)
        stacked = networks.init_population(torso.init, KEY, 2, OBS)
        x = seeding.normal(KEY, [2, 6, 3])
        carry = tf.nest.map_structure(
            lambda c: seeding.normal(KEY, [2, *c.shape]), torso.initial_carry(6)
        )
        y, after = torso.step(stacked, x, carry)
        for p in range(2):
            member = torso.step(struct.take(stacked, p), x[p], struct.take(carry, p))
            self.assertAllClose(y[p], member[0], 1e-5, 1e-6)
            tf.nest.map_structure(
                lambda a, b, p=p: self.assertAllClose(a[p], b, 1e-5, 1e-6), after, member[1]
            )


class UnrollTest(parameterized.TestCase, tf.test.TestCase):
    def inputs(self, torso, steps=7, batch=3):
        x = seeding.normal(KEY, [steps, batch, 3])
        starts = np.zeros([steps, batch], bool)
        starts[0, 0] = starts[3, 0] = starts[4, 0] = starts[6, 2] = True
        return x, carry_of(torso, batch), tf.constant(starts)

    @parameterized.product(cell=CELLS, mode=["eager", "graph", "xla"])
    def test_values_and_gradients_are_those_of_single_steps(self, cell, mode):
        torso, params = made(cell)
        x, carry, starts = self.inputs(torso)
        weight = seeding.normal(seeding.key(2), [7, 3, 4])

        def run(unrolled, params, x, carry):
            with tf.GradientTape() as tape:
                tape.watch((params, x, carry))
                y = unrolled(params, x, carry)
                loss = tf.reduce_sum(weight * tf.sin(y))
            return y, tape.gradient(loss, (params, x, carry))

        def unroll(params, x, carry):
            return torso.unroll(params, x, carry, starts, KEY)[0]

        def loop(params, x, carry):
            return stepped(torso, params, x, carry, starts)

        compiled = run
        if mode != "eager":
            compiled = tf.function(run, jit_compile=mode == "xla", autograph=False)
        y, gradients = compiled(unroll, params, x, carry)
        expected, expected_gradients = run(loop, params, x, carry)
        self.assertEqual(y.shape, [7, 3, 4])
        self.assertAllClose(y, expected, 1e-5, 1e-6)
        names = struct.paths(expected_gradients)
        for (path, a), b in zip(names.items(), struct.paths(gradients).values(), strict=True):
            self.assertAllClose(b, a, 1e-4, 1e-5, msg=path)
            self.assertGreater(np.abs(a).max(), 0.0, path)
        # Row 0 starts an episode at the first step: what was carried into it has no influence.
        for x in tf.nest.flatten(gradients[2]):
            self.assertAllEqual(x[0], np.zeros(4))

    @parameterized.parameters(*CELLS)
    def test_two_episodes_in_a_sequence_are_two_sequences(self, cell):
        torso, params = made(cell)
        x, carry = seeding.normal(KEY, [9, 4, 3]), carry_of(torso, 4)
        no = tf.zeros([9, 4], tf.bool)
        starts = tf.tensor_scatter_nd_update(no, [[5, b] for b in range(4)], [True] * 4)
        whole, _ = torso.unroll(params, x, carry, starts, None)
        first, _ = torso.unroll(params, x[:5], carry, no[:5], None)
        second, _ = torso.unroll(params, x[5:], torso.initial_carry(4), no[5:], None)
        self.assertAllClose(whole, tf.concat([first, second], 0), 1e-5, 1e-6)
        # Whatever the first episode was, the second does not know of it.
        other = tf.concat([x[:5] * -3.0, x[5:]], 0)
        again, _ = torso.unroll(params, other, carry_of(torso, 4, seed=1), starts, None)
        self.assertNotAllClose(again[:5], whole[:5])
        self.assertAllEqual(again[5:], whole[5:])

    @parameterized.parameters(*CELLS)
    def test_parameters_may_be_variables(self, cell):
        torso, params = made(cell)
        x, carry, starts = self.inputs(torso)
        variables = tf.nest.map_structure(tf.Variable, params)

        @tf.function
        def run(params):
            with tf.GradientTape(watch_accessed_variables=False) as tape:
                tape.watch(params)
                y, _ = torso.unroll(params, x, carry, starts, KEY)
                loss = tf.reduce_sum(tf.sin(y))
            return loss, tape.gradient(loss, params)

        (a, da), (b, db) = run(params), run(variables)
        self.assertAllClose(a, b, 1e-6)
        for p, q in zip(tf.nest.flatten(da), tf.nest.flatten(db), strict=True):
            self.assertAllClose(p, q, 1e-5, 1e-6)

    def test_a_longer_batch_axis_need_not_be_known(self):
        torso, params = made("lstm")

        @tf.function(input_signature=[tf.TensorSpec([5, None, 3])])
        def run(x):
            batch = tf.shape(x)[1]
            starts = tf.zeros([5, batch], tf.bool)
            return torso.unroll(params, x, torso.initial_carry(batch), starts, None)[0]

        x = seeding.normal(KEY, [5, 3, 3])
        self.assertAllClose(run(x), run(tf.tile(x, [1, 2, 1]))[:, 3:], 1e-5, 1e-6)

    def test_the_body_is_in_training_mode_with_a_key_only(self):
        body = networks.KerasNetwork(
            model_fn=lambda: keras.Sequential([keras.layers.BatchNormalization()]), spec=OBS
        )
        torso, params = made("gru", body=body)
        x, carry, starts = self.inputs(torso)
        x += 4.0
        y, after = torso.unroll(params, x, carry, starts, None)
        self.assertIs(after["body"], params["body"])
        self.assertAllClose(y, stepped(torso, params, x, carry, starts), 1e-5, 1e-6)
        trained, after = torso.unroll(params, x, carry, starts, KEY)
        self.assertNotAllClose(trained, y)
        mean = after["body"]["state"]["000_moving_mean"]
        self.assertAllClose(mean, 0.01 * np.mean(x, axis=(0, 1)), 1e-4)
        self.assertIs(after["recurrent"], params["recurrent"])


class MessagesTest(parameterized.TestCase):
    @parameterized.parameters(
        (
            {"cell": "lstmm"},
            "RecurrentTorso.cell: expected one of gru, lstm, got 'lstmm'. Did you mean lstm?",
        ),
        ({"size": 0}, "RecurrentTorso.size: expected a whole number of at least 1, got 0."),
        ({"size": True}, "RecurrentTorso.size: expected a whole number of at least 1, got True."),
        ({"size": 8.0}, "RecurrentTorso.size: expected a whole number of at least 1, got 8.0."),
        ({"kernel_init": "glorot"}, "kernel_init: expected one of lecun_normal, lecun_uniform,"),
        (
            {"body": networks.RecurrentTorso(body=networks.MLP())},
            "RecurrentTorso.body: expected a torso without memory, got RecurrentTorso.",
        ),
    )
    def test_arguments(self, changes, message):
        with pytest.raises(UserError) as error:
            networks.RecurrentTorso(**{"body": networks.MLP(), **changes})
        self.assertIn(message, str(error.value))

    def test_apply_says_what_to_call(self):
        torso, params = made("gru")
        with pytest.raises(UserError) as error:
            torso.apply(params, tf.zeros([2, 3]))
        self.assertEqual(
            str(error.value),
            "RecurrentTorso: expected a call of step(params, x, carry) or unroll(params, x, "
            "carry, starts), got apply(params, x).",
        )

    def test_without_a_carry_it_is_refused(self):
        torso, params = made("gru")
        starts = tf.zeros([4, 2], tf.bool)
        for call in (
            lambda: torso.step(params, tf.zeros([2, 3])),
            lambda: torso.unroll(params, tf.zeros([4, 2, 3]), None, starts, None),
        ):
            with pytest.raises(UserError) as error:
                call()
            self.assertEqual(
                str(error.value),
                "RecurrentTorso: expected a carry, got None. Begin an episode with "
                "initial_carry(batch_size), and hand on the carry that a step returns.",
            )

    def test_equal_torsos_are_equal(self):
        self.assertEqual(made("gru")[0], made("gru")[0])
        self.assertNotEqual(made("gru")[0], made("lstm")[0])
