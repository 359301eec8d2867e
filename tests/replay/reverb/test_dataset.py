"""Datasets: shapes and dtypes, weights that follow beta, replicas, and nothing to sample."""

import threading
import time

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized

from tests.replay import oracle
from tests.replay.reverb import helpers
from tfrl.errors import UserError
from tfrl.types import Sequences, Transition

ROWS = oracle.trajectory(helpers.streams("NEXT_STEP", 2, 40), 0, 40)


class DatasetTest(parameterized.TestCase):
    def buffer(self, **options):
        buffer = helpers.maker(**options).init()
        self.addCleanup(buffer.close)
        return buffer

    def test_transitions(self):
        buffer = self.buffer(n_step=2)
        dataset = buffer.dataset(5)
        spec = dataset.element_spec
        assert isinstance(spec, Transition)
        assert spec.obs == tf.TensorSpec([5, 1], tf.float32)
        assert spec.index == tf.TensorSpec([5], tf.int64)
        assert spec.discount == tf.TensorSpec([5], tf.float32) and spec.weight is None
        buffer.add(ROWS)
        buffer.flush()
        batch = next(buffer.batches(dataset))
        again = buffer.sample(None, 5)
        for one, other in zip(tf.nest.flatten(batch), tf.nest.flatten(again), strict=True):
            assert (one.shape, one.dtype) == (other.shape, other.dtype)

    def test_sequences(self):
        buffer = self.buffer(
            sequence_length=4,
            kind="prioritized",
            policy_extras_spec={"state_in": (tf.TensorSpec([3], tf.float32),)},
        )
        dataset = buffer.dataset(5)
        spec = dataset.element_spec
        assert isinstance(spec, Sequences)
        assert spec.steps.obs == spec.steps.next_obs == tf.TensorSpec([5, 4, 1], tf.float32)
        assert spec.steps.action == tf.TensorSpec([5, 4], tf.int64)
        assert spec.steps.termination == spec.steps.valid == tf.TensorSpec([5, 4], tf.bool)
        assert spec.state_in[0] == tf.TensorSpec([5, 3], tf.float32)
        assert spec.weight == tf.TensorSpec([5], tf.float32)
        buffer.add(ROWS.replace(policy_extras={"state_in": (np.ones([40, 2, 3], np.float32),)}))
        buffer.flush()
        batch = next(buffer.batches(dataset))
        again = buffer.sample(None, 5)
        for one, other in zip(tf.nest.flatten(batch), tf.nest.flatten(again), strict=True):
            assert (one.shape, one.dtype) == (other.shape, other.dtype)

    def test_beta_may_change(self):
        buffer = self.buffer(kind="prioritized", alpha=1.0)
        buffer.add(ROWS)
        keys = np.array(list(helpers.read_all(buffer)))
        buffer.update_priorities(keys, np.arange(1.0, len(keys) + 1))
        beta = tf.Variable(0.0)
        stream = buffer.batches(buffer.dataset(8, beta, prefetch=0))
        np.testing.assert_array_equal(next(stream).weight, np.ones(8))
        beta.assign(1.0)
        weights = [next(stream).weight.numpy() for _ in range(4)][-1]
        assert weights.max() == 1.0 and 0.0 < weights.min() < 1.0

    def test_a_loop_in_the_graph(self):
        buffer = self.buffer()
        buffer.add(ROWS)
        buffer.flush()

        iterator = iter(buffer.dataset(4))

        @tf.function
        def total():
            found = 0.0
            for _ in tf.range(10):
                found += tf.reduce_mean(next(iterator).obs)
            return found

        assert float(total()) > 0.0

    def test_replicas_have_a_share_of_the_batch(self):
        devices = [d.name.removeprefix("/device:") for d in tf.config.list_logical_devices("CPU")]
        strategy = tf.distribute.MirroredStrategy(devices[:2])
        buffer = self.buffer(n_step=2, kind="prioritized")
        buffer.add(ROWS)
        buffer.flush()
        dataset = buffer.distributed_dataset(strategy, 8)
        iterator = iter(dataset)
        batch = next(buffer.batches(dataset))
        local = [b.obs for b in strategy.experimental_local_results(batch)]
        assert len(local) == strategy.num_replicas_in_sync == len(devices[:2])
        assert all(x.shape == (8 // len(local), 1) for x in local)

        @tf.function
        def step():
            return strategy.run(lambda b: tf.reduce_sum(b.weight), (next(iterator),))

        assert all(float(x) > 0 for x in strategy.experimental_local_results(step()))
        if len(local) == 2:
            with pytest.raises(
                UserError, match="batch_size: expected a multiple of the 2 replicas"
            ):
                buffer.distributed_dataset(strategy, 7)

    def test_nothing_to_sample_is_an_error(self):
        buffer = self.buffer(min_size=5, timeout=0.5)
        start = time.monotonic()
        with pytest.raises(UserError, match="expected items to sample within timeout=0.5 s"):
            next(buffer.batches(buffer.dataset(2)))
        with pytest.raises(tf.errors.InvalidArgumentError, match="gave no item for timeout"):
            next(iter(buffer.dataset(2)))
        assert 0.9 < time.monotonic() - start < 8

    def test_a_dataset_that_waits(self):
        buffer = self.buffer(min_size=5, timeout=0.5)

        def later():
            time.sleep(1.5)  # three timeouts
            buffer.add(ROWS)
            buffer.flush()

        thread = threading.Thread(target=later)
        thread.start()
        batch = next(buffer.batches(buffer.dataset(3, wait=True)))
        assert batch.obs.shape == (3, 1)
        thread.join()

    def test_the_order_of_a_queue_in_batches(self):
        buffer = self.buffer(num_envs=1, kind="fifo")
        buffer.add(oracle.trajectory(helpers.streams("SAME_STEP", 1, 40), 0, 40))
        buffer.flush()
        batches = list(buffer.batches(buffer.dataset(8).take(5)))
        obs = np.concatenate([batch.obs[:, 0] for batch in batches])
        assert len(obs) == 40 and list(obs) == sorted(set(obs))
