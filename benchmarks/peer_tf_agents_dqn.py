"""TF-Agents' DQN as in its tutorial, at the sizes of `benchmarks.dqn`.

  python benchmarks/peer_tf_agents_dqn.py

PyDriver, Reverb's uniform table in the same process, a dataset, one step and one update in turn:
https://www.tensorflow.org/agents/tutorials/1_dqn_tutorial, without its prints and evaluations.
Runs in tfrl's environment, but uses no tfrl; prints JSON lines.
"""

import argparse
import os
from typing import Any

import peer_serving

BATCH, HIDDEN, EVERY = 64, (64, 64), 50


def make_agent(env: Any) -> Any:
    """Returns a DqnAgent with the tutorial's network of dense layers, initialised."""
    import tensorflow as tf
    from tf_agents.agents.dqn import dqn_agent
    from tf_agents.networks import q_network

    agent = dqn_agent.DqnAgent(
        env.time_step_spec(),
        env.action_spec(),
        q_network=q_network.QNetwork(
            env.observation_spec(), env.action_spec(), fc_layer_params=HIDDEN
        ),
        optimizer=tf.keras.optimizers.legacy.Adam(1e-3),
        epsilon_greedy=0.05,
        target_update_period=500,
        gamma=0.99,
        train_step_counter=tf.Variable(0),
    )
    agent.initialize()
    return agent


def replay_of(agent: Any, capacity: int) -> tuple[Any, Any]:
    """Returns a Reverb replay buffer of a uniform table, and its observer."""
    import reverb
    from tf_agents.replay_buffers import reverb_replay_buffer, reverb_utils
    from tf_agents.specs import tensor_spec

    table = reverb.Table(
        "uniform",
        max_size=capacity,
        sampler=reverb.selectors.Uniform(),
        remover=reverb.selectors.Fifo(),
        rate_limiter=reverb.rate_limiters.MinSize(1),
        signature=tensor_spec.add_outer_dim(tensor_spec.from_spec(agent.collect_data_spec)),
    )
    replay = reverb_replay_buffer.ReverbReplayBuffer(
        agent.collect_data_spec,
        table_name="uniform",
        sequence_length=2,
        local_server=reverb.Server([table]),
    )
    return replay, reverb_utils.ReverbAddTrajectoryObserver(
        replay.py_client, "uniform", sequence_length=2
    )


class Tutorial:
    """The loop of the tutorial; `train` makes `EVERY` steps and updates and returns their number.

    It keeps the replay buffer alive, and with it Reverb's server.
    """

    def __init__(self, random_steps: int, capacity: int = 100_000):
        """Fills the buffer with random actions and creates the dataset."""
        from tf_agents.environments import suite_gym, tf_py_environment
        from tf_agents.policies import random_tf_policy
        from tf_agents.utils import common

        self.env = suite_gym.load("CartPole-v1")
        specs = tf_py_environment.TFPyEnvironment(suite_gym.load("CartPole-v1"))
        self.agent = make_agent(specs)
        self.replay, self.observer = replay_of(self.agent, capacity)
        at_random = random_tf_policy.RandomTFPolicy(specs.time_step_spec(), specs.action_spec())
        self._driver(at_random, random_steps).run(self.env.reset())
        dataset = self.replay.as_dataset(num_parallel_calls=3, sample_batch_size=BATCH, num_steps=2)
        self.rows = iter(dataset.prefetch(3))
        self.agent.train = common.function(self.agent.train)
        self.collect = self._driver(self.agent.collect_policy, 1)
        self.time_step = self.env.reset()

    def _driver(self, policy: Any, steps: int) -> Any:
        from tf_agents.drivers import py_driver
        from tf_agents.policies import py_tf_eager_policy

        acting = py_tf_eager_policy.PyTFEagerPolicy(policy, use_tf_function=True)
        return py_driver.PyDriver(self.env, acting, [self.observer], max_steps=steps)

    def train(self) -> int:
        """Takes a step and an update in turn."""
        for _ in range(EVERY):
            self.time_step, _ = self.collect.run(self.time_step)
            experience, _ = next(self.rows)
            self.agent.train(experience)
        return EVERY


def main() -> None:
    """Parses the command line and measures."""
    parser = peer_serving.parser(__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    args = parser.parse_args()
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    loop = Tutorial(args.random_steps)
    loop.train()
    peer_serving.serve(lambda: peer_serving.rate(loop.train, args.seconds), args)


if __name__ == "__main__":
    main()
