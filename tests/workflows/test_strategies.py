"""The on-policy workflow on several replicas of one process."""

import functools
import tempfile

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized

from tfrl import make_env, seeding, struct
from tfrl.agents.ppo import PPO
from tfrl.distribute.replicas import Replicas
from tfrl.distribute.statistics import merge_over_replicas
from tfrl.envs.wrappers import RewardNormalize
from tfrl.errors import UserError
from tfrl.learners import ModuleConfig
from tfrl.ops import statistics
from tfrl.workflows import OnPolicyWorkflow


def mirrored(n=2):
    return tf.distribute.MirroredStrategy([f"CPU:{i}" for i in range(n)])


def workflow(strategy, *, num_envs=8, env=None, compile="graph", **changes):
    env = env or make_env("tf:CartPole-v1", num_envs=num_envs)
    settings = {
        "rollout_length": 16,
        "num_minibatches": 2,
        "num_epochs": 2,
        "eval_episodes": 6,
        "learner_config": ModuleConfig(lr=1e-3),
        **changes,
    }
    agent = functools.partial(PPO, normalize_obs=True, hidden=(16,))
    return OnPolicyWorkflow(env=env, agent=agent, compile=compile, strategy=strategy, **settings)


def arrays(workflow, state):
    return {p: np.array(v) for p, v in workflow.state_values(state).items()}


class MirroredTest(parameterized.TestCase):
    # The fast test is `test_a_run_goes_on_to_the_bit`: under replicas, each state is
    # traced for itself.
    @parameterized.parameters("graph", "xla", "eager")
    @pytest.mark.slow
    def test_counts_are_those_of_all_replicas_together(self, mode):
        flow = workflow(mirrored(), compile=mode)
        self.check_counts(flow, flow.setup(0))

    def check_counts(self, flow, state):
        row, state = flow.step(state)
        self.assertEqual(row["env_steps"], 8 * 16)
        self.assertEqual(row["learner_steps"], 4)  # 2 epochs of 2 minibatches
        row, state = flow.step(state)
        self.assertEqual(row["env_steps"], 2 * 8 * 16)
        # The normaliser has counted the rows of both replicas once each.
        self.assertEqual(float(flow.agent_state(state).normalizer.count), 2 * 8 * 16)
        return state

    @pytest.mark.slow
    def test_replicas_collect_different_experience_and_hold_equal_parameters(self):
        flow = workflow(mirrored(4))
        self.check_replicas(flow, flow.advance(flow.setup(0), 3).state, 4)

    def check_replicas(self, flow, state, n):
        values = arrays(flow, state)
        obs = values["progress/env_state/obs"]
        self.assertEqual(obs.shape, (n, 8 // n, 4))  # replicas, environments of each, observation
        self.assertLen({row.tobytes() for row in obs.reshape(8, 4)}, 8)
        for v in flow.learner_of(state).variables().values():
            copies = [c.numpy() for c in flow.replicas.strategy.experimental_local_results(v)]
            for copy in copies[1:]:
                np.testing.assert_array_equal(copies[0], copy, err_msg=v.name)

    @pytest.mark.slow
    def test_a_run_goes_on_to_the_bit(self):
        flow = workflow(mirrored())
        state = self.check_counts(flow, flow.setup(0))
        self.check_replicas(flow, state, 2)
        kept = arrays(flow, state)
        state = flow.advance(state, 2).state
        again = flow.load_values(flow.setup(9), kept)
        again = flow.advance(again, 2).state
        want = arrays(flow, state)
        for path, value in arrays(flow, again).items():
            np.testing.assert_array_equal(value, want[path], err_msg=path)

    @pytest.mark.slow
    def test_a_snapshot_goes_its_own_way(self):
        flow = workflow(mirrored())
        state = flow.step(flow.setup(0))[1]
        copy = flow.snapshot(state)
        flow.step(copy)
        row, _ = flow.step(state)
        self.assertEqual(row["iterations"], 2)

    @pytest.mark.slow
    def test_iterations_per_call_changes_nothing(self):
        flow = workflow(mirrored())
        one = flow.setup(0)
        for _ in range(3):
            one = flow.advance(one, 1).state
        three = flow.advance(flow.setup(0), 3).state
        want = arrays(flow, one)
        for path, value in arrays(flow, three).items():
            np.testing.assert_array_equal(value, want[path], err_msg=path)

    @parameterized.parameters("graph", "xla", "eager")
    @pytest.mark.variants(1)
    def test_evaluation_episodes_are_divided(self, mode):
        flow = workflow(mirrored(), compile=mode, eval_episodes=5)
        start = flow.setup(0)
        metrics, state = flow.evaluate(start)
        self.assertEqual(metrics["eval_episodes"], 5)
        self.assertGreater(metrics["eval_return_std"], 0.0)  # replicas run different episodes
        self.assertEqual(flow.evaluate(start)[0], metrics)
        self.assertNotEqual(flow.evaluate(state)[0], metrics)

    @pytest.mark.slow
    def test_learning_goes_on_where_it_was_saved(self):
        flow = workflow(mirrored())
        folder = tempfile.mkdtemp()
        state = flow.learn(flow.setup(0), total_env_steps=512, root_dir=folder, progress=False)
        other = workflow(mirrored())
        again = other.restore(f"{folder}/checkpoints")
        want = arrays(flow, state)
        for path, value in arrays(other, again).items():
            np.testing.assert_array_equal(value, want[path], err_msg=path)
        with pytest.raises(
            UserError,
            match="the environments of the checkpoint: expected those of 8 environments "
            "on 1 replicas, got env_state/obs of shape|of shape",
        ):
            workflow(None).restore(f"{folder}/checkpoints")

    def test_a_state_of_another_number_of_replicas_is_refused(self):
        one, two = workflow(None), workflow(mirrored())
        for of, by, want, got in ((one, two, 2, 1), (two, one, 1, 2)):
            state = of.setup(0)
            with pytest.raises(UserError, match=f"process' {want} replicas, got {got}. Set up the"):
                by.ready(state)

    @pytest.mark.slow
    def test_reward_statistics_become_common(self):
        env = make_env(
            "tf:Pendulum-v1", num_envs=8, outer_wrappers=(lambda e: RewardNormalize(env=e),)
        )
        flow = workflow(mirrored(), env=env)
        state = flow.advance(flow.setup(0), 2).state
        counts = [v for p, v in arrays(flow, state).items() if p.endswith("own/statistics/count")]
        # 1e-4 initial rows, then 2 iterations of 16 steps in 8 environments.
        np.testing.assert_allclose(counts[0], [1e-4 + 256] * 2)

    @parameterized.parameters(
        ({"num_envs": 9}, "num_envs: expected a multiple of the 2 replicas, which split"),
        ({"num_envs": 8, "rollout_length": 3, "num_minibatches": 8},
         "num_minibatches: expected minibatches that divide evenly over the 2 replicas, "
         "got 3 rows"),
    )  # fmt: skip
    def test_sizes_that_do_not_divide(self, changes, message):
        with pytest.raises(UserError) as error:
            workflow(mirrored(), **changes)
        self.assertIn(message, str(error.value))

    @pytest.mark.slow
    def test_a_thousand_iterations_trace_once(self):
        flow = workflow(mirrored())
        state = flow.advance(flow.setup(0), 5).state
        loops = dict(flow.runner(state)._bound)
        self.assertLen(loops, 1)
        for _ in range(3):
            state = flow.advance(state, 5).state
        self.assertEqual(flow.runner(state)._bound, loops)


class StatisticsTest(parameterized.TestCase):
    def test_statistics_of_replicas_are_those_of_all_rows(self):
        replicas = Replicas(mirrored(4))
        spec = {"x": tf.TensorSpec([3], tf.float32)}
        rows = {"x": seeding.normal(seeding.key(1), [4, 10, 3]) * 3.0 + 100.0}
        first = {"x": seeding.normal(seeding.key(2), [50, 3])}
        before = statistics.update(statistics.init(spec), first)

        def own(rows):
            mine = struct.take(rows, replicas.index())
            # The last replica has no rows.
            mask = tf.fill([10], replicas.index() < 3)
            after = {"deep": (statistics.update(before, mine, mask=mask), tf.constant(1))}
            return merge_over_replicas(replicas, {"deep": (before, tf.constant(0))}, after)

        found = replicas.any_replica(tf.function(lambda r: replicas.run(own, r))(rows))["deep"][0]
        whole = np.concatenate([first["x"], np.reshape(rows["x"][:3], [30, 3])]).astype(np.float64)
        self.assertEqual(float(found.count), 80)
        np.testing.assert_allclose(found.mean["x"], whole.mean(0), rtol=1e-6)
        np.testing.assert_allclose(found.m2["x"], whole.var(0) * 80, rtol=1e-5)

    def test_a_difference_undoes_a_merge(self):
        spec = tf.TensorSpec([2], tf.float32)
        a = statistics.update(statistics.init(spec), tf.constant([[1.0, 2.0], [3.0, 5.0]]))
        b = statistics.update(statistics.init(spec), tf.constant([[7.0, -1.0], [2.0, 2.0]]))
        found = statistics.difference(statistics.merge(a, b), a)
        for x, y in zip(tf.nest.flatten(found), tf.nest.flatten(b), strict=True):
            np.testing.assert_allclose(x, y, rtol=1e-12)
        nothing = statistics.difference(a, a)
        self.assertEqual([float(tf.norm(x)) for x in tf.nest.flatten(nothing)], [0.0] * 3)


if __name__ == "__main__":
    tf.test.main()
