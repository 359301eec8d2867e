"""The format of a checkpoint folder: writing, verification, reading, migration.

    ckpt-<step>/
      data.index, data.data-00000-of-00001   tf.train.Checkpoint(values={path: variable})
      manifest.json                          schema version, step, metric, keys, caller's data
      COMPLETE                               written last: size and sha256 of the files above

The data is an ordinary TensorFlow checkpoint: `tf.train.Checkpoint(values={path: variable})`
`.read("<folder>/data")` restores it without tfrl. Nothing is pickled.
"""

import contextlib
import functools
import hashlib
import pathlib
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from tfrl.errors import UserError
from tfrl.storage import files, working_copy

# Raise it when the meaning of stored values changes, and register a migration.
SCHEMA_VERSION = 3

DATA = "data"
MANIFEST = "manifest.json"
COMPLETE = "COMPLETE"

Values = dict[str, np.ndarray]
# (values, the caller's manifest) of one version -> (values, manifest) of the next version
Migration = Callable[[Values, dict[str, Any]], tuple[Values, dict[str, Any]]]


def _with_reward_outliers(values: Values, manifest: dict[str, Any]) -> Any:
    """Adds the field of RewardNormalize since version 2: whether a return was an outlier."""
    values = dict(values)
    for path, x in list(values.items()):
        above, result, below = path.partition("/env_state/")
        if result and below.startswith("env_state/") and below.endswith("own/returns"):
            values[f"{above}/env_state/info/reward_outlier"] = np.zeros(np.shape(x), bool)
    return values, manifest


def _with_evaluations(values: Values, manifest: dict[str, Any]) -> Any:
    """Adds the count of evaluations, which seeds their episodes since version 3."""
    if "progress/key" in values:
        values = {**values, "progress/evaluations": np.zeros([], np.int64)}
    return values, manifest


# {from_version: function to from_version + 1}
MIGRATIONS: dict[int, Migration] = {1: _with_reward_outliers, 2: _with_evaluations}

_SUFFIX = "/.ATTRIBUTES/VARIABLE_VALUE"
_OBJECT_GRAPH = "_CHECKPOINTABLE_OBJECT_GRAPH"


class DamagedCheckpointError(Exception):
    """The content of a checkpoint folder has changed since it was written."""


def _stored_name(path: str) -> str:
    """Returns the key of `values[path]` inside a TensorFlow object checkpoint."""
    return f"values/{path.replace('.', '..').replace('/', '.S')}{_SUFFIX}"


def write_data(prefix: pathlib.Path, values: Mapping[str, Any]) -> dict[str, Any]:
    """Writes the files `<prefix>.*`, as tf.train.Checkpoint does with variables of these values.

    TensorFlow silently does not save tensors inside a dict, and keeps some memory of every variable
    and of every call of `Checkpoint.write`.

    Args:
      prefix: The prefix of the files.
      values: `{path: tensor, variable or array}`.

    Returns:
      `{path: {"shape": list, "dtype": name}}`.

    Raises:
      TypeError: For a value of another type.
    """
    with tf.device("/cpu:0"):
        tensors = {path: _tensor(path, value) for path, value in values.items()}
        tf.raw_ops.SaveV2(
            prefix=str(prefix),
            tensor_names=[*map(_stored_name, tensors), _OBJECT_GRAPH],
            shape_and_slices=[""] * (len(tensors) + 1),
            tensors=[*tensors.values(), tf.constant(_object_graph(tuple(tensors)))],
        )
    return {
        path: {"shape": x.shape.as_list(), "dtype": x.dtype.name} for path, x in tensors.items()
    }


@functools.lru_cache(maxsize=64)
def _object_graph(paths: tuple[str, ...]) -> bytes:
    """Returns what `tf.train.Checkpoint(values={path: variable})` stores about its objects."""
    variables = {path: tf.Variable(0.0, trainable=False) for path in paths}
    with tempfile.TemporaryDirectory() as folder:
        written = tf.train.Checkpoint(values=variables).write(f"{folder}/data")
        return bytes(tf.train.load_checkpoint(written).get_tensor(_OBJECT_GRAPH))


def _tensor(path: str, value: Any) -> tf.Tensor:
    if not isinstance(value, tf.Tensor | tf.Variable | np.ndarray | np.generic):
        raise TypeError(
            f"checkpoint value {path!r}: expected a tensor, variable or array, "
            f"got {type(value).__name__}"
        )
    return tf.convert_to_tensor(value)


@contextlib.contextmanager
def writing(thing: str, remedy: str) -> Iterator[None]:
    """Turns a write error into a UserError about `thing` with the reason."""
    try:
        yield
    except (OSError, tf.errors.OpError) as error:
        raise UserError(
            thing,
            expected="a writable folder with free disk space",
            got=files.reason(error).splitlines()[0],
            remedy=remedy,
        ) from error


@contextlib.contextmanager
def replacing(final: pathlib.Path, owner: str = "") -> Iterator[pathlib.Path]:
    """Yields a temporary path to write a folder to, which then replaces `final`.

    A kill at any moment leaves either the old or the new folder, complete.
    """
    temporary = files.temporary_name(final.parent, owner)
    try:
        yield temporary
        files.replace_directory(temporary, final)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def misfits(want: Mapping[str, Any], have: Mapping[str, Any]) -> list[str]:
    """Returns why values cannot replace others: differing paths, shapes and dtypes.

    Args:
      want: `{path: tensor, variable, spec or array}`.
      have: `{path: value}`; a value without a dtype (a number or a list) fits any dtype that can
        represent it.
    """
    problems = [f"missing {path}" for path in sorted(set(want) - set(have))]
    problems += [f"unknown {path}" for path in sorted(set(have) - set(want), key=str)]
    for path in sorted(set(want) & set(have)):
        reason = _misfit(want[path], have[path])
        problems += [f"{path} {reason}"] if reason else []
    return problems


def check_fits(
    thing: str, want: Mapping[str, Any], have: Mapping[str, Any], *, expected: str, remedy: str
) -> None:
    """Raises a UserError with the first `misfits`.

    Args:
      thing: The subject of the error.
      want: See `misfits`.
      have: See `misfits`.
      expected: What the error expects.
      remedy: What the error advises.
    """
    wrong = misfits(want, have)
    if wrong:
        got = "; ".join(wrong[:3]) + ("; ..." if len(wrong) > 3 else "")
        raise UserError(thing, expected=expected, got=got, remedy=remedy)


def _misfit(want: Any, have: Any) -> str:
    plain = not hasattr(have, "dtype")
    try:
        have = np.asarray(have) if plain else have
    except ValueError:
        return "with rows of different lengths"
    dtype = tf.as_dtype(want.dtype)
    if plain and have.dtype.kind not in "biuf":
        return f"that is not a number for {dtype.name}"
    shape, wanted = tf.TensorShape(have.shape), tf.TensorShape(want.shape)
    if not wanted.is_compatible_with(shape):
        return f"of shape {shape} for {wanted}"
    if plain:
        fits = np.can_cast(have.dtype, dtype.as_numpy_dtype, "same_kind")
    else:
        fits = tf.as_dtype(have.dtype) == dtype
    return "" if fits else f"of dtype {tf.as_dtype(have.dtype).name} for {dtype.name}"


def _sha256(path: pathlib.Path) -> str:
    with open(path, "rb") as file:
        digest = hashlib.sha256()
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def write(
    folder: pathlib.Path,
    step: int,
    values: Mapping[str, Any],
    manifest: Mapping[str, Any],
    metric: float | None,
) -> None:
    """Writes a checkpoint to a new folder, and marks it complete.

    Args:
      folder: The folder; its parent exists.
      step: The step of the values.
      values: `{path: tensor, variable or array}`.
      manifest: Further data of the caller, in JSON types.
      metric: The metric to compare checkpoints by, higher is better, or None.
    """
    folder.mkdir()
    keys = write_data(folder / DATA, values)
    content = {
        "schema_version": SCHEMA_VERSION,
        "step": step,
        "metric": metric,
        "keys": keys,
        "manifest": dict(manifest),
    }
    text = files.to_json(content, indent=1)
    (folder / MANIFEST).write_text(text + "\n", encoding="utf-8")
    seal(folder)


def seal(folder: pathlib.Path) -> None:
    """Marks a folder complete; `verify` then notices any change of its files."""
    written = sorted(f for f in folder.iterdir() if f.is_file() and f.name != COMPLETE)
    for file in written:
        files.sync_file(file)
    marks = {f.name: {"size": f.stat().st_size, "sha256": _sha256(f)} for f in written}
    (folder / COMPLETE).write_text(files.to_json({"files": marks}, indent=1) + "\n")
    files.sync_file(folder / COMPLETE)
    files.sync_file(folder)


def read_manifest(folder: pathlib.Path) -> dict[str, Any]:
    """Reads the manifest of a checkpoint.

    Raises:
      DamagedCheckpointError: It is missing or unreadable.
    """
    try:
        content = files.from_json((folder / MANIFEST).read_text(encoding="utf-8"))
        return {
            "schema_version": int(content["schema_version"]),
            "step": int(content["step"]),
            "metric": None if content["metric"] is None else float(content["metric"]),
            "keys": dict(content["keys"]),
            "manifest": dict(content["manifest"]),
        }
    except OSError as error:
        raise DamagedCheckpointError(f"{MANIFEST}: {error.strerror}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise DamagedCheckpointError(f"{MANIFEST} is not a manifest ({error!r})") from error


def verify(folder: pathlib.Path) -> None:
    """Compares every file with the mark COMPLETE.

    Raises:
      DamagedCheckpointError: For a changed file; it names the first one and the difference.
    """
    try:
        marks = files.from_json((folder / COMPLETE).read_text(encoding="utf-8"))["files"]
        expected = {str(n): (int(m["size"]), str(m["sha256"])) for n, m in marks.items()}
    except FileNotFoundError as error:
        raise DamagedCheckpointError("it is not marked complete") from error
    except OSError as error:
        raise DamagedCheckpointError(f"{COMPLETE}: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DamagedCheckpointError(f"{COMPLETE} is unreadable ({error!r})") from error
    if MANIFEST not in expected:
        raise DamagedCheckpointError(f"{COMPLETE} does not list {MANIFEST}")
    for name, (size, digest) in expected.items():
        file = folder / name
        try:
            result = file.stat().st_size
            if result != size:
                raise DamagedCheckpointError(f"{name} has {result} bytes instead of {size}")
            if _sha256(file) != digest:
                raise DamagedCheckpointError(f"{name} has changed since it was written")
        except OSError as error:
            raise DamagedCheckpointError(f"{name}: {error.strerror}") from error


def read(folder: pathlib.Path) -> tuple[Values, dict[str, Any]]:
    """Verifies and reads a checkpoint, and migrates it to the present schema.

    Args:
      folder: A checkpoint folder.

    Returns:
      The values, and the manifest of `read_manifest`.

    Raises:
      DamagedCheckpointError: The folder has changed since it was written.
      UserError: The schema is newer than this version of tfrl, or too old to migrate.
    """
    working_copy.fetch(folder)
    verify(folder)
    content = read_manifest(folder)
    _check_schema(folder, content["schema_version"])
    values = _read_values(folder, content["keys"])
    for version in range(content["schema_version"], SCHEMA_VERSION):
        values, content["manifest"] = MIGRATIONS[version](values, content["manifest"])
    return values, content


def _read_values(folder: pathlib.Path, keys: Mapping[str, Any]) -> Values:
    """Reads exactly the values listed in the manifest."""
    try:
        reader = tf.train.load_checkpoint(str(folder / DATA))
        stored = set(reader.get_variable_to_shape_map()) - {_OBJECT_GRAPH}
        names = {path: _stored_name(path) for path in keys}
        if stored != set(names.values()):
            differ = sorted(stored ^ set(names.values()))
            raise DamagedCheckpointError(f"data and {MANIFEST} disagree about {differ}")
        return {path: np.asarray(reader.get_tensor(name)) for path, name in names.items()}
    except (tf.errors.OpError, IndexError, ValueError, RuntimeError, OSError) as error:
        raise DamagedCheckpointError(f"data cannot be read ({error})") from error


def _check_schema(folder: pathlib.Path, version: int) -> None:
    """Raises for a schema that cannot be migrated."""
    if version == SCHEMA_VERSION:
        return
    if version > SCHEMA_VERSION:
        raise UserError(
            f"checkpoint {folder}",
            expected=f"schema version {SCHEMA_VERSION} or older",
            got=f"schema version {version}",
            remedy="Install the newer tfrl version that wrote it.",
        )
    missing = [v for v in range(version, SCHEMA_VERSION) if v not in MIGRATIONS]
    if missing:
        raise UserError(
            f"checkpoint {folder}",
            expected=f"a schema version that migrates to {SCHEMA_VERSION}",
            got=f"schema version {version} (no migration from {', '.join(map(str, missing))})",
            remedy="Continue with the tfrl version that wrote it, or start a new run with "
            "--if_exists=new.",
        )
