"""SAC's updates per second, one env step each, against a hand-written loop and peers.

  python -m benchmarks.sac                                             # on the device
  python -m benchmarks.sac --where=device,host --peers=sb3,sbx

Batches of 256, networks of 2x256, twin critics, a learned temperature, Pendulum. One JSON line for
each place of tfrl: `device` (`tf:Pendulum-v1`) and `host` (Gymnasium's, with the replay buffer in
the graph); the peers use Gymnasium's. `make .venv-peers/.installed` installs them.
"""

from collections.abc import Sequence

from benchmarks import off_policy

TASK = off_policy.pendulum_task("sac")


def main(argv: Sequence[str] | None = None) -> None:
    """Parses the command line and measures."""
    off_policy.run(TASK, __doc__, ("device", "host"), argv)


if __name__ == "__main__":
    main()
