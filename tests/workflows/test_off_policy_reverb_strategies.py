"""OffPolicyWorkflow over Reverb on several replicas of one process."""

import functools
import tempfile

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized

from tests.workflows.small_off_policy import run, workflow
from tfrl import seeding
from tfrl.agents import DQN
from tfrl.errors import UserError
from tfrl.replay.reverb import ReverbReplay

BUFFER = functools.partial(
    ReverbReplay,
    capacity=400,
    timeout=20.0,
    packed=True,
    block_size=1,  # to count each item
)
PRIORITIZED = functools.partial(BUFFER, kind="prioritized")


def mirrored(n=2):
    return tf.distribute.MirroredStrategy([f"CPU:{i}" for i in range(n)])


class MirroredTest(parameterized.TestCase):
    def workflow(self, replay=BUFFER, **changes):
        settings = {"num_envs": 4, "strategy": mirrored(), "replay": replay}
        flow = workflow(**{**settings, **changes})
        self.addCleanup(flow.close)
        return flow

    @parameterized.parameters(
        ("xla", PRIORITIZED, True),
        ("xla", BUFFER, False),
        ("graph", BUFFER, False),
        ("eager", PRIORITIZED, False),
    )
    @pytest.mark.slow
    def test_counts_compiled_in_any_way(self, mode, replay, overlap):
        self.count(mode, replay, overlap)

    def count(self, mode, replay, overlap, **changes):
        flow = self.workflow(replay, compile=mode, overlap=overlap, **changes)
        state, rows = run(flow, 0, 60)
        self.assertEqual(rows[-1]["env_steps"], 60)
        self.assertEqual(rows[-1]["learner_steps"], 40)
        self.assertTrue(np.isfinite(rows[-1]["loss"]))
        # One server has the steps of all replicas.
        buffer = flow.replay_buffer(state)
        self.assertEqual(int(buffer.size()), 60)
        for variable in flow.learner_of(state).variables().values():
            if isinstance(variable, tf.distribute.DistributedValues):
                one, other = (v.numpy() for v in variable.values)
                np.testing.assert_array_equal(one, other)
        if replay is PRIORITIZED:
            found = buffer.connection.client.sample("replay", 200, emit_timesteps=False)
            priorities = [float(np.ravel(s.info.priority)[0]) for s in found]
            self.assertGreater(len(set(np.round(priorities, 6))), 5)
        return flow, state

    def test_all_replicas_play_from_the_first_call_on(self):
        # By the policy: the stage that was timed is that of the run.
        flow = self.workflow(compile="graph", random_steps=0, learning_starts=40)
        state, rows = run(flow, 0, 20)
        self.assertEqual(rows[-1]["env_steps"], 20)
        buffer = flow.replay_buffer(state)
        buffer.flush()
        self.assertEqual(int(buffer.size()), 20)

    @pytest.mark.slow
    def test_the_replicas_play_different_environments(self):
        flow = self.workflow()
        state, _ = run(flow, 0, 40)
        buffer = flow.replay_buffer(state)
        buffer.flush()
        firsts = set()
        for _ in range(20):
            firsts |= {row.tobytes() for row in buffer.sample(None, 40).obs.numpy()}
        self.assertEqual(len(firsts), 40)  # all observations differ

    @pytest.mark.slow
    def test_counts_and_one_device_and_two_learn_the_same_from_the_same_rows(self):
        """An update on the union of the replicas' batches is the update of the replicas."""
        plain = functools.partial(DQN, hidden=(8,))
        flow, state = self.count("graph", PRIORITIZED, overlap=True, agent=plain)
        key, steps = seeding.key(7), tf.constant(60, tf.int64)
        experience, trained = flow.runner(state).experience, flow.learner_of(state)

        @tf.function(autograph=False)
        def sample():
            return tf.nest.flatten(experience.sample(0, key, tf.constant(0.5)))

        items = tf.nest.pack_sequence_as(experience.batch_spec, sample())
        parts = flow.replicas.per_replica(items)
        self.assertEqual([part.obs.shape for part in parts], [(4, 4)] * 2)
        union = tf.nest.map_structure(lambda *xs: tf.concat(xs, 0), *parts)
        one = workflow(num_envs=4, agent=functools.partial(DQN, hidden=(8,)))
        learner = one.setup_agent(key)
        learner.assign_variables({p: v.numpy() for p, v in trained.variables().items()})
        tf.function(lambda: one.update(learner, union, key, steps), autograph=False)()
        tf.function(lambda: flow.update(trained, items, key, steps), autograph=False)()
        both = trained.variables()
        for path, variable in learner.variables().items():
            np.testing.assert_allclose(
                variable.numpy(), both[path].numpy(), rtol=1e-4, atol=1e-6, err_msg=path
            )

    @pytest.mark.slow
    def test_a_limiter_that_allows_too_little_ends_in_an_error(self):
        limited = functools.partial(BUFFER, samples_per_insert=1.0, min_size=30, timeout=1.0)
        flow = self.workflow(limited, batch_size=16)
        with self.assertRaisesRegex(UserError, "expected items to sample within 1 s, got none"):
            run(flow, 0, 400)

    @pytest.mark.slow
    def test_a_restored_run_goes_on(self):
        flow = self.workflow(PRIORITIZED)
        state, _ = run(flow, 2, 40)
        with tempfile.TemporaryDirectory() as folder:
            flow.save(state, folder)
            again = self.workflow(PRIORITIZED, strategy=flow.replicas.strategy)
            other = again.restore(folder)
        self.assertEqual(int(again.replay_buffer(other).size()), 40)
        done = again.advance(other, 5)
        self.assertEqual(done.rows[-1]["env_steps"], 60)
        self.assertEqual(done.rows[-1]["learner_steps"], 40)
