"""What another TensorFlow wrote: runs, policies and checkpoints go from either stack to the other.

The folders under data/ were written by `tests.stacks.make`, on each stack. They stay as they are.
"""

import json
import shutil

import numpy as np
import pytest
import tensorflow as tf

import tfrl
from tests.experiment.export_in_process import in_process
from tests.stacks import make
from tfrl import seeding
from tfrl.experiment.export_verify import verify

FOLDERS = sorted(make.DATA.iterdir())
each = pytest.mark.parametrize("folder", FOLDERS, ids=lambda f: f.name)
each_run = pytest.mark.parametrize("name", list(make.RUNS))


def expected(folder):
    return json.loads((folder / "expected.json").read_text())


def test_both_stacks_are_there():
    assert [f.name for f in FOLDERS] == ["tensorflow_2.15", "tensorflow_2.21"]


@each
@each_run
def test_policies_of_runs_act_alike(folder, name):
    policy = tfrl.load(folder / name)
    assert policy.env_steps == 256
    assert make.predictions(policy) == expected(folder)[name]


@each
@each_run
def test_saved_models_act_alike(folder, name):
    policy = tfrl.load(folder / name / "policy")
    assert make.predictions(policy) == expected(folder)[name]


@each
@pytest.mark.parametrize("name", list(make.POLICIES))
@pytest.mark.parametrize("form", list(make.WRITERS))
def test_exports_answer_as_the_library_does(folder, form, name, monkeypatch):
    if form == "onnx":
        pytest.importorskip("onnxruntime", reason="the extra 'export' is not installed")
    in_process(monkeypatch)
    told = verify(form, folder / "exports" / form / name, *make.policy(name), count=100)
    assert told["observations"] == 100 and told["outputs"]
    assert (told["max_error"] or 0.0) <= 1e-5 and told["equal"] in (None, 1.0)


@each
@each_run
def test_runs_go_on(folder, name, tmp_path):
    root = tmp_path / "run"
    shutil.copytree(folder / name, root)
    summary = tfrl.train(root_dir=root, strategy="one_device", total_env_steps=512)
    assert summary["env_steps"] == 512
    before = json.loads((folder / name / "summary.json").read_text())
    assert summary["params_digest"] != before["params_digest"]


@each
def test_a_learner_with_keras_goes_on(folder):
    learner = make.learner()
    learner.restore_from_path(folder / "learner")
    losses = [make.update(learner) for _ in range(2)]
    # Another processor may sum a dot product in another order.
    np.testing.assert_allclose(losses, expected(folder)["learner"], rtol=1e-4)


@each
def test_random_keys_have_the_same_bits(folder):
    assert seeding.uniform(seeding.key(-3), [4]).numpy().tolist() == expected(folder)["key"]
    draw = tf.function(lambda key: seeding.uniform(key, [4]), jit_compile=True)
    assert draw(seeding.key(-3)).numpy().tolist() == expected(folder)["key"]
