"""SAC: losses by hand and against NumPy, gradients, temperature, critics, known optima."""

import math

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized

from tests.agents import off_policy_cases as cases
from tfrl import networks, seeding, specs, struct
from tfrl.agents import SAC
from tfrl.agents.off_policy.losses import critic_loss
from tfrl.agents.sac import losses
from tfrl.errors import UserError
from tfrl.types import Transition

KEY = cases.KEY
pytestmark = pytest.mark.usefixtures("_eager_updates")
ACTIONS = specs.DiscreteSpec(3, start=2)
MASKED = {"observation": cases.OBS, "action_mask": tf.TensorSpec([3], tf.bool)}
FLAGS = (True, False)
KINDS = {"continuous": {}, "discrete": {"action_spec": ACTIONS}}


def made(**options):
    options = {"obs_spec": cases.OBS, "action_spec": cases.BOX, "hidden": (8, 8), **options}
    return SAC(**options)


class TermsTest(parameterized.TestCase):
    def test_soft_values_by_hand(self):
        found = losses.soft_value(tf.constant([1.0, 2.0]), tf.constant([-1.0, 0.5]), 0.2)
        np.testing.assert_allclose(found, [1.2, 1.9], rtol=1e-6)
        # pi = [1/4, 3/4]: 1/4 (4 - ln(1/4)) + 3/4 (2 - ln(3/4)) = 2.5 + 0.5623351.
        log_probs = tf.math.log([[0.25, 0.75]])
        found = losses.expected_soft_value(tf.constant([[4.0, 2.0]]), log_probs, 1.0)
        np.testing.assert_allclose(found, [2.5 + 0.5623351], rtol=1e-6)

    def test_an_invalid_action_counts_nothing(self):
        log_probs = tf.constant([[0.0, -1e30]])
        found = losses.expected_soft_value(tf.constant([[4.0, 2.0]]), log_probs, 1.0)
        np.testing.assert_array_equal(found, [4.0])

    def test_actor_and_temperature_by_hand(self):
        self.assertEqual(float(losses.actor_loss(tf.constant([1.0, 2.0]))), -1.5)
        mask = tf.constant([True, False])
        self.assertEqual(float(losses.actor_loss(tf.constant([1.0, np.nan]), mask)), -1.0)
        # Entropies 1 and 2, target -1: log_alpha * (2 + 3) / 2; the gradient is 2.5.
        log_alpha, entropy = tf.constant(2.0), tf.constant([1.0, 2.0])
        with tf.GradientTape() as tape:
            tape.watch((log_alpha, entropy))
            loss = losses.temperature_loss(log_alpha, entropy, -1.0)
        by_log_alpha, by_entropy = tape.gradient(loss, (log_alpha, entropy))
        self.assertEqual((float(loss), float(by_log_alpha), by_entropy), (5.0, 2.5, None))

    def test_the_discrete_actor_is_rlaxs_policy_gradient_with_its_entropy(self):
        """rlax has no SAC; `qpg_loss` + alpha `entropy_loss` has the gradient of the actor's.

        qpg_loss:     -mean_n sum_a pi(a) (q(a) - sum_b pi(b) q(b)), the advantage a constant
        entropy_loss: -mean_n H(pi)

        By the logits their gradients are -pi (q - pi.q) / N and pi (log pi + H) / N.
        """
        q = np.float32([[4.0, 2.0, 0.0], [1.0, 0.0, 3.0]])
        pi = np.float32([[0.25, 0.5, 0.25], [0.125, 0.125, 0.75]])
        entropy = -np.sum(pi * np.log(pi), -1, keepdims=True)
        # pi.q is 2 and 2.375: the advantages are 2, 0, -2 and -1.375, -2.375, 0.625.
        advantage = np.float32([[2.0, 0.0, -2.0], [-1.375, -2.375, 0.625]])
        expected = (-pi * advantage + 0.5 * pi * (np.log(pi) + entropy)) / 2.0
        logits = tf.constant(np.log(pi) + np.float32([[3.0], [-1.0]]))  # not normalised
        with tf.GradientTape() as tape:
            tape.watch(logits)
            log_probs = tf.nn.log_softmax(logits)
            loss = losses.actor_loss(losses.expected_soft_value(tf.constant(q), log_probs, 0.5))
        np.testing.assert_allclose(tape.gradient(loss, logits), expected, rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(loss, -np.mean([2.0, 2.375]) - 0.5 * entropy.mean(), rtol=1e-5)

    def test_critics_by_hand(self):
        """Each row and critic is `rlax.qv_learning`, with the soft value of o' as its v_t.

        rlax.qv_learning: r_t + discount_t v_t - q_tm1[a_tm1]; rlax.l2_loss: x^2 / 2
        """
        # y = 1 + 0.5 * 4 = 3 and, after a termination, 2. Errors of critic 0: 2 and 0, of critic 1:
        # 0 and 1. Half squares, mean over rows, sum over critics: 1 + 1/4.
        batch = Transition(
            obs=None,
            action=None,
            reward=tf.constant([1.0, 2.0]),
            next_obs=None,
            discount=tf.constant([0.5, 0.0]),
        )
        q, following = tf.constant([[1.0, 2.0], [3.0, 1.0]]), tf.constant([4.0, np.nan])
        with tf.GradientTape() as tape:
            tape.watch((q, following))
            loss, extra, metrics = critic_loss(q, following, batch)
        by_q, by_following = tape.gradient(loss, (q, following))
        self.assertEqual(float(loss), 1.25)
        np.testing.assert_array_equal(extra.td_error, [[2.0, 0.0], [0.0, 1.0]])
        np.testing.assert_array_equal(by_q, [[-1.0, 0.0], [0.0, -0.5]])
        self.assertIsNone(by_following)
        self.assertEqual((float(metrics["q_mean"]), float(metrics["td_error"])), (1.75, 0.75))
        weighted, _, _ = critic_loss(q, following, batch.replace(weight=tf.constant([0.5, 2.0])))
        self.assertEqual(float(weighted), 1.0)


class LossTest(parameterized.TestCase):
    @parameterized.product(kind=list(KINDS), num_critics=[1, 2, 4])
    def test_the_critic_loss_against_numpy(self, kind, num_critics):
        """`rlax.qv_learning` for each critic; v_t, the soft value of the least, is not in rlax.

        Without its entropy the discrete one is that of `rlax.expected_sarsa`: q_t . probs_a_t.
        """
        agent = made(num_critics=num_critics, temperature=0.3, **KINDS[kind])
        state = agent.init(KEY)
        state = state.replace(target_params={"critic": agent.init(seeding.key(1)).params["critic"]})
        raw = cases.transitions(agent, weight=tf.abs(seeding.normal(KEY, [16])))
        batch, key = cases.prepared(agent, state, raw), cases.loss_key(agent, "critic")
        policy = agent.actor.apply(state.params["actor"], batch.next_obs)
        if kind == "discrete":
            pi = tf.exp(policy.logits).numpy()
            next_q = agent.critic.apply(state.target_params["critic"], batch.next_obs).numpy()
            self.assertEqual(next_q.shape, (num_critics, 16, 3))
            v = np.sum(pi * (next_q.min(0) - 0.3 * np.log(pi)), -1)
            q = agent.critic.apply(state.params["critic"], batch.obs).numpy()
            q = q[:, np.arange(16), raw.action.numpy() - 2]
        else:
            action, log_prob = policy.sample_and_log_prob(seeding.stream(key, "action"))
            next_q = agent.critic.apply(state.target_params["critic"], batch.next_obs, action)
            v = next_q.numpy().min(0) - 0.3 * log_prob.numpy()
            q = agent.critic.apply(state.params["critic"], batch.obs, batch.action).numpy()
            # Actions come to the critics in [-1, 1].
            expected = raw.action.numpy() / [2.0, 5.0] - [0.0, 1.0]
            np.testing.assert_allclose(batch.action, expected, atol=1e-6)
        error = (raw.reward + raw.discount * v).numpy() - q
        expected = np.sum(np.mean(raw.weight * 0.5 * error**2, -1))
        found = cases.gradients(agent, "critic", state, raw)
        np.testing.assert_allclose(found.loss, expected, rtol=1e-5)
        errors = agent.td_errors(state, raw, key)
        np.testing.assert_allclose(errors, np.abs(error).mean(0), rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(found.metrics["td_error"], np.abs(error).mean(), rtol=1e-4)

    @parameterized.product(kind=list(KINDS), critic_subset=[None, 2])
    def test_the_actor_loss_against_numpy(self, kind, critic_subset):
        options = {"num_critics": 3, "temperature": 0.3, "critic_subset": critic_subset}
        agent = made(**options, **KINDS[kind])
        state = agent.init(KEY)
        raw = cases.transitions(agent)
        policy = agent.actor.apply(state.params["actor"], raw.obs)
        reduce = np.min if critic_subset is None else np.mean
        if kind == "discrete":
            log_pi = policy.logits.numpy()
            q = reduce(agent.critic.apply(state.params["critic"], raw.obs).numpy(), 0)
            loss = np.mean(np.sum(np.exp(log_pi) * (0.3 * log_pi - q), -1))
            entropy = -np.mean(np.sum(np.exp(log_pi) * log_pi, -1))
            target = 0.98 * math.log(3)
        else:
            key = seeding.stream(cases.loss_key(agent, "actor"), "action")
            action, log_prob = policy.sample_and_log_prob(key)
            q = reduce(agent.critic.apply(state.params["critic"], raw.obs, action).numpy(), 0)
            loss = np.mean(0.3 * log_prob - q)
            entropy, target = -np.mean(log_prob), -2.0
        found = cases.gradients(agent, "actor", state, raw)
        self.assertAlmostEqual(float(found.metrics["actor_loss"]), float(loss), places=5)
        self.assertAlmostEqual(float(found.metrics["entropy"]), float(entropy), places=5)
        temperature_loss = math.log(0.3) * (entropy - target)
        self.assertAlmostEqual(
            float(found.metrics["temperature_loss"]), float(temperature_loss), places=4
        )
        self.assertAlmostEqual(float(found.loss), float(loss + temperature_loss), places=4)
        by_log_alpha = float(found.gradients["log_alpha"])
        self.assertAlmostEqual(by_log_alpha, float(entropy - target), places=4)

    @parameterized.product(kind=list(KINDS), learnt=[True, False])
    def test_gradients_reach_their_groups_and_no_other(self, kind, learnt):
        agent = made(learn_temperature=learnt, **KINDS[kind])
        state = agent.init(KEY)
        raw = cases.transitions(agent)
        batch = cases.prepared(agent, state, raw)
        groups = {"critic": {"critic"}, "actor": {"actor", "log_alpha"} if learnt else {"actor"}}
        for update in agent.updates:
            self.assertEqual(set(update.groups), groups[update.name])
            found = cases.gradients(agent, update.name, state, raw).gradients
            self.assertTrue(all(np.any(g) for g in struct.paths(found).values()))
        by_actor = cases.reached(lambda p: agent.actor_loss(p, state, batch, KEY)[0], state.params)
        self.assertEqual(by_actor, groups["actor"])

        def targets(params):
            own = state.replace(target_params=params)
            return agent.critic_loss(state.params, own, batch, KEY)[0]

        self.assertEqual(cases.reached(targets, state.target_params), set())
        # The critics' target is a constant for the actor and the temperature too.
        by_critic = cases.reached(
            lambda p: agent.critic_loss(p, state, batch, KEY)[0], state.params
        )
        self.assertEqual(by_critic, {"critic"})

    @parameterized.parameters(*KINDS)
    def test_the_temperature_does_not_change_the_actors_gradient(self, kind):
        learnt, fixed = (made(learn_temperature=x, temperature=0.3, **KINDS[kind]) for x in FLAGS)
        state = learnt.init(KEY)
        raw = cases.transitions(learnt)
        one = cases.gradients(learnt, "actor", state, raw).gradients["actor"]
        other = cases.gradients(fixed, "actor", fixed.init(KEY), raw).gradients["actor"]
        for x, y in zip(tf.nest.flatten(one), tf.nest.flatten(other), strict=True):
            np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-7)


class CriticsTest(parameterized.TestCase):
    @parameterized.product(kind=list(KINDS), apply_rule=["unstacked", "batched"])
    def test_n_critics_learn_as_if_each_were_alone(self, kind, apply_rule):
        agent = made(num_critics=3, apply_rule=apply_rule, **KINDS[kind])
        cases.assert_critics_learn_as_if_alone(agent)

    def test_a_subset_of_the_critics_makes_the_target(self):
        agent = made(num_critics=4, critic_subset=2)
        state = agent.init(KEY)
        seen = set()
        for i in range(60):
            critic, target = agent._subset(state.target_params["critic"], seeding.fold_in(KEY, i))
            self.assertEqual(critic.num_critics, 2)
            biases = target["torso"]["body"]["layer_0"]["kernel"].numpy()
            every = state.target_params["critic"]["torso"]["body"]["layer_0"]["kernel"].numpy()
            drawn = [j for b in biases for j in range(4) if np.array_equal(b, every[j])]
            self.assertEqual(len(set(drawn)), 2)
            seen.add(tuple(sorted(drawn)))
        self.assertEqual(len(seen), 6)  # every pair

    def test_a_subset_of_all_is_all(self):
        raw = cases.transitions(made())
        one, other = (made(num_critics=3, critic_subset=m) for m in (None, 3))
        state = one.init(KEY)
        expected = cases.gradients(one, "critic", state, raw).loss
        np.testing.assert_allclose(
            cases.gradients(other, "critic", state, raw).loss, expected, rtol=1e-6
        )

    def test_targets_follow_by_tau(self):
        agent = made(tau=0.25)
        learner = cases.learner(agent)
        before = cases.snapshot(learner)
        learner.update_from_batch(cases.transitions(agent), key=KEY)
        after = cases.snapshot(learner)
        targets = [p for p in before if p.startswith("target_params/")]
        self.assertTrue(targets and all("/critic/" in p for p in targets))
        for path in targets:
            learns = path.replace("target_params", "params")
            np.testing.assert_array_equal(before[path], before[learns])
            expected = 0.75 * before[path] + 0.25 * after[learns]
            np.testing.assert_allclose(after[path], expected, rtol=1e-4, atol=1e-6)


class LearnerTest(parameterized.TestCase):
    @parameterized.parameters(*KINDS)
    def test_one_step_is_critics_then_actor_and_temperature(self, kind):
        agent = made(temperature=0.3, **KINDS[kind])
        learner = cases.learner(agent, sgd=True)
        state, raw = struct.values(learner.state), cases.transitions(agent)
        learner.update_from_batch(raw, key=KEY, shuffle=False)
        key = seeding.fold_in(seeding.stream(KEY, "losses"), 0)
        for update in agent.updates:
            found = cases.gradients(agent, update.name, state, raw, key).gradients
            moved = tf.nest.map_structure(
                lambda x, g: x - 0.1 * g, {g: state.params[g] for g in update.groups}, found
            )
            # What comes next sees what this one has changed.
            state = state.replace(params={**state.params, **moved})
        after = struct.paths(struct.values(learner.state).params)
        for path, value in struct.paths(state.params).items():
            np.testing.assert_allclose(after[path], value, rtol=1e-3, atol=1e-5, err_msg=path)

    @parameterized.parameters((-5.0, "falls"), (5.0, "rises"))
    def test_the_temperature_moves_towards_its_target(self, target, way):
        agent = made(target_entropy=target, temperature=0.5)
        learner = cases.learner(agent, lr=0.01)
        raw = cases.transitions(agent)
        for i in range(5):
            learner.update_from_batch(raw, key=seeding.fold_in(KEY, i))
        alpha = float(agent.alpha(struct.values(learner.state.params)))
        self.assertEqual("rises" if alpha > 0.5 else "falls", way)

    def test_a_fixed_temperature_is_no_parameter(self):
        agent = made(learn_temperature=False, temperature=0.2)
        self.assertEqual(set(agent.init(KEY).params), {"actor", "critic"})
        learner = cases.learner(agent)
        report = learner.update_from_batch(cases.transitions(agent), key=KEY)["default_policy"]
        self.assertAlmostEqual(report["actor/alpha"], 0.2, places=6)
        self.assertNotIn("actor/temperature_loss", report)

    @parameterized.parameters(*KINDS)
    def test_it_goes_on_after_a_restore(self, kind):
        agent = made(hidden=(8,), target_every=3, **KINDS[kind])
        cases.assert_goes_on_after_a_restore(self, agent)

    def test_it_finds_the_best_action(self):
        # One step, reward -(a - best)^2 in units of half the range, best = 1 + x in [0, 2] of
        # an action in [-2, 6]. With alpha = 0.02 the soft optimum is a Gaussian around it.
        spec = specs.BoundedTensorSpec([1], tf.float32, -2, 6)
        agent = SAC(
            obs_spec=tf.TensorSpec([1]),
            action_spec=spec,
            hidden=(32, 32),
            learn_temperature=False,
            temperature=0.02,
        )
        obs = seeding.uniform(KEY, [256, 1], -1.0, 1.0)
        action = specs.sample(spec, KEY, [256])
        batch = Transition(
            obs=obs,
            action=action,
            reward=-tf.square((action - 1.0 - obs) / 4.0)[:, 0],
            next_obs=obs,
            discount=tf.zeros([256]),
        )
        learner = cases.learner(agent, lr=3e-3)
        state = cases.train(learner, batch, 600)
        x = tf.constant([[-0.8], [0.0], [0.8]])
        found = agent.evaluate_actions(state, x, KEY).action
        np.testing.assert_allclose(found, 1.0 + x, atol=0.35)

    def test_discrete_play_becomes_the_softmax_of_the_rewards(self):
        # One step: Q is the reward and pi = softmax(Q / alpha), exactly.
        agent = SAC(
            obs_spec=tf.TensorSpec([2]),
            action_spec=specs.DiscreteSpec(3),
            actor_torso=cases.TABLE,
            critic_torso=cases.TABLE,
            learn_temperature=False,
            temperature=0.5,
        )
        rewards = np.array([[0.0, 1.0, 0.5], [1.0, -1.0, 0.0]], np.float32)
        eye = np.eye(2, dtype=np.float32)
        state, action = np.repeat(np.arange(2), 3), np.tile(np.arange(3), 2)
        batch = Transition(
            obs=tf.constant(eye[state]),
            action=tf.constant(action, tf.int64),
            reward=tf.constant(rewards[state, action]),
            next_obs=tf.constant(eye[state]),
            discount=tf.zeros([6]),
        )
        learner = cases.learner(agent, lr=0.02)
        state = cases.train(learner, batch, 800)
        pi = tf.exp(agent.actor.apply(state.params["actor"], tf.constant(eye)).logits)
        expected = np.exp(rewards / 0.5)
        np.testing.assert_allclose(pi, expected / expected.sum(-1, keepdims=True), atol=0.01)


class ActingTest(parameterized.TestCase):
    def test_default_targets_of_the_entropy(self):
        self.assertEqual(made().entropy_target(), -2.0)
        self.assertEqual(made(target_entropy=-0.5).entropy_target(), -0.5)
        discrete = made(action_spec=ACTIONS, entropy_scale=0.5)
        self.assertAlmostEqual(discrete.entropy_target(), 0.5 * math.log(3))
        mask = tf.constant([[True, True, False], [True, False, False]])
        np.testing.assert_allclose(discrete.entropy_target(mask), [0.5 * math.log(2), 0.0])

    @parameterized.parameters(tf.float32, tf.float64)
    def test_actions_fill_their_bounds(self, dtype):
        agent = made(action_spec=specs.BoundedTensorSpec([2], dtype, [-2, 0], [2, 10]))
        state = agent.init(KEY)
        state.params["actor"]["head"]["bias"] = tf.constant([0.0, 0.0, 2.0, 2.0])
        obs = seeding.normal(KEY, [2000, 3])
        action = agent.compute_actions(state, obs, KEY).action
        self.assertEqual(action.dtype, dtype)
        np.testing.assert_allclose(np.min(action, 0), [-2, 0], atol=0.01)
        np.testing.assert_allclose(np.max(action, 0), [2, 10], atol=0.01)
        self.assertTrue(np.all(action >= [-2, 0]) and np.all(action <= [2, 10]))
        greedy = agent.evaluate_actions(state, tf.zeros([1, 3]), KEY).action
        np.testing.assert_allclose(greedy, [[0.0, 5.0]], atol=1e-6)
        np.testing.assert_array_equal(
            agent.evaluate_actions(state, obs, KEY).action,
            agent.evaluate_actions(state, obs, seeding.key(1)).action,
        )

    def test_the_target_does_not_depend_on_the_units_of_the_action(self):
        small, large = (
            made(action_spec=specs.BoundedTensorSpec([2], tf.float32, -x, x)) for x in (1, 100)
        )
        state, raw = small.init(KEY), cases.transitions(small)
        scaled = raw.replace(action=100.0 * raw.action)
        for name in ("critic", "actor"):
            expected = cases.gradients(small, name, state, raw).loss
            found = cases.gradients(large, name, state, scaled).loss
            np.testing.assert_allclose(found, expected, rtol=1e-4)

    @parameterized.parameters("compute_actions", "evaluate_actions", "random_actions")
    def test_no_invalid_action_is_ever_taken(self, act):
        agent = made(obs_spec=MASKED, action_spec=ACTIONS)
        state = agent.init(KEY)
        state.params["actor"]["head"]["bias"] = tf.constant([1e4, 0.0, 0.0])
        mask = tf.repeat([[False, True, True], [True, False, False]], 1000, 0)
        obs = {"observation": seeding.normal(KEY, [2000, 3]), "action_mask": mask}
        action = getattr(agent, act)(state, obs, KEY).action.numpy()
        self.assertLessEqual(set(action[:1000]), {3, 4})
        self.assertEqual(set(action[1000:]), {2})

    def test_losses_under_masks(self):
        agent = made(obs_spec=MASKED, action_spec=ACTIONS)
        state = agent.init(KEY)
        mask = np.tile([[True, True, False], [True, False, False], [True] * 3], [6, 1])[:16]
        raw = cases.transitions(agent)
        raw = raw.replace(
            obs={**raw.obs, "action_mask": tf.constant(mask)},
            next_obs={**raw.next_obs, "action_mask": tf.constant(mask)},
            action=tf.fill([16], tf.constant(2, tf.int64)),
        )
        for name in ("critic", "actor"):
            found = cases.gradients(agent, name, state, raw)
            self.assertTrue(all(np.all(np.isfinite(x)) for x in tf.nest.flatten(found)))
        # What a critic says of an invalid action of o' is of no consequence.
        before = agent.td_errors(state, raw, KEY)
        head = state.target_params["critic"]["head"]
        bias = head["bias"] + tf.constant([0.0, 0.0, 50.0])
        other = {"critic": {**state.target_params["critic"], "head": {**head, "bias": bias}}}
        after = agent.td_errors(state.replace(target_params=other), raw, KEY)
        same = np.isclose(before, after)
        np.testing.assert_array_equal(same, ~mask[:, 2] | (raw.discount.numpy() == 0))

    def test_several_boxes_are_one_action(self):
        spec = {"a": cases.BOX, "b": specs.BoundedTensorSpec([2, 1], tf.float64, -1, 1)}
        agent = made(action_spec=spec)
        self.assertEqual(agent.entropy_target(), -4.0)
        learner = cases.learner(agent)
        report = learner.update_from_batch(cases.transitions(agent), key=KEY)["default_policy"]
        self.assertTrue(np.isfinite(report["critic/loss"]))
        state = struct.values(learner.state)
        action = agent.compute_actions(state, seeding.normal(KEY, [5, 3]), KEY).action
        self.assertEqual((action["a"].shape, action["b"].shape), ([5, 2], [5, 2, 1]))
        self.assertEqual((action["a"].dtype, action["b"].dtype), (tf.float32, tf.float64))

    def test_pixels(self):
        spec = specs.BoundedTensorSpec([36, 36, 4], tf.uint8, 0, 255)
        agent = made(obs_spec=spec)
        self.assertIsInstance(agent.critic.torso.encoder.body, networks.NatureCNN)
        report = cases.learner(agent, lr=1e-4).update_from_batch(
            cases.transitions(agent, rows=4), key=KEY
        )
        self.assertTrue(np.isfinite(report["default_policy"]["actor/loss"]))


class MessagesTest(parameterized.TestCase):
    @parameterized.parameters(
        (
            {"action_spec": tf.TensorSpec([2])},
            "SAC: action spec .: expected finite bounds with low < high",
        ),
        (
            {"action_spec": specs.MultiDiscreteSpec([2, 3])},
            "SAC: action spec .: expected a Box of floats",
        ),
        ({"num_critics": 0}, "SAC.num_critics: expected a whole number of at least 1, got 0."),
        (
            {"critic_subset": 3},
            "SAC.critic_subset: expected a whole number of at least 1 and at most 2 or None",
        ),
        ({"temperature": 0.0}, "SAC.temperature: expected a number above 0, got 0.0."),
        ({"hidden": 256}, "SAC.hidden: expected None or a tuple of sizes"),
        ({"actor_torso": "mlp"}, "SAC.actor_torso: expected a tfrl.networks torso, or None, got"),
        ({"obs_spec": MASKED}, "action mask .: expected None for a continuous action, got a mask."),
    )
    def test_messages(self, changes, message):
        with pytest.raises(UserError) as error:
            made(**changes)
        self.assertIn(message, str(error.value))

    @parameterized.parameters(2.0, -0.1, math.log(3) + 1e-3)
    def test_an_entropy_that_discrete_play_cannot_have(self, target):
        message = (
            "SAC.target_entropy: expected an entropy of 3 discrete actions, from 0 to log 3 = "
            f"1.0986, got {target}. Leave it out and set entropy_scale, "
        )
        with pytest.raises(UserError) as error:
            made(action_spec=ACTIONS, target_entropy=target)
        self.assertIn(message, str(error.value))

    @parameterized.parameters(0, 0.5, math.log(3), float(np.log(np.float32(3))))
    def test_entropies_that_discrete_play_can_have(self, target):
        self.assertEqual(made(action_spec=ACTIONS, target_entropy=target).entropy_target(), target)

    def test_a_fixed_temperature_may_be_0(self):
        self.assertEqual(float(made(temperature=0.0, learn_temperature=False).alpha({})), 0.0)
