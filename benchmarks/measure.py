"""Helpers of the benchmarks: alternating measurements, JSON lines, peers in their own processes."""

import json
import pathlib
import statistics
import subprocess
from collections.abc import Callable
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parents[1]
PEERS_PYTHON = ROOT / ".venv-peers" / "bin" / "python"


def alternate(
    contestants: dict[str, Callable[[], float]], rounds: int = 5
) -> dict[str, list[float]]:
    """Measures contestants in turn, so that noise of the machine affects all of them.

    Args:
      contestants: `{name: function that returns a rate}`, already warmed up.
      rounds: Measurements per contestant.

    Returns:
      `{name: rates}`.
    """
    rates: dict[str, list[float]] = {name: [] for name in contestants}
    for _ in range(rounds):
        for name, run in contestants.items():
            rates[name].append(run())
    return rates


def medians(rates: dict[str, list[float]]) -> dict[str, float]:
    """Returns the median of each list."""
    return {name: statistics.median(values) for name, values in rates.items()}


def device() -> str:
    """Returns the device that TensorFlow computes on: the name of the first GPU, or the CPU."""
    import tensorflow as tf

    gpus = tf.config.get_visible_devices("GPU")
    if not gpus:
        return "CPU"
    return str(tf.config.experimental.get_device_details(gpus[0]).get("device_name", "GPU"))


def emit(**figures: Any) -> None:
    """Prints one JSON line, floats with five significant digits."""
    short = {k: float(f"{v:.5g}") if isinstance(v, float) else v for k, v in figures.items()}
    print(json.dumps(short), flush=True)


def peer(script: str, *args: str) -> dict[str, Any] | None:
    """Runs `benchmarks/<script>` with the peers' interpreter; returns None if it is not installed.

    `make bench-peers` creates the peers' environment, because their pins conflict with TensorFlow
    2.15's.
    """
    if not PEERS_PYTHON.exists():
        return None
    done = subprocess.run(
        [str(PEERS_PYTHON), str(ROOT / "benchmarks" / script), *args],
        capture_output=True,
        text=True,
        check=True,
        timeout=600,
    )
    return json.loads(done.stdout.strip().splitlines()[-1])
