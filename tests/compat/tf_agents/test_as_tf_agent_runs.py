"""Agents of this library inside TF-Agents' own programs: learners, drivers, buffers, metrics."""

import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

import numpy as np
import pytest
import reverb
import tensorflow as tf
from absl.testing import parameterized
from tf_agents.drivers import dynamic_step_driver, py_driver
from tf_agents.metrics import py_metrics
from tf_agents.policies import py_tf_eager_policy
from tf_agents.replay_buffers import (
    reverb_replay_buffer,
    reverb_utils,
    tf_uniform_replay_buffer,
)
from tf_agents.train import actor, learner, ppo_learner, triggers
from tf_agents.train.utils import train_utils

import tfrl
from tests.distribute import processes
from tfrl import agents
from tfrl.compat import tf_agents as compat

ROOT = Path(__file__).resolve().parents[3]


class Folder(parameterized.TestCase):
    def folder(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        return folder.name


def logic(kind, env, **kwargs):
    return kind(obs_spec=env.obs_spec, action_spec=env.action_spec, hidden=(8,), **kwargs)


class LearnerTest(Folder):
    @pytest.mark.slow
    def test_off_policy_in_the_graph(self):
        env = tfrl.make_env("tf:CartPole-v1", 2, max_episode_steps=5)
        root, step = self.folder(), train_utils.create_train_step()

        def made():
            return compat.as_tf_agent(logic(agents.DQN, env), train_step_counter=step)

        agent = made()
        buffer = tf_uniform_replay_buffer.TFUniformReplayBuffer(
            agent.collect_data_spec, batch_size=2, max_length=50
        )
        dynamic_step_driver.DynamicStepDriver(
            compat.as_tf_environment(env), agent.collect_policy, [buffer.add_batch], num_steps=40
        ).run()

        def dataset_fn():
            return buffer.as_dataset(sample_batch_size=8, num_steps=agent.train_sequence_length)

        kept = [
            triggers.PolicySavedModelTrigger(
                root + "/policies",
                agent,
                step,
                interval=2,
                save_greedy_policy=False,
                save_collect_policy=False,
            ),
            triggers.StepPerSecondLogTrigger(step, interval=2),
        ]
        trainer = learner.Learner(
            root, step, agent, dataset_fn, triggers=kept, checkpoint_interval=2, summary_interval=1
        )
        info = trainer.run(iterations=3)
        self.assertEqual(step.numpy(), 3)
        self.assertEqual(agent.learner.learner_steps, 3)
        self.assertTrue(np.isfinite(info.loss))
        self.assertTrue(np.isfinite(trainer.loss().loss))
        self.assertEqual(step.numpy(), 3)
        loaded = py_tf_eager_policy.SavedModelPyTFEagerPolicy(
            root + "/policies/policy", load_specs_from_pbtxt=True
        )
        self.assertEqual(loaded.get_train_step(), 0)  # the trigger's first save, before training
        loaded.update_from_checkpoint(root + "/policies/checkpoints/policy_checkpoint_0000000003")
        self.assertEqual(loaded.get_train_step(), 3)
        # Another process would do this: everything is there again.
        saved = {p: v.numpy() for p, v in agent.learner.variables().items()}
        step.assign(0)
        again = made()
        learner.Learner(root, step, again, dataset_fn, checkpoint_interval=2)
        self.assertEqual(step.numpy(), 3)
        for path, v in again.learner.variables().items():
            np.testing.assert_array_equal(v, saved[path], err_msg=path)
        tags = {
            value.tag
            for file in Path(root, "train").glob("*tfevents*")
            for event in tf.compat.v1.train.summary_iterator(str(file))
            for value in event.summary.value
        }
        self.assertTrue({"Losses/loss", "Losses/epsilon"} <= tags, tags)

    @pytest.mark.slow
    def test_ppo_learner(self):
        env = tfrl.make_env("tf:CartPole-v1", 2, max_episode_steps=6)
        step = train_utils.create_train_step()
        agent = compat.as_tf_agent(
            logic(agents.PPO, env, normalize_obs=True),
            train_step_counter=step,
            compute_value_and_advantage_in_train=False,
            update_normalizers_in_train=False,
            max_sequence_length=16,
        )
        buffer = tf_uniform_replay_buffer.TFUniformReplayBuffer(
            agent.collect_data_spec, batch_size=2, max_length=16
        )
        driver = dynamic_step_driver.DynamicStepDriver(
            compat.as_tf_environment(env), agent.collect_policy, [buffer.add_batch], num_steps=28
        )

        def frames():
            found = tf.data.Dataset.from_tensors(0).map(lambda _: buffer.gather_all())
            return found.map(lambda x: (tf.nest.map_structure(tf.stop_gradient, x), ()))

        def rows():
            return frames().map(lambda x, _: (agent.preprocess_sequence(x), ()))

        trainer = ppo_learner.PPOLearner(
            self.folder(),
            step,
            agent,
            rows,
            frames,
            num_samples=1,
            num_epochs=2,
            minibatch_size=8,
            shuffle_buffer_size=50,
        )
        for i in (1, 2):
            driver.run()
            num = int(buffer.num_frames())
            info = trainer.run()
            self.assertEqual(step.numpy() % (num // 8 * 2), 0)
            self.assertTrue(np.isfinite(info.loss))
            self.assertEqual(float(info.extra["skipped_steps"]), 0.0)
            self.assertGreater(float(agent.learner.state.normalizer.count), 20.0 * i)
            buffer.clear()


class HostTest(Folder):
    def test_actor_reverb_and_metrics(self):
        env = tfrl.make_env("gymnasium:CartPole-v1", max_episode_steps=7)
        step = train_utils.create_train_step()
        agent = compat.as_tf_agent(logic(agents.DQN, env, n_step=2), train_step_counter=step)
        table = reverb.Table(
            "uniform",
            sampler=reverb.selectors.Uniform(),
            remover=reverb.selectors.Fifo(),
            max_size=1000,
            rate_limiter=reverb.rate_limiters.MinSize(1),
            signature=tf.nest.map_structure(
                lambda s: tf.TensorSpec([3, *s.shape], s.dtype), agent.collect_data_spec
            ),
        )
        server = reverb.Server([table])
        self.addCleanup(server.stop)
        buffer = reverb_replay_buffer.ReverbReplayBuffer(
            agent.collect_data_spec, "uniform", sequence_length=3, local_server=server
        )
        observer = reverb_utils.ReverbAddTrajectoryObserver(
            buffer.py_client, "uniform", sequence_length=3, stride_length=1
        )
        theirs = compat.as_py_environment(env)
        policy = py_tf_eager_policy.PyTFEagerPolicy(agent.collect_policy, use_tf_function=True)
        root = self.folder()
        collector = actor.Actor(
            theirs,
            policy,
            step,
            steps_per_run=40,
            observers=[observer],
            metrics=actor.collect_metrics(10),
            summary_dir=root,
        )
        trainer = learner.Learner(
            root,
            step,
            agent,
            lambda: buffer.as_dataset(sample_batch_size=8, num_steps=3).prefetch(1),
        )
        before = [v.numpy() for v in agent.policy.variables()]
        collector.run()
        observer.flush()
        info = trainer.run(iterations=4)
        collector.run()
        self.assertTrue(np.isfinite(info.loss))
        self.assertEqual(step.numpy(), 4)
        steps = {m.name: m.result() for m in collector.metrics}
        self.assertEqual(steps["EnvironmentSteps"], 80)
        self.assertLessEqual(steps["AverageEpisodeLength"], 7)
        self.assertTrue(
            any(np.any(a != b) for a, b in zip(before, agent.policy.variables(), strict=True))
        )
        returns = py_metrics.AverageReturnMetric()
        greedy = py_tf_eager_policy.PyTFEagerPolicy(agent.policy, use_tf_function=True)
        py_driver.PyDriver(theirs, greedy, [returns], max_episodes=2).run(theirs.reset())
        self.assertGreater(returns.result(), 0.0)
        observer.close()
        theirs.close()

    @pytest.mark.slow
    def test_whole_episodes_as_in_their_example_of_ppo(self):
        env = tfrl.make_env("gymnasium:CartPole-v1", max_episode_steps=30)
        step = train_utils.create_train_step()
        agent = compat.as_tf_agent(
            logic(agents.PPO, env),
            train_step_counter=step,
            compute_value_and_advantage_in_train=False,
            update_normalizers_in_train=False,
            max_sequence_length=31,
        )
        signature = tf.nest.map_structure(
            lambda s: tf.TensorSpec([None, *s.shape], s.dtype), agent.collect_data_spec
        )
        names = ["training_table", "normalization_table"]
        server = reverb.Server(
            [
                reverb.Table(
                    name,
                    sampler=reverb.selectors.Fifo(),
                    remover=reverb.selectors.Fifo(),
                    rate_limiter=reverb.rate_limiters.MinSize(1),
                    max_size=100,
                    max_times_sampled=1,
                    signature=signature,
                )
                for name in names
            ]
        )
        self.addCleanup(server.stop)
        training, normalization = (
            reverb_replay_buffer.ReverbReplayBuffer(
                agent.collect_data_spec,
                sequence_length=None,
                table_name=name,
                local_server=server,
                max_cycle_length=1,
                rate_limiter_timeout_ms=1000,
            )
            for name in names
        )
        observer = reverb_utils.ReverbAddEpisodeObserver(
            training.py_client, table_name=names, max_sequence_length=100
        )
        theirs = compat.as_py_environment(env)
        policy = py_tf_eager_policy.PyTFEagerPolicy(agent.collect_policy, use_tf_function=True)
        root = self.folder()
        collector = actor.Actor(
            theirs,
            policy,
            step,
            episodes_per_run=4,
            observers=[observer],
            metrics=actor.collect_metrics(4),
            summary_dir=root,
        )

        def dataset_of(buffer, fn):
            return lambda: buffer.as_dataset(sample_batch_size=1, sequence_preprocess_fn=fn)

        trainer = ppo_learner.PPOLearner(
            root,
            step,
            agent,
            dataset_of(training, agent.preprocess_sequence),
            dataset_of(normalization, agent.preprocess_sequence),
            num_samples=4,
            num_epochs=2,
            minibatch_size=8,
            shuffle_buffer_size=100,
        )
        for _ in range(2):
            before = step.numpy()
            collector.run()
            info = trainer.run()
            self.assertGreater(step.numpy(), before)
            self.assertTrue(np.isfinite(info.loss))
            training.clear()
            normalization.clear()
        observer.close()
        theirs.close()


# What runs in processes of their own: two replicas see halves of a batch, and a learner without a
# strategy all of it. After two calls of train both must have the same parameters.
REPLICAS = """
    import sys
    import numpy as np
    import tensorflow as tf

    tf.get_logger().setLevel("ERROR")
    kind = sys.argv[1]
    if kind == "mirrored":
        cpu = tf.config.list_physical_devices("CPU")[0]
        devices = [tf.config.LogicalDeviceConfiguration()] * 2
        tf.config.set_logical_device_configuration(cpu, devices)
        strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
        place = None
    else:
        strategy = tf.distribute.MultiWorkerMirroredStrategy()
        place = strategy.cluster_resolver.task_id
    import tempfile
    from tf_agents.specs import tensor_spec
    from tf_agents.train import learner
    from tf_agents.train.utils import train_utils
    import tfrl
    from tfrl import agents
    from tfrl.compat import tf_agents as compat


    def batch_of(spec, length, seed):
        rng = np.random.default_rng(seed)

        def leaf(s):
            shape = [8, length, *s.shape]
            if s.dtype.is_floating:
                return rng.normal(size=shape).astype(np.float32)
            return rng.integers(0, 2, shape).astype(s.dtype.as_numpy_dtype)

        found = tf.nest.map_structure(leaf, spec)
        types = np.ones([8, length], np.int32)
        next_types = types.copy()
        next_types[::3, -2], types[::3, -1] = 2, 2
        discount = np.where(next_types == 2, 0.0, 1.0).astype(np.float32)
        return found._replace(step_type=types, next_step_type=next_types, discount=discount)


    def made(agent):
        step = train_utils.create_train_step()
        options = {} if isinstance(agent, agents.OffPolicy) else {"num_minibatches": 1}
        return compat.as_tf_agent(agent, train_step_counter=step, **options), step


    CASES = {
        "dqn": ("tf:CartPole-v1", agents.DQN, dict(normalize_obs=True, target_every=2), 2),
        "td3": ("tf:Pendulum-v1", agents.TD3, dict(normalize_obs=True), 2),
        "ppo": ("tf:CartPole-v1", agents.PPO, dict(normalize_obs=True), 5),
    }
    for env_id, kind, kwargs, length in (CASES[name] for name in sys.argv[2:]):
        env = tfrl.make_env(env_id, 1)
        logic = kind(obs_spec=env.obs_spec, action_spec=env.action_spec, hidden=(8,), **kwargs)
        if kind is agents.TD3:
            # Draws differ by the replica.
            logic = logic.replace(target_noise=0.0)
        with strategy.scope():
            agent, step = made(logic)
        alone, alone_step = made(logic)
        data = batch_of(agent.training_data_spec, length, 0)

        def halves():
            found = tf.data.Dataset.from_tensor_slices(data)
            if place is not None:
                found = found.shard(2, place)
            else:
                a, b = found.shard(2, 0).batch(4), found.shard(2, 1).batch(4)
                return a.concatenate(b).map(lambda x: (tf.nest.map_structure(fix, x), ())).repeat()
            return found.batch(4).map(lambda x: (tf.nest.map_structure(fix, x), ())).repeat()

        def fix(x):
            return tf.ensure_shape(x, [4, *x.shape[1:]])

        with tempfile.TemporaryDirectory() as root:
            trainer = learner.Learner(
                root, step, agent, halves, strategy=strategy, checkpoint_interval=1
            )
            info = trainer.run(iterations=2)
        for _ in range(2):
            last = alone.train(tf.nest.map_structure(tf.constant, data))
        assert int(step.numpy()) == 2 == int(alone_step.numpy())
        ours, theirs = alone.learner.variables(), agent.learner.variables()
        worst = max(
            float(np.max(np.abs(np.asarray(theirs[p], np.float64) - np.asarray(v, np.float64))))
            for p, v in ours.items()
            if "modules" in p
        )
        print(kind.__name__, float(info.loss) - float(last.loss), worst)
        assert abs(float(info.loss) - float(last.loss)) < 1e-3 * abs(float(last.loss)) + 1e-4
        assert worst < 1e-4, worst
    print("same")
"""


class ReplicasTest(parameterized.TestCase):
    def run_mirrored(self, *names):
        with tempfile.TemporaryDirectory() as folder:
            script = Path(folder) / "replicas.py"
            script.write_text(textwrap.dedent(REPLICAS))
            found = subprocess.run(
                [sys.executable, str(script), "mirrored", *names],
                capture_output=True,
                text=True,
                timeout=600,
            )
        self.assertIn("same", found.stdout, found.stderr[-2000:])

    @pytest.mark.slow
    def test_two_replicas_of_a_process(self):
        self.run_mirrored("dqn")

    @pytest.mark.slow
    def test_two_replicas_of_a_process_with_delayed_updates_and_minibatches(self):
        self.run_mirrored("td3", "ppo")

    @pytest.mark.slow
    def test_two_processes(self):
        with tempfile.TemporaryDirectory() as folder:
            with processes.Cluster(
                REPLICAS, 2, folder, args=("workers", "dqn", "td3", "ppo")
            ) as cluster:
                for output in cluster.start().wait_all(900.0):
                    self.assertIn("same", output)


class ExampleTest(parameterized.TestCase):
    def run_example(self, *flags, timeout):
        command = [sys.executable, str(ROOT / "examples" / "tf_agents_learner_sac.py"), *flags]
        found = subprocess.run(command, capture_output=True, text=True, timeout=timeout)
        self.assertEqual(found.returncode, 0, found.stderr[-2000:])
        return found.stdout

    @pytest.mark.slow
    def test_a_few_steps(self):
        output = self.run_example(
            "--env_steps=40", "--random_steps=20", "--eval_interval=20", timeout=300
        )
        self.assertRegex(output, r"env steps 20: mean greedy return -\d+")
        self.assertRegex(output, r"train steps 20, last loss [\d.]+\nmean greedy return -\d+")

    @pytest.mark.slow
    def test_learns(self):
        output = self.run_example("--seed=1", timeout=3600)
        self.assertGreaterEqual(float(output.split()[-1]), -180.0)
