"""The pages of docs/tutorials/: their code runs in order with smaller numbers, and the notebooks.

A page that is a notebook runs as the notebook that is committed.
"""

import json
import re
import shlex
import sys
from concurrent import futures

import pytest

from tests import notebooks
from tests.docs_helpers import QUICK, ROOT, blocks, run, session, write_files
from tests.launch import launch_runs

FOLDER = notebooks.FOLDER
PAGES = {path.stem: path.read_text() for path in sorted(FOLDER.glob("*.md"))}
INDEX = PAGES.pop("README")
# What is made smaller, `{page: {as it stands: as it runs}}`.
SMALL = {
    "first_run": {
        "total_env_steps=200_000": "total_env_steps=2_048",
        "total_env_steps=50_000": "total_env_steps=512",
        "total_env_steps=20_480": "total_env_steps=1_024",
    },
    "my_environment": {
        "total_env_steps=256_000": "total_env_steps=2_560",
        "total_env_steps=6_400": "total_env_steps=640",
    },
    "my_network": {"total_env_steps=204_800": "total_env_steps=2_048"},
    "reading_the_curves": {
        "total_env_steps=100_000": "total_env_steps=2_048",
        "eval_interval=10_000": "eval_interval=1_024",
    },
    "my_algorithm": {
        "total_env_steps=51_200": "total_env_steps=2_048",
        "total_env_steps=20_000": "total_env_steps=320",
        "random_steps=1_000": "random_steps=300",
    },
    "my_workflow": {
        "total_env_steps=100_000": "total_env_steps=20_480",
        "eval_interval=50_000": "eval_interval=10_240",
    },
    "several_devices": {},
    "taking_it_elsewhere": {"total_env_steps=100_000": "total_env_steps=1_024"},
}
# Short ends of the runs of `tfrl.train`, of which a page shows none of it.
SHORT_RUNS = """
import functools
import tfrl
tfrl.train = functools.partial(tfrl.train, **{
    "train.final_eval_episodes": 4, "train.video": False, "OnPolicyWorkflow.eval_episodes": 4,
    "OnPolicyWorkflow.num_epochs": 2,
})
"""


# Pages that share a process, and with it what is traced for equal workflows.
TOGETHER = (
    ("first_run", "taking_it_elsewhere", "reading_the_curves"),
    ("my_environment", "my_network", "my_algorithm", "my_workflow"),
    ("several_devices",),  # splits the CPU
)
RUN = """
import os, sys
pages = sys.argv[1:]
while pages:
    folder, *pages = pages
    os.chdir(folder)
    print("# " + os.path.basename(folder))
    with open("page.txt") as file:
        exec(compile(file.read(), "page", "exec"), {"__name__": "page"})
"""


def code_of(name, page_blocks):
    """Returns the program of a page, with smaller numbers."""
    if name in notebooks.NAMES:
        code = notebooks.program((FOLDER / f"{name}.ipynb").read_text())
    else:
        code = "\n".join(session(page_blocks))
    for old, new in SMALL[name].items():
        assert old in code, old
        code = code.replace(old, new)
    return "\n".join([QUICK, SHORT_RUNS if "tfrl.train(" in code else "", code])


@pytest.fixture(scope="module")
def printed(tmp_path_factory):
    """`{page: (folder, lines that its code printed)}`."""
    root = tmp_path_factory.mktemp("tutorials")
    for name, text in PAGES.items():
        page_blocks = blocks(text)
        (root / name).mkdir()
        if name not in notebooks.NAMES:
            write_files(page_blocks, root / name)
        (root / name / "page.txt").write_text(code_of(name, page_blocks))
    with futures.ThreadPoolExecutor(2) as pool:
        jobs = [
            pool.submit(run, [sys.executable, "-c", RUN, *(root / n for n in names)], root)
            for names in TOGETHER
        ]
    parts = "".join(job.result() for job in jobs).split("# ")[1:]
    found = {name: lines for name, *lines in (part.splitlines() for part in parts)}
    return {name: (root / name, found[name]) for name in PAGES}


def number(line):
    """The last number of a line."""
    return float(re.findall(r"-?\d+\.?\d*", line)[-1])


def test_the_notebooks_are_made_of_the_pages():
    for name in notebooks.NAMES:
        found = (FOLDER / f"{name}.ipynb").read_text()
        assert found == notebooks.notebook(PAGES[name]), f"python -m tests.notebooks: {name}"
        for cell in json.loads(found)["cells"]:
            assert "".join(cell["source"]).strip() and not cell.get("outputs")


def test_the_index_lists_the_pages_in_order():
    listed = re.findall(r"^\| \d\. \[.*?\]\((\w+)\.md\)", INDEX, flags=re.MULTILINE)
    assert sorted(listed) == sorted(PAGES) and len(listed) == 8
    for i, name in enumerate(listed):
        assert PAGES[name].startswith(f"# {i + 1}. ")
        if i + 1 < len(listed):
            assert f"]({listed[i + 1]}.md)." in PAGES[name].rstrip().splitlines()[-1]


def test_first_run(printed):
    folder, lines = printed["first_run"]
    left = {path.name for path in (folder / "runs" / "first").iterdir()}
    table = PAGES["first_run"].split("## The run folder")[1]
    for name in re.findall(r"`([\w.]+)/?`", table.split("## ")[0]):
        assert name in left | {"videos"} or name.startswith("tfrl"), name
    assert [x for x in lines if x.startswith("return ")] and "512" in lines
    assert any(re.fullmatch(r"\(\d+, \d+, 3\)", line) for line in lines)


def test_my_environment(printed):
    _, lines = printed["my_environment"]
    before, after = (next(x for x in lines if x.startswith(w)) for w in ("before", "after"))
    assert -80 < number(before) < number(after) < -1


def test_my_network(printed):
    _, lines = printed["my_network"]
    counts = [eval(line) for line in lines if line.startswith("{")]  # noqa: S307
    assert len(counts) == 6
    assert counts[0] == {"policy": 4482, "value": 4481}
    assert set(counts[2]) == {"trunk", "policy", "value"}
    assert lines[-1] == "['distribution', 'head', 'torso']"


def test_reading_the_curves(printed):
    folder, lines = printed["reading_the_curves"]
    assert "comparison.html" in lines
    assert len([x for x in lines if re.match(r"(sound|too_high) .*first .* last", x)]) == 10
    for name in ("sound", "too_high", "comparison"):
        assert list((folder / "runs" / "curves" / name).glob("*.png")), name


def test_my_algorithm(printed):
    _, lines = printed["my_algorithm"]
    first, then = map(float, re.fullmatch(r"aux_loss (\S+) then (\S+)", lines[0]).groups())
    assert 0 < then < first
    assert -2000 < float(lines[-1]) < 0


def test_tqc_is_the_one_that_is_tested():
    files = {c.splitlines()[0]: c for kind, c in blocks(PAGES["my_algorithm"]) if kind == "python"}
    tested = (ROOT / "tests" / "agents" / "tqc.py").read_text()
    assert files["# tqc.py"].partition("\n")[2] == tested


def test_my_workflow(printed):
    folder, lines = printed["my_workflow"]
    agreement, reached = (number(x) for x in lines if x.startswith(("agreement", "return")))
    assert 0.3 < agreement < 0.9 and reached > 100
    assert list((folder / "runs" / "dagger" / "checkpoints").glob("ckpt-*"))


def test_several_devices(printed):
    _, lines = printed["several_devices"]
    assert "1024 2" in lines and any("boolean_mask" in line for line in lines)
    assert any("2 replicas" in line for line in lines)


def test_taking_it_elsewhere(printed):
    _, lines = printed["taking_it_elsewhere"]
    actions = [line for line in lines if re.fullmatch(r"\[[01] [01]\]", line)]
    assert len(actions) == 2 and actions[0] == actions[1]  # SavedModel and TensorFlow Lite
    assert lines[-1] == "(8, 4) 8.0"


def commands():
    """The commands of all pages, each as (page, words)."""
    for name, text in PAGES.items():
        code = "".join(c for kind, c in blocks(text) if kind == "bash").replace("\\\n", " ")
        for line in code.splitlines():
            yield name, shlex.split(line)


def test_commands_have_flags_and_files_that_exist():
    helps = {}
    for page, (program, *arguments) in commands():
        binary = program.removeprefix("tfrl-")
        source = ROOT / "bin" / f"{binary}.py"
        assert source.is_file(), program
        if binary not in helps:
            done = launch_runs.run(binary, "--help")
            helps[binary] = done.stdout
        for word in arguments:
            flag = re.match(r"--(?:no)?(\w+)", word)
            assert flag and f"--{flag[1]}" in helps[binary] or f"--[no]{flag[1]}" in helps[binary]
            if word.startswith("--gin_file="):
                file = word.removeprefix("--gin_file=")
                shipped = ROOT / "gin_configs" / file
                assert shipped.is_file() or f"# {file}\n" in PAGES[page], file


@pytest.mark.needs("reverb")
def test_the_dry_run_starts_nothing(tmp_path):
    words = next(w for _, w in commands() if "--dry_run" in w)
    done = launch_runs.run("launch", *words[1:], cwd=tmp_path)
    assert done.returncode == 0 and "Processes: 4" in done.stdout, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("page", "words"),
    [
        pytest.param(page, words, id="_".join(w for w in words if "=" not in w))
        for page, words in commands()
        if words[0] in ("tfrl-train", "tfrl-sweep") and "first" not in "".join(words)
    ],
)
def test_commands_run(tmp_path, page, words):
    write_files(blocks(PAGES[page]), tmp_path)
    short = ["--gin_bindings=train.total_env_steps=20_480"] if words[0] == "tfrl-sweep" else []
    words = [w for w in words if w != "--seeds=5"] + short
    path = ROOT / "bin" / f"{words[0].removeprefix('tfrl-')}.py"
    run([sys.executable, str(path), *words[1:]], tmp_path)
