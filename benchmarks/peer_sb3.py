"""Stable-Baselines3 (torch, CPU): PPO at the sizes of `benchmarks.ppo`, SAC, TD3 and DQN.

  python benchmarks/peer_sb3.py --num_envs=64            # PPO on Gymnasium's CartPole
  python benchmarks/peer_sb3.py --algorithm=sac          # at the sizes of `benchmarks.off_policy`

Runs in the peers' environment, without tfrl and TensorFlow; prints JSON lines.
"""

import argparse
import json
import time
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import peer_serving
import torch
from stable_baselines3 import DQN, PPO, SAC, TD3
from stable_baselines3.common.noise import NormalActionNoise
from stable_baselines3.common.vec_env import DummyVecEnv

NEVER = 10**9
EVERY = 50  # updates of one call of `learn`


def ppo(num_envs: int, seconds: float) -> dict[str, float]:
    """Measures env steps per second of whole iterations, without the first one."""
    envs = DummyVecEnv([lambda: gymnasium.make("CartPole-v1") for _ in range(num_envs)])
    horizon = 128
    model = PPO(
        "MlpPolicy",
        envs,
        n_steps=horizon,
        batch_size=horizon * num_envs // 4,
        n_epochs=4,
        device="cpu",
        seed=0,
        policy_kwargs={"net_arch": {"pi": [64, 64], "vf": [64, 64]}},
    )
    model.learn(horizon * num_envs)
    steps, start = 0, time.perf_counter()
    while time.perf_counter() - start < seconds:
        model.learn(horizon * num_envs, reset_num_timesteps=False)
        steps += horizon * num_envs
    rate = steps / (time.perf_counter() - start)
    return {"env_steps_per_second": rate, "num_envs": num_envs}


def off_policy(algorithm: str, random_steps: int) -> Any:
    """Returns a model with one update per env step, at the sizes of `off_policy`."""
    sizes = {**peer_serving.off_policy_sizes(algorithm, random_steps), "device": "cpu"}
    if algorithm == "dqn":
        return DQN("MlpPolicy", "CartPole-v1", **sizes)
    if algorithm == "td3":
        noise = NormalActionNoise(np.zeros(1), np.full(1, 0.1))
        return TD3("MlpPolicy", "Pendulum-v1", action_noise=noise, **sizes)
    return SAC("MlpPolicy", "Pendulum-v1", **sizes)


def trainer(model: Any) -> Callable[[], int]:
    """Returns a function that takes `EVERY` steps and updates."""

    def train() -> int:
        model.learn(EVERY, reset_num_timesteps=False, log_interval=NEVER)
        return EVERY

    return train


def measured(train: Callable[[], int], seconds: float) -> dict[str, float]:
    """Measures with one and with two torch threads; returns the faster one's figures."""
    rates = []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        rates.append({**peer_serving.rate(train, seconds / 2), "torch_threads": threads})
    return max(rates, key=lambda one: one["updates_per_second"])


def main() -> None:
    """Parses the command line and measures."""
    parser = peer_serving.parser(__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--algorithm", default="ppo", choices=("ppo", "sac", "td3", "dqn"))
    parser.add_argument("--num_envs", type=int, default=4, help="environments of PPO")
    args = parser.parse_args()
    if args.algorithm == "ppo":
        print(json.dumps(ppo(args.num_envs, args.seconds)))
        return
    model = off_policy(args.algorithm, args.random_steps)
    model.learn(args.random_steps + EVERY, log_interval=NEVER)
    train = trainer(model)
    peer_serving.serve(lambda: measured(train, args.seconds), args)


if __name__ == "__main__":
    main()
