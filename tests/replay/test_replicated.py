"""Every replica has its own buffer: it samples what was added there, and nothing else."""

import tempfile

import numpy as np
import tensorflow as tf
from absl.testing import parameterized

from tests.replay import oracle
from tfrl import seeding
from tfrl.distribute import Replicas
from tfrl.errors import UserError
from tfrl.replay import InGraphReplay, ReplicatedBuffer


def mirrored(n):
    return tf.distribute.MirroredStrategy([f"CPU:{i}" for i in range(n)])


def make(strategy, **options):
    given = {"capacity": 80, "num_envs": 4, "kind": "prioritized", **options}
    with strategy.scope():
        return InGraphReplay(
            obs_spec=tf.TensorSpec([1], tf.float32),
            action_spec=tf.TensorSpec([], tf.int64),
            **given,
        ).init()


def shard(replicas, rows):
    """Environments [T, B, ...] over the replicas, leaf by leaf."""
    count = replicas.num_replicas

    def one(x):
        parts = np.split(x, count, axis=1)
        return replicas.strategy.experimental_distribute_values_from_function(
            lambda c: tf.constant(parts[c.replica_id_in_sync_group])
        )

    return tf.nest.map_structure(one, rows)


class ReplicatedTest(parameterized.TestCase):
    def test_buffers_equal_those_of_one_device_each(self):
        strategy = mirrored(2)
        replicas = Replicas(strategy)
        buffer = make(strategy)
        self.assertIsInstance(buffer, ReplicatedBuffer)
        alone = [make(tf.distribute.get_strategy(), capacity=40, num_envs=2) for _ in range(2)]
        streams = [
            oracle.script([(9, "term"), (4, "trunc")], "NEXT_STEP", 99, 1000 * b) for b in range(4)
        ]

        @tf.function(autograph=False)
        def iterate(key, *leaves):
            rows = tf.nest.pack_sequence_as(example, leaves)
            buffer.add(rows)
            batch = buffer.sample(key, 8, 0.5)
            buffer.update_priorities(batch.index, batch.reward)
            return tf.nest.flatten(batch)

        for i in range(3):
            example = oracle.trajectory(streams, 10 * i, 10 * i + 10)
            sharded = shard(replicas, example)
            key = seeding.fold_in(seeding.key(7), i)
            found = replicas.per_replica(iterate(key, *tf.nest.flatten(sharded)))
            for number, one in enumerate(alone):
                mine = slice(2 * number, 2 * number + 2)
                one.add(tf.nest.map_structure(lambda x, m=mine: x[:, m], example))
                batch = one.sample(seeding.fold_in(key, number), 4, 0.5)
                one.update_priorities(batch.index, batch.reward)
                for a, b in zip(found[number], tf.nest.flatten(batch), strict=True):
                    np.testing.assert_array_equal(a, b)
        values = buffer.state_values()
        for number, one in enumerate(alone):
            for path, value in one.state_values().items():
                np.testing.assert_array_equal(values[f"{number}/{path}"], value, err_msg=path)
        size = sum(int(one.size()) for one in alone)
        self.assertEqual(int(tf.function(buffer.size)()), size)
        self.assertTrue(bool(tf.function(lambda: buffer.can_sample(size - 2))()))
        self.assertFalse(bool(tf.function(lambda: buffer.can_sample(size + 2))()))
        self.check_files(strategy, buffer, values)

    def check_files(self, strategy, buffer, values):
        other = make(strategy)
        with tempfile.TemporaryDirectory() as folder:
            buffer.save(f"{folder}/a")
            other.restore(f"{folder}/a")
        for path, value in other.state_values().items():
            np.testing.assert_array_equal(values[path], value, err_msg=path)

    def test_what_the_replicas_do_not_divide(self):
        strategy = mirrored(2)
        with self.assertRaises(UserError) as caught:
            make(strategy, num_envs=5)
        self.assertEqual(
            str(caught.exception),
            "InGraphReplay.num_envs: expected a multiple of the 2 replicas, which share the "
            "environments, got 5. The nearest above is 6.",
        )
        with self.assertRaises(UserError) as caught:
            make(strategy).sample(seeding.key(0), 7)
        self.assertEqual(
            str(caught.exception),
            "batch_size: expected a multiple of the 2 replicas, which share it evenly, got 7. "
            "The nearest are 6 and 8.",
        )
