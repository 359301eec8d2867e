"""The flag --wait_seconds of processes that wait for each other."""

from absl import flags

flags.DEFINE_float(
    "wait_seconds",
    600.0,
    "Seconds that processes wait for each other, at the start and after a loss.",
    lower_bound=0.0,
)
