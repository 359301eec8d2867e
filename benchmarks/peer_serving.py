"""Measurements in a peer's process: once, or once per input line. Uses no tfrl.

A persistent process makes rounds cheap: it compiles and fills its buffer once, and sleeps while
others are measured.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any


def parser(description: str | None) -> argparse.ArgumentParser:
    """Returns a parser with the options of every peer."""
    arg_parser = argparse.ArgumentParser(description=description)
    arg_parser.add_argument("--seconds", type=float, default=6.0, help="seconds per measurement")
    arg_parser.add_argument(
        "--served", action="store_true", help="measure once per line of standard input"
    )
    arg_parser.add_argument(
        "--random_steps", type=int, default=1000, help="number of initial random steps"
    )
    return arg_parser


def off_policy_sizes(algorithm: str, random_steps: int) -> dict[str, Any]:
    """Returns the arguments of a model of Stable-Baselines3 or SBX: one update per step."""
    sizes = {
        "train_freq": 1,
        "gradient_steps": 1,
        "learning_starts": random_steps,
        "buffer_size": 100_000,
        "seed": 0,
    }
    if algorithm != "dqn":
        return {
            **sizes,
            "batch_size": 256,
            "learning_rate": 3e-4,
            "policy_kwargs": {"net_arch": [256, 256]},
        }
    return {
        **sizes,
        "batch_size": 64,
        "learning_rate": 1e-3,
        "target_update_interval": 500,
        "exploration_initial_eps": 0.05,  # the same share of random actions as the others
        "exploration_final_eps": 0.05,
        "policy_kwargs": {"net_arch": [64, 64]},
    }


def rate(train: Callable[[], int], seconds: float) -> dict[str, float]:
    """Calls `train` for some seconds.

    Args:
      train: Makes some updates and returns their number.
      seconds: Minimum wall seconds.

    Returns:
      `updates_per_second` and `cpu_ms_per_update`, of all threads.
    """
    start, cpu, updates = time.perf_counter(), time.process_time(), 0
    while time.perf_counter() - start < seconds:
        updates += train()
    cpu = time.process_time() - cpu
    return {
        "updates_per_second": updates / (time.perf_counter() - start),
        "cpu_ms_per_update": 1e3 * cpu / updates,
    }


def serve(measure: Callable[[], Mapping[str, Any]], args: argparse.Namespace) -> None:
    """Prints a JSON line per measurement, after a warm-up."""
    if not args.served:
        print(json.dumps(measure()), flush=True)
        return
    print(json.dumps({"ready": True}), flush=True)
    for _ in sys.stdin:
        print(json.dumps(measure()), flush=True)
