"""The snippets of docs/tasks_layer.md are run as they stand, in their order."""

import dataclasses
import re
import shlex
import sys

import pytest

import tfrl.tasks
from tests.docs_helpers import ROOT, blocks, run, session, write_files
from tfrl.tasks import RLTask, RLTaskConfig

PAGE = (ROOT / "docs" / "tasks_layer.md").read_text()
BLOCKS = blocks(PAGE)


@pytest.fixture(name="folder", scope="module")
def fixture_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("user")
    assert write_files(BLOCKS, folder) == ["my_env.py", "my_target.gin", "my_task.py"]
    return folder


def test_the_session(folder):
    code = "\n".join([*session(BLOCKS), "print(workflow.env_steps(state), metrics['updates'])"])
    assert code.count("total_env_steps=1_000,") == 1
    code = code.replace("total_env_steps=1_000,", "total_env_steps=400,")
    # Steps of episodes that end at once are too short for a clip: counted, but no samples.
    steps, updates = map(float, run([sys.executable, "-c", code], folder).split()[-2:])
    assert steps >= 400 and updates == 20
    assert (folder / "clip.mp4").stat().st_size > 1000
    assert (folder / "runs" / "target" / "metrics.csv").is_file()


@pytest.mark.slow
def test_the_command(folder):
    (command,) = [code for kind, code in BLOCKS if kind == "bash"]
    program, *arguments = shlex.split(command)
    assert program == "tfrl-train"
    run([sys.executable, str(ROOT / "bin" / "train.py"), *arguments], folder)
    root = folder / "runs" / "my_target"
    assert (root / "summary.json").is_file() and (root / "policy" / "saved_model.pb").is_file()
    assert len(list((root / "videos").glob("step_*.mp4"))) == 2


def test_the_page_names_what_there_is():
    for name in tfrl.tasks.__all__:
        if name not in ("SampledTrajectory", "Samples", "TaskState"):
            assert name in PAGE, name
    rows = dict(re.findall(r"^\| `(\w+)` \| (\S+) \|", PAGE, flags=re.MULTILINE))
    defaults = {
        f.name: "required" if f.name == "num_update_steps" else f.default
        for f in dataclasses.fields(RLTaskConfig)
    }
    assert rows == {
        name: str(value).replace("process", '"process"') for name, value in defaults.items()
    }
    methods = re.findall(r"^\| `(\w+)\(", PAGE, flags=re.MULTILINE)
    public = {n for n in vars(RLTask) if not n.startswith("_")} - {"sample_clip"}
    assert set(methods) == public
