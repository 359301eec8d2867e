"""The snippets of docs/own_tasks.md and docs/learner.md are run as they stand, in their order."""

import json
import re
import shlex
import sys
import types
from concurrent import futures

import pytest

from tests.docs_helpers import FILE_NAME, QUICK, ROOT, blocks, run, session, write_files

PAGE = (ROOT / "docs" / "own_tasks.md").read_text()
BLOCKS = blocks(PAGE)
SESSION = session(BLOCKS)  # the last block uses TensorFlow alone


# What is said outside of blocks is looked at in the session too: it has TensorFlow already.
CHECKS = """
import json
from tfrl.envs import Autoreset
from tfrl.launch import settings
from tfrl.workflows import RunOptions

assert metrics["env_steps"] == 256
assert workflow.report.stopped_by == "budget" and workflow.env_steps(state) == 2048
options = RunOptions(total_env_steps=1, eval_interval=1_000, target_return=0.5)
bindings = ["make_env.wrappers = (@ActionRepeat,)", "ActionRepeat.repeat = 2"]
built = settings.assemble(["ppo/tf_cartpole.gin"], bindings)
assert built.workflow.env.action_repeat == 2
said = [f"`max_to_keep` ({options.max_to_keep})", *(f"`{b}`" for b in bindings)]
print(json.dumps({"modes": [mode.name for mode in Autoreset], "said": said}))
"""
FORGET_TFRL = """
import sys
for name in [name for name in sys.modules if name.partition(".")[0] == "tfrl"]:
    del sys.modules[name]
"""
WRAPPED = "assert env.max_episode_steps == 25 and env.action_repeat == 2\n"


def python_session(folder):
    lines = [code + WRAPPED if "ActionRepeat(" in code else code for code in SESSION[:-1]]
    return run([sys.executable, "-c", "\n".join([QUICK, *lines, CHECKS])], folder)


def command_and_policy(folder):
    """Runs the page's one command, then the last Python block in a process of its own."""
    (commands,) = [code for kind, code in BLOCKS if kind == "bash"]
    program, *arguments = shlex.split(commands.replace("\\\n", " "))
    assert program == "tfrl-train"
    short = ["--gin_bindings=train.final_eval_episodes=8", "--gin_bindings=train.video=False"]
    run([sys.executable, str(ROOT / "bin" / "train.py"), *arguments, *short], folder)
    check = "print(action.shape, 'tfrl' in sys.modules)"
    return run([sys.executable, "-c", FORGET_TFRL + SESSION[-1] + check], folder)


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """A user's folder with the files of the page, and what its processes printed, run at once."""
    folder = tmp_path_factory.mktemp("user")
    assert write_files(BLOCKS, folder) == ["my_reach.gin", "my_tasks.py", "my_teams.py"]
    with futures.ThreadPoolExecutor(2) as pool:
        session_out = pool.submit(python_session, folder)
        policy_out = pool.submit(command_and_policy, folder)
    return types.SimpleNamespace(
        run=folder / "runs" / "reach", session=session_out, policy=policy_out
    )


def test_every_block_is_of_a_kind_that_is_run():
    assert {kind for kind, _ in BLOCKS} == {"python", "gin", "bash"}
    assert all(FILE_NAME.match(code) for kind, code in BLOCKS if kind == "gin")


def test_the_python_session_runs(page):
    stopped_by, left_return, _ = page.session.result().splitlines()
    assert stopped_by == "callback"
    assert 9 < float(left_return) <= 10


def test_the_policy_acts_with_tensorflow_alone(page):
    assert page.policy.result().split() == ["(5,)", "False"]


def test_the_binary_trains_the_users_task_with_the_users_policy(page):
    config = (page.run / "operative_config.gin").read_text()
    assert re.search(r"^PPO\.policy = @\S*make_policy$", config, flags=re.MULTILINE)
    assert re.search(r"^MLP\.hidden = \(32, 32\)$", config, flags=re.MULTILINE)
    assert "PPO.clip = 0.2" in config  # from the included file
    assert "PPO.normalize_obs = False" in config  # a default: what can be bound is listed


def test_the_summarys_fields_are_those_of_the_table(page):
    summary = json.loads((page.run / "summary.json").read_text())
    table = PAGE[PAGE.index("| `summary.json` |") :]
    rows = re.findall(r"^\| (`.*?`) \| [^|]", table, flags=re.MULTILINE)
    named = [name for row in rows for name in re.findall(r"`(\w+)`", row)]
    assert sorted(named) == sorted(summary)
    assert summary["env_steps"] == 4096 and summary["stopped_by"] == "budget"


def test_the_autoreset_table_names_every_mode(page):
    table = PAGE[PAGE.index("| `autoreset` |") :].split("\n\n")[0]
    named = re.findall(r"^\| `([A-Z_]+)`", table, flags=re.MULTILINE)
    assert sorted(named) == sorted(json.loads(page.session.result().splitlines()[-1])["modes"])


def test_what_is_said_outside_of_blocks_holds(page):
    for words in json.loads(page.session.result().splitlines()[-1])["said"]:
        assert words in PAGE, words


LEARNER = (ROOT / "docs" / "learner.md").read_text()
# What RLlib's Learner has too.
RLLIB_NAMES = """
build register_optimizer configure_optimizers configure_optimizers_for_module compute_losses
compute_loss_for_module compute_gradients postprocess_gradients postprocess_gradients_for_module
apply_gradients get_optimizer get_optimizers_for_module filter_param_dict_for_optimizer
get_parameters get_param_ref add_module remove_module should_module_be_updated update_from_batch
update_from_episodes update_from_iterator before_gradient_based_update after_gradient_based_update
rl_module_required_apis rl_module_is_compatible get_state set_state save_to_path restore_from_path
from_checkpoint
""".split()
LEARNER_CHECKS = """
import dataclasses
import inspect
import json
import tfrl.learners

methods = dict(inspect.getmembers(Learner, inspect.isfunction))
print(json.dumps({
    "arguments": {name: list(inspect.signature(f).parameters)[1:] for name, f in methods.items()},
    "names": dir(Learner),
    "exported": tfrl.learners.__all__,
    "settings": [field.name for field in dataclasses.fields(ModuleConfig)],
}))
"""


@pytest.fixture(scope="module")
def learner_page(tmp_path_factory):
    """What the session of docs/learner.md printed, and the names that there are."""
    lines = [QUICK, *session(blocks(LEARNER)), LEARNER_CHECKS]
    folder = tmp_path_factory.mktemp("learner")
    out = run([sys.executable, "-c", "\n".join(lines)], folder)
    *printed, names = out.splitlines()
    return types.SimpleNamespace(printed=printed, folder=folder, **json.loads(names))


def test_the_learner_session_prints_what_the_page_says(learner_page):
    said = learner_page.printed
    assert said[0].endswith(" 32")
    assert "which lacks ValueFunctionAPI: compute_values" in said[2]
    kernel, bias = map(float, said[3].split())
    assert (round(kernel, 6), round(bias, 6)) == (0.0005, 0.1)
    assert "[36 36]" in said.pop(4)
    assert said[4:6] == ["8.0", "6.0"]
    assert " > AgentToModule > ClipRewards > " in said[6]
    assert said[7] == "['__all_modules__', 'linear', 'second']"
    assert said[8] == "['counters', 'metrics', 'optimizer', 'rl_module', 'weights_seq_no']"
    assert said[9] == "True False"
    assert said[10].startswith("21.0 ")
    assert (learner_page.folder / "saved" / "learner" / "manifest.json").exists()


def test_the_page_names_what_the_learner_has(learner_page):
    table = LEARNER[LEARNER.index("| RLlib | here | difference |") :]
    missing = [n for n in RLLIB_NAMES if n not in learner_page.names or f"`{n}" not in table]
    assert not missing
    prose = re.sub(r"```.*?```", "", LEARNER, flags=re.DOTALL)
    assert not [field for field in learner_page.settings if f"`{field}`" not in prose]
    theirs = {"RLModule", "MultiRLModule", "AgentToModule"}
    exported = re.findall(r"`(\w+API|DEFAULT_\w+|ALL_MODULES|\w*Module)`", prose)
    assert set(exported) - theirs <= set(learner_page.exported)


def test_the_hooks_have_the_arguments_that_the_page_says(learner_page):
    table = LEARNER[LEARNER.index("| method | override it for |") :].split("\n\n")[0]
    hooks = re.findall(r"`(\w+)\(([^)]*)\)`", table)
    assert len(hooks) == 13
    for name, said in hooks:
        assert [x.strip(" =") for x in said.split(",") if x] == learner_page.arguments[name], name
