"""What the Learner is fed: masks, padding, names, sizes, and what it refuses."""

import inspect
import logging

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized

from tests.learners.learner_fakes import PLAIN, Held, built, param
from tfrl import make_env, ops, seeding, struct
from tfrl.agents.ppo import PPO
from tfrl.episodes import MultiAgentEpisode, SingleAgentEpisode
from tfrl.errors import UserError
from tfrl.keras import api as keras
from tfrl.learners import KerasModule, Learner, Module, ModuleConfig, batches
from tfrl.learners.minibatches import plan_minibatches

pytestmark = pytest.mark.usefixtures("_eager_updates")


@struct.logic_dataclass
class Line(Module):
    """Least squares of y on x, over what counts; `extra` are further metrics."""

    width: int = 4
    extra: tuple = ()

    def init_params(self, key):
        return {"w": seeding.normal(key, [self.width])}

    def forward(self, params, batch, key):
        return tf.linalg.matvec(batch["x"], params["w"])

    def loss(self, params, batch, outputs, key):
        counts = batches.counted(batch)
        loss = ops.masked_mean(tf.square(outputs - batch["y"]), counts)
        return loss, dict(self.extra)


def rows(n=12):
    x = np.random.RandomState(0).normal(size=[n, 4]).astype(np.float32)
    return {"x": x, "y": x.sum(1)}


def mirrored(n):
    return tf.distribute.MirroredStrategy([f"CPU:{i}" for i in range(n)])


def episode(steps, seed=0, extras=True, **kwargs):
    rng = np.random.default_rng(seed)
    found = SingleAgentEpisode(**kwargs)
    found.add_env_reset(rng.normal(size=[4]).astype(np.float32))
    for t in range(steps):
        found.add_env_step(
            rng.normal(size=[4]).astype(np.float32),
            rng.integers(2),
            1.0,
            truncated=t + 1 == steps,
            extra_model_outputs={"log_prob": np.float32(-0.69)} if extras else {},
        )
    return found


def ppo():
    env = make_env("tf:CartPole-v1", num_envs=2)
    return PPO(obs_spec=env.obs_spec, action_spec=env.action_spec, hidden=(8,))


class MaskTest(parameterized.TestCase):
    def test_padding_joins_every_mask(self):
        index = tf.constant([1, -1])
        loss_mask = tf.constant([[True, False], [True, True]])
        batch = {"x": tf.zeros([2, 2]), "loss_mask": loss_mask}
        taken = batches.take(batch, index, padded=True)
        expected = [[True, True], [False, False]]
        self.assertAllEqual(taken["loss_mask"], expected)
        self.assertAllEqual(taken["mask"], expected)
        self.assertEqual(batches.valid_rows(taken), 2.0)
        batch = {"x": tf.zeros([2, 3]), "seq_lens": tf.constant([3, 2]), "state_in": tf.zeros([2])}
        taken = batches.take(batch, index, padded=True)
        self.assertAllEqual(taken["seq_lens"], [2, 0])
        self.assertAllEqual(taken["mask"], [[True, True, False], [False, False, False]])
        self.assertEqual(batches.valid_rows(taken), 2.0)

    @parameterized.parameters(
        ({"mask": [True, True, False]}, 2),
        ({"mask": [True, True, False], "loss_mask": [True, False, True]}, 1),
        ({"seq_lens": [2, 1, 1]}, 4),  # T is not known: the leaf x is [3]
        ({"seq_lens": [2, 1, 1], "mask": [True, False, True]}, 3),
        ({}, 3),
    )
    def test_what_counts(self, leaves, expected):
        batch = {"x": tf.zeros([3]), **{k: tf.constant(v) for k, v in leaves.items()}}
        self.assertEqual(batches.valid_rows(batch), expected)

    def test_sequences_beside_lengths_get_a_mask(self):
        batch = {"x": np.zeros([2, 3, 4], "f"), "y": np.zeros([2, 3], "f"), "seq_lens": [1, 3]}
        batch["seq_lens"] = np.array(batch["seq_lens"])
        found = batches.whole_sequences(batch)
        self.assertAllEqual(found["mask"], [[True, False, False], [True, True, True]])

    @parameterized.parameters("mask", "loss_mask")
    @pytest.mark.variants(1)
    def test_padding_under_replicas_equals_one_device(self, name):
        batch = {**rows(10), name: np.arange(10) % 3 > 0}
        one, two = built(Line()), built(Line(), strategy=mirrored(2))
        for learner in (one, two):
            learner.update_from_batch(batch, 1, 4, False, "pad")
        np.testing.assert_allclose(
            param(one, "default_policy"), param(two, "default_policy"), rtol=1e-5
        )

    def test_a_keras_module_regards_the_loss_mask(self):
        model = keras.Sequential([keras.Input([4]), keras.layers.Dense(1)])
        module = KerasModule(model=model, loss_fn="mse")
        good = rows(4)
        bad = {"x": np.concatenate([good["x"], good["x"]]), "y": np.append(good["y"], [1e3] * 4)}
        bad = {"x": bad["x"], "y": bad["y"].astype("f"), "loss_mask": np.arange(8) < 4}
        found = [built(module).update_from_batch(b)["default_policy"]["loss"] for b in (good, bad)]
        np.testing.assert_allclose(*found, rtol=1e-6)

    def assertAllEqual(self, found, expected):  # noqa: N802
        np.testing.assert_array_equal(np.asarray(found), np.asarray(expected))


class RefusedTest(parameterized.TestCase):
    @parameterized.parameters(
        (None, "the batch: expected {module_id: rows}, or the rows of the only module"),
        ((np.zeros([3]),), "got tuple"),
        (np.zeros([3]), "got ndarray"),
        ({"x": tf.ragged.constant([[1.0], [1.0, 2.0]])}, "got 'x' of module 'default_policy'"),
        ({"x": np.array([[1], [1, 2]], object)}, "(ndarray)"),
    )
    def test_batches_that_are_none(self, batch, message):
        with self.assertRaises(UserError) as error:
            built(Line()).update_from_batch(batch)
        self.assertIn(message, str(error.exception))

    @parameterized.parameters("loss", "grad_norm", "gradient_steps", "a/learning_rate")
    def test_names_that_are_taken(self, name):
        with self.assertRaises(UserError) as error:
            built(Line(extra=((name, 1.0),))).update_from_batch(rows())
        self.assertIn("names other than the Learner's own metrics", str(error.exception))
        self.assertIn(f"got {name!r}", str(error.exception))

    def test_metrics_of_text(self):
        with self.assertRaises(UserError) as error:
            built(Line(extra=(("m", "text"),))).update_from_batch(rows())
        self.assertIn("expected numeric scalars, got m of dtype string", str(error.exception))

    def test_iterators_and_episodes(self):
        learner = built(Line())
        with self.assertRaisesRegex(UserError, "expected an iterable of batches, got int"):
            learner.update_from_iterator(5, 2)
        with self.assertRaisesRegex(UserError, "episodes: expected SingleAgentEpisodes .* got int"):
            learner.update_from_episodes(5)

    def test_all_rows_that_replicas_do_not_divide(self):
        learner = built(Line(), strategy=mirrored(2))
        with self.assertRaisesRegex(
            UserError, "the batch of module .* got 5 rows in one minibatch"
        ):
            learner.update_from_batch(rows(5))
        for kind in ("pad", "wrap", "drop"):
            result = learner.update_from_batch(rows(5), remainder=kind)
            self.assertEqual(result["default_policy"]["gradient_steps"], 1)


class AcceptedTest(parameterized.TestCase):
    def test_options_by_position_in_this_order(self):
        names = list(inspect.signature(Learner.update_from_batch).parameters)
        expected = ["batch", "num_epochs", "minibatch_size", "shuffle", "remainder"]
        self.assertEqual(names[1:8], [*expected, "num_total_minibatches", "timesteps"])
        row = built(Line()).update_from_batch(rows(), 3, 4)["default_policy"]
        self.assertEqual(row["gradient_steps"], 9)

    def test_numbers_of_numpy(self):
        config = ModuleConfig(lr=np.float32(0.125), minibatch_size=np.int64(4), grad_clip=None)
        learner = built(Line(), config=config)
        batch = {k: v.astype(np.float64) for k, v in rows().items()}
        row = learner.update_from_batch(batch, num_epochs=np.int64(2))["default_policy"]
        self.assertEqual((row["gradient_steps"], row["learning_rate"]), (6, 0.125))
        learner.update_from_batch(
            batch, minibatch_size=np.int32(6), num_total_minibatches=np.int8(2)
        )
        learner.update_from_iterator([batch] * 2, np.int64(2))

    def test_columns_that_are_dicts_are_no_module_ids(self):
        batch = {"obs": {"x": rows()["x"]}}
        self.assertEqual(list(batches.by_module(batch, ["default_policy"])), ["default_policy"])
        with self.assertRaisesRegex(UserError, "of which \\['obs'\\] are unknown"):
            batches.by_module(batch, ["a", "b"])

    def test_the_seed_changes_the_minibatches(self):
        def order(seed):
            learner = Learner(Line(), config=PLAIN)
            learner.build(seed)
            return np.asarray(learner._default_key())

        self.assertFalse(np.array_equal(order(0), order(1)))
        np.testing.assert_array_equal(order(1), order(1))

    def test_timesteps_count_where_nothing_is_trained(self):
        learner = built({"a": Line(), "b": Line()}, policies_to_train=[])
        report = learner.update_from_batch({"a": rows()}, timesteps=70)
        self.assertEqual(report["__all_modules__"]["env_steps"], 70)
        with self.assertRaisesRegex(UserError, "timesteps: expected the number of env steps"):
            learner.update_from_batch({"a": rows()}, timesteps=-1)

    @parameterized.parameters(3.0, ([1.0, 2.0],), ([1, 2, 3],), True)
    def test_keys_that_are_none(self, key):
        with self.assertRaisesRegex(
            UserError, "key: expected an int32 tensor of shape .2., or a seed"
        ):
            built(Line()).update_from_batch(rows(), key=key)

    def test_a_seed_is_a_key(self):
        def after(key):
            learner = built(Line())
            learner.update_from_batch(rows(), 1, 4, key=key)
            return param(learner, "default_policy")

        np.testing.assert_array_equal(after(5), after(seeding.key(5)))
        self.assertFalse(np.array_equal(after(5), after(6)))

    def test_drop_shows_every_row_of_the_smaller_module(self):
        plan = plan_minibatches({"a": 12, "b": 6}, 4, remainder="drop")
        self.assertEqual(
            {m: p.remainder for m, p in plan.modules.items()}, {"a": "drop", "b": "wrap"}
        )

    def test_update_in_a_plain_function_is_silent(self):
        learner = built(Line())
        batch = {k: tf.constant(v) for k, v in rows().items()}

        @tf.function
        def train():
            return learner.update(batch, key=seeding.key(0), timesteps=tf.constant(1, tf.int64))

        with self.assertNoLogs(logging.getLogger("tensorflow"), "WARNING"):
            train()
        self.assertIn("num_epochs", inspect.signature(Learner.update).parameters)


class EpisodesTest(parameterized.TestCase):
    @pytest.mark.slow
    def test_held_modules_need_no_values(self):
        def both(agents):
            rng = np.random.default_rng(0)
            found = MultiAgentEpisode(agent_to_module_mapping_fn=lambda a, *_, **__: agents[a])
            found.add_env_reset({a: rng.normal(size=4).astype("f") for a in agents})
            for t in range(6):
                found.add_env_step(
                    {a: rng.normal(size=4).astype("f") for a in agents},
                    dict.fromkeys(agents, 1),
                    dict.fromkeys(agents, 1.0),
                    truncated=t == 5,
                    extra_model_outputs={"p": {"log_prob": np.float32(-0.69)}},
                )
            return found

        for rival, chosen in ((Held(), None), (Line(), ["learned"])):
            learner = built({"learned": ppo(), "rival": rival}, policies_to_train=chosen)
            report = learner.update_from_episodes([both({"p": "learned", "q": "rival"})])
            self.assertEqual(sorted(report), ["__all_modules__", "learned"])
            report = learner.update_from_episodes([both({"p": "rival", "q": "rival"})], timesteps=9)
            self.assertEqual(sorted(report), ["__all_modules__"])
            self.assertEqual(report["__all_modules__"]["env_steps"], 9)

    def test_one_episode_and_its_metrics_in_the_logger(self):
        learner = built(ppo())
        row = learner.update_from_episodes(episode(5))["default_policy"]
        logged = learner.metrics.reduce()["default_policy"]
        for name in ("explained_variance", "value_mean"):
            np.testing.assert_allclose(logged[name], row[name], rtol=1e-6)

    def test_odd_numbers_of_steps_under_replicas(self):
        learner = built(ppo(), strategy=mirrored(2))
        row = learner.update_from_episodes([episode(5)])["default_policy"]
        self.assertEqual(row["gradient_steps"], 1)
