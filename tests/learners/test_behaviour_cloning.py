"""Behaviour cloning through the Learner: supervised data in, a policy out."""

import pytest
import tensorflow as tf
from absl.testing import parameterized

from tfrl import make_env, networks, ops, seeding, struct
from tfrl.agents.core import Agent
from tfrl.keras import api as keras
from tfrl.learners import KerasModule, Learner, Module, ModuleConfig
from tfrl.rollout import fast_eval_rollout_episode, rollout
from tfrl.types import ActionOutput, AgentState

KEY = seeding.key(3)
OBS = tf.TensorSpec([4], tf.float32)


@struct.logic_dataclass
class Controller(Agent):
    """Balances the pole: right with the probability sigmoid(20 (angle + w / 2 + x / 20 + v / 10)).

    Its actions are random where the pole stands well, so that no clone predicts them all.
    """

    obs_spec: tf.TensorSpec = OBS
    action_spec: tf.TensorSpec = tf.TensorSpec([], tf.int64)

    def init(self, key):
        return AgentState(params={})

    def logit(self, obs):
        return 20.0 * tf.linalg.matvec(obs, tf.constant([0.05, 0.1, 1.0, 0.5]))

    def compute_actions(self, state, obs, key, carry=None):
        uniform = seeding.uniform(key, [obs.shape[0]])
        return ActionOutput(action=tf.cast(uniform < tf.sigmoid(self.logit(obs)), tf.int64))

    evaluate_actions = compute_actions


def transitions(key, n):
    """Observations and actions of the controller, n of them, from 25 environments."""
    env = make_env("tf:CartPole-v1", num_envs=25)
    expert = Controller()
    keys = seeding.streams(key, ["env", "rollout"])
    steps, _, _ = tf.function(
        lambda: rollout(
            env, expert, env.reset(keys["env"]), expert.init(key), keys["rollout"], n // 25
        ),
        autograph=False,
    )()
    return {"x": tf.reshape(steps.obs, [n, 4]), "y": tf.reshape(steps.action, [n])}


def mean_return(agent, state):
    env = make_env("tf:CartPole-v1", num_envs=32, autoreset="DISABLED")
    result, _ = tf.function(
        lambda: fast_eval_rollout_episode(env, agent, env.reset(KEY), state, KEY, 500),
        autograph=False,
    )()
    return float(tf.reduce_mean(result.episode_returns))


def cross_entropy(labels, logits):
    return tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)


@struct.logic_dataclass
class Cloner(Module):
    """A policy network and the cross entropy."""

    network: networks.MLP

    def init_params(self, key):
        return {"policy": self.network.init(key, OBS)}

    def forward(self, params, batch, key):
        return self.network.apply(params["policy"], batch["x"])

    def loss(self, params, batch, outputs, key):
        loss = cross_entropy(batch["y"], outputs)
        right = tf.cast(tf.equal(tf.argmax(outputs, -1), batch["y"]), tf.float32)
        return ops.masked_mean(loss, batch["mask"]), {"accuracy": tf.reduce_mean(right)}


@struct.logic_dataclass
class Greedy(Controller):
    """Acts by a clone's logits."""

    logits: object = None

    def evaluate_actions(self, state, obs, key, carry=None):
        return ActionOutput(action=tf.argmax(self.logits(state.params, obs), -1))


class BehaviourCloningTest(parameterized.TestCase):
    def test_the_controller_is_an_expert_and_random(self):
        expert = Controller()
        self.assertGreaterEqual(mean_return(expert, expert.init(KEY)), 475)

    @parameterized.parameters("module", "keras")
    @pytest.mark.variants(1)
    def test_five_thousand_transitions_reach_a_held_out_loss_under_0_57(self, kind):
        keys = seeding.streams(KEY, ["train", "held_out"])
        train, held_out = transitions(keys["train"], 5000), transitions(keys["held_out"], 1000)
        network = networks.MLP(hidden=(32, 2), activate_final=False)
        if kind == "module":
            module = Cloner(network=network)
            logits = lambda params, obs: network.apply(params["policy"], obs)  # noqa: E731
        else:
            module = KerasModule(
                model_fn=lambda: keras.Sequential(
                    [
                        keras.Input([4]),
                        keras.layers.Dense(32, "tanh"),
                        keras.layers.Dense(2),
                    ]
                ),
                loss_fn=lambda batch, outputs: cross_entropy(batch["y"], outputs),
            )
            logits = module.predict
        learner = Learner(module, config=ModuleConfig(lr=3e-3, minibatch_size=128))
        learner.build(KEY)

        def held_out_loss():
            found = logits(learner.state.params, held_out["x"])
            return float(tf.reduce_mean(cross_entropy(held_out["y"], found)))

        before = held_out_loss()
        # 5,000 rows are 39 minibatches of 128 and 8 rows: the last is filled up by masked ones.
        masked = {**train, "mask": tf.ones([5000], tf.bool)}
        row = learner.update_from_batch(masked, num_epochs=10, remainder="pad")
        self.assertEqual(row["default_policy"]["gradient_steps"], 400)
        after = held_out_loss()
        # The loss of the expert's own probabilities: all that can be learned.
        right = Controller().logit(held_out["x"])
        own = tf.stack([tf.zeros_like(right), right], 1)
        floor = float(tf.reduce_mean(cross_entropy(held_out["y"], own)))
        self.assertGreater(before, 0.65)
        self.assertLess(after, 0.57)
        self.assertBetween(after - floor, -0.01, 0.05)
        clone = Greedy(logits=logits)
        state = struct.values(learner.state)
        self.assertGreaterEqual(mean_return(clone, state), 450)


if __name__ == "__main__":
    tf.test.main()
