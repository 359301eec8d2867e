"""IMPALA: V-trace in the loss against NumPy, on and off policy, at truncations, in sequences."""

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized

import tfrl
from tfrl import ops, seeding, specs, struct
from tfrl.agents import APPO, Impala
from tfrl.agents.actor_critic import batch as batch_lib
from tfrl.agents.impala.losses import ImpalaBatch, impala_loss, successor_values
from tfrl.errors import UserError
from tfrl.rollout import rollout

KEY = seeding.key(13)
GAMMA = 0.9
STEPS, ROWS = 7, 3


@struct.dataclass
class Given(struct.Struct):
    """A policy whose log-probabilities and entropies are given."""

    chosen: tf.Tensor
    entropies: tf.Tensor

    def log_prob(self, action):
        return self.chosen

    def entropy(self):
        return self.entropies


def scripted(seed=0, masked=False):
    """Time-major rows with ends of both kinds, as float32."""
    rng = np.random.default_rng(seed)
    floats = lambda: rng.normal(size=[STEPS, ROWS]).astype(np.float32)  # noqa: E731
    termination, truncation = (np.zeros([STEPS, ROWS], bool) for _ in range(2))
    termination[2, 0] = truncation[3, 1] = truncation[5, 2] = termination[6, 2] = True
    mask = np.ones([STEPS, ROWS], bool)
    if masked:
        mask[3, 0] = mask[4, 1] = mask[6, 2] = False
        termination[6, 2] = False
    batch = ImpalaBatch(
        obs=np.zeros([STEPS, ROWS, 1], np.float32),
        action=np.zeros([STEPS, ROWS], np.int64),
        log_prob=-1.0 + 0.3 * floats(),
        reward=floats(),
        termination=termination,
        truncation=truncation,
        next_value=floats(),
        mask=mask if masked else None,
    )
    policy = Given(chosen=tf.constant(-1.0 + 0.3 * floats()), entropies=tf.constant(floats() ** 2))
    return tf.nest.map_structure(tf.constant, batch), policy, tf.constant(floats())


def oracle(batch, log_prob, value, *, lambda_, clip_rho, clip_pg_rho):
    """vs and the advantages by the sum of Espeholt et al., equation 1, one row at a time."""
    get = lambda x: np.asarray(x, np.float64)  # noqa: E731
    v, r, following = get(value), get(batch.reward), get(batch.next_value)
    rho = np.exp(get(log_prob) - get(batch.log_prob))
    termination, ends = batch.termination.numpy(), (batch.termination | batch.truncation).numpy()
    vs, advantage = np.zeros([STEPS, ROWS]), np.zeros([STEPS, ROWS])

    def successor(t, b):
        """V(o_{t+1}): of the next row, unless that is another episode's."""
        return v[t + 1, b] if t + 1 < STEPS and not ends[t, b] else following[t, b]

    for b in range(ROWS):
        for s in range(STEPS):
            vs[s, b], weight = v[s, b], 1.0
            for t in range(s, STEPS):
                gamma = 0.0 if termination[t, b] else GAMMA
                delta = min(clip_rho, rho[t, b]) * (r[t, b] + gamma * successor(t, b) - v[t, b])
                vs[s, b] += weight * delta
                if ends[t, b]:
                    break
                weight *= GAMMA * lambda_ * min(1.0, rho[t, b])
        for s in range(STEPS):
            gamma = 0.0 if termination[s, b] else GAMMA
            bootstrap = successor(s, b)
            if s + 1 < STEPS and not ends[s, b]:
                bootstrap = lambda_ * vs[s + 1, b] + (1 - lambda_) * bootstrap
            delta = r[s, b] + gamma * bootstrap - v[s, b]
            advantage[s, b] = min(clip_pg_rho, rho[s, b]) * delta
    return vs, advantage


class LossTest(parameterized.TestCase):
    options = {"value_coef": 0.5, "entropy_coef": 0.1, "discount": GAMMA}

    @parameterized.product(masked=[False, True], lambda_=[1.0, 0.8], clips=[(1.0, 1.0), (1.3, 0.7)])
    def test_off_policy_against_numpy(self, masked, lambda_, clips):
        batch, policy, value = scripted(masked=masked)
        clip_rho, clip_pg_rho = clips
        with tf.GradientTape() as tape:
            tape.watch((policy.chosen, value))
            loss, metrics = impala_loss(
                policy, value, batch, lambda_=lambda_, clip_rho=clip_rho, clip_pg_rho=clip_pg_rho,
                **self.options,
            )  # fmt: skip
        by_log_prob, by_value = tape.gradient(loss, (policy.chosen, value))
        vs, advantage = oracle(
            batch, policy.chosen, value, lambda_=lambda_, clip_rho=clip_rho, clip_pg_rho=clip_pg_rho
        )
        keep = np.ones([STEPS, ROWS], bool) if batch.mask is None else batch.mask.numpy()
        count = keep.sum()
        mean = lambda x: np.asarray(x)[keep].mean()  # noqa: E731
        policy_loss = -mean(advantage * policy.chosen)
        value_loss = 0.5 * mean((value - vs) ** 2)
        expected = policy_loss + 0.5 * value_loss - 0.1 * mean(policy.entropies)
        rho = np.exp(policy.chosen - batch.log_prob)
        self.assertGreater(rho[keep].max(), 1.3)
        self.assertLess(rho[keep].min(), 0.7)
        self.assertAlmostEqual(float(metrics["policy_loss"]), policy_loss, places=5)
        self.assertAlmostEqual(float(metrics["value_loss"]), value_loss, places=5)
        self.assertAlmostEqual(float(metrics["rho_mean"]), mean(rho), places=5)
        self.assertAlmostEqual(float(metrics["approx_kl"]), mean(rho - 1 - np.log(rho)), places=5)
        self.assertAlmostEqual(float(loss), expected, places=5)
        # No gradient through targets, advantages or weights.
        np.testing.assert_allclose(
            by_log_prob, np.where(keep, -advantage / count, 0.0), rtol=1e-4, atol=1e-6
        )
        np.testing.assert_allclose(
            by_value, np.where(keep, 0.5 * (value - vs) / count, 0.0), rtol=1e-4, atol=1e-6
        )

    def test_it_is_that_of_the_op(self):
        batch, policy, value = scripted(masked=True)
        targets = ops.vtrace(
            value=value,
            next_value=successor_values(value, batch),
            reward=batch.reward,
            termination=batch.termination,
            truncation=batch.truncation,
            rho=tf.exp(policy.chosen - batch.log_prob),
            discount=GAMMA,
            mask=batch.mask,
        )
        _, metrics = impala_loss(
            policy, value, batch, lambda_=1.0, clip_rho=1.0, clip_pg_rho=1.0, **self.options
        )
        expected = ops.value_loss(value=value, target=targets.value_target, mask=batch.mask)
        self.assertAlmostEqual(float(metrics["value_loss"]), float(expected), places=6)

    def test_on_policy_it_is_n_step_returns(self):
        batch, policy, value = scripted(masked=True)
        batch = batch.replace(log_prob=policy.chosen)
        value = tf.where(batch.mask, value, 0.0)
        for lambda_ in (1.0, 0.8):
            _, target = ops.gae(
                reward=batch.reward,
                value=value,
                next_value=successor_values(value, batch),
                termination=batch.termination,
                truncation=batch.truncation,
                discount=GAMMA,
                lambda_=lambda_,
                mask=batch.mask,
            )
            _, metrics = impala_loss(
                policy, value, batch, lambda_=lambda_, clip_rho=1.0, clip_pg_rho=1.0, **self.options
            )
            expected = ops.value_loss(value=value, target=target, mask=batch.mask)
            self.assertAlmostEqual(float(metrics["value_loss"]), float(expected), places=5)
            self.assertEqual(float(metrics["rho_mean"]), 1.0)

    def test_successor_values(self):
        batch, _, value = scripted()
        with tf.GradientTape() as tape:
            tape.watch(value)
            found = successor_values(value, batch)
        self.assertIsNone(tape.gradient(found, value))
        for t in range(STEPS):
            for b in range(ROWS):
                cut = t == STEPS - 1 or batch.termination[t, b] or batch.truncation[t, b]
                expected = batch.next_value[t, b] if cut else value[t + 1, b]
                self.assertEqual(float(found[t, b]), float(expected))

    def test_masked_garbage_changes_nothing(self):
        batch, policy, value = scripted(masked=True)
        spoil = lambda x: tf.where(batch.mask, x, np.nan)  # noqa: E731
        dirty = batch.replace(
            log_prob=spoil(batch.log_prob),
            reward=spoil(batch.reward),
            next_value=spoil(batch.next_value),
        )
        other = Given(chosen=spoil(policy.chosen), entropies=spoil(policy.entropies))

        def fn(policy, value, batch):
            with tf.GradientTape() as tape:
                tape.watch((policy.chosen, value))
                loss, metrics = impala_loss(
                    policy, value, batch, lambda_=0.9, clip_rho=1.0, clip_pg_rho=1.0, **self.options
                )
            return loss, metrics, tape.gradient(loss, (policy.chosen, value))

        expected = tf.nest.flatten(fn(policy, value, batch))
        found = tf.nest.flatten(fn(other, spoil(value), dirty))
        for x, y in zip(found, expected, strict=True):
            np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-6)


class AgentTest(parameterized.TestCase):
    def made(self, autoreset="SAME_STEP", cls=Impala, **options):
        env = tfrl.make_env("tf:CartPole-v1", num_envs=3, autoreset=autoreset, max_episode_steps=8)
        agent = cls(
            obs_spec=env.obs_spec,
            action_spec=env.action_spec,
            hidden=(8,),
            discount=GAMMA,
            **({"memory_size": 6} if options.get("memory") else {}),
            **options,
        )
        state = agent.init(KEY)
        run = tf.function(
            lambda: rollout(env, agent, env.reset(KEY), state, KEY, 20)[0], autograph=False
        )
        return agent, state, run()

    @parameterized.product(autoreset=["SAME_STEP", "NEXT_STEP"], memory=[None, "gru"])
    def test_before_any_step_targets_are_n_step_returns(self, autoreset, memory):
        agent, state, trajectory = self.made(autoreset, memory=memory)
        self.assertGreater(int(tf.math.count_nonzero(trajectory.truncation)), 3)
        batch, _ = agent.learner_batch(state, trajectory)
        loss, metrics = agent.loss(state.params, state, batch, KEY)
        value, next_value = agent.values_of(state, trajectory)
        _, target = agent.advantages(trajectory, value, next_value)
        expected = ops.value_loss(value=value, target=target, mask=trajectory.valid)
        np.testing.assert_allclose(metrics["value_loss"], expected, rtol=1e-4)
        np.testing.assert_allclose(metrics["rho_mean"], 1.0, rtol=1e-5)
        self.assertLess(abs(float(metrics["approx_kl"])), 1e-6)
        # At a truncation the value is that of the true successor.
        cut = (trajectory.truncation & ~trajectory.termination).numpy()
        stored = tf.transpose(batch.next_value).numpy()
        np.testing.assert_allclose(stored[cut], next_value.numpy()[cut], rtol=1e-5)

    @parameterized.parameters(None, "lstm")
    def test_rows_are_sequences(self, memory):
        agent, state, trajectory = self.made(memory=memory, sequence_length=5)
        batch, metrics = agent.learner_batch(state, trajectory)
        self.assertTrue(agent.learns_sequences)
        self.assertEqual(agent.recurrent, memory is not None)
        self.assertEqual(agent.num_rows(20, 3), 12)
        self.assertEqual(batch.obs.shape, [12, 5, 4])
        np.testing.assert_array_equal(batch.reward[4], trajectory.reward[5:10, 1])
        np.testing.assert_array_equal(batch.obs[4], trajectory.obs[5:10, 1])
        self.assertEqual(batch.state_in is None, memory is None)
        self.assertEqual(set(metrics), {"explained_variance", "value_mean"})
        sequences = batch_lib.time_major(batch)
        self.assertEqual(sequences.reward.shape, [5, 12])

    @parameterized.product(cls=[Impala, APPO], memory=[None, "gru"])
    def test_normalized_advantages(self, cls, memory):
        agent, state, trajectory = self.made(
            "NEXT_STEP", cls, memory=memory, normalize_advantage=True
        )
        batch, _ = agent.learner_batch(state, trajectory)
        self.assertFalse(batch.mask.numpy().all())
        summed = []
        ready = agent.prepare_minibatch(state, batch, lambda x: summed.append(x) or x)
        scale = np.sqrt(np.mean(batch.advantage.numpy()[batch.mask.numpy()] ** 2))
        np.testing.assert_allclose(ready.advantage_scale, np.full([3, 20], scale), rtol=1e-5)
        self.assertTrue(summed)
        _, scaled = agent.loss(state.params, state, ready, KEY)
        _, raw = agent.loss(state.params, state, batch, KEY)
        self.assertGreater(abs(scale - 1.0), 0.01)
        np.testing.assert_allclose(scaled["policy_loss"], raw["policy_loss"] / scale, rtol=1e-4)
        self.assertEqual(float(scaled["value_loss"]), float(raw["value_loss"]))
        equal = batch.replace(advantage=tf.fill([3, 20], 5.0))
        ready = agent.prepare_minibatch(state, equal, lambda x: x)
        np.testing.assert_allclose(ready.advantage_scale, np.full([3, 20], 5.0), rtol=1e-5)

    def test_at_other_parameters_the_values_of_next_rows_are_the_new_ones(self):
        agent, state, trajectory = self.made()
        batch, _ = agent.learner_batch(state, trajectory)
        other = agent.init(seeding.key(99))
        _, metrics = agent.loss(other.params, state, batch, KEY)
        value = agent.network.values(other.params, trajectory.obs)[0]
        policy, _ = agent.network.act(other.params, trajectory.obs)
        ends = (trajectory.termination | trajectory.truncation).numpy()
        _, old_next = agent.values_of(state, trajectory)
        follows = np.concatenate([~ends[:-1], np.zeros([1, 3], bool)])
        next_value = np.where(follows, np.roll(value, -1, axis=0), old_next)
        rho = np.exp(policy.log_prob(trajectory.action) - trajectory.policy_extras["log_prob"])
        targets = ops.vtrace(
            value=value,
            next_value=next_value,
            reward=trajectory.reward,
            termination=trajectory.termination,
            truncation=trajectory.truncation,
            rho=rho,
            discount=GAMMA,
        )
        expected = ops.value_loss(value=value, target=targets.value_target)
        np.testing.assert_allclose(metrics["value_loss"], expected, rtol=1e-4)
        self.assertGreater(float(metrics["approx_kl"]), 1e-7)

    @parameterized.parameters(
        ({"clip_rho": 0.0}, "Impala.clip_rho: expected a number above 0, got 0.0"),
        ({"clip_pg_rho": -1}, "Impala.clip_pg_rho: expected a number above 0, got -1"),
    )
    def test_messages(self, changes, message):
        with pytest.raises(UserError) as error:
            Impala(obs_spec=tf.TensorSpec([2]), action_spec=specs.DiscreteSpec(2), **changes)
        self.assertIn(message, str(error.value))
