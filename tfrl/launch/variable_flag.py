"""The flag --variable_server of learners and collectors."""

from absl import flags

flags.DEFINE_string(
    "variable_server",
    None,
    "Address host:port of another Reverb server for parameters and reports; by default the "
    "server of --replay_server.",
)
