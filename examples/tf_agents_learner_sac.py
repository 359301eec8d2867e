"""SAC of tfrl trained inside TF-Agents: its driver, its replay buffer, its Learner.

    python examples/tf_agents_learner_sac.py --seed=0 --env_steps=20000

All code except the agent and the environment is TF-Agents': `DynamicStepDriver` collects,
`TFUniformReplayBuffer` stores, `Learner` trains, writes checkpoints and saves policies, and
`DynamicEpisodeDriver` evaluates. The settings are from gin_configs/sac/tf_pendulum.gin.
"""

import os
import tempfile

import tensorflow as tf
from absl import app, flags, logging
from tf_agents.drivers import dynamic_episode_driver, dynamic_step_driver
from tf_agents.metrics import tf_metrics
from tf_agents.policies import random_tf_policy
from tf_agents.replay_buffers import tf_uniform_replay_buffer
from tf_agents.train import learner, triggers
from tf_agents.train.utils import train_utils
from tf_agents.utils import common

import tfrl
from tfrl.agents import SAC
from tfrl.compat import tf_agents as compat
from tfrl.learners import ModuleConfig

_SEED = flags.DEFINE_integer("seed", 0, "Seed of environments, parameters and exploration.")
_ENV_STEPS = flags.DEFINE_integer("env_steps", 20_000, "Env steps of training.")
_RANDOM_STEPS = flags.DEFINE_integer("random_steps", 500, "Initial env steps with random actions.")
_STEPS_PER_RUN = flags.DEFINE_integer(
    "steps_per_run", 10, "Env steps per call, followed by as many train steps."
)
_EVAL_INTERVAL = flags.DEFINE_integer("eval_interval", 5_000, "Env steps between evaluations.")
_EVAL_EPISODES = flags.DEFINE_integer("eval_episodes", 32, "Episodes per evaluation.")
_ROOT_DIR = flags.DEFINE_string(
    "root_dir", None, "Folder for checkpoints (default: a temporary folder)."
)


def main(argv):
    """Trains, and prints the mean greedy return."""
    del argv
    logging.set_verbosity(logging.ERROR)
    tf.random.set_seed(_SEED.value)
    root_dir = _ROOT_DIR.value or tempfile.mkdtemp()
    env = tfrl.make_env("tf:Pendulum-v1", 1)
    train_env = compat.as_tf_environment(env, seed=_SEED.value)
    train_step = train_utils.create_train_step()
    env_steps = tf_metrics.EnvironmentSteps()
    agent = compat.as_tf_agent(
        SAC(obs_spec=env.obs_spec, action_spec=env.action_spec),
        learner_config=ModuleConfig(lr=1e-3, adam_epsilon=1e-8),
        seed=_SEED.value,
        train_step_counter=train_step,
        env_steps=env_steps.result,
    )
    buffer = tf_uniform_replay_buffer.TFUniformReplayBuffer(
        agent.collect_data_spec, batch_size=1, max_length=_ENV_STEPS.value + 1_000
    )
    observers = [buffer.add_batch, env_steps]
    random_policy = random_tf_policy.RandomTFPolicy(agent.time_step_spec, agent.action_spec)
    fill = dynamic_step_driver.DynamicStepDriver(
        train_env, random_policy, observers, num_steps=_RANDOM_STEPS.value
    )
    collect = dynamic_step_driver.DynamicStepDriver(
        train_env, agent.collect_policy, observers, num_steps=_STEPS_PER_RUN.value
    )
    evaluate = _Evaluation(agent.policy)
    common.function(fill.run)()

    def dataset_fn():
        return buffer.as_dataset(
            sample_batch_size=256, num_steps=agent.train_sequence_length
        ).prefetch(2)

    sac_learner = learner.Learner(
        root_dir,
        train_step,
        agent,
        dataset_fn,
        triggers=[
            triggers.PolicySavedModelTrigger(
                os.path.join(root_dir, learner.POLICY_SAVED_MODEL_DIR),
                agent,
                train_step,
                interval=_EVAL_INTERVAL.value,
            ),
            triggers.StepPerSecondLogTrigger(train_step, interval=1_000),
        ],
        checkpoint_interval=_EVAL_INTERVAL.value,
        summary_interval=0,
    )
    collect_run = common.function(collect.run)
    time_step, state = train_env.current_time_step(), agent.collect_policy.get_initial_state(1)
    next_evaluation = _EVAL_INTERVAL.value
    while (steps := int(env_steps.result())) < _ENV_STEPS.value:
        if steps >= next_evaluation:
            print(f"env steps {steps}: mean greedy return {evaluate():.1f}", flush=True)
            next_evaluation += _EVAL_INTERVAL.value
        time_step, state = collect_run(time_step, state)
        loss_info = sac_learner.run(iterations=_STEPS_PER_RUN.value)
    print(f"train steps {int(train_step)}, last loss {float(loss_info.loss):.4g}")
    print(f"mean greedy return {evaluate():.1f}", flush=True)


class _Evaluation:
    """The mean return of greedy episodes, from TF-Agents' driver and metric."""

    def __init__(self, policy):
        n = _EVAL_EPISODES.value
        env = compat.as_tf_environment(tfrl.make_env("tf:Pendulum-v1", n), seed=1_000 + _SEED.value)
        self._env = env
        self._metric = tf_metrics.AverageReturnMetric(batch_size=n, buffer_size=n)
        driver = dynamic_episode_driver.DynamicEpisodeDriver(
            env, policy, [self._metric], num_episodes=n
        )
        self._run = common.function(driver.run)

    def __call__(self) -> float:
        self._metric.reset()
        self._run(self._env.reset())
        return float(self._metric.result())


if __name__ == "__main__":
    app.run(main)
