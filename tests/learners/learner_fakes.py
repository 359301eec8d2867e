"""Small agents with losses whose gradients are known."""

import tensorflow as tf

from tfrl import seeding, struct
from tfrl.agents.core import Agent, Update
from tfrl.types import ActionOutput, AgentState


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
