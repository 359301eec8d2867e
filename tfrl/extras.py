"""Optional dependencies: imported when asked for, answered with the install command otherwise."""

import importlib
import types

from tfrl.errors import UserError


def require(module_name: str, extra: str) -> types.ModuleType:
    """Imports an optional dependency.

    Args:
      module_name: The module to import, for example `"wandb"` or `"PIL.Image"`.
      extra: The extra of the package that installs it.

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
        raise UserError(
            f"Optional dependency {module_name}",
            expected=f"the extra '{extra}' to be installed",
            got=f"no module named {error.name}",
            remedy=f"Install it with: pip install 'tfrl[{extra}]'",
        ) from error
