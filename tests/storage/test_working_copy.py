import pathlib
import tempfile
import threading

import numpy as np
import pytest
import tensorflow as tf

from tests.storage.remote_helpers import (
    KilledError,
    fixture_bucket,  # noqa: F401
    killed_after,
    new_process,
)
from tfrl.errors import UserError
from tfrl.experiment.checkpoints import CheckpointManager
from tfrl.experiment.run_folder import RunFolder
from tfrl.storage import remote, working_copy


def _values(x):
    return {"a/b": np.arange(4, dtype=np.float32) + x, "n": np.int64(x)}


class TestPaths:
    @pytest.mark.parametrize(
        ("path", "expected"),
        [
            ("gs://b/run", True),
            ("ram://b", True),
            ("runs/a", False),
            ("/runs/gs:/a", False),
            ("./gs:/a", False),
            ("C:/runs", False),
            (pathlib.Path("runs/a"), False),
        ],
    )
    def test_what_is_remote(self, path, expected):
        assert remote.is_remote(path) is expected

    def test_one_slash_is_a_mistake(self):
        with pytest.raises(UserError, match="Write gs://bucket/run"):
            _ = RunFolder(pathlib.Path("gs://bucket/run")).root  # of which pathlib made gs:/


class TestPublish:
    def test_uploads_what_changed_and_removes_what_is_gone(self, bucket):
        copy = working_copy.working_copy(bucket)
        (copy.local / "videos").mkdir()
        for name in ("metrics.csv", "videos/a.mp4", ".tmp-1-1"):
            (copy.local / name).write_text("old content")
        copy.publish()
        assert remote.tree(bucket) == ["metrics.csv", "videos/a.mp4", "writer.json"]
        (copy.local / "metrics.csv").write_text("new")
        (copy.local / "videos/a.mp4").unlink()
        copy.publish()
        assert remote.tree(bucket) == ["metrics.csv", "writer.json"]
        assert remote.read_bytes(f"{bucket}/metrics.csv") == b"new"

    def test_what_others_keep_there_is_left_alone(self, bucket):
        for name in ("data/large", "large"):
            remote.write_bytes(f"{bucket}/{name}", b"x")
        copy = working_copy.working_copy(bucket)
        copy.claim()
        assert list(copy.local.iterdir()) == []
        copy.publish()
        assert remote.tree(bucket) == ["data/large", "large", "writer.json"]

    def test_names_with_dots_do_not_lead_out(self, bucket, monkeypatch):
        names = {bucket: ["..", "policy/"], f"{bucket}/policy": ["../", "./", "a"]}
        monkeypatch.setattr(tf.io.gfile, "listdir", names.__getitem__)
        monkeypatch.setattr(tf.io.gfile, "isdir", lambda url: url.endswith("policy"))
        monkeypatch.setattr(tf.io.gfile, "exists", lambda url: True)
        assert remote.tree(bucket) == ["policy/a"]

    def test_nothing_new_is_nothing_written(self, bucket, monkeypatch):
        copy = working_copy.working_copy(bucket)
        (copy.local / "metrics.csv").write_text("x")
        copy.publish()
        written = []
        monkeypatch.setattr(remote, "_writing", lambda url, write: written.append(url))
        copy.publish()
        assert written == []
        (copy.local / "metrics.csv").write_text("new")
        copy.publish()
        assert written == [f"{bucket}/metrics.csv"]

    def test_the_later_writer_goes_on_and_the_earlier_one_ends(self, bucket):
        first, second = (working_copy.WorkingCopy(bucket) for _ in range(2))
        (first.local / "metrics.csv").write_text("first")
        first.publish()
        second.claim()
        (first.local / "metrics.csv").write_text("late")
        with pytest.raises(UserError, match="has taken over.*one process per folder"):
            first.publish()
        assert (second.local / "metrics.csv").read_text() == "first"
        second.publish()
        assert remote.read_bytes(f"{bucket}/metrics.csv") == b"first"

    def test_a_folder_that_was_moved_is_not_made_anew(self, bucket):
        copy = working_copy.working_copy(bucket)
        (copy.local / "metrics.csv").write_text("x")
        copy.publish()
        assert copy.move_aside() == f"{bucket}.old-1"
        assert remote.tree(f"{bucket}.old-1") == ["metrics.csv", "writer.json"]
        with pytest.raises(UserError, match="no folder, since it was moved or deleted"):
            copy.publish()
        assert remote.tree(bucket) == []

    def test_a_folder_is_replaced_as_a_whole(self, bucket):
        copy = working_copy.working_copy(bucket)
        policy = copy.local / "policy"
        (policy / "variables").mkdir(parents=True)
        for name in ("saved_model.pb", "variables/old"):
            (policy / name).write_text("1")
        copy.publish()
        (policy / "variables/old").rename(policy / "variables/new")
        copy.publish()
        assert [n for n in remote.tree(bucket) if "policy" in n] == [
            "policy/saved_model.pb",
            "policy/variables/new",
        ]


class TestCheckpoints:
    def test_data_come_when_they_are_wanted(self, bucket):
        manager = CheckpointManager(bucket)
        for step in (1, 2):
            manager.save(step, _values(step), {"note": step}, metric=-step)
        new_process()
        reader = CheckpointManager(bucket, read_only=True)
        assert (reader.steps, reader.best_step, reader.manifest(2)) == ([1, 2], 1, {"note": 2})
        files = [p.name for p in reader.directory.rglob("*") if p.is_file()]
        assert sorted(files) == ["COMPLETE", "COMPLETE", "manifest.json", "manifest.json"]
        restored = reader.restore()
        np.testing.assert_array_equal(restored.values["a/b"], _values(2)["a/b"])
        assert len(list((reader.directory / "ckpt-1").iterdir())) == 2

    def test_a_kill_at_any_operation_leaves_a_whole_checkpoint(self, bucket, monkeypatch):
        """Steps 1, 2, ...: each save is killed one operation later, till one goes through."""
        CheckpointManager(bucket, max_to_keep=1).save(0, _values(0), {})
        step, operations, killed = 0, 0, True
        seen = set()
        while killed:
            new_process()
            manager = CheckpointManager(bucket, max_to_keep=1)
            step += 1
            try:
                with killed_after(operations, monkeypatch):
                    manager.save(step, _values(step), {})
                killed = False
            except KilledError:
                operations += 1
            new_process()
            restored = CheckpointManager(bucket, read_only=True).restore()
            assert restored.step in (step, step - 1, *seen)
            np.testing.assert_array_equal(restored.values["a/b"], _values(restored.step)["a/b"])
            seen = {restored.step}
        assert operations > 8
        copy = working_copy.working_copy(bucket)
        copy.claim()  # takes what the kills left out
        left = {n.partition("/")[0] for n in remote.tree(bucket)} - {"writer.json"}
        assert left == {f"ckpt-{step}"}

    def test_a_reader_follows_a_writer_that_removes(self, bucket):
        writer = working_copy.WorkingCopy(bucket)
        with_ram = CheckpointManager(writer.local, max_to_keep=1)
        with_ram.save(1, _values(1), {})
        writer.publish()
        reader = CheckpointManager(bucket, read_only=True)
        assert reader.steps == [1]
        with_ram.save(2, _values(2), {})
        writer.publish()
        assert (reader.restore().step, reader.steps) == (2, [2])

    def test_copies_of_killed_processes_are_removed(self, bucket, monkeypatch, tmp_path):
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
        (tmp_path / "tfrl-copy-killed" / "copy").mkdir(parents=True)
        copies = [working_copy.WorkingCopy(bucket).local.parent for _ in range(2)]
        assert sorted(tmp_path.iterdir()) == sorted(copies)

    def test_damage_is_found(self, bucket):
        manager = CheckpointManager(bucket)
        for step in (1, 2):
            manager.save(step, _values(step), {})
        new_process()
        name = f"{bucket}/ckpt-2/data.data-00000-of-00001"
        remote.write_bytes(name, remote.read_bytes(name)[:-1] + b"?")
        log = []
        assert CheckpointManager(bucket, read_only=True, log=log.append).restore().step == 1
        assert "data.data-00000-of-00001 has changed since it was written" in log[0]


class TestFailures:
    @pytest.fixture(autouse=True)
    def no_delays(self, monkeypatch):
        monkeypatch.setattr(remote, "_FIRST_DELAY", 0.001)

    def _failing(self, kind, times, monkeypatch):
        tries, listdir = [], tf.io.gfile.listdir

        def fail(path):
            tries.append(path)
            if len(tries) <= times:
                raise kind(None, None, "the server is busy")
            return listdir(path)

        monkeypatch.setattr(tf.io.gfile, "listdir", fail)
        return tries

    def test_a_busy_store_is_asked_again(self, bucket, monkeypatch):
        remote.write_bytes(f"{bucket}/a", b"x")
        tries = self._failing(tf.errors.UnavailableError, 3, monkeypatch)
        assert remote.tree(bucket) == ["a"]
        assert len(tries) == 4

    def test_patience_ends(self, bucket, monkeypatch):
        monkeypatch.setattr(remote, "PATIENCE_SECONDS", 0.05)
        self._failing(tf.errors.UnavailableError, 10**6, monkeypatch)
        with pytest.raises(
            UserError, match="the server is busy.*continues from the last checkpoint"
        ):
            remote.tree(bucket)

    def test_a_refusal_is_not_asked_again(self, bucket, monkeypatch):
        tries = self._failing(tf.errors.PermissionDeniedError, 10**6, monkeypatch)
        with pytest.raises(UserError, match="GOOGLE_APPLICATION_CREDENTIALS"):
            remote.tree(bucket)
        assert len(tries) == 1

    def test_an_unknown_scheme(self):
        with pytest.raises(UserError, match="'nope' not implemented.*tensorflow-io"):
            RunFolder("nope://bucket/run").prepare()

    def test_no_answer(self, bucket, monkeypatch):
        answered = threading.Event()
        monkeypatch.setattr(tf.io.gfile, "exists", lambda url: answered.wait(10))
        monkeypatch.setattr(remote, "CONNECT_SECONDS", 0.05)
        with pytest.raises(UserError, match="no response within"):
            working_copy.working_copy(bucket)
        answered.set()

    def test_messages_name_the_address(self, bucket):
        folder = RunFolder(bucket)
        folder.prepare()
        folder.metadata.write_text("{")
        with pytest.raises(UserError) as error:
            folder.read_metadata()
        assert f"{bucket}/metadata.json" in working_copy.named(error.value)
