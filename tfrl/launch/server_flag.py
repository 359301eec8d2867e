"""The flag --replay_server of learners and collectors."""

from absl import flags

from tfrl.errors import UserError

flags.DEFINE_string(
    "replay_server",
    None,
    "Address host:port of the Reverb server for experience, as bin/reverb_server.py prints it; "
    "several addresses are separated by commas.",
)


def replay_server() -> str:
    """Returns the value of --replay_server.

    Raises:
      UserError: The flag is missing.
    """
    address = flags.FLAGS.replay_server
    if address is None:
        raise UserError(
            "--replay_server",
            expected="host:port of bin/reverb_server.py --num_collectors=...",
            got="no value",
            remedy="Start it with the same gin file, and pass the address that it prints.",
        )
    return str(address)
