"""Renders states of device environments with Gymnasium's renderers."""

import functools
import os
from typing import Any

import numpy as np

from tfrl.errors import UserError


@functools.cache
def _renderer(env_id: str) -> Any:
    """Makes the rendering Gymnasium environment, once per process."""
    os.environ.setdefault("SDL_VIDEODRIVER", "dummy")  # there may be no screen
    import gymnasium

    try:
        import pygame  # noqa: F401  (Gymnasium imports it only when it draws)
    except ModuleNotFoundError as error:
        raise UserError(
            f"rendering {env_id}",
            expected="pygame, which Gymnasium renders with",
            got=f"no module named {error.name}",
            remedy="Install it with: pip install pygame",
        ) from error
    env = gymnasium.make(env_id, render_mode="rgb_array")
    env.reset(seed=0)
    return env.unwrapped


def draw(env_id: str, **attributes: Any) -> np.ndarray:
    """Draws one state of a Gymnasium environment.

    Args:
      env_id: Gymnasium's name of the environment.
      **attributes: Attributes to set before rendering, such as `state`.

    Returns:
      uint8 RGB [H, W, 3].

    Raises:
      UserError: If pygame is not installed.
    """
    env = _renderer(env_id)
    for name, value in attributes.items():
        setattr(env, name, value)
    return np.array(env.render(), np.uint8)
