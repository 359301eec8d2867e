"""Flags of several binaries; each binary calls `define` for its own."""

from collections.abc import Callable, Sequence
from typing import Any

from absl import flags

from tfrl import checks
from tfrl.errors import UserError
from tfrl.launch import gin_files

# The most that a server's timeout may be, see `ReverbReplay.timeout`.
_MOST_SECONDS = 1e6

_DEFINITIONS: dict[str, Callable[[str], Any]] = {
    "quiet": lambda name: flags.DEFINE_boolean(
        name,
        False,
        "Print only warnings, errors, and what tfrl-evaluate, tfrl-report and tfrl-tune compute.",
    ),
    "total_env_steps": lambda name: flags.DEFINE_integer(
        name,
        None,
        "The budget in env steps, and the end of the schedules that the gin file ties to it; a "
        "larger budget continues a run, but no finished trial of a search.",
        lower_bound=1,
    ),
    "parallel": lambda name: flags.DEFINE_integer(
        name, 1, "Number of trainings at the same time.", lower_bound=1
    ),
    "wait_seconds": lambda name: flags.DEFINE_float(
        name,
        600.0,
        "Seconds that processes wait for each other, at the start and after a loss.",
        lower_bound=0.0,
    ),
    "pull_seconds": lambda name: flags.DEFINE_float(
        name,
        0.2,
        "Seconds between two reads of a collector's parameters, and between two of its reports.",
        lower_bound=0.01,
    ),
    "replay_server": lambda name: flags.DEFINE_string(
        name,
        None,
        "Address host:port of the Reverb server for experience, as tfrl-reverb-server prints "
        "it; several addresses are separated by commas.",
    ),
    "variable_server": lambda name: flags.DEFINE_string(
        name,
        None,
        "Off-policy: address host:port of another Reverb server for parameters and reports; by "
        "default the first server of --replay_server.",
    ),
    "synchronous": lambda name: flags.DEFINE_enum(
        name,
        "auto",
        ["auto", "true", "false"],
        "Whether on-policy collectors wait for the update from their rollout. auto: they wait "
        "unless the agent corrects for the policy lag, as IMPALA does.",
    ),
    "max_policy_lag": lambda name: flags.DEFINE_integer(
        name,
        None,
        "On-policy: maximum of learner steps between acting and learning; older rollouts are "
        "dropped.",
        lower_bound=0,
    ),
}


def define(*names: str) -> None:
    """Defines flags, unless another module of the binary has."""
    for name in names:
        if name not in flags.FLAGS:
            _DEFINITIONS[name](name)


def with_budget(files: Sequence[str], bindings: Sequence[str]) -> tuple[str, ...]:
    """Returns gin bindings, with that of --total_env_steps if it is given."""
    env_steps = flags.FLAGS.total_env_steps
    if env_steps is None:
        return tuple(bindings)
    return (*bindings, gin_files.budget_binding(files, bindings, env_steps))


def wait_seconds() -> float:
    """Returns the value of --wait_seconds of a process that waits for a server.

    Raises:
      UserError: It is 0, or no finite number.
    """
    value = flags.FLAGS.wait_seconds
    remedy = "It is the time in seconds after which a process that waits ends."
    checks.number("--wait_seconds", value, 0, _MOST_SECONDS, closed=False, remedy=remedy)
    return float(value)


def pull_seconds() -> float:
    """Returns the value of --pull_seconds.

    Raises:
      UserError: It is no finite number.
    """
    return float(checks.number("--pull_seconds", flags.FLAGS.pull_seconds, 0.01, _MOST_SECONDS))


def replay_server() -> str:
    """Returns the value of --replay_server; also checks --variable_server.

    Raises:
      UserError: The flag is missing, or an address is malformed.
    """
    address = flags.FLAGS.replay_server
    if address is None:
        raise UserError(
            "--replay_server",
            expected="host:port of tfrl-reverb-server --num_collectors=...",
            got="no value",
            remedy="Start it with the same gin file, and pass the address that it prints.",
        )
    for server in address.split(","):
        checks.address(server.strip(), f"--replay_server={address}")
    if flags.FLAGS.variable_server is not None:
        checks.address(flags.FLAGS.variable_server, "--variable_server")
    return str(address)


def refuse_variable_server() -> None:
    """Raises a UserError for a --variable_server: on-policy training has one server."""
    address = flags.FLAGS.variable_server
    if address is not None:
        raise UserError(
            f"--variable_server={address}",
            expected="no value for on-policy training, where one server has rollouts, parameters "
            "and reports",
            got=repr(address),
            remedy="Pass only --replay_server.",
        )


def check(workflow: object) -> None:
    """Raises a UserError for flags of rollouts where collectors write to a replay buffer."""
    from tfrl.workflows import OffPolicyWorkflow

    for name in ("synchronous", "max_policy_lag"):
        flag = flags.FLAGS[name]
        if isinstance(workflow, OffPolicyWorkflow) and flag.value != flag.default:
            raise UserError(
                f"--{name}={flag.value}",
                expected="no value for off-policy training, whose learner samples a replay buffer",
                got=repr(flag.value),
                remedy="Leave it out.",
            )
