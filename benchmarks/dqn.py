"""DQN's updates per second, one env step each, against a hand-written loop and peers.

  python -m benchmarks.dqn                                             # on the device
  python -m benchmarks.dqn --where=device,host,reverb --peers=sb3,tf_agents

Batches of 64, networks of 2x64, CartPole. One JSON line for each place of tfrl: `device`
(`tf:CartPole-v1`), `host` (Gymnasium's, with the replay buffer in the graph) and `reverb` (the same
with Reverb in this process); the peers use Gymnasium's, TF-Agents as in its tutorial.
`make .venv-peers/.installed` installs the peers that conflict with TensorFlow 2.15.
"""

from collections.abc import Sequence
from typing import Any

from benchmarks import off_policy


def make_agent(**specs: Any) -> Any:
    """Returns the agent."""
    from tfrl.agents import DQN

    return DQN(hidden=(64, 64), epsilon=0.05, target_every=500, **specs)


def make_reference(mode: str, **sizes: Any) -> Any:
    """Returns the hand-written loop."""
    from benchmarks import reference_dqn

    return reference_dqn.ReferenceDQN(mode, **sizes)


TASK = off_policy.Task(
    name="dqn",
    device="tf:CartPole-v1",
    host="gymnasium:CartPole-v1",
    batch_size=64,
    agent=make_agent,
    learner={"lr": 1e-3, "adam_epsilon": 1e-8, "grad_clip": 10.0},
    reference=make_reference,
    modes=("xla, fused Adam", "graph, fused Adam"),
    peers={**off_policy.PEERS, "tf_agents": (None, "peer_tf_agents_dqn.py")},
)


def main(argv: Sequence[str] | None = None) -> None:
    """Parses the command line and measures."""
    off_policy.run(TASK, __doc__, ("device", "host", "reverb"), argv)


if __name__ == "__main__":
    main()
