"""Shared code of the hand-written off-policy loops: networks, Adam, ring buffer, two tasks, loop.

It imports no tfrl. Each loop makes one env step and one update per iteration and many iterations
per call; see `reference_sac`, `reference_td3` and `reference_dqn`.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tfrl.keras import api as keras

GAMMA = 0.99
MAX_CALL = 100_000  # iterations of one call, at most
Params = Sequence[Any]


def normal(key: tf.Tensor, shape: Sequence[int]) -> tf.Tensor:
    """Standard normal numbers, float32."""
    return tf.random.stateless_normal(shape, key, alg="philox")


def uniform(key: tf.Tensor, shape: Sequence[int], low: Any = 0.0, high: Any = 1.0) -> tf.Tensor:
    """Uniform numbers of `low`'s type in [low, high)."""
    low = tf.convert_to_tensor(low)
    return tf.random.stateless_uniform(shape, key, low, high, dtype=low.dtype, alg="philox")


def network(seed: int, sizes: Sequence[int], copies: int | None = None) -> list[tf.Variable]:
    """Kernels and biases, uniform within 1 / sqrt(inputs); `copies` stacks so many networks."""
    generator = tf.random.Generator.from_seed(seed)
    lead, params = [copies] if copies else [], []
    for n, m in zip(sizes[:-1], sizes[1:], strict=True):
        bound = 1.0 / math.sqrt(n)
        params.append(tf.Variable(generator.uniform([*lead, n, m], -bound, bound)))
        params.append(tf.Variable(tf.zeros([*lead, m])))
    return params


def apply(params: Params, x: tf.Tensor) -> tf.Tensor:
    """A ReLU network's output `[N, out]`."""
    for i in range(0, len(params) - 2, 2):
        x = tf.nn.relu(tf.nn.bias_add(tf.matmul(x, params[i]), params[i + 1]))
    return tf.nn.bias_add(tf.matmul(x, params[-2]), params[-1])


def values(variables: Params) -> list[tf.Tensor]:
    """Reads variables."""
    return [tf.convert_to_tensor(v) for v in variables]


def each(params: Params) -> list[list[tf.Tensor]]:
    """Unstacks networks: two-dimensional products are faster on a CPU."""
    return [list(one) for one in zip(*(tf.unstack(p) for p in params), strict=True)]


def follow(target: Params, params: Params, tau: float) -> None:
    """Moves target parameters."""
    for t, p in zip(target, params, strict=True):
        t.assign_sub(tau * (t - p))


def grad(loss: Callable[[list[tf.Tensor]], tuple[tf.Tensor, Any]], params: Params) -> Any:
    """Returns gradients at `params`, and the result of the loss."""
    taken = values(params)
    with tf.GradientTape(watch_accessed_variables=False) as tape:
        tape.watch(taken)
        value, extra = loss(taken)
    return tape.gradient(value, taken), value, extra


class Adam:
    """Adam with TensorFlow's fused kernel, or Keras' Adam."""

    def __init__(self, variables: Params, rate: float, kind: str = "fused"):
        """Makes the slots."""
        self.vars, self.rate, self.keras = list(variables), rate, None
        if kind == "keras":
            self.keras = keras.optimizers.Adam(rate, epsilon=1e-8)
            self.keras.build(self.vars)
            return
        self.m = [tf.Variable(tf.zeros_like(v)) for v in self.vars]
        self.v = [tf.Variable(tf.zeros_like(v)) for v in self.vars]
        self.count = tf.Variable(0.0)

    def apply(self, gradients: Sequence[tf.Tensor]) -> None:
        """Takes one step."""
        if self.keras is not None:
            self.keras.apply_gradients(zip(gradients, self.vars, strict=True))
            return
        t = self.count.assign_add(1.0)
        settings = {"lr": self.rate, "beta1": 0.9, "beta2": 0.999, "epsilon": 1e-8}
        powers = {"beta1_power": 0.9**t, "beta2_power": 0.999**t}
        for var, m, v, g in zip(self.vars, self.m, self.v, gradients, strict=True):
            tf.raw_ops.ResourceApplyAdam(
                var=var.handle, m=m.handle, v=v.handle, grad=g, **settings, **powers
            )


class Ring:
    """A replay buffer: one packed variable, because a column adds a scatter and a gather."""

    def __init__(self, capacity: int, widths: Sequence[int]):
        """Creates the variable; a row has parts of these widths."""
        self.capacity, self.widths = capacity, list(widths)
        self.rows = tf.Variable(tf.zeros([capacity, sum(widths)]))

    def add(self, i: tf.Tensor, parts: Sequence[tf.Tensor]) -> None:
        """Writes row `i`, from `[1, width]` each; before any `sample`, or XLA copies the buffer."""
        row = tf.concat(list(parts), axis=1)
        self.rows.scatter_update(tf.IndexedSlices(row, tf.reshape(i % self.capacity, [1])))

    def sample(self, i: tf.Tensor, key: tf.Tensor, size: int) -> list[tf.Tensor]:
        """Draws rows after row `i` was written; returns their parts."""
        index = uniform(key, [size], 0, tf.minimum(i + 1, self.capacity))
        return tf.split(tf.gather(self.rows, index), self.widths, axis=1)


class Pendulum:
    """Pendulum-v1, one environment; its state is angle, speed, steps so far and the return."""

    widths = [3, 1, 1, 3]  # observation, action in [-1, 1], reward, successor; no termination

    def reset(self, key: tf.Tensor) -> tf.Tensor:
        """Returns a start, float32 [1, 4]."""
        physics = uniform(key, [1, 2], -1.0, 1.0) * (math.pi, 1.0)
        return tf.pad(physics, [[0, 0], [0, 2]])

    def observe(self, state: tf.Tensor) -> tf.Tensor:
        """Returns the observation, [1, 3]."""
        angle, speed = state[:, :1], state[:, 1:2]
        return tf.concat([tf.cos(angle), tf.sin(angle), speed], axis=1)

    def step(self, state: tf.Tensor, action: tf.Tensor, key: tf.Tensor) -> tuple[Any, ...]:
        """Returns the state after autoreset, the reward, the true successor, the end's return."""
        angle, speed, steps, total = tf.split(state, 4, axis=1)
        torque = 2.0 * action
        wrapped = tf.math.floormod(angle + math.pi, 2 * math.pi) - math.pi
        reward = -(wrapped**2 + 0.1 * speed**2 + 0.001 * torque**2)
        speed = tf.clip_by_value(speed + 0.75 * tf.sin(angle) + 0.15 * torque, -8.0, 8.0)
        state = tf.concat([angle + 0.05 * speed, speed, steps + 1.0, total + reward], axis=1)
        end = steps + 1.0 >= 200.0
        after = tf.where(end, self.reset(key), state)
        return after, reward, self.observe(state), (end, state[:, 3:])


class CartPole:
    """CartPole-v1, one environment; its state is the physics, steps so far."""

    widths = [4, 1, 1, 4]  # observation, action, discount, successor; the reward is always 1

    def reset(self, key: tf.Tensor) -> tf.Tensor:
        """Returns a start, float32 [1, 5]."""
        return tf.pad(uniform(key, [1, 4], -0.05, 0.05), [[0, 0], [0, 1]])

    def observe(self, state: tf.Tensor) -> tf.Tensor:
        """Returns the observation, [1, 4]."""
        return state[:, :4]

    def step(self, state: tf.Tensor, action: tf.Tensor, key: tf.Tensor) -> tuple[Any, ...]:
        """Returns the results of `Pendulum.step`, with the discount in place of the reward."""
        x, v, a, w, steps = tf.split(state, 5, axis=1)
        force = 20.0 * action - 10.0
        cos, sin = tf.cos(a), tf.sin(a)
        push = (force + 0.05 * w**2 * sin) / 1.1
        turn = (9.8 * sin - cos * push) / (0.5 * (4.0 / 3.0 - 0.1 * cos**2 / 1.1))
        slide = push - 0.05 * turn * cos / 1.1
        x, v, a, w = x + 0.02 * v, v + 0.02 * slide, a + 0.02 * w, w + 0.02 * turn
        state = tf.concat([x, v, a, w, steps + 1.0], axis=1)
        fell = (tf.abs(x) > 2.4) | (tf.abs(a) > math.radians(12))
        end = fell | (steps + 1.0 >= 500.0)
        after = tf.where(end, self.reset(key), state)
        return after, tf.where(fell, 0.0, GAMMA), state[:, :4], (end, state[:, 4:])


class OffPolicyLoop:
    """Holds a task, a ring and counters; `run(n)` runs n iterations in one call.

    A subclass has `act(obs, keys)` and `update(rows, keys)`, which returns metrics.
    """

    batch_size = 256
    streams = 6  # keys of one iteration

    def __init__(self, task: Any, capacity: int, jit: bool, seed: int = 0):
        """Makes the ring; the first `run` compiles."""
        self.task, self.seed = task, seed
        self.ring = Ring(capacity, task.widths)
        self.done = 0
        self.state = task.reset(tf.constant([seed, 99]))
        self._run = tf.function(self._loop, jit_compile=jit, autograph=False)

    def act(self, obs: tf.Tensor, keys: Any) -> tf.Tensor:
        """Returns the action of an observation."""
        raise NotImplementedError

    def update(self, i: tf.Tensor, rows: list[tf.Tensor], keys: Any) -> list[tf.Tensor]:
        """Takes one learner step; returns scalars to report."""
        raise NotImplementedError

    def _iteration(self, i: tf.Tensor, state: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        # One draw creates all keys of an iteration.
        keys = tf.unstack(
            tf.random.stateless_uniform(
                [self.streams, 2], tf.stack([self.seed, i]), None, None, tf.int32, "philox"
            )
        )
        obs = self.task.observe(state)
        action = self.act(obs, keys)
        state, signal, successor, (end, total) = self.task.step(state, action, keys[0])
        self.ring.add(i, [obs, action, signal, successor])
        metrics = self.update(i, self.ring.sample(i, keys[1], self.batch_size), keys)
        ended = tf.cast(end[0, 0], tf.float32)
        return state, tf.stack([*metrics, ended, ended * total[0, 0]])

    def _loop(self, start: tf.Tensor, n: tf.Tensor, state: tf.Tensor) -> tuple[Any, Any]:
        width = self._width
        _, state, total = tf.while_loop(
            lambda i, *_: i < start + n,
            lambda i, state, total: (
                i + 1,
                *(lambda s, m: (s, total + m))(*self._iteration(i, state)),
            ),
            (start, state, tf.zeros([width])),
            maximum_iterations=MAX_CALL,
            parallel_iterations=1,
        )
        return state, total

    _width = 5

    def run(self, iterations: int) -> Any:
        """Runs iterations; returns the sums of their metrics, episodes and returns."""
        self.state, total = self._run(tf.constant(self.done), tf.constant(iterations), self.state)
        self.done += iterations
        return total.numpy()
