"""The suite `pettingzoo`: copies on the host, by a scripted environment and by simple_spread."""

import sys
import types
import unittest.mock

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized

import tfrl
from tfrl import seeding
from tfrl.agents import MultiAgent, RandomAgent
from tfrl.envs.adapters.pettingzoo import ParallelCopies
from tfrl.envs.env_calls import HostErrors
from tfrl.envs.wrappers import ActionRepeat, AgentId, CentralState
from tfrl.errors import UserError
from tfrl.evaluation import Evaluator
from tfrl.rollout import rollout

spaces = pytest.importorskip("gymnasium.spaces")
pytest.importorskip("pettingzoo")

KEY = seeding.key(21)


class Scripted:
    """Agents x and y; x terminates at step 2, y is cut at step 3. Observations [seed, age]."""

    possible_agents = ("x", "y")

    def __init__(self, ends=(("x", 2, "T"), ("y", 3, "U")), max_cycles=None):
        self.ends = {a: (t, kind) for a, t, kind in ends}
        if max_cycles is not None:
            self.max_cycles = max_cycles
        self.resets, self.taken = [], []

    @property
    def unwrapped(self):
        return self

    def observation_space(self, agent):
        box = spaces.Box(0.0, 1e9, (2,), np.float64)
        return box if agent == "x" else spaces.Dict({"age": spaces.Discrete(100), "see": box})

    def action_space(self, agent):
        return spaces.Discrete(3, start=1) if agent == "x" else spaces.Box(-1.0, 1.0, (2,))

    def observe(self, agents):
        see = np.array([self.seed, self.age], np.float64)
        both = {"x": see, "y": {"age": self.age, "see": see}}
        return {a: both[a] for a in agents}

    def reset(self, seed=None, options=None):
        self.seed, self.age, self.agents = seed % 1000, 0, list(self.ends)
        self.resets.append(seed)
        return self.observe(self.agents), {a: {} for a in self.agents}

    def step(self, actions):
        assert set(actions) == set(self.agents)
        self.age += 1
        self.taken.append(actions)
        at = {a: self.ends[a] for a in self.agents}
        terminations = {a: t == self.age and kind == "T" for a, (t, kind) in at.items()}
        truncations = {a: t == self.age and kind == "U" for a, (t, kind) in at.items()}
        rewards = {a: float(self.age) for a in self.agents}
        seen = self.observe(self.agents)
        self.agents = [a for a, (t, _) in at.items() if t > self.age]
        return seen, rewards, terminations, truncations, {a: {} for a in at}


@pytest.fixture(autouse=True)
def scripted_module(monkeypatch):
    module = types.ModuleType("scripted_parallel")
    made = []

    def parallel_env(**kwargs):
        made.append(Scripted(**kwargs))
        return made[-1]

    module.parallel_env, module.made = parallel_env, made
    monkeypatch.setitem(sys.modules, "scripted_parallel", module)
    yield module


def scripted(num_envs=2, **kwargs):
    kwargs.setdefault("max_episode_steps", 50)
    return tfrl.make_env("pettingzoo:scripted_parallel", num_envs=num_envs, **kwargs)


def actions(env):
    size = env.num_envs
    x = tf.range(1, size + 1, dtype=tf.int64)
    return {"x": tf.minimum(x, 3), "y": tf.ones([size, 2]) * 0.5}


def run(env, steps):
    states = [env.reset(KEY)]
    for _ in range(steps):
        states.append(env.step(states[-1], actions(env)))
    return states


def row(values, states):
    return [np.asarray(values(s))[0].item() for s in states]


class ScriptedTest(parameterized.TestCase):
    def test_specs_are_those_of_the_spaces(self):
        env = scripted()
        self.assertEqual(env.unwrapped.agent_ids, ("x", "y"))
        self.assertEqual(env.obs_spec["x"].dtype, tf.float64)
        self.assertEqual(sorted(env.obs_spec["y"]), ["age", "see"])
        self.assertEqual((env.action_spec["x"].start, env.action_spec["x"].num_values), (1, 3))

    @parameterized.parameters("NEXT_STEP", "SAME_STEP", "DISABLED")
    def test_an_episode_in_every_mode(self, mode):
        env = scripted(autoreset=mode)
        states = run(env, 5)
        age = lambda s: s.obs["y"]["age"]  # noqa: E731
        final = lambda s: s.info["final_obs"]["y"]["age"]  # noqa: E731
        self.assertEqual(row(final, states)[:4], [0, 1, 2, 3])
        self.assertEqual(
            row(age, states),
            {
                "NEXT_STEP": [0, 1, 2, 3, 0, 1],
                "SAME_STEP": [0, 1, 2, 0, 1, 2],
                "DISABLED": [0, 1, 2, 3, 3, 3],
            }[mode],
        )
        active = lambda a: row(lambda s: s.info["agents"][a]["active"], states)[:4]  # noqa: E731
        self.assertEqual(active("x"), [False, True, True, False])
        self.assertEqual(active("y"), [False, True, True, True])
        self.assertEqual(row(lambda s: s.info["agents"]["x"]["termination"], states)[2], True)
        self.assertEqual(row(lambda s: s.info["agents"]["y"]["truncation"], states)[3], True)
        # The environment ends by the last agent, which is cut.
        self.assertEqual(row(lambda s: s.truncation, states)[:4], [False] * 3 + [True])
        self.assertEqual(row(lambda s: s.termination, states)[:4], [False] * 4)
        self.assertEqual(row(lambda s: s.reward["x"], states)[:4], [0, 1, 2, 0])
        # x is shown what it saw last.
        self.assertEqual(row(lambda s: s.info["final_obs"]["x"][:, 1], states)[:4], [0, 1, 2, 2])

    def test_only_rows_that_ended_are_reset_and_each_with_a_seed_of_its_own(self):
        sys.modules["scripted_parallel"].made.clear()
        env = scripted(num_envs=3)
        run(env, 6)  # two episodes of 3 steps, and a third begun
        seeds = [copy.resets for copy in sys.modules["scripted_parallel"].made]
        self.assertEqual([len(s) for s in seeds], [3, 3, 3])
        self.assertLen({s for copy in seeds for s in copy}, 9)

    def test_the_key_determines_the_episodes(self):
        one, other = run(scripted(), 7), run(scripted(), 7)
        for a, b in zip(one, other, strict=True):
            tf.nest.map_structure(np.testing.assert_array_equal, a.obs, b.obs)

    def test_actions_arrive_in_the_form_of_the_spaces(self):
        sys.modules["scripted_parallel"].made.clear()
        run(scripted(), 3)
        first, second = sys.modules["scripted_parallel"].made
        self.assertEqual([t["x"] for t in first.taken[:2]], [1, 1])
        self.assertEqual([t["x"] for t in second.taken[:2]], [2, 2])
        self.assertIsInstance(first.taken[0]["x"], int)
        np.testing.assert_array_equal(first.taken[0]["y"], [0.5, 0.5])
        self.assertEqual(sorted(first.taken[2]), ["y"])  # x has ended

    @parameterized.parameters("NEXT_STEP", "SAME_STEP", "DISABLED")
    def test_a_time_limit(self, mode):
        env = scripted(autoreset=mode, max_episode_steps=2)
        states = run(env, 7)
        self.assertEqual(row(lambda s: s.truncation, states)[2], True)
        ages = row(lambda s: s.info["final_obs"]["y"]["age"], states)
        expected = {
            "NEXT_STEP": [0, 1, 2, 0, 1, 2, 0, 1],
            "SAME_STEP": [0, 1, 2, 1, 2, 1, 2, 1],
            "DISABLED": [0, 1, 2, 2, 2, 2, 2, 2],
        }[mode]
        self.assertEqual(ages, expected)

    def test_the_environments_own_limit_is_found(self):
        self.assertEqual(scripted(max_episode_steps=None, max_cycles=9).max_episode_steps, 9)
        self.assertIsNone(scripted(max_episode_steps=-1, max_cycles=9).max_episode_steps)

    @parameterized.parameters("NEXT_STEP", "SAME_STEP", "DISABLED")
    def test_wrappers_below_and_a_graph(self, mode):
        wrap = (
            lambda env: ActionRepeat(env=env, repeat=2),
            lambda env: AgentId(env=env),
            lambda env: CentralState(env=env),
        )
        eager = run(scripted(autoreset=mode, wrappers=wrap, max_episode_steps=20), 5)
        env = scripted(autoreset=mode, wrappers=wrap, max_episode_steps=20)
        step = tf.function(env.step, autograph=False)
        state = env.reset(KEY)
        for expected in eager[1:]:
            state = step(state, actions(env))
            tf.nest.map_structure(np.testing.assert_array_equal, state.obs, expected.obs)
            tf.nest.map_structure(np.testing.assert_array_equal, state.info, expected.info)

    def test_a_rollout_in_one_graph_is_the_eager_one(self):
        def collect(env, compile):
            agent = MultiAgent(
                obs_spec=env.obs_spec,
                action_spec=env.action_spec,
                policies={"x": RandomAgent, "y": RandomAgent},
            )

            def play():
                return rollout(env, agent, env.reset(KEY), agent.init(KEY), KEY, 11, ("agents",))

            return (tf.function(play, autograph=False) if compile else play)()[0]

        tf.nest.map_structure(
            np.testing.assert_array_equal, collect(scripted(), True), collect(scripted(), False)
        )

    def test_a_new_number_of_environments_is_new_copies(self):
        env = scripted(num_envs=2)
        more = env.with_num_envs(3)
        self.assertEqual((more.num_envs, more.autoreset), (3, env.autoreset))
        self.assertEqual(more.reset(KEY).obs["x"].shape, [3, 2])

    def test_an_old_state_is_an_error(self):
        env = scripted()
        states = run(env, 2)
        with pytest.raises(
            Exception, match="an older state, or one from another process, in rows "
        ):
            env.step(states[1], actions(env))
        run(env, 1)  # a new reset goes on

    def test_xla_is_an_error(self):
        env = scripted()
        state = env.reset(KEY)
        step = tf.function(env.step, autograph=False, jit_compile=True)
        with pytest.raises(UserError) as error:
            step(state, actions(env))
        self.assertEqual(
            str(error.value),
            "pettingzoo:scripted_parallel: expected graph or eager mode, since its steps are "
            "Python calls on the host, got compilation by XLA. Pass compile='graph' to the "
            "workflow or function that steps this environment.",
        )

    @parameterized.named_parameters(
        (
            "cached",
            "pettingzoo:scripted_parallel",
            {"autoreset": "SAME_STEP_CACHED"},
            "autoreset of pettingzoo:scripted_parallel: expected NEXT_STEP, SAME_STEP or DISABLED",
        ),
        (
            "missing",
            "pettingzoo:no_such_module_at_all",
            {},
            "environment pettingzoo:no_such_module_at_all: expected an installed module, got no "
            "module named no_such_module_at_all. Use a module path such as ",
        ),
        (
            "missing_part",
            "pettingzoo:pettingzoo.no_such_part",
            {},
            "got no module named pettingzoo.no_such_part.",
        ),
        (
            "no_parallel_env",
            "pettingzoo:json",
            {},
            "pettingzoo:json: expected a module with a function parallel_env, got json without "
            "this function.",
        ),
        (
            "argument",
            "pettingzoo:scripted_parallel",
            {"speed": 3},
            "make_env('pettingzoo:scripted_parallel'): expected the arguments of its parallel_env, "
            "got {'speed': 3} (",
        ),
    )
    def test_messages(self, env_id, kwargs, message):
        with pytest.raises(UserError) as error:
            tfrl.make_env(env_id, **kwargs)
        self.assertIn(message, str(error.value))

    def test_without_a_renderer(self):
        env = scripted()
        with pytest.raises(NotImplementedError):
            env.render(env.reset(KEY), 0)

    def test_copies_tell_their_rows_apart(self):
        copies = ParallelCopies("x", Scripted, {}, 2)
        copies.reset(np.array([5, 6]), np.array([True, True]))
        shown = copies.reset(np.array([7, 8]), np.array([False, True]))
        np.testing.assert_array_equal(shown["obs"]["x"][:, 0], [5, 8])
        np.testing.assert_array_equal(shown["token"], [1, 2])


class SimpleSpreadTest(parameterized.TestCase):
    def setUp(self):
        super().setUp()
        pytest.importorskip("mpe2")

    def make(self, **kwargs):
        return tfrl.make_env("pettingzoo:mpe2.simple_spread_v3", num_envs=2, **kwargs)

    def test_a_rollout(self):
        env = self.make(max_cycles=10)
        self.assertEqual(env.max_episode_steps, 10)
        agent = MultiAgent(
            obs_spec=env.obs_spec, action_spec=env.action_spec, policies={"shared": RandomAgent}
        )
        play = tf.function(
            lambda: rollout(env, agent, env.reset(KEY), agent.init(KEY), KEY, 24, ("agents",))[0],
            autograph=False,
        )
        trajectory = play()
        self.assertEqual(trajectory.obs["agent_0"].shape, [24, 2, 18])
        ends = np.flatnonzero(trajectory.truncation[:, 0])
        np.testing.assert_array_equal(ends, [9, 19])
        self.assertFalse(np.any(trajectory.termination))
        # The true successor is not the start of the next episode.
        obs, successor = trajectory.obs["agent_1"], trajectory.next_obs["agent_1"]
        np.testing.assert_array_equal(obs[1:9], successor[:8])
        self.assertTrue(np.all(np.any(obs[10] != successor[9], axis=-1)))
        for reward in trajectory.reward.values():
            self.assertTrue(np.all(reward < 0))
        # The same seeds give PettingZoo's own numbers.
        self.assert_as_in_pettingzoo(trajectory)

    def assert_as_in_pettingzoo(self, trajectory):
        from mpe2 import simple_spread_v3

        plain = simple_spread_v3.parallel_env(max_cycles=10)
        start, _ = tf.unstack(seeding.split(KEY, 2))
        obs, _ = plain.reset(seed=int(seeding.randint(start, [2], 0, 2**31 - 1)[1]))
        for t in range(10):
            np.testing.assert_array_equal(trajectory.obs["agent_2"][t, 1], obs["agent_2"])
            given = {a: int(trajectory.action[a][t, 1]) for a in plain.agents}
            obs, rewards, _, _, _ = plain.step(given)
            np.testing.assert_allclose(trajectory.reward["agent_2"][t, 1], rewards["agent_2"])

    def test_evaluation(self):
        env = self.make(max_cycles=5, autoreset="DISABLED")
        agent = MultiAgent(
            obs_spec=env.obs_spec, action_spec=env.action_spec, policies={"shared": RandomAgent}
        )
        evaluator = Evaluator(env=env, agent=agent, num_episodes=5, compile="graph")
        result = evaluator.evaluate(agent.init(KEY), KEY)
        np.testing.assert_array_equal(result.episode_lengths, [5] * 5)
        self.assertEqual(sorted(result.agent_returns), ["agent_0", "agent_1", "agent_2"])
        self.assertLess(result.mean, 0)
        again = evaluator.evaluate(agent.init(KEY), KEY)
        np.testing.assert_array_equal(again.episode_returns, result.episode_returns)


class ReturnedTest(parameterized.TestCase):
    @parameterized.parameters(
        (1, None, "reward of pettingzoo:scripted_parallel, environment 0, step 1, agent x: "
         "expected a number, got None of type NoneType."),
        (1, np.nan, "environment 0, step 1, agent x: expected a finite number, got nan."),
        (2, "yes", "terminated of pettingzoo:scripted_parallel, environment 0, step 1, agent x: "
         "expected True or False, got 'yes' of type str."),
    )  # fmt: skip
    def test_rewards_and_ends_of_the_wrong_type(self, part, value, said):
        env = scripted()
        step = Scripted.step

        def broken(own, actions):
            answer = list(step(own, actions))
            answer[part] = dict.fromkeys(answer[part], value)
            return tuple(answer)

        with unittest.mock.patch.object(Scripted, "step", broken), self.assertRaises(Exception):  # noqa: B017
            run(env, 1)
        self.assertIn(said, str(HostErrors.last))
