"""OnPolicyWorkflow: one state, any split into calls, copies, checkpoints, errors, learning."""

import csv
import functools
import json
import tempfile

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized

import tfrl
from tests.agents import registered
from tfrl import struct
from tfrl.agents import APPO, PPO, RandomAgent
from tfrl.envs.core import carrying
from tfrl.envs.wrappers import RewardNormalize, RewardScale
from tfrl.envs.wrappers.base import StatefulWrapper, WrapperState
from tfrl.errors import UserError
from tfrl.experiment.callbacks import STOP, Callback
from tfrl.learners import ModuleConfig
from tfrl.ops import statistics
from tfrl.workflows import OnPolicyWorkflow


def workflow(env_id="tf:CartPole-v1", autoreset="SAME_STEP", agent=None, **kwargs):
    limit = kwargs.pop("max_episode_steps", None)
    env = kwargs.pop("env", None) or tfrl.make_env(
        env_id,
        num_envs=kwargs.pop("num_envs", 4),
        autoreset=autoreset,
        max_episode_steps=limit,
    )
    agent = agent or PPO(
        obs_spec=env.obs_spec, action_spec=env.action_spec, hidden=(8,), normalize_obs=True
    )
    settings = {"rollout_length": 8, "num_epochs": 2, "num_minibatches": 2, "eval_episodes": 4}
    settings |= {"compile": "graph", "learner_config": ModuleConfig(lr=1e-3)}
    return OnPolicyWorkflow(env=env, agent=agent, **{**settings, **kwargs})


def bits(w, state):
    return {k: np.array(v) for k, v in w.state_values(state).items()}


def assert_same(a, b):
    assert set(a) == set(b)
    for path, value in a.items():
        np.testing.assert_array_equal(value, b[path], err_msg=path)


@struct.logic_dataclass
class Ruining(PPO):
    """Its statistics become NaN."""

    def observe(self, state, trajectory):
        nan = tf.nest.map_structure(lambda x: x * np.nan, state.normalizer)
        return state.replace(normalizer=nan)


@struct.logic_dataclass
class WrongOnce(StatefulWrapper):
    """The 5th step of the first environment has a wrong observation and reward."""

    number: float = 1e20

    def reset(self, key):
        state = self.env.reset(key)
        own = WrapperState(inner=state.env_state, own=tf.constant(0))
        return state.replace(env_state=own)

    def step(self, state, action):
        new = self.env.step(carrying(state.env_state.inner), action)
        count = state.env_state.own + 1
        wrong = tf.equal(count, 5) & tf.equal(tf.range(new.reward.shape[0]), 0)
        info = {**new.info, "final_obs": self._at(wrong, new.info["final_obs"])}
        return new.replace(
            env_state=WrapperState(inner=new.env_state, own=count),
            obs=self._at(wrong, new.obs),
            reward=tf.where(wrong, self.number, new.reward),
            info=info,
        )

    def _at(self, wrong, obs):
        return tf.where(wrong[:, tf.newaxis], self.number, obs)


class StatisticsTest(parameterized.TestCase):
    def ruining(self, **options):
        env = tfrl.make_env("tf:CartPole-v1", num_envs=4)
        agent = Ruining(
            obs_spec=env.obs_spec, action_spec=env.action_spec, hidden=(8,), normalize_obs=True
        )
        return workflow(agent=agent, **options)

    @pytest.mark.slow
    def test_statistics_that_are_not_finite_are_left_out_and_said(self):
        with self.assertRaisesRegex(
            UserError, "the statistics of observations at iteration 1, env"
        ):
            w = self.ruining()
            w.step(w.setup(0))
        w = self.ruining(check_numerics="skip")
        row, state = w.step(w.setup(0))
        self.assertEqual(row["nonfinite/statistics"], 1.0)
        self.assertEqual(float(w.agent_state(state).normalizer.count), 0.0)

    def test_outliers_are_counted(self):
        w = workflow()
        row, state = w.step(w.setup(0))
        self.assertEqual(row["obs_outliers"], 0.0)
        self.assertNotIn("nonfinite/statistics", row)
        self.assertEqual(float(w.agent_state(state).normalizer.count), 32.0)

    @parameterized.parameters((1e20, 1), (1e20, 2), (-3e38, 1), (-3e38, 2))
    @pytest.mark.variants(1)
    def test_one_wrong_value_is_counted_and_ruins_nothing(self, number, replicas):
        devices = [f"CPU:{i}" for i in range(replicas)]
        over = tf.distribute.MirroredStrategy(devices) if replicas > 1 else None
        env = WrongOnce(env=tfrl.make_env("tf:CartPole-v1", num_envs=4), number=number)
        env = RewardNormalize(env=env)
        agent = PPO(
            obs_spec=env.obs_spec, action_spec=env.action_spec, hidden=(8,), normalize_obs=True
        )
        w = workflow(agent=agent, env=env, strategy=over, rollout_length=16)
        done = w.advance(w.setup(0), 2)
        # Each replica has a first environment.
        counts = [(row["obs_outliers"], row["reward_outliers"]) for row in done.rows]
        self.assertEqual(counts, [(4.0 * replicas, 1.0 * replicas), (0.0, 0.0)])
        deviation = statistics.std(w.agent_state(done.state).normalizer).numpy()
        self.assertTrue(np.all((deviation > 1e-3) & (deviation < 2.0)), deviation)


class StepTest(parameterized.TestCase):
    @parameterized.parameters("graph", "xla")
    @pytest.mark.variants(1)
    def test_the_split_into_calls_changes_no_bit(self, mode):
        w = workflow(compile=mode)
        whole = w.advance(w.setup(3), 6)
        parts, rows = w.setup(3), []
        for n in (1, 2, 3):
            done = w.advance(parts, n)
            parts, rows = done.state, rows + list(done.rows)
        assert_same(bits(w, whole.state), bits(w, parts))
        self.assertLen(rows, 6)
        for one, other in zip(whole.rows, rows, strict=True):
            np.testing.assert_equal(one, other)

    def test_eager_graph_and_xla_agree(self):
        states = {}
        for mode in ("eager", "graph", "xla"):
            w = workflow(compile=mode)
            states[mode] = bits(w, w.advance(w.setup(1), 1).state)
        for mode in ("graph", "xla"):
            for path, value in states["eager"].items():
                np.testing.assert_allclose(
                    value, states[mode][path], rtol=2e-3, atol=2e-4, err_msg=f"{mode} {path}"
                )

    def test_counters(self):
        w = workflow()
        metrics, state = w.step(w.setup(0))
        self.assertEqual(metrics["env_steps"], 32)
        self.assertEqual(metrics["iterations"], 1)
        self.assertEqual(metrics["learner_steps"], 4)
        self.assertEqual(state.metrics.env_steps.dtype, tf.int64)
        for name in ("policy_loss", "value_loss", "entropy", "approx_kl", "clip_fraction"):
            self.assertIn(name, metrics)
        for name in ("explained_variance", "grad_norm", "learning_rate", "episode_return"):
            self.assertIn(name, metrics)

    def test_rows_that_only_exist_by_autoreset_are_not_env_steps(self):
        w = workflow(autoreset="NEXT_STEP", rollout_length=64)
        metrics, _ = w.step(w.setup(0))
        # One invalid row follows each ended episode, unless the rollout ends first.
        invalid = 256 - metrics["env_steps"]
        self.assertBetween(invalid, metrics["episodes"] - 4, metrics["episodes"])
        self.assertGreater(invalid, 0)

    def test_stages_trace_once(self):
        w = workflow(autoreset="NEXT_STEP", rollout_length=64)
        state = w.setup(0)
        for n in (1, 2, 3, 1):
            state = w.advance(state, n).state
        functions = w.runner(state).traces.functions
        self.assertEqual([name[0] for name, _ in functions], ["loop"])

    def test_a_call_stops_at_the_iteration_that_reaches_the_limit(self):
        w = workflow()
        done = w.advance(w.setup(0), 100, until=65)
        self.assertEqual([r["env_steps"] for r in done.rows], [32, 64, 96])

    def test_seeds_differ_and_repeat(self):
        w = workflow()
        one, two, other = (bits(w, w.step(w.setup(s))[1]) for s in (0, 0, 1))
        assert_same(one, two)
        path = "learner/modules/default_policy/params/policy"
        names = [p for p in one if p.startswith(path) and one[p].ndim == 2]
        self.assertTrue(all(not np.array_equal(one[p], other[p]) for p in names))

    def test_every_mode_tells_where_the_time_went(self):
        for mode in ("graph", "xla"):
            w = workflow(compile=mode)
            seconds = w.advance(w.setup(0), 2).seconds
            self.assertGreater(seconds["rollout"], 0.0, mode)
            self.assertGreater(seconds["update"], 0.0, mode)
            self.assertLessEqual(seconds["rollout"] + seconds["update"], seconds["call"] * 1.01)

    def test_a_random_agent_shares_the_pieces(self):
        env = tfrl.make_env("tf:CartPole-v1", num_envs=4)
        agent = RandomAgent(obs_spec=env.obs_spec, action_spec=env.action_spec)
        w = OnPolicyWorkflow(env=env, agent=agent, rollout_length=64, compile="graph")
        metrics, state = w.step(w.setup(0))
        self.assertEqual(metrics["env_steps"], 256)
        self.assertBetween(metrics["episode_return"], 9.0, 60.0)
        evaluation, _ = w.evaluate(state)
        self.assertBetween(evaluation["eval_return_mean"], 12.0, 40.0)

    def test_auto_chooses_and_leaves_no_trace_in_the_state(self):
        w = workflow(compile="auto")
        state = w.setup(0)
        before = bits(w, state)
        choices = w.compile_choices(state)
        self.assertEqual(set(choices), {"rollout", "update", "evaluation", "loop"})
        self.assertTrue(set(choices.values()) <= {"graph", "xla"})
        assert_same(before, bits(w, state))
        untimed = w.setup(0)
        self.assertEqual(w.compile_choices(untimed), choices)
        assert_same(bits(w, w.advance(state, 2).state), bits(w, w.advance(untimed, 2).state))

    def test_the_normaliser_is_updated_after_the_update(self):
        w = workflow()
        _, state = w.step(w.setup(0))
        self.assertEqual(float(w.learner_of(state).state.normalizer.count), 32.0)


class FilesTest(parameterized.TestCase):
    def folder(self):
        made = tempfile.TemporaryDirectory()
        self.addCleanup(made.cleanup)
        return made.name


class StateTest(FilesTest):
    def test_a_consumed_state_is_refused(self):
        w = workflow()
        state = w.setup(0)
        w.step(state)
        with pytest.raises(UserError, match="which a later step has consumed. Keep a copy with"):
            w.step(state)

    def test_a_snapshot_goes_its_own_way(self):
        w = workflow()
        _, state = w.step(w.setup(0))
        copy = w.snapshot(state)
        kept = bits(w, copy)
        _, state = w.step(state)
        assert_same(kept, bits(w, copy))
        _, copy = w.step(copy)
        assert_same(bits(w, state), bits(w, copy))

    def test_two_runs_of_one_workflow_do_not_touch_each_other(self):
        w = workflow()
        one, other = w.setup(0), w.setup(0)
        for _ in range(2):
            _, one = w.step(one)
            _, other = w.step(other)
        assert_same(bits(w, one), bits(w, other))

    def test_saved_and_restored_it_goes_on_to_the_bit(self):
        w = workflow()
        state = w.advance(w.setup(0), 2).state
        folder = self.folder()
        w.save(state, folder)
        straight = bits(w, w.advance(state, 3).state)
        fresh = workflow()
        again = fresh.restore(folder, seed=99)
        self.assertEqual(fresh.env_steps(again), 64)
        assert_same(straight, bits(fresh, fresh.advance(again, 3).state))

    def test_a_checkpoint_of_another_configuration_is_refused(self):
        w = workflow()
        folder = self.folder()
        w.save(w.setup(0), folder)
        env = tfrl.make_env("tf:CartPole-v1", num_envs=4)
        other = PPO(obs_spec=env.obs_spec, action_spec=env.action_spec, hidden=(8, 8))
        with pytest.raises(UserError, match="expected the values of this workflow, got missing"):
            workflow(agent=other).restore(folder)

    def test_an_empty_folder_is_refused(self):
        with pytest.raises(UserError, match="expected a checkpoint, got no checkpoint"):
            workflow().restore(self.folder())

    def test_each_evaluation_plays_other_episodes_and_leaves_no_other_trace(self):
        w = workflow()
        _, state = w.step(w.setup(0))
        before, begun = bits(w, state), state
        one, state = w.evaluate(state)
        two, state = w.evaluate(state)
        self.assertNotEqual(one, two)
        self.assertEqual(one["eval_episodes"], 4)
        self.assertEqual(w.evaluate(begun)[0], one)
        self.assertEqual(int(state.metrics.evaluations), 2)
        after = bits(w, state)
        self.assertEqual(after.pop("progress/evaluations"), 2)
        self.assertEqual(before.pop("progress/evaluations"), 0)
        assert_same(before, after)
        never = w.step(w.step(w.setup(0))[1])[1]
        trained, same = (struct.values(x.agent_state) for x in (w.step(state)[1], never))
        tf.nest.map_structure(np.testing.assert_array_equal, trained, same)


class Recorder(Callback):
    """Counts events, and stops at one of them."""

    def __init__(self, stop_after=None):
        self.steps, self.evaluations, self.checkpoints, self.stop = [], [], [], stop_after

    def on_step(self, event):
        self.steps.append(event.env_steps)
        return STOP if self.stop and len(self.steps) >= self.stop else None

    def on_evaluate(self, event):
        self.evaluations.append((event.env_steps, event.metrics["eval_return_mean"]))

    def on_checkpoint(self, event):
        self.checkpoints.append(event.env_steps)


class LearnTest(FilesTest):
    def learn(self, w, state, **options):
        return w.learn(state, **{"progress": False, **options})

    def test_events_fall_on_the_iterations_that_reach_their_multiples(self):
        for per_call in (None, 1, 3):
            w = workflow(iterations_per_call=per_call)
            seen = Recorder()
            state = self.learn(
                w,
                w.setup(0),
                total_env_steps=300,
                eval_interval=100,
                checkpoint_interval=150,
                checkpoint_seconds=None,
                root_dir=self.folder(),
                callbacks=[seen],
            )
            self.assertEqual(w.env_steps(state), 320)
            self.assertEqual([s for s, _ in seen.evaluations], [128, 224, 320])
            self.assertContainsSubset({160, 320}, set(seen.checkpoints))
            self.assertEqual(w.report.stopped_by, "budget")

    def test_files_have_a_row_per_iteration(self):
        folder = self.folder()
        w = workflow()
        self.learn(w, w.setup(0), total_env_steps=320, eval_interval=160, root_dir=folder)
        with open(f"{folder}/metrics.csv") as f:
            rows = list(csv.DictReader(f))
        self.assertEqual([int(r["env_steps"]) for r in rows], list(range(32, 321, 32)))
        self.assertEqual([int(r["iterations"]) for r in rows], list(range(1, 11)))
        with open(f"{folder}/metrics.jsonl") as f:
            lines = [json.loads(line) for line in f]
        self.assertLen(lines, 10)
        self.assertIn("eval_return_mean", lines[4])
        self.assertIn("time/rollout", lines[-1])
        self.assertIn("time/update", lines[-1])
        self.assertIn("time/evaluation", lines[-1])

    def test_an_interrupted_run_ends_like_one_that_was_not(self):
        whole = workflow()
        end = self.learn(whole, whole.setup(0), total_env_steps=640, eval_interval=100)
        folder = self.folder()
        options = {"total_env_steps": 640, "eval_interval": 100, "root_dir": folder}
        first = workflow(iterations_per_call=3)
        self.learn(first, first.setup(0), callbacks=[Recorder(stop_after=3)], **options)
        self.assertEqual(first.report.stopped_by, "callback")
        second = workflow()
        state = self.learn(second, second.restore(f"{folder}/checkpoints"), **options)
        assert_same(bits(whole, end), bits(second, state))
        with open(f"{folder}/metrics.csv") as f:
            steps = [int(r["env_steps"]) for r in csv.DictReader(f)]
        self.assertEqual(steps, list(range(32, 641, 32)))

    def test_a_larger_budget_continues_the_run(self):
        w = workflow()
        state = self.learn(w, w.setup(0), total_env_steps=64)
        state = self.learn(w, state, total_env_steps=128)
        straight = workflow()
        assert_same(bits(w, state), bits(straight, straight.advance(straight.setup(0), 4).state))

    def test_it_stops_at_the_target(self):
        w = workflow()
        self.learn(w, w.setup(0), total_env_steps=10_000, eval_interval=64, target_return=1.0)
        self.assertEqual(w.report.stopped_by, "target_return")
        self.assertEqual(w.report.env_steps, 64)

    def test_the_best_checkpoint_is_the_one_of_the_best_evaluation(self):
        w = workflow()
        folder = self.folder()
        seen = Recorder()
        self.learn(
            w,
            w.setup(0),
            total_env_steps=960,
            eval_interval=96,
            max_to_keep=1,
            root_dir=folder,
            callbacks=[seen],
        )
        best = max(seen.evaluations, key=lambda e: e[1])
        first_best = next(s for s, value in seen.evaluations if value == best[1])
        self.assertEqual(w.env_steps(w.restore(f"{folder}/checkpoints", "best")), first_best)

    @parameterized.parameters(
        ({"total_env_steps": 0}, "total_env_steps: expected a positive whole number, got 0"),
        ({"eval_interval": -1}, "eval_interval: expected a positive whole number, got -1"),
        ({"checkpoint_seconds": 0}, "checkpoint_seconds: expected a number above 0, got 0"),
        ({"recorders": ("tsv",)}, "recorders: expected recorders among console, csv"),
        ({"target_return": 1.0}, "target_return: expected an eval_interval as well"),
    )
    def test_messages_of_options(self, options, message):
        w = workflow()
        with pytest.raises(UserError) as error:
            self.learn(w, w.setup(0), **{"total_env_steps": 32, **options})
        self.assertIn(message, str(error.value))


class DefaultsTest(parameterized.TestCase):
    @parameterized.parameters(True, False)
    def test_an_evaluation_tells_the_returns_of_the_task(self, given):
        def make():
            return tfrl.make_env(
                "tf:MountainCar-v0",
                num_envs=2,
                outer_wrappers=(
                    lambda env: RewardNormalize(env=env),
                    lambda env: RewardScale(env=env, scale=0.5),
                ),
            )

        w = OnPolicyWorkflow(
            env=make(),
            eval_env=make() if given else None,
            agent=PPO,
            rollout_length=8,
            eval_episodes=2,
            compile="graph",
        )
        metrics, _ = w.evaluate(w.setup(0))
        self.assertEqual(metrics["eval_return_mean"], -200.0)

    @parameterized.parameters(*registered.ON_POLICY)
    def test_an_agent_says_how_often_it_learns_from_a_rollout(self, agent):
        epochs, minibatches = {PPO: (4, 4), APPO: (1, 4)}.get(agent, (1, 1))
        env = tfrl.make_env("tf:CartPole-v1", num_envs=4)
        w = OnPolicyWorkflow(env=env, agent=agent, rollout_length=8)
        rows = w.agent.num_rows(8, 4)
        self.assertEqual(w.num_epochs, epochs)
        self.assertEqual(set(w.minibatch_sizes.values()), {rows // minibatches})
        w = OnPolicyWorkflow(env=env, agent=agent, rollout_length=8, num_epochs=3)
        self.assertEqual(w.num_epochs, 3)

    def test_a_horizon_that_does_not_divide_is_named_at_once(self):
        env = tfrl.make_env("tf:CartPole-v1", num_envs=4)
        with self.assertRaisesRegex(UserError, "PPO.gae_horizon: expected a divisor"):
            OnPolicyWorkflow(env=env, agent=functools.partial(PPO, gae_horizon=5), rollout_length=8)


class ErrorTest(parameterized.TestCase):
    @parameterized.parameters(
        ({"num_minibatches": 3}, "num_minibatches: expected a divisor of the 32 rows"),
        ({"num_minibatches": 33}, "expected a number from 1 to the 32 rows of an iteration"),
        (
            {"num_minibatches": 2.0},
            "num_minibatches: expected a whole number of at least 1, got 2.0",
        ),
        ({"rollout_length": 0}, "rollout_length: expected a whole number of at least 1, got 0"),
        ({"rollout_length": 8.0}, "rollout_length: expected a whole number"),
        ({"eval_episodes": 0}, "eval_episodes: expected a whole number of at least 1, got 0"),
        ({"autoreset": "DISABLED"}, "autoreset of the training environments: expected NEXT_STEP"),
        (
            {"env_id": "testing:Identity"},
            "max_episode_steps of the evaluation's environments: expected a number of steps, so "
            "that evaluations end, got None: Identity has no time limit of its own.",
        ),
        (
            {"eval_env": tfrl.make_env("tf:Pendulum-v1")},
            "obs_spec of eval_env: expected the agent's",
        ),
        (
            {"eval_env": tfrl.make_env("tf:CartPole-v1").unwrapped},
            "eval_env: expected environments with a time limit and autoreset, got the bare "
            "CartPole",
        ),
        ({"eval_env": "tf:CartPole-v1"}, "eval_env: expected environments from tfrl.make_env"),
        ({"iterations_per_call": 0}, "iterations_per_call: expected a whole number of at least 1"),
        ({"iterations_per_call": 2.5}, "at least 1 or None, got 2.5"),
        ({"compile": "fast"}, "compile: expected one of xla, graph, eager, auto"),
        ({"num_epochs": 0}, "num_epochs: expected a whole number of at least 1, got 0"),
    )
    def test_messages_of_sizes(self, changes, message):
        with pytest.raises(UserError) as error:
            workflow(**changes)
        self.assertIn(message, str(error.value))

    @parameterized.parameters("graph", "xla")
    @pytest.mark.variants(1)
    def test_a_non_finite_loss_is_named_with_its_place(self, mode):
        w = workflow(compile=mode, learner_config=ModuleConfig(lr=1e30, grad_clip=None))
        with pytest.raises(UserError) as error:
            w.advance(w.setup(0), 20)
        text = str(error.value)
        self.assertRegex(text, r"at iteration \d+, env step \d+: expected finite values, got")
        self.assertIn("loss", text)

    def test_skipping_keeps_the_parameters_finite(self):
        w = workflow(check_numerics="skip", learner_config=ModuleConfig(lr=1e30, grad_clip=None))
        done = w.advance(w.setup(0), 5)
        self.assertGreater(sum(r["skipped_steps"] for r in done.rows), 0)

    @parameterized.parameters("pad", "drop", "wrap")
    @pytest.mark.variants(1)
    def test_remainders(self, remainder):
        w = workflow(num_minibatches=3, remainder=remainder)
        metrics, _ = w.step(w.setup(0))
        self.assertEqual(metrics["gradient_steps"], 6)
        self.assertTrue(np.isfinite(metrics["loss"]))


class LearningTest(parameterized.TestCase):
    def test_identity_is_learnt_to_the_optimum(self):
        w = workflow(
            "testing:Identity",
            num_envs=16,
            max_episode_steps=10,
            learner_config=ModuleConfig(lr=1e-2),
        )
        state = self.learned(w, 20_000)
        metrics, _ = w.evaluate(state)
        self.assertGreaterEqual(metrics["eval_return_mean"], 0.95 * self.optimum(w))

    def learned(self, w, steps):
        return w.learn(w.setup(0), total_env_steps=steps, progress=False)

    def optimum(self, w):
        return w.env.max_episode_steps
