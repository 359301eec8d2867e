import json
import math
import os
import pathlib
import subprocess

import numpy as np
import pytest
import tensorflow as tf

import tfrl
from tfrl.errors import UserError
from tfrl.experiment import metadata
from tfrl.experiment.run_folder import RunFolder
from tfrl.keras import api as keras


class TestLayout:
    def test_paths(self, tmp_path):
        folder = RunFolder(tmp_path / "run")
        assert folder.prepare() is False
        assert sorted(os.listdir(folder.root)) == ["checkpoints", "tensorboard", "videos"]
        assert [
            p.relative_to(folder.root).as_posix()
            for p in (
                folder.operative_config,
                folder.metadata,
                folder.metrics_csv,
                folder.metrics_jsonl,
                folder.tensorboard,
                folder.checkpoints,
                folder.policy,
                folder.videos,
                folder.summary,
            )
        ] == [
            "operative_config.gin",
            "metadata.json",
            "metrics.csv",
            "metrics.jsonl",
            "tensorboard",
            "checkpoints",
            "policy",
            "videos",
            "summary.json",
        ]

    def test_home_and_relative_paths(self, monkeypatch, tmp_path):
        monkeypatch.setenv("HOME", str(tmp_path))
        monkeypatch.chdir(tmp_path)
        assert RunFolder("~/runs/a").root == RunFolder("runs/a").root == tmp_path / "runs" / "a"


class TestIfExists:
    @pytest.fixture
    def folder(self, tmp_path):
        folder = RunFolder(tmp_path / "run")
        folder.prepare()
        folder.write_metadata({"seed": 1})
        return folder

    def test_resume(self, folder):
        assert folder.prepare("resume") is True
        assert folder.read_metadata() == {"seed": 1}

    def test_a_checkpoint_alone_is_a_run(self, tmp_path):
        folder = RunFolder(tmp_path)
        folder.prepare()
        assert not folder.holds_run()
        (folder.checkpoints / "ckpt-1").mkdir()
        assert folder.holds_run()

    def test_fail(self, folder):
        with pytest.raises(UserError) as error:
            folder.prepare("fail")
        assert str(error.value) == (
            f"root_dir {folder.root}: expected a folder without a run, because of "
            "--if_exists=fail, got a folder with a run. Choose another --root_dir, "
            "--if_exists=resume to resume the run, or --if_exists=new to move it aside."
        )

    def test_fail_without_a_run(self, tmp_path):
        assert RunFolder(tmp_path / "other").prepare("fail") is False

    def test_new_moves_the_old_run_aside_and_loses_nothing(self, folder):
        (folder.root / "notes.txt").write_text("mine")
        said = []
        assert folder.prepare("new", log=said.append) is False
        aside = pathlib.Path(f"{folder.root}.old-1")
        assert said == [f"The run in {folder.root} was moved to {aside}"]
        assert (aside / "notes.txt").read_text() == "mine"
        assert RunFolder(aside).read_metadata() == {"seed": 1}
        assert not folder.holds_run()
        folder.write_metadata({"seed": 2})
        folder.prepare("new", log=said.append)
        assert RunFolder(f"{folder.root}.old-2").read_metadata() == {"seed": 2}
        assert RunFolder(aside).read_metadata() == {"seed": 1}

    def test_new_without_a_run_moves_nothing(self, tmp_path):
        (tmp_path / "run").mkdir()
        (tmp_path / "run" / "notes.txt").write_text("mine")
        RunFolder(tmp_path / "run").prepare("new")
        assert os.listdir(tmp_path) == ["run"]

    def test_unknown_choice(self, folder):
        with pytest.raises(UserError) as error:
            folder.prepare("resum")
        assert str(error.value) == (
            "--if_exists: expected one of resume, fail, new, got 'resum'. Did you mean resume?"
        )

    def test_left_overs_of_a_kill_are_removed(self, folder):
        (folder.root / ".tmp-1-1").write_text("half a summary")
        folder.prepare()
        assert not (folder.root / ".tmp-1-1").exists()


class TestUnwritable:
    def test_path_is_a_file(self, tmp_path):
        (tmp_path / "run").write_text("")
        with pytest.raises(UserError) as error:
            RunFolder(tmp_path / "run").prepare()
        path = tmp_path / "run"
        assert str(error.value) == (
            f"root_dir {path}: expected a writable folder, got a file in place of a folder "
            f"({path}). Choose another --root_dir."
        )

    def test_path_below_a_file(self, tmp_path):
        (tmp_path / "file").write_text("")
        with pytest.raises(UserError, match="got a path that leads through a file"):
            RunFolder(tmp_path / "file" / "run").prepare()

    def test_place_without_folders(self):
        with pytest.raises(UserError, match="root_dir /proc/tfrl: expected a writable folder"):
            RunFolder("/proc/tfrl").prepare()

    @pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
    def test_no_permission(self, tmp_path):
        (tmp_path / "run").mkdir(mode=0o500)
        with pytest.raises(UserError, match="got no write permission"):
            RunFolder(tmp_path / "run").prepare()

    @pytest.mark.parametrize(
        "error,words",
        [
            (PermissionError(13, "Permission denied"), "no write permission. Choose"),
            (OSError(30, "Read-only file system"), "a read-only file system. Choose"),
            (OSError(28, "No space left on device"), "a full disk. Free disk space, or choose"),
        ],
    )
    def test_reasons(self, tmp_path, monkeypatch, error, words):
        def refuse(*_, **__):
            raise error

        with monkeypatch.context() as refusing:
            refusing.setattr(pathlib.Path, "touch", refuse)
            with pytest.raises(UserError, match=f"got {words} another --root_dir"):
                RunFolder(tmp_path).prepare()


class TestDocuments:
    def test_summary_is_strict_json(self, tmp_path):
        folder = RunFolder(tmp_path)
        assert folder.read_summary() is None
        folder.write_summary(
            {"env_steps": np.int64(5), "eval_return_mean": np.float32(0.1), "x": math.nan}
        )
        assert folder.read_summary() == {"env_steps": 5, "eval_return_mean": 0.1, "x": None}
        assert "NaN" not in folder.summary.read_text()
        assert os.listdir(tmp_path) == ["summary.json"]

    def test_a_failed_write_keeps_the_old_one(self, tmp_path):
        folder = RunFolder(tmp_path)
        folder.write_summary({"a": 1})
        with pytest.raises(TypeError):
            folder.write_summary({"a": object()})
        assert folder.read_summary() == {"a": 1}

    @pytest.mark.parametrize("text", ['{"a": ', "[1]", "\xff"])
    def test_damaged_metadata(self, tmp_path, text):
        (tmp_path / "metadata.json").write_text(text, encoding="latin-1")
        with pytest.raises(UserError, match=r"metadata.json: expected a JSON"):
            RunFolder(tmp_path).read_metadata()

    def test_operative_config(self, tmp_path):
        folder = RunFolder(tmp_path)
        folder.write_operative_config("a.b = 1\n")
        assert folder.operative_config.read_text() == "a.b = 1\n"


class TestSameConfiguration:
    OLD = {"train.total_env_steps": 1000, "ppo.gamma": 0.99, "net.hidden": (64, 64), "gone.x": 1}

    def test_equal_after_a_trip_through_json(self, tmp_path):
        stored = json.loads(json.dumps(self.OLD))
        assert stored != self.OLD  # its tuples have become lists
        RunFolder(tmp_path).check_same_configuration(stored, self.OLD)
        stored["net.hidden"][1] = 32
        with pytest.raises(UserError, match=r"got net.hidden = \[64, 64\] \(the run has \[64, 32"):
            RunFolder(tmp_path).check_same_configuration(stored, self.OLD)

    def test_names_every_difference(self, tmp_path):
        new = {
            "train.total_env_steps": 2000,
            "ppo.gamma": 0.9,
            "net.hidden": (64, 64),
            "net.layer_norm": True,
        }
        folder = RunFolder(tmp_path)
        with pytest.raises(UserError) as error:
            folder.check_same_configuration(self.OLD, new, allowed=("train.total_env_steps",))
        assert str(error.value) == (
            f"root_dir {tmp_path}: expected the configuration of its run, got "
            "gone.x = not set (the run has 1); net.layer_norm = True (the run has not set); "
            "ppo.gamma = 0.9 (the run has 0.99). Use the run's values, another --root_dir, or "
            "--if_exists=new to move the run aside."
        )


class TestMetadata:
    def test_collect(self, tmp_path, monkeypatch):
        monkeypatch.setenv("TF_ENABLE_ONEDNN_OPTS", "1")
        monkeypatch.setattr("sys.argv", ["train.py", "--seed=3"])
        found = metadata.collect(
            seed=3, compile_choices={"update": "xla"}, configuration={"a.b": (1, 2)}, strategy="one"
        )
        assert found["seed"] == 3
        assert found["compile_choices"] == {"update": "xla"}
        assert found["configuration"] == {"a.b": [1, 2]}
        assert found["strategy"] == "one"
        assert found["command"] == ["train.py", "--seed=3"]
        assert found["TF_ENABLE_ONEDNN_OPTS"] == "1"
        assert found["versions"]["tfrl"] == tfrl.__version__
        assert found["versions"]["tensorflow"] == tf.__version__
        # On TensorFlow 2.15 Keras 2 is the package keras.
        on_2_15 = tf.__version__.startswith("2.15.")
        assert found["versions"]["keras"].startswith("2.15." if on_2_15 else "3.")
        assert found["versions"].get("tf_keras") == (None if on_2_15 else keras.__version__)
        assert found["intra_op_threads"] >= 1 and found["device"]
        folder = RunFolder(tmp_path)
        folder.write_metadata(found)
        assert folder.read_metadata() == found
        assert metadata.differences(found, json.loads(json.dumps(found))) == []

    def test_differences(self):
        old = metadata.collect(seed=1, compile_choices={"update": "xla"})
        new = {**old, "seed": 2, "command": ["x"], "intra_op_threads": 99}
        new["compile_choices"] = {"update": "graph"}
        new["versions"] = {**old["versions"], "numpy": "9"}
        assert metadata.differences(old, new) == [
            f"versions.numpy: {old['versions']['numpy']} -> 9",
            f"intra_op_threads: {old['intra_op_threads']} -> 99",
            "compile_choices.update: xla -> graph",
        ]

    def test_git_hash(self, tmp_path):
        package = tmp_path / "pkg"
        package.mkdir()
        (package / "a.py").write_text("1")
        (package / "inner").mkdir()
        assert metadata.git_hash(package) is None

        def git(*arguments):
            name = ["-c", "user.name=n", "-c", "user.email=e@x"]
            command = ["git", "-C", str(tmp_path), *name, *arguments]
            done = subprocess.run(command, check=True, capture_output=True, text=True)
            return done.stdout.strip()

        git("init", "-q")
        assert metadata.git_hash(package) is None
        git("add", ".")
        git("commit", "-qm", "first")
        commit = git("rev-parse", "HEAD")
        assert metadata.git_hash(package) == commit
        (package / "a.py").write_text("2")
        assert metadata.git_hash(package) == f"{commit}+changes"
        # installed deep inside somebody else's checkout
        assert metadata.git_hash(package / "inner") is None


class TestFiles:
    @pytest.mark.parametrize(
        "name", ["metrics.csv", "summary.json", "policy", "videos/a.mp4", "checkpoints/ckpt-1"]
    )
    def test_a_link_is_refused_before_anything_is_changed(self, tmp_path, name):
        folder, foreign = RunFolder(tmp_path / "run"), tmp_path / "foreign"
        folder.prepare()
        left = folder.root / ".tmp-1-1"
        left.touch()
        foreign.write_text("mine")
        (folder.root / name).symlink_to(foreign)
        with pytest.raises(UserError) as error:
            folder.prepare()
        assert f"the symbolic link {folder.root / name} to {foreign}" in str(error.value)
        assert left.exists() and foreign.read_text() == "mine"
        assert folder.prepare("new") is False

    def test_the_folder_itself_may_be_a_link(self, tmp_path):
        (tmp_path / "scratch").mkdir()
        (tmp_path / "run").symlink_to(tmp_path / "scratch")
        RunFolder(tmp_path / "run").prepare()
        assert (tmp_path / "scratch" / "checkpoints").is_dir()

    def test_wandb_keeps_links_of_its_own(self, tmp_path):
        folder = RunFolder(tmp_path)
        folder.prepare()
        (tmp_path / "wandb").mkdir()
        link = tmp_path / "wandb" / "latest-run"
        link.symlink_to("run-1")
        folder.prepare()
        assert os.readlink(link) == "run-1"

    def test_a_damaged_table_is_refused_before_anything_is_changed(self, tmp_path):
        folder = RunFolder(tmp_path)
        folder.prepare()
        folder.metrics_csv.write_text("env_sXeps,a\n1,2\n")
        (tmp_path / ".tmp-1-1").touch()
        with pytest.raises(UserError, match="got the header 'env_sXeps,a'"):
            folder.prepare()
        assert (tmp_path / ".tmp-1-1").exists()

    def test_a_folder_that_was_renamed_or_replaced(self, tmp_path):
        folder = RunFolder(tmp_path / "run")
        folder.prepare()
        identity = os.stat(folder.root)
        folder.check_there(identity)
        folder.root.rename(tmp_path / "moved")
        with pytest.raises(UserError, match="it was renamed or deleted"):
            folder.check_there()
        folder.prepare()
        with pytest.raises(UserError, match="it was renamed or deleted"):
            folder.check_there(identity)


class TestTypes:
    @pytest.mark.parametrize(
        ("text", "got"),
        [
            ("[" * 100_000 + "]" * 100_000, "brackets nested too deeply"),
            ('{"seed": "x"}', "expected 'seed' of type int, got 'x'"),
            ('{"seed": true}', "expected 'seed' of type int, got True"),
            ('{"seed": 1, "configuration": [1]}', "'configuration' of type dict, got [1]"),
            ('{"seed": 1, "compile_choices": 3}', "'compile_choices' of type dict, got 3"),
            ('{"seed": 1}', "expected the entry 'configuration', got no such entry"),
            ("[]", "expected a JSON object, got list"),
        ],
    )
    def test_metadata(self, tmp_path, text, got):
        (tmp_path / "metadata.json").write_text(text)
        with pytest.raises(UserError) as error:
            RunFolder(tmp_path).read_metadata(required=("seed", "configuration"))
        assert got in str(error.value)

    def test_summary(self, tmp_path):
        (tmp_path / "summary.json").write_text('{"eval_return_mean": "high"}')
        with pytest.raises(UserError, match="'eval_return_mean' of type int | float | None"):
            RunFolder(tmp_path).read_summary()
