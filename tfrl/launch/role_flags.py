"""The flags that learners and collectors share."""

from absl import flags

from tfrl.errors import UserError

flags.DEFINE_string(
    "variable_server",
    None,
    "Address host:port of the Reverb server of parameters and reports; --replay_server by default.",
)
flags.DEFINE_float(
    "wait_seconds",
    600.0,
    "Seconds to wait for a server, a learner or collectors: at the start, and where one is lost.",
    lower_bound=0.0,
)


def replay_server() -> str:
    """Returns the value of --replay_server.

    Raises:
      UserError: It is missing.
    """
    address = flags.FLAGS.replay_server
    if address is None:
        raise UserError(
            "--replay_server",
            expected="host:port of bin/reverb_server.py --num_collectors=...",
            got="nothing",
            remedy="Start it with the same gin file, and give the address that it prints.",
        )
    return str(address)
