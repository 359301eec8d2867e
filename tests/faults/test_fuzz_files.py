"""Bytes of every file of a run folder and of a Learner's checkpoint are flipped, cut and replaced.

What reads them gives the same values, those of the checkpoint before (and says so), or a paragraph.
"""

import contextlib
import json
import pathlib
import random
import shutil

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.launch.launch_runs import arguments, run
from tfrl import specs
from tfrl.agents import PPO
from tfrl.errors import UserError
from tfrl.experiment.checkpoints import CheckpointManager
from tfrl.experiment.metadata import differences, params_digest
from tfrl.experiment.recorders import CsvRecorder, JsonlRecorder, check_table
from tfrl.experiment.run_folder import RunFolder
from tfrl.launch import gin_files
from tfrl.learners import Learner, ModuleConfig
from tfrl.loading import distrust
from tfrl.storage import checkpoint_format

WORDS = [
    b"",
    b"\0" * 64,
    b"\xff\xfe\x80",
    b"[" * 100_000,
    b'{"a": ' * 3_000 + b"1" + b"}" * 3_000,
    b"null",
    b"[]",
    b"{}",
    b'"text"',
    b"1e999",
    b'{"seed": "x", "configuration": [], "compile_choices": 3, "versions": null}',
    b'{"files": 3}',
    b'{"schema_version": 1, "step": {}, "metric": [], "keys": 0, "manifest": "m"}',
    b"import os\n",
    b"a.b = @c(\n",
]
CHANGES = st.one_of(
    st.tuples(st.just("flip"), st.floats(0, 1), st.integers(1, 255)),
    st.tuples(st.just("cut"), st.floats(0, 1), st.just(0)),
    st.tuples(st.just("insert"), st.floats(0, 1), st.integers(0, len(WORDS) - 1)),
    st.tuples(st.just("replace"), st.just(0.0), st.integers(0, len(WORDS) - 1)),
    st.tuples(st.just("swap"), st.floats(0, 1), st.just(0)),
    st.tuples(st.just("remove"), st.just(0.0), st.just(0)),
)
FAST = settings(
    max_examples=60,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
LONG = settings(FAST, max_examples=3_000)


@pytest.fixture(name="run_folder", scope="module")
def fixture_run_folder(tmp_path_factory):
    root = tmp_path_factory.mktemp("fuzz") / "run"
    done = run(
        "train",
        *arguments(root, 128, "train.video=False", "train.eval_interval=64"),
        "--gin_bindings=train.checkpoint_interval=64",
    )
    assert done.returncode == 0, done.stderr
    return root


@pytest.fixture(name="learner_folder", scope="module")
def fixture_learner_folder(tmp_path_factory):
    agent = PPO(
        obs_spec=tf.TensorSpec([3], tf.float32), action_spec=specs.DiscreteSpec(2), hidden=(4,)
    )
    learner = Learner({"a": agent, "b": agent}, config=ModuleConfig(lr=[[0, 1e-2], [100, 0.0]]))
    learner.build(0)
    return learner.save_to_path(tmp_path_factory.mktemp("learner") / "save")


def files_of(root):
    return sorted(p.relative_to(root) for p in root.rglob("*") if p.is_file())


def change(root, names, which, how):
    """Changes one file; `which` and `how` are hypothesis' choices. Returns its name."""
    kind, place, number = how
    path = root / names[which % len(names)]
    content = path.read_bytes()
    at = min(int(place * len(content)), max(len(content) - 1, 0))
    if kind == "remove":
        path.unlink()
        return path
    if kind == "flip" and content:
        content = content[:at] + bytes([content[at] ^ number]) + content[at + 1 :]
    elif kind == "cut":
        content = content[:at]
    elif kind == "insert":
        content = content[:at] + WORDS[number] + content[at:]
    elif kind == "replace":
        content = WORDS[number]
    elif kind == "swap":
        content = (root / names[int(place * (len(names) - 1))]).read_bytes()
    path.write_bytes(content)
    return path


def read_run(root, said):
    """What a resume reads of a run folder, in its order; the values of the checkpoint."""
    folder = RunFolder(root)
    distrust(str(folder.operative_config))
    try:
        if folder.operative_config.is_file():
            gin_files.read([str(folder.operative_config)])
    finally:
        distrust(None)
    folder.prepare("resume", log=said.append)
    folder.check_files()
    metadata = folder.read_metadata(required=("seed", "configuration", "compile_choices"))
    if metadata is not None:
        folder.check_same_configuration(metadata["configuration"], {})
        dict(metadata["compile_choices"] or {})
        differences(metadata, metadata)
    folder.read_summary()
    restored = CheckpointManager(folder.checkpoints, log=said.append).restore("latest")
    if restored is None:
        return None
    for name in (folder.metrics_csv, folder.metrics_jsonl):
        if name == folder.metrics_csv:
            check_table(name)
        recorder = (CsvRecorder if name == folder.metrics_csv else JsonlRecorder)(name)
        recorder.truncate(restored.step)
        recorder.close()
    return digest(restored.values)


def digest(values):
    return params_digest({k: np.asarray(v) for k, v in values.items()})


def check_run(tmp_path, original, names, which, how, expected, seal=False):
    root = tmp_path / f"copy-{random.getrandbits(60):x}"
    shutil.copytree(original, root)
    said = []
    try:
        path = change(root, names, which, how)
        if seal and path.parent.parent.name == "checkpoints" and path.exists():
            checkpoint_format.seal(path.parent)
        found = read_run(root, said)
        assert found in expected, (path, how)
        if found != expected[-1] and not seal:
            assert said, (path, how)
    except UserError as error:
        assert "\n" not in str(error), str(error)
    finally:
        shutil.rmtree(root)


def run_case(tmp_path, run_folder, example, seal=False):
    names = files_of(run_folder)
    manager = CheckpointManager(run_folder / "checkpoints", read_only=True)
    expected = [digest(manager.restore(step).values) for step in manager.steps]

    @example
    @given(which=st.integers(0, 10_000), how=CHANGES)
    def examples(which, how):
        check_run(tmp_path, run_folder, names, which, how, expected, seal)

    examples()


def test_files_of_a_run_folder(tmp_path, run_folder, recwarn):
    run_case(tmp_path, run_folder, FAST)


@pytest.mark.slow
def test_files_of_a_run_folder_many(tmp_path, run_folder, recwarn):
    run_case(tmp_path, run_folder, LONG)


def read_learner(folder):
    learner = Learner.from_checkpoint(folder)
    return params_digest(learner.variables())


@contextlib.contextmanager
def copied(folder, tmp_path):
    """A copy of a folder; what is done with it may end in a paragraph."""
    root = tmp_path / f"copy-{random.getrandbits(60):x}"
    shutil.copytree(folder, root)
    try:
        yield root
    except UserError as error:
        assert "\n" not in str(error), str(error)
    finally:
        shutil.rmtree(root)


def learner_case(tmp_path, learner_folder, example):
    names = files_of(learner_folder)
    expected = read_learner(learner_folder)

    @example
    @given(which=st.integers(0, 10_000), how=CHANGES)
    def examples(which, how):
        with copied(learner_folder, tmp_path) as root:
            path = change(root, names, which, how)
            assert read_learner(root) == expected, (path, how)

    examples()


def test_files_of_a_learners_checkpoint(tmp_path, learner_folder):
    learner_case(tmp_path, learner_folder, settings(FAST, max_examples=40))


@pytest.mark.slow
def test_files_of_a_learners_checkpoint_many(tmp_path, learner_folder):
    learner_case(tmp_path, learner_folder, settings(LONG, max_examples=1_000))


# A manifest whose hashes fit again: as somebody would write it who means harm.

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=6,
)


def places(content, path=()):
    """The paths of all values of JSON content."""
    yield path
    if isinstance(content, dict | list):
        keys = content if isinstance(content, dict) else range(len(content))
        for key in keys:
            yield from places(content[key], (*path, key))


def with_value(content, path, value):
    if not path:
        return value
    copy = dict(content) if isinstance(content, dict) else list(content)
    copy[path[0]] = with_value(content[path[0]], path[1:], value)
    return copy


def manifest_case(tmp_path, learner_folder, example):
    manifest = json.loads((learner_folder / "manifest.json").read_text())
    paths = list(places(manifest))

    @example
    @given(which=st.integers(0, 10_000), value=JSON)
    def examples(which, value):
        with copied(learner_folder, tmp_path) as root:
            path = paths[which % len(paths)]
            content = with_value(manifest, path, value)
            (root / "manifest.json").write_text(json.dumps(content))
            checkpoint_format.seal(pathlib.Path(root))
            assert Learner.from_checkpoint(root).is_built

    examples()


@pytest.mark.slow
def test_values_of_a_learners_manifest(tmp_path, learner_folder):
    manifest_case(tmp_path, learner_folder, settings(FAST, max_examples=60))


@pytest.mark.slow
def test_values_of_a_learners_manifest_many(tmp_path, learner_folder):
    manifest_case(tmp_path, learner_folder, settings(LONG, max_examples=1_500))
