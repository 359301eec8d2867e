"""`gs://` as users have it: TensorFlow's own client, in processes of their own."""

import json
import shutil

import pytest

from tests import forked
from tests.launch import launch_runs
from tests.launch.launch_runs import arguments
from tests.storage import fake_gcs

pytestmark = pytest.mark.skipif(not shutil.which("openssl"), reason="it makes the certificate")


@pytest.fixture(name="server", scope="module")
def fixture_server(tmp_path_factory):
    with fake_gcs.serve(tmp_path_factory.mktemp("gcs") / "server") as server:
        (server.folder / "bucket").mkdir()
        yield server


def _run(server, binary, *flags, **changes):
    environment = {**launch_runs.environment(), **server.environment, **changes}
    command = launch_runs.command(binary, *flags)
    return forked.run(command, env=environment, timeout=launch_runs.IN_TIME)


@pytest.mark.slow
def test_a_training_goes_on_in_another_process(server):
    root = server.folder / "bucket/run"
    for steps in (64, 128):
        flags = arguments("gs://bucket/run", steps, "train.video=False")
        done = _run(server, "train", *flags, "--nocheck_env")
        assert done.returncode == 0, done.stderr
    assert "going on at 64 of 128" in done.stdout
    assert json.loads((root / "summary.json").read_text())["env_steps"] == 128
    assert (root / "policy/saved_model.pb").is_file() and list(root.glob("tensorboard/*"))
    assert sorted(p.name for p in root.glob("checkpoints/*")) == ["ckpt-128", "ckpt-64"]
    assert not [r for r in server.requests if "rewriteTo" in r]  # nothing is renamed


@pytest.mark.parametrize(
    ("root", "changes", "code", "message"),
    [
        ("gs://nowhere/run", {}, 2, "Create the bucket first"),
        pytest.param(
            "gs://bucket/run2",
            {"https_proxy": "http://127.0.0.1:9"},
            75,
            "storage gs://bucket/run2: expected reachable storage",
            marks=pytest.mark.slow,  # TensorFlow tries for long, tfrl for a minute
        ),
    ],
)
def test_what_cannot_be_reached_is_told_before_the_training(server, root, changes, code, message):
    done = _run(server, "train", *arguments(root, 64), "--nocheck_env", **changes)
    assert (done.returncode, "training for" in done.stdout) == (code, False), done.stdout
    assert message in done.stderr
