"""The page docs/from_tf_agents.md: every snippet runs, theirs and ours, with smaller numbers."""

import contextlib
import io
import re
import shlex
import sys

import pytest
from tf_agents.environments import suite_gym  # noqa: F401  (gym's notices come before the snippets)

from tests import docs_helpers
from tests.docs_helpers import ROOT, blocks, session
from tfrl.compat import tf_agents as compat

PAGE = (ROOT / "docs" / "from_tf_agents.md").read_text()
# What is made smaller, in each part of the page.
SMALL = {
    "DQN on CartPole": {
        "num_iterations = 20_000": "num_iterations = 20",
        "eval_episodes = 10": "eval_episodes = 2",
        "total_env_steps=20_000": "total_env_steps=300",
        "eval_episodes=10": "eval_episodes=2, compile='graph'",
        "capacity=100_000": "capacity=1_000",
    },
    "SAC with Actor and Learner": {
        "num_iterations = 20_000": "num_iterations = 3",
        "initial_collect_steps = 1_000": "initial_collect_steps = 300",
        "eval_episodes = 20": "eval_episodes = 1",
        "(256, 256)": "(16, 16)",
        "total_env_steps=20_000": "total_env_steps=310",
        "eval_interval=5_000": "eval_interval=310",
        "random_steps=1_000": "random_steps=300",
        "eval_episodes=20": "eval_episodes=2, compile='graph'",
    },
    "PPO": {
        "num_iterations = 50": "num_iterations = 2",
        "num_envs = 8": "num_envs = 2",
        "episodes_per_iteration = 16": "episodes_per_iteration = 2",
        "num_epochs = 10": "num_epochs = 2",
        "eval_episodes = 10": "eval_episodes = 2",
        "rollout_length=128": "rollout_length=16",
        "total_env_steps=100_000": "total_env_steps=256",
        "eval_episodes=10": "eval_episodes=2, compile='graph'",
    },
    "Experience": {
        "total_env_steps=10_000": "total_env_steps=300",
        "eval_episodes=4": "eval_episodes=2, compile='graph'",
    },
}


def parts():
    """The text of each session: a part and the ones behind it that begin with no import of tfrl."""
    found, name = {}, None
    for title, text in re.findall(r"^## (.*?)\n(.*?)(?=^## |\Z)", PAGE, re.DOTALL | re.MULTILINE):
        code = session(blocks(text))
        if code and code[0].find("import tfrl") >= 0 and re.search(r"^import tfrl", code[0], re.M):
            name = title
            found[name] = []
        if code:
            found[name] += code
    return found


def run(name):
    """Runs a part with smaller numbers; returns what it printed, by lines."""
    code = parts()[name]
    for old, new in SMALL[name].items():
        assert any(old in snippet for snippet in code), old
        code = [snippet.replace(old, new) for snippet in code]
    printed, names = io.StringIO(), {}
    with contextlib.redirect_stdout(printed):
        for snippet in code:
            exec(compile(snippet, "from_tf_agents.md", "exec"), names)  # noqa: S102
    return printed.getvalue().splitlines(), names


def figures(lines):
    """The returns that both sides print."""
    told = dict(line.split(": ") for line in lines if re.match(r"(theirs|ours): ", line))
    return float(told["theirs"]), float(told["ours"])


def test_all_code_is_in_a_session():
    code = [c for kind, c in blocks(PAGE) if kind == "python"]
    assert sum(map(len, parts().values())) == len(code)
    assert list(parts()) == list(SMALL)


def test_dqn():
    lines, names = run("DQN on CartPole")
    assert min(figures(lines)) > 5
    assert int(names["agent"].train_step_counter) == 20
    assert names["workflow"].env_steps(names["state"]) == 300


@pytest.mark.slow
def test_sac():
    lines, names = run("SAC with Actor and Learner")
    assert max(figures(lines)) < 0
    assert int(names["train_step"]) == 3
    assert "checkpoints" in lines[-1] and "metrics.csv" in lines[-1]


@pytest.mark.slow
def test_ppo():
    lines, _ = run("PPO")
    assert min(figures(lines)) > 5


@pytest.mark.slow
def test_the_rest():
    lines, _ = run("Experience")
    told = re.findall(r"^print\(.*\)  # (.*)$", "\n".join(parts()["Experience"]), re.MULTILINE)
    told = [text.replace("10000", "300") for text in told]
    assert len(told) == len(lines)
    for wanted, line in zip(told, lines, strict=True):
        if wanted.endswith(", ..."):
            names = wanted.removesuffix(", ...").split(", ")
            assert all(repr(name) in line for name in names), line
        else:
            assert line == wanted


@pytest.mark.slow
def test_commands(tmp_path):
    (commands,) = (code for kind, code in blocks(PAGE) if kind == "bash")
    fewer = "--gin_bindings='train.total_env_steps=512' --gin_bindings='train.eval_interval=512'"
    for line in commands.splitlines():
        program, *rest = shlex.split(line)
        if program == "tfrl-train":
            rest += shlex.split(fewer)
        command = [sys.executable, ROOT / "bin" / f"{program.removeprefix('tfrl-')}.py", *rest]
        printed = docs_helpers.run([str(part) for part in command], tmp_path)
    assert "episodes" in printed


def test_names():
    used = set(re.findall(r"compat\.(\w+)\(", PAGE))
    told = set(re.findall(r"`(\w+)`", PAGE.split("## DQN on CartPole")[0]))
    assert used <= set(compat.__all__)
    assert {name for name in told if "_" in name} <= set(compat.__all__)


@pytest.mark.parametrize("link", re.findall(r"\]\(#(.*?)\)", PAGE))
def test_anchors(link):
    titles = re.findall(r"^## (.*)$", PAGE, re.MULTILINE)
    assert link in {re.sub(r"[^a-z0-9 -]", "", t.lower()).replace(" ", "-") for t in titles}
