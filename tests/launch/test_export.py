import importlib.util
import json
import shlex
import shutil
import subprocess
import sys

import numpy as np
import pytest

from tests.docs_helpers import ROOT, blocks, session
from tests.launch import launch_runs
from tests.launch.launch_runs import arguments, in_process, run
from tfrl.launch import export


@pytest.fixture(name="trained", scope="module")
def fixture_trained(tmp_path_factory):
    root = tmp_path_factory.mktemp("trained") / "run"
    args = arguments(root, 256, "train.video=False", "train.eval_interval=128",
                     "train.checkpoint_interval=64", "train.max_to_keep=10",
                     "PPO.normalize_obs=True")  # fmt: skip
    done = run("train", *args)
    assert done.returncode == 0, done.stderr
    return root


@pytest.fixture(name="call")
def fixture_call(capsys):
    defaults = ("--format=saved_model", "--checkpoint=latest", "--verify", "--nooverwrite",
                "--noquantize", "--if_exists=resume")  # fmt: skip
    return lambda *args: in_process(export.main, capsys, *defaults, *args)


def _done(result):
    code, out, err = result
    assert (code, err) == (0, "")
    return json.loads(out.splitlines()[-1])


def _paragraph(result):
    code, out, err = result
    assert code == 2 and err.startswith("Error: ") and err.count("\n") == 1
    return err.removeprefix("Error: ").rstrip("\n")


def test_process_writes_a_saved_model_with_its_metadata(trained):
    before = launch_runs.tree(trained)
    done = run("export", f"--root_dir={trained}")
    assert (done.returncode, done.stderr) == (0, "")
    told = json.loads(done.stdout.splitlines()[-1])
    folder = trained / "export" / "saved_model"
    assert told == {
        "output_dir": str(folder), "format": "saved_model", "checkpoint": "ckpt-256",
        "env_steps": 256, "signatures": ["action", "explore", "distribution"],
        "verified": True, "max_error": None, "equal": 1.0,
    }  # fmt: skip
    metadata = json.loads((folder / "metadata.json").read_text())
    assert (metadata["env_id"], metadata["env_steps"]) == ("tf:CartPole-v1", 256)
    assert metadata["learner_steps"] == 32
    summary = launch_runs.summary(trained)
    assert metadata["evaluation"]["eval_return_mean"] == summary["eval_return_mean"]
    assert metadata["params_digest"] == summary["params_digest"]
    assert {"tfrl", "tensorflow", "numpy"} <= set(metadata["versions"])
    assert metadata["gin"] == (trained / "operative_config.gin").read_text()
    (observation,) = metadata["specs"]["observation"]
    assert (observation["name"], observation["shape"]) == ("observation", [4])
    assert observation["maximum"][1] is None and observation["maximum"][0] == pytest.approx(4.8)
    (action,) = metadata["specs"]["action"]
    assert (action["dtype"], action["num_values"]) == ("int64", 2)
    assert metadata["distribution"]["."]["kind"] == "categorical"
    checked = metadata["verification"]
    assert (checked["observations"], checked["tolerance"]) == (1000, 1e-5)
    after = launch_runs.tree(trained)
    assert {k: v for k, v in after.items() if k.parts[0] != "export"} == before


@pytest.mark.slow
def test_tf_agents_reads_a_policy_and_the_checkpoints_of_others(call, trained, tmp_path):
    import tensorflow as tf
    from tf_agents.trajectories import time_step

    first, later = tmp_path / "first", tmp_path / "later"
    flags = (f"--root_dir={trained}", "--format=tf_agents")
    told = _done(call(*flags, f"--output_dir={later}"))
    assert told["verified"] and told["equal"] == 1.0
    assert sorted(p.name for p in later.iterdir()) == [
        "checkpoints", "collect_policy", "metadata.json", "policy",
    ]  # fmt: skip
    _done(call(*flags, f"--output_dir={first}", "--checkpoint=64", "--noverify"))
    names = sorted(p.name for p in (first / "checkpoints").iterdir())
    assert names == ["collect_policy_checkpoint_0000000008", "policy_checkpoint_0000000008"]
    checkpoint = first / "checkpoints" / names[1]
    policy, wanted = _theirs(later / "policy"), _theirs(first / "policy")
    observation = np.random.default_rng(0).normal(size=[4000, 4]).astype(np.float32)
    step = tf.nest.map_structure(tf.constant, time_step.restart(observation, 4000))
    expected = wanted.action(step).action.numpy()
    assert policy.get_train_step() == 32
    assert (policy.action(step).action.numpy() != expected).any()
    policy.update_from_checkpoint(str(checkpoint))
    assert policy.get_train_step() == 8
    assert (policy.action(step).action.numpy() == expected).all()


def _theirs(folder):
    from tf_agents.policies import SavedModelPyTFEagerPolicy

    return SavedModelPyTFEagerPolicy(
        str(folder), load_specs_from_pbtxt=True, batch_time_steps=False
    )


@pytest.mark.slow
def test_tflite_and_onnx_of_any_checkpoint(call, trained, tmp_path):
    folder = tmp_path / "tflite"
    flags = (f"--root_dir={trained}", "--noverify", f"--output_dir={folder}")
    told = _done(call(*flags, "--format=tflite", "--checkpoint=64"))
    assert (told["checkpoint"], told["verified"], told["equal"]) == ("ckpt-64", False, None)
    metadata = json.loads((folder / "metadata.json").read_text())
    assert metadata["verification"] is None and metadata["evaluation"] is None
    place = trained / "checkpoints" / "ckpt-128"
    quantised = ("--format=tflite", "--quantize", "--overwrite", f"--checkpoint={place}")
    assert _done(call(*flags, *quantised))["checkpoint"] == "ckpt-128"
    metadata = json.loads((folder / "metadata.json").read_text())
    assert metadata["export"]["quantized"] and metadata["evaluation"]["env_steps"] == 128
    assert sorted(p.name for p in tmp_path.iterdir()) == ["tflite"]
    if not all(importlib.util.find_spec(n) for n in ("tf2onnx", "onnxruntime")):
        pytest.skip("the extra 'export' is not installed")
    told = _done(call(f"--root_dir={trained}", "--format=onnx", f"--output_dir={tmp_path / 'o'}"))
    assert told["verified"] and told["equal"] == 1.0 and told["signatures"] == [
        "action", "distribution",
    ]  # fmt: skip
    import onnxruntime

    session = onnxruntime.InferenceSession(tmp_path / "o" / "action.onnx")
    (action,) = session.run(None, {"observation": np.zeros([3, 4], np.float32)})
    assert action.shape == (3,)


def test_mistakes(call, trained, tmp_path, monkeypatch):
    flag = f"--root_dir={trained}"
    assert _paragraph(call()).startswith("--root_dir: expected the folder of a run, got no value.")
    assert "got no folder at" in _paragraph(call(f"--root_dir={tmp_path / 'missing'}"))
    text = _paragraph(call(flag, "--format=coreml"))
    assert text.startswith("Flag --format: expected one of saved_model, tf_agents, tflite, onnx")
    text = _paragraph(call(flag, "--quantize"))
    assert text.startswith("--quantize: expected --format=tflite, which alone supports 8-bit")
    text = _paragraph(call(flag, f"--output_dir={tmp_path / 'a'}", "--checkpoint=100"))
    assert text.startswith("checkpoint 100 of ") and "64, 128, 192, 256" in text
    text = _paragraph(call(flag, f"--output_dir={tmp_path / 'a'}", "--checkpoint=newest"))
    assert text.startswith(
        "--checkpoint=newest: expected latest, best, a number of env steps, or a folder ckpt-"
    )
    assert not (tmp_path / "a").exists()
    # A folder that is no export is never replaced, a run least of all.
    for place in (tmp_path, trained):
        text = _paragraph(call(flag, f"--output_dir={place}", "--overwrite"))
        assert text.startswith(f"--output_dir={place}: expected a new folder")
        assert text.endswith("got something else. Choose another --output_dir.")
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "metadata.json").write_text('{"format": "onnx"}')
    text = _paragraph(call(flag, f"--output_dir={tmp_path / 'there'}"))
    assert text.endswith("got an export that is there already. Pass --overwrite to replace it.")
    found = importlib.util.find_spec
    monkeypatch.setattr(
        export.importlib.util, "find_spec", lambda n: None if n == "tf2onnx" else found(n)
    )
    assert _paragraph(call(flag, "--format=onnx", f"--output_dir={tmp_path / 'b'}")) == (
        "--format=onnx: expected the extra 'export' to be installed, got no module named tf2onnx. "
        "Install it with: pip install 'tfrl[export]'"
    )


def test_no_checkpoint_yet(call, trained, tmp_path):
    root = tmp_path / "run"
    root.mkdir()
    (root / "operative_config.gin").write_bytes((trained / "operative_config.gin").read_bytes())
    assert _paragraph(call(f"--root_dir={root}")) == (
        f"--root_dir={root}: expected a run with a checkpoint, got none so far. Wait for the "
        "first checkpoint of the training."
    )
    assert sorted(p.name for p in root.iterdir()) == ["operative_config.gin"]


def test_what_does_not_act_as_the_policy_is_not_written(call, trained, tmp_path, monkeypatch):
    from tfrl.experiment import export_verify

    def spoilt(form, folder, policy, observations):
        return {"action/action": np.full([1, 1000], 7, np.int64)}

    monkeypatch.setattr(export_verify, "client_answers", spoilt)
    place = tmp_path / "exports" / "policy"
    code, _, err = call(f"--root_dir={trained}", f"--output_dir={place}")
    assert code == 2 and "verification of --format=saved_model" in err
    assert list((tmp_path / "exports").iterdir()) == []


PAGE = (ROOT / "docs" / "export.md").read_text()
WITHOUT_TFRL = """
import sys
sys.modules["tfrl"] = None  # so that importing it fails
"""


@pytest.mark.slow
def test_the_commands_and_the_code_of_the_page(call, trained, tmp_path, monkeypatch):
    if not all(importlib.util.find_spec(n) for n in ("tf2onnx", "onnxruntime")):
        pytest.skip("the extra 'export' is not installed")
    copied = launch_runs.copy_of(trained, tmp_path / "runs" / "cartpole")
    shutil.rmtree(copied / "export", ignore_errors=True)
    monkeypatch.chdir(tmp_path)
    (commands,) = [code for kind, code in blocks(PAGE) if kind == "bash"]
    formats = []
    for line in commands.strip().splitlines():
        program, *flags = shlex.split(line)
        assert program == "tfrl-export"
        formats.append(_done(call(*flags, "--noverify"))["format"])
    assert sorted(formats) == sorted(export.FORMATS)
    code = WITHOUT_TFRL + "\n".join(session(blocks(PAGE))) + "print(action.shape, step.action)"
    done = subprocess.run(
        [sys.executable, "-I", "-c", code],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[0] == "(1,)"


def test_the_page_names_every_flag_and_every_entry(trained):
    table = PAGE[PAGE.index("| `format`, `created`") :]
    named = {n for row in table.splitlines() for n in row.split("|")[1:2]}
    entries = {n.strip(" `") for cell in named for n in cell.split(",")}
    saved = trained / "export" / "saved_model" / "metadata.json"
    if saved.exists():  # written by the first test of this file
        assert set(json.loads(saved.read_text())) <= entries
    for flag in ("format", "checkpoint", "output_dir", "overwrite", "quantize"):
        assert f"`--{flag}`" in PAGE
