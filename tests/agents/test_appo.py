"""APPO: PPO's surrogate over V-trace's targets, against NumPy."""

import numpy as np
import tensorflow as tf
from absl.testing import parameterized

from tests.agents import test_impala
from tfrl.agents.appo.losses import appo_loss

CLIP = 0.2


class LossTest(parameterized.TestCase):
    @parameterized.product(masked=[False, True], lambda_=[1.0, 0.8])
    def test_against_numpy(self, masked, lambda_):
        batch, policy, value = test_impala.scripted(masked=masked)
        with tf.GradientTape() as tape:
            tape.watch((policy.chosen, value))
            loss, metrics = appo_loss(
                policy,
                value,
                batch,
                clip=CLIP,
                discount=test_impala.GAMMA,
                lambda_=lambda_,
                clip_rho=1.0,
                value_coef=0.5,
                entropy_coef=0.1,
            )
        by_log_prob, by_value = tape.gradient(loss, (policy.chosen, value))
        rho = np.exp(policy.chosen.numpy().astype(np.float64) - batch.log_prob.numpy())
        # V-trace's advantage with its weight taken out again.
        vs, weighted = test_impala.oracle(
            batch, policy.chosen, value, lambda_=lambda_, clip_rho=1.0, clip_pg_rho=np.inf
        )
        advantage = weighted / rho
        keep = np.ones(rho.shape, bool) if batch.mask is None else batch.mask.numpy()
        clipped = np.clip(rho, 1.0 - CLIP, 1.0 + CLIP)
        surrogate = np.minimum(rho * advantage, clipped * advantage)
        policy_loss = -surrogate[keep].mean()
        value_loss = 0.5 * np.square(value - vs)[keep].mean()
        entropy = policy.entropies.numpy()[keep].mean()
        self.assertAlmostEqual(float(metrics["policy_loss"]), policy_loss, places=5)
        self.assertAlmostEqual(float(metrics["value_loss"]), value_loss, places=5)
        self.assertAlmostEqual(
            float(loss), policy_loss + 0.5 * value_loss - 0.1 * entropy, places=5
        )
        self.assertBetween(float(metrics["clip_fraction"]), 0.1, 0.9)
        # Where the clip holds, no gradient flows to the policy; none flows through targets.
        flows = keep & (rho * advantage <= clipped * advantage)
        expected = np.where(flows, -rho * advantage / keep.sum(), 0.0)
        np.testing.assert_allclose(by_log_prob, expected, rtol=1e-3, atol=1e-6)
        expected = np.where(keep, 0.5 * (value - vs) / keep.sum(), 0.0)
        np.testing.assert_allclose(by_value, expected, rtol=1e-4, atol=1e-6)
