"""Microseconds per action of a loaded policy, with NumPy in and out.

  python -m benchmarks.policy [--hidden=64,64] [--rounds=400] [--calls=20]

The policies are PPO's with an observation normaliser and two actions: for CartPole's observation,
for a Dict observation, and with an LSTM. `overhead` is the time of a greedy prediction minus the
time of the same networks and normaliser in hand-written NumPy, and `ratio` their quotient: medians
over rounds of the figures of one round, so that noise of the machine affects both. The other
figures are minima over rounds.
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

MEMORY = 128
KINDS = 3
# {policy: (spec of an observation, observation, arguments of the agent)}
POLICIES: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "Box": (tf.TensorSpec([OBSERVATION]), np.array([0.1, -0.2, 0.05, 0.3], np.float32), {}),
    "Dict": (
        {"pos": tf.TensorSpec([2]), "kind": specs.DiscreteSpec(KINDS)},
        {"pos": np.array([0.1, -0.2], np.float32), "kind": 1},
        {},
    ),
    "LSTM": (
        tf.TensorSpec([OBSERVATION]),
        np.array([0.1, -0.2, 0.05, 0.3], np.float32),
        {"memory": "lstm", "memory_size": MEMORY},
    ),
}


class ByHand:
    """The networks of one policy and its normaliser in NumPy."""

    def __init__(self, obs: Any, hidden: tuple[int, ...], memory: bool):
        """Draws parameters."""
        self._draw = np.random.default_rng(0)
        pos = obs["pos"] if isinstance(obs, dict) else obs
        self._mean, self._scale = np.zeros(len(pos), np.float32), np.ones(len(pos), np.float32)
        self._bounds = np.float32(-10), np.float32(10)
        sizes = [len(pos) + (KINDS if isinstance(obs, dict) else 0), *hidden]
        pairs = list(zip(sizes[:-1], sizes[1:], strict=True))
        # With memory the critic runs too: its state is part of the policy's.
        self._torsos = [[self._layer(*p) for p in pairs] for _ in range(2 if memory else 1)]
        self._cells = [
            (self._layer(sizes[-1], 4 * MEMORY), self._layer(MEMORY, 4 * MEMORY)[0])
            for _ in self._torsos
        ]
        self._memory = memory
        self._head = self._layer(MEMORY if memory else sizes[-1], ACTIONS)

    def _layer(self, size_in: int, size_out: int) -> tuple[np.ndarray, np.ndarray]:
        kernel = self._draw.normal(size=[size_in, size_out]).astype(np.float32)
        return kernel, np.zeros(size_out, np.float32)

    def state(self) -> list[tuple[np.ndarray, np.ndarray]]:
        """The recurrent state at an episode start."""
        zeros = np.zeros([1, MEMORY], np.float32)
        return [(zeros, zeros)] * (len(self._torsos) if self._memory else 0)

    def act(self, obs: Any, state: Any) -> Any:
        """Returns the action, and the state after it."""
        x = obs["pos"] if isinstance(obs, dict) else obs
        low, high = self._bounds
        x = np.minimum(np.maximum((x[np.newaxis] - self._mean) * self._scale, low), high)
        if isinstance(obs, dict):
            hot = np.zeros([1, KINDS], np.float32)
            hot[0, obs["kind"]] = 1
            x = np.concatenate([hot, x], -1)
        outputs, after = [], []
        for i, torso in enumerate(self._torsos):
            y = x
            for kernel, bias in torso:
                y = np.tanh(y @ kernel + bias)
            if state:
                y, cell = self._cell(*self._cells[i], y, *state[i])
                after.append((y, cell))
            outputs.append(y)
        kernel, bias = self._head
        return np.argmax(outputs[0] @ kernel + bias, axis=-1)[0], after

    def _cell(self, inputs: Any, recurrent: Any, x: Any, hidden: Any, cell: Any) -> Any:
        kernel, bias = inputs
        parts = x @ kernel + hidden @ recurrent + bias
        i, f, g, o = (parts[:, k * MEMORY : (k + 1) * MEMORY] for k in range(4))
        cell = _sigmoid(f) * cell + _sigmoid(i) * np.tanh(g)
        return _sigmoid(o) * np.tanh(cell), cell


def _sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def main() -> None:
    """Parses the command line and measures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--hidden", default="64,64", help="units of the layers")
    parser.add_argument("--rounds", type=int, default=400)
    parser.add_argument("--calls", type=int, default=20, help="calls per round")
    args = parser.parse_args()
    hidden = tuple(int(size) for size in args.hidden.split(","))
    for name, (obs_spec, obs, options) in POLICIES.items():
        agent = PPO(
            obs_spec=obs_spec,
            action_spec=specs.DiscreteSpec(ACTIONS),
            hidden=hidden,
            normalize_obs=True,
            **options,
        )
        policy = Policy(agent, agent.init(seeding.key(0)))
        bare = ByHand(obs, hidden, "memory" in options)
        start, (_, state) = bare.state(), policy.predict(obs)
        calls: dict[str, Callable[[], Any]] = {
            "by_hand": lambda obs=obs, bare=bare, start=start: bare.act(obs, start),
            "predict": lambda obs=obs, policy=policy, state=state: policy.predict(obs, state=state),
            "predict_drawn": lambda obs=obs, policy=policy, state=state: policy.predict(
                obs, deterministic=False, state=state
            ),
        }
        for call in calls.values():
            microseconds(call, args.calls)
        contestants = {
            key: lambda call=call: microseconds(call, args.calls) for key, call in calls.items()
        }
        timings = measure.alternate(contestants, args.rounds)
        pairs = list(zip(timings["predict"], timings["by_hand"], strict=True))
        measure.emit(
            policy=name,
            hidden=args.hidden,
            **{key: min(times) for key, times in timings.items()},
            overhead=statistics.median(ours - bare for ours, bare in pairs),
            ratio=statistics.median(ours / bare for ours, bare in pairs),
        )


if __name__ == "__main__":
    main()
