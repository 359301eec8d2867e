"""A training run from Python."""

import json
import pathlib

import pytest

import tfrl
from tests.launch.launch_runs import TINY
from tfrl.errors import UserError
from tfrl.launch import gin_files

FILE = "ppo/tf_cartpole.gin"
BINDINGS = dict(text.split("=", 1) for text in TINY)
# The values of flags are lines of gin; those of Python are objects.
VALUES = {
    **{name: int(text) for name, text in BINDINGS.items() if text.isdigit()},
    "PPO.discount": 0.99,
    "OnPolicyWorkflow.compile": "graph",
    "strategy": "one_device",  # pytest has several CPUs
}


def train(root, **bindings):
    return tfrl.train(FILE, root_dir=root, video=False, progress=False, **{**VALUES, **bindings})


def rates(root):
    """The learning rates of a run's iterations."""
    rows = [json.loads(line) for line in (root / "metrics.jsonl").read_text().splitlines()]
    return [row["learning_rate"] for row in rows if "learning_rate" in row]


def test_it_trains_and_goes_on_with_the_run(tmp_path, capsys):
    root = tmp_path / "run"
    first = train(root, total_env_steps=64)
    assert first == json.loads((root / "summary.json").read_text())
    assert (first["env_steps"], first["eval_episodes"]) == (64, 4)
    assert rates(root) == pytest.approx([5e-4, 2.5e-4])  # it falls over the budget
    second = tfrl.train(root_dir=root, total_env_steps=128, strategy="one_device")
    assert second["env_steps"] == 128
    assert "going on at 64 of 128 env steps" in capsys.readouterr().out
    assert rates(root)[2:] == pytest.approx([2.5e-4, 1.25e-4])  # and over the larger one
    assert (root / "operative_config.gin").is_file()
    stored = json.loads((root / "metadata.json").read_text())["configuration"]
    assert stored["train.total_env_steps"] == stored["LinearSchedule.steps"] == "128"
    again = {"PPO.entropy_coef": 0, "make_env.info_fields": [], "LinearSchedule.end": 0}
    assert tfrl.train(root_dir=root, strategy="one_device", **again) == second  # equal values
    with pytest.raises(UserError, match="PPO.entropy_coef = '0.1' .the run has"):
        tfrl.train(root_dir=root, strategy="one_device", **{"PPO.entropy_coef": 0.1})
    with pytest.raises(UserError, match="if_exists=fail"):
        train(root, total_env_steps=128, if_exists="fail")
    with pytest.raises(UserError, match="if_exists: expected .*got .resum"):
        train(root, total_env_steps=128, if_exists="resum")


def test_names_without_a_dot():
    """A file may use a macro without defining it."""
    assert gin_files.macro_names(gin_files.read(["ppo/base.gin"])) == {"env_id"}
    file = pathlib.Path("ppo/base.gin")
    with pytest.raises(UserError, match="No-v1"):
        tfrl.train(file, "unused", env_id="tf:No-v1", strategy="one_device")


@pytest.mark.parametrize("files", [1, [FILE, 2], {FILE: 1}])
def test_what_is_no_path_is_no_gin_file(files):
    with pytest.raises(UserError, match="gin_files: expected the path of a gin file, or a list"):
        tfrl.train(files, "unused")


@pytest.mark.parametrize(
    ("bindings", "message"),
    [
        ({"total_env_stps": 64}, "train.total_env_stps"),
        ({"PPO.discont": 0.9}, "PPO.discont"),
        ({"strategy": "miror"}, "strategy"),
        ({"callbacks": print}, "callbacks: expected objects with at least one of the methods"),
        ({"PPO.discount": [object()]}, "Gin binding PPO.discount: expected a Python literal"),
        ({"total_env_steps": 0}, "total_env_steps: expected a whole number of at least 1, got 0"),
        ({"env_id": "tf:CartPole-v7"}, "CartPole-v7"),  # a macro of the file
        ({"eval/make_env.env_id": "tf:Pendulum-v1"}, "the macro env_id"),
    ],
)
def test_a_mistake_is_named_and_leaves_no_folder(tmp_path, bindings, message):
    with pytest.raises(UserError, match=message) as error:
        train(tmp_path / "run", **bindings)
    assert "\n" not in str(error.value)
    assert not (tmp_path / "run").exists()
