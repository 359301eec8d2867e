"""An algorithm in a file of its own: TQC over the hooks of SAC."""

import gin
import numpy as np
import tensorflow as tf

import tfrl
from tests.agents import off_policy_cases as cases
from tests.agents.tqc import TQC
from tfrl import ops, struct
from tfrl.launch.settings import build_from_config
from tfrl.types import Transition


def made(**options):
    sizes = {"num_critics": 2, "num_quantiles": 3, "top_quantiles_to_drop": 1, "hidden": (8, 8)}
    return TQC(**{"obs_spec": cases.OBS, "action_spec": cases.BOX, **sizes, **options})


class TQCTest(tf.test.TestCase):
    def test_the_largest_quantiles_are_dropped(self):
        # Two critics of three quantiles, one row: the 6 values without the 2 largest.
        q = tf.constant([[[3.0, 1.0, 9.0]], [[2.0, 5.0, 4.0]]])
        self.assertAllEqual(made().target_q(q), [[1.0, 2.0, 3.0, 4.0]])
        self.assertAllEqual(made().policy_q(q), [4.0])

    def test_targets_by_hand(self):
        """One row of reward 1 and discount 1/2: y = 1 + z / 2 for z in 2, 4, and 1 at an end."""
        agent = made(num_critics=1, num_quantiles=2, top_quantiles_to_drop=0)
        q = tf.constant([[[1.0, 3.0], [0.0, 1.0]]])
        row = {"obs": None, "next_obs": None, "action": None}
        batch = Transition(reward=tf.ones([2]), discount=tf.constant([0.5, 0.0]), **row)
        next_value = tf.constant([[2.0, 4.0], [np.nan, np.inf]])
        loss, extra, _ = agent.regression(q, next_value, batch)
        targets = [[2.0, 3.0], [1.0, 1.0]]
        want = ops.quantile_huber_loss(q[0], tf.constant(targets))
        self.assertAllClose(loss, want)
        self.assertAllClose(extra.td_error, [[0.5], [0.5]])
        self.assertAllClose(extra.target, [[2.5], [1.0]])

    def test_a_gin_file_names_it(self):
        with gin.unlock_config():
            workflow = build_from_config(
                "sac/tf_pendulum.gin",
                [
                    "OffPolicyWorkflow.agent = @TQC",
                    "TQC.num_quantiles = 5",
                    "TQC.hidden = (8,)",
                    "OffPolicyWorkflow.random_steps = 0",
                    "OffPolicyWorkflow.batch_size = 4",
                    "OffPolicyWorkflow.compile = 'eager'",
                ],
            )
        self.assertIs(tfrl.TQC, TQC)
        state = workflow.setup(0)
        before = struct.paths(struct.values(state.agent_state.params))
        for _ in range(8):
            metrics, state = workflow.step(state)
        self.assertGreater(int(metrics["learner_steps"]), 0)
        after = struct.paths(struct.values(state.agent_state.params))
        for path, value in before.items():
            self.assertNotAllClose(value, after[path], msg=path)
        self.assertEqual(after["critic/head/kernel"].shape[-1], 5)
        workflow.close()


class QuantileHuberLossTest(tf.test.TestCase):
    def test_by_hand(self):
        """tau = 1/4, 3/4; deltas of target 2 to 1, 4: 1 and -2, of huber 1/2 and 3/2."""
        found = ops.quantile_huber_loss(tf.constant([[1.0, 4.0]]), tf.constant([[2.0]]))
        self.assertAllClose(found, 0.25 * 0.5 + abs(0.75 - 1) * 1.5)

    def test_against_numpy(self):
        random = np.random.default_rng(0)
        z, y = random.normal(size=[6, 4]), random.normal(size=[6, 5])
        rows = []
        for n in range(6):
            total = 0.0
            for i in range(4):
                for j in range(5):
                    delta = y[n, j] - z[n, i]
                    size = abs(delta)
                    huber = delta**2 / 2 if size <= 1 else size - 0.5
                    total += abs((i + 0.5) / 4 - (delta < 0)) * huber / 5
            rows.append(total)
        quantiles, targets = (tf.constant(x, tf.float32) for x in (z, y))
        self.assertAllClose(ops.quantile_huber_loss(quantiles, targets), np.mean(rows))
        mask, weights = tf.constant([True] * 3 + [False] * 3), tf.range(6.0)
        found = ops.quantile_huber_loss(quantiles, targets, mask, weights)
        self.assertAllClose(found, np.mean(np.arange(3) * rows[:3]))

    def test_learns_the_quantiles_of_samples(self):
        samples = tf.reshape(tf.linspace(0.0, 10.0, 101), [1, -1])

        @tf.function
        def descend(z):
            for _ in tf.range(3000):
                with tf.GradientTape() as tape:
                    tape.watch(z)
                    loss = ops.quantile_huber_loss(z, samples)
                z -= 0.1 * tape.gradient(loss, z)
            return z

        self.assertAllClose(descend(tf.constant([[5.0, 5.0]])), [[2.5, 7.5]], atol=0.3)
