"""TF-Agents' DQN in tfrl's loop, against the loop of TF-Agents' tutorial.

  python -m benchmarks.tf_agents_dqn
  python -m benchmarks.tf_agents_dqn --where=host,reverb --compile=xla

The same DqnAgent (2x64, batches of 64, v1 Adam in tfrl, Keras' legacy Adam in the tutorial's loop)
makes one env step and one update per iteration on Gymnasium's CartPole; the two loops alternate.
One JSON line for each place of the replay buffer: `host` (in the graph) and `reverb` (Reverb in
this process, which the tutorial uses too). The ratio is `ratio_to_tf_agents`.
"""

import sys
from collections.abc import Sequence
from typing import Any

from benchmarks import off_policy


def make_agent(**specs: Any) -> Any:
    """Returns the tutorial's agent as a tfrl agent."""
    from tfrl.compat.tf_agents import from_tf_agent

    return from_tf_agent(_make, **specs)


def _make(time_step_spec: Any, action_spec: Any) -> Any:
    import tensorflow as tf
    from tf_agents.agents.dqn import dqn_agent
    from tf_agents.networks import q_network

    return dqn_agent.DqnAgent(
        time_step_spec,
        action_spec,
        q_network=q_network.QNetwork(
            time_step_spec.observation, action_spec, fc_layer_params=(64, 64)
        ),
        optimizer=tf.compat.v1.train.AdamOptimizer(1e-3),
        epsilon_greedy=0.05,
        target_update_period=500,
        gamma=0.99,
        train_step_counter=tf.Variable(0),
    )


def _no_reference(mode: str, **sizes: Any) -> Any:
    raise SystemExit("the tutorial's loop runs on the host; use --where=host or reverb")


TASK = off_policy.Task(
    name="tf_agents_dqn",
    device="tf:CartPole-v1",
    host="gymnasium:CartPole-v1",
    batch_size=64,
    agent=make_agent,
    learner={},
    reference=_no_reference,
    modes=(),
    peers={"tf_agents": (None, "peer_tf_agents_dqn.py")},
)


def main(argv: Sequence[str] | None = None) -> None:
    """Parses the command line and measures."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    usual = ["--where=host", "--peers=tf_agents"]
    off_policy.run(TASK, __doc__, ("host", "reverb"), usual + arguments)


if __name__ == "__main__":
    main()
