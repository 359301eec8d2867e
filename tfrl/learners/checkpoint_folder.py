"""The folder of a Learner's checkpoint, without the Learner.

    <path>/
      rl_module/<module_id>/            a checkpoint folder of `storage.checkpoint_format`
      optimizer/<module_id>/<name>/     the same
      manifest.json                     schema and tfrl version, what there is, shapes and dtypes,
                                        counters and metrics, modules and configs as descriptions
      COMPLETE                          written last: size and sha256 of the manifest

The data are ordinary TensorFlow checkpoints; nothing is pickled. Every folder of variables can be
read alone.
"""

import json
import os
import pathlib
import urllib.parse
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from tfrl._version import __version__
from tfrl.errors import UserError
from tfrl.storage import checkpoint_format, files
from tfrl.storage.checkpoint_format import DamagedCheckpointError, DataWriter

# Raise it when the layout or the manifest changes its meaning.
SCHEMA_VERSION = 1
FORMAT = "tfrl learner"

MODULES, OPTIMIZERS = "rl_module", "optimizer"
# Where a component with variables is in the nested state: ("rl_module", id), or
# ("optimizer", id, name).
Keys = tuple[str, ...]
Variables = dict[Keys, Mapping[str, np.ndarray]]


def variables_of(state: Mapping[str, Any]) -> Variables:
    """Returns the components of a nested state that are made of variables."""
    found: Variables = {(MODULES, m): v for m, v in state.get(MODULES, {}).items()}
    for module_id, optimizers in state.get(OPTIMIZERS, {}).items():
        found.update({(OPTIMIZERS, module_id, name): v for name, v in optimizers.items()})
    return found


def write(
    folder: pathlib.Path,
    state: Mapping[str, Any],
    described: Mapping[str, Any],
    writers: dict[Keys, DataWriter],
) -> None:
    """Writes a state into a folder that does not exist yet.

    Args:
      folder: Where to write; its parent exists.
      state: The nested state of a learner.
      described: What else the manifest shall hold.
      writers: Kept from save to save; writers of components that are gone leave it.
    """
    components = variables_of(state)
    for gone in set(writers) - set(components):
        del writers[gone]
    folder.mkdir()
    for keys, values in components.items():
        part = _folder(folder, keys)
        part.parent.mkdir(parents=True, exist_ok=True)
        writer = writers.setdefault(keys, DataWriter())
        step = int(state.get("weights_seq_no", 0))
        checkpoint_format.write(part, writer, step, values, {}, None)
    manifest = {
        "format": FORMAT,
        "schema_version": SCHEMA_VERSION,
        "tfrl_version": __version__,
        "components": [list(keys) for keys in components],
        "variables": {"/".join(keys): _shapes(values) for keys, values in components.items()},
        "values": _plain({k: v for k, v in state.items() if k not in (MODULES, OPTIMIZERS)}),
        **described,
    }
    text = files.to_json(manifest, indent=1)
    (folder / checkpoint_format.MANIFEST).write_text(text + "\n", encoding="utf-8")
    checkpoint_format.seal(folder)


def _shapes(values: Mapping[str, np.ndarray]) -> dict[str, Any]:
    dtypes = {path: tf.as_dtype(v.dtype).name for path, v in values.items()}
    return {path: {"shape": list(v.shape), "dtype": dtypes[path]} for path, v in values.items()}


def _plain(values: dict[str, Any]) -> dict[str, Any]:
    """The values, after making sure that JSON gives back the same."""
    if json.loads(files.to_json(values)) != values:
        raise TypeError(f"expected counters and metrics out of plain JSON types, got {values!r}")
    return values


def check_replaceable(final: pathlib.Path) -> None:
    """Refuses to replace anything but a learner checkpoint or an empty folder.

    Raises:
      UserError: Saying what is there.
    """
    if not final.exists() and not final.is_symlink():
        return
    if final.is_dir() and not final.is_symlink():
        if not any(final.iterdir()) or _format_of(final) == FORMAT:
            return
        got = "a folder with other content"
    else:
        got = "a symbolic link" if final.is_symlink() else "a file"
    raise UserError(
        f"learner checkpoint {final}",
        expected="a path that is free, or a learner checkpoint to be replaced",
        got=got,
        remedy="Choose another path; nothing was written.",
    )


def _format_of(folder: pathlib.Path) -> Any:
    try:
        content = files.from_json((folder / checkpoint_format.MANIFEST).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return content.get("format") if isinstance(content, dict) else None


def open_folder(path: Any) -> tuple[pathlib.Path, dict[str, Any]]:
    """Finds a checkpoint and reads its manifest.

    Returns:
      The folder as it lies on the disk, and the manifest.

    Raises:
      UserError: There is none, it is damaged, or of another schema.
    """
    folder = absolute(path)
    aside = folder.parent / f"{files.REPLACED}{folder.name}"
    if not folder.exists() and aside.exists():
        folder = aside  # A save was killed between its two renames.
    if _format_of(folder) != FORMAT and not (folder / checkpoint_format.COMPLETE).exists():
        found = "a folder of another kind" if folder.is_dir() else "nothing there"
        raise UserError(
            f"learner checkpoint {folder}",
            expected="a folder that Learner.save_to_path wrote",
            got="a file" if folder.is_file() else found,
            remedy="Check the path; a run folder's checkpoints are restored by its workflow.",
        )
    try:
        checkpoint_format.verify(folder)
    except DamagedCheckpointError as error:
        raise _damaged(folder, error) from error
    manifest = _manifest_of(folder)
    version = manifest.get("schema_version")
    if manifest.get("format") != FORMAT or version != SCHEMA_VERSION:
        raise UserError(
            f"learner checkpoint {folder}",
            expected=f"the format {FORMAT!r} of schema version {SCHEMA_VERSION}",
            got=f"{manifest.get('format', 'another format')!r} of schema version {version}, "
            f"written by tfrl {manifest.get('tfrl_version', 'unknown')}",
            remedy="Use the version of tfrl that wrote it.",
        )
    manifest = {"options": {}, "added": [], **manifest}
    wrong = [name for name, form in _FORMS.items() if not _fits(manifest.get(name), form)]
    if wrong:
        reason = f"{checkpoint_format.MANIFEST} has no {', '.join(wrong)} of the form that it needs"
        raise _damaged(folder, DamagedCheckpointError(reason))
    return folder, manifest


# What a manifest holds: a type, a list of what the first item says, a dict of what its value says.
_FORMS: dict[str, Any] = {
    "modules": {"": {"": object}},
    "configs": {"": {"": object}},
    "options": {
        "check_numerics": str,
        "policies_to_train": (type(None), str, [str]),
        "shared": {"": [str]},
    },
    "added": [str],
    "components": [[str]],
    "values": {"": object},
}


def _fits(value: Any, form: Any) -> bool:
    if isinstance(form, tuple):
        return any(_fits(value, one) for one in form)
    if isinstance(form, list):
        return isinstance(value, list) and all(_fits(x, form[0]) for x in value)
    if isinstance(form, dict) and "" in form:
        return isinstance(value, dict) and all(_fits(x, form[""]) for x in value.values())
    if isinstance(form, dict):
        return isinstance(value, dict) and all(
            _fits(value[name], one) for name, one in form.items() if name in value
        )
    return isinstance(value, form)


def _manifest_of(folder: pathlib.Path) -> dict[str, Any]:
    try:
        text = (folder / checkpoint_format.MANIFEST).read_text(encoding="utf-8")
        content = files.from_json(text)
    except ValueError as error:
        reason = f"{checkpoint_format.MANIFEST} is no JSON ({error})"
        raise _damaged(folder, DamagedCheckpointError(reason)) from error
    if not isinstance(content, dict):
        reason = f"{checkpoint_format.MANIFEST} is no JSON object"
        raise _damaged(folder, DamagedCheckpointError(reason))
    return content


def read_all(folder: pathlib.Path, components: list[Keys]) -> Variables:
    """Reads and verifies the variables of components.

    Raises:
      UserError: Naming the folder and the file that is not as it was written.
    """
    found: Variables = {}
    for keys in components:
        part = _folder(folder, keys)
        try:
            found[keys], _ = checkpoint_format.read(part)
        except DamagedCheckpointError as error:
            raise _damaged(part, error) from error
    return found


def _damaged(folder: pathlib.Path, error: Exception) -> UserError:
    return UserError(
        f"learner checkpoint {folder}",
        expected="a checkpoint as it was written",
        got=f"a damaged one: {error}",
        remedy="Use another save; other components of this one can be restored by name.",
    )


def absolute(path: Any) -> pathlib.Path:
    """Returns a path that does not depend on the working directory; `~` is the home."""
    return pathlib.Path(os.path.abspath(os.path.expanduser(os.fspath(path))))


def _folder(root: pathlib.Path, keys: Keys) -> pathlib.Path:
    return root.joinpath(*[_folder_name(key) for key in keys])


def _folder_name(name: str) -> str:
    """A name as one part of a path: letters, digits and `_.-~` stay, anything else is %XX."""
    quoted = urllib.parse.quote(name, safe=" ")
    return quoted.replace(".", "%2E") if set(quoted) <= {"."} else quoted
