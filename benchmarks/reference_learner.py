"""A hand-written loop over minibatches: the reference of `benchmarks.learner`.

It imports no tfrl. `ReferenceLearner` runs all gradient steps of an update in one tf.function: a
new shuffle in every epoch, gathering, loss and gradient, a global-norm clip, and Adam with
TensorFlow's fused kernel and a variable learning rate. With `guarded` it also does a Learner's work
of every step: it skips a step with a non-finite loss or gradient, and returns the means of the
metrics over the finite steps and their number. The loss is an argument.

`bare_ppo` creates one with its own PPO loss for vectors and discrete actions, without guard and
metrics: the minimum of work.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

CLIP, VALUE_COEF, ENTROPY_COEF, MAX_NORM, RATE = 0.2, 0.5, 0.01, 0.5, 3e-4

# loss(params, rows) -> (scalar, list of scalars to report)
Loss = Callable[[list[tf.Tensor], list[tf.Tensor]], tuple[tf.Tensor, list[tf.Tensor]]]


class ReferenceLearner:
    """Holds parameters and slots of Adam; `update(batch)` trains on a batch of columns."""

    def __init__(
        self,
        params: Sequence[tf.Tensor],
        loss: Loss,
        *,
        rows: int,
        minibatch_size: int,
        epochs: int,
        guarded: bool,
        jit: bool,
    ):
        """Makes the variables; the first `update` compiles."""
        self.vars = [tf.Variable(x) for x in params]
        self.m = [tf.Variable(tf.zeros_like(x)) for x in params]
        self.v = [tf.Variable(tf.zeros_like(x)) for x in params]
        self.rate, self.count = tf.Variable(RATE), tf.Variable(0.0)
        self.loss, self.guarded = loss, guarded
        self.rows, self.size, self.epochs = rows, minibatch_size, epochs
        self.steps = rows // minibatch_size * epochs
        self._update = tf.function(self._all_epochs, jit_compile=jit, autograph=False)

    def update(self, batch: list[tf.Tensor]) -> Any:
        """Runs `steps` gradient steps; returns the reported scalars, as NumPy."""
        return self._update(batch).numpy()

    def _all_epochs(self, batch: list[tf.Tensor]) -> tf.Tensor:
        orders = [tf.random.shuffle(tf.range(self.rows)) for _ in range(self.epochs)]
        index = tf.reshape(tf.stack(orders), [self.steps, self.size])
        # The first step's report gives the number of scalars; the graph prunes the rest.
        width = self._step(batch, index[0], apply=False).shape
        _, total = tf.while_loop(
            lambda i, _: i < self.steps,
            lambda i, total: (i + 1, total + self._step(batch, index[i])),
            (tf.constant(0), tf.zeros(width)),
            maximum_iterations=self.steps,
        )
        return tf.concat([total[0] / total[1], total[1]], 0) if self.guarded else total

    def _step(self, batch: list[tf.Tensor], index: tf.Tensor, apply: bool = True) -> tf.Tensor:
        rows = [tf.gather(x, index) for x in batch]
        params = [tf.convert_to_tensor(v) for v in self.vars]
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(params)
            loss, metrics = self.loss(params, rows)
        gradients = tape.gradient(loss, params)
        norm = tf.linalg.global_norm(gradients)
        factor = MAX_NORM / tf.maximum(norm, MAX_NORM)
        gradients = [g * factor for g in gradients]
        if not self.guarded:
            if apply:
                self._adam(gradients)
            return loss
        if apply:
            good = tf.math.is_finite(loss) & tf.math.is_finite(norm)
            tf.cond(good, lambda: self._adam(gradients), lambda: tf.constant(0))
        values = tf.stack([loss, norm, *metrics])
        finite = tf.math.is_finite(values)
        return tf.stack([tf.where(finite, values, 0.0), tf.cast(finite, tf.float32)])

    def _adam(self, gradients: list[tf.Tensor]) -> tf.Tensor:
        t = self.count.assign_add(1.0)
        settings = {"lr": self.rate, "beta1": 0.9, "beta2": 0.999, "epsilon": 1e-5}
        powers = {"beta1_power": 0.9**t, "beta2_power": 0.999**t}
        for var, m, v, g in zip(self.vars, self.m, self.v, gradients, strict=True):
            tf.raw_ops.ResourceApplyAdam(
                var=var.handle, m=m.handle, v=v.handle, grad=g, **settings, **powers
            )
        return tf.constant(0)


def bare_ppo(obs_size: int, actions: int, hidden: tuple[int, ...], **sizes: Any) -> Any:
    """Returns a `ReferenceLearner` with this module's PPO loss, without guard and metrics.

    Its batch is `[obs, action, log_prob, advantage, value_target]`.
    """
    generator = tf.random.Generator.from_seed(0)
    policy = _network(generator, [obs_size, *hidden, actions], last=0.01)
    value = _network(generator, [obs_size, *hidden, 1], last=1.0)
    n = len(policy)

    def loss(params: list[tf.Tensor], rows: list[tf.Tensor]) -> Any:
        obs, action, old_log_prob, advantage, target = rows
        log_probs = tf.nn.log_softmax(_apply(params[:n], obs))
        ratio = tf.exp(tf.gather(log_probs, action, batch_dims=1) - old_log_prob)
        mean = tf.reduce_mean(advantage)
        deviation = tf.sqrt(tf.reduce_mean(tf.square(advantage - mean)))
        advantage = (advantage - mean) / (deviation + 1e-8)
        clipped = tf.clip_by_value(ratio, 1.0 - CLIP, 1.0 + CLIP)
        policy_loss = -tf.reduce_mean(tf.minimum(ratio * advantage, clipped * advantage))
        error = tf.reduce_mean(tf.square(_apply(params[n:], obs)[:, 0] - target))
        entropy = -tf.reduce_mean(tf.reduce_sum(tf.exp(log_probs) * log_probs, axis=1))
        return policy_loss + VALUE_COEF * 0.5 * error - ENTROPY_COEF * entropy, []

    return ReferenceLearner(policy + value, loss, guarded=False, **sizes)


def _network(generator: Any, sizes: list[int], last: float) -> list[tf.Tensor]:
    """Kernels and biases of a tanh network, orthogonal."""
    params = []
    for i, (n, m) in enumerate(zip(sizes[:-1], sizes[1:], strict=True)):
        q, _ = tf.linalg.qr(generator.normal([max(n, m), min(n, m)]))
        scale = last if i == len(sizes) - 2 else math.sqrt(2.0)
        params += [scale * (tf.transpose(q) if n < m else q), tf.zeros([m])]
    return params


def _apply(params: list[tf.Tensor], x: tf.Tensor) -> tf.Tensor:
    for kernel, bias in zip(params[:-2:2], params[1:-2:2], strict=True):
        x = tf.tanh(tf.matmul(x, kernel) + bias)
    return tf.matmul(x, params[-2]) + params[-1]
