"""Saving a Learner to a folder and restoring it, whole or by component.

    <path>/
      rl_module/<module_id>/            a checkpoint folder of `storage.checkpoint_format`
      optimizer/<module_id>/<name>/     the same
      manifest.json                     schema and tfrl version, what there is, shapes and dtypes,
                                        counters and metrics, modules and configs as descriptions
      COMPLETE                          written last: size and sha256 of the manifest

The data are ordinary TensorFlow checkpoints; nothing is pickled. Every folder of variables can be
read alone. The folder is written under a temporary name and renamed, so that `path` holds a
complete checkpoint or none; only one process may write at a time.
"""

from __future__ import annotations

import json
import os
import pathlib
import urllib.parse
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import tensorflow as tf

from tfrl import seeding
from tfrl._version import __version__
from tfrl.errors import UserError, did_you_mean
from tfrl.learners.learner_state import TRAINED
from tfrl.storage import checkpoint_format, codec, files
from tfrl.storage.checkpoint_format import DamagedCheckpointError

if TYPE_CHECKING:
    from tfrl.learners.learner import Learner

L = TypeVar("L", bound="Learner")

# Increase it when the meaning of the layout or the manifest changes.
SCHEMA_VERSION = 1
FORMAT = "tfrl learner"

MODULES, OPTIMIZERS = "rl_module", "optimizer"
# Keys of a component with variables in the nested state: ("rl_module", id), or ("optimizer", id,
# name).
Keys = tuple[str, ...]
Variables = dict[Keys, Mapping[str, np.ndarray]]


def variables_of(state: Mapping[str, Any]) -> Variables:
    """Returns the components of a nested state that consist of variables."""
    variables: Variables = {(MODULES, m): v for m, v in state.get(MODULES, {}).items()}
    for module_id, optimizers in state.get(OPTIMIZERS, {}).items():
        variables.update({(OPTIMIZERS, module_id, name): v for name, v in optimizers.items()})
    return variables


def write(folder: pathlib.Path, state: Mapping[str, Any], described: Mapping[str, Any]) -> None:
    """Writes a state into a folder that does not exist yet.

    Args:
      folder: The folder to write; its parent exists.
      state: The nested state of a learner.
      described: Other content of the manifest.
    """
    components = variables_of(state)
    folder.mkdir()
    for keys, values in components.items():
        part = _folder(folder, keys)
        part.parent.mkdir(parents=True, exist_ok=True)
        step = int(state.get("weights_seq_no", 0))
        checkpoint_format.write(part, step, values, {}, None)
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
    """The values, after a check that they survive JSON."""
    if json.loads(files.to_json(values)) != values:
        raise TypeError(f"expected counters and metrics of plain JSON types, got {values!r}")
    return values


def check_replaceable(final: pathlib.Path) -> None:
    """Raises an error unless the folder is a learner checkpoint, empty or missing.

    Raises:
      UserError: Names the existing content.
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
        expected="an unused path, or a learner checkpoint to replace",
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
      The folder on disk, and the manifest.

    Raises:
      UserError: There is none, it is damaged, or of another schema.
    """
    folder = absolute(path)
    aside = folder.parent / f"{files.REPLACED}{folder.name}"
    if not folder.exists() and aside.exists():
        folder = aside  # The save was killed between its two renames.
    if _format_of(folder) != FORMAT and not (folder / checkpoint_format.COMPLETE).exists():
        got = "a different kind of folder" if folder.is_dir() else "no such folder"
        raise UserError(
            f"learner checkpoint {folder}",
            expected="a folder that Learner.save_to_path wrote",
            got="a file" if folder.is_file() else got,
            remedy="Check the path; restore a run folder's checkpoints with its workflow.",
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
            got=f"{manifest.get('format', 'an unknown format')!r} of schema version {version}, "
            f"written by tfrl {manifest.get('tfrl_version', 'unknown')}",
            remedy="Use the version of tfrl that wrote it.",
        )
    manifest = {"options": {}, "added": [], **manifest}
    wrong = [name for name, form in _FORMS.items() if not _fits(manifest.get(name), form)]
    if wrong:
        reason = f"{checkpoint_format.MANIFEST} has no valid {', '.join(wrong)}"
        raise _damaged(folder, DamagedCheckpointError(reason))
    return folder, manifest


# Schema of a manifest: a type, a list with its item's schema, a dict with its value's schema.
_FORMS: dict[str, Any] = {
    "modules": {"": {"": object}},
    "configs": {"": {"": object}},
    "options": {
        "check_numerics": str,
        "remainder": str,
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
        reason = f"{checkpoint_format.MANIFEST} is not valid JSON ({error})"
        raise _damaged(folder, DamagedCheckpointError(reason)) from error
    if not isinstance(content, dict):
        reason = f"{checkpoint_format.MANIFEST} is not a JSON object"
        raise _damaged(folder, DamagedCheckpointError(reason))
    return content


def read_all(folder: pathlib.Path, components: list[Keys]) -> Variables:
    """Reads and verifies the variables of components.

    Raises:
      UserError: Names the folder and the damaged file.
    """
    variables: Variables = {}
    for keys in components:
        part = _folder(folder, keys)
        try:
            variables[keys], _ = checkpoint_format.read(part)
        except DamagedCheckpointError as error:
            raise _damaged(part, error) from error
    return variables


def _damaged(folder: pathlib.Path, error: Exception) -> UserError:
    return UserError(
        f"learner checkpoint {folder}",
        expected="an intact checkpoint",
        got=f"a damaged checkpoint: {error}",
        remedy="Use another checkpoint, or restore the intact components by name.",
    )


def absolute(path: Any) -> pathlib.Path:
    """Returns an absolute path; expands `~`."""
    return pathlib.Path(os.path.abspath(os.path.expanduser(os.fspath(path))))


def _folder(root: pathlib.Path, keys: Keys) -> pathlib.Path:
    return root.joinpath(*[_folder_name(key) for key in keys])


def _folder_name(name: str) -> str:
    """A name as one path component: other characters than letters, digits and `_.-~` become %XX."""
    quoted = urllib.parse.quote(name, safe=" ")
    return quoted.replace(".", "%2E") if set(quoted) <= {"."} else quoted


def save_to_path(learner: Learner, path: Any) -> pathlib.Path:
    """Saves a learner's whole state; replaces an earlier save at the same path.

    Args:
      learner: A built learner.
      path: The folder; parents are created.

    Returns:
      The folder.

    Raises:
      UserError: The path is not a learner checkpoint, or the folder cannot be written.
    """
    final = absolute(path)
    remedy = "Free disk space or choose another path; the earlier checkpoint is intact."
    with checkpoint_format.writing(f"learner checkpoint {final}", remedy):
        final.parent.mkdir(parents=True, exist_ok=True)
        files.recover(final)
        check_replaceable(final)
        files.remove_temporaries(final.parent, owner=final.name)
        described = {
            "modules": _described("module", learner.modules),
            "configs": _described("config", learner.configs),
            "options": _options(learner),
            # Added in this order, after `build`.
            "added": list(getattr(learner, "_added", ())),
        }
        with checkpoint_format.replacing(final, owner=final.name) as temporary:
            write(temporary, learner.get_state(), described)
    return final


def _assembled(
    cls: type[L], modules: dict[str, Any], added: list[str], kwargs: dict[str, Any]
) -> L:
    """Builds a learner in its original order: modules added later get separate optimizers."""
    first = {m: x for m, x in modules.items() if m not in added} or modules
    config, chosen = kwargs.pop("config"), kwargs.pop("policies_to_train", None)
    several = isinstance(config, Mapping)
    own = {m: c for m, c in config.items() if m not in modules or m in first} if several else config
    learner = cls(first, config=own, **kwargs)
    learner.build(seeding.key(0))  # Its values are replaced right after.
    for module_id in (m for m in added if m not in first):
        overrides = config.get(module_id) if several else config
        learner.add_module(module_id, modules[module_id], config_overrides=overrides)
    if chosen is not None:
        learner.train_only(chosen)
    return learner


# Arguments of a learner's constructor that a manifest holds.
_OPTIONS = ("check_numerics", "policies_to_train", "shared", "remainder")

# Placeholder for a function in the manifest.
_FUNCTION = "a function"


def _options(learner: Learner) -> dict[str, Any]:
    """The arguments of a learner's constructor that JSON can represent."""
    chosen = getattr(learner, "policies_to_train", None)
    if callable(chosen):
        chosen = _FUNCTION
    remainder = getattr(learner, "remainder", "error")
    shared: dict[str, list[str]] = {}
    for (borrower, group), (owner, lent) in getattr(learner, "_shared", {}).items():
        shared.setdefault(f"{owner}/{lent}", []).append(f"{borrower}/{group}")
    return {
        "check_numerics": getattr(learner, "check_numerics", "skip"),
        "policies_to_train": chosen if chosen is None or chosen == _FUNCTION else sorted(chosen),
        "shared": shared,
        # An argument that a subclass may lack.
        **({} if remainder == "error" else {"remainder": remainder}),
    }


def restore_from_path(learner: Learner, path: Any, component: str | None = None) -> None:
    """Restores a save, or a part of it; if anything does not fit, nothing changes.

    Args:
      learner: A built learner with the same variables in the restored parts.
      path: The folder.
      component: For example "rl_module", "rl_module/<module_id>", "optimizer/<module_id>",
        "optimizer/<module_id>/<name>", "counters" or "metrics"; None for all. Weights include their
        `weights_seq_no`.

    Raises:
      UserError: For no checkpoint, a damaged one (names the file), or an unknown component; or
        lists every missing, extra, mis-shaped or mis-typed variable.
    """
    if component is not None and not isinstance(component, str):
        raise UserError(
            "component",
            expected='the name of a component, such as "rl_module", or None for all',
            got=repr(component),
            remedy="Restore components one at a time.",
        )
    folder, manifest = open_folder(path)
    present = learner.get_state()
    wanted = _chosen(_components(manifest), _names(present), component, folder)
    stored = read_all(folder, [keys for name, keys in wanted.items() if keys])
    expected = {
        keys: values
        for keys, values in variables_of(present).items()
        if component is None or _within("/".join(keys), component)
    }
    _check_fit(folder, expected, stored, manifest["values"] if component is None else {}, present)
    state = {name: manifest["values"][name] for name, keys in wanted.items() if not keys}
    for keys, values in stored.items():
        _put(state, keys, values)
    if "rl_module" in state:  # as in the result of `get_state`
        state["weights_seq_no"] = manifest["values"]["weights_seq_no"]
    learner.set_state(state)


def from_checkpoint(cls: type[L], path: Any, modules: Any = None, **kwargs: Any) -> L:
    """Makes a built learner from a result of `save_to_path`.

    Args:
      cls: The Learner class.
      path: The folder.
      modules: `{module_id: module}` for modules without a description (such as a Keras model made
        by a lambda) or to be replaced; or the only module. The rest is built from the checkpoint:
        classes of the library, and `tfrl.loadable` ones.
      **kwargs: Arguments of `cls`. `config`, `check_numerics`, `policies_to_train` and `shared`
        default to the checkpoint's; functions and a strategy must be passed again.

    Returns:
      A learner of class `cls` with the saved state.

    Raises:
      UserError: As for `restore_from_path`; and lists all modules and configs that must be passed,
        each with the reason.
    """
    folder, manifest = open_folder(path)
    asked = kwargs.get("policies_to_train")
    described = manifest["modules"]
    if modules is not None and not isinstance(modules, Mapping):
        if len(described) != 1:
            raise UserError(
                "modules",
                expected=f"{{module_id: module}} for some of {', '.join(sorted(described))}",
                got=f"a single {type(modules).__name__} for {len(described)} modules",
                remedy="Pass a dict keyed by module id.",
            )
        modules = {next(iter(described)): modules}
    own_modules = dict(modules or {})
    unknown = sorted(set(own_modules) - set(described))
    if unknown:
        raise UserError(
            "modules",
            expected=f"module ids of {folder}: {', '.join(sorted(described))}",
            got=", ".join(unknown),
            remedy="Add new modules with add_module after restoring.",
        )
    reasons: list[str] = []
    built = _built("module", {m: d for m, d in described.items() if m not in own_modules}, reasons)
    # In the saved order.
    all_modules = {m: own_modules[m] if m in own_modules else built.get(m) for m in described}
    if "config" not in kwargs:
        kwargs["config"] = _built("config", manifest["configs"], reasons)
    options = manifest["options"]
    if options.get("policies_to_train") == _FUNCTION and "policies_to_train" not in kwargs:
        reasons.append("policies_to_train was a function (pass policies_to_train=...)")
    else:
        kwargs = {**{n: options[n] for n in _OPTIONS if n in options}, **kwargs}
    if reasons:
        raise UserError(
            f"from_checkpoint({str(folder)!r})",
            expected="modules and configs that can be built from their descriptions",
            got="; ".join(reasons),
            remedy="Pass modules={module_id: module} and config={module_id: ModuleConfig}.",
        )
    try:
        learner = _assembled(cls, all_modules, manifest["added"], kwargs)
    except UserError:
        raise
    except Exception as error:  # a class may raise anything for arguments from a file
        if not built:
            raise
        raise UserError(
            f"from_checkpoint({str(folder)!r})",
            expected="modules that can be built from their descriptions",
            got=f"{type(error).__name__}: {error}".splitlines()[0],
            remedy="Pass modules={module_id: module}, or use another checkpoint.",
        ) from error
    restore_from_path(learner, folder)
    if asked is not None:  # The state has the saved value.
        learner.train_only(asked)
    return learner


def _described(what: str, objects: Mapping[str, Any]) -> dict[str, Any]:
    """A description of each object, or the reason why there is none; never raises."""
    described: dict[str, Any] = {}
    for name, obj in objects.items():
        try:
            described[name] = {"description": codec.describe(obj, f"{what} {name!r}")}
        except UserError as error:
            described[name] = {"reason": f"{error.thing} is {error.got}"}
    return described


def _built(what: str, described: Mapping[str, Any], reasons: list[str]) -> dict[str, Any]:
    """Builds objects with a description; adds the reasons for others to `reasons`."""
    modules = {}
    for name, entry in described.items():
        if "description" not in entry:
            reasons.append(str(entry.get("reason", f"{what} {name!r} has no description")))
            continue
        try:
            modules[name] = codec.build(entry["description"], f"{what} {name!r}")
        except UserError as error:
            reasons.append(f"{error.thing} is {error.got}")
    return modules


def _components(manifest: Mapping[str, Any]) -> dict[str, Keys]:
    """`{name: keys}` of a checkpoint's components; no keys for those in the manifest."""
    components: dict[str, Keys] = {"/".join(keys): tuple(keys) for keys in manifest["components"]}
    return {**components, **{name: () for name in manifest["values"]}}


def _names(state: Mapping[str, Any]) -> list[str]:
    names = ["/".join(keys) for keys in variables_of(state)]
    return names + [name for name in state if name not in (MODULES, OPTIMIZERS)]


def _chosen(
    stored: dict[str, Keys], present: list[str], component: str | None, folder: pathlib.Path
) -> dict[str, Keys]:
    """The requested stored components."""
    if component is None:
        return stored
    chosen = {name: keys for name, keys in stored.items() if _within(name, component)}
    if chosen:
        return chosen
    if any(_within(name, component) for name in present):
        got, remedy = f"{component}, which is in this learner but not in the checkpoint", ""
    else:
        got, remedy = repr(component), did_you_mean(component, _prefixes(stored)) + " "
    raise UserError(
        "component",
        expected=f"a component of {folder}",
        got=got,
        remedy=f"{remedy}Available: {', '.join(stored)}.",
    )


def _prefixes(names: Mapping[str, Any]) -> set[str]:
    parts = [name.split("/") for name in names]
    return {"/".join(p[: n + 1]) for p in parts for n in range(len(p))}


def _within(name: str, component: str) -> bool:
    return name == component or name.startswith(f"{component}/")


def _put(state: dict[str, Any], keys: Keys, values: Any) -> None:
    for key in keys[:-1]:
        state = state.setdefault(key, {})
    state[keys[-1]] = values


def _check_fit(
    folder: pathlib.Path,
    expected: Variables,
    stored: Variables,
    stored_values: Mapping[str, Any],
    present: Mapping[str, Any],
) -> None:
    """Compares the variables of a learner with stored ones, by component."""
    problems = [f"no {'/'.join(k)}" for k in expected if k not in stored]
    problems += [f"unknown {'/'.join(k)}" for k in stored if k not in expected]
    # A learner with a function for it also accepts saved policies to train.
    known = (*present, TRAINED)
    problems += [f"unknown {name}" for name in stored_values if name not in known]
    for keys in (k for k in stored if k in expected):
        want, have = (
            {f"{'/'.join(keys)}/{path}": x for path, x in variables[keys].items()}
            for variables in (expected, stored)
        )
        problems += checkpoint_format.misfits(want, have)
    if problems:
        raise UserError(
            f"learner checkpoint {folder}",
            expected="the modules, optimizers, paths, shapes and dtypes of this learner",
            got="; ".join(problems),
            remedy="Match the modules and optimizers with add_module and remove_module, or restore "
            "only the components that fit.",
        )
