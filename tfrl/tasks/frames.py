"""Frames of any environment as RGB pictures of one even size."""

from typing import Any

import numpy as np

from tfrl.errors import UserError


class FrameStandard:
    """Turns frames into uint8 RGB of the first one's size, made even.

    Grey frames are repeated in three channels and an alpha channel is dropped. An odd height or
    width gets its last row or column twice, as H.264 asks for even ones. A later frame of another
    size loses what is too much at its lower right, and is filled up in black.
    """

    def __init__(self) -> None:
        """The first frame decides the size."""
        self._size: tuple[int, int] | None = None

    def __call__(self, frame: Any) -> np.ndarray:
        """Returns a frame as uint8 `[H, W, 3]`.

        Args:
          frame: uint8 `[h, w]`, `[h, w, 1]`, `[h, w, 3]` or `[h, w, 4]`.

        Raises:
          UserError: For anything else.
        """
        picture = as_rgb(frame)
        if self._size is None:
            self._size = (picture.shape[0], picture.shape[1])
        height, width = self._size
        if picture.shape[:2] != self._size:
            picture = picture[:height, :width]
            lacking = (height - picture.shape[0], width - picture.shape[1])
            picture = np.pad(picture, ((0, lacking[0]), (0, lacking[1]), (0, 0)))
        return np.pad(picture, ((0, height % 2), (0, width % 2), (0, 0)), mode="edge")


def as_rgb(frame: Any) -> np.ndarray:
    """Returns a grey, RGB or RGBA frame as uint8 `[H, W, 3]`, copied; else a UserError."""
    picture = np.array(frame) if frame is not None else np.array(None)
    if picture.dtype == np.uint8 and picture.ndim == 2:
        picture = picture[..., None]
    shape = picture.shape
    if picture.dtype != np.uint8 or picture.ndim != 3 or shape[-1] not in (1, 3, 4) or 0 in shape:
        raise UserError(
            "env.render() for a clip",
            expected="a picture, uint8 [H, W], [H, W, 1], [H, W, 3] or [H, W, 4]",
            got=type(frame).__name__
            if picture.dtype == object
            else f"{picture.dtype} {list(picture.shape)}",
            remedy="Correct the render method of the environment.",
        )
    return np.repeat(picture, 3, axis=-1) if shape[-1] == 1 else picture[..., :3]
