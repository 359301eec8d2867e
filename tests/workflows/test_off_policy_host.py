"""OffPolicyWorkflow in environments on the host."""

import functools
import tempfile

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized

from tests.envs.host_backends import Scripted
from tests.workflows.small_off_policy import learner_state, run, workflow
from tfrl import seeding
from tfrl.agents import DQN
from tfrl.envs.host_env import HostEnv
from tfrl.learners import DEFAULT_MODULE_ID
from tfrl.rollout import rollout


class HostTest(parameterized.TestCase):
    def make(self, mode="SAME_STEP", **changes):
        agent = functools.partial(DQN, hidden=(8,))
        env = HostEnv(Scripted((2, 3, 1, 5), mode), mode)
        return workflow(env=env, agent=agent, compile="graph", **changes)

    @parameterized.parameters("SAME_STEP", "NEXT_STEP")
    @pytest.mark.variants(1)
    def test_counts(self, mode):
        flow = self.make(mode, updates_per_step=0.5)
        state, rows = run(flow, 0, 60)
        steps = rows[-1]["env_steps"]
        start = next(r["env_steps"] for r in rows if r["env_steps"] >= 20)
        self.assertEqual(rows[-1]["learner_steps"], steps // 2 - start // 2)
        self.assertEqual(int(flow.replay_buffer(state).size()), steps)
        self.assertTrue(np.isfinite(rows[-1]["loss"]))

    def test_the_policy_lags_by_the_updates_of_one_iteration(self):
        flow = self.make(overlap=True, iterations_per_row=1)
        state, rows = run(flow, 0, 40)
        self.assertEqual([r["policy_lag"] for r in rows if "loss" in r], [0, 4, 4, 4, 4])
        alone = self.make(overlap=False, iterations_per_row=1)
        _, others = run(alone, 0, 40)
        self.assertFalse([r for r in others if "policy_lag" in r])
        # Experience from before the first update is equal; the rest differs by the lag.
        first = [r["episode_return"] for r in rows][:5]
        np.testing.assert_array_equal(first, [r["episode_return"] for r in others][:5])

    def test_without_overlap_it_is_the_loop_of_the_device(self):
        """The run equals the same steps taken in sequence by hand."""
        flow = self.make(overlap=False)
        state, _ = run(flow, 3, 24)
        keys = seeding.streams(seeding.key(3), ["agent", "environment", "run", "evaluation"])
        other = self.make(overlap=False)
        learner, buffer = other.setup_agent(keys["agent"]), other.replay.init()
        env_state = other.env.reset(keys["environment"])
        for i in range(6):
            play, learn = tf.unstack(seeding.split(seeding.fold_in(keys["run"], i), 2))
            agent_state = learner.module_state(DEFAULT_MODULE_ID)
            act = other.agent.random_actions if i < 5 else None
            steps, env_state, _ = rollout(
                other.env, other.agent, env_state, agent_state, play, 1, action_fn=act
            )
            buffer.add(steps)
            for j in range(4 if i >= 5 else 0):
                own = seeding.streams(seeding.fold_in(learn, j), ("sample", "update"))
                batch = buffer.sample(own["sample"], 8)
                timesteps = tf.constant(4 * i + 4, tf.int64)
                learner.update(batch, key=own["update"], timesteps=timesteps, shuffle=False)
        np.testing.assert_array_equal(
            buffer.state_values()["steps"], flow.replay_buffer(state).state_values()["steps"]
        )
        for path, v in learner.variables().items():
            got = learner_state(flow, state)[path]
            np.testing.assert_allclose(v.numpy(), got, rtol=2e-3, atol=2e-4, err_msg=path)

    def test_the_same_seed_gives_the_same_run_however_it_is_split(self):
        whole = self.make()
        a, _ = run(whole, 4, 60)
        parts = self.make()
        b = parts.setup(4)
        while parts.env_steps(b) < 60:
            b = parts.advance(b, 3, 60).state
        # The order of TensorFlow's AddN depends on threads, so bits may differ.
        for path, v in learner_state(whole, a).items():
            other = learner_state(parts, b)[path]
            np.testing.assert_allclose(v, other, rtol=1e-4, atol=1e-6, err_msg=path)
        kept = [w.replay_buffer(x).state_values()["steps"] for w, x in ((whole, a), (parts, b))]
        np.testing.assert_array_equal(*kept)

    @pytest.mark.slow
    def test_a_resumed_run_cuts_the_episodes_that_went_on(self):
        flow = self.make()
        state, _ = run(flow, 0, 40)
        with tempfile.TemporaryDirectory() as folder:
            flow.save(state, folder)
            again = self.make()
            other = again.restore(folder)
        self.assertEqual(again.env_steps(other), 40)
        self.assertEqual(int(again.replay_buffer(other).size()), 40)
        batch = again.replay_buffer(again.advance(other, 3).state).sample(seeding.key(0), 50)
        # Observations are [row, episode, step]: an item across the cut would jump back.
        steps = np.array(batch.next_obs - batch.obs)
        np.testing.assert_array_equal(steps, np.tile([[0.0, 0.0, 1.0]], (50, 1)))
