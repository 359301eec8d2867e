"""Snippets, commands and tables of docs/algorithms/ and docs/custom_*.md; names in all pages."""

import json
import pkgutil
import re
import shlex
import sys
import types
from concurrent import futures
from importlib.util import find_spec

import pytest

from tests.agents import registered
from tests.docs_helpers import QUICK, ROOT, blocks, run, search_pages, session, write_files

DOCS = ROOT / "docs"
PAGES = {p.stem: p.read_text() for p in sorted((DOCS / "algorithms").glob("*.md"))}
INDEX = PAGES.pop("README")
SEARCHES = [PAGES.pop(name) for name in search_pages()]  # tests/evolution/test_docs.py
# Those that OffPolicyWorkflow trains.
OFF_POLICY = {registered.folder(cls) for cls in registered.OFF_POLICY}
ENVIRONMENT, NETWORK = (
    (DOCS / f"custom_{name}.md").read_text() for name in ("environment", "network")
)
EVERY = {"README": INDEX, **PAGES, "environment": ENVIRONMENT, "network": NETWORK}
WRITTEN = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted(DOCS.rglob("*.md"))]

# What is appended to the sessions of pages prints one line of JSON.
ASSEMBLED = """
import json
from tfrl.launch import settings

def built(file):
    workflow = settings.assemble([file]).workflow
    return [repr(part) for part in (workflow.env, workflow.agent, workflow.eval_env)]
"""
# The checks of a page are long: a few steps of each say the same.
FEWER_STEPS = """
import functools
import tfrl.envs
from tfrl.envs import checker

tfrl.envs.check_env = functools.partial(checker.check_env, steps=10)
"""
# One environment for each row of the page's table of messages.
MISTAKES = """
import numpy as np
from tfrl.envs.core import initial_state

Forage = my_forage.Forage
spoil = lambda nest, **changed: {**nest, **changed}

class NoSpec(Forage):
    obs_spec = property(lambda self: spoil(super().obs_spec, food=6))

class Leaves(Forage):
    def step(self, state, action):
        new = super().step(state, action)
        return new.replace(obs={"cell": new.obs["cell"]})

class OneKey(Forage):
    def reset(self, key):
        new = super().reset(key)
        return new.replace(env_state=spoil(new.env_state, key=key))

class Pays(Forage):
    def reset(self, key):
        return super().reset(key).replace(reward=tf.ones([self.num_envs]))

class Comes(Forage):
    def reset(self, key):
        new = super().reset(key)
        return new.replace(info={"action_mask": new.info["action_mask"]})

class Draws(Forage):
    def step(self, state, action):
        return super().step(state, action).replace(reward=tf.random.uniform([self.num_envs]))

class Deaf(Forage):
    def reset(self, key):
        return super().reset(seeding.key(7))

class Alike(Forage):
    def reset(self, key):
        return tf.nest.map_structure(lambda x: tf.repeat(x[:1], 4, 0), super().reset(key))

class Reads(Forage):
    def step(self, state, action):
        return super().step(state, action + 0 * state.obs["cell"])

class Branches(Forage):
    def step(self, state, action):
        if action[0] == 0:
            action = action + 1
        return super().step(state, action)

class Infinite(Forage):
    def _see(self, task):
        return spoil(super()._see(task), eaten=tf.fill([self.num_envs, 1], np.inf))

class Wide(Forage):
    def _see(self, task):
        return spoil(super()._see(task), eaten=tf.fill([self.num_envs, 1], 2.0))

said = []
kinds = [NoSpec, Careless, Leaves, OneKey, Pays, Comes, Draws, Deaf, Alike, Reads, Branches]
for kind in [*kinds, Infinite, Wide]:
    try:
        check_env(kind(num_envs=4))
        said.append(f"{kind.__name__} passes")
    except UserError as error:
        said.append(str(error))
print(json.dumps({"said": said, "forage": built("my_forage.gin")}))
"""
NETWORKS = """
print(json.dumps({name: built(f"my_{name}.gin") for name in ("networks", "memory")}))
"""
REWARDS = """
print(json.dumps(built("my_rewards.gin")))
"""
# A page may use its own imports only.
OTHER_SESSIONS = """
import sys
for other in sys.argv[1:3]:
    exec(other, {"__name__": "page"})
    print("end of a page")
"""
# Trains the agents of the algorithms' pages for a moment, and tells the columns of metrics.csv.
COLUMNS = """
import csv
import functools
import json
import tfrl
from tfrl.replay import InGraphReplay
from tfrl.workflows import OffPolicyWorkflow, OnPolicyWorkflow

ON = functools.partial(OnPolicyWorkflow, num_epochs=1, num_minibatches=1)
OFF = functools.partial(
    OffPolicyWorkflow,
    replay=functools.partial(InGraphReplay, capacity=100),
    batch_size=2,
    random_steps=8,  # some items of 3 steps
    iterations_per_row=1,
)

def columns(agent, env, root_dir, template=ON, env_steps=4):
    env_id, wrappers = env
    make = lambda **options: tfrl.make_env(env_id, num_envs=2, wrappers=wrappers, **options)
    eval_env = make(autoreset="DISABLED", max_episode_steps=2)
    sizes = {"rollout_length": 2, "eval_episodes": 2, "iterations_per_call": 1}
    workflow = template(env=make(), eval_env=eval_env, agent=agent, compile="eager", **sizes)
    state, each = workflow.setup(seed=0), {"eval_interval": env_steps, "progress": False}
    workflow.learn(state, total_env_steps=env_steps, root_dir=root_dir, **each)
    with open(root_dir + "/metrics.csv") as file:
        return next(csv.reader(file))

found = {}
for page, code in json.loads(sys.argv[3]).items():
    names = {"__name__": page}
    exec(code, names)
    if page in ("dqn", "sac", "td3"):
        env = ("tf:CartPole-v1" if page == "dqn" else "tf:Pendulum-v1", ())
        for name in {"agent", "plain"} & set(names):
            of = page if name == "agent" else "ddpg"
            found[of] = columns(names[name], env, of, OFF, 16)
        continue
    several = page == "ippo_mappo"
    env = ("tf:CartPole-v1", ())
    if several:
        env = ("tf:Relay-v0", (lambda e: names["CentralState"](env=e),))
    found[page] = columns(names["agent"], env, page)
    for other in ("penalty", "recurrent"):
        if other in names:
            found[other] = columns(names[other], env, other)
    if several:
        found["separate"] = columns(names["separate"], ("tf:Relay-v0", ()), "separate")
print(json.dumps(found))
"""


def python(code, folder, *arguments):
    return run([sys.executable, "-c", code, *arguments], folder).splitlines()


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """What the sessions of all pages printed: one process for environments, one for the others."""
    environment, others = (tmp_path_factory.mktemp(name) for name in ("environment", "others"))
    write_files(blocks(ENVIRONMENT), environment)
    write_files([*blocks(NETWORK), *blocks(INDEX)], others)
    lines = [QUICK, FEWER_STEPS, *session(blocks(ENVIRONMENT)), ASSEMBLED, MISTAKES]
    network = "\n".join([*session(blocks(NETWORK)), ASSEMBLED, NETWORKS])
    index = "\n".join([*session(blocks(INDEX)), ASSEMBLED, REWARDS])
    sessions = {page: "\n".join(session(blocks(text))) for page, text in PAGES.items()}
    with futures.ThreadPoolExecutor(2) as pool:
        first = pool.submit(python, "\n".join(lines), environment)
        arguments = (network, index, json.dumps(sessions))
        second = pool.submit(
            python, "\n".join([QUICK, OTHER_SESSIONS, COLUMNS]), others, *arguments
        )
    *printed, columns = second.result()
    end = printed.index("end of a page")
    return types.SimpleNamespace(
        environment=first.result(),
        network=printed[:end],
        README=printed[end + 1 : -1],
        columns=json.loads(columns),
    )


def test_every_block_is_run_or_is_text():
    kinds = {kind for page in EVERY.values() for kind, _ in blocks(page)}
    assert kinds == {"python", "gin", "bash", "text"}


@pytest.mark.parametrize(("name", "least"), [("environment", 6), ("network", 6), ("README", 2)])
def test_a_session_prints_what_its_comments_say(ran, name, least):
    code = "\n".join(session(blocks(EVERY[name])))
    comments = re.findall(r"^ *print\(.*\)  # (.*)$", code, flags=re.MULTILINE)
    assert code.count("print(") == len(comments) >= least
    *printed, _ = getattr(ran, name)
    for line, comment in zip(printed, comments, strict=True):
        start, dots, _ = comment.partition(" ...")
        assert line.startswith(start) if dots else line == comment


def test_the_table_has_the_messages_of_check_env(ran):
    table = ENVIRONMENT[ENVIRONMENT.index("| the message begins with |") :].split("\n\n")[0]
    rows = re.findall(r"^\| `(.*?)` \|", table, flags=re.MULTILINE)
    said = json.loads(ran.environment[-1])["said"]
    for message in said:
        assert any(message.startswith(row) for row in rows), message
    assert all(any(message.startswith(row) for message in said) for row in rows)


def test_the_gin_files_of_the_pages_build_what_they_say(ran):
    env, agent, _ = json.loads(ran.environment[-1])["forage"]
    assert "ShowTime" in env and "size=8" in env and agent.startswith("PPO(")
    found = json.loads(ran.network[-1])
    _, agent, _ = found["networks"]
    assert "Residual(size=32" in agent and "hidden=(128, 128)" in agent
    assert "squash=True, state_dependent_std=True" in agent
    _, agent, _ = found["memory"]
    assert "memory='gru'" in agent and "activation='relu'" in agent
    env, agent, eval_env = json.loads(ran.README[-1])
    assert env.startswith("RewardClip(") and "low=-10.0, high=10.0" in env
    for part in ("RewardNormalize(", "discount=0.98"):
        assert part in env and part not in eval_env
    assert "discount=0.98" in agent


def names_of(page, heading):
    """The names in the first column of a page's table of metrics, `<...>` for any name."""
    table = page[page.index(heading) :].split("\n\n")
    rows = next(part for part in table if part.startswith("| name"))
    found = re.findall(r"^\| (`.*?`) \|", rows, flags=re.MULTILINE)
    return [name for row in found for name in re.findall(r"`(\S+)`", row)]


def unlike(names, columns):
    """Names that no column has, and columns that no name stands for."""
    patterns = {n: re.sub(r"<\w+>", r"[^/]+", n) for n in names}
    # No step of a run that is sound is left out, and not every run has both statistics.
    missing = [n for n, p in patterns.items() if not any(re.fullmatch(p, c) for c in columns)]
    missing = [n for n in missing if not n.endswith(("nonfinite/<term>", "_outliers"))]
    return missing, [c for c in columns if not any(re.fullmatch(p, c) for p in patterns.values())]


def test_the_table_of_metrics_is_that_of_a_run(ran):
    columns = ran.columns
    shared = names_of(INDEX, "## Metrics of every run")
    for page, text in PAGES.items():
        own = names_of(text, "## Metrics")
        assert len(own) == len(set(own)) and not set(own) & set(shared)
        runs = {
            "ppo": ["ppo", "penalty", "recurrent"],
            "ippo_mappo": [page, "separate"],
            "td3": ["td3", "ddpg"],
        }
        found = {c for name in runs.get(page, [page]) for c in columns[name]}
        assert unlike([*shared, *own], found) == ([], []), page
    for cls in (*registered.ON_POLICY, *registered.OFF_POLICY):
        name = {"td3": cls.__name__.lower()}.get(registered.folder(cls), registered.folder(cls))
        assert 2 <= len(cls.screen_metrics) <= 3
        assert set(cls.screen_metrics) <= set(columns[name]), name
    assert "kl_coef" in columns["penalty"] and "kl_coef" not in columns["ppo"]


def commands(page):
    """The commands of a page, each as its arguments."""
    lines = [x for kind, code in blocks(page) if kind == "bash" for x in code.splitlines()]
    split = [shlex.split(line) for line in lines]
    assert all(words[0] == "tfrl-train" for words in split)
    return [words[1:] for words in split]


COMMANDS = [(name, words) for name, page in EVERY.items() for words in commands(page)]


def test_there_are_the_files_that_commands_and_pages_name():
    assert {name for name, _ in COMMANDS} == {*PAGES, "environment", "network"}
    for name, words in COMMANDS:
        (file,) = [w.removeprefix("--gin_file=") for w in words if w.startswith("--gin_file=")]
        shipped = ROOT / "gin_configs" / file
        assert shipped.is_file() or f"# {file}\n" in EVERY[name], file


def inline(path):
    """The inline code of a page."""
    text = re.sub(r"```\w*\n.*?```", "", path.read_text(), flags=re.DOTALL)
    return re.findall(r"`([^`\n]+)`", text)


def dotted(path):
    """The names of tfrl in the inline code of a page, such as tfrl.learners.Learner."""
    return sorted({name for code in inline(path) for name in re.findall(r"tfrl(?:\.\w+)+", code)})


@pytest.mark.parametrize("path", WRITTEN, ids=lambda p: p.relative_to(ROOT).as_posix())
def test_the_names_and_files_of_a_page_exist(path):
    for name in dotted(path):
        if re.match(r"tfrl\.compat\.tf_agents\b", name) and not find_spec("tf_agents"):
            continue
        try:
            pkgutil.resolve_name(name)
        except (ImportError, AttributeError) as error:
            pytest.fail(f"{name}: {error}")
    folders = r"\b((?:tfrl|tests|benchmarks|bin|gin_configs)/[\w./]*\w)"
    for file in {file for code in inline(path) for file in re.findall(folders, code)}:
        assert (ROOT / file).exists(), file


def test_names_are_found_in_inline_code():
    assert "tfrl.envs.action_masks.split_mask" in dotted(DOCS / "custom_network.md")
    assert "tfrl.learners.Learner" in dotted(DOCS / "learner.md")


def test_the_links_between_pages_lead_somewhere():
    for name, page in EVERY.items():
        folder = DOCS if name in ("environment", "network") else DOCS / "algorithms"
        for target in re.findall(r"\]\(([^)#]+\.md)", page):
            assert (folder / target).is_file(), f"{name}: {target}"


@pytest.mark.slow
@pytest.mark.parametrize(("name", "words"), COMMANDS, ids=[f"{n}-{w[0][11:]}" for n, w in COMMANDS])
def test_a_command_trains(name, words, tmp_path):
    write_files(blocks(EVERY[name]), tmp_path)
    root = tmp_path / "runs" / "short"
    short = ["train.total_env_steps=2_048", "train.final_eval_episodes=4", "train.video=False"]
    template = "OffPolicyWorkflow" if name in OFF_POLICY else "OnPolicyWorkflow"
    short += ["train.eval_interval=None", f'{template}.compile="graph"']
    bindings = [f"--gin_bindings={binding}" for binding in short]
    program = [sys.executable, str(ROOT / "bin" / "train.py")]
    words = [w for w in words if not w.startswith("--root_dir")]
    run([*program, *words, f"--root_dir={root}", *bindings], tmp_path)
    summary = json.loads((root / "summary.json").read_text())
    assert summary["env_steps"] >= 2_048 and summary["eval_episodes"] == 4
