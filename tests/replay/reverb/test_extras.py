"""Extras, recurrent states and nests in Reverb's items."""

import numpy as np
import tensorflow as tf
from absl.testing import parameterized

from tests.replay import oracle
from tests.replay.reverb import helpers
from tfrl.replay.reverb import ReverbReplay, TableConfig

STATE = tf.TensorSpec([2], tf.float32)


class ExtrasTest(parameterized.TestCase):
    def rows(self, start, stop):
        streams = helpers.streams("SAME_STEP", 2, 40)
        rows = oracle.trajectory(streams, start, stop)
        carry = np.repeat(rows.obs, 2, axis=-1) + np.float32([0.25, 0.5])
        return rows.replace(
            policy_extras={"state_in": carry, "log_prob": -rows.obs[..., 0], "unused": rows.obs},
            env_extras={"level": (rows.obs[..., 0] % 5).astype(np.int32)},
        )

    def replay(self, **options):
        buffer = helpers.maker(
            policy_extras_spec={"state_in": STATE, "log_prob": tf.TensorSpec([], tf.float32)},
            env_extras_spec={"level": tf.TensorSpec([], tf.int32)},
            **options,
        ).init()
        self.addCleanup(buffer.close)
        return buffer

    def test_transitions_have_those_of_their_first_step(self):
        buffer = self.replay(n_step=3)
        buffer.add(self.rows(0, 40))
        batch = buffer.sample(None, 30)
        obs = batch.obs.numpy()
        extras = batch.extras["policy_extras"]
        np.testing.assert_array_equal(extras["log_prob"], -obs[:, 0])
        np.testing.assert_array_equal(extras["state_in"], obs + np.float32([0.25, 0.5]))
        np.testing.assert_array_equal(batch.extras["env_extras"]["level"], obs[:, 0] % 5)
        assert set(extras) == {"state_in", "log_prob"}

    @parameterized.named_parameters(
        ("overlapping", {"sequence_length": 4, "sequence_period": 2}),
        ("episodes", {"episode_length": 9}),
        (
            "beside_transitions",
            {
                "tables": (
                    TableConfig(name="sequences", sequence_length=4, sequence_period=2),
                    TableConfig(name="steps"),
                )
            },
        ),
    )
    def test_sequences_have_the_state_of_their_first_step(self, options):
        buffer = self.replay(**options)
        for start in range(0, 40, 8):
            buffer.add(self.rows(start, start + 8))
        batch = buffer.sample(None, 15)
        obs, valid = batch.steps.obs.numpy()[..., 0], batch.steps.valid.numpy()
        np.testing.assert_array_equal(batch.state_in, obs[:, :1] + np.float32([0.25, 0.5]))
        np.testing.assert_array_equal(
            batch.steps.policy_extras["log_prob"], np.where(valid, -obs, 0.0)
        )
        np.testing.assert_array_equal(
            batch.steps.env_extras["level"], np.where(valid, obs % 5, 0.0)
        )
        assert set(batch.steps.policy_extras) == {"log_prob"}
        assert not valid.all() and valid[:, 0].all()

    def test_nests_of_observations_and_actions(self):
        spec = tf.TensorSpec([1], tf.float32)
        replay = ReverbReplay(
            obs_spec={"near": spec, "far": (spec, tf.TensorSpec([], tf.uint8))},
            action_spec=(ACTION_PAIR[0], {"go": ACTION_PAIR[1]}),
            capacity=100,
            num_envs=2,
        )
        buffer = replay.init()
        self.addCleanup(buffer.close)
        rows = oracle.trajectory(helpers.streams("SAME_STEP", 2, 9), 0, 9)

        def nested(x):
            return {"near": x, "far": (2 * x, (x[..., 0] % 200).astype(np.uint8))}

        action = (rows.action, {"go": rows.action.astype(np.float32)})
        buffer.add(
            rows.replace(obs=nested(rows.obs), next_obs=nested(rows.next_obs), action=action)
        )
        batch = buffer.sample(None, 10)
        np.testing.assert_array_equal(batch.obs["far"][0], 2 * batch.obs["near"])
        assert batch.next_obs["far"][1].dtype == tf.uint8
        np.testing.assert_array_equal(batch.action[0], batch.obs["near"][:, 0] % 3)
        np.testing.assert_array_equal(batch.action[1]["go"], batch.obs["near"][:, 0] % 3)


ACTION_PAIR = (tf.TensorSpec([], tf.int64), tf.TensorSpec([], tf.float32))
