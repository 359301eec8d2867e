"""Optional dependencies: imported when asked for, answered with the install command otherwise."""

import importlib
import importlib.util
import types

from tfrl.errors import UserError

# Extras that TensorFlow 2.15 comes with: what else is to be said of them.
_OF_2_15 = "on Linux with Python 3.10 or 3.11, where it brings TensorFlow 2.15"
_AGENTS = "tf-agents"


def require(
    module_name: str, extra: str, thing: str = "", note: str = "", instead: str = ""
) -> types.ModuleType:
    """Imports an optional dependency.

    Args:
      module_name: The module to import, for example `"wandb"` or `"PIL.Image"`.
      extra: The extra of the package that installs it.
      thing: What asks for it, for the message; the module's name by default.
      note: What the message says of the installation.
      instead: What serves as well, for the message.

    Returns:
      The module.

    Raises:
      UserError: The module is not installed. An error inside an installed module stays as it is.
    """
    try:
        return importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        top = module_name.partition(".")[0]
        if error.name is None or error.name.partition(".")[0] != top:
            raise
        remedy = f"Install it with: pip install 'tfrl[{extra}]'"
        remedy += f" {note}" if note else ""
        remedy += f"; or use {instead}." if instead else ""
        raise UserError(
            thing or f"Optional dependency {module_name}",
            expected=f"the extra '{extra}' to be installed",
            got=f"no module named {error.name}",
            remedy=remedy,
        ) from error


def require_reverb() -> types.ModuleType:
    """Imports Reverb.

    Raises:
      UserError: It is not installed.
    """
    instead = "tfrl.replay.InGraphReplay, which needs no server"
    return require("reverb", "reverb", "Replay on Reverb", _OF_2_15, instead)


def require_tf_agents(thing: str) -> types.ModuleType:
    """Imports TF-Agents.

    Args:
      thing: What asks for it, for the message.

    Raises:
      UserError: It is not installed, or finds another Keras than the one that it is written for.
    """
    if importlib.util.find_spec("tf_agents"):
        _check_keras_2(thing)
    instead = "tfrl's own agents, networks and environments, which need none of it"
    return require("tf_agents", _AGENTS, thing, _OF_2_15, instead)


def _check_keras_2(thing: str) -> None:
    # tf.keras of TensorFlow 2.15 does not say.
    version = getattr(importlib.import_module("tensorflow").keras, "__version__", "2.15")
    if not version.startswith("2."):
        raise UserError(
            thing,
            expected="Keras 2 as tf.keras, for which TF-Agents is written",
            got=f"Keras {version}",
            remedy="Set TF_USE_LEGACY_KERAS=1 before the program imports TensorFlow.",
        )
