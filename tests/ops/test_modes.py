"""Every function of ops gives eagerly, in a graph and compiled by XLA the same."""

import functools

import numpy as np
import pytest
import tensorflow as tf

from tfrl import ops, seeding
from tfrl.ops import _rows, statistics

pytestmark = pytest.mark.usefixtures("grappler")

NAN = np.float32("nan")
RNG = np.random.default_rng(0)
MASK = np.array([[1, 1, 0], [1, 1, 1], [0, 1, 1], [1, 1, 0], [1, 0, 0]], bool)


def floats(*shape, masked=False):
    """Random numbers, NaN in the masked rows of `[5, 3, ...]`."""
    x = RNG.normal(size=shape).astype(np.float32)
    return np.where(MASK.reshape([5, 3] + [1] * (len(shape) - 2)), x, NAN) if masked else x


def rows(*names):
    """Time-major rows with ends, and NaN where they are masked."""
    found = {name: floats(5, 3, masked=True) for name in ("reward", *names)}
    ends = RNG.random([2, 5, 3]) < 0.3
    return {**found, "termination": ends[0], "truncation": ends[1], "mask": MASK}


def with_gradients(fn, *names):
    """The function with its gradients by the named inputs."""

    def run(**inputs):
        with tf.GradientTape() as tape:
            tape.watch([inputs[n] for n in names])
            found = fn(**inputs)
            loss = tf.nest.flatten(found)[0]
        return found, tape.gradient(loss, [inputs[n] for n in names])

    return run


def with_options(fn, **options):
    return functools.partial(fn, **options)


STATISTICS = {
    "image": tf.TensorSpec([2], tf.uint8),
    "speed": tf.TensorSpec([2]),
    "half": tf.TensorSpec([], tf.float16),
}
WRONG = floats(64, 2)
WRONG[[3, 9, 9, 20, 50], [0, 0, 1, 1, 0]] = [1e20, -np.inf, np.nan, 3e38, 1e-40]
HUGE = np.random.default_rng(0).uniform(-3e38, 3e38, [64, 2]).astype(np.float32)
SCHEDULES = {
    "constant": 0.3,
    "linear": ops.LinearSchedule(1, 3, 10),
    "piecewise": [[0, 1.0], [10, 0.5], [20, 2.5]],
    "exponential": ops.ExponentialSchedule(8, 0.5, 10, 3),
    "cosine": ops.CosineSchedule(1, 0.2, 10),
}


def update_in_parts(rows):
    stats = statistics.update(
        statistics.init(tf.TensorSpec([2])), tf.reshape(rows[:40], [4, 10, 2])
    )
    stats = statistics.update(stats, rows[40])
    return statistics.update(stats, rows[41:])


def update_masked(weights, mask, **batch):
    stats = statistics.update(statistics.init(STATISTICS), batch, mask=mask)
    stats = statistics.update(stats, batch, mask=mask, weights=weights)
    normalized = statistics.normalize(stats, batch)
    return stats, normalized, statistics.denormalize(stats, normalized)


def update_by_what_is_wrong(rows):
    stats = statistics.update(statistics.init(tf.TensorSpec([2])), rows[:32])
    counted = statistics.count_outliers(stats, rows[32:])
    return counted, statistics.update(stats, rows[32:])


def merge_stacked(**stats):
    return statistics.merge_stacked(statistics.RunningStatistics(**stats))


def reductions(x, mask):
    return (
        ops.masked_sum(x, mask),
        ops.masked_mean(x, mask),
        ops.masked_mean_std(x, mask),
        ops.explained_variance(x, 2.0 * x + 1.0, mask),
        ops.normalize_advantage(x, mask),
        ops.valid_count(x, mask),
    )


def q_rows(*names):
    found = {name: floats(5, 3, 4, masked=True) for name in ("q", "next_q", *names)}
    found["action"] = np.where(MASK, RNG.integers(4, size=[5, 3]), -7)
    found["reward"] = floats(5, 3, masked=True)
    ends = RNG.random([2, 5, 3]) < 0.3
    return {**found, "termination": ends[0], "mask": MASK}


def retrace_rows():
    pi = floats(5, 3, 4) ** 2 + 0.1
    found = {**q_rows(), "next_pi": (pi / pi.sum(-1, keepdims=True)).astype(np.float32)}
    found["next_mu"] = RNG.uniform(0.1, 1, [5, 3]).astype(np.float32)
    next_action = RNG.integers(4, size=[5, 3])
    return {**found, "next_action": next_action, "truncation": RNG.random([5, 3]) < 0.3}


LOG_PROBS = {name: floats(5, 3, masked=True) for name in ("log_prob", "old_log_prob")}
VALUES = {name: floats(5, 3, masked=True) for name in ("value", "old_value", "target")}
# What is not exact has a tolerance.
CASES = {
    **{
        f"linear_recurrence_of_{n}": (
            _rows.linear_recurrence,
            {"a": RNG.uniform(-1, 1, [n, 3]).astype(np.float32), "b": floats(n, 3)},
        )
        for n in (1, 9, 65)
    },
    "gae": (with_options(ops.gae, discount=0.95, lambda_=0.9), rows("value", "next_value")),
    "lambda_returns": (
        with_options(ops.lambda_returns, discount=0.95, lambda_=0.7),
        rows("next_value"),
    ),
    "n_step_returns": (with_options(ops.n_step_returns, discount=0.95, n=3), rows("next_value")),
    "discounted_returns": (with_options(ops.discounted_returns, discount=0.95), rows()),
    "vtrace": (
        with_options(ops.vtrace, discount=0.95, lambda_=0.7, clip_rho=0.8, clip_pg_rho=1.5),
        {**rows("value", "next_value"), "rho": np.exp(floats(5, 3, masked=True))},
    ),
    "retrace": (with_options(ops.retrace, discount=0.95, lambda_=0.9), retrace_rows()),
    "reductions": (with_gradients(reductions, "x"), {"x": VALUES["value"], "mask": MASK}),
    "reductions_of_no_row": (reductions, {"x": np.full([3, 2], NAN), "mask": np.zeros([3], bool)}),
    "policy_gradient_loss": (
        with_gradients(ops.policy_gradient_loss, "log_prob"),
        {"log_prob": LOG_PROBS["log_prob"], "advantage": floats(5, 3, masked=True), "mask": MASK},
    ),
    "ppo_clip_loss": (
        with_gradients(ops.ppo_clip_loss, "log_prob"),
        {**LOG_PROBS, "advantage": floats(5, 3), "mask": MASK, "clip": np.float32(0.2)},
    ),
    "divergences": (
        lambda **inputs: [f(**inputs) for f in (ops.kl_k1, ops.kl_k2, ops.kl_k3)],
        {**LOG_PROBS, "mask": MASK},
    ),
    "value_loss": (
        with_gradients(ops.value_loss, "value"),
        {"value": VALUES["value"], "target": VALUES["target"], "mask": MASK},
    ),
    "clipped_value_loss": (
        with_gradients(with_options(ops.clipped_value_loss, clip=0.3), "value"),
        {**VALUES, "mask": MASK},
    ),
    "q_learning_loss": (
        with_gradients(with_options(ops.q_learning_loss, discount=0.9), "q"),
        q_rows(),
    ),
    "double_q_learning_loss": (
        with_gradients(with_options(ops.double_q_learning_loss, discount=0.9), "q"),
        q_rows("next_q_selector"),
    ),
    "expected_sarsa_loss": (
        with_gradients(with_options(ops.expected_sarsa_loss, discount=0.9), "q"),
        q_rows("next_pi"),
    ),
    "quantile_huber_loss": (
        with_gradients(ops.quantile_huber_loss, "quantiles"),
        {"quantiles": floats(5, 4), "targets": floats(5, 3), "mask": MASK[:, 0]},
    ),
    "mask_action_values": (
        ops.mask_action_values,
        {
            "values": np.float32([[1, 2, 3], [-5, 7, 1e8]]),
            "mask": np.array([[True, False, True], [False, False, False]]),
        },
    ),
    "where": (
        _rows.where,
        {"condition": np.array([1, 0, 1], bool), "x": floats(3, 5), "y": np.float32(7)},
    ),
    "ranks_of_ties": (
        ops.centered_ranks,
        {"fitness": RNG.integers(0, 20, 100).astype(np.float32)},
    ),
    "ranks_under_a_mask": (
        ops.centered_ranks,
        {
            "fitness": np.float32([[2, NAN, np.inf, -np.inf, 1e-30], [-0.0, 0.0, -1, NAN, 5]]),
            "mask": np.array([[True] * 5, [True] * 4 + [False]]),
        },
    ),
    **{
        f"permutation_of_{n}": (with_options(ops.permutation, n=n), {"key": seeding.key(n)})
        for n in (1, 100, 257, 65537)
    },
    "schedules": (
        lambda steps: {k: ops.make_schedule(s)(steps) for k, s in SCHEDULES.items()},
        {"steps": np.array([0, 1, 5, 10, 15, 99, 10**12])},
    ),
    "statistics_in_parts": (update_in_parts, {"rows": 2.0 + 3.0 * floats(60, 2)}),
    "statistics_of_nests": (
        update_masked,
        {
            "image": RNG.integers(0, 255, [5, 3, 2]).astype(np.uint8),
            "speed": 5.0 + floats(5, 3, 2),
            "half": floats(5, 3).astype(np.float16),
            "weights": floats(5, 3, masked=True) ** 2,
            "mask": MASK,
        },
    ),
    "statistics_of_what_is_wrong": (update_by_what_is_wrong, {"rows": WRONG}),
    "statistics_of_1e38": (update_by_what_is_wrong, {"rows": HUGE}),
    "merged_statistics": (
        merge_stacked,
        {
            "count": np.array([5.0, 1.0, 0.0]),
            "mean": RNG.normal(size=[3, 2]),
            "m2": RNG.random([3, 2]),
        },
    ),
}
EXACT = ("permutation", "where", "ranks", "mask_action_values")


def run(inputs):
    return {name: fn(**inputs[name]) for name, (fn, _) in CASES.items()}


@pytest.fixture(name="found", scope="module")
def fixture_found():
    """`{mode: {case: result}}`."""
    inputs = tf.nest.map_structure(tf.convert_to_tensor, {k: x for k, (_, x) in CASES.items()})
    return {
        "eager": run(inputs),
        "graph": tf.function(run, autograph=False)(inputs),
        "xla": tf.function(run, autograph=False, jit_compile=True)(inputs),
    }


@pytest.mark.parametrize("mode", ["graph", "xla"])
@pytest.mark.parametrize("name", CASES)
def test_it_gives_what_it_gives_eagerly(found, name, mode):
    expected, got = found["eager"][name], found[mode][name]
    tf.nest.assert_same_structure(got, expected)
    tolerance = 0.0 if name.startswith(EXACT) else 1e-5
    for x, y in zip(tf.nest.flatten(got), tf.nest.flatten(expected), strict=True):
        assert (x.dtype, x.shape) == (y.dtype, y.shape)
        np.testing.assert_allclose(x, y, rtol=tolerance, atol=tolerance)
