"""Native optimizers: Keras', to 1e-6, on tensors, on variables, and for populations."""

import numpy as np
import pytest
import tensorflow as tf

from tfrl import struct
from tfrl.errors import UserError
from tfrl.keras import api as keras
from tfrl.learning.optimizers import SGD, Adam, AdamW, Lion, RMSprop
from tfrl.learning.optimizers.bound import BoundOptimizer

RATE = 0.03
KERAS = keras.optimizers
CASES = {
    "adam": (Adam(epsilon=1e-7), lambda: KERAS.legacy.Adam(RATE, epsilon=1e-7)),
    "adamw": (
        AdamW(epsilon=1e-7, weight_decay=0.1),
        lambda: KERAS.AdamW(RATE, weight_decay=0.1, epsilon=1e-7),
    ),
    "rmsprop": (RMSprop(), lambda: KERAS.RMSprop(RATE)),
    "rmsprop_momentum": (
        RMSprop(momentum=0.5, rho=0.95, epsilon=1e-2),
        lambda: KERAS.RMSprop(RATE, momentum=0.5, rho=0.95, epsilon=1e-2),
    ),
    "rmsprop_centered": (
        RMSprop(centered=True, epsilon=1e-2),
        lambda: KERAS.RMSprop(RATE, centered=True, epsilon=1e-2),
    ),
    "sgd": (SGD(), lambda: KERAS.SGD(RATE)),
    "momentum": (SGD(momentum=0.9), lambda: KERAS.SGD(RATE, momentum=0.9)),
    "nesterov": (
        SGD(momentum=0.9, nesterov=True),
        lambda: KERAS.SGD(RATE, momentum=0.9, nesterov=True),
    ),
    "lion": (Lion(), lambda: KERAS.Lion(RATE)),
    "lion_decay": (Lion(weight_decay=0.3), lambda: KERAS.Lion(RATE, weight_decay=0.3)),
}
STEPS = 5


def start():
    return {"kernel": np.float32([[1.0, -2.0], [0.5, 3.0]]), "bias": np.float32([0.1, -0.2])}


def gradients(seed=0):
    rng = np.random.default_rng(seed)
    one = lambda x: rng.normal(size=x.shape).astype(np.float32)  # noqa: E731
    return [{k: one(v) for k, v in start().items()} for _ in range(STEPS)]


def by_keras(make):
    optimizer, params = make(), {k: tf.Variable(v) for k, v in start().items()}
    for gradient in gradients():
        optimizer.apply_gradients([(gradient[k], params[k]) for k in params])
    return {k: v.numpy() for k, v in params.items()}


def on_tensors(optimizer, params, all_gradients, rate=RATE):
    slots = optimizer.init(params)
    for gradient in all_gradients:
        params, slots = optimizer.update(gradient, slots, params, rate)
    return params, slots


def assert_close(found, expected, tolerance=1e-6):
    tf.nest.map_structure(
        lambda x, y: np.testing.assert_allclose(x, y, rtol=tolerance, atol=tolerance),
        found,
        expected,
    )


def constants():
    return tf.nest.map_structure(tf.constant, start())


@pytest.mark.parametrize("name", CASES)
def test_tensors_take_keras_steps(name):
    optimizer, make = CASES[name]
    found, slots = on_tensors(optimizer, constants(), gradients())
    assert_close(found, by_keras(make))
    assert int(slots["iterations"]) == STEPS


@pytest.mark.parametrize("jit", [None, False, True], ids=["eager", "graph", "xla"])
@pytest.mark.parametrize("name", CASES)
def test_variables_are_updated_in_place(name, jit):
    optimizer, _ = CASES[name]
    params = tf.nest.map_structure(tf.Variable, start())
    slots = tf.nest.map_structure(tf.Variable, optimizer.init(params))

    def step(gradient):
        after, after_slots = optimizer.update(gradient, slots, params, RATE)
        assert after["kernel"] is params["kernel"] and set(after_slots) == set(slots)

    step = step if jit is None else tf.function(step, jit_compile=jit)
    for gradient in gradients():
        step(tf.nest.map_structure(tf.constant, gradient))
    expected, expected_slots = on_tensors(optimizer, constants(), gradients())
    assert_close(params, expected)
    assert_close(slots, expected_slots)


@pytest.mark.parametrize("name", CASES)
def test_members_of_a_population_are_as_if_alone(name):
    """Members with rates and counts of their own, on a leading axis, on tensors and variables."""
    optimizer, _ = CASES[name]
    rates, counts = tf.constant([0.1, 0.001]), tf.constant([0, 3], tf.int64)
    both = [
        tf.nest.map_structure(lambda *x: tf.stack(x), *pair)
        for pair in zip(gradients(1), gradients(2), strict=True)
    ]
    params = tf.nest.map_structure(lambda x: tf.stack([x, x]), constants())
    slots = {**optimizer.init(params), "iterations": counts}
    variables, own = (tf.nest.map_structure(tf.Variable, x) for x in (params, slots))
    for gradient in both:
        params, slots = optimizer.update(gradient, slots, params, rates)
        optimizer.update(gradient, own, variables, rates)
    for i in range(2):
        alone, its = constants(), {**optimizer.init(constants()), "iterations": counts[i]}
        for gradient in gradients(1 + i):
            alone, its = optimizer.update(gradient, its, alone, rates[i])
        assert_close(tf.nest.map_structure(lambda x, i=i: x[i], params), alone)
        assert_close(tf.nest.map_structure(lambda x, i=i: x[i], variables), alone)


@pytest.mark.parametrize(
    "make, expected",
    [
        (
            lambda: Adam(beta_1=2.0),
            "Adam.beta_1: expected a number of at least 0 and below 1, got 2",
        ),
        (lambda: Adam(beta_2=1.0), "Adam.beta_2: expected a number of at least 0 and below 1"),
        (lambda: Adam(epsilon=-1.0), "Adam.epsilon: expected a number of at least 0, got -1.0"),
        (lambda: AdamW(beta_1=-0.1), "AdamW.beta_1: expected"),
        (lambda: AdamW(weight_decay=-0.1), "AdamW.weight_decay: expected"),
        (lambda: RMSprop(rho=1.0), "RMSprop.rho: expected"),
        (lambda: RMSprop(centered="no"), "RMSprop.centered: expected True or False"),
        (lambda: SGD(momentum=1.5), "SGD.momentum: expected"),
        (lambda: SGD(nesterov=True), r"SGD\(momentum=0.9, nesterov=True\)"),
        (lambda: Lion(beta_2=float("nan")), "Lion.beta_2: expected"),
        (lambda: Lion(weight_decay=-1), "Lion.weight_decay: expected"),
    ],
)
def test_settings_out_of_bounds(make, expected):
    with pytest.raises(UserError, match=expected):
        make()


@pytest.mark.parametrize(
    ("gradients", "got"), [({"b": 1.0}, "b"), ({"a": None}, "none"), ({"a": 1.0, "b": 1.0}, "a, b")]
)
def test_gradients_of_another_structure(gradients, got):
    params = {"a": tf.constant(1.0)}
    adam = Adam()
    with pytest.raises(UserError, match=f"gradients: .* with the leaves a, got {got}\\. "):
        adam.update(gradients, adam.init(params), params, 0.1)


def test_adam_by_hand():
    """From zeros, the first step is lr g / (|g| + epsilon'): the sign of the gradient."""
    params = {"w": tf.constant([0.0, 0.0])}
    found, slots = Adam(epsilon=0.0).update(
        {"w": tf.constant([4.0, -0.5])}, Adam().init(params), params, 0.25
    )
    np.testing.assert_allclose(found["w"], [-0.25, 0.25], rtol=1e-5)
    np.testing.assert_allclose(slots["m"]["w"], [0.4, -0.05], rtol=1e-6)
    np.testing.assert_allclose(slots["v"]["w"], [0.016, 0.00025], rtol=1e-4)


def test_the_fused_step_is_keras_to_the_bit():
    """Keras' legacy Adam calls the same kernel with the same numbers."""
    params = tf.nest.map_structure(tf.Variable, start())
    optimizer = Adam(epsilon=1e-7)
    slots = tf.nest.map_structure(tf.Variable, optimizer.init(params))
    for gradient in gradients():
        optimizer.update(tf.nest.map_structure(tf.constant, gradient), slots, params, RATE)
    expected = by_keras(CASES["adam"][1])
    for name, value in expected.items():
        np.testing.assert_array_equal(params[name].numpy(), value)


def test_a_slot_without_a_name_is_an_error():
    @struct.logic_dataclass
    class Averaging(SGD):
        """Keeps an average that it does not list."""

        def init(self, params):
            return {**super().init(params), "average": params}

    with pytest.raises(UserError, match=r"Averaging.init returns: expected .*, got .*'average'"):
        BoundOptimizer(Averaging(), [tf.Variable(1.0)])
