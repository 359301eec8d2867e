"""The page docs/off_policy.md: its snippets run, its commands build the described workflows."""

import json
import re
import shlex
import sys
import types

import pytest

from tests.docs_helpers import QUICK, ROOT, blocks, run, session

PAGE = (ROOT / "docs" / "off_policy.md").read_text()

# The session, which has TensorFlow already, builds the commands' workflows.
ASSEMBLED = """
import contextlib
import inspect
import json
import sys
from tfrl.launch import reverb_server, settings

found = []
for words in json.loads(sys.argv[1]):
    part = lambda flag: [w.split("=", 1)[1] for w in words if w.startswith(f"--{flag}=")]
    built = settings.assemble(part("gin_file"), part("gin_bindings"))
    with contextlib.closing(built.workflow) as flow:
        for address in part("replay_server"):
            flow.use_replay_server(address)
        address = getattr(flow.replay, "address", None)
        found.append([words[0], type(flow.replay).__name__, flow.replay.capacity, address])
    if "reverb_server" in words[0]:
        found[-1].append([table.info.name for table in reverb_server.served_tables(built)])
arguments = inspect.signature(OffPolicyWorkflow).parameters
defaults = {name: p.default for name, p in arguments.items() if isinstance(p.default, int | float)}
hooks = [name for name in dir(OffPolicyWorkflow) if not name.startswith("_")]
print(json.dumps([found, defaults, hooks]))
"""


def commands():
    """The commands of the page, each as a list of arguments."""
    code = "".join(code for kind, code in blocks(PAGE) if kind == "bash")
    return [shlex.split(line) for line in code.replace("\\\n", " ").splitlines()]


@pytest.fixture(name="page", scope="module")
def fixture_page(tmp_path_factory):
    """The output of the page's session, and the workflows of its commands."""
    code = "\n".join([QUICK, *session(blocks(PAGE)), ASSEMBLED])
    folder = tmp_path_factory.mktemp("page")
    out = run([sys.executable, "-c", code, json.dumps(commands())], folder)
    *printed, last = out.splitlines()
    found, defaults, hooks = json.loads(last)
    return types.SimpleNamespace(printed=printed, found=found, defaults=defaults, hooks=hooks)


def test_every_block_is_run():
    assert {kind for kind, _ in blocks(PAGE)} == {"python", "bash"}


def test_the_session_prints_what_its_comments_say(page):
    code = "\n".join(session(blocks(PAGE)))
    comments = re.findall(r"^ *print\(.*\)  # (.*)$", code, flags=re.MULTILINE)
    assert code.count("print(") == len(comments) == 6
    assert page.printed == comments


def test_the_commands_build_what_they_say(page):
    kinds = [(program.removeprefix("bin/"), kind) for program, kind, *_ in page.found]
    assert kinds == [
        ("train.py", "InGraphReplay"),
        ("train.py", "InGraphReplay"),
        ("train.py", "ReverbReplay"),
        ("reverb_server.py", "InGraphReplay"),
        ("train.py", "ReverbReplay"),
        ("train.py", "InGraphReplay"),
    ]
    in_process, server, client = page.found[2:5]
    assert in_process[2:] == [50_000, None]
    assert server[2:] == [51_200, None, ["replay"]]
    assert client[2:] == [51_200, "localhost:8000"]


def test_the_defaults_and_hooks_are_the_workflows(page):
    said = {"rollout_length": 1, "random_steps": 1_000, "priority_beta": 0.4, "overlap": True}
    assert {name: page.defaults[name] for name in said} == said
    for words in ("`rollout_length` steps (1)", "`random_steps` (1,000)", "`priority_beta` (0.4)"):
        assert words in PAGE, words
    named = re.findall(r"`(\w+)`", PAGE[PAGE.index("## Hooks") :])
    assert set(named) <= set(page.hooks) and "priorities" in named
