"""The Learner on several replicas: the same numbers as on one device."""

import functools

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized

from tests.learners.learner_fakes import Dot, RegressionAgent, SumAgent, column
from tfrl import make_env, seeding, struct
from tfrl.agents.core import Update
from tfrl.agents.ppo import PPO
from tfrl.errors import UserError
from tfrl.keras import api as keras
from tfrl.learners import Learner, ModuleConfig
from tfrl.rollout import rollout

KEY = seeding.key(0)


def mirrored(n):
    return tf.distribute.MirroredStrategy([f"CPU:{i}" for i in range(n)])


def values(learner):
    return {path: np.array(v) for path, v in learner.variables().items()}


def assert_equal(test, one, other, atol=1e-5):
    found = values(other)
    for path, value in values(one).items():
        np.testing.assert_allclose(value, found[path], atol=atol, rtol=1e-5, err_msg=path)
    test.assertEqual(set(values(one)), set(found))


@functools.cache
def experience():
    env = make_env("tf:CartPole-v1", num_envs=8, autoreset="NEXT_STEP")
    agent = PPO(obs_spec=env.obs_spec, action_spec=env.action_spec, hidden=(16,))
    state = agent.init(KEY)

    @tf.function(autograph=False)
    def collect():
        trajectory, _, _ = rollout(env, agent, env.reset(KEY), state, KEY, 40)
        return agent.learner_batch(state, trajectory)[0]

    return agent, collect()


class MirroredTest(parameterized.TestCase):
    def test_ppo_on_shards_equals_one_device_on_the_whole_batch(self):
        self.check_shards(2, "graph")

    @pytest.mark.slow
    def test_ppo_on_more_shards_compiled_by_xla(self):
        self.check_shards(4, "xla")

    def check_shards(self, n, mode):
        # NEXT_STEP: some rows are invalid, and each replica has another number of them.
        agent, batch = experience()
        self.assertFalse(bool(tf.reduce_all(batch.mask)))
        config = ModuleConfig(lr=1e-2, grad_clip=0.1)
        one = Learner(agent, config=config)
        several = Learner(agent, config=config, strategy=mirrored(n))
        for learner in (one, several):
            learner.build(KEY)
        for _ in range(10):
            rows = one.update_from_batch(batch, compile="graph")
            others = several.update_from_batch(batch, compile=mode)
        assert_equal(self, one, several)
        for name, value in rows["default_policy"].items():
            self.assertAlmostEqual(value, others["default_policy"][name], places=4, msg=name)

    def test_shuffled_minibatches_are_those_of_one_device(self):
        agent, batch = experience()
        one, several = Learner(agent), Learner(agent, strategy=mirrored(2))
        for learner in (one, several):
            learner.build(KEY)
            learner.update_from_batch(batch, num_epochs=2, minibatch_size=64)
        assert_equal(self, one, several)

    @parameterized.parameters("graph", "xla", "eager")
    @pytest.mark.variants(1)
    def test_a_masked_loss_with_uneven_counts(self, mode):
        # Replica 0 has four valid rows, replica 1 a single one.
        rng = np.random.default_rng(0)
        batch = {
            "x": rng.normal(size=[8, 2]).astype(np.float32),
            "y": rng.normal(size=[8]).astype(np.float32),
            "mask": np.array([1, 1, 1, 1, 0, 0, 1, 0], bool),
        }
        learners = [
            Learner(RegressionAgent(delay=2), config=ModuleConfig(lr=0.1), strategy=s)
            for s in (None, mirrored(2))
        ]
        for learner in learners:
            learner.build(KEY)
            for _ in range(10):
                learner.update_from_batch(batch, shuffle=False, compile=mode)
        assert_equal(self, *learners)

    def test_gradients_are_clipped_after_their_sum(self):
        # Replica 0 has gradient (-2, 0), replica 1 (0, -2): the mean (-1, -1) has norm sqrt 2, and
        # clipped to 0.5 is -0.5 / sqrt 2 each. Clipped before, it would be (-0.25, -0.25).
        batch = {"x": np.eye(2, dtype=np.float32), "y": np.ones([2], np.float32)}
        learner = Learner(
            RegressionAgent(),
            config=ModuleConfig(lr=1.0, grad_clip=0.5),
            optimizer_fn=lambda c: keras.optimizers.legacy.SGD(),
            strategy=mirrored(2),
        )
        learner.build(KEY)
        row = learner.update_from_batch(batch, shuffle=False)["default_policy"]
        self.assertAlmostEqual(row["critic/grad_norm"], 2**0.5, places=5)
        np.testing.assert_allclose(
            learner.state.params["critic"].numpy(), [0.5 / 2**0.5] * 2, rtol=1e-5
        )

    @parameterized.parameters("graph", "xla")
    @pytest.mark.variants(1)
    def test_a_nonfinite_row_of_one_replica_stops_the_step_on_all(self, mode):
        learner = Learner(SumAgent(), strategy=mirrored(2), check_numerics="skip")
        learner.build(KEY)
        before = values(learner)
        batch = {"x": np.array([1.0, np.nan, 1.0, 1.0], np.float32)}
        learner.update_from_batch(batch, minibatch_size=4, compile=mode)
        self.assertEqual(int(learner.skipped_steps.numpy()), 1)
        for path, value in values(learner).items():
            if path.startswith(("modules/default_policy/params", "optimizers")):
                np.testing.assert_array_equal(value, before[path], err_msg=path)
        learner.update_from_batch(batch, minibatch_size=2, shuffle=False, compile=mode)
        for v in learner.get_parameters():
            copies = learner.replicas.strategy.experimental_local_results(v)
            np.testing.assert_array_equal(copies[0], copies[1])
            self.assertFalse(np.array_equal(copies[0], before["modules/default_policy/params/b"]))

    def test_state_goes_between_one_device_and_several(self):
        agent, batch = experience()
        one, several = Learner(agent), Learner(agent, strategy=mirrored(2))
        for learner in (one, several):
            learner.build(KEY)
        one.update_from_batch(batch)
        several.set_state(one.get_state())
        for learner in (one, several):
            learner.update_from_batch(batch)
        assert_equal(self, one, several)
        clone = several.clone()
        clone.update_from_batch(batch)
        several.update_from_batch(batch)
        assert_equal(self, several, clone, atol=0)

    @pytest.mark.slow
    def test_modules_come_and_go(self):
        batch = column([1.0, 2.0], [-3.0, 4.0], [0.5, -6.0], [7.0, 8.0])
        learners = [Learner({"a": Dot()}, strategy=s) for s in (None, mirrored(2))]
        for learner in learners:
            learner.build(KEY)
            learner.update_from_batch({"a": batch})
            learner.add_module("b", Dot())
            learner.copy_module("a", "c")
            learner.update_from_batch({m: batch for m in "abc"})
            learner.remove_module("a")
            learner.update_from_batch({m: batch for m in "bc"})
        assert_equal(self, *learners)

    def test_sizes_that_do_not_divide_name_the_nearest(self):
        learner = Learner(SumAgent(), strategy=mirrored(2))
        learner.build(KEY)
        with pytest.raises(
            UserError,
            match="minibatch_size of module 'default_policy': expected a multiple of the 2 "
            "replicas, got 3. The nearest multiples are 2 and 4.",
        ):
            learner.update_from_batch({"x": np.ones([9], np.float32)}, minibatch_size=3)

    @pytest.mark.slow
    def test_any_keras_optimizer(self):
        batch = {"x": np.ones([4, 2], np.float32), "y": np.ones([4], np.float32)}
        for make in (keras.optimizers.AdamW, keras.optimizers.legacy.RMSprop):
            learners = [
                Learner(RegressionAgent(), optimizer_fn=lambda c, m=make: m(), strategy=s)
                for s in (None, mirrored(2))
            ]
            for learner in learners:
                learner.build(KEY)
                for _ in range(3):
                    learner.update_from_batch(batch)
            assert_equal(self, *learners)

    def test_a_thousand_updates_trace_once(self):
        learner = Learner(SumAgent(), strategy=mirrored(2))
        learner.build(KEY)
        for i in range(100):
            learner.update_from_batch({"x": np.ones([4], np.float32)}, timesteps=i)
        self.assertEqual(learner.trace_count, 1)

    def test_losses_of_one_step_share_a_tape(self):
        # d/da (a - b)^2 + d/da (a + b)^2 = 4 a, whatever the replicas.
        learner = Learner(
            {"a": Pair(sign=-1.0), "b": Pair(sign=1.0)},
            shared={"a/w": ["b/w"]},
            config=ModuleConfig(lr=0.1, grad_clip=None),
            optimizer_fn=lambda c: keras.optimizers.legacy.SGD(),
            strategy=mirrored(2),
        )
        learner.build(KEY)
        self.assertIs(learner.get_parameters("a")[0], learner.get_parameters("b")[0])
        batch = {"x": np.ones([2], np.float32)}
        learner.update_from_batch({"a": batch, "b": batch})
        np.testing.assert_allclose(learner.get_parameters("a")[0].numpy(), [3.0 - 0.1 * 12.0])


@struct.logic_dataclass
class Pair(SumAgent):
    """Loss (w + sign)^2."""

    sign: float = 1.0

    def init(self, key):
        return super().init(key).replace(params={"w": tf.constant([3.0])}, extra=None)

    @property
    def updates(self):
        return (Update(name="w", groups=("w",), loss=self.loss),)

    def loss(self, params, state, batch, key):
        return tf.reduce_mean(batch["x"]) * tf.reduce_sum((params["w"] + self.sign) ** 2), {}

    def before_update(self, state, timesteps):
        return state


if __name__ == "__main__":
    tf.test.main()
