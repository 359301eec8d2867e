"""OffPolicyWorkflow on several replicas."""

import functools
import tempfile

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized

from tests.workflows.small_off_policy import (
    BUFFER,
    PRIORITIZED,
    assert_same,
    bits,
    run,
    workflow,
)
from tfrl import seeding
from tfrl.agents import DQN
from tfrl.errors import UserError


def mirrored(n=2):
    return tf.distribute.MirroredStrategy([f"CPU:{i}" for i in range(n)])


class MirroredTest(parameterized.TestCase):
    # The fast test of this is `test_two_processes_are_as_two_replicas_of_one`.
    @pytest.mark.slow
    def test_counts_and_equal_parameters(self):
        self.count("graph", BUFFER)

    @pytest.mark.slow
    def test_counts_under_xla(self):
        self.count("xla", BUFFER)

    @pytest.mark.slow
    def test_counts_of_prioritised_replay(self):
        self.count("graph", PRIORITIZED)

    def count(self, mode, replay):
        flow = workflow(num_envs=4, strategy=mirrored(), compile=mode, replay=replay)
        state, rows = run(flow, 0, 60)
        self.assertEqual(rows[-1]["env_steps"], 60)
        self.assertEqual(rows[-1]["learner_steps"], 40)
        self.assertEqual(int(flow.replay_buffer(state).size()), 60)
        self.assertTrue(np.isfinite(rows[-1]["loss"]))
        for variable in flow.learner_of(state).variables().values():
            if isinstance(variable, tf.distribute.DistributedValues):
                one, other = (v.numpy() for v in variable.values)
                np.testing.assert_array_equal(one, other)

    @pytest.mark.slow
    def test_a_restored_run_goes_on_to_the_bit(self):
        flow = workflow(num_envs=4, strategy=mirrored(), updates_per_step=0.5)
        state, _ = run(flow, 2, 40)
        with tempfile.TemporaryDirectory() as folder:
            flow.save(state, folder)
            state = flow.advance(state, 5).state
            again = workflow(num_envs=4, strategy=flow.replicas.strategy, updates_per_step=0.5)
            other = again.advance(again.restore(folder), 5).state
        assert_same(bits(flow, state), bits(again, other))

    @pytest.mark.slow
    def test_one_device_and_two_learn_the_same_from_the_same_rows(self):
        """An update on the union of the replicas' batches is the update of the replicas."""
        flow = workflow(num_envs=4, strategy=mirrored(), agent=functools.partial(DQN, hidden=(8,)))
        state, _ = run(flow, 0, 24)
        key, steps = seeding.key(7), tf.constant(24, tf.int64)
        items = flow.replay_buffer(state).sample(key, 8)
        trained = flow.learner_of(state)
        union = tf.nest.map_structure(
            lambda *xs: tf.concat(xs, 0), *flow.replicas.per_replica(items)
        )
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

    def test_a_batch_that_the_replicas_cannot_divide(self):
        with self.assertRaisesRegex(UserError, "batch_size: expected a multiple of the 2"):
            workflow(num_envs=4, strategy=mirrored(), batch_size=9)
