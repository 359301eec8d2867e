"""PPO with memory: what the loss sees is what acted, over ends, autoresets, chunks and resumes."""

import dataclasses
import functools

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized

import tfrl
from tests.envs.multi_agent_fakes import Two
from tfrl import networks, ops, seeding, struct
from tfrl.agents import PPO, MultiAgent
from tfrl.agents.actor_critic import batch as batch_lib
from tfrl.envs.core import Autoreset
from tfrl.envs.registry import finish
from tfrl.errors import UserError
from tfrl.rollout import rollout

KEY = seeding.key(11)
LENGTH = 24


def made(autoreset="SAME_STEP", memory="gru", num_envs=4, **options):
    """Episodes of at most 10 steps: some fall before, most are cut."""
    env = tfrl.make_env(
        "tf:CartPole-v1", num_envs=num_envs, autoreset=autoreset, max_episode_steps=10
    )
    agent = PPO(
        obs_spec=env.obs_spec,
        action_spec=env.action_spec,
        hidden=(8,),
        memory=memory,
        **({"memory_size": 6} if memory else {}),
        **options,
    )
    state = agent.init(KEY)
    # The first policy is nearly uniform whatever the carry is.
    state.params["policy"]["head"]["kernel"] *= 300.0
    return env, agent, state


def experience(env, agent, state, lengths=(LENGTH,)):
    """Rollouts one after the other, each going on where the one before stopped."""
    learning = ("sequence_length", "gae_horizon", "normalize_advantage", "entropy_coef")
    acting = {f.name: f.default for f in dataclasses.fields(agent) if f.name in learning}
    return _player(env, agent.replace(**acting), lengths)(state)


@functools.cache
def _player(env, agent, lengths):
    """Traced once for agents that differ in how they learn."""

    @functools.partial(tf.function, autograph=False)  # faster than step by step
    def run(state):
        env_state, carry, found = env.reset(KEY), None, []
        for i, length in enumerate(lengths):
            key = seeding.fold_in(KEY, i)
            trajectory, env_state, carry = rollout(
                env, agent, env_state, state, key, length, carry=carry
            )
            found.append(trajectory)
        return found

    return run


@pytest.fixture(autouse=True, scope="module")
def _forget_players():
    yield
    _player.cache_clear()


def joined(trajectories):
    return tf.nest.map_structure(lambda *xs: tf.concat(xs, 0), *trajectories)


def episodes(trajectory, row):
    """Lists of steps, one an episode, of one environment; the invalid rows are left out."""
    ends = (trajectory.termination | trajectory.truncation).numpy()[:, row]
    valid = trajectory.valid.numpy()[:, row]
    found, steps = [], []
    for t in range(len(ends)):
        if valid[t]:
            steps.append(t)
        if steps and (ends[t] or not valid[t]):
            found.append(steps)
            steps = []
    return [*found, steps] if steps else found


def values_one_by_one(agent, state, trajectory):
    """V at both ends of every valid step, each episode from its start, nothing stored used."""
    shape = trajectory.termination.shape
    value, next_value = np.full(shape, np.nan), np.full(shape, np.nan)

    @functools.partial(tf.function, autograph=False)
    def step(obs, following, carry):
        _, after = agent.network.act(state.params, obs, carry)
        ends = ((obs, carry), (following, after))
        return [agent.network.values(state.params, o, c)[0][0] for o, c in ends], after

    for b in range(shape[1]):
        for steps in episodes(trajectory, b):
            carry = agent.initial_carry(1)
            for t in steps:
                obs, following = trajectory.obs[t, b : b + 1], trajectory.next_obs[t, b : b + 1]
                (value[t, b], next_value[t, b]), carry = step(obs, following, carry)
    return value, next_value


class RatioTest(parameterized.TestCase):
    def compared(self, agent, state, trajectory):
        """The ratios of the valid rows, and of how many."""
        batch, _ = agent.learner_batch(state, trajectory)
        sequences = batch_lib.time_major(batch)
        policy, _, _ = agent.evaluate_batch(state.params, sequences, KEY)
        log_prob = policy.log_prob(sequences.action)
        return (log_prob - sequences.log_prob)[sequences.mask].numpy(), batch

    @parameterized.parameters(
        ("SAME_STEP", "gru"), ("SAME_STEP_CACHED", "lstm"), ("NEXT_STEP", "gru")
    )
    @pytest.mark.variants(1)
    def test_at_first_every_ratio_is_one(self, autoreset, memory):
        env, agent, state = made(autoreset, memory)
        first, second = experience(env, agent, state, (13, LENGTH))
        ends = second.termination | second.truncation
        self.assertGreaterEqual(int(tf.reduce_min(tf.math.count_nonzero(ends, 0))), 2)
        # The second rollout goes on in the middle of an episode, with the carry of the first.
        self.assertTrue(np.any(~ends.numpy()[0] & np.any(np.abs(carried(second)[0]) > 0, -1)))
        for length in (None, 8):
            agent = agent.replace(sequence_length=length)
            ratios, batch = self.compared(agent, state, second)
            self.assertLess(np.abs(ratios).max(), 2e-6)
            self.assertLen(ratios, int(tf.math.count_nonzero(second.valid)))
            steps = length or LENGTH
            self.assertEqual(batch.log_prob.shape, [4 * LENGTH // steps, steps])
            _, metrics = agent.loss(state.params, state, batch, KEY)
            self.assertLess(abs(float(metrics["approx_kl"])), 1e-6)
            self.assertEqual(float(metrics["clip_fraction"]), 0.0)

    def test_the_carry_matters(self):
        # So that the test above does not hold for a network that ignores its memory.
        env, agent, state = made()
        (trajectory,) = experience(env, agent, state)
        batch, _ = agent.learner_batch(state, trajectory)
        wrong = batch.replace(starts=tf.zeros_like(batch.starts))
        _, metrics = agent.loss(state.params, state, wrong, KEY)
        self.assertGreater(float(metrics["approx_kl"]), 1e-3)

    def test_with_a_shared_torso_and_normalised_observations(self):
        env, agent, state = made(
            "NEXT_STEP", "lstm", shared_torso=True, sequence_length=6, normalize_obs=True
        )
        no = tf.zeros([9, 4], tf.bool)
        rows = seeding.normal(KEY, [9, 4, 4]) * [1.0, 2.0, 0.1, 3.0] + 0.2
        seen = tfrl.types.Trajectory(
            obs=rows,
            action=None,
            reward=None,
            next_obs=None,
            termination=no,
            truncation=no,
            valid=~no,
        )
        state = agent.update_normalizer(state, seen)
        self.assertEqual(float(state.normalizer.count), 36.0)
        _, second = experience(env, agent, state, (8, LENGTH))
        ratios, _ = self.compared(agent, state, second)
        self.assertLess(np.abs(ratios).max(), 2e-6)

    def test_continuous_actions(self):
        env = tfrl.make_env("tf:Pendulum-v1", num_envs=4, max_episode_steps=7)
        agent = PPO(
            obs_spec=env.obs_spec,
            action_spec=env.action_spec,
            hidden=(8,),
            memory="lstm",
            memory_size=6,
            squash=True,
        )
        state = agent.init(KEY)
        (trajectory,) = experience(env, agent, state)
        ratios, _ = self.compared(agent, state, trajectory)
        self.assertLess(np.abs(ratios).max(), 1e-5)

    @parameterized.parameters("SAME_STEP", "NEXT_STEP")
    @pytest.mark.variants(1)
    def test_of_several_agents_that_end_apart(self, autoreset):
        env = finish(
            Two(num_envs=3),
            autoreset=Autoreset.parse(autoreset),
            max_episode_steps=None,
            task_limit=None,
        )
        make = functools.partial(PPO, hidden=(4,), memory="gru", memory_size=6)
        agent = MultiAgent(
            obs_spec=env.obs_spec, action_spec=env.action_spec, policies={"a": make, "b": make}
        )
        state = agent.init(KEY)
        for m in state:
            state[m].params["policy"]["head"]["kernel"] *= 300.0
        run = tf.function(
            lambda: rollout(env, agent, env.reset(KEY), state, KEY, 14, ("agents",))[0],
            autograph=False,
        )
        batches, _ = agent.learner_batch(state, run())
        for m, batch in batches.items():
            self.assertEqual(batch.log_prob.shape, [3, 14])
            _, metrics = agent.modules[m].loss(state[m].params, state[m], batch, KEY)
            self.assertLess(abs(float(metrics["approx_kl"])), 1e-6)
        # Agent a has two steps of an episode's four.
        self.assertLess(float(tf.reduce_mean(tf.cast(batches["a"].mask, tf.float32))), 0.6)


def carried(trajectory):
    return trajectory.policy_extras["state_in"]["policy"]["hidden"].numpy()


class ValuesTest(parameterized.TestCase):
    @parameterized.parameters(
        ("SAME_STEP", True), ("SAME_STEP_CACHED", False), ("NEXT_STEP", False)
    )
    @pytest.mark.variants(1)
    def test_values_are_those_of_an_episode_walked_through(self, autoreset, shared_torso):
        env, agent, state = made(autoreset, "lstm", num_envs=2, shared_torso=shared_torso)
        parts = experience(env, agent, state, (13, LENGTH))
        whole = joined(parts)
        self.assertGreater(int(tf.math.count_nonzero(whole.truncation)), 2)
        value, next_value = values_one_by_one(agent, state, whole)
        valid = whole.valid.numpy()
        self.assertEqual(int(valid.sum()), int(np.isfinite(value).sum()))
        for part, rows in ((parts[0], slice(0, 13)), (parts[1], slice(13, None))):
            found, found_next = agent.values_of(state, part)
            keep = valid[rows]
            np.testing.assert_allclose(found.numpy()[keep], value[rows][keep], rtol=1e-4, atol=1e-5)
            np.testing.assert_allclose(
                found_next.numpy()[keep], next_value[rows][keep], rtol=1e-4, atol=1e-5
            )

    def test_a_cut_episode_goes_on_with_the_carry_after_its_last_step(self):
        env, agent, state = made(num_envs=2)
        (trajectory,) = experience(env, agent, state)
        batch, _ = agent.learner_batch(state, trajectory)
        _, next_value = values_one_by_one(agent, state, trajectory)
        cut = (trajectory.truncation & ~trajectory.termination).numpy()
        target = tf.transpose(batch.value_target).numpy()
        self.assertGreater(cut.sum(), 2)
        np.testing.assert_allclose(target[cut], 1.0 + 0.99 * next_value[cut], rtol=1e-4)
        # The value of the same observation with a fresh carry is another one.
        fresh = agent.network.values(
            state.params, trajectory.next_obs[cut], agent.initial_carry(int(cut.sum()))
        )[0]
        self.assertGreater(float(np.abs(fresh - next_value[cut]).min()), 1e-3)

    def test_values_of_sequences(self):
        env, agent, state = made(num_envs=2)
        (trajectory,) = experience(env, agent, state, (6,))
        self.assertFalse(np.any(trajectory.truncation))
        value, _ = agent.values_of(state, trajectory)
        obs = tf.transpose(trajectory.obs, [1, 0, 2])
        found = agent.compute_values(state, obs, carry=agent.initial_carry(2))
        np.testing.assert_allclose(found, tf.transpose(value), rtol=1e-5, atol=1e-6)
        with pytest.raises(UserError, match="RecurrentTorso: expected a carry, got None"):
            agent.compute_values(state, obs)


class RowsTest(parameterized.TestCase):
    def test_a_row_is_one_environment_in_the_order_of_time(self):
        env, agent, state = made(sequence_length=8)
        (trajectory,) = experience(env, agent, state)
        place = tf.range(LENGTH)[:, tf.newaxis] * 10 + tf.range(4)  # 10 t + b
        marked = trajectory.replace(reward=tf.cast(place, tf.float32))
        agent = agent.replace(discount=0.0)  # the value target is the reward
        batch, _ = agent.learner_batch(state, marked)
        for s in range(12):
            chunk, b = divmod(s, 4)
            expected = 10 * (8 * chunk + np.arange(8)) + b
            np.testing.assert_allclose(batch.value_target[s], expected, rtol=1e-4)
            np.testing.assert_array_equal(batch.obs[s], marked.obs[8 * chunk : 8 * chunk + 8, b])
            np.testing.assert_array_equal(
                batch.state_in["policy"]["hidden"][s], carried(marked)[8 * chunk, b]
            )
        self.assertEqual(agent.num_rows(LENGTH, 4), 12)
        self.assertTrue(all(x.shape[0] == 12 for x in struct.paths(batch).values()))

    @parameterized.parameters("dataclass", "columns")
    def test_time_major(self, kind):
        env, agent, state = made(sequence_length=8)
        (trajectory,) = experience(env, agent, state)
        batch, _ = agent.learner_batch(state, trajectory)
        if kind == "columns":
            names = ("obs", "action", "log_prob", "mask", "state_in")
            batch = struct.TensorDict({n: getattr(batch, n) for n in names})
        found = batch_lib.time_major(batch)
        self.assertEqual(found.obs.shape, [8, 12, 4])
        np.testing.assert_array_equal(found.obs[3], batch.obs[:, 3])
        self.assertIs(found.state_in["value"]["hidden"], batch.state_in["value"]["hidden"])

    @parameterized.parameters(None, 8)
    def test_the_loss_of_chunks_is_that_of_the_whole(self, sequence_length):
        env, agent, state = made(normalize_advantage=False, entropy_coef=0.01)
        (trajectory,) = experience(env, agent, state)
        chunked = agent.replace(sequence_length=sequence_length)

        def run(agent):
            batch, _ = agent.learner_batch(state, trajectory)
            with tf.GradientTape() as tape:
                tape.watch(state.params)
                loss, _ = agent.loss(state.params, state, batch, KEY)
            return loss, struct.paths(tape.gradient(loss, state.params))

        loss, gradient = run(agent)
        other, other_gradient = run(chunked)
        np.testing.assert_allclose(loss, other, rtol=1e-5)
        name = "policy/head/kernel"  # no gradient through time
        np.testing.assert_allclose(gradient[name], other_gradient[name], rtol=1e-4, atol=1e-6)
        difference = np.abs(
            gradient["policy/torso/recurrent/kernel"]
            - other_gradient["policy/torso/recurrent/kernel"]
        ).max()
        if sequence_length is None:
            self.assertEqual(difference, 0.0)
        else:
            self.assertGreater(difference, 1e-5)

    def test_garbage_in_invalid_rows_changes_nothing(self):
        env, agent, state = made("NEXT_STEP", sequence_length=3)
        (trajectory,) = experience(env, agent, state)
        bad = ~trajectory.valid
        self.assertGreater(int(tf.math.count_nonzero(bad)), 4)
        # Some of them begin a chunk, which gets their carry.
        self.assertTrue(np.any(bad.numpy()[::3]))

        def spoilt(x, garbage):
            where = tf.reshape(bad, [*bad.shape, *[1] * (x.shape.rank - 2)])
            return tf.where(where, tf.constant(garbage, x.dtype), x)

        extras = trajectory.policy_extras
        dirty = trajectory.replace(
            obs=spoilt(trajectory.obs, -50.0),
            next_obs=spoilt(trajectory.next_obs, 70.0),
            reward=spoilt(trajectory.reward, np.nan),
            action=spoilt(trajectory.action, 1),
            policy_extras={
                "log_prob": spoilt(extras["log_prob"], np.nan),
                "state_in": tf.nest.map_structure(lambda x: spoilt(x, -30.0), extras["state_in"]),
            },
        )

        def run(trajectory):
            batch, metrics = agent.learner_batch(state, trajectory)
            batch = agent.prepare_minibatch(state, batch, lambda x: x)
            with tf.GradientTape() as tape:
                tape.watch(state.params)
                loss, more = agent.loss(state.params, state, batch, KEY)
            gradient = tape.gradient(loss, state.params)
            return struct.paths({"loss": loss, "m": {**metrics, **more}, "gradient": gradient})

        clean, found = run(trajectory), run(dirty)
        for path, value in clean.items():
            self.assertTrue(np.all(np.isfinite(value)), path)
            np.testing.assert_allclose(found[path], value, rtol=1e-5, atol=1e-7, err_msg=path)

    def test_where_episodes_start(self):
        no, yes = False, True
        record = lambda end, valid: tfrl.types.Trajectory(  # noqa: E731
            obs=None,
            action=None,
            reward=None,
            next_obs=None,
            termination=tf.constant([[e] for e in end]) & [[True]],
            truncation=tf.zeros([len(end), 1], tf.bool),
            valid=None if valid is None else tf.constant([[v] for v in valid]),
        )
        # SAME_STEP: the row after an end. The first row has its own carry, fresh or not.
        found = batch_lib.episode_starts(record([no, yes, no, yes], None))
        self.assertEqual(found.numpy()[:, 0].tolist(), [no, no, yes, no])
        # NEXT_STEP: an end, the row of the autoreset, the first of the next episode.
        found = batch_lib.episode_starts(record([yes, no, no, no], [yes, no, yes, yes]))
        self.assertEqual(found.numpy()[:, 0].tolist(), [no, yes, yes, no])
        # The end was the last row of the rollout before.
        found = batch_lib.episode_starts(record([no, no, no], [no, yes, yes]))
        self.assertEqual(found.numpy()[:, 0].tolist(), [no, yes, no])


class HorizonTest(parameterized.TestCase):
    @parameterized.parameters(("SAME_STEP", None), ("NEXT_STEP", "gru"))
    def test_it_is_gae_of_each_chunk_alone(self, autoreset, memory):
        env, agent, state = made(autoreset, memory, gae_horizon=6)
        (trajectory,) = experience(env, agent, state)
        value, next_value = agent.values_of(state, trajectory)
        advantage, target = agent.advantages(trajectory, value, next_value)
        for start in range(0, LENGTH, 6):
            rows = slice(start, start + 6)
            expected, expected_target = ops.gae(
                reward=trajectory.reward[rows],
                value=value[rows],
                next_value=next_value[rows],
                termination=trajectory.termination[rows],
                truncation=trajectory.truncation[rows],
                discount=0.99,
                lambda_=0.95,
                mask=trajectory.valid[rows],
            )
            np.testing.assert_allclose(advantage[rows], expected, rtol=1e-5, atol=1e-6)
            np.testing.assert_allclose(target[rows], expected_target, rtol=1e-5, atol=1e-6)
        whole, _ = agent.replace(gae_horizon=None).advantages(trajectory, value, next_value)
        self.assertGreater(float(tf.reduce_max(tf.abs(whole - advantage))), 0.01)

    def test_by_hand(self):
        # Rewards 1, values 0 but V(o_2) = 10; gamma 0.5, lambda 1, horizons of 2 steps:
        # A_1 = 1 + 0.5 * 10 = 6, A_0 = 1 + 0.5 * 6 = 4; A_3 = 1, A_2 = 1 + 0.5 - 10 = -8.5.
        _, agent, _ = made(memory=None, gae_horizon=2, discount=0.5, gae_lambda=1.0)
        column = lambda *x: tf.constant(x)[:, tf.newaxis]  # noqa: E731
        trajectory = tfrl.types.Trajectory(
            obs=None,
            action=None,
            reward=column(1.0, 1.0, 1.0, 1.0),
            next_obs=None,
            termination=tf.zeros([4, 1], tf.bool),
            truncation=tf.zeros([4, 1], tf.bool),
            valid=None,
        )
        advantage, target = agent.advantages(
            trajectory, column(0.0, 0.0, 10.0, 0.0), column(0.0, 10.0, 0.0, 0.0)
        )
        np.testing.assert_allclose(advantage[:, 0], [4.0, 6.0, -8.5, 1.0])
        np.testing.assert_allclose(target[:, 0], [4.0, 6.0, 1.5, 1.0])


class MessagesTest(parameterized.TestCase):
    @parameterized.parameters("sequence_length", "gae_horizon")
    def test_lengths_that_do_not_divide(self, name):
        env, agent, state = made(**{name: 5})
        (trajectory,) = experience(env, agent, state)
        with pytest.raises(UserError) as error:
            agent.learner_batch(state, trajectory)
        self.assertEqual(
            str(error.value),
            f"PPO.{name}: expected a divisor of the 24 steps of a rollout, got 5. The nearest "
            "divisors are 4 and 6.",
        )

    @parameterized.parameters(
        ({"sequence_length": 0}, "PPO.sequence_length: expected a whole number of at least"),
        ({"gae_horizon": 2.5}, "PPO.gae_horizon: expected a whole number of at least 1 or"),
        ({"memory": "rnn"}, "RecurrentTorso.cell: expected one of gru, lstm, got 'rnn'"),
        ({"memory_size": -1}, "RecurrentTorso.size: expected a whole number of at least 1, got -1"),
        (
            {"torso": networks.RecurrentTorso(body=networks.MLP())},
            "RecurrentTorso.body: expected a feed-forward torso",
        ),
    )
    def test_messages(self, changes, message):
        env = tfrl.make_env("tf:CartPole-v1")
        with pytest.raises(UserError) as error:
            PPO(
                obs_spec=env.obs_spec,
                action_spec=env.action_spec,
                **{"memory": "gru", **changes},
            )
        self.assertIn(message, str(error.value))

    def test_acting_needs_the_carry(self):
        env, agent, state = made()
        obs = tf.zeros([3, 4])
        for act in (agent.compute_actions, agent.evaluate_actions):
            with pytest.raises(UserError, match="RecurrentTorso: expected a carry, got None"):
                act(state, obs, KEY)
        output = agent.evaluate_actions(state, obs, KEY, agent.initial_carry(3))
        self.assertEqual(set(output.carry), {"policy", "value"})

    def test_a_torso_with_memory_is_memory(self):
        env, _, _ = made()
        torso = networks.RecurrentTorso(
            body=networks.make_torso(env.obs_spec, hidden=(8,)), cell="gru", size=6
        )
        given = PPO(obs_spec=env.obs_spec, action_spec=env.action_spec, torso=torso)
        named = made()[1]
        self.assertTrue(given.recurrent and given.learns_sequences)
        tf.nest.map_structure(
            np.testing.assert_array_equal,
            given.initial_carry(2),
            named.initial_carry(2),
        )
