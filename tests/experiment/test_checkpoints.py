import errno
import gc
import json
import os
import pathlib
import random
import shutil
import sys
import time

import numpy as np
import pytest
import tensorflow as tf

from tests import forked
from tfrl.errors import UserError
from tfrl.experiment.checkpoints import CheckpointManager
from tfrl.storage import checkpoint_format, files

FIXTURE = pathlib.Path(__file__).parent / "fixtures" / "schema_1"


def values_of(step):
    return {
        "params/policy/0.kernel": np.full([3, 2], step, np.float32),
        "env_steps": tf.constant(step, tf.int64),
        "done": tf.Variable([True, False]),
        "frame": np.arange(6, dtype=np.uint8).reshape(2, 3),
        "key": tf.constant([7, step], tf.int32),
        "empty": np.zeros([0, 4], np.float32),
    }


def numbers(restored):
    return restored.step, int(restored.values["env_steps"])


class Crash(BaseException):
    """Stands for a kill: nothing that handles errors may catch it."""


class TestSaveAndRestore:
    def test_round_trip_keeps_values_shapes_and_dtypes(self, tmp_path):
        manager = CheckpointManager(tmp_path)
        manifest = {"compile": {"update": "xla"}, "metrics": [1, 2.5, None], "n": np.int64(3)}
        path = manager.save(40, values_of(40), manifest, metric=np.float32(1.5))
        assert path == tmp_path / "ckpt-40"
        restored = CheckpointManager(tmp_path).restore()
        assert restored.step == 40
        assert restored.metric == 1.5
        assert restored.path == path
        assert restored.manifest == {
            "compile": {"update": "xla"},
            "metrics": [1, 2.5, None],
            "n": 3,
        }
        expected = {k: np.asarray(v) for k, v in values_of(40).items()}
        assert set(restored.values) == set(expected)
        for name, value in expected.items():
            assert isinstance(restored.values[name], np.ndarray)
            assert restored.values[name].dtype == value.dtype, name
            assert restored.values[name].shape == value.shape, name
            np.testing.assert_array_equal(restored.values[name], value)

    def test_manifest_lists_the_keys(self, tmp_path):
        CheckpointManager(tmp_path).save(2, values_of(2), {"a": 1}, metric=None)
        content = json.loads((tmp_path / "ckpt-2" / "manifest.json").read_text())
        assert content["schema_version"] == checkpoint_format.SCHEMA_VERSION
        assert content["step"] == 2 and content["metric"] is None
        assert content["manifest"] == {"a": 1}
        assert content["keys"]["env_steps"] == {"shape": [], "dtype": "int64"}
        assert content["keys"]["empty"] == {"shape": [0, 4], "dtype": "float32"}
        assert set(content["keys"]) == set(values_of(2))

    def test_data_is_a_plain_tensorflow_checkpoint(self, tmp_path):
        path = CheckpointManager(tmp_path).save(5, values_of(5), {})
        variables = {k: tf.Variable(tf.zeros_like(v)) for k, v in values_of(5).items()}
        tf.train.Checkpoint(values=variables).read(str(path / "data")).assert_consumed()
        np.testing.assert_array_equal(variables["params/policy/0.kernel"], np.full([3, 2], 5.0))
        np.testing.assert_array_equal(variables["key"], [7, 5])

    def test_other_shapes_dtypes_and_paths_in_the_next_save(self, tmp_path):
        manager = CheckpointManager(tmp_path)
        for step, value in enumerate([np.zeros([2, 3], np.float32), np.ones([4], np.float32)]):
            manager.save(step, {"x": value}, {})
            np.testing.assert_array_equal(manager.restore().values["x"], value)
        manager.save(2, {"x": np.int64(4)}, {})
        assert manager.restore().values["x"].dtype == np.int64
        manager.save(3, {"y": np.int64(4)}, {})
        assert set(manager.restore().values) == {"y"}

    def test_none_exist(self, tmp_path):
        assert CheckpointManager(tmp_path / "new").restore() is None
        assert CheckpointManager(tmp_path / "new").restore("best") is None

    def test_same_step_twice_replaces(self, tmp_path):
        manager = CheckpointManager(tmp_path)
        manager.save(1, {"x": np.float32(1)}, {"n": 1})
        manager.save(1, {"y": np.float32(2)}, {"n": 2})
        restored = manager.restore()
        assert restored.manifest == {"n": 2} and set(restored.values) == {"y"}
        assert sorted(os.listdir(tmp_path)) == ["ckpt-1"]

    def test_a_value_that_is_no_tensor_is_refused_and_leaves_nothing(self, tmp_path):
        manager = CheckpointManager(tmp_path)
        with pytest.raises(TypeError, match="checkpoint value 'a/b': expected a tensor, variable"):
            manager.save(1, {"a/b": [1, 2]}, {})
        with pytest.raises(TypeError, match="expected a JSON-serializable value, got object"):
            manager.save(1, {"x": np.float32(1)}, {"a": object()})
        assert os.listdir(tmp_path) == []

    def test_no_pickle(self):
        for module in (checkpoint_format, files):
            assert "import pickle" not in pathlib.Path(module.__file__).read_text()


class TestWhich:
    @pytest.fixture
    def manager(self, tmp_path):
        manager = CheckpointManager(tmp_path, max_to_keep=None)
        for step, metric in [(10, 1.0), (20, 5.0), (30, 5.0), (40, float("nan")), (50, None)]:
            manager.save(step, values_of(step), {}, metric)
        return manager

    @pytest.mark.parametrize("which,step", [("latest", 50), ("best", 30), (20, 20), ("10", 10)])
    def test_choice(self, manager, which, step):
        assert numbers(manager.restore(which)) == (step, step)

    def test_best_step_and_steps(self, manager):
        assert manager.best_step == 30
        assert manager.steps == [10, 20, 30, 40, 50]

    @pytest.mark.parametrize("which", [25, "newest", -10])
    def test_unknown(self, manager, which):
        with pytest.raises(UserError) as error:
            manager.restore(which)
        assert str(error.value) == (
            f"checkpoint {which} of {manager.directory}: expected latest, best, or one of the "
            f"steps 10, 20, 30, 40, 50, got {which}."
        )

    def test_best_without_metrics(self, tmp_path):
        manager = CheckpointManager(tmp_path)
        manager.save(3, {"x": np.float32(0)}, {})
        assert manager.best_step is None
        with pytest.raises(UserError) as error:
            manager.restore("best")
        assert str(error.value) == (
            f"best checkpoint of {tmp_path}: expected at least one checkpoint with a metric, got "
            "none among the steps 3. Choose latest or one of these steps; "
            "train.eval_interval below the budget gives checkpoints a metric."
        )


class TestPruning:
    def test_keeps_the_newest_and_the_best(self, tmp_path):
        manager = CheckpointManager(tmp_path, max_to_keep=2)
        for step, metric in [(1, 0.0), (2, 9.0), (3, 1.0), (4, 2.0), (5, 3.0)]:
            manager.save(step, values_of(step), {}, metric)
        assert manager.steps == [2, 4, 5]
        manager.save(6, values_of(6), {}, 10.0)
        assert manager.steps == [5, 6]

    def test_without_best(self, tmp_path):
        manager = CheckpointManager(tmp_path, max_to_keep=1, keep_best=False)
        for step, metric in [(1, 9.0), (2, 0.0)]:
            manager.save(step, values_of(step), {}, metric)
        assert manager.steps == [2]

    def test_steps_of_an_abandoned_continuation_go_once_the_new_one_is_whole(self, tmp_path):
        said = []
        manager = CheckpointManager(tmp_path, max_to_keep=1, log=said.append)
        manager.save(100, values_of(100), {})
        manager.save(60, values_of(60), {})
        assert manager.steps == [60]
        assert said == [
            f"checkpoint {tmp_path / 'ckpt-100'} is removed: the run went on from an earlier one "
            "and has reached step 60"
        ]

    def test_later_steps_stay_where_the_order_is_free(self, tmp_path):
        said = []
        manager = CheckpointManager(tmp_path, max_to_keep=1, drop_later=False, log=said.append)
        for step in (100, 30, 60):
            manager.save(step, values_of(step), {})
        assert (manager.steps, said) == ([60, 100], [])

    def test_max_to_keep_zero(self, tmp_path):
        with pytest.raises(
            UserError, match="max_to_keep: expected a whole number of at least 1, got 0"
        ):
            CheckpointManager(tmp_path, max_to_keep=0)


def truncate_file(path):
    path.write_bytes(path.read_bytes()[:-3])


def flip_bit(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 4
    path.write_bytes(bytes(content))


def empty_file(path):
    path.write_bytes(b"")


DATA_FILE = "data.data-00000-of-00001"


class TestDamage:
    @pytest.mark.parametrize("name", [DATA_FILE, "data.index", "manifest.json", "COMPLETE"])
    @pytest.mark.parametrize("damage", [truncate_file, flip_bit, empty_file, os.remove])
    def test_newest_damaged_previous_used(self, tmp_path, name, damage):
        manager = CheckpointManager(tmp_path)
        manager.save(1, values_of(1), {})
        damage(manager.save(2, values_of(2), {}) / name)
        said = []
        restored = CheckpointManager(tmp_path, log=said.append).restore()
        # A flipped bit inside a digest of COMPLETE shows at the file that it is the digest of.
        assert numbers(restored) == (1, 1)
        assert len(said) == 1 and "\n" not in said[0]
        assert said[0].startswith(f"checkpoint {tmp_path / 'ckpt-2'} is damaged: ")
        assert said[0].endswith("; using ckpt-1 instead")
        if name != "COMPLETE":
            assert name in said[0]

    def test_message_names_sizes(self, tmp_path):
        manager = CheckpointManager(tmp_path)
        manager.save(1, values_of(1), {})
        path = manager.save(2, values_of(2), {}) / "data.index"
        size = path.stat().st_size
        truncate_file(path)
        with pytest.warns(UserWarning) as caught:
            manager.restore()
        assert [str(w.message) for w in caught] == [
            f"checkpoint {tmp_path / 'ckpt-2'} is damaged: data.index has {size - 3} bytes instead "
            f"of {size}; using ckpt-1 instead"
        ]

    def test_none_usable_stops(self, tmp_path):
        manager = CheckpointManager(tmp_path, log=lambda _: None)
        for step in (1, 2):
            flip_bit(manager.save(step, values_of(step), {}) / DATA_FILE)
        with pytest.raises(UserError) as error:
            manager.restore()
        assert str(error.value) == (
            f"checkpoints in {tmp_path}: expected a usable checkpoint, got damage in all 2 "
            f"(ckpt-2: {DATA_FILE} has changed since it was written; "
            f"ckpt-1: {DATA_FILE} has changed since it was written). "
            "Restore a backup copy, or start a new run with --if_exists=new."
        )

    def test_damaged_step_asked_for(self, tmp_path):
        manager = CheckpointManager(tmp_path)
        manager.save(1, values_of(1), {})
        os.remove(manager.save(2, values_of(2), {}) / "COMPLETE")
        with pytest.raises(UserError) as error:
            manager.restore(2)
        assert str(error.value) == (
            f"checkpoint {tmp_path / 'ckpt-2'}: expected an intact checkpoint, got a "
            "damaged checkpoint: it is not marked complete. Choose one of the steps 1, 2, or "
            "latest for the newest intact checkpoint."
        )

    def test_damaged_best_gives_the_next_best(self, tmp_path):
        said = []
        manager = CheckpointManager(tmp_path, log=said.append)
        for step, metric in [(1, 2.0), (2, 3.0), (3, 1.0)]:
            manager.save(step, values_of(step), {}, metric)
        flip_bit(tmp_path / "ckpt-2" / DATA_FILE)
        assert manager.restore("best").step == 1
        assert "ckpt-2 is damaged" in said[0]

    def test_unreadable_manifest_is_named_when_looking_for_the_best(self, tmp_path):
        said = []
        manager = CheckpointManager(tmp_path, log=said.append)
        for step in (1, 2):
            manager.save(step, values_of(step), {}, float(step))
        empty_file(tmp_path / "ckpt-2" / "manifest.json")
        assert manager.restore("best").step == 1
        assert len(said) == 1 and "it is not considered as best" in said[0]

    def test_manifest_and_data_must_agree(self, tmp_path):
        manager = CheckpointManager(tmp_path)
        manager.save(1, values_of(1), {})
        manifest = tmp_path / "ckpt-1" / "manifest.json"
        content = json.loads(manifest.read_text())
        del content["keys"]["key"]
        manifest.write_text(json.dumps(content))
        remark(tmp_path / "ckpt-1")
        with pytest.raises(UserError, match="data and manifest.json disagree about .*values/key"):
            manager.restore(1)


def remark(folder):
    """Writes the marks of a folder anew, as if it had been saved with the present content."""
    marks = {
        f.name: {"size": f.stat().st_size, "sha256": checkpoint_format._sha256(f)}
        for f in folder.iterdir()
        if f.name != "COMPLETE"
    }
    (folder / "COMPLETE").write_text(json.dumps({"files": marks}))


class TestSchema:
    def test_fixture_of_schema_1_is_restored(self):
        restored = CheckpointManager(FIXTURE, read_only=True).restore()
        assert restored.step == 128
        assert restored.manifest == {"note": "fixture"}
        np.testing.assert_array_equal(
            restored.values["params/policy/kernel"], np.arange(6, dtype=np.float32).reshape(2, 3)
        )
        assert restored.values["env_steps"] == 128
        assert restored.values["env_steps"].dtype == np.int64

    def test_older_migrates_through_every_version(self, tmp_path, monkeypatch):
        manager = CheckpointManager(tmp_path)
        manager.save(1, {"w": np.float32(2)}, {"log": ["one"]})

        def to_2(values, manifest):
            return {"weight": values["w"]}, {"log": [*manifest["log"], "two"]}

        def to_3(values, manifest):
            return {"weight": values["weight"] * 10}, {"log": [*manifest["log"], "three"]}

        first = checkpoint_format.SCHEMA_VERSION
        monkeypatch.setattr(checkpoint_format, "MIGRATIONS", {first: to_2, first + 1: to_3})
        monkeypatch.setattr(checkpoint_format, "SCHEMA_VERSION", first + 2)
        restored = manager.restore()
        assert restored.values == {"weight": 20.0}
        assert restored.manifest == {"log": ["one", "two", "three"]}

    def test_older_without_migration_is_refused(self, tmp_path, monkeypatch):
        manager = CheckpointManager(tmp_path)
        manager.save(1, {"w": np.float32(2)}, {})
        monkeypatch.setattr(checkpoint_format, "SCHEMA_VERSION", 5)
        monkeypatch.setattr(checkpoint_format, "MIGRATIONS", {4: lambda v, m: (v, m)})
        with pytest.raises(UserError) as error:
            manager.restore()
        assert str(error.value) == (
            f"checkpoint {tmp_path / 'ckpt-1'}: expected a schema version that migrates to 5, got "
            "schema version 3 (no migration from 3). Continue with the tfrl version that wrote "
            "it, or start a new run with --if_exists=new."
        )

    def test_newer_is_refused_and_not_passed_over(self, tmp_path, monkeypatch):
        manager = CheckpointManager(tmp_path)
        manager.save(1, {"w": np.float32(2)}, {})
        with monkeypatch.context() as newer:
            newer.setattr(checkpoint_format, "SCHEMA_VERSION", 9)
            manager.save(2, {"w": np.float32(2)}, {})
        with pytest.raises(UserError) as error:
            manager.restore()
        assert str(error.value) == (
            f"checkpoint {tmp_path / 'ckpt-2'}: expected schema version 3 or older, got schema "
            "version 9. Install the newer tfrl version that wrote it."
        )


def crash_after(monkeypatch, count):
    """Makes the `count`-th operation on the file system (from 0) crash before it is done."""
    calls = []

    def guard(owner, name):
        real = getattr(owner, name)

        def guarded(*args, **kwargs):
            if len(calls) == count:
                raise Crash(name)
            calls.append(name)
            return real(*args, **kwargs)

        monkeypatch.setattr(owner, name, guarded)

    for name in ("rename", "fsync"):
        guard(os, name)
    guard(shutil, "rmtree")
    guard(pathlib.Path, "mkdir")
    guard(pathlib.Path, "write_text")
    guard(tf.train.Checkpoint, "write")
    return calls


class TestCrashes:
    @pytest.mark.parametrize("step", [2, 3])
    def test_a_crash_at_any_stage_leaves_a_usable_checkpoint(self, tmp_path, monkeypatch, step):
        """Saving step 3 after 1, 2; and step 2 a second time; pruning included."""
        for count in range(100):
            folder = tmp_path / f"{count}"
            manager = CheckpointManager(folder, max_to_keep=2, keep_best=False)
            manager.save(1, values_of(1), {"save": "first"})
            manager.save(2, values_of(2), {"save": "first"})
            finished = False
            with monkeypatch.context() as crashing:
                calls = crash_after(crashing, count)
                try:
                    manager.save(step, values_of(step), {"save": "second"})
                    finished = True
                except Crash:
                    pass
            # What a reader sees while the folder is as the crash left it:
            said = []
            found = CheckpointManager(folder, read_only=True, log=said.append).restore()
            assert numbers(found) == (found.step, found.step)
            # What the next run sees:
            after = CheckpointManager(folder, log=said.append)
            restored = after.restore()
            assert restored.step in (2, step), calls
            assert numbers(restored) == (restored.step, restored.step)
            if finished:
                assert (restored.step, restored.manifest["save"]) == (step, "second")
            assert said == [], calls
            assert all(name.startswith("ckpt-") for name in os.listdir(folder))
            if finished:
                break
        else:
            pytest.fail("never finished")
        assert count >= 10

    def test_errors_of_the_disk(self, tmp_path, monkeypatch):
        manager = CheckpointManager(tmp_path)
        manager.save(1, values_of(1), {})

        def full(*_, **__):
            raise OSError(errno.ENOSPC, "No space left on device")

        with monkeypatch.context() as failing:
            failing.setattr(pathlib.Path, "write_text", full)
            with pytest.raises(UserError) as error:
                manager.save(2, values_of(2), {})
        assert str(error.value) == (
            f"checkpoint {tmp_path / 'ckpt-2'}: expected a writable folder with free disk space, "
            "got a full disk. Free disk space or choose another --root_dir; earlier checkpoints "
            "are intact."
        )
        assert os.listdir(tmp_path) == ["ckpt-1"]

    def test_a_failed_replacement_puts_the_old_one_back(self, tmp_path, monkeypatch):
        manager = CheckpointManager(tmp_path)
        manager.save(1, values_of(1), {"n": 1})
        real = os.rename

        def failing_rename(source, target):
            if ".tmp-" in str(source):
                raise OSError(errno.EIO, "Input/output error")
            real(source, target)

        with monkeypatch.context() as failing:
            failing.setattr(os, "rename", failing_rename)
            with pytest.raises(UserError, match="got Input/output error"):
                manager.save(1, values_of(1), {"n": 2})
        assert manager.restore().manifest == {"n": 1}
        assert os.listdir(tmp_path) == ["ckpt-1"]

    def test_unwritable_folder(self, tmp_path):
        (tmp_path / "file").write_text("")
        with pytest.raises(UserError, match="got a path that leads through a file"):
            CheckpointManager(tmp_path / "file" / "checkpoints")

    def test_reader_leaves_a_living_save_alone(self, tmp_path):
        (tmp_path / ".tmp-1-0").mkdir()
        reader = CheckpointManager(tmp_path, read_only=True)
        assert reader.restore() is None
        assert os.listdir(tmp_path) == [".tmp-1-0"]
        with pytest.raises(RuntimeError, match="read_only=True"):
            reader.save(1, {"x": np.float32(0)}, {})
        CheckpointManager(tmp_path)
        assert os.listdir(tmp_path) == []


SAVE_FOR_EVER = """
import pathlib, sys
import numpy as np
from tfrl.experiment.checkpoints import CheckpointManager

folder, started = map(pathlib.Path, sys.argv[1:])
manager = CheckpointManager(folder, max_to_keep=2)
last = manager.restore()
step = first = 2 * last.step if last else 0
while True:
    if step == first + 3:
        started.touch()
    # Every second save is of the same step, so that replacements are killed too.
    manager.save(step // 2 + 1, {"x": np.full([2000], step // 2 + 1, np.int64)}, {}, None)
    step += 1
"""


class TestKill:
    def test_sigkill_at_random_moments(self, tmp_path):
        chance = random.Random(3)
        latest = 0
        folder, log = tmp_path / "saved", tmp_path / "log"
        for i in range(6):
            started = tmp_path / f"started_{i}"
            command = [sys.executable, "-c", SAVE_FOR_EVER, folder, started]
            process = forked.Process(command, stdout=log, stderr=log)
            while not started.exists():
                assert process.poll() is None, log.read_text()
                time.sleep(0.005)
            time.sleep(chance.uniform(0.0, 0.1))
            process.kill()
            process.wait(60)
            said = []
            restored = CheckpointManager(folder, log=said.append).restore()
            assert said == []
            assert restored is None or (restored.values["x"] == restored.step).all()
            step = 0 if restored is None else restored.step
            assert step >= latest
            latest = step
            assert all(name.startswith("ckpt-") for name in os.listdir(folder))
        assert latest > 3


class TestCost:
    @pytest.mark.slow
    def test_a_thousand_saves_leak_nothing(self, tmp_path):
        manager = CheckpointManager(tmp_path)
        values = {f"group/{i}/kernel": np.zeros([64, 64], np.float32) for i in range(30)}

        def memory():
            return int(pathlib.Path("/proc/self/statm").read_text().split()[1]) * 4096

        for step in range(100):
            manager.save(step, values, {})
        descriptors, before = len(os.listdir("/proc/self/fd")), memory()
        gc.collect()
        objects = len(gc.get_objects())
        start = time.perf_counter()
        for step in range(100, 1000):
            manager.save(step, values, {})
        per_save = (time.perf_counter() - start) / 900
        grown = memory() - before
        print(f"{1000 * per_save:.1f} ms a save, {grown / 1e6:.1f} MB grown")
        assert len(os.listdir("/proc/self/fd")) <= descriptors
        gc.collect()
        assert len(gc.get_objects()) < objects + 900  # not one object a save
        assert grown < 20e6  # one copy of the values a save would be 440 MB
        assert per_save < 0.2


class TestMisfits:
    def test_all_are_named(self):
        variables = {name: tf.Variable([1.0]) for name in "abcdefg"}
        values = {
            "a": np.float32([2]),
            "b": np.float32([2, 3]),
            "c": np.int64([2]),
            "e": [1],
            "f": "text",
            "g": [[1], [2, 3]],
            "x": np.float32([2]),
        }
        assert checkpoint_format.misfits(variables, values) == [
            "missing d",
            "unknown x",
            "b of shape (2,) for (1,)",
            "c of dtype int64 for float32",
            "f that is not a number for float32",
            "g with rows of different lengths",
        ]
        assert checkpoint_format.misfits(variables, dict.fromkeys(variables, np.float32([3]))) == []
