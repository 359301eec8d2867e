"""The flag --variable_server of learners and collectors."""

from absl import flags

from tfrl.errors import UserError

flags.DEFINE_string(
    "variable_server",
    None,
    "Off-policy: address host:port of another Reverb server for parameters and reports; by default "
    "the first server of --replay_server.",
)


def refuse() -> None:
    """Raises a UserError if the flag has a value: on-policy training has one server."""
    address = flags.FLAGS.variable_server
    if address is not None:
        raise UserError(
            f"--variable_server={address}",
            expected="no value for on-policy training, where one server has rollouts, parameters "
            "and reports",
            got=repr(address),
            remedy="Pass only --replay_server.",
        )
