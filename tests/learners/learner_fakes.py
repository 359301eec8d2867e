"""Small agents and modules with losses whose gradients are known."""

import numpy as np
import tensorflow as tf

from tfrl import seeding, struct
from tfrl.agents.core import Agent, Update
from tfrl.keras import api as keras
from tfrl.learners import Learner, Module, ModuleConfig
from tfrl.loading import loadable
from tfrl.types import ActionOutput, AgentState


@loadable
@struct.logic_dataclass
class SumAgent(Agent):
    """Its loss is the sum of all parameters, plus next to nothing of the batch."""

    obs_spec: tf.TensorSpec = tf.TensorSpec([2], tf.float32)
    action_spec: tf.TensorSpec = tf.TensorSpec([], tf.float32)
    stop_above: float | None = None

    def init(self, key):
        return AgentState(
            params={
                "a": {"kernel": seeding.normal(key, [3, 2]), "bias": tf.zeros([2])},
                "b": tf.ones([4]),
            },
            extra={"seen": tf.constant(0, tf.int64)},
        )

    def compute_actions(self, state, obs, key, carry=None):
        return ActionOutput(action=tf.zeros([obs.shape[0]]))

    evaluate_actions = compute_actions

    @property
    def updates(self):
        return (Update(name="sum", groups=("a", "b"), loss=self.loss),)

    def loss(self, params, state, batch, key):
        total = tf.add_n([tf.reduce_sum(x) for x in tf.nest.flatten(params)])
        noise = tf.reduce_mean(batch["x"])
        return total + 1e-12 * noise, {"mean_x": noise}

    def before_update(self, state, timesteps):
        return state.replace(extra={"seen": timesteps})

    def should_stop(self, metrics):
        return None if self.stop_above is None else metrics["mean_x"] > self.stop_above


@loadable
@struct.logic_dataclass
class RegressionAgent(Agent):
    """Least squares y = w x, with an actor group that a second update trains less often."""

    obs_spec: tf.TensorSpec = tf.TensorSpec([2], tf.float32)
    action_spec: tf.TensorSpec = tf.TensorSpec([], tf.float32)
    delay: int = 2

    def init(self, key):
        return AgentState(params={"critic": tf.zeros([2]), "actor": tf.zeros([2])})

    def compute_actions(self, state, obs, key, carry=None):
        return ActionOutput(action=tf.linalg.matvec(obs, state.params["actor"]))

    evaluate_actions = compute_actions

    @property
    def updates(self):
        return (
            Update(name="critic", groups=("critic",), loss=self.critic_loss),
            Update(name="actor", groups=("actor",), loss=self.actor_loss, every=self.delay),
        )

    def critic_loss(self, params, state, batch, key):
        error = tf.linalg.matvec(batch["x"], params["critic"]) - batch["y"]
        weight = batch.get("mask")
        square = tf.square(error)
        if weight is not None:
            weight = tf.cast(weight, tf.float32)
            return tf.reduce_sum(weight * square) / tf.reduce_sum(weight), {}
        return tf.reduce_mean(square), {}

    def actor_loss(self, params, state, batch, key):
        return tf.reduce_sum(tf.square(params["actor"] - params["critic"] - 1.0)), {}


# Plain settings: what an optimizer does to a gradient can be computed by hand.
PLAIN = ModuleConfig(lr=0.125, grad_clip=None)


def sgd(config):
    """Plain SGD; the rate is set by the learner from the module's settings."""
    return keras.optimizers.legacy.SGD(0.0)


def built(modules, learner_class=Learner, **kwargs):
    """A built learner with plain SGD at a rate of 1/8."""
    kwargs.setdefault("config", PLAIN)
    kwargs.setdefault("optimizer_fn", sgd)
    learner = learner_class(modules, **kwargs)
    learner.build(seeding.key(0))
    return learner


def values(learner):
    """Every variable of a learner by path, a copy."""
    return {path: v.numpy().copy() for path, v in learner.variables().items()}


def param(learner, module_id, path="w"):
    """A parameter of a module, by its path."""
    return struct.paths(learner.module_state(module_id).params)[path].numpy().copy()


def metrics_of(learner):
    """What the learner's logger holds, without what depends on the clock."""
    rows = learner.metrics.peek()
    rows.get("__all_modules__", {}).pop("num_env_steps_trained_lifetime_per_second", None)
    return rows


def changed(before, after):
    """The paths of what is not the same to the bit."""
    return sorted(p for p in before if not np.array_equal(before[p], after[p], equal_nan=True))


def assert_same(one, other):
    """Asserts that two dicts of arrays are the same to the bit."""
    assert list(one) == list(other)
    assert changed(one, other) == []


def column(*rows):
    """Rows of the column `w`."""
    return {"w": tf.constant(rows, tf.float32)}


@loadable
@struct.logic_dataclass
class Dot(Module):
    """Its loss is the mean over the rows of `sum_g x_g . w_g`, starting from ones.

    So the gradient of group g is the mean of column g. A row with its index in the column `i` says
    in the metrics which rows were taken.
    """

    widths: tuple[tuple[str, int], ...] = (("w", 2),)
    stop_above: float | None = None

    def init_params(self, key):
        return {name: tf.ones([width]) for name, width in self.widths}

    def forward(self, params, batch, key):
        return tf.add_n([tf.linalg.matvec(batch[g], params[g]) for g, _ in self.widths])

    def loss(self, params, batch, outputs, key):
        metrics = {"mean_x": tf.reduce_mean(batch[self.widths[0][0]])}
        if "i" in batch:
            metrics["rows"] = tf.reduce_sum(batch["i"])
        return tf.reduce_mean(outputs), metrics

    def should_stop(self, metrics):
        return None if self.stop_above is None else metrics["mean_x"] > self.stop_above


@loadable
@struct.logic_dataclass
class EncoderHead(Module):
    """Its loss is `head * mean(x . encoder)`; from encoder [1, 1] and a head that is given.

    The gradient of the encoder is `head * mean(x)`, that of the head `mean(x . encoder)`.
    """

    head: float = 1.0

    def init_params(self, key):
        return {"encoder": {"kernel": tf.ones([2])}, "head": tf.constant(self.head)}

    def forward(self, params, batch, key):
        return params["head"] * tf.linalg.matvec(batch["w"], params["encoder"]["kernel"])

    def loss(self, params, batch, outputs, key):
        return tf.reduce_mean(outputs)


@loadable
@struct.logic_dataclass
class Held(Module):
    """Has parameters and no loss."""

    def init_params(self, key):
        return {"w": seeding.normal(key, [3])}

    def forward(self, params, batch, key):
        return params["w"]
