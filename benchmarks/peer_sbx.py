"""SBX, Stable-Baselines3 in JAX: SAC, TD3 and DQN at the sizes of `benchmarks.off_policy`.

  python benchmarks/peer_sbx.py --algorithm=sac

Runs in the peers' environment, without tfrl and TensorFlow; prints JSON lines.
"""

import argparse
from typing import Any

import numpy as np
import peer_serving
from sbx import DQN, SAC, TD3
from stable_baselines3.common.noise import NormalActionNoise

NEVER = 10**9
EVERY = 50  # updates of one call of `learn`


def make(algorithm: str, random_steps: int) -> Any:
    """Returns a model with one update per env step."""
    sizes = peer_serving.off_policy_sizes(algorithm, random_steps)
    if algorithm == "dqn":
        return DQN("MlpPolicy", "CartPole-v1", **sizes)
    if algorithm == "td3":
        noise = NormalActionNoise(np.zeros(1), np.full(1, 0.1))
        return TD3("MlpPolicy", "Pendulum-v1", action_noise=noise, policy_delay=2, **sizes)
    return SAC("MlpPolicy", "Pendulum-v1", **sizes)


def main() -> None:
    """Parses the command line and measures."""
    parser = peer_serving.parser(__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--algorithm", default="sac", choices=("sac", "td3", "dqn"))
    args = parser.parse_args()
    model = make(args.algorithm, args.random_steps)
    model.learn(args.random_steps + 4 * EVERY, log_interval=NEVER)

    def train() -> int:
        model.learn(EVERY, reset_num_timesteps=False, log_interval=NEVER)
        return EVERY

    train()
    peer_serving.serve(lambda: peer_serving.rate(train, args.seconds), args)


if __name__ == "__main__":
    main()
