"""The flag --pull_seconds of collectors."""

from absl import flags

flags.DEFINE_float(
    "pull_seconds",
    0.2,
    "Seconds between two reads of a collector's parameters, and between two of its reports.",
    lower_bound=0.0,
)
