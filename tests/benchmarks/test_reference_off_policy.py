"""The hand-written loops of the off-policy benchmarks do what the benchmarks say that they do."""

import gymnasium
import numpy as np
import pytest
import tensorflow as tf

from benchmarks import reference_off_policy as base
from benchmarks.reference_dqn import EVERY, ReferenceDQN
from benchmarks.reference_sac import ReferenceSAC
from benchmarks.reference_td3 import TAU, ReferenceTD3

KEY = tf.constant([1, 2])


def test_pendulum_is_gymnasiums():
    env, task = gymnasium.make("Pendulum-v1"), base.Pendulum()
    obs, _ = env.reset(seed=3)
    angle, speed = env.unwrapped.state
    state = tf.constant([[angle, speed, 0.0, 0.0]], tf.float32)
    np.testing.assert_allclose(task.observe(state)[0], obs, atol=1e-6)
    total = 0.0
    for action in (0.5, -1.0, 1.0, 0.1):
        state, reward, successor, (end, _) = task.step(state, tf.constant([[action]]), KEY)
        obs, expected, *_ = env.step(np.array([2 * action], np.float32))
        np.testing.assert_allclose(successor[0], obs, atol=1e-5)
        np.testing.assert_allclose(reward[0, 0], expected, rtol=1e-4)
        assert not end[0, 0]
        total += float(expected)
    np.testing.assert_allclose(state[0, 2:], [4.0, total], rtol=1e-4)


def test_pendulum_ends_after_200_steps():
    task = base.Pendulum()
    before = tf.constant([[0.5, 0.0, 199.0, -7.0]])
    state, reward, successor, (end, total) = task.step(before, tf.constant([[0.0]]), KEY)
    assert end[0, 0] and total[0, 0] == -7.0 + reward[0, 0]
    np.testing.assert_array_equal(state, task.reset(KEY))
    # The true successor, not the start: angle 0.5 + 0.05 * 0.75 sin(0.5) rad.
    np.testing.assert_allclose(successor[0, 0], np.cos(0.5 + 0.0375 * np.sin(0.5)), rtol=1e-5)


def test_cart_pole_is_gymnasiums():
    env, task = gymnasium.make("CartPole-v1"), base.CartPole()
    obs, _ = env.reset(seed=3)
    state = tf.constant([[*obs, 0.0]], tf.float32)
    for _ in range(100):
        state, discount, successor, (end, _) = task.step(state, tf.constant([[1.0]]), KEY)
        obs, _, fell, _, _ = env.step(1)
        np.testing.assert_allclose(successor[0], obs, atol=1e-5)
        assert bool(end[0, 0]) == fell
        if fell:
            break
        assert discount[0, 0] == np.float32(0.99)
    assert fell and discount[0, 0] == 0.0
    np.testing.assert_array_equal(state, task.reset(KEY))


def test_cart_pole_is_truncated_after_500_steps():
    state = tf.constant([[0.0, 0.0, 0.0, 0.0, 499.0]])
    _, discount, _, (end, length) = base.CartPole().step(state, tf.constant([[1.0]]), KEY)
    assert end[0, 0] and length[0, 0] == 500.0
    assert discount[0, 0] == np.float32(0.99)  # no termination


def test_the_ring_wraps_round_and_samples_what_is_there():
    ring = base.Ring(3, [1, 2])
    for i in range(2):
        ring.add(tf.constant(i), [tf.constant([[float(i)]]), tf.constant([[10.0 + i, 20.0 + i]])])
    first, second = ring.sample(tf.constant(1), KEY, 64)
    assert set(first.numpy()[:, 0]) == {0.0, 1.0}
    np.testing.assert_array_equal(second, np.concatenate([10 + first, 20 + first], 1))
    for i in range(2, 5):
        ring.add(tf.constant(i), [tf.constant([[float(i)]]), tf.zeros([1, 2])])
    np.testing.assert_array_equal(ring.rows[:, 0], [3.0, 4.0, 2.0])
    assert set(ring.sample(tf.constant(4), KEY, 64)[0].numpy()[:, 0]) == {2.0, 3.0, 4.0}


def test_both_kinds_of_adam_agree_with_numpy():
    gradients = [np.array([0.3, -2.0]), np.array([-0.1, 1.0])]
    m, v, expected = 0.0, 0.0, np.array([1.0, 2.0])
    for t, g in enumerate(gradients, 1):
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
        expected = expected - 0.01 * m / (1 - 0.9**t) / (np.sqrt(v / (1 - 0.999**t)) + 1e-8)
    for kind in ("fused", "keras"):
        variable = tf.Variable([1.0, 2.0])
        adam = base.Adam([variable], 0.01, kind)
        for g in gradients:
            adam.apply([tf.constant(g, tf.float32)])
        np.testing.assert_allclose(variable, expected, rtol=1e-5)


def test_stacked_networks_come_apart():
    params = base.network(0, [3, 8, 1], copies=2)
    assert [p.shape for p in params] == [[2, 3, 8], [2, 8], [2, 8, 1], [2, 1]]
    x = tf.random.stateless_normal([5, 3], KEY)
    for i, one in enumerate(base.each(base.values(params))):
        w, b, u, c = (p[i].numpy() for p in params)
        expected = np.maximum(x @ w + b, 0.0) @ u + c
        np.testing.assert_allclose(base.apply(one, x), expected, atol=1e-5)


def copies(variables):
    return [v.numpy() for v in variables]


def small(cls, mode):
    loop = cls(mode, capacity=64)
    loop.batch_size = 8
    return loop


@pytest.mark.parametrize("mode", ["graph, fused Adam", "graph, Keras Adam"])
def test_sac_trains_everything(mode):
    loop = small(ReferenceSAC, mode)
    trained = [*loop.actor, *loop.critic, loop.log_alpha]
    before, target = copies(trained), copies(loop.target)
    sums = loop.run(3)
    assert sums.shape == (6,) and np.all(np.isfinite(sums))
    assert all(np.any(v.numpy() != x) for v, x in zip(trained, before, strict=True))
    # Fresh policies are near the entropy of uniform play, log 2 nats, above the target of -1.
    assert float(loop.log_alpha) < 0.0
    for now, old, online in zip(loop.target, target, loop.critic, strict=True):
        moved, way = np.abs(now - old).max(), np.abs(online - old).max()
        assert 0.0 < moved < way
    rows = loop.ring.rows.numpy()
    assert np.any(rows[2]) and not np.any(rows[3])  # one step an iteration
    np.testing.assert_allclose(rows[0, -3:], rows[1, :3])  # the successor is seen next


def test_td3_delays_actor_and_targets():
    loop = small(ReferenceTD3, "graph, fused Adam")
    loop.run(1)  # iteration 0 is one of the actor
    slow = [*loop.actor, *loop.target_actor, *loop.target_critic]
    before, critic = copies(slow), copies(loop.critic)
    loop.run(1)
    assert all(np.array_equal(v, x) for v, x in zip(slow, before, strict=True))
    assert all(np.any(v != x) for v, x in zip(loop.critic, critic, strict=True))
    loop.run(1)
    kernels = [v for v in slow if len(v.shape) > 1]
    old = [x for x in before if x.ndim > 1]
    assert all(np.any(v != x) for v, x in zip(kernels, old, strict=True))
    n = len(loop.actor) + len(loop.target_actor)
    for now, then, online in zip(loop.target_critic, before[n:], loop.critic, strict=True):
        np.testing.assert_allclose(now, then + TAU * (online - then), atol=1e-6)


def test_dqn_copies_its_target_now_and_then():
    loop = small(ReferenceDQN, "graph, fused Adam")
    loop.done = EVERY - 1
    loop.run(2)
    for target, online in zip(loop.target, loop.online, strict=True):
        np.testing.assert_array_equal(target, online)
    before = copies(loop.target)
    loop.run(2)
    assert all(np.array_equal(t, x) for t, x in zip(loop.target, before, strict=True))
    assert any(np.any(t != v) for t, v in zip(before, copies(loop.online), strict=True))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("cls", "mode", "steps", "at_least"),
    [
        (ReferenceDQN, "xla, fused Adam", 8_000, 80.0),  # random play: 22
        (ReferenceSAC, "graph, fused Adam", 4_000, -400.0),  # random play: -1200
        (ReferenceTD3, "graph, fused Adam", 8_000, -900.0),
    ],
)
def test_the_loops_learn(cls, mode, steps, at_least):
    loop = cls(mode)
    loop.run(steps)
    *_, episodes, returns = loop.run(2_000)
    assert episodes > 0 and returns / episodes >= at_least
