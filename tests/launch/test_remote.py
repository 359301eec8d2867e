"""Trainings whose folder is on ram://: they are killed in the middle of uploads, and go on."""

import json

import pytest

from tests.launch.launch_runs import arguments, start_here, tree
from tests.storage.remote_helpers import (
    KilledError,
    fixture_bucket,  # noqa: F401
    killed_after,
    new_process,
)
from tfrl.launch import train
from tfrl.storage import remote


def _train(root, steps=256, *flags):
    often = ("train.checkpoint_interval=64", "train.eval_interval=128", "train.max_to_keep=1")
    args = arguments(root, steps, "train.video=False", *often)
    return start_here(train.main, *args, "--nocheck_env", *flags)


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


def _is_like(url, whole):
    summary, expected = (
        json.loads(x) for x in (remote.read_bytes(f"{url}/summary.json"), whole["summary.json"])
    )
    rows = _rows(remote.read_bytes(f"{url}/metrics.jsonl"))
    names = {n for n in remote.tree(url) if "tfevents" not in n}
    assert summary["params_digest"] == expected["params_digest"]
    assert rows == _rows(whole["metrics.jsonl"])
    assert names == {n for n in whole if "tfevents" not in n} | {"writer.json"}


class TestTraining:
    def test_leaves_what_a_local_one_leaves(self, bucket, whole, capsys):
        assert _train(bucket) == 0
        _is_like(bucket, whole)
        said = capsys.readouterr().out
        assert f"folder {bucket}" in said and f"{bucket}/policy (SavedModel)" in said
        assert "tfrl-copy-" not in said

    def test_killed_in_uploads_it_ends_as_if_it_was_not(self, bucket, whole, monkeypatch):
        for operations in (5, 40, 60, 85):
            with killed_after(operations, monkeypatch), pytest.raises(KilledError):
                _train(bucket)
            new_process()
        assert _train(bucket) == 0
        _is_like(bucket, whole)

    def test_new_moves_the_run_aside(self, bucket, capsys):
        assert _train(bucket, 64) == 0
        new_process()
        assert _train(bucket, 64, "--if_exists=fail") == 2
        assert "a folder that holds one" in capsys.readouterr().err
        assert _train(bucket, 64, "--if_exists=new", "--seed=1") == 0
        old, new = (
            json.loads(remote.read_bytes(f"{root}/metadata.json"))["seed"]
            for root in (f"{bucket}.old-1", bucket)
        )
        assert (old, new) == (0, 1)
