"""DQN: the loss by hand, epsilon-greedy acting, masks, target networks, known values of a chain."""

import functools

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized

from tests.agents import off_policy_cases as cases
from tfrl import make_env, networks, ops, seeding, specs, struct
from tfrl.agents import DQN
from tfrl.agents.dqn.losses import dqn_loss
from tfrl.errors import UserError
from tfrl.keras import api as keras
from tfrl.replay import InGraphReplay
from tfrl.types import Transition
from tfrl.workflows import OffPolicyWorkflow

KEY = cases.KEY
pytestmark = pytest.mark.usefixtures("_eager_updates")
NAN = float("nan")
ACTION = specs.DiscreteSpec(3, start=5)


def made(**options):
    options = {"obs_spec": cases.OBS, "action_spec": ACTION, "hidden": (8,), **options}
    return DQN(**options)


class LossTest(parameterized.TestCase):
    def loss(self, *, double=True, huber_delta=1.0, next_mask=None, **changes):
        batch = Transition(
            obs=None,
            action=tf.constant([1, 0]),
            reward=tf.constant([1.0, 2.0]),
            next_obs=None,
            discount=tf.constant([0.5, 0.0]),
        ).replace(**changes)
        q = tf.constant([[1.0, 2.0], [0.0, -1.0]])
        with tf.GradientTape() as tape:
            tape.watch(q)
            loss, extra = dqn_loss(
                q,
                tf.constant([[3.0, 0.0], [NAN, NAN]]),
                batch,
                next_q_selector=tf.constant([[0.0, 1.0], [NAN, NAN]]) if double else None,
                next_mask=next_mask,
                huber_delta=huber_delta,
            )
        return float(loss), extra, tape.gradient(loss, q).numpy()

    def test_double_by_hand(self):
        """The errors are those of `rlax.double_q_learning`, the loss is `rlax.huber_loss` of them.

        double_q_learning: r_t + discount_t q_t_value[argmax q_t_selector] - q_tm1[a_tm1]
        huber_loss:        x^2 / 2 where |x| <= delta, else delta (|x| - delta / 2)
        """
        # Row 0: the selector takes action 1, whose target value is 0: y = 1, error 1 - 2 = -1.
        # Row 1 has ended, so that NaN there is of no consequence: y = 2, error 2.
        # Huber: 1/2 and 2 - 1/2, mean 1. Gradients: minus the error clipped to +-1, over 2 rows.
        loss, extra, gradient = self.loss()
        self.assertEqual(loss, 1.0)
        np.testing.assert_array_equal(extra.target, [1.0, 2.0])
        np.testing.assert_array_equal(extra.td_error, [-1.0, 2.0])
        np.testing.assert_array_equal(gradient, [[0.0, 0.5], [-0.5, 0.0]])

    @parameterized.parameters(
        # One network: y = 1 + 0.5 * 3 = 2.5, error 0.5: (1/8 + 3/2) / 2.
        ({"double": False}, 0.8125),
        # Half squares: (1/2 + 2) / 2.
        ({"huber_delta": None}, 1.25),
        # Weights 2 and 1/2: (2 * 1/2 + 1/2 * 3/2) / 2.
        ({"weight": tf.constant([2.0, 0.5])}, 0.875),
        # Delta 1/2: 1/2 (1 - 1/4) and 1/2 (2 - 1/4), mean 0.625.
        ({"huber_delta": 0.5}, 0.625),
    )
    def test_its_parts_by_hand(self, options, expected):
        """Without `double` it is `rlax.q_learning`; without `huber_delta` `rlax.l2_loss`.

        q_learning: r_t + discount_t max q_t - q_tm1[a_tm1]; l2_loss: x^2 / 2
        """
        self.assertAlmostEqual(self.loss(**options)[0], expected, places=6)

    @parameterized.parameters(
        # Action 1 is not valid: the selector takes 0, y = 1 + 0.5 * 3.
        (True, [True, False], 2.5),
        # Action 0 is not: the greatest that is valid is 0.
        (False, [False, True], 1.0),
        # None is: the row counts as if all were.
        (False, [False, False], 2.5),
    )
    def test_invalid_actions_are_not_bootstrapped_from(self, double, mask, target):
        next_mask = tf.constant([mask, [True, True]])
        _, extra, _ = self.loss(double=double, next_mask=next_mask)
        np.testing.assert_array_equal(extra.target, [target, 2.0])

    def test_items_of_n_steps_by_hand(self):
        """The targets of `rlax.n_step_bootstrapped_returns`, with the greedy value as its v_t.

        r_1 + discount_1 (r_2 + discount_2 (... (r_n + discount_n v_n))), discounts of 0 at ends
        """
        # gamma = 1/2, n = 3, rewards 1, 2, 3, the value after them 8: 1 + (2 + (3 + 4) / 2) / 2.
        # A termination after the second step: 1 + 2 / 2; a truncation there, value 6: + 6 / 4.
        rewards = [1.0, 2.0, 3.0]
        three = sum(0.5**k * r for k, r in enumerate(rewards))
        two = sum(0.5**k * r for k, r in enumerate(rewards[:2]))
        batch = Transition(
            obs=None,
            action=tf.constant([0, 0, 0]),
            reward=tf.constant([three, two, two]),
            next_obs=None,
            discount=tf.constant([0.5**3, 0.0, 0.5**2]),
        )
        _, extra = dqn_loss(
            tf.zeros([3, 2]),
            tf.constant([[8.0, 0.0], [NAN, NAN], [5.0, 6.0]]),
            batch,
            next_q_selector=None,
            next_mask=None,
            huber_delta=None,
        )
        np.testing.assert_array_equal(extra.target, [3.75, 2.0, 3.5])


class LearnerTest(parameterized.TestCase):
    @parameterized.product(double=[True, False], dueling=[True, False])
    def test_the_loss_against_numpy(self, double, dueling):
        agent = made(double=double, dueling=dueling, huber_delta=None)
        state, other = agent.init(KEY), agent.init(seeding.key(1))
        state = state.replace(target_params=other.params)
        batch = cases.transitions(agent, weight=tf.abs(seeding.normal(KEY, [16])))

        def values(params, obs):
            q = params["q"]
            layer = q["torso"]["layer_0"]
            h = np.maximum(np.asarray(obs) @ layer["kernel"].numpy() + layer["bias"].numpy(), 0.0)
            head = lambda name: h @ q[name]["kernel"].numpy() + q[name]["bias"].numpy()  # noqa: E731
            if not dueling:
                return head("head")
            advantage = head("advantage")
            return head("value") + advantage - advantage.mean(-1, keepdims=True)

        rows, action = np.arange(16), batch.action.numpy() - 5
        judged = values(other.params, batch.next_obs)
        chosen = values(state.params if double else other.params, batch.next_obs).argmax(-1)
        target = batch.reward + batch.discount * judged[rows, chosen]
        error = target - values(state.params, batch.obs)[rows, action]
        expected = np.mean(batch.weight * 0.5 * error**2)
        found = cases.gradients(agent, "dqn", state, batch)
        self.assertAlmostEqual(float(found.loss), float(expected), places=5)
        self.assertAlmostEqual(float(found.metrics["td_error"]), np.abs(error).mean(), places=5)
        taken = values(state.params, batch.obs)[rows, action].mean()
        self.assertAlmostEqual(float(found.metrics["q_mean"]), taken, places=5)
        self.assertEqual(float(found.metrics["epsilon"]), 1.0)
        errors = agent.td_errors(state, batch, KEY)
        np.testing.assert_allclose(errors, np.abs(error), rtol=1e-4, atol=1e-5)
        self.assertEqual(set(found.gradients), {"q"})
        self.assertTrue(all(np.any(g) for g in struct.paths(found.gradients).values()))

    def test_no_gradient_reaches_the_target_network(self):
        agent = made()
        state = agent.init(KEY)
        batch = cases.prepared(agent, state, cases.transitions(agent))

        def loss(both):
            own = state.replace(target_params=both["target"])
            return agent.loss({"q": both["learns"]}, own, batch, KEY)[0]

        both = {"learns": state.params["q"], "target": state.target_params}
        self.assertEqual(cases.reached(loss, both), {"learns"})

    @parameterized.parameters(1, 3)
    def test_a_hard_target_is_copied_every_k_steps(self, every):
        agent = made(target_every=every)
        learner = cases.learner(agent)
        kernel = "q/head/kernel"
        target = cases.snapshot(learner)[f"target_params/{kernel}"]
        for step in range(1, 8):
            learner.update_from_batch(cases.transitions(agent, seed=step), key=KEY)
            now = cases.snapshot(learner)
            if step % every == 0:
                target = now[f"params/{kernel}"]
            np.testing.assert_array_equal(now[f"target_params/{kernel}"], target)
            self.assertTrue(step % every == 0 or np.any(target != now[f"params/{kernel}"]))

    def test_a_soft_target_goes_a_share_of_the_way(self):
        agent = made(target_every=1, tau=0.25)
        learner = cases.learner(agent)
        kernel = "q/torso/layer_0/kernel"
        for step in range(3):
            before = cases.snapshot(learner)[f"target_params/{kernel}"]
            learner.update_from_batch(cases.transitions(agent, seed=step), key=KEY)
            now = cases.snapshot(learner)
            expected = 0.75 * before + 0.25 * now[f"params/{kernel}"]
            np.testing.assert_allclose(now[f"target_params/{kernel}"], expected, rtol=1e-5)

    @parameterized.product(double=[True, False], huber_delta=[1.0, None])
    def test_values_of_a_chain(self, double, huber_delta):
        # States 0, 1, 2; action 1 goes on, from 2 to the end, which pays 1; action 0 stays.
        # With gamma = 1/2: Q(., 1) = [1/4, 1/2, 1], and Q(., 0) is half the greater of each state.
        agent = DQN(
            obs_spec=tf.TensorSpec([3]),
            action_spec=specs.DiscreteSpec(2),
            torso=cases.TABLE,
            double=double,
            huber_delta=huber_delta,
            target_every=10,
        )
        eye = np.eye(3, dtype=np.float32)
        state = np.repeat(np.arange(3), 2)
        action = np.tile(np.arange(2), 3)
        end = (state == 2) & (action == 1)
        batch = Transition(
            obs=tf.constant(eye[state]),
            action=tf.constant(action, tf.int64),
            reward=tf.constant(end, tf.float32),
            next_obs=tf.constant(eye[np.minimum(state + action, 2)]),
            discount=tf.constant(0.5 * ~end, tf.float32),
        )
        learner = cases.learner(agent, lr=0.05)
        state = cases.train(learner, batch, 1000)
        found = agent.action_values(state, tf.constant(eye))
        expected = [[1 / 8, 1 / 4], [1 / 4, 1 / 2], [1 / 2, 1]]
        np.testing.assert_allclose(found, expected, atol=0.01)
        greedy = agent.evaluate_actions(state, tf.constant(eye), KEY).action
        np.testing.assert_array_equal(greedy, [1, 1, 1])

    def test_it_goes_on_after_a_restore(self):
        cases.assert_goes_on_after_a_restore(self, made(target_every=3, dueling=True))

    def test_layers_that_differ_in_training(self):
        def model():
            return keras.Sequential([keras.layers.BatchNormalization()])

        agent = made(
            torso=networks.KerasNetwork(model_fn=model, spec=cases.OBS), hidden=None, target_every=4
        )
        learner = cases.learner(agent)
        before = cases.snapshot(learner)
        learner.update_from_batch(cases.transitions(agent), key=KEY)
        after = cases.snapshot(learner)
        moving = [p for p in before if "moving_mean" in p]
        self.assertEqual(len(moving), 2)
        for path in moving:
            same = np.array_equal(before[path], after[path])
            self.assertEqual(same, path.startswith("target_params"), path)


@struct.logic_dataclass
class Hooked(DQN):
    """Acts by the negative values, and learns from the target network's plus 1."""

    def policy_q(self, q):
        """Returns -Q."""
        return -q

    def target_q(self, q):
        """Returns Q + 1."""
        return q + 1.0


class HooksTest(parameterized.TestCase):
    @parameterized.parameters(False, True)
    def test_values_that_act_and_values_that_teach(self, double):
        options = {"obs_spec": cases.OBS, "action_spec": ACTION, "hidden": (8,), "double": double}
        plain, agent = DQN(**options), Hooked(**options)
        state, raw = agent.init(KEY), cases.transitions(agent)
        values = plain.action_values(state, raw.obs)
        np.testing.assert_array_equal(agent.action_values(state, raw.obs), -values)
        batch = cases.prepared(agent, state, raw)
        _, found, _ = agent._loss(state.params, state, batch, KEY)
        following = agent.network.apply(state.target_params["q"], batch.next_obs).numpy()
        by = agent.network.apply(state.params["q"], batch.next_obs).numpy() * -1.0
        chosen = np.argmax(by if double else following, -1)
        expected = following[np.arange(len(chosen)), chosen] + 1.0
        live = batch.discount.numpy() > 0.0
        expected = batch.reward + batch.discount * np.where(live, expected, 0.0)
        np.testing.assert_allclose(found.target, expected, rtol=1e-5, atol=1e-6)


class ActingTest(parameterized.TestCase):
    def test_epsilon_is_the_share_of_random_actions(self):
        agent = made(epsilon=0.3)
        state = agent.init(KEY)
        obs = tf.repeat(seeding.normal(KEY, [1, 3]), 4000, 0)
        action = agent.compute_actions(state, obs, KEY).action
        self.assertEqual(action.dtype, tf.int64)
        best = int(agent.evaluate_actions(state, obs, KEY).action[0])
        share = lambda a: np.mean(action.numpy() == a)  # noqa: E731
        for a in (5, 6, 7):
            self.assertAlmostEqual(share(a), 0.1 + 0.7 * (a == best), delta=0.03)

    def test_epsilon_follows_env_steps(self):
        agent = made(epsilon=[[0, 1.0], [100, 0.0]])
        learner = cases.learner(agent)
        self.assertEqual(float(learner.state.extra["epsilon"]), 1.0)
        learner.update_from_batch(cases.transitions(agent), key=KEY, timesteps=75)
        self.assertAlmostEqual(float(learner.state.extra["epsilon"]), 0.25, places=6)
        learner.update_from_batch(cases.transitions(agent), key=KEY, timesteps=200)
        state = struct.values(learner.state)
        obs = seeding.normal(KEY, [100, 3])
        np.testing.assert_array_equal(
            agent.compute_actions(state, obs, KEY).action,
            agent.evaluate_actions(state, obs, KEY).action,
        )

    @parameterized.parameters(0.0, 0.5, 1.0)
    def test_no_invalid_action_is_ever_taken(self, epsilon):
        spec = {"observation": cases.OBS, "action_mask": tf.TensorSpec([3], tf.bool)}
        agent = made(obs_spec=spec, epsilon=epsilon)
        state = agent.init(KEY)
        state.params["q"]["head"]["bias"] = tf.constant([1e6, 0.0, -1e6])
        mask = tf.repeat([[False, True, True], [True, False, False]], 2000, 0)
        obs = {"observation": seeding.normal(KEY, [4000, 3]), "action_mask": mask}
        action = agent.compute_actions(state, obs, KEY).action.numpy()
        self.assertEqual(set(action[2000:]), {5})
        self.assertEqual(set(action[:2000]), {6} if epsilon == 0.0 else {6, 7})
        self.assertAlmostEqual(np.mean(action[:2000] == 7), 0.5 * epsilon, delta=0.04)
        greedy = agent.evaluate_actions(state, obs, KEY).action.numpy()
        np.testing.assert_array_equal(greedy, np.repeat([6, 5], 2000))
        drawn = agent.random_actions(state, obs, KEY).action.numpy()
        self.assertEqual((set(drawn[:2000]), set(drawn[2000:])), ({6, 7}, {5}))
        batch = cases.transitions(agent)
        found = cases.gradients(agent, "dqn", state, batch)
        self.assertTrue(np.isfinite(found.loss))

    def test_pixels(self):
        spec = specs.BoundedTensorSpec([36, 36, 4], tf.uint8, 0, 255)
        agent = made(obs_spec=spec, hidden=None)
        self.assertIsInstance(agent.network.torso.body, networks.NatureCNN)
        state = agent.init(KEY)
        obs = specs.sample(spec, KEY, [2])
        self.assertEqual(agent.compute_actions(state, obs, KEY).action.shape, [2])

    @parameterized.parameters(tf.int32, tf.int64, tf.uint8)
    def test_dtypes_of_actions(self, dtype):
        agent = made(action_spec=specs.DiscreteSpec(3, start=5, dtype=dtype))
        state, obs = agent.init(KEY), seeding.normal(KEY, [4, 3])
        for act in (agent.compute_actions, agent.evaluate_actions):
            self.assertEqual(act(state, obs, KEY).action.dtype, dtype)
        index = agent.network_action(tf.constant([5, 7], dtype))
        np.testing.assert_array_equal(index, [0, 2])
        self.assertEqual(index.dtype, tf.int32)


class MessagesTest(parameterized.TestCase):
    @parameterized.parameters(
        (
            {"action_spec": specs.MultiDiscreteSpec([2, 3])},
            "Choose PPO, which takes actions of any kind, or flatten the discrete actions into "
            "one with a wrapper.",
        ),
        ({"action_spec": cases.BOX}, "Choose PPO, which takes actions of any kind"),
        (
            {"huber_delta": 0.0},
            "DQN.huber_delta: expected a number above 0 or None, got 0.0.",
        ),
        (
            {"target_every": 0},
            "DQN.target_every: expected a whole number of at least 1, got 0.",
        ),
        ({"tau": 0.0}, "DQN.tau: expected a number above 0 and at most 1, got 0.0."),
        ({"discount": 1.5}, "DQN.discount: expected a number of at least 0 and at most 1, got 1.5"),
        ({"n_step": 0}, "DQN.n_step: expected a whole number of at least 1, got 0."),
        (
            {"q": networks.QNetwork(torso=cases.TABLE, num_actions=4)},
            "DQN.q: expected a network that returns one value for each of 3 actions, float32 "
            "[..., 3], got QNetwork, which returns float32 [..., 4].",
        ),
        ({"q": cases.TABLE}, "one per action, got MLP. Pass QNetwork(torso=..., num_actions=...)"),
        ({"torso": 3}, "DQN.torso: expected a tfrl.networks torso, or None, got int."),
        ({"epsilon": "high"}, "DQN.epsilon: expected a number, a list [[0, v0], [t1, v1], ...]"),
        (
            {"epsilon": 5},
            "DQN.epsilon: expected values from 0 to 1, got 5.0. Pass points [env step",
        ),
        ({"epsilon": -0.1}, "DQN.epsilon: expected values from 0 to 1, got -0.1."),
        (
            {"epsilon": [[0, 100], [1000, 5]]},
            "DQN.epsilon: expected values from 0 to 1, got 100.0.",
        ),
        (
            {"obs_spec": {"observation": cases.OBS, "action_mask": tf.TensorSpec([2], tf.bool)}},
            "action mask .: expected shape [3]",
        ),
    )
    def test_messages(self, changes, message):
        with pytest.raises(UserError) as error:
            made(**changes)
        self.assertIn(message, str(error.value))


def test_collectors_of_ape_x_have_epsilons_of_their_own():
    spec = specs.DiscreteSpec(2)
    agent = DQN(obs_spec=tf.TensorSpec([3]), action_spec=spec, hidden=(4,), collector_epsilon=0.4)
    state = agent.init(seeding.key(0))
    made = [float(agent.collector_state(state, i, 3).extra["epsilon"]) for i in range(3)]
    # Horgan et al. 2018: 0.4^(1 + 7 i / 2)
    np.testing.assert_allclose(made, [0.4, 0.4**4.5, 0.4**8], rtol=1e-6)
    assert float(agent.collector_state(state, 0, 1).extra["epsilon"]) == np.float32(0.4)
    plain = agent.replace(collector_epsilon=None)
    assert plain.collector_state(state, 1, 3) is state


@struct.logic_dataclass
class QRDQN(DQN):
    """Dabney et al. 2018, https://arxiv.org/abs/1710.10044."""

    quantiles: int = 5

    def make_head(self, torso):
        return networks.QNetwork(torso=torso, num_actions=self.num_actions * self.quantiles)

    def target_q(self, q):
        return tf.reshape(q, [*q.shape[:-1], self.num_actions, self.quantiles])

    def policy_q(self, q):
        return tf.reduce_mean(self.target_q(q), -1)

    def regression(self, q, next_q, batch, *, next_q_selector, next_mask):
        selector = tf.reduce_mean(next_q, -1) if next_q_selector is None else next_q_selector
        best = tf.argmax(ops.mask_action_values(selector, next_mask), -1)
        bootstrap = tf.gather(next_q, best, batch_dims=1)
        target = batch.reward[:, None] + batch.discount[:, None] * bootstrap
        taken = tf.gather(self.target_q(q), batch.action, batch_dims=1)
        loss = ops.quantile_huber_loss(taken, target, weights=batch.weight)
        target = tf.reduce_mean(target, -1)
        return loss, ops.TDExtra(tf.stop_gradient(target - tf.reduce_mean(taken, -1)), target)


@pytest.mark.parametrize("double", [True, False])
def test_another_head_by_the_hooks(double):
    env = make_env("tf:CartPole-v1", num_envs=2)
    given = {"obs_spec": env.obs_spec, "action_spec": env.action_spec}
    agent = QRDQN(**given, hidden=(8,), double=double)
    state = agent.init(seeding.key(0))
    obs = seeding.normal(seeding.key(1), [6, 4])
    assert agent.action_values(state, obs).shape == [6, 2]
    batch = Transition(
        obs=obs,
        action=tf.constant([0, 1, 1, 0, 1, 0]),
        reward=tf.ones([6]),
        next_obs=seeding.normal(seeding.key(2), [6, 4]),
        discount=tf.constant([0.0, 0.9, 0.9, 0.9, 0.9, 0.9]),
    )
    errors = agent.td_errors(state, batch, seeding.key(3))
    value = agent.action_values(state, obs)
    # The first item ends: its target is the reward.
    np.testing.assert_allclose(errors[0], abs(1.0 - value[0, 0]), rtol=1e-5)
    workflow = OffPolicyWorkflow(
        env,
        agent,
        replay=functools.partial(InGraphReplay, capacity=200, kind="prioritized"),
        batch_size=8,
        random_steps=16,
        compile="graph",
    )
    filled = workflow.advance(workflow.setup(0), 40)  # to the end of the random play
    done = workflow.advance(filled.state, 8)
    assert np.isfinite(done.rows[-1]["loss"]) and done.rows[-1]["learner_steps"] > 0


def test_a_network_whose_values_do_not_follow_is_refused():
    env = make_env("tf:CartPole-v1", num_envs=2)
    given = {"obs_spec": env.obs_spec, "action_spec": env.action_spec}
    torso = networks.make_torso(env.obs_spec, hidden=(8,))
    QRDQN(**given, q=networks.QNetwork(torso=torso, num_actions=10))
    with pytest.raises(UserError, match="QRDQN.q: expected a network that returns one value for"):
        QRDQN(**given, q=networks.QNetwork(torso=torso, num_actions=9))
