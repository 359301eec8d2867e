"""Rows of metrics to Weights & Biases, when it is installed and asked for."""

import os
import pathlib
import socket
import urllib.parse
from collections.abc import Mapping
from typing import Any

import numpy as np

from tfrl import extras
from tfrl.experiment.recorder_base import Recorder, cell
from tfrl.storage import files

_DEFAULT_URL = "https://api.wandb.ai"


def _reachable(url: str, timeout: float = 2.0) -> bool:
    """Whether a server takes connections."""
    parts = urllib.parse.urlparse(url)
    port = parts.port or (80 if parts.scheme == "http" else 443)
    try:
        socket.create_connection((parts.hostname or "", port), timeout).close()
    except OSError:
        return False
    return True


def choose_mode(api_key: str | None) -> str:
    """Returns `online` where a key and the server are there, else `offline`.

    `WANDB_MODE` overrules. An offline run is kept in its folder; `wandb sync` sends it later.

    Args:
      api_key: The key that wandb has found, or None.
    """
    asked = os.environ.get("WANDB_MODE")
    if asked:
        return asked
    url = os.environ.get("WANDB_BASE_URL", _DEFAULT_URL)
    return "online" if api_key and _reachable(url) else "offline"


class WandbRecorder(Recorder):
    """Sends rows as `wandb.log(row, step=step)`.

    W&B keeps what it has of a step and ignores earlier steps, so a resumed run, which writes the
    same rows again, leaves no double ones there.
    """

    def __init__(
        self,
        directory: str | pathlib.Path,
        *,
        project: str = "tfrl",
        name: str | None = None,
        run_id: str | None = None,
        config: Mapping[str, Any] | None = None,
    ):
        """Starts (or goes on with) a W&B run.

        Args:
          directory: Where wandb keeps its files.
          project: The project's name.
          name: The run's name, or None for one that W&B invents.
          run_id: A stable id, so that a resumed run continues the same one.
          config: What to show as the run's configuration.

        Raises:
          UserError: wandb is not installed.
        """
        wandb = extras.require("wandb", "wandb")
        directory = pathlib.Path(directory)
        directory.mkdir(parents=True, exist_ok=True)
        self._wandb = wandb
        self._run = wandb.init(
            project=project,
            name=name,
            id=run_id,
            resume="allow" if run_id else None,
            dir=str(directory),
            config=files.plain(config or {}),
            mode=choose_mode(wandb.api.api_key),
        )
        self._closed = False

    def write(self, step: int, row: Mapping[str, Any]) -> None:
        """Sends a row."""
        self._run.log({name: cell(name, value) for name, value in row.items()}, step=int(step))

    def video(self, tag: str, frames: Any, step: int, fps: float = 30.0) -> None:
        """Sends a video of uint8 frames `[T, H, W, 3]`."""
        channels_first = np.asarray(frames).transpose(0, 3, 1, 2)  # [T, 3, H, W]
        video = self._wandb.Video(channels_first, fps=int(round(fps)), format="gif")
        self._run.log({tag: video}, step=int(step))

    def close(self) -> None:
        """Ends the run."""
        if not self._closed:
            self._closed = True
            self._run.finish()
