"""Trainings whose folder is on ram://: they are killed in the middle of uploads, and go on."""

import contextlib
import json
import pathlib

import numpy as np
import pytest
import reverb
from absl import flags

from tests.launch.launch_runs import arguments, start_here, tensorboard_steps, tree
from tests.storage.remote_helpers import (
    KilledError,
    fixture_bucket,  # noqa: F401
    killed_after,
    new_process,
)
from tests.workflows.test_used_folders import learn, workflow
from tfrl.errors import UserError
from tfrl.experiment.run_folder import RunFolder
from tfrl.launch import app, evaluate, export, exporting, gin_files, loaded, report, serve, train
from tfrl.replay.reverb.server import ReverbServer
from tfrl.storage import remote


def _train(root, steps=256, *flags):
    often = ("train.checkpoint_interval=64", "train.eval_interval=128", "train.max_to_keep=1")
    args = arguments(root, steps, "train.video=False", *often)
    return start_here(train.main, *args, "--nocheck_env", *flags)


def _report(*args):
    flags.FLAGS.unparse_flags()
    with pytest.raises(SystemExit) as end:
        app.run(report.main, argv=["program", *args], takes_folders=True)
    return end.value.code or 0


def _rows(content):
    """The rows of metrics without times, which no two runs share."""
    rows = [json.loads(line) for line in content.splitlines()]
    return [{k: v for k, v in row.items() if not k.startswith("time/")} for row in rows]


@pytest.fixture(name="whole", scope="module")
def fixture_whole(tmp_path_factory):
    """A run in a local folder, which nothing stopped."""
    root = tmp_path_factory.mktemp("whole") / "run"
    assert _train(root) == 0
    return {path.as_posix(): content for path, content in tree(root).items()}


def _is_like(url, whole, folder):
    """A remote run has the parameters, rows, points and files of a local one."""
    summary, expected = (
        json.loads(x) for x in (remote.read_bytes(f"{url}/summary.json"), whole["summary.json"])
    )
    rows = _rows(remote.read_bytes(f"{url}/metrics.jsonl"))
    names = {n for n in remote.tree(url) if "tfevents" not in n}
    assert summary["params_digest"] == expected["params_digest"]
    assert rows == _rows(whole["metrics.jsonl"])
    assert names == {n for n in whole if "tfevents" not in n} | {"writer.json"}
    for name in remote.tree(f"{url}/tensorboard"):
        remote.download(f"{url}/tensorboard/{name}", folder / "tensorboard" / name)
    # In one process the number of an event file, 9 or 10, decides its place.
    assert sorted(tensorboard_steps(folder)) == [row["env_steps"] for row in rows]


class TestTraining:
    def test_leaves_what_a_local_one_leaves(self, bucket, whole, capsys, tmp_path):
        assert _train(bucket) == 0
        _is_like(bucket, whole, tmp_path)
        said = capsys.readouterr().out
        assert f"folder {bucket}" in said and f"{bucket}/policy (SavedModel)" in said
        assert "tfrl-copy-" not in said

    def test_killed_in_uploads_it_ends_as_if_it_was_not(self, bucket, whole, monkeypatch, tmp_path):
        for operations in (5, 40, 60, 85):
            with killed_after(operations, monkeypatch), pytest.raises(KilledError):
                _train(bucket)
            new_process()
        assert _train(bucket) == 0
        _is_like(bucket, whole, tmp_path)

    @pytest.mark.slow
    def test_videos(self, bucket):
        assert _train(bucket, 128, "--video_interval=64") == 0
        names = remote.tree(f"{bucket}/videos")
        assert names == ["step_128.mp4", "step_64.mp4"]
        assert b"ftyp" in remote.read_bytes(f"{bucket}/videos/step_64.mp4")[:32]

    def test_new_moves_the_run_aside(self, bucket, capsys):
        assert _train(bucket, 64) == 0
        new_process()
        assert _train(bucket, 64, "--if_exists=fail") == 2
        assert "a folder with a run" in capsys.readouterr().err
        assert _train(bucket, 64, "--if_exists=new", "--seed=1") == 0
        old, new = (
            json.loads(remote.read_bytes(f"{root}/metadata.json"))["seed"]
            for root in (f"{bucket}.old-1", bucket)
        )
        assert (old, new) == (0, 1)


class TestReading:
    @pytest.fixture(name="run")
    def fixture_run(self, bucket, whole):
        """A finished run, as another process has left it."""
        for name, content in whole.items():
            remote.write_bytes(f"{bucket}/{name}", content)
        return bucket

    def test_evaluate_writes_a_video(self, run, capsys):
        before = remote.tree(run)
        flags = ("--checkpoint=latest", "--episodes=2", f"--video={run}/videos/of.mp4")
        assert start_here(evaluate.main, f"--root_dir={run}", *flags) == 0
        result = json.loads(capsys.readouterr().out.splitlines()[-1])
        assert (result["env_steps"], result["video"]) == (256, f"{run}/videos/of.mp4")
        assert remote.tree(run) == sorted([*before, "videos/of.mp4"])
        assert b"ftyp" in remote.read_bytes(f"{run}/videos/of.mp4")[:32]

    def test_export_beside_the_run(self, run, capsys):
        flags = (f"--root_dir={run}", "--checkpoint=latest", "--noverify")
        assert start_here(export.main, *flags) == 0
        result = json.loads(capsys.readouterr().out.splitlines()[-1])
        assert result["output_dir"] == f"{run}/export/saved_model"
        names = remote.tree(result["output_dir"])
        assert {"saved_model.pb", "metadata.json", "variables/variables.index"} <= set(names)
        restored = exporting._restore(RunFolder(run), f"{run}/checkpoints/ckpt-256")
        assert restored.step == 256
        assert start_here(export.main, *flags) == 2
        assert "an export that is there already" in capsys.readouterr().err

    def test_load(self, run):
        before = remote.tree(run)
        with contextlib.closing(loaded.load(run)) as policy:
            assert policy.env_steps == 256
            assert policy.predict(np.zeros(4, np.float32))[0] in (0, 1)
        assert remote.tree(run) == before
        with pytest.raises(UserError, match="got neither.*: copy a SavedModel to this machine"):
            loaded.load(f"{run}/policy")
        with pytest.raises(UserError, match="expected two slashes after the scheme"):
            loaded.load(pathlib.Path(run))
        with pytest.raises(UserError, match="got none. Write gs://bucket/run "):
            remote.is_remote("gs:bucket/run")
        for nowhere in ("gs://", "gs:///", "ram://"):  # as of an empty variable
            with pytest.raises(UserError, match="expected a name after the scheme"):
                remote.is_remote(nowhere)
        assert not remote.is_remote("notes:today")  # a local file

    @pytest.mark.needs("uvicorn")
    def test_serve(self, run, monkeypatch):
        monkeypatch.setattr(serve, "_serve", lambda server, listening: served(server))

        async def served(server):
            assert set(server.policies) == {256}

        assert start_here(serve.main, f"--root_dir={run}", "--http_port=0") == 0

    def test_compare(self, run, whole, capsys, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        for name, content in whole.items():
            remote.write_bytes(f"{run}-2/{name}", content)
        before = remote.tree(run)
        assert _report(run, f"{run}-2", "--comparison_dir=out") == 0
        assert "| all runs | 2 |" in (tmp_path / "out/comparison.md").read_text()
        assert remote.tree(run) == before
        capsys.readouterr()
        assert _report(run, f"{run}-2", f"--comparison_dir={run}/out") == 2
        assert f"--comparison_dir={run}/out: expected a folder of this" in capsys.readouterr().err
        assert _report(run) == 2
        assert f"several run folders to compare, got {run}." in capsys.readouterr().err
        assert sorted(path.name for path in tmp_path.iterdir()) == ["out"]

    def test_of_nothing(self, bucket, capsys):
        assert start_here(evaluate.main, f"--root_dir={bucket}") == 2
        assert "with operative_config.gin in it" in capsys.readouterr().err
        assert start_here(serve.main, f"--root_dir={bucket}", "--http_port=0") == 2
        assert "expected a run folder (with operative_config.gin)" in capsys.readouterr().err
        assert _report(bucket) == 2
        assert f"several to compare, got {bucket}." in capsys.readouterr().err


class TestGinFiles:
    def test_with_includes(self, bucket):
        remote.write_bytes(
            f"{bucket}/base.gin", b"include 'ppo/tf_cartpole.gin'\nPPO.discount = 0.5"
        )
        mine = f"include '{bucket}/base.gin'\ntrain.total_env_steps = 32"
        remote.write_bytes(f"{bucket}/mine.gin", mine.encode())
        assert _train(f"{bucket}/run", 64, f"--gin_file={bucket}/mine.gin") == 0
        text = remote.read_bytes(f"{bucket}/run/operative_config.gin").decode()
        assert "PPO.discount = 0.99" in text  # of --gin_bindings, which win over files
        found = [b for b in gin_files.read([f"{bucket}/mine.gin"]) if b.parameter == "discount"]
        assert (found[-1].value, found[-1].where) == (0.5, f"{bucket}/base.gin:2")

    def test_of_nothing(self, bucket):
        with pytest.raises(UserError, match="no such file.*Check the names"):
            gin_files.read([f"{bucket}/mine.gin"])


class TestReplayCheckpoints:
    def _server(self, bucket, max_to_keep=1):
        table = reverb.Table.queue("queue", 10)
        return ReverbServer([table], checkpoint_dir=f"{bucket}/replay", max_to_keep=max_to_keep)

    def test_a_server_goes_on(self, bucket):
        server = self._server(bucket)
        client = reverb.Client(server.address)
        for number in range(3):
            client.insert([np.float32(number)], {"queue": 1.0})
            server.checkpoint()
        server.stop(checkpoint=False)
        names = {n.partition("/")[0] for n in remote.tree(f"{bucket}/replay")}
        assert names == {"ckpt-000003", "writer.json"}
        new_process()
        again = self._server(bucket)
        assert again.restored == {"queue": 3}
        again.stop(checkpoint=False)


class TestLibrary:
    def test_a_run_of_a_workflow_goes_on(self, bucket):
        options = {"eval_interval": None}
        first = workflow("eager")
        learn(first, first.setup(0), 32, bucket, **options)
        new_process()
        second = workflow("eager")
        learn(second, second.restore(f"{bucket}/checkpoints"), 64, bucket, **options)
        rows = _rows(remote.read_bytes(f"{bucket}/metrics.jsonl"))
        assert [row["env_steps"] for row in rows] == [32, 64]
