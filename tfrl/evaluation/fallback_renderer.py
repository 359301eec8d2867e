"""A small RGB renderer for environments that have none: observation bars, reward and step."""

from typing import Any

import numpy as np
import tensorflow as tf

from tfrl import extras

WIDTH, HEIGHT = 320, 240
_MARGIN, _TEXT_HEIGHT = 12, 44
_MAX_BARS = 64
_BACKGROUND, _INK, _AXIS, _BAR = (250, 250, 248), (40, 40, 40), (190, 190, 190), (52, 101, 164)


def draw(obs: Any, obs_spec: Any, reward: float, episode_return: float, step: int) -> np.ndarray:
    """Draws one observation with the step's numbers above it.

    An image observation is shown as it is; any other is a row of bars around zero, scaled by the
    bounds of its spec where they are finite, else squashed by x / (1 + |x|).

    Args:
      obs: One observation, a nest of arrays without batch axis.
      obs_spec: The nest of its specs.
      reward: Of the step that led here.
      episode_return: Sum of the rewards so far.
      step: Steps since the episode's start.

    Returns:
      uint8 RGB [240, 320, 3].
    """
    image = extras.require("PIL.Image", "video")
    drawing = extras.require("PIL.ImageDraw", "video")
    canvas = image.new("RGB", (WIDTH, HEIGHT), _BACKGROUND)
    pen = drawing.Draw(canvas)
    pen.text((_MARGIN, 8), f"step {step}   reward {reward:.3g}", fill=_INK)
    pen.text((_MARGIN, 24), f"return {episode_return:.5g}", fill=_INK)
    leaves = [np.asarray(x) for x in tf.nest.flatten(obs)]
    specs = tf.nest.flatten(obs_spec)
    picture = next((x for x in leaves if _is_image(x)), None)
    if picture is not None:
        _paste_image(canvas, image, picture)
    else:
        _draw_bars(pen, np.concatenate([_scaled(x, s) for x, s in zip(leaves, specs, strict=True)]))
    return np.asarray(canvas, np.uint8)


def _is_image(x: np.ndarray) -> bool:
    return x.dtype == np.uint8 and x.ndim == 3 and x.shape[-1] in (1, 3) and min(x.shape[:2]) > 7


def _scaled(x: np.ndarray, spec: Any) -> np.ndarray:
    """Maps values to [-1, 1], flat."""
    x = np.nan_to_num(x.astype(np.float64))
    low, high = getattr(spec, "minimum", None), getattr(spec, "maximum", None)
    squashed = x / (1.0 + np.abs(x))
    if low is None or high is None:
        return squashed.ravel()
    low = np.broadcast_to(np.asarray(low, np.float64), x.shape)
    high = np.broadcast_to(np.asarray(high, np.float64), x.shape)
    # Bounds near the largest float mean "no bound" as much as infinite ones.
    bounded = (np.abs(low) < 1e30) & (np.abs(high) < 1e30) & (high > low)
    span = np.where(bounded, high - low, 1.0)
    scaled = 2.0 * (x - np.where(bounded, low, 0.0)) / span - 1.0
    return np.clip(np.where(bounded, scaled, squashed), -1.0, 1.0).ravel()


def _draw_bars(pen: Any, values: np.ndarray) -> None:
    values = values[:_MAX_BARS]
    top, bottom = _TEXT_HEIGHT + _MARGIN, HEIGHT - _MARGIN
    zero, half = (top + bottom) / 2.0, (bottom - top) / 2.0
    slot = (WIDTH - 2 * _MARGIN) / max(1, len(values))
    for i, value in enumerate(values):
        left = _MARGIN + i * slot
        ends = sorted((zero, zero - value * half))
        pen.rectangle((left + 0.1 * slot, ends[0], left + 0.9 * slot, ends[1]), fill=_BAR)
    pen.line((_MARGIN, zero, WIDTH - _MARGIN, zero), fill=_AXIS)


def _paste_image(canvas: Any, image: Any, picture: np.ndarray) -> None:
    picture = np.repeat(picture, 3, axis=-1) if picture.shape[-1] == 1 else picture
    room = (WIDTH - 2 * _MARGIN, HEIGHT - _TEXT_HEIGHT - _MARGIN)
    factor = min(room[0] / picture.shape[1], room[1] / picture.shape[0])
    size = (max(1, int(picture.shape[1] * factor)), max(1, int(picture.shape[0] * factor)))
    # Nearest neighbour: the policy sees these very pixels.
    scaled = image.fromarray(picture).resize(size, resample=0)
    canvas.paste(scaled, ((WIDTH - size[0]) // 2, _TEXT_HEIGHT))
