"""The protocol of several agents: who counts when, its checks, and its wrappers."""

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized

import tfrl
from tests.envs.checker_fakes import checked
from tests.envs.multi_agent_fakes import IDS, Two
from tfrl import seeding, specs, struct
from tfrl.envs import check_env
from tfrl.envs.core import Autoreset
from tfrl.envs.multi_agent import agent_flags, agent_ids, agents_info
from tfrl.envs.registry import finish
from tfrl.envs.tf.relay import Relay
from tfrl.envs.wrappers import (
    ActionRepeat,
    AgentId,
    CentralState,
    Episode,
    ObservationFlatten,
    RewardActive,
    RewardScale,
)
from tfrl.errors import UserError

KEY = seeding.key(5)
MODES = ("NEXT_STEP", "SAME_STEP", "SAME_STEP_CACHED", "DISABLED")


def actions(env):
    return specs.zeros(env.action_spec, [env.num_envs])


def run(env, steps):
    """The states after a reset and `steps` steps."""
    states = [env.reset(KEY)]
    for _ in range(steps):
        states.append(env.step(states[-1], actions(env)))
    return states


def flags_of(state):
    agents = state.info["agents"]
    return {
        a: "".join(
            "ATU"[i]
            for i, v in enumerate(
                (agents[a]["active"], agents[a]["termination"], agents[a]["truncation"])
            )
            if v[0]
        )
        for a in IDS
    }


class AgentFlagsTest(parameterized.TestCase):
    @parameterized.named_parameters(
        # own flags (active, termination, truncation), the environment's (termination, truncation),
        # whether the row is a step -> valid, termination, truncation
        ("goes_on", (1, 0, 0), (0, 0), 1, (1, 0, 0)),
        ("ends", (1, 1, 0), (0, 0), 1, (1, 1, 0)),
        ("is_cut", (1, 0, 1), (0, 0), 1, (1, 0, 1)),
        ("inactive", (0, 0, 0), (0, 0), 1, (0, 0, 0)),
        ("inactive_at_the_end_of_all", (0, 0, 0), (1, 1), 1, (0, 0, 0)),
        ("time_limit", (1, 0, 0), (0, 1), 1, (1, 0, 1)),
        ("ends_at_the_time_limit", (1, 1, 0), (0, 1), 1, (1, 1, 0)),
        ("last_at_the_time_limit", (1, 1, 0), (1, 1), 1, (1, 1, 0)),
        ("cut_where_all_end", (1, 0, 1), (1, 0), 1, (1, 0, 1)),
        ("ends_with_all_unsaid", (1, 0, 0), (1, 0), 1, (1, 1, 0)),
        ("no_step", (1, 1, 0), (1, 0), 0, (0, 0, 0)),
    )
    def test_one_row(self, own, whole, valid, expected):
        tensor = lambda x: tf.constant([bool(x)])  # noqa: E731
        names = ("active", "termination", "truncation")
        (flags,) = agent_flags(
            ("x",),
            termination=tensor(whole[0]),
            truncation=tensor(whole[1]),
            valid=tensor(valid),
            agents={"x": dict(zip(names, map(tensor, own), strict=True))},
        ).values()
        got = (flags.valid, flags.termination, flags.truncation)
        self.assertEqual(tuple(int(x[0]) for x in got), expected)

    def test_agents_that_end_together_share_the_flags_of_the_environment(self):
        end, cut, valid = (tf.constant(x) for x in ([True, False], [False, True], [True, True]))
        for flags in agent_flags(IDS, termination=end, truncation=cut, valid=valid).values():
            self.assertIs(flags.termination, end)
            self.assertIs(flags.truncation, cut)
            self.assertIs(flags.valid, valid)

    def test_flags_side_by_side_count_only_where_active(self):
        info = agents_info(
            IDS,
            active=tf.constant([[True, False]]),
            termination=tf.constant([[True, True]]),
            truncation=tf.constant([[False, True]]),
        )
        values = {a: [bool(x[0]) for x in f.values()] for a, f in info.items()}
        self.assertEqual(values, {"a": [True, True, False], "b": [False, False, False]})
        self.assertEqual(list(info["a"]), ["active", "termination", "truncation"])


class ProtocolTest(parameterized.TestCase):
    def test_agent_ids_are_found_below_wrappers(self):
        env = finish(Two(), autoreset=Autoreset.SAME_STEP, max_episode_steps=None, task_limit=None)
        self.assertEqual(agent_ids(env), IDS)
        self.assertEqual(agent_ids(RewardScale(env=env, scale=0.5)), IDS)
        self.assertIsNone(agent_ids(tfrl.make_env("tf:CartPole-v1")))

    @parameterized.parameters(*MODES)
    @pytest.mark.variants(2)
    def test_it_works_under_every_autoreset_mode(self, mode):
        for limit in (None, 3):
            for kwargs in ({}, {"apart": False}, {"ends": ((4, "T"), (4, "T"))}):
                ends = checked(Episode(env=Two(**kwargs), mode=mode, limit=limit), steps=20)
                length = limit or 4
                times = {"NEXT_STEP": 20 // (length + 1), "DISABLED": 21 - length}
                self.assertEqual(ends.sum(axis=0).tolist(), [times.get(mode, 20 // length)] * 3)

    def test_next_step_by_hand(self):
        # a terminates at step 2, b truncates at step 4; then a row of the reset.
        env = Episode(env=Two(), mode="NEXT_STEP", limit=None)
        states = run(env, 6)
        expected = [
            {"a": "", "b": ""},
            {"a": "A", "b": "A"},
            {"a": "AT", "b": "A"},
            {"a": "", "b": "A"},
            {"a": "", "b": "AU"},
            {"a": "", "b": ""},
            {"a": "A", "b": "A"},
        ]
        self.assertEqual([flags_of(s) for s in states], expected)
        self.assertEqual(
            [bool(s.truncation[0]) for s in states], [False] * 4 + [True] + [False] * 2
        )
        self.assertEqual(
            [bool(s.info["autoreset"][0]) for s in states], [False] * 5 + [True, False]
        )
        returns = [
            (float(s.info["episode_return"]["a"][0]), float(s.info["episode_return"]["b"][0]))
            for s in states[1:5]
        ]
        self.assertEqual(returns, [(1, 1), (2, 2), (2, 3), (2, 4)])

    def test_the_time_limit_cuts_the_agents_that_are_active(self):
        env = Episode(env=Two(), mode="SAME_STEP", limit=3)
        state = run(env, 3)[-1]
        flags = agent_flags(
            IDS,
            termination=state.termination,
            truncation=state.truncation,
            valid=tf.ones([3], tf.bool),
            agents=state.info["agents"],
        )
        got = {
            a: [bool(x[0]) for x in (f.valid, f.termination, f.truncation)]
            for a, f in flags.items()
        }
        self.assertEqual(got, {"a": [False, False, False], "b": [True, False, True]})

    @parameterized.named_parameters(
        (
            "obs_keys",
            {"obs_spec": property(lambda self: {"a": Two().obs_spec["a"]})},
            "obs_spec: expected a dict with the keys a, b, got no b.",
        ),
        (
            "action_no_dict",
            {"action_spec": property(lambda self: specs.DiscreteSpec(2))},
            "action_spec: expected a dict with the keys a, b, got DiscreteSpec.",
        ),
        (
            "ids",
            {"agent_ids": property(lambda self: ("a", "a"))},
            "agent_ids: expected at least one name, without duplicates, got ('a', 'a').",
        ),
        (
            "reward",
            {"reset": lambda self, key: Two.reset(self, key).replace(reward=tf.zeros([3]))},
            "reset: reward: expected a dict with the keys a, b, got EagerTensor.",
        ),
        (
            "flag_names",
            {"reset": lambda self, key: with_agents(Two.reset(self, key), a={"active": NO})},
            "reset: info/agents/a: expected a dict with the keys active, termination, "
            "truncation, got no termination, truncation.",
        ),
        (
            "flag_dtype",
            {
                "reset": lambda self, key: with_agents(
                    Two.reset(self, key), a=dict.fromkeys(FLAGS, tf.zeros([3]))
                )
            },
            "reset: info/agents/a/active: expected a tensor bool [3], got float32 [3].",
        ),
        (
            "active_at_reset",
            {
                "reset": lambda self, key: with_agents(
                    Two.reset(self, key), b={"active": YES, "termination": NO, "truncation": NO}
                )
            },
            "reset: info/agents/b/active: expected False before the first step, got a mismatch in "
            "rows [0, 1, 2].",
        ),
        (
            "active_after_its_end",
            {"step": lambda self, s, a: always_active(Two.step(self, s, a))},
            "step 3: info/agents/a/active: expected True until the agent ends, then False, got a "
            "mismatch in rows [0, 1, 2].",
        ),
        (
            "no_state",
            {"state_spec": property(lambda self: tf.TensorSpec([2]))},
            "reset: info: expected a dict with the keys state, got no state.",
        ),
        (
            "ends_too_early",
            {"step": lambda self, s, a: ends_with_a(Two.step(self, s, a))},
            "step 2: termination: expected False while an agent is active, got a mismatch in rows "
            "[0, 1, 2].",
        ),
        (
            "never_ends",
            {"step": lambda self, s, a: Two.step(self, s, a).replace(truncation=NO)},
            "step 4: termination or truncation: expected True if all agents have ended, got a "
            "mismatch in rows [0, 1, 2].",
        ),
    )
    def test_messages(self, members, message):
        env = struct.logic_dataclass(type("Broken", (Two,), members))()
        with pytest.raises(UserError) as error:
            check_env(env, steps=8)
        self.assertIn(message, str(error.value))

    def test_who_has_ended_is_not_paid(self):
        message = r"step 3: reward/a: expected 0 after its end, got a mismatch in rows \[0, 1, 2\]"
        for env in (Two(paid_after=0.5), Episode(env=Two(paid_after=0.5), mode="SAME_STEP")):
            with pytest.raises(UserError, match=message):
                check_env(env, steps=8)
            check_env(
                RewardActive(env=env)
                if env.autoreset is None
                else Episode(env=RewardActive(env=env.env), mode="SAME_STEP"),
                steps=8,
            )


NO, YES = tf.zeros([3], tf.bool), tf.ones([3], tf.bool)
FLAGS = ("active", "termination", "truncation")


def with_agents(state, **agents):
    return state.replace(info={"agents": {**state.info["agents"], **agents}})


def always_active(state):
    agents = {a: {**f, "active": YES} for a, f in state.info["agents"].items()}
    return with_agents(state, **agents)


def ends_with_a(state):
    return state.replace(termination=state.info["agents"]["a"]["termination"])


class WrappersTest(parameterized.TestCase):
    def test_agent_id_appends_a_code(self):
        env = AgentId(env=Two())
        obs = env.reset(KEY).obs
        self.assertEqual({a: x.shape.as_list() for a, x in obs.items()}, {"a": [3, 4], "b": [3, 7]})
        np.testing.assert_array_equal(obs["a"][:, 2:], [[1, 0]] * 3)
        # b: the kind as one-hot (0 at age 0), the vector, the code.
        np.testing.assert_array_equal(obs["b"][:, :3], [[1, 0, 0]] * 3)
        np.testing.assert_array_equal(obs["b"][:, 3:5], obs["a"][:, :2])
        np.testing.assert_array_equal(obs["b"][:, 5:], [[0, 1]] * 3)
        check_env(env, steps=8)
        for mode in MODES:
            below = Episode(env=AgentId(env=Two()), mode=mode, limit=3)
            above = AgentId(env=Episode(env=Two(), mode=mode, limit=3))
            for one, other in zip(run(below, 9), run(above, 9), strict=True):
                tf.nest.map_structure(np.testing.assert_array_equal, one.obs, other.obs)
                name = "final_obs"
                tf.nest.map_structure(
                    np.testing.assert_array_equal, one.info[name], other.info[name]
                )

    def test_central_state_is_that_of_the_environment(self):
        env = CentralState(env=Relay(num_envs=4))
        state = env.reset(KEY)
        for k, a in enumerate(("agent_0", "agent_1", "agent_2")):
            np.testing.assert_array_equal(state.obs[a]["state"][:, :7], state.info["state"])
            np.testing.assert_array_equal(state.obs[a]["state"][:, 7:], [np.eye(3)[k]] * 4)
            self.assertEqual(state.obs[a]["own"].shape, [4, 2])
        self.assertEqual(env.obs_spec["agent_0"]["state"].shape, [10])

    def test_central_state_is_all_observations_where_the_environment_has_none(self):
        env = CentralState(env=Two())
        obs = run(env, 2)[-1].obs
        # a's vector (2), b's kind as one-hot (3) and vector (2), the code (2).
        expected = tf.concat(
            [
                obs["a"]["own"],
                tf.one_hot(obs["b"]["own"]["kind"], 3),
                obs["b"]["own"]["vector"],
                [[0.0, 1.0]] * 3,
            ],
            axis=-1,
        )
        np.testing.assert_array_equal(obs["b"]["state"], expected)

    @parameterized.parameters(*MODES)
    @pytest.mark.variants(2)
    def test_the_true_successor_has_the_state_too(self, mode):
        env = tfrl.make_env(
            "tf:Relay-v0",
            num_envs=4,
            autoreset=mode,
            max_episode_steps=2,
            wrappers=(lambda env: CentralState(env=env),),
        )
        check_env(env, steps=12)
        end = env.step(env.step(env.reset(KEY), actions(env)), actions(env))
        # All went left for two steps: cells -2 / 3, also where the observation is a start again.
        final = end.info["final_obs"]["agent_1"]["state"]
        np.testing.assert_allclose(final[:, 1:4], np.full([4, 3], -2 / 3), atol=1e-6)

    def test_repeated_actions_join_the_flags_of_the_frames(self):
        # a ends in frame 2 = step 1, b in frame 3: within step 2, of which frame 4 is not taken.
        env = ActionRepeat(env=Two(ends=((2, "T"), (3, "T"))), repeat=2)
        check_env(env, steps=8)
        states = run(env, 2)
        self.assertEqual(
            [flags_of(s) for s in states[1:]], [{"a": "AT", "b": "A"}, {"a": "", "b": "AT"}]
        )
        self.assertEqual([float(states[i].reward["b"][0]) for i in (1, 2)], [2.0, 1.0])

    @parameterized.parameters("eager", "graph", "xla")
    def test_one_result_however_compiled(self, how):
        wrap = lambda env: AgentId(env=CentralState(env=env))  # noqa: E731
        env = Episode(env=wrap(Relay(num_envs=3)), mode="SAME_STEP", limit=4)
        step = env.step
        if how != "eager":
            step = tf.function(env.step, autograph=False, jit_compile=how == "xla")
        state = expected = env.reset(KEY)
        for _ in range(5):
            state = step(state, actions(env))
            expected = env.step(expected, actions(env))
            tf.nest.map_structure(np.testing.assert_array_equal, state, expected)

    @parameterized.parameters(
        (
            lambda: AgentId(env=tfrl.make_env("tf:CartPole-v1")),
            "AgentId: expected an environment with several agents (tfrl.envs.MultiAgentEnv), got "
            "CartPole, which has one agent.",
        ),
        (
            lambda: CentralState(env=tfrl.make_env("tf:Relay-v0")),
            "CentralState: expected a bare environment to wrap (below time limit and autoreset), "
            "got an environment with autoreset SAME_STEP.",
        ),
        (
            lambda: check_env(ObservationFlatten(env=Two())),
            "obs_spec: expected a dict with the keys a, b, got BoundedTensorSpec.",
        ),
    )
    def test_messages(self, make, message):
        with pytest.raises(UserError) as error:
            make()
        self.assertIn(message, str(error.value))
