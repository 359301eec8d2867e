"""Microseconds per action of a loaded policy, with NumPy in and out.

  python -m benchmarks.policy [--hidden=64,64] [--rounds=40] [--calls=100]

The policy is PPO's for CartPole, with an observation normaliser. `overhead` is the time of its
greedy prediction minus the time of the same network and normaliser in hand-written NumPy: the
median over rounds of the differences of one round, so that noise of the machine affects both.
"""

import argparse
import statistics
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from benchmarks import measure
from benchmarks.export import ACTIONS, OBSERVATION, microseconds
from tfrl import seeding, specs
from tfrl.agents import PPO
from tfrl.rollout.policy import Policy


def by_hand(hidden: tuple[int, ...]) -> Callable[[np.ndarray], Any]:
    """Returns a network with normaliser in NumPy."""
    generator = np.random.default_rng(0)
    sizes = [OBSERVATION, *hidden, ACTIONS]
    pairs = zip(sizes[:-1], sizes[1:], strict=True)
    layers = [(generator.normal(size=p).astype(np.float32), np.zeros(p[1], "f")) for p in pairs]
    mean, scale = np.zeros(OBSERVATION, np.float32), np.ones(OBSERVATION, np.float32)
    low, high = np.float32(-10), np.float32(10)

    def act(x: np.ndarray) -> Any:
        x = np.minimum(np.maximum((x[np.newaxis] - mean) * scale, low), high)
        for kernel, bias in layers[:-1]:
            x = np.tanh(x @ kernel + bias)
        return np.argmax(x @ layers[-1][0] + layers[-1][1], axis=-1)[0]

    return act


def main() -> None:
    """Parses the command line and measures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--hidden", default="64,64", help="units of the layers")
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--calls", type=int, default=100, help="calls per round")
    args = parser.parse_args()
    hidden = tuple(int(size) for size in args.hidden.split(","))
    agent = PPO(
        obs_spec=tf.TensorSpec([OBSERVATION]),
        action_spec=specs.DiscreteSpec(ACTIONS),
        hidden=hidden,
        normalize_obs=True,
    )
    policy = Policy(agent, agent.init(seeding.key(0)))
    obs, act = np.array([0.1, -0.2, 0.05, 0.3], np.float32), by_hand(hidden)
    calls: dict[str, Callable[[], Any]] = {
        "by_hand": lambda: act(obs),
        "predict": lambda: policy.predict(obs),
        "predict_drawn": lambda: policy.predict(obs, deterministic=False),
    }
    for call in calls.values():
        microseconds(call, args.calls)
    contestants = {
        name: lambda call=call: microseconds(call, args.calls) for name, call in calls.items()
    }
    found = measure.alternate(contestants, args.rounds)
    pairs = zip(found["predict"], found["by_hand"], strict=True)
    measure.emit(
        hidden=args.hidden,
        **measure.medians(found),
        overhead=statistics.median(ours - bare for ours, bare in pairs),
    )


if __name__ == "__main__":
    main()
