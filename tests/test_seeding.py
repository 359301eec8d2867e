"""Tests of the key scheme: equal bits on every path, distinct children, stable streams."""

import itertools
from unittest import mock

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized

from tfrl import seeding, xla
from tfrl.errors import UserError

DRAWS = {
    "split": lambda key: seeding.split(key, 5),
    "fold_in": lambda key: seeding.fold_in(key, 7),
    "fold_in_tensor": lambda key: seeding.fold_in(key, tf.constant(7)),
    "stream": lambda key: seeding.stream(key, "rollout"),
    "bits": lambda key: seeding.uniform_bits(key, [33]),
    "bits64": lambda key: seeding.uniform_bits(key, [33], tf.uint64),
    "randint": lambda key: seeding.randint(key, [33], -5, 17),
    "uniform": lambda key: seeding.uniform(key, [33, 31]),
    "uniform_symmetric": lambda key: seeding.uniform(key, [33, 31], -0.05, 0.05),
    "uniform_dynamic": lambda key: seeding.uniform(key, tf.constant([4, 3])),
    "uniform_range": lambda key: seeding.uniform(key, [33, 31], -0.05, 0.07),
    "uniform_tensor_range": lambda key: seeding.uniform(key, [33, 3], -tf.ones([3]), tf.ones([3])),
    "normal": lambda key: seeding.normal(key, [333, 31]),
}


def keys_of(key, rows=33):
    return seeding.fold_in(key, tf.range(rows))


DRAWS_BY_ROW = {
    "bits": lambda keys: seeding.uniform_bits(keys, [33, 3]),
    "signed": lambda keys: seeding.uniform_bits(keys, [33], tf.int32),
    "bits64": lambda keys: seeding.uniform_bits(keys, [33, 3], tf.uint64),
    "randint": lambda keys: seeding.randint(keys, [33, 3], -5, 17),
    "uniform": lambda keys: seeding.uniform(keys, [33]),
    "uniform_symmetric": lambda keys: seeding.uniform(keys, [33, 2, 3], -0.05, 0.05),
    "normal": lambda keys: seeding.normal(keys, [33, 31]),
}

GOLDEN = {
    "split": [[1831033679, 1590838977], [-847871925, 912625758]],
    "fold_in": [1513371783, 1744837922],
    "stream": [781516041, 1744837922],
    "uniform": [0.42632073163986206, 0.3703960180282593, 0.8025894165039062],
    "normal": [1.4489251375198364, 1.128265380859375, -0.5169674754142761],
}


class BitsTest(parameterized.TestCase, tf.test.TestCase):
    @parameterized.named_parameters(DRAWS.items())
    def test_eager_graph_and_xla_agree_to_the_bit(self, draw):
        key = seeding.key(11)
        eager = draw(key).numpy()
        self.assertAllEqual(eager, tf.function(draw)(key))
        self.assertAllEqual(eager, tf.function(draw, jit_compile=True)(key))

    @parameterized.parameters([-5, 7], [5, -7], [-3, -9], [-(2**31), 2**31 - 1])
    @pytest.mark.variants(2)
    def test_negative_words_too(self, *words):
        key = tf.constant(words, tf.int32)
        for draw in (DRAWS["bits"], DRAWS["bits64"], DRAWS["randint"], DRAWS["fold_in"]):
            eager = draw(key).numpy()
            self.assertAllEqual(eager, tf.function(draw)(key))
            self.assertAllEqual(eager, tf.function(draw, jit_compile=True)(key))

    def test_bits_are_those_of_tensorflow(self):
        key = tf.constant([-5, 7], tf.int32)
        want = tf.random.stateless_uniform([9], key, None, None, tf.int32, "philox")
        self.assertAllEqual(want, seeding.uniform_bits(key, [9], tf.int32))
        want = tf.random.stateless_uniform([9], key, -3, 8, tf.int32, "philox")
        self.assertAllEqual(want, seeding.randint(key, [9], -3, 8))

    def test_a_function_traced_outside_of_xla_is_right_inside(self):
        draw = tf.function(lambda key: seeding.uniform_bits(key, [9]))
        key = tf.constant([-5, -7], tf.int32)
        plain = draw(key)

        @tf.function(jit_compile=True)
        def compiled(key):
            inside = tf.cond(key[0] < 0, lambda: draw(key), lambda: tf.zeros([9], tf.uint32))
            return inside, draw(key)

        self.assertAllEqual([plain, plain], compiled(key))
        self.assertAllEqual(plain, draw(key))

    @parameterized.parameters("config", "flags")
    def test_where_tensorflow_looks_for_clusters_a_graph_does_not_stay_out(self, how):
        asked = {
            "config": lambda: mock.patch.object(
                tf.config.optimizer, "get_jit", lambda: "autoclustering"
            ),
            "flags": lambda: mock.patch.dict("os.environ", TF_XLA_FLAGS="--tf_xla_auto_jit=2"),
        }
        self.assertFalse(xla.may_be_xla())
        with asked[how]():
            self.assertTrue(xla.may_be_xla())
            key = tf.constant([-5, -7], tf.int32)
            inside = seeding.uniform_bits(key, [9])
        self.assertAllEqual(inside, seeding.uniform_bits(key, [9]))

    def test_a_graph_that_stays_out_of_xla_draws_by_one_operation(self):
        def draw(key):
            zeros = tf.zeros([9], tf.uint32)
            return tf.cond(key[0] < 0, lambda: seeding.uniform_bits(key, [9]), lambda: zeros)

        key = tf.constant([-5, -7], tf.int32)
        graph = tf.function(xla.never_in_xla(draw))
        self.assertAllEqual(draw(key), graph(key))
        self.assertAllEqual(draw(key), tf.function(draw)(key))
        compiled = tf.function(lambda key: tf.function(draw)(key), jit_compile=True)
        self.assertAllEqual(draw(key), compiled(key))
        library = graph.get_concrete_function(key).graph.as_graph_def().library
        ops = [node.op for function in library.function for node in function.node_def]
        self.assertEqual([op for op in ops if "Random" in op], ["StatelessRandomUniformFullInt"])

    def test_a_draw_inside_a_compiled_loop_is_the_draw_outside(self):
        @tf.function(jit_compile=True)
        def loop(key):
            out = tf.TensorArray(tf.float32, 4)
            for i in tf.range(4):
                out = out.write(i, seeding.uniform(seeding.fold_in(key, i), [3]))
            return out.stack()

        key = seeding.key(5)
        outside = [seeding.uniform(seeding.fold_in(key, i), [3]) for i in range(4)]
        self.assertAllEqual(loop(key), outside)


class RowsTest(parameterized.TestCase, tf.test.TestCase):
    @parameterized.named_parameters(DRAWS_BY_ROW.items())
    def test_eager_graph_and_xla_agree_to_the_bit(self, draw):
        keys = keys_of(seeding.key(11))
        eager = draw(keys).numpy()
        self.assertAllEqual(eager, tf.function(draw)(keys))
        self.assertAllEqual(eager, tf.function(draw, jit_compile=True)(keys))

    @parameterized.named_parameters(DRAWS_BY_ROW.items())
    def test_a_row_depends_on_its_key_only(self, draw):
        keys, others = keys_of(seeding.key(11)), keys_of(seeding.key(12))
        mixed = tf.where((tf.range(33) % 2 == 0)[:, tf.newaxis], keys, others)
        rows, mixed_rows = draw(keys).numpy(), draw(mixed).numpy()
        self.assertAllEqual(mixed_rows[::2], rows[::2])
        self.assertNotAllEqual(mixed_rows[1::2], rows[1::2])
        reverse = draw(tf.reverse(keys, [0])).numpy()
        self.assertAllEqual(reverse[::-1], rows)

    def test_numbers_are_those_of_split_mix_64(self):
        # Of the seed 1234567: https://rosettacode.org/wiki/Pseudo-random_numbers/Splitmix64
        numbers = [
            *(6457827717110365317, 3203168211198807973, 9817491932198370423),
            *(4593380528125082431, 16408922859458223821),
        ]
        keys = seeding.key(1234567)[tf.newaxis]
        want = np.array([numbers], np.uint64)
        self.assertAllEqual(seeding.uniform_bits(keys, [1, 5], tf.uint64), want)
        self.assertAllEqual(seeding.uniform_bits(keys, [1, 5]), want >> np.uint64(32))

    def test_rows_steps_and_numbers_are_independent(self):
        keys, steps = keys_of(seeding.key(5), 500), []
        for _ in range(20):
            steps.append(seeding.uniform(keys, [500, 4]).numpy())
            keys = seeding.next_keys(keys)
        u = np.stack(steps)  # [T, B, N]
        self.assertLen(np.unique(seeding.uniform_bits(keys, [500, 4], tf.uint64)), 2000)
        bits = np.unpackbits((u * 2**24).astype(">u4").view(np.uint8)).reshape(-1, 32)[:, 8:]
        self.assertAllClose(bits.mean(axis=0), np.full([24], 0.5), atol=4 * 0.5 / 200)
        self.assertAllClose([u.mean(), u.var()], [1 / 2, 1 / 12], atol=6e-3)
        for axis in range(3):
            a, b = np.delete(u, 0, axis).ravel(), np.delete(u, -1, axis).ravel()
            self.assertLess(abs(np.corrcoef(a, b)[0, 1]), 4 / np.sqrt(a.size))
        self.assertLess(abs(np.corrcoef(u[1:, :-1].ravel(), u[:-1, 1:].ravel())[0, 1]), 0.022)

    def test_each_bit_of_a_key_flips_half_of_the_bits(self):
        keys = seeding.split(seeding.key(6), 400)
        numbers = seeding.uniform_bits(keys, [400], tf.uint64).numpy()
        for word, bit in itertools.product(range(2), range(0, 32, 5)):
            flip = tf.one_hot(word, 2, on_value=1 << bit, off_value=0, dtype=tf.int32)
            flipped = tf.bitwise.bitwise_xor(keys, flip)
            changed = numbers ^ seeding.uniform_bits(flipped, [400], tf.uint64).numpy()
            share = np.unpackbits(changed.view(np.uint8)).mean()
            self.assertLess(abs(share - 0.5), 4 * 0.5 / np.sqrt(400 * 64))


class KeysTest(parameterized.TestCase, tf.test.TestCase):
    @parameterized.parameters(0, 1, 2**31, 2**32 + 3, 2**63 - 1, -1, -(2**63))
    def test_fold_in_of_int_int32_and_int64_agree(self, number):
        key = seeding.key(3)
        expected = seeding.fold_in(key, number)
        self.assertAllEqual(expected, seeding.fold_in(key, tf.constant(number, tf.int64)))
        if -(2**31) <= number < 2**31:
            self.assertAllEqual(expected, seeding.fold_in(key, tf.constant(number, tf.int32)))

    @parameterized.parameters(0, 5, 2**40 + 1, -7)
    def test_key_of_int_and_tensor_agree(self, seed):
        self.assertAllEqual(seeding.key(seed), seeding.key(tf.constant(seed, tf.int64)))

    def test_the_low_64_bits_of_a_seed_count(self):
        self.assertAllEqual(seeding.key(2**64 + 5), seeding.key(5))
        self.assertNotAllEqual(seeding.key(2**63), seeding.key(2**62))
        self.assertEqual(seeding.key(3).dtype, tf.int32)
        self.assertEqual(seeding.key(3).shape, [2])

    def test_other_seeds_are_refused(self):
        for seed in (1.5, "a", None, True, tf.constant(1.0), tf.constant([1])):
            with self.assertRaisesRegex(UserError, "seed: expected an integer"):
                seeding.key(seed)
        self.assertAllEqual(seeding.key(np.int64(7)), seeding.key(7))

    def test_children_are_distinct(self):
        key = seeding.key(0)
        folded = [seeding.fold_in(key, i) for i in range(200)]
        named = list(seeding.streams(key, ["rollout", "minibatch", "evaluation"]).values())
        split = tf.unstack(seeding.split(key, 50))
        every = [key, *folded, *named, *split]
        self.assertLen({tuple(k.numpy()) for k in every}, 1 + 200 + 3 + 50)

    def test_children_of_neighbouring_seeds_are_distinct(self):
        every = {
            tuple(seeding.fold_in(seeding.key(s), i).numpy())
            for s, i in itertools.product(range(20), range(20))
        }
        self.assertLen(every, 400)

    def test_streams_by_name(self):
        key = seeding.key(9)
        both = seeding.streams(key, ("a", "b"))
        self.assertAllEqual(both["a"], seeding.stream(key, "a"))
        self.assertNotAllEqual(both["a"], both["b"])

    def test_scheme_is_that_of_earlier_versions(self):
        # Golden numbers: if they change, so does every seeded run of every user.
        key = seeding.key(2024)
        self.assertAllEqual(key, [2024, 0])
        self.assertAllEqual(seeding.split(key, 2), GOLDEN["split"])
        self.assertAllEqual(seeding.fold_in(key, 1), GOLDEN["fold_in"])
        self.assertAllEqual(seeding.stream(key, "rollout"), GOLDEN["stream"])
        self.assertAllEqual(seeding.uniform(key, [3]), np.float32(GOLDEN["uniform"]))
        self.assertAllEqual(seeding.normal(key, [3]), np.float32(GOLDEN["normal"]))


class MomentsTest(tf.test.TestCase):
    def test_uniform(self):
        u = seeding.uniform(seeding.key(0), [100_000]).numpy()
        self.assertAllInRange(u, 0.0, 1.0, open_upper_bound=True)
        self.assertAllClose([u.mean(), u.var()], [1 / 2, 1 / 12], atol=5e-3)
        u = seeding.uniform(seeding.key(0), [1000], -3.0, 5.0).numpy()
        self.assertAllInRange(u, -3.0, 5.0)
        self.assertAllClose([u.min(), u.max()], [-3.0, 5.0], atol=0.05)

    def test_normal(self):
        z = seeding.normal(seeding.key(0), [100_000]).numpy()
        self.assertEqual(z.dtype, np.float32)
        moments = [z.mean(), (z**2).mean(), (z**3).mean(), (z**4).mean()]
        self.assertAllClose(moments, [0.0, 1.0, 0.0, 3.0], atol=0.06)

    def test_randint(self):
        n = seeding.randint(seeding.key(0), [1000], -2, 3).numpy()
        self.assertAllEqual(np.unique(n), [-2, -1, 0, 1, 2])
