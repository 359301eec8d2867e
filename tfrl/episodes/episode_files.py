"""Episodes on disk, in NumPy's npz format without pickle."""

import json
import pathlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from tfrl.episodes.single_agent_episode import SingleAgentEpisode
from tfrl.errors import UserError
from tfrl.storage import files

_SUFFIX = ".episodes.npz"
_FORM = "form"


def write_episodes(path: pathlib.Path, episodes: Sequence[SingleAgentEpisode]) -> None:
    """Writes episodes to one file atomically.

    Args:
      path: The file; its name ends with `.episodes.npz`.
      episodes: The episodes.

    Raises:
      UserError: For another name, or if the file cannot be written.
    """
    if not path.name.endswith(_SUFFIX):
        raise UserError(f"episodes {path}", expected=f"a name that ends with {_SUFFIX}", got=path)
    arrays: dict[str, np.ndarray] = {}
    form = [_encode(episode.get_state(), arrays) for episode in episodes]
    temporary = files.temporary_name(path.parent)
    try:
        with temporary.open("wb") as file:
            np.savez_compressed(file, **{_FORM: np.array(json.dumps(form))}, **arrays)
        temporary.replace(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise files.unwritable(f"episodes {path}", error) from error


def read_episodes(folder: str | pathlib.Path) -> list[SingleAgentEpisode]:
    """Reads all episodes of a folder, ordered by file name, or of one file.

    `learner.update_from_episodes(read_episodes(folder))` trains on them.

    Args:
      folder: The folder of `tfrl-serve --log_episodes`, or one of its files.

    Raises:
      UserError: There are none, or a file is damaged.
    """
    root = pathlib.Path(folder).expanduser()
    paths = [root] if root.is_file() else sorted(root.glob(f"*{_SUFFIX}"))
    if not paths:
        raise UserError(f"episodes {root}", expected=f"files *{_SUFFIX}", got="no such file")
    return [episode for path in paths for episode in _read(path)]


def _read(path: pathlib.Path) -> list[SingleAgentEpisode]:
    try:
        with np.load(path, allow_pickle=False) as arrays:
            states = [_decode(part, arrays) for part in json.loads(str(arrays[_FORM]))]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"episodes {path}",
            expected="a file from write_episodes",
            got=str(error) or type(error).__name__,
            remedy="Remove it, or restore it from a backup.",
        ) from error
    return [SingleAgentEpisode.from_state(state) for state in states]


def _encode(value: Any, arrays: dict[str, np.ndarray]) -> Any:
    """Returns a nest in JSON types; moves its arrays to a dict."""
    if isinstance(value, dict):
        return {"dict": [[key, _encode(item, arrays)] for key, item in value.items()]}
    if isinstance(value, list | tuple):
        return {type(value).__name__: [_encode(item, arrays) for item in value]}
    if isinstance(value, np.ndarray | np.generic):
        name = f"array_{len(arrays)}"
        arrays[name] = np.asarray(value)
        return {"array": name}
    return {"value": value}


def _decode(form: Any, arrays: Any) -> Any:
    ((kind, content),) = form.items()
    if kind == "dict":
        return {key: _decode(item, arrays) for key, item in content}
    if kind in ("list", "tuple"):
        items = [_decode(item, arrays) for item in content]
        return tuple(items) if kind == "tuple" else items
    return arrays[content] if kind == "array" else content
