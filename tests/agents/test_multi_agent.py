"""Several policies at once: stacking, whose rows count, and what a user may get wrong."""

import functools

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized

import tfrl
from tests.envs.multi_agent_fakes import Two
from tfrl import seeding, specs, struct
from tfrl.agents import PPO, MultiAgent, RandomAgent
from tfrl.agents.core import Agent
from tfrl.envs.wrappers import CentralState, Episode
from tfrl.errors import UserError
from tfrl.rollout import eval_rollout_episode, rollout
from tfrl.types import ActionOutput, AgentState

KEY = seeding.key(9)
MODES = ("NEXT_STEP", "SAME_STEP", "SAME_STEP_CACHED", "DISABLED")
IDS = ("agent_0", "agent_1", "agent_2")
SMALL = functools.partial(PPO, hidden=(8,))


@struct.logic_dataclass
class Counts(Agent):
    """Recurrent: the carry counts steps since the start; the action tells it."""

    obs_spec: object
    action_spec: object

    def init(self, key):
        return AgentState(params={})

    def initial_carry(self, batch_size):
        return tf.zeros([batch_size], tf.int64)

    def compute_actions(self, state, obs, key, carry=None):
        return ActionOutput(action=tf.minimum(carry, 1), carry=carry + 1, extras={"count": carry})

    evaluate_actions = compute_actions


def relay(num_envs=4, **kwargs):
    return tfrl.make_env("tf:Relay-v0", num_envs=num_envs, **kwargs)


def joint(env, policies, **kwargs):
    return MultiAgent(
        obs_spec=env.obs_spec, action_spec=env.action_spec, policies=policies, **kwargs
    )


def two(mode="NEXT_STEP", **kwargs):
    """a ends at step 2 by termination, b at step 4 by truncation."""
    return Episode(env=Two(**kwargs), mode=mode, limit=None)


class MappingTest(parameterized.TestCase):
    @parameterized.named_parameters(
        ("one_for_all", {"shared": SMALL}, None, {"shared": IDS}),
        ("one_each", dict.fromkeys(IDS, SMALL), None, {a: (a,) for a in IDS}),
        (
            "function",
            {"first": SMALL, "rest": SMALL},
            lambda a: "first" if a == "agent_0" else "rest",
            {"first": ("agent_0",), "rest": ("agent_1", "agent_2")},
        ),
        (
            "dict",
            {"x": SMALL, "y": RandomAgent},
            {"agent_0": "x", "agent_1": "y", "agent_2": "x"},
            {"x": ("agent_0", "agent_2"), "y": ("agent_1",)},
        ),
    )
    def test_members(self, policies, mapping, expected):
        agent = joint(relay(), policies, policy_mapping_fn=mapping)
        self.assertEqual(agent.members, expected)
        self.assertEqual(agent.agent_ids, IDS)
        for m, ids in expected.items():
            for a in ids:
                self.assertEqual(agent.module_of(a), m)
                self.assertEqual(agent.modules[m].obs_spec, agent.obs_spec[a])

    def test_modules_may_be_agents(self):
        env = relay()
        ppo = SMALL(obs_spec=env.obs_spec["agent_0"], action_spec=env.action_spec["agent_0"])
        self.assertIs(joint(env, {"shared": ppo}).modules["shared"], ppo)

    @parameterized.named_parameters(
        (
            "unknown_modules",
            {"policy_mapping_fn": lambda a: "shard" if a == "agent_1" else "shared"},
            "MultiAgent.policy_mapping_fn: expected ids of modules, shared, got 'shard' for "
            "agent_1. Did you mean shared?",
        ),
        (
            "no_module",
            {"policy_mapping_fn": {"agent_0": "shared"}},
            "MultiAgent.policy_mapping_fn: expected a module for every agent, agent_0, agent_1, "
            "agent_2, got no module for agent_1, agent_2. Map them to one of shared.",
        ),
        (
            "no_agent",
            {"policies": {"x": SMALL, "y": SMALL}, "policy_mapping_fn": lambda a: "x"},
            "MultiAgent.policies: expected policies that act for at least one agent, got no agent "
            "for "
            "y.",
        ),
        (
            "no_mapping",
            {"policy_mapping_fn": 3},
            "MultiAgent.policy_mapping_fn: expected a function agent_id -> module_id, or a dict, "
            "got 3.",
        ),
        (
            "no_modules",
            {"policies": {}},
            "MultiAgent.policies: expected a dict {module_id: agent} with at least one item, got "
            "{}.",
        ),
        (
            "one_agent",
            {"obs_spec": tf.TensorSpec([2])},
            "MultiAgent.obs_spec: expected a dict of specs keyed by agent id, got TensorSpec(",
        ),
        (
            "other_agents",
            {"action_spec": {"agent_0": specs.DiscreteSpec(3)}},
            "MultiAgent.action_spec: expected the agents of obs_spec, agent_0, agent_1, agent_2, "
            "got agent_0.",
        ),
        (
            "different_actions",
            {"action_spec": {a: specs.DiscreteSpec(2 + i % 2) for i, a in enumerate(IDS)}},
            "module 'shared': expected agents with the action spec of agent_0: {'.': "
            "DiscreteSpec(2, start=0, dtype=int64)}, got agent_1: {'.': DiscreteSpec(3, start=0, "
            "dtype=int64)}. Map agents with different specs to separate modules",
        ),
        (
            "no_agent_class",
            {"policies": {"shared": lambda obs_spec, action_spec: 3}},
            "module 'shared': expected an agent, or a function of obs_spec and action_spec that "
            "returns one, got int.",
        ),
        (
            "other_spec",
            {
                "policies": {
                    "shared": SMALL(obs_spec=tf.TensorSpec([3]), action_spec=specs.DiscreteSpec(3))
                }
            },
            "module 'shared': obs_spec: expected the spec of agent_0,",
        ),
    )
    def test_messages(self, changes, message):
        env = relay()
        arguments = {
            "obs_spec": env.obs_spec,
            "action_spec": env.action_spec,
            "policies": {"shared": SMALL},
        }
        with pytest.raises(UserError) as error:
            MultiAgent(**(arguments | changes))
        self.assertIn(message, str(error.value))


class ActingTest(parameterized.TestCase):
    def test_the_agents_of_a_module_go_through_it_as_one_batch(self):
        env = relay(num_envs=5)
        agent = joint(env, {"shared": SMALL})
        state = agent.init(KEY)
        self.assertEqual(list(state), ["shared"])
        obs = rollout(env, agent, env.reset(KEY), state, KEY, 3)[1].obs
        output = agent.compute_actions(state, obs, KEY)
        policy, key = agent.modules["shared"], seeding.stream(KEY, "shared")
        stacked = tf.concat([obs[a] for a in IDS], 0)
        expected = policy.compute_actions(state["shared"], stacked, key)
        np.testing.assert_array_equal(
            tf.concat([output.action[a] for a in IDS], 0), expected.action
        )
        np.testing.assert_array_equal(
            tf.concat([output.extras[a]["log_prob"] for a in IDS], 0), expected.extras["log_prob"]
        )
        self.assertIsNone(output.carry)
        greedy = agent.evaluate_actions(state, obs, KEY)
        np.testing.assert_array_equal(
            greedy.action["agent_2"],
            policy.evaluate_actions(state["shared"], obs["agent_2"], KEY).action,
        )
        self.assertIsNone(greedy.extras)

    def test_modules_draw_apart(self):
        env = relay(num_envs=64)
        agent = joint(env, dict.fromkeys(IDS, RandomAgent))
        drawn = agent.compute_actions(agent.init(KEY), env.reset(KEY).obs, KEY).action
        self.assertTrue(np.any(drawn["agent_0"] != drawn["agent_1"]))
        learns = joint(env, dict.fromkeys(IDS, SMALL)).init(KEY)
        kernels = [struct.paths(learns[a].params["policy"]["torso"]) for a in IDS]
        for path, kernel in kernels[0].items():
            if "kernel" in path:
                self.assertTrue(np.any(kernel != kernels[1][path]))

    @parameterized.parameters(*MODES)
    def test_carries_start_again_with_the_environment(self, mode):
        env = Episode(env=Two(ends=((2, "T"), (3, "T"))), mode=mode, limit=None)
        agent = MultiAgent(
            obs_spec=env.obs_spec,
            action_spec=env.action_spec,
            policies={"counts": Counts, "random": RandomAgent},
            policy_mapping_fn={"a": "random", "b": "counts"},
        )
        self.assertEqual(list(agent.initial_carry(3)), ["b"])
        trajectory, _, carry = rollout(env, agent, env.reset(KEY), agent.init(KEY), KEY, 7)
        counts = trajectory.policy_extras["b"]["count"][:, 0].numpy().tolist()
        expected = {
            "NEXT_STEP": [0, 1, 2, 3, 0, 1, 2],
            "DISABLED": [0, 1, 2, 3, 4, 5, 6],
        }.get(mode, [0, 1, 2, 0, 1, 2, 0])
        self.assertEqual(counts, expected)
        self.assertEqual(list(carry), ["b"])

    def test_a_rollout_is_the_same_compiled_by_xla(self):
        env = relay(num_envs=3, autoreset="NEXT_STEP")
        agent = joint(env, {"first": SMALL, "rest": SMALL}, policy_mapping_fn=first_and_rest)
        state = agent.init(KEY)

        def play(state, key):
            return rollout(env, agent, env.reset(key), state, key, 8, agent.env_extra_fields)[0]

        expected = play(state, KEY)
        compiled = tf.function(play, autograph=False, jit_compile=True)
        tf.nest.map_structure(
            lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-6),
            compiled(state, KEY),
            expected,
        )
        compiled(agent.init(seeding.key(1)), seeding.key(2))
        self.assertEqual(compiled.experimental_get_tracing_count(), 1)


def first_and_rest(agent_id):
    return "first" if agent_id == "agent_0" else "rest"


class LearningTest(parameterized.TestCase):
    def both(self, mode="NEXT_STEP", length=7, **kwargs):
        env = two(mode, **kwargs)
        fields = ("agents",) if kwargs.get("apart", True) else ()
        agent = MultiAgent(
            obs_spec=env.obs_spec,
            action_spec=env.action_spec,
            policies={"a": RandomAgent, "b": RandomAgent},
            env_extra_fields=fields,
        )
        state = agent.init(KEY)
        return agent.views(rollout(env, agent, env.reset(KEY), state, KEY, length, fields)[0])

    def test_an_agents_rows_end_with_it_and_begin_with_the_environment(self):
        # Steps 1 .. 4, the row of the reset, steps 1 and 2.
        views = self.both()
        column = lambda view, name: getattr(view, name)[:, 0].numpy().astype(int).tolist()  # noqa: E731
        self.assertEqual(column(views["a"], "valid"), [1, 1, 0, 0, 0, 1, 1])
        self.assertEqual(column(views["a"], "termination"), [0, 1, 0, 0, 0, 0, 1])
        self.assertEqual(column(views["a"], "truncation"), [0, 0, 0, 0, 0, 0, 0])
        self.assertEqual(column(views["b"], "valid"), [1, 1, 1, 1, 0, 1, 1])
        self.assertEqual(column(views["b"], "termination"), [0, 0, 0, 0, 0, 0, 0])
        self.assertEqual(column(views["b"], "truncation"), [0, 0, 0, 1, 0, 0, 0])
        # The successor of the truncated step has age 4, and is no start.
        np.testing.assert_array_equal(views["b"].next_obs["vector"][3, :, 1], [4, 4, 4])

    def test_the_time_limit_cuts_who_is_active(self):
        env = Episode(env=Two(), mode="SAME_STEP", limit=3)
        agent = joint(env, {"a": RandomAgent, "b": RandomAgent})
        trajectory, _, _ = rollout(env, agent, env.reset(KEY), agent.init(KEY), KEY, 3, ("agents",))
        views = agent.views(trajectory)
        np.testing.assert_array_equal(views["a"].truncation[:, 0], [False] * 3)
        np.testing.assert_array_equal(views["a"].valid[:, 0], [True, True, False])
        np.testing.assert_array_equal(views["b"].truncation[:, 0], [False, False, True])

    def test_shared_ends_need_no_flags(self):
        views = self.both(apart=False, ends=((3, "T"), (3, "T")), length=5)
        for view in views.values():
            np.testing.assert_array_equal(view.termination[:, 0], [0, 0, 1, 0, 0])
            np.testing.assert_array_equal(view.valid[:, 0], [1, 1, 1, 0, 1])

    @parameterized.parameters(True, False)
    def test_where_all_rows_are_steps_validity_may_be_left_out(self, apart):
        env = two("SAME_STEP", apart=apart, ends=((3, "T"), (3, "T")))
        agent = joint(env, {"a": RandomAgent, "b": RandomAgent})
        fields = ("agents",) if apart else ()
        trajectory, _, _ = rollout(env, agent, env.reset(KEY), agent.init(KEY), KEY, 5, fields)
        views = agent.views(trajectory.replace(valid=None))
        if apart:
            np.testing.assert_array_equal(views["a"].valid, np.ones([5, 3], bool))
        else:
            self.assertIsNone(views["a"].valid)
        np.testing.assert_array_equal(views["a"].termination[:, 0], [0, 0, 1, 0, 0])

    @parameterized.parameters(*MODES)
    def test_the_batch_of_a_module_is_that_of_its_agents_one_by_one(self, mode):
        env = relay(num_envs=4, autoreset=mode)
        agent = joint(env, {"shared": SMALL})
        state = agent.init(KEY)
        play = tf.function(
            lambda: rollout(env, agent, env.reset(KEY), state, KEY, 24, ("agents",))[0],
            autograph=False,
        )
        trajectory = play()
        batches, metrics = agent.learner_batch(state, trajectory)
        self.assertEqual(list(batches), ["shared"])
        self.assertIn("shared/explained_variance", metrics)
        batch = batches["shared"]
        self.assertEqual(batch.advantage.shape, [24 * 3 * 4])
        rows = lambda x: tf.reshape(x, [24, 3, 4, *x.shape[1:]])  # noqa: E731
        policy = agent.modules["shared"]
        for k, a in enumerate(IDS):
            alone = joint(env, dict.fromkeys(IDS, policy)).views(trajectory)[a]
            expected, _ = policy.learner_batch(state["shared"], alone)
            for path, leaf in struct.paths(expected).items():
                got = tf.reshape(rows(struct.paths(batch)[path])[:, k], leaf.shape)
                np.testing.assert_allclose(got, leaf, rtol=1e-5, atol=1e-6, err_msg=path)
        active = tf.stack([trajectory.env_extras["agents"][a]["active"] for a in IDS], 1)
        np.testing.assert_array_equal(rows(batch.mask), active & trajectory.valid[:, tf.newaxis])

    def test_values_of_the_next_episode_do_not_leak_into_an_agents_return(self):
        # gamma = lambda = 1 and V = 0: targets are the sums of what is left to be paid.
        env = two("SAME_STEP", ends=((2, "T"), (4, "T")))
        make = functools.partial(PPO, hidden=(4,), discount=1.0, gae_lambda=1.0)
        agent = joint(env, {"a": make, "b": make})
        state = agent.init(KEY)

        def zero(s):
            nothing = tf.nest.map_structure(tf.zeros_like, s.params["value"])
            return s.replace(params={**s.params, "value": nothing})

        state = {m: zero(s) for m, s in state.items()}
        trajectory, _, _ = rollout(env, agent, env.reset(KEY), state, KEY, 8, ("agents",))
        batches, _ = agent.learner_batch(state, trajectory)
        targets = {m: tf.reshape(b.value_target, [8, 3])[:, 0] for m, b in batches.items()}
        np.testing.assert_allclose(targets["a"], [2, 1, 0, 0, 2, 1, 0, 0])
        np.testing.assert_allclose(targets["b"], [4, 3, 2, 1, 4, 3, 2, 1])

    def test_statistics_count_the_rows_of_active_agents_only(self):
        env = two("NEXT_STEP")
        make = functools.partial(PPO, hidden=(4,), normalize_obs=True)
        agent = joint(env, {"a": make, "b": make})
        state = agent.init(KEY)
        trajectory, _, _ = rollout(env, agent, env.reset(KEY), state, KEY, 5, ("agents",))
        seen = agent.update_normalizer(state, trajectory)
        self.assertEqual(float(seen["a"].normalizer.count), 2 * 3)
        self.assertEqual(float(seen["b"].normalizer.count), 4 * 3)

    def test_modules_that_do_not_learn_have_no_batch(self):
        env = relay()
        agent = joint(env, {"first": RandomAgent, "rest": SMALL}, policy_mapping_fn=first_and_rest)
        state = agent.init(KEY)
        trajectory, _, _ = rollout(env, agent, env.reset(KEY), state, KEY, 4, ("agents",))
        batches, metrics = agent.learner_batch(state, trajectory)
        self.assertEqual(list(batches), ["rest"])
        self.assertEqual({name.partition("/")[0] for name in metrics}, {"rest"})
        self.assertEqual([u.name for u in agent.updates], ["ppo"])

    def test_a_centralised_critic_sees_the_state_and_the_policy_does_not(self):
        env = relay(wrappers=(lambda env: CentralState(env=env),))
        make = functools.partial(PPO, hidden=(8,), obs_key="own", value_obs_key="state")
        agent = joint(env, {"shared": make})
        state = agent.init(KEY)
        trajectory, _, _ = rollout(env, agent, env.reset(KEY), state, KEY, 6, ("agents",))
        batches, _ = agent.learner_batch(state, trajectory)
        self.assertEqual(batches["shared"].obs["state"].shape, [6 * 3 * 4, 10])
        kernel = struct.paths(state["shared"].params["value"])
        self.assertIn(10, {x.shape[0] for x in kernel.values()})

    def test_whole_episodes(self):
        env = relay(num_envs=2, autoreset="DISABLED")
        agent = joint(env, {"shared": SMALL})
        state = agent.init(KEY)
        trajectory, _ = eval_rollout_episode(env, agent, env.reset(KEY), state, KEY)
        self.assertEqual(trajectory.reward["agent_1"].shape, [24, 2])
        self.assertIsNone(trajectory.policy_extras)
