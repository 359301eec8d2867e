"""The common flags of all binaries, and their effect on TensorFlow."""

import dataclasses
import math
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from absl import flags

from tfrl.distribute.choice import STRATEGIES, choose
from tfrl.launch import shared_flags
from tfrl.launch.api import StartOptions

if TYPE_CHECKING:
    import tensorflow as tf

shared_flags.define("quiet")
flags.DEFINE_string(
    "root_dir", None, "Folder of the run: configuration, metrics, checkpoints, policy, videos."
)
flags.DEFINE_multi_string(
    "gin_file",
    [],
    "Gin file, looked up in the working directory, then in the package; may be repeated.",
)
flags.DEFINE_multi_string(
    "gin_bindings",
    [],
    "Gin binding, for example train.total_env_steps=100000; overrides the files; may be repeated.",
)
flags.DEFINE_integer("seed", 0, "Seed of all random draws.", lower_bound=0)
flags.DEFINE_enum(
    "if_exists",
    "resume",
    ["resume", "fail", "new"],
    "If --root_dir already holds a run: resume it, fail, or start in a new folder.",
)
flags.DEFINE_enum("strategy", "auto", STRATEGIES, "The tf.distribute strategy.")
# TF-Agents' strategy_utils also defines --tpu. Overriding allows both definitions in either order.
# The later one replaces the value, so `common()` keeps the parsed values.
flags.DEFINE_string(
    "tpu",
    None,
    "The TPU: its name, its address grpc://host:port, or local.",
    allow_override=True,
)
flags.DEFINE_integer(
    "num_logical_cpus",
    1,
    "Splits the CPU into this many logical devices, to try a strategy without hardware.",
    lower_bound=1,
)
flags.DEFINE_boolean(
    "allow_code",
    False,
    "Import the Python modules that the configuration in --root_dir names; only for folders that "
    "you trust.",
)
flags.DEFINE_boolean(
    "deterministic_ops", False, "Use only bitwise reproducible ops; fail on others."
)


@dataclasses.dataclass(frozen=True)
class CommonFlags(StartOptions):
    """The values of the common flags on the command line."""

    root_dir: str | None
    gin_file: tuple[str, ...]
    gin_bindings: tuple[str, ...]
    tpu: str | None
    allow_code: bool


_NAMES = [field.name for field in dataclasses.fields(CommonFlags)]
_DEFAULTS = {name: flags.FLAGS[name].default for name in _NAMES}  # some binaries lack some flags
_captured: list[CommonFlags] = []


def capture() -> CommonFlags:
    """Stores the values that absl has just parsed; `tfrl.launch.app.run` calls it.

    Returns:
      The values; the default of a flag that the binary does not have.
    """
    values: dict[str, Any] = {
        name: flags.FLAGS[name].value if name in flags.FLAGS else _DEFAULTS[name] for name in _NAMES
    }
    values["gin_file"] = tuple(values["gin_file"] or ())
    values["gin_bindings"] = tuple(values["gin_bindings"] or ())
    _captured[:] = [CommonFlags(**values)]
    return _captured[0]


def common() -> CommonFlags:
    """Returns the common flags of this process.

    Raises:
      RuntimeError: Called before the command line was parsed.
    """
    if not _captured:
        raise RuntimeError("flags.common() was called before tfrl.launch.app.run parsed the flags")
    return _captured[0]


def check_strategy(strategy: str, tpu: str | None = None, num_logical_cpus: int = 1) -> None:
    """Checks the strategy as far as possible before TensorFlow is imported.

    Args:
      strategy: One of `STRATEGIES`.
      tpu: Value of `--tpu`.
      num_logical_cpus: Value of `--num_logical_cpus`.

    Raises:
      UserError: Contradictory flags, or a malformed or missing TF_CONFIG.
    """
    choose(strategy, tpu=tpu, num_logical_cpus=num_logical_cpus)


def strategy_from_flags(
    values: CommonFlags, log: Callable[[str], None] | None = None
) -> "tf.distribute.Strategy":
    """Creates the strategy of the flags; to call right after `configure_tensorflow`.

    Args:
      values: The common flags.
      log: Takes lines about waiting for other workers.

    Returns:
      The strategy.

    Raises:
      UserError: Devices or workers are missing.
    """
    from tfrl.distribute import make_strategy

    # An evaluator may wait for checkpoints without a limit.
    seconds: Any = flags.FLAGS["wait_seconds"].value if "wait_seconds" in flags.FLAGS else math.inf
    return make_strategy(
        values.strategy,
        tpu=values.tpu,
        num_logical_cpus=values.num_logical_cpus,
        log=log,
        **({"startup_seconds": seconds} if math.isfinite(seconds) else {}),
    )


def configure_tensorflow(values: CommonFlags) -> None:
    """Applies `--num_logical_cpus` and `--deterministic_ops`, and silences TensorFlow's hints.

    Call it before TensorFlow computes anything.

    Args:
      values: The common flags.

    Raises:
      UserError: TensorFlow has already started.
    """
    import tensorflow as tf

    from tfrl.distribute import make_logical_cpus

    if os.environ.get("TF_CPP_MIN_LOG_LEVEL") != "0":
        tf.get_logger().setLevel("ERROR")
    make_logical_cpus(values.num_logical_cpus)
    if values.deterministic_ops:
        tf.config.experimental.enable_op_determinism()
