"""Agents of TF-Agents on the environments of worker pools."""

import functools
import json
import pathlib
import subprocess
import sys

import gymnasium
import numpy as np
import pytest
import tensorflow as tf

import tfrl
from tests.workflows.small_off_policy import run, workflow
from tfrl import seeding
from tfrl.compat import tf_agents_factories as factories
from tfrl.compat.tf_agents import TFAgentTask, from_tf_agent
from tfrl.errors import UserError
from tfrl.experiment.export_verify import draw_observations
from tfrl.keras import api as keras
from tfrl.tasks import RLTaskConfig, Samples, TaskWorkflow
from tfrl.tasks.learner import TaskLearner
from tfrl.tasks.policy_export import task_functions
from tfrl.types import Transition

ROOT = pathlib.Path(__file__).resolve().parents[3]
SMALL = {"hidden": (8,)}


def slow(*values):
    return pytest.param(*values, marks=pytest.mark.slow)


def config(**changes):
    numbers = {
        "num_env_workers": 2,
        "force_sync": True,
        "num_update_steps": 4,
        "batch_size": 8,
        "num_collect_steps": 60,
        "max_episode_steps": 20,
    }
    return RLTaskConfig(**{**numbers, **changes})


class Task(TFAgentTask):
    def __init__(self, config, factory=factories.make_dqn, env="CartPole-v1", **options):
        super().__init__(config)
        self._factory, self._options, self._env = factory, {**SMALL, **options}, env

    def get_environment(self):
        return gymnasium.make(self._env)

    def get_agent(self, obs_spec, action_spec):
        return self._factory(obs_spec, action_spec, **self._options)


# The session of docs/compat_tf_agents_in.md has a pool of processes.
def test_a_run_is_saved_restored_and_evaluated(tmp_path):
    flow = TaskWorkflow(task=Task(config()), eval_episodes=2)
    try:
        metrics, state = flow.step(flow.setup(0))
        model = flow.model(state)
        before = [v.numpy() for v in model.values]
        metrics, state = flow.step(state)
        assert metrics["env_steps"] == 120 and metrics["learner_steps"] == 8
        assert np.isfinite(metrics["loss"]) and metrics["worker_restarts"] == 0
        changed = [(v.numpy() != x).any() for v, x in zip(model.values, before, strict=True)]
        assert sum(changed) >= 4
        flow.save(state, tmp_path / "run")
        values = flow.state_values(state)
        restored = flow.state_values(flow.restore(tmp_path / "run"))
        assert any("train_step" in path for path in values)
        for path, x in values.items():
            np.testing.assert_array_equal(np.asarray(x), np.asarray(restored[path]), path)
        assert flow.evaluate(state)[0]["eval_return_mean"] > 1
    finally:
        flow.close()


@pytest.mark.parametrize(
    ("factory", "env", "options", "numbers"),
    [
        (factories.make_dqn, "CartPole-v1", {"n_step": 3}, {"num_samples": 3}),
        slow(factories.make_sac, "Pendulum-v1", {}, {}),
        slow(factories.make_categorical_dqn, "CartPole-v1", {"n_step": 2}, {"num_samples": 2}),
        slow(factories.make_ppo, "CartPole-v1", {"num_epochs": 2},
             {"num_samples": 5, "on_policy": True, "num_update_steps": 1}),
    ],
)  # fmt: skip
@pytest.mark.slow
def test_others(factory, env, options, numbers):
    flow = TaskWorkflow(task=Task(config(**numbers), factory, env, **options), eval_episodes=1)
    metrics, state = flow.step(flow.setup(1))
    assert np.isfinite(metrics["loss"])
    names = flow.state_values(state)
    (counter,) = [x for path, x in names.items() if path.endswith("extra_train_step_counter")]
    each = options.get("num_epochs", 1)
    assert int(counter) == each * flow.task.config.num_update_steps
    flow.close()


def test_an_update_is_the_agents_train():
    """The same step as of the module itself, on the transitions that the clips are."""
    task = Task(config(num_samples=2), n_step=2, discount=0.9, target_every=1)
    training = TaskLearner(task)
    model, agent = training.model, task.agent
    train = tf.function(training.train, autograph=False)
    counts, steps = tf.constant([1, 0], tf.int64), tf.constant(0, tf.int64)
    rng = np.random.default_rng(0)
    obs = rng.normal(size=[6, 3, 4]).astype(np.float32)
    action, reward = rng.integers(0, 2, [6, 2]), rng.normal(size=[6, 2]).astype(np.float32)
    ended = np.zeros([6, 2], bool)
    ended[3:, 1] = True
    clips = Samples(
        obs=obs[:, :2], action=action, reward=reward, termination=ended,
        truncation=np.zeros_like(ended), last_obs=obs[:, 2], extras={},
    )  # fmt: skip
    variables = tf.nest.map_structure(tf.Variable, model.state())
    key = seeding.fold_in(model.key, 1)
    items = Transition(
        obs=tf.constant(obs[:, 0]), action=tf.constant(action[:, 0]),
        reward=tf.constant(reward[:, 0] + 0.9 * reward[:, 1]), next_obs=tf.constant(obs[:, 2]),
        discount=tf.constant(np.where(ended[:, 1], 0.0, 0.81).astype(np.float32)),
    )  # fmt: skip
    step = tf.function(lambda: agent.train(variables, items, key), autograph=False)
    expected = float(step()["loss"])
    found = train(tf.nest.map_structure(tf.constant, clips), counts, steps)
    np.testing.assert_allclose(found["loss"], expected, rtol=1e-5)
    for mine, wanted in zip(model.values, tf.nest.flatten(variables), strict=True):
        np.testing.assert_allclose(mine, wanted, rtol=1e-4, atol=1e-6, err_msg=mine.name)
    before = [v.numpy() for v in model.values]
    clips = clips.replace(reward=np.full_like(reward, np.nan))
    assert not bool(train(tf.nest.map_structure(tf.constant, clips), counts, steps)["finite"])
    for mine, x in zip(model.values, before, strict=True):
        np.testing.assert_array_equal(mine, x)


def test_its_greedy_policy_is_exported():
    task = Task(config())
    model = task.get_model()
    policy = task_functions(task, model)
    (obs,) = draw_observations(policy.obs_spec, memory=False, count=50)
    values = tf.nest.map_structure(tf.convert_to_tensor, model.state())
    own = task.agent.evaluate_actions(values, obs, seeding.key(0)).action
    np.testing.assert_array_equal(policy.functions["action"](obs)["action"], own)


@pytest.mark.parametrize(
    ("numbers", "factory", "env", "message"),
    [
        ({"num_samples": 2}, factories.make_dqn, "CartPole-v1", "num_samples of Task: expected 1"),
        ({}, factories.make_ddpg, "Pendulum-v1", "get_agent of Task.*without policy state"),
        ({}, factories.make_reinforce, "CartPole-v1", "on_policy of Task: expected True"),
        ({}, lambda *specs, **_: from_tf_agent(object), "CartPole-v1", "a TFAgentModule, got part"),
    ],
)  # fmt: skip
def test_mistakes(numbers, factory, env, message):
    with pytest.raises(UserError, match=message):
        TaskLearner(Task(config(**numbers), factory, env))


def test_a_compiled_keras_model_keeps_variables_to_itself():
    model = keras.Sequential([keras.Input([3]), keras.layers.Dense(1)])
    model.compile("adam", "mse")

    class Compiled(Task):
        def get_model(self):
            return model

    with pytest.raises(
        UserError, match="get_model of Compiled: .*all variables that train_model changes"
    ):
        TaskLearner(Compiled(config()))


@pytest.mark.slow
def test_environments_of_a_workflow_in_processes():
    agent = functools.partial(factories.make_dqn, **SMALL)
    env = tfrl.make_env(
        "gymnasium:CartPole-v1", num_envs=2, autoreset="NEXT_STEP", vectorization="async"
    )
    flow = workflow(agent=agent, learner_config=None, env=env)
    try:
        _, rows = run(flow, 0, 60)
        assert rows[-1]["learner_steps"] > 30
    finally:
        flow.close()


@pytest.mark.slow
def test_binaries(tmp_path):
    (tmp_path / "my_pool.py").write_text(
        "import functools, gin, gymnasium\n"
        "from tfrl.compat.tf_agents import TFAgentTask\n"
        "from tfrl.compat.tf_agents_factories import make_dqn\n"
        "@gin.configurable(module='my_pool')\n"
        "class PoolTask(TFAgentTask):\n"
        "    get_environment = staticmethod(functools.partial(gymnasium.make, 'CartPole-v1'))\n"
        "    def get_agent(self, obs_spec, action_spec):\n"
        "        return make_dqn(obs_spec, action_spec, hidden=(8,))\n"
    )
    (tmp_path / "my_pool.gin").write_text(
        "import my_pool\n"
        "train.workflow = @TaskWorkflow()\n"
        "train.total_env_steps = 400\n"
        "train.final_eval_episodes = 4\n"
        "TaskWorkflow.task = @PoolTask()\n"
        "PoolTask.config = @RLTaskConfig()\n"
        "RLTaskConfig.num_env_workers = 2\n"
        "RLTaskConfig.num_update_steps = 20\n"
        "RLTaskConfig.num_collect_steps = 200\n"
    )
    for binary, flags in (
        ("train", ["--gin_file=my_pool.gin"]),
        ("evaluate", ["--episodes=4", "--allow_code"]),
        ("export", ["--format=tflite", "--allow_code"]),
    ):
        command = [sys.executable, str(ROOT / "bin" / f"{binary}.py"), "--root_dir=run", *flags]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr[-3000:]
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["env_steps"] >= 400
