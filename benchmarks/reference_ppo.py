"""A hand-written single-file PPO on CartPole: the reference of `benchmarks.ppo`.

It imports no tfrl. It does the same work: true successors with both end flags and their values
V(next_obs), GAE, shuffled minibatches, clipped losses, a global-norm clip, Adam, a finite guard and
ten metrics per row. `MODES` are its compile modes.
"""

import math
import time

import tensorflow as tf

MODES = ("fused", "hybrid", "graph")
EPOCHS, MINIBATCHES, HORIZON = 4, 4, 128
GAMMA, LAMBDA, CLIP, VALUE_COEF, ENTROPY_COEF, MAX_NORM, RATE = (
    0.99, 0.95, 0.2, 0.5, 0.01, 0.5, 2.5e-4,
)  # fmt: skip
HALF_PI_12 = 12 * 2 * math.pi / 360


def _uniform(key, shape, low=0.0, high=1.0):
    return tf.random.stateless_uniform(shape, key, minval=low, maxval=high, alg="philox")


def _physics(s, action):
    x, v, a, w = tf.unstack(s, axis=1)
    force = tf.where(action == 1, 10.0, -10.0)
    cos, sin = tf.cos(a), tf.sin(a)
    temp = (force + 0.05 * tf.square(w) * sin) / 1.1
    acc = (9.8 * sin - cos * temp) / (0.5 * (4.0 / 3.0 - 0.1 * tf.square(cos) / 1.1))
    xacc = temp - 0.05 * acc * cos / 1.1
    s = tf.stack([x + 0.02 * v, v + 0.02 * xacc, a + 0.02 * w, w + 0.02 * acc], axis=1)
    return s, (tf.abs(s[:, 0]) > 2.4) | (tf.abs(s[:, 2]) > HALF_PI_12)


def _net(p, x):
    x = tf.tanh(tf.matmul(x, p[0]) + p[1])
    x = tf.tanh(tf.matmul(x, p[2]) + p[3])
    return tf.matmul(x, p[4]) + p[5]


class ReferencePPO:
    """Holds the variables; `run(n)` runs n iterations in one call."""

    def __init__(self, num_envs, mode="fused", seed=0):
        """Makes the parameters and compiles for `mode`."""
        self.b, self.mode = num_envs, mode
        tf.random.set_seed(seed)
        gen = tf.random.Generator.from_seed(seed)

        def layer(n, m, scale):
            q, _ = tf.linalg.qr(gen.normal([max(n, m), min(n, m)]))
            q = tf.transpose(q) if n < m else q
            return [tf.Variable(scale * q), tf.Variable(tf.zeros([m]))]

        r2 = math.sqrt(2.0)
        self.pi = layer(4, 64, r2) + layer(64, 64, r2) + layer(64, 2, 0.01)
        self.vf = layer(4, 64, r2) + layer(64, 64, r2) + layer(64, 1, 1.0)
        self.vars = self.pi + self.vf
        self.m = [tf.Variable(tf.zeros_like(v)) for v in self.vars]
        self.v = [tf.Variable(tf.zeros_like(v)) for v in self.vars]
        self.t = tf.Variable(0.0)
        rollout, update = self._rollout, self._update
        if mode == "hybrid":
            rollout = tf.function(self._rollout, jit_compile=True, autograph=False)
        self._parts = (rollout, update)
        self._run = tf.function(self._loop, jit_compile=(mode == "fused"), autograph=False)
        obs = _uniform([seed, 1], [num_envs, 4], -0.05, 0.05)
        zeros = tf.zeros([num_envs])
        self.state = (obs, tf.zeros([num_envs], tf.int32), zeros, tf.constant([seed, 7]))

    def _rollout(self, params, state):
        n = HORIZON
        key = state[3]
        keys = tf.random.stateless_uniform(
            [n, 2, 2], key, minval=None, maxval=None, dtype=tf.int32, alg="philox"
        )
        kinds = [tf.float32, tf.int32, tf.float32, tf.bool, tf.bool, tf.float32, tf.float32]
        shapes = [[self.b, 4], [self.b], [self.b], [self.b], [self.b], [self.b, 4], [self.b]]
        arrays = [tf.TensorArray(k, n, element_shape=s) for k, s in zip(kinds, shapes, strict=True)]

        def body(t, obs, steps, ret, arrays):
            logits = _net(params[:6], obs)
            logp = tf.nn.log_softmax(logits)
            k = keys[t]
            u = _uniform(k[0], [self.b, 1])
            action = tf.cast(u[:, 0] > tf.exp(logp[:, 0]), tf.int32)
            lp = tf.where(action == 1, logp[:, 1], logp[:, 0])
            nxt, term = _physics(obs, action)
            steps = steps + 1
            trunc = steps >= 500
            ret = ret + 1.0
            done = term | trunc
            fresh = _uniform(k[1], [self.b, 4], -0.05, 0.05)
            row = (obs, action, lp, term, trunc, nxt, tf.where(done, ret, 0.0))
            arrays = [a.write(t, r) for a, r in zip(arrays, row, strict=True)]
            obs = tf.where(done[:, None], fresh, nxt)
            return (
                t + 1, obs, tf.where(done, 0, steps), tf.where(done, 0.0, ret), arrays,
            )  # fmt: skip

        _, obs, steps, ret, arrays = tf.while_loop(
            lambda t, *_: t < n, body, (0, state[0], state[1], state[2], arrays),
            maximum_iterations=n,
        )  # fmt: skip
        next_key = tf.bitwise.bitwise_xor(keys[0, 0], keys[-1, 1])
        rows = [a.stack() for a in arrays]
        obs_t, action, lp, term, trunc, nxt, final = rows
        values = _net(params[6:], tf.reshape(tf.concat([obs_t, nxt], 0), [-1, 4]))
        values = tf.reshape(values, [2, n, self.b])
        value, next_value = values[0], values[1]
        delta = 1.0 + GAMMA * (1.0 - tf.cast(term, tf.float32)) * next_value - value
        keep = GAMMA * LAMBDA * (1.0 - tf.cast(term | trunc, tf.float32))

        def back(t, acc, arr):
            acc = delta[t] + keep[t] * acc
            return t - 1, acc, arr.write(t, acc)

        arr = tf.TensorArray(tf.float32, n, element_shape=[self.b])
        _, _, arr = tf.while_loop(
            lambda t, *_: t >= 0, back, (n - 1, tf.zeros([self.b]), arr), maximum_iterations=n
        )
        adv = arr.stack()
        done = term | trunc
        stats = tf.stack([tf.reduce_sum(final), tf.reduce_sum(tf.cast(done, tf.float32))])
        flat = lambda x: tf.reshape(x, [-1, *x.shape[2:]])  # noqa: E731
        data = [flat(x) for x in (obs_t, action, lp, adv, adv + value)]
        return data, (obs, steps, ret, next_key), stats

    def _loss(self, params, obs, action, old_lp, adv, target):
        logp = tf.nn.log_softmax(_net(params[:6], obs))
        lp = tf.where(action == 1, logp[:, 1], logp[:, 0])
        log_ratio = lp - old_lp
        ratio = tf.exp(log_ratio)
        adv = (adv - tf.reduce_mean(adv)) / (tf.math.reduce_std(adv) + 1e-8)
        clipped = tf.clip_by_value(ratio, 1 - CLIP, 1 + CLIP)
        pg = -tf.reduce_mean(tf.minimum(ratio * adv, clipped * adv))
        value = _net(params[6:], obs)[:, 0]
        vl = 0.5 * tf.reduce_mean(tf.square(value - target))
        ent = -tf.reduce_mean(tf.reduce_sum(tf.exp(logp) * logp, axis=1))
        kl = tf.reduce_mean(ratio - 1.0 - log_ratio)
        frac = tf.reduce_mean(tf.cast(tf.abs(ratio - 1.0) > CLIP, tf.float32))
        ev = 1.0 - tf.math.reduce_variance(target - value) / tf.math.reduce_variance(target)
        return pg + VALUE_COEF * vl - ENTROPY_COEF * ent, [pg, vl, ent, kl, frac, ev]

    def _update(self, data, key):
        n = HORIZON * self.b
        size = n // MINIBATCHES

        def step(i, perm, acc):
            # tf.slice, because a Python slice would have a dynamic length under XLA.
            idx = tf.slice(perm, [i * size], [size])
            batch = [tf.gather(x, idx) for x in data]
            params = [tf.convert_to_tensor(v) for v in self.vars]
            with tf.GradientTape(watch_accessed_variables=False) as tape:
                tape.watch(params)
                loss, metrics = self._loss(params, *batch)
            grads = tape.gradient(loss, params)
            grads, norm = tf.clip_by_global_norm(grads, MAX_NORM)
            finite = tf.math.is_finite(norm) & tf.math.is_finite(loss)
            self._adam(grads, finite)
            return acc + tf.stack([loss, norm, tf.cast(finite, tf.float32), *metrics])

        def epoch(e, acc):
            k = tf.bitwise.bitwise_xor(key, tf.stack([e, e + 1]))
            perm = tf.argsort(_uniform(k, [n]))
            return tf.while_loop(
                lambda i, *_: i < MINIBATCHES,
                lambda i, acc: (i + 1, step(i, perm, acc)),
                (0, acc),
                maximum_iterations=MINIBATCHES,
            )[1]

        acc = tf.while_loop(
            lambda e, *_: e < EPOCHS,
            lambda e, acc: (e + 1, epoch(e, acc)),
            (0, tf.zeros([9])),
            maximum_iterations=EPOCHS,
        )[1]
        return acc / (EPOCHS * MINIBATCHES)

    def _adam(self, grads, finite):
        def apply():
            self.t.assign_add(1.0)
            b1, b2 = 0.9**self.t, 0.999**self.t
            for v, m, s, g in zip(self.vars, self.m, self.v, grads, strict=True):
                tf.raw_ops.ResourceApplyAdam(
                    var=v.handle, m=m.handle, v=s.handle, beta1_power=b1, beta2_power=b2,
                    lr=RATE, beta1=0.9, beta2=0.999, epsilon=1e-5, grad=g,
                )  # fmt: skip
            return tf.constant(0)

        tf.cond(finite, apply, lambda: tf.constant(0))

    def _loop(self, n, state):
        rows = tf.TensorArray(tf.float32, 512, element_shape=[11])

        def body(i, state, rows):
            params = [tf.convert_to_tensor(v) for v in self.vars]
            data, state, stats = self._parts[0](params, state)
            metrics = self._parts[1](data, state[3])
            return i + 1, state, rows.write(i, tf.concat([metrics, stats], 0))

        _, state, rows = tf.while_loop(
            lambda i, *_: i < n, body, (0, state, rows), parallel_iterations=1
        )
        return state, rows.stack()

    def run(self, iterations):
        """Runs `iterations` (at most 512) and returns the metric rows."""
        self.state, rows = self._run(tf.constant(iterations), self.state)
        return rows[:iterations].numpy()


def measure(num_envs, mode, seconds=2.0):
    """Returns env steps per second of one mode, after warming up."""
    ppo = ReferencePPO(num_envs, mode)
    start = time.perf_counter()
    ppo.run(1)
    compile_seconds = time.perf_counter() - start
    start = time.perf_counter()
    ppo.run(2)
    n = max(1, min(512, int(seconds / ((time.perf_counter() - start) / 2))))
    start = time.perf_counter()
    rows = ppo.run(n)
    rate = n * HORIZON * num_envs / (time.perf_counter() - start)
    return rate, compile_seconds, rows


if __name__ == "__main__":
    for envs in (4, 64, 1024):
        for m in MODES:
            rate, comp, rows = measure(envs, m)
            ret = rows[-5:, 9].sum() / max(rows[-5:, 10].sum(), 1)
            print(f"{envs:5d} {m:7s} {rate:9.0f} steps/s  first call {comp:.1f}s  return {ret:.1f}")
