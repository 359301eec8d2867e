import itertools

import numpy as np
import tensorflow as tf
from absl.testing import parameterized

from tests.rollout import rollout_fakes as fakes
from tfrl import seeding
from tfrl.errors import UserError
from tfrl.rollout import rollout
from tfrl.types import ActionOutput

KEY = seeding.key(7)
MODES = ("NEXT_STEP", "SAME_STEP", "SAME_STEP_CACHED", "DISABLED")

# name: (lengths, kinds, T). Ages of the ends are worked out by the simulator.
SCRIPTS = {
    "several_ends": (((3, 2, 4, 1), (5, 1, 1, 9)), (tuple("TUTB"), tuple("UTUT")), 11),
    "end_on_last_row": (((4, 9), (2, 2)), (("U", "T"), ("T", "U")), 4),
    "two_ends_in_a_row": (((1, 1, 1, 5), (2, 1, 1, 5)), None, 6),
    "one_step": (((1, 2), (3, 2)), None, 1),
    "one_environment": (((2, 3),), (("B", "U"),), 7),
    "one_step_one_environment": (((1, 2),), None, 1),
}


def agent_state():
    return {"weight": tf.constant(2.0)}


def start(env):
    return env.reset(KEY)


class RolloutTest(parameterized.TestCase):
    @parameterized.parameters(*itertools.product(SCRIPTS, MODES))
    def test_equals_plain_simulator(self, script, mode):
        lengths, kinds, steps = SCRIPTS[script]
        rewards = (1.0, 2.0)[: len(lengths)]
        env = fakes.Scripted(lengths=lengths, kinds=kinds, mode=mode, step_reward=rewards)
        agent = fakes.CountingAgent()
        trajectory, state, carry = rollout(
            env, agent, start(env), agent_state(), KEY, steps, ("total",)
        )
        expected = fakes.simulate(env, steps)
        np.testing.assert_array_equal(trajectory.obs["place"], expected["place"])
        np.testing.assert_array_equal(trajectory.obs["age"], expected["age"])
        np.testing.assert_array_equal(trajectory.next_obs["place"], expected["next_place"])
        np.testing.assert_array_equal(trajectory.next_obs["age"], expected["next_age"])
        for name in ("action", "reward", "termination", "truncation", "valid"):
            np.testing.assert_array_equal(getattr(trajectory, name), expected[name], name)
        np.testing.assert_array_equal(trajectory.policy_extras["count"], expected["count"])
        np.testing.assert_array_equal(trajectory.policy_extras["scaled"], 2 * expected["age"])
        np.testing.assert_array_equal(trajectory.env_extras["total"], expected["total"])
        longer = fakes.simulate(env, steps + 1)  # what the next rollout begins with
        np.testing.assert_array_equal(state.obs["place"], longer["place"][-1])
        np.testing.assert_array_equal(carry["count"], longer["count"][-1])

    @parameterized.parameters(*itertools.product(MODES, (1, 3, 4)))
    def test_two_rollouts_continue_each_other(self, mode, cut):
        # Row 0 ends at step 3: a cut at 3 leaves its autoreset row to the second rollout.
        env = fakes.Scripted(lengths=((3, 2, 2, 1), (5, 1, 1, 9)), mode=mode)
        agent = fakes.CountingAgent()

        def run(state, carry, length):
            return rollout(env, agent, state, agent_state(), KEY, length, carry=carry)

        first, state, carry = run(start(env), None, cut)
        second, state, carry = run(state, carry, 9 - cut)
        whole, whole_state, whole_carry = run(start(env), None, 9)
        joined = tf.nest.map_structure(lambda a, b: tf.concat([a, b], 0), first, second)
        tf.nest.map_structure(np.testing.assert_array_equal, joined, whole)
        tf.nest.map_structure(np.testing.assert_array_equal, state, whole_state)
        np.testing.assert_array_equal(carry["count"], whole_carry["count"])

    def test_carry_without_initial_carry_resets_to_zero(self):
        class Agent(fakes.CountingAgent):
            initial_carry = None

        env = fakes.Scripted(lengths=((2, 3), (9, 1)))
        first = {"count": tf.constant([10, 20])}
        trajectory, _, carry = rollout(env, Agent(), start(env), agent_state(), KEY, 4, carry=first)
        # Row 0 ends at its second step, so the third row begins at zero.
        np.testing.assert_array_equal(
            trajectory.policy_extras["count"], [[10, 20], [11, 21], [0, 22], [1, 23]]
        )
        np.testing.assert_array_equal(carry["count"], [2, 24])

    def test_keys_are_new_at_each_step_and_a_prefix(self):
        env = fakes.Scripted(lengths=((9,), (9,)))
        agent = fakes.NoisyAgent()
        full, part = (
            rollout(env, agent, start(env), {}, KEY, steps)[0].policy_extras["noise"].numpy()
            for steps in (5, 3)
        )
        self.assertLen(np.unique(full), 10)
        np.testing.assert_array_equal(part, full[:3])
        other, _, _ = rollout(env, agent, start(env), {}, seeding.key(8), 5)
        self.assertTrue(np.all(other.policy_extras["noise"].numpy() != full))

    def test_action_fn_takes_the_place_of_compute_actions(self):
        env = fakes.Scripted(lengths=((9,),))

        def sevens(state, obs, key, carry=None):
            return ActionOutput(action=tf.fill([1], 7))

        trajectory, _, carry = rollout(
            env, fakes.PlainAgent(), start(env), {}, KEY, 2, action_fn=sevens
        )
        np.testing.assert_array_equal(trajectory.action, [[7], [7]])
        self.assertIsNone(carry)
        self.assertIsNone(trajectory.policy_extras)
        self.assertIsNone(trajectory.env_extras)

    def test_shapes_are_static_and_a_trace_is_enough(self):
        env = fakes.Scripted(lengths=((3, 2), (5, 1)), mode="NEXT_STEP")
        agent, traces = fakes.CountingAgent(), []

        def collect(state, weights, key, carry):
            traces.append(None)
            trajectory, state, carry = rollout(
                env, agent, state, weights, key, 5, ("total",), carry=carry
            )
            for leaf in tf.nest.flatten(trajectory):
                assert leaf.shape.is_fully_defined() and leaf.shape[:2] == [5, 2], leaf
            return trajectory, state, carry

        run = tf.function(collect, autograph=False)
        state, carry = start(env), agent.initial_carry(2)
        for i in range(3):
            _, state, carry = run(state, {"weight": tf.constant(float(i))}, seeding.key(i), carry)
        self.assertLen(traces, 1)

    def test_variables_are_read_as_values(self):
        env = fakes.Scripted(lengths=((9,),))
        weight = tf.Variable(3.0)
        run = tf.function(
            lambda s, w: rollout(env, fakes.CountingAgent(), s, {"weight": w}, KEY, 3)[0],
            autograph=False,
        )
        scaled = run(start(env), weight).policy_extras["scaled"]
        np.testing.assert_array_equal(scaled, [[0.0], [3.0], [6.0]])
        weight.assign(5.0)
        scaled = run(start(env), weight).policy_extras["scaled"]
        np.testing.assert_array_equal(scaled, [[0.0], [5.0], [10.0]])


class RolloutErrorTest(parameterized.TestCase):
    def message(self, env=None, length=3, fields=(), agent=None, carry=None):
        env = env or fakes.Scripted(lengths=((9,),))
        with self.assertRaises(UserError) as caught:
            rollout(
                env, agent or fakes.PlainAgent(), start(env), {}, KEY, length, fields, carry=carry
            )
        return str(caught.exception)

    @parameterized.parameters(0, -2, 2.5, True, None)
    def test_length(self, length):
        self.assertEqual(
            self.message(length=length),
            f"length: expected a whole number of at least 1, got {length!r}. Give 1 or more.",
        )

    def test_length_as_tensor(self):
        self.assertIn("got <tf.Tensor", self.message(length=tf.constant(3)))

    def test_unknown_extra_field(self):
        self.assertEqual(
            self.message(fields=("total", "totl")),
            "env_extra_fields: expected some of action, actions, autoreset, dones, final_obs, "
            "next_obs, obs, reward, rewards, termination, total, truncation, valid, got totl. Did "
            "you mean total?",
        )

    def test_carry_that_appears(self):
        class Agent(fakes.PlainAgent):
            def compute_actions(self, state, obs, key, carry=None):
                return ActionOutput(action=obs["place"][:, 0], carry=obs["age"])

        self.assertEqual(
            self.message(agent=Agent()),
            "carry: expected the structure of the initial carry, got a carry after an initial "
            "carry of None. Define initial_carry(batch_size) on the agent to return the initial "
            "recurrent state, or pass carry=.",
        )

    def test_carry_that_disappears(self):
        message = self.message(carry={"count": tf.zeros([1])})
        self.assertIn("got None in ActionOutput.carry. Define initial_carry", message)

    def test_carry_of_another_structure(self):
        class Agent(fakes.PlainAgent):
            def compute_actions(self, state, obs, key, carry=None):
                return ActionOutput(action=obs["place"][:, 0], carry=[obs["age"]])

        message = self.message(agent=Agent(), carry={"count": tf.zeros([1])})
        self.assertIn("got a different structure in ActionOutput.carry (", message)
