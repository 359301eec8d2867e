"""The flag --quiet of all binaries."""

from absl import flags

flags.DEFINE_boolean("quiet", False, "Print only warnings, errors and the last line of JSON.")
