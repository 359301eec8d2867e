"""Stable-Baselines3 PPO on Gymnasium's CartPole (torch, CPU), at the sizes of `benchmarks.ppo`.

Runs in the peers' own environment; prints one JSON line. No tfrl, no TensorFlow.
"""

import argparse
import json
import time

import gymnasium
from stable_baselines3 import PPO
from stable_baselines3.common.vec_env import DummyVecEnv


def main() -> None:
    """Measures env steps per second of whole iterations, the first one left out."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--num_envs", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=6.0)
    args = parser.parse_args()
    n = args.num_envs
    envs = DummyVecEnv([lambda: gymnasium.make("CartPole-v1") for _ in range(n)])
    horizon = 128
    model = PPO(
        "MlpPolicy",
        envs,
        n_steps=horizon,
        batch_size=horizon * n // 4,
        n_epochs=4,
        device="cpu",
        seed=0,
        policy_kwargs={"net_arch": {"pi": [64, 64], "vf": [64, 64]}},
    )
    model.learn(horizon * n)
    steps, start = 0, time.perf_counter()
    while time.perf_counter() - start < args.seconds:
        model.learn(horizon * n, reset_num_timesteps=False)
        steps += horizon * n
    rate = steps / (time.perf_counter() - start)
    print(json.dumps({"env_steps_per_second": rate, "num_envs": n}))


if __name__ == "__main__":
    main()
