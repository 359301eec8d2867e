"""OffPolicyWorkflow: ratio, fill, errors."""

import functools
import warnings

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized

import tfrl
from tests.workflows.small_off_policy import (
    assert_same,
    learner_state,
    run,
    workflow,
)
from tfrl import seeding
from tfrl.agents import DQN, PPO
from tfrl.errors import UserError
from tfrl.replay import InGraphReplay
from tfrl.workflows import OffPolicyWorkflow, OnPolicyWorkflow


class RatioTest(parameterized.TestCase):
    @parameterized.parameters(
        (2, 3, 2, 72),  # random actions end at 24, with the iteration of 6 that reaches 20
        (0.25, 1, 2, 10),
        (0.5, 1, 2, 20),  # as in `test_rows_of_an_autoreset_count_no_step`
        (0.3, 1, 2, 12),
    )
    @pytest.mark.variants(1)
    def test_learner_steps_follow_env_steps(self, ratio, length, num_envs, wanted):
        flow = workflow(updates_per_step=ratio, rollout_length=length, num_envs=num_envs)
        state, rows = run(flow, 0, 60)
        self.assertEqual(rows[-1]["learner_steps"], wanted)
        learnt = [r["gradient_steps"] for r in rows if "gradient_steps" in r]
        self.assertEqual(sum(learnt), wanted)
        self.assertEqual(flow.env_steps(state), 60)

    def test_a_run_while_functions_run_eagerly_for_debugging(self):
        flow = workflow(compile="eager", num_envs=1)
        expected = learner_state(flow, run(flow, 0, 24)[0])
        tf.config.run_functions_eagerly(True)
        try:
            found = learner_state(flow, run(flow, 0, 24)[0])
        finally:
            tf.config.run_functions_eagerly(False)
        for path, value in expected.items():
            np.testing.assert_allclose(found[path], value, rtol=1e-5, atol=1e-6, err_msg=path)

    def test_rows_of_an_autoreset_count_no_step(self):
        flow = workflow(autoreset="NEXT_STEP", updates_per_step=0.5, num_envs=4)
        state, rows = run(flow, 0, 200)
        steps = rows[-1]["env_steps"]
        self.assertLess(steps, 4 * rows[-1]["iterations"])
        start = next(r["env_steps"] for r in rows if r["env_steps"] >= 20)
        self.assertEqual(rows[-1]["learner_steps"], steps // 2 - start // 2)
        self.assertEqual(int(flow.replay_buffer(state).size()), steps)

    def test_a_ratio_that_always_gives_the_same_is_a_number(self):
        zero = tf.constant(0, tf.int64)
        self.assertEqual(workflow(updates_per_step=1.5).updates_due(zero, zero + 2), 3)
        self.assertEqual(workflow(updates_per_step=0.5).updates_due(zero, zero + 2), 1)
        due = workflow(updates_per_step=0.75).updates_due
        self.assertEqual([int(due(zero + n, zero + n + 2)) for n in (0, 2, 4, 6)], [1, 2, 1, 2])


class FillTest(parameterized.TestCase):
    def test_phases(self):
        flow = workflow(random_steps=20, learning_starts=32, iterations_per_row=1)
        state, rows = run(flow, 0, 60)
        learns = [r["env_steps"] for r in rows if "loss" in r]
        self.assertEqual(learns, list(range(34, 61, 2)))
        self.assertEqual([r["env_steps"] for r in rows], list(range(2, 61, 2)))

    def test_random_play_before_the_policy_acts(self):
        # Else an agent without exploration would fill the buffer with one action.
        agent = functools.partial(DQN, hidden=(8,), epsilon=0.0)
        flow = workflow(agent=agent, random_steps=200, num_envs=4)
        state = flow.advance(flow.setup(0), 50).state
        batch = flow.replay_buffer(state).sample(seeding.key(0), 200)
        self.assertAllInRange(batch.action, 0.3, 0.7)

    def assertAllInRange(self, actions, low, high):
        share = float(np.mean(np.array(actions)))
        self.assertGreater(share, low)
        self.assertLess(share, high)

    @parameterized.parameters("graph", "xla", "eager")
    @pytest.mark.variants(1)
    def test_epsilon_goes_by_env_steps_where_nothing_is_learnt(self, mode):
        agent = functools.partial(DQN, hidden=(8,), epsilon=((0, 1.0), (16, 0.0)))
        flow = workflow(agent=agent, random_steps=0, learning_starts=100, compile=mode)
        state = flow.setup(0)
        for steps, epsilon in ((4, 0.75), (8, 0.5), (20, 0.0)):
            while flow.env_steps(state) < steps:
                state = flow.advance(state, 10, steps).state
            found = flow.learner_of(state).module_state("default_policy").extra["epsilon"]
            self.assertAlmostEqual(float(found), epsilon)
        self.assertEqual(int(flow.learner_of(state).learner_steps), 0)

    def test_learning_waits_for_a_whole_batch(self):
        flow = workflow(random_steps=0, batch_size=12, iterations_per_row=1)
        _, rows = run(flow, 0, 30)
        self.assertEqual([r["env_steps"] for r in rows if "loss" in r][0], 14)
        self.assertEqual(rows[-1]["learner_steps"], 18)

    def test_learning_goes_on_where_items_come_and_go(self):
        small = functools.partial(InGraphReplay, capacity=40, frames_per_step=1.0)
        sizes, bits_of = [], []
        for per_call in (1, 50):
            flow = workflow(
                replay=small, batch_size=39, random_steps=40, iterations_per_call=per_call
            )
            state = flow.setup(seed=0)
            while flow.env_steps(state) < 100:
                state = flow.advance(state, per_call, 100).state
                sizes.append(int(flow.replay_buffer(state).size()))
            bits_of.append(learner_state(flow, state))
            self.assertEqual(int(flow.learner_of(state).learner_steps), 60)
        self.assertLess(min(sizes[20:50]), 39)
        assert_same(*bits_of)

    def test_a_run_without_learner_steps_is_told(self):
        flow = workflow(random_steps=20, learning_starts=32, iterations_per_row=1)
        with self.assertWarnsRegex(UserWarning, "never trains: it ends at total_env_steps=20"):
            state = flow.learn(flow.setup(0), total_env_steps=20, progress=False)
        with warnings.catch_warnings():
            warnings.simplefilter("error", UserWarning)
            flow.learn(state, total_env_steps=20, progress=False)  # the budget is already spent
            flow.learn(state, total_env_steps=34, progress=False)

    @parameterized.parameters("eager", "graph")
    @pytest.mark.slow
    def test_metrics_where_the_first_iterations_learn_nothing(self, mode):
        # Learner steps follow the env steps 14, 17, 20, ...: the first iteration has none.
        flow = workflow(
            num_envs=1, random_steps=10, updates_per_step=0.3, compile=mode, iterations_per_row=1
        )
        _, rows = run(flow, 0, 20)
        learnt = [r["env_steps"] for r in rows if not np.isnan(r.get("loss", np.nan))]
        self.assertEqual(learnt, [14, 17, 20])

    @pytest.mark.slow
    def test_learning_may_start_while_play_is_random(self):
        flow = workflow(random_steps=40, learning_starts=20)
        _, rows = run(flow, 0, 60)
        self.assertEqual(rows[-1]["learner_steps"], 40)


class ErrorTest(parameterized.TestCase):
    @parameterized.parameters(
        ({"batch_size": 0}, "batch_size: expected a whole number of at least 1, got 0"),
        ({"updates_per_step": 0}, "updates_per_step: expected a number above 0"),
        ({"updates_per_step": 1e-6}, "updates_per_step: expected at least one learner step per"),
        (
            {"replay": functools.partial(InGraphReplay, capacity=6)},
            "replay.capacity: expected at least 8 items, for batch_size=8",
        ),
        ({"random_steps": -1}, "random_steps: expected a whole number of at least 0, got -1"),
        ({"rollout_length": 0}, "rollout_length: expected a whole number of at least 1"),
        ({"iterations_per_row": 0}, "iterations_per_row: expected a whole number of at least 1"),
        ({"priority_epsilon": -1.0}, "OffPolicyWorkflow.priority_epsilon: expected"),
        ({"priority_beta": "high"}, "priority_beta: expected a number, a list"),
        ({"priority_beta": 5}, "priority_beta: expected values from 0 to 1, got 5"),
        ({"priority_beta": [[0, 0.4], [100, 40]]}, "expected values from 0 to 1, got 40"),
        ({"overlap": "no"}, "overlap: expected True or False, got 'no'"),
        ({"checkpoint_replay": 1}, "checkpoint_replay: expected True or False, got 1"),
        ({"replay": "uniform"}, "replay: expected a function of obs_spec, .*'uniform'"),
        ({"replay": 100_000}, "replay: expected a function of .*got 100000: 'int' object"),
        ({"replay": InGraphReplay}, r"'capacity'.*Pass functools.partial\(InGraphReplay, capacity"),
        (
            {
                "agent": functools.partial(DQN, hidden=(8,), n_step=3),
                "replay": functools.partial(InGraphReplay, capacity=10),
            },
            "replay.capacity: expected at least 12 items, for batch_size=8 and the 2 last steps",
        ),
        (
            {"replay": functools.partial(InGraphReplay, capacity=40, sequence_length=4)},
            "replay.sequence_length: expected None",
        ),
        ({"replay": functools.partial(InGraphReplay, capacity=41)}, "The nearest are 40 and 42"),
    )
    def test_arguments(self, changes, message):
        with self.assertRaisesRegex(UserError, message):
            workflow(**changes)

    def test_an_agent_of_the_other_kind(self):
        with self.assertRaisesRegex(UserError, "from replayed .*: DQN, .* Train it with OnPolicy"):
            workflow(agent=PPO)
        env = tfrl.make_env("tf:CartPole-v1", num_envs=2)
        with self.assertRaisesRegex(UserError, "own rollouts: A2C, .* with OffPolicyWorkflow"):
            OnPolicyWorkflow(env=env, agent=DQN)

    @parameterized.parameters(
        (object(), "got a object"),
        (lambda a, b: None, "which takes other arguments"),
        (lambda obs_spec, action_spec: 3, "a function that returned a int"),
    )
    def test_what_is_no_agent(self, agent, message):
        env = tfrl.make_env("tf:CartPole-v1", num_envs=2)
        for flow in (OnPolicyWorkflow, OffPolicyWorkflow):
            with self.assertRaisesRegex(UserError, f"(?s){message}.*from_tf_agent"):
                flow(env=env, agent=agent)

    def test_a_buffer_that_was_made_for_something_else(self):
        env = tfrl.make_env("tf:CartPole-v1", num_envs=2)
        specs = {"obs_spec": env.obs_spec, "action_spec": env.action_spec}
        made = InGraphReplay(**specs, capacity=40, num_envs=2, n_step=3)
        with self.assertRaisesRegex(UserError, "replay.n_step: expected 1, as in the agent, got 3"):
            workflow(replay=made)
        other = made.replace(n_step=1, obs_spec=tf.TensorSpec([5], tf.float32))
        with self.assertRaisesRegex(UserError, "replay.obs_spec"):
            workflow(replay=other)
        fits = made.replace(n_step=3)
        flow = workflow(replay=fits, agent=functools.partial(DQN, hidden=(8,), n_step=3))
        self.assertIs(flow.replay, fits)


def test_progress_shows_what_the_agent_names_and_when_a_phase_compiled(monkeypatch):
    told = []

    class Told:
        def __init__(self, total, done):
            pass

        def update(self, done, *, compiled=False, **figures):
            told.append((done, compiled, set(figures)))

        def close(self):
            pass

    monkeypatch.setattr("tfrl.workflows.loop.Progress", Told)
    flow = workflow(random_steps=8, batch_size=4, iterations_per_row=1, iterations_per_call=2)
    state = flow.learn(flow.setup(0), total_env_steps=20)
    per_call = 2 * flow.fixed_steps_per_iteration
    assert [done for done, *_ in told] == list(range(per_call, 21, per_call))
    # Random actions fill the buffer, then the policy acts and learns; first calls compile.
    assert [compiled for _, compiled, _ in told] == [done <= 8 + per_call and (
        done == per_call or done - per_call == 8) for done, *_ in told]  # fmt: skip
    assert {"q_mean", "epsilon"} <= told[-1][2] and "q_mean" not in told[0][2]
    told.clear()
    flow.learn(state, total_env_steps=28)  # already compiled in this process
    assert [compiled for _, compiled, _ in told][1:] == [False] * (len(told) - 1)
