"""The guides for users of Stable-Baselines3, CleanRL and RLlib: our programs, and the tables."""

import ast
import importlib
import inspect
import re
import subprocess
import sys
from concurrent import futures

import pytest

import tfrl
from tests.docs_helpers import QUICK, ROOT, THEIRS, blocks, run, session
from tfrl import agents, evolution, learners, replay, types, workflows
from tfrl.envs import wrappers
from tfrl.rollout import policy

PAGES = {
    name: (ROOT / "docs" / f"coming_from_{name}.md").read_text()
    for name in ("sb3", "cleanrl", "rllib")
}
SMALL = {
    "sb3": {
        "total_env_steps=100_000": "total_env_steps=2_048",
        "eval_episodes=20": "eval_episodes=2",
    },
    "cleanrl": {"100_000 //": "1_024 //"},
    "rllib": {"range(100)": "range(2)", "eval_episodes=20": "eval_episodes=2"},
}
SHORT_RUN = """
import functools
import tfrl
tfrl.train = functools.partial(tfrl.train, **{
    "train.final_eval_episodes": 2, "train.video": False, "train.report": False,
    "OnPolicyWorkflow.eval_episodes": 2,
})
"""
PLACES = (tfrl, agents, learners, workflows, replay, wrappers, evolution, types)


@pytest.fixture(scope="module")
def printed(tmp_path_factory):
    """What our programs print, run with smaller numbers."""
    jobs = {}
    with futures.ThreadPoolExecutor(2) as pool:
        for name, page in PAGES.items():
            code = "\n".join(session(blocks(page)))
            for old, new in SMALL[name].items():
                assert old in code, old
                code = code.replace(old, new)
            command = [sys.executable, "-c", "\n".join([QUICK, SHORT_RUN, code])]
            jobs[name] = pool.submit(run, command, tmp_path_factory.mktemp(name))
    return {name: job.result().splitlines() for name, job in jobs.items()}


@pytest.mark.parametrize("name", PAGES)
def test_our_program_runs(printed, name):
    returns = [float(x.split()[0]) for x in printed[name] if re.match(r"[\d.]+( [\d.]+)?$", x)]
    assert returns and all(5 < x <= 500 for x in returns)


@pytest.mark.parametrize("name", PAGES)
def test_their_program_is_beside_it(name):
    theirs = [c for kind, c in blocks(PAGES[name]) if kind == "python" and THEIRS.match(c)]
    assert len(theirs) == 1
    ast.parse(theirs[0])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["sb3", "cleanrl"])
def test_their_program_runs(tmp_path, name):
    python = ROOT / ".venv-peers" / "bin" / "python"  # make bench-peers
    if not python.exists():
        pytest.skip("no .venv-peers")
    (theirs,) = [c for kind, c in blocks(PAGES[name]) if kind == "python" and THEIRS.match(c)]
    code = theirs.replace("100_000", "2_048").replace("n_eval_episodes=20", "n_eval_episodes=2")
    done = subprocess.run([python, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def rows(page):
    """The cells of the table of names."""
    table = page.split("\n## Names\n")[1].split("\n## ")[0]
    lines = [x for x in table.splitlines() if x.startswith("| ")][1:]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]


def named(name):
    """The object of a name as tables write it; None where it is none of ours."""
    for place in PLACES:
        if hasattr(place, name):
            return getattr(place, name)
    return None


def unknown(code):
    """What an expression of a table names that there is not."""
    tree = ast.parse(code, mode="eval").body
    found = []
    for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
        text = ast.unparse(call.func)
        target = resolved(text)
        if target is None:
            found.append(text)
            continue
        parameters = inspect.signature(target).parameters
        options = set(parameters)
        if text == "workflow.learn":
            options |= set(inspect.signature(workflows.RunOptions).parameters)
        if text == "make_env":
            options |= {"info_fields", "vectorization"}
        found += [f"{text}({k.arg}=)" for k in call.keywords if k.arg not in options]
    return found


def resolved(text):
    """The object that a dotted name of a table means; None for one that there is not."""
    first, *rest = text.split(".")
    base = {"workflow": workflows.OnPolicyWorkflow, "tfrl": tfrl}.get(first, named(first))
    if text.startswith("tfrl.load(folder)"):
        return getattr(policy.Policy, text.rpartition(".")[2], None)
    if text.startswith("tfrl.learners.connectors"):  # a module that is imported by name
        return importlib.import_module(text)
    for part in rest:
        base = getattr(base, part, None)
    return base


@pytest.mark.parametrize("name", PAGES)
def test_every_name_of_the_table_is_there(name):
    table = rows(PAGES[name])
    assert len(table) > 35
    for row in table:
        assert len(row) == 3 and row[0], row
        for code in re.findall(r"`([^`]+)`", row[1]):
            if code.startswith(("tfrl-", "--", '"', "'")):
                continue  # a command
            if re.fullmatch(r"[A-Z]\w+|tfrl\.[\w.]+|[A-Z]\w+\.\w+", code):
                owner, _, attribute = code.rpartition(".")
                there = resolved(code)
                if there is None and owner and attribute:
                    there = attribute in getattr(named(owner), "__dataclass_fields__", ())
                assert there, (row[0], code)
            elif "(" in code and "=..." not in code:
                assert not unknown(code), (row[0], code)


def test_names_that_are_not_there_are_found():
    assert unknown("PPO(hiden=(64,))") == ["PPO(hiden=)"]
    assert unknown("OnPolicyWorkflow(agent=PQO())") == ["PQO"]
    assert not unknown("workflow.learn(state, target_return=475.0)")
