"""Agents of this library as TF-Agents': what `train` computes, and what checkpoints hold."""

import functools
import tempfile

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized
from tf_agents.agents.tf_agent import LossInfo, TFAgent
from tf_agents.trajectories import StepType
from tf_agents.utils import common

import tfrl
from tfrl import agents, seeding, struct
from tfrl.compat import tf_agents as compat
from tfrl.errors import UserError
from tfrl.learners import Learner, ModuleConfig
from tfrl.rollout import rollout
from tfrl.types import Trajectory, Transition

KEY = seeding.key(3)
LAST = int(StepType.LAST)
KINDS = {
    "sac": (agents.SAC, "tf:Pendulum-v1", {"normalize_obs": True}),
    "td3": (agents.TD3, "tf:Pendulum-v1", {"n_step": 3}),
    "dqn": (agents.DQN, "tf:Masked", {"target_every": 2}),
    "ppo": (agents.PPO, "tf:Pendulum-v1", {"normalize_obs": True}),
    "ppo_memory": (agents.PPO, "tf:Masked", {"memory": "gru", "memory_size": 4}),
    "impala": (agents.Impala, "tf:CartPole-v1", {}),
}
ON_POLICY = [name for name, (cls, *_) in KINDS.items() if not cls.learns_from_replay]


@functools.cache
def environment(env_id):
    """Episodes of four steps, so that a few frames hold boundaries."""
    return tfrl.make_env(env_id, 4, "NEXT_STEP", max_episode_steps=4)


def logic(name):
    kind, env_id, kwargs = KINDS[name]
    env = environment(env_id)
    return kind(obs_spec=env.obs_spec, action_spec=env.action_spec, hidden=(8,), **kwargs)


def made(name, **kwargs):
    counter = tf.Variable(0, dtype=tf.int64, trainable=False)
    return compat.as_tf_agent(logic(name), train_step_counter=counter, **kwargs)


@functools.cache
def steps(name, length=12):
    """A rollout of the agent that `made` makes, by this library."""
    agent = logic(name)
    learner = Learner(agent)
    learner.build(seeding.key(0))
    env = environment(KINDS[name][1])
    play = tf.function(
        lambda: rollout(env, agent, env.reset(KEY), struct.values(learner.state), KEY, length)
    )
    return play()[0]


def windows(name, length):
    """All windows of the frames of that rollout, those that begin with a boundary among them."""
    frames = compat.to_trajectory(steps(name))
    num = frames.step_type.shape[1] - length + 1
    cut = [tf.nest.map_structure(lambda x, i=i: x[:, i : i + length], frames) for i in range(num)]
    return tf.nest.map_structure(lambda *x: tf.concat(x, 0), *cut)


def experience(name):
    agent = logic(name)
    if name in ON_POLICY:
        return compat.to_trajectory(steps(name))
    return windows(name, agent.n_step + 1)._replace(policy_info=())


def values(agent):
    return {p: v.numpy() for p, v in agent.learner.variables().items()}


@functools.cache
def train_of(agent):
    """Traced once for each agent."""
    return common.function(agent.train)


def trained(agent, batch, times=1):
    for _ in range(times):
        info = train_of(agent)(batch)
    return info


def assert_equal(a, b):
    assert a.keys() == b.keys()
    for name in a:
        np.testing.assert_array_equal(a[name], b[name], err_msg=name)


class AgentTest(parameterized.TestCase):
    @parameterized.parameters(*KINDS)
    @pytest.mark.variants(1)
    def test_specs_and_one_train(self, name):
        agent = made(name)
        self.assertIsInstance(agent, TFAgent)
        env = compat.as_tf_environment(environment(KINDS[name][1]))
        self.assertEqual(agent.time_step_spec, env.time_step_spec())
        self.assertEqual(agent.action_spec, env.action_spec())
        self.assertEqual(agent.collect_data_spec, agent.collect_policy.trajectory_spec)
        self.assertEqual(agent.training_data_spec, agent.collect_data_spec)
        length = None if name in ON_POLICY else getattr(logic(name), "n_step", 0) + 1
        self.assertEqual(agent.train_sequence_length, length)
        batch = experience(name)
        tf.nest.assert_same_structure(batch, agent.training_data_spec)
        before = values(agent)
        loss = agent.loss(batch)
        assert_equal(values(agent), before)
        agent.initialize()
        info = trained(agent, batch)
        self.assertIsInstance(info, LossInfo)
        self.assertTrue(np.isfinite(info.loss))
        self.assertTrue(np.isfinite(loss.loss))
        self.assertEqual(agent.train_step_counter, 1)
        learnt = np.sum(steps(name).valid) if name in ON_POLICY else 1
        self.assertEqual(agent.learner.env_steps, learnt)
        after = values(agent)
        moved = {p for p in before if not np.array_equal(before[p], after[p])}
        groups = [g for u in logic(name).updates if u.every == 1 for g in u.groups]
        for group in groups:
            self.assertTrue(any(f"/params/{group}" in p for p in moved), group)
        # What it acts by is what it has learnt.
        acting = {v.ref() for v in tf.nest.flatten(agent.learner.state)}
        self.assertTrue({v.ref() for v in agent.collect_policy.variables()} <= acting)

    @pytest.mark.slow
    def test_checkpoint_goes_on_exactly(self):
        self.check_checkpoint("dqn")

    @pytest.mark.slow
    def test_checkpoints_of_others_go_on_exactly(self):
        for name in ("sac", "td3", "ppo", "ppo_memory"):
            self.check_checkpoint(name)

    def check_checkpoint(self, name):
        first, batch = made(name), experience(name)
        trained(first, batch, 3)
        with tempfile.TemporaryDirectory() as folder:
            path = tf.train.Checkpoint(agent=first).write(folder + "/agent")
            trained(first, batch, 2)
            second = made(name, seed=9)
            tf.train.Checkpoint(agent=second).read(path).assert_consumed()
        self.assertEqual(second.train_step_counter, 3)
        trained(second, batch, 2)
        assert_equal(values(second), values(first))
        self.assertEqual(second.train_step_counter, 5)

    def test_env_steps_drive_schedules(self):
        steps_so_far = tf.Variable(0, dtype=tf.int64)
        epsilon = [[0, 1.0], [100, 0.0]]
        agent = compat.as_tf_agent(
            logic("dqn").replace(epsilon=epsilon),
            train_step_counter=tf.Variable(0, dtype=tf.int64),
            env_steps=steps_so_far.read_value,
            learner_config=ModuleConfig(lr=[[0, 1e-3], [100, 0.0]]),
        )
        steps_so_far.assign(50)
        info = trained(agent, experience("dqn"))
        self.assertAlmostEqual(float(info.extra["learning_rate"]), 5e-4)
        self.assertAlmostEqual(float(agent.learner.state.extra["epsilon"]), 0.5)

    @pytest.mark.slow
    def test_xla(self):
        batch = experience("td3")
        plain, compiled = made("td3"), made("td3", compile="xla")
        for agent in (plain, compiled):
            trained(agent, batch, 2)
        ours, theirs = values(plain), values(compiled)
        for name in ours:
            np.testing.assert_allclose(theirs[name], ours[name], atol=1e-5, err_msg=name)


class OffPolicyTest(parameterized.TestCase):
    @pytest.mark.slow
    def test_is_a_learner_step_on_n_step_transitions(self):
        name, agent = "td3", made("td3")
        n = logic(name).n_step
        batch = windows(name, n + 1)
        begins = np.flatnonzero(batch.step_type[:, 0].numpy() != LAST)
        kept = tf.nest.map_structure(lambda x: tf.gather(x, begins), batch)
        items = transitions_by_hand(kept, n, 0.99)
        learner = Learner(logic(name), config=ModuleConfig(adam_epsilon=1e-8))
        learner.build(seeding.key(0))
        key = seeding.fold_in(seeding.stream(learner.key.read_value(), "tf_agents/train"), 0)

        def update():
            return learner.update(items, key=key, timesteps=tf.constant(1, tf.int64), shuffle=False)

        tf.function(update, autograph=False)()
        trained(agent, kept)
        ours, theirs = learner.variables(), agent.learner.variables()
        for path in ours:
            np.testing.assert_allclose(theirs[path], ours[path], atol=1e-6, err_msg=path)

    @pytest.mark.slow
    def test_windows_that_begin_with_a_boundary_do_not_count(self):
        batch = windows("dqn", 2)
        boundary = batch.step_type[:, 0] == LAST
        self.assertGreater(int(tf.reduce_sum(tf.cast(boundary, tf.int32))), 3)
        other = batch._replace(
            reward=tf.where(boundary[:, None], 1e6, batch.reward),
            discount=tf.where(boundary[:, None], 0.0, batch.discount),
        )
        first, second = made("dqn"), made("dqn")
        trained(first, batch)
        trained(second, other)
        assert_equal(values(first), values(second))

    def test_weights(self):
        batch = windows("dqn", 2)
        rows = batch.reward.shape[0]
        agent = made("dqn")
        one = float(agent.loss(batch).loss)
        self.assertAlmostEqual(float(agent.loss(batch, weights=2.0).loss), 2 * one, places=5)
        self.assertAlmostEqual(float(agent.loss(batch, weights=tf.zeros([rows])).loss), 0.0)
        kept = agent.train(batch, weights=tf.zeros([rows]))
        self.assertEqual(float(kept.loss), 0.0)

    @pytest.mark.slow
    def test_statistics_are_those_of_first_steps(self):
        agent, batch = made("sac"), windows("sac", 2)
        trained(agent, batch, 2)
        obs = batch.observation.numpy()[:, 0][batch.step_type[:, 0].numpy() != LAST]
        stats = agent.learner.state.normalizer
        self.assertEqual(float(stats.count), 2 * len(obs))
        np.testing.assert_allclose(stats.mean, obs.mean(0), atol=1e-5)


def transitions_by_hand(batch, n, gamma):
    """Plain loops over windows [N, n + 1] that begin with a step."""
    rows = []
    for i in range(batch.reward.shape[0]):
        total, factor, k = 0.0, 1.0, 0
        while k < n and batch.step_type[i, k] != LAST:
            total += factor * float(batch.reward[i, k])
            factor *= gamma if float(batch.discount[i, k]) else 0.0
            k += 1
        rows.append(
            (batch.observation[i, 0], batch.action[i, 0], total, batch.observation[i, k], factor)
        )
    obs, action, reward, next_obs, discount = zip(*rows, strict=True)
    return Transition(
        obs=tf.stack(obs),
        action=tf.stack(action),
        reward=tf.constant(reward, tf.float32),
        next_obs=tf.stack(next_obs),
        discount=tf.constant(discount, tf.float32),
    )


class OnPolicyTest(parameterized.TestCase):
    def test_is_the_update_of_the_library(self):
        self.check_update("ppo")

    @pytest.mark.slow
    def test_is_the_update_of_the_library_with_memory(self):
        self.check_update("ppo_memory")

    def check_update(self, name):
        played: Trajectory = steps(name)
        agent = made(name, num_epochs=2, num_minibatches=2)
        trained(agent, compat.to_trajectory(played))
        learner = Learner(logic(name), config=ModuleConfig(grad_clip=0.5))
        learner.build(seeding.key(0))
        key = seeding.fold_in(seeding.stream(learner.key.read_value(), "tf_agents/train"), 0)
        rows = logic(name).num_rows(12, 4)

        def update():
            state = struct.values(learner.state)
            batch, _ = logic(name).learner_batch(state, played)
            count = tf.reduce_sum(tf.cast(played.valid, tf.int64))
            learner.update(
                batch,
                key=key,
                timesteps=tf.constant(0, tf.int64),
                num_epochs=2,
                minibatch_size=rows // 2,
            )
            learner.env_steps.assign(count)
            learner.assign("default_policy", state, logic(name).update_normalizer(state, played))

        tf.function(update, autograph=False)()
        ours, theirs = learner.variables(), agent.learner.variables()
        for path in ours:
            np.testing.assert_allclose(theirs[path], ours[path], atol=1e-6, err_msg=path)

    @pytest.mark.slow
    def test_sequences_of_an_open_length(self):
        batch = experience("ppo")
        fixed = made("ppo", num_epochs=1, num_minibatches=1)
        padded = made("ppo", num_epochs=1, num_minibatches=1, max_sequence_length=16)
        spec = tf.nest.map_structure(
            lambda x: tf.TensorSpec([4, None, *x.shape[2:]], x.dtype), batch
        )
        train = tf.function(padded.train, input_signature=[spec], autograph=False)
        self.assertAlmostEqual(
            float(train(batch).loss), float(trained(fixed, batch).loss), places=3
        )
        ours, theirs = values(padded), values(fixed)
        for name in ours:
            np.testing.assert_allclose(theirs[name], ours[name], atol=1e-4, err_msg=name)
        with self.assertRaisesRegex(tf.errors.InvalidArgumentError, "at most max_sequence_length"):
            short = made("ppo", max_sequence_length=7)
            tf.function(short.train, input_signature=[spec], autograph=False)(batch)

    @pytest.mark.slow
    def test_what_is_preprocessed(self):
        agent = made(
            "ppo", compute_value_and_advantage_in_train=False, update_normalizers_in_train=False
        )
        batch = experience("ppo")
        found = agent.preprocess_sequence(batch)
        tf.nest.assert_same_structure(found, agent.training_data_spec)
        for x, s in zip(
            tf.nest.flatten(found), tf.nest.flatten(agent.training_data_spec), strict=True
        ):
            self.assertEqual((x.dtype, x.shape[2:]), (s.dtype, s.shape))
        state = struct.values(agent.learner.state)
        rows, _ = logic("ppo").learner_batch(state, steps("ppo"))
        for path, x in struct.paths(rows).items():
            shown = tf.transpose(tf.reshape(tf.cast(x, tf.float32), [12, 4, -1]), [1, 0, 2])
            got = tf.reshape(tf.cast(found.policy_info[path], tf.float32), [4, 13, -1])
            np.testing.assert_allclose(got[:, :12], shown, atol=1e-6, err_msg=path)
        self.assertFalse(np.any(found.policy_info["mask"][:, 12]))
        one = agent.preprocess_sequence(tf.nest.map_structure(lambda x: x[2], batch))
        np.testing.assert_allclose(
            one.policy_info["advantage"], found.policy_info["advantage"][2], atol=1e-5
        )
        before = values(agent)
        info = trained(agent, tf.nest.map_structure(lambda x: x[:, 3:7], found))
        self.assertEqual(float(info.extra["gradient_steps"]), 1.0)
        self.assertFalse(
            all(np.array_equal(before[p], x) for p, x in values(agent).items() if "/params/" in p)
        )


class WrongTest(parameterized.TestCase):
    def test_arguments(self):
        for name, kwargs, message in (
            ("ppo", {"num_minibatches": 0}, "num_minibatches: expected a whole number"),
            ("ppo", {"check_numerics": "raise"}, "check_numerics: expected one of skip, off"),
            ("ppo", {"compile": "eager"}, "compile: expected one of graph, xla"),
            (
                "impala",
                {"compute_value_and_advantage_in_train": False},
                "True for Impala, which learns from sequences",
            ),
        ):
            with self.assertRaisesRegex(UserError, message):
                compat.as_tf_agent(logic(name), **kwargs)

    def test_what_does_not_learn(self):
        env = environment("tf:CartPole-v1")
        random = agents.RandomAgent(obs_spec=env.obs_spec, action_spec=env.action_spec)
        for wrong, got in ((random, "got RandomAgent"), (agents.SAC, "got the class SAC")):
            with self.assertRaisesRegex(UserError, f"a learning agent.*{got}"):
                compat.as_tf_agent(wrong)

    def test_open_sizes(self):
        agent = made("dqn")
        spec = tf.nest.map_structure(
            lambda s: tf.TensorSpec([None, 2, *s.shape], s.dtype), agent.training_data_spec
        )
        train = tf.function(agent.train, input_signature=[spec], autograph=False)
        with self.assertRaisesRegex(tf.errors.InvalidArgumentError, "drop_remainder=True"):
            train(windows("dqn", 2))

    def test_weights_of_rollouts(self):
        with self.assertRaisesRegex(UserError, "weights of train: expected None"):
            made("ppo").train(experience("ppo"), weights=1.0)

    @parameterized.parameters(("td3", 3), ("td3", 5), ("dqn", 3))
    def test_windows_of_another_length(self, name, length):
        n = logic(name).n_step + 1
        with self.assertRaisesRegex(UserError, rf"expected windows \[B, {n}\].*num_steps=agent"):
            made(name).train(windows(name, length)._replace(policy_info=()))

    def test_experience_without_a_time_axis(self):
        flat = tf.nest.map_structure(lambda x: x[:, 0], experience("ppo"))
        with self.assertRaisesRegex(UserError, r"experience of train: expected frames \[B, T\]"):
            made("ppo").train(flat)
