"""Learners in folders: round trips, components alone, kills, damage, and every message."""

import copy
import json
import os
import pathlib
import shutil

import numpy as np
import pytest
import tensorflow as tf

from tfrl import networks, specs
from tfrl.agents.actor_critic import PolicyBatch
from tfrl.agents.ppo.agent import PPO
from tfrl.errors import UserError
from tfrl.keras import api as keras
from tfrl.learners import Learner, ModuleConfig, checkpointing
from tfrl.loading import loadable
from tfrl.metrics import MetricsLogger
from tfrl.storage import checkpoint_format, codec, files

OBS = tf.TensorSpec([3], tf.float32)
ACTION = specs.DiscreteSpec(2)


class FakeLearner:
    """The methods that checkpointing calls, over arrays."""

    def __init__(self, modules, config=None, seed=0):
        self.modules = dict(modules)
        self.configs = dict(config or {m: ModuleConfig() for m in modules})
        self.is_built = False
        self.seed = seed
        self.loaded = []

    def build(self, key):
        self.is_built = True
        random = np.random.default_rng(self.seed)
        self.state = {
            "rl_module": {
                m: {
                    "params/kernel": random.normal(size=[2, 3]).astype(np.float32),
                    "extra/seen": np.asarray(self.seed, np.int64),
                }
                for m in self.modules
            },
            "optimizer": {m: {"adam": {"m/0": np.ones([2], np.float32)}} for m in self.modules},
            "counters": {"learner_steps": 10 + self.seed, "env_steps": 2**60 + self.seed},
            "metrics": MetricsLogger().get_state(),
            "weights_seq_no": 7 + self.seed,
        }

    def get_state(self):
        return copy.deepcopy(self.state)

    def set_state(self, state):
        self.loaded.append(state)
        for name, part in state.items():
            if name == "rl_module":
                self.state[name].update(part)
            elif name == "optimizer":
                for module_id, optimizers in part.items():
                    self.state[name][module_id].update(optimizers)
            else:
                self.state[name] = part


def fake(*module_ids, seed=0):
    learner = FakeLearner(dict.fromkeys(module_ids or ("a", "b")), seed=seed)
    learner.build(None)
    return learner


def assert_equal(found, expected):
    """Equal structures, values and, of arrays, dtypes."""
    if isinstance(expected, dict):
        assert set(found) == set(expected)
        for name in expected:
            assert_equal(found[name], expected[name])
    else:
        np.testing.assert_array_equal(found, expected)
        assert getattr(found, "dtype", None) == getattr(expected, "dtype", None)


def content(folder):
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


class Crash(BaseException):
    """Stands for a kill: nothing that handles errors may catch it."""


class TestRoundTrip:
    def test_all(self, tmp_path):
        saved, other = fake(seed=1), fake(seed=2)
        logger = MetricsLogger()
        logger.log("loss", float("inf"), window=3)
        saved.state["metrics"] = logger.get_state()
        path = checkpointing.save_to_path(saved, tmp_path / "deep" / "er" / "save")
        assert path == tmp_path / "deep" / "er" / "save"
        checkpointing.restore_from_path(other, str(path))
        assert_equal(other.state, saved.state)

    def test_layout(self, tmp_path):
        path = checkpointing.save_to_path(fake("a"), tmp_path / "save")
        assert sorted(content(path)) == [
            "COMPLETE",
            "manifest.json",
            *[
                f"{part}/{name}"
                for part in ("optimizer/a/adam", "rl_module/a")
                for name in ("COMPLETE", "data.data-00000-of-00001", "data.index", "manifest.json")
            ],
        ]
        manifest = json.loads((path / "manifest.json").read_text())
        assert manifest["format"] == "tfrl learner"
        assert manifest["variables"]["rl_module/a"] == {
            "params/kernel": {"shape": [2, 3], "dtype": "float32"},
            "extra/seen": {"shape": [], "dtype": "int64"},
        }
        assert manifest["values"]["counters"]["env_steps"] == 2**60
        assert os.listdir(tmp_path) == ["save"]

    def test_tensorflow_alone_reads_a_module(self, tmp_path):
        saved = fake("a", seed=3)
        path = checkpointing.save_to_path(saved, tmp_path / "save")
        kernel = tf.Variable(tf.zeros([2, 3]))
        reader = tf.train.Checkpoint(values={"params/kernel": kernel})
        reader.read(str(path / "rl_module" / "a" / "data")).expect_partial()
        expected = saved.state["rl_module"]["a"]["params/kernel"]
        np.testing.assert_array_equal(kernel.numpy(), expected)

    def test_names_of_any_kind(self, tmp_path):
        saved, other = fake("a b", "Ä.1", seed=1), fake("a b", "Ä.1", seed=2)
        for learner in (saved, other):
            for name in ("actor/critic", "..", "%2E%2E", "x."):
                value = np.full([2], learner.seed, np.float32)
                learner.state["optimizer"]["a b"][name] = {"m": value}
        path = checkpointing.save_to_path(saved, tmp_path / "save")
        assert os.listdir(tmp_path) == ["save"]
        checkpointing.restore_from_path(other, path)
        assert_equal(other.state, saved.state)

    def test_a_module_without_variables(self, tmp_path):
        saved, other = fake(), fake()
        for learner in (saved, other):
            learner.state["rl_module"]["b"] = {}
            del learner.state["optimizer"]["b"]
        checkpointing.restore_from_path(other, checkpointing.save_to_path(saved, tmp_path / "s"))
        assert other.state["rl_module"]["b"] == {}

    def test_the_working_directory_and_home(self, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("HOME", str(tmp_path))
        assert checkpointing.save_to_path(fake(), "save") == tmp_path / "save"
        checkpointing.restore_from_path(fake(), "~/save")
        checkpointing.restore_from_path(fake(), pathlib.Path("./save/"))


class TestComponents:
    @pytest.mark.parametrize(
        ("component", "parts"),
        [
            ("rl_module", {"rl_module": {"a", "b"}}),
            ("rl_module/b", {"rl_module": {"b"}}),
            ("optimizer", {"optimizer": {"a", "b"}}),
            ("optimizer/a", {"optimizer": {"a"}}),
            ("optimizer/a/adam", {"optimizer": {"a"}}),
            ("counters", {"counters": {"learner_steps", "env_steps"}}),
            ("metrics", {"metrics": {"schema", "elapsed", "metrics"}}),
        ],
    )
    def test_alone(self, tmp_path, component, parts):
        saved, other = fake(seed=1), fake(seed=2)
        path = checkpointing.save_to_path(saved, tmp_path / "save")
        checkpointing.restore_from_path(other, path, component)
        (loaded,) = other.loaded
        # Weights come with their number.
        assert loaded.pop("weights_seq_no", None) == (8 if "rl_module" in parts else None)
        assert {name: set(part) for name, part in loaded.items()} == parts

    def test_into_a_learner_that_has_only_it(self, tmp_path):
        path = checkpointing.save_to_path(fake("a", "b", seed=1), tmp_path / "save")
        other = fake("b", "c", seed=2)
        checkpointing.restore_from_path(other, path, "rl_module/b")
        assert other.state["rl_module"]["b"]["extra/seen"] == 1
        assert other.state["rl_module"]["c"]["extra/seen"] == 2

    def test_others_may_be_damaged(self, tmp_path):
        saved, other = fake(seed=1), fake(seed=2)
        path = checkpointing.save_to_path(saved, tmp_path / "save")
        shutil.rmtree(path / "optimizer")
        checkpointing.restore_from_path(other, path, "rl_module/b")
        assert_equal(other.state["rl_module"]["b"], saved.state["rl_module"]["b"])

    def test_prefixes_are_whole_names(self, tmp_path):
        path = checkpointing.save_to_path(fake("a", "ab"), tmp_path / "save")
        other = fake("a", "ab")
        checkpointing.restore_from_path(other, path, "rl_module/a")
        assert set(other.loaded[0]["rl_module"]) == {"a"}

    def test_unknown(self, tmp_path):
        path = checkpointing.save_to_path(fake("a"), tmp_path / "save")
        held = "rl_module/a, optimizer/a/adam, counters, metrics, weights_seq_no"
        for component, got, remedy in [
            ("rl_modul", "'rl_modul'", "Did you mean rl_module or rl_module/a?"),
            ("optimizer/a/adem", "'optimizer/a/adem'", "Did you mean optimizer/a/adam or optimi"),
            ("", "''", "Known: "),
        ]:
            with pytest.raises(UserError) as error:
                checkpointing.restore_from_path(fake("a"), path, component)
            assert str(error.value).startswith(f"component: expected a component of {path}, ")
            assert f"got {got}. {remedy}" in str(error.value)
            assert str(error.value).endswith(f"Available: {held}.")
        with pytest.raises(UserError) as error:
            checkpointing.restore_from_path(fake("a", "b"), path, "rl_module/b")
        assert str(error.value) == (
            f"component: expected a component of {path}, got rl_module/b, which is in this "
            f"learner but not in the checkpoint. Available: {held}."
        )


class TestFit:
    def test_everything_that_differs_is_named_and_nothing_loaded(self, tmp_path):
        saved, other = fake("a", "b", "old"), fake("a", "b", "new")
        a, b = (saved.state["rl_module"][m] for m in "ab")
        a["params/kernel"] = np.zeros([3, 3], np.float32)
        a["extra/seen"] = np.asarray(1, np.int32)
        b["params/more"] = b.pop("params/kernel")
        path = checkpointing.save_to_path(saved, tmp_path / "save")
        with pytest.raises(UserError) as error:
            checkpointing.restore_from_path(other, path)
        assert str(error.value) == (
            f"learner checkpoint {path}: expected the modules, optimizers, paths, shapes and "
            "dtypes of this learner, got no rl_module/new; no optimizer/new/adam; unknown "
            "rl_module/old; unknown optimizer/old/adam; rl_module/a/extra/seen of dtype int32 for "
            "int64; rl_module/a/params/kernel of shape (3, 3) for (2, 3); missing "
            "rl_module/b/params/kernel; unknown rl_module/b/params/more. Match the modules and "
            "optimizers with add_module and remove_module, or restore only the components that fit."
        )
        assert other.loaded == []

    def test_a_component_is_compared_alone(self, tmp_path):
        saved = fake("a", "old")
        path = checkpointing.save_to_path(saved, tmp_path / "save")
        checkpointing.restore_from_path(fake("a", "new"), path, "rl_module/a")
        with pytest.raises(UserError, match="got unknown rl_module/old. Match"):
            checkpointing.restore_from_path(fake("a"), path, "rl_module")

    def test_values_that_json_would_change(self, tmp_path):
        learner = fake()
        learner.state["counters"]["x"] = float("nan")
        with pytest.raises(TypeError, match="plain JSON types"):
            checkpointing.save_to_path(learner, tmp_path / "save")
        assert os.listdir(tmp_path) == []


class TestWholeOrAbsent:
    def test_replaces_an_earlier_save(self, tmp_path):
        path = checkpointing.save_to_path(fake("a", "b", seed=1), tmp_path / "save")
        checkpointing.save_to_path(fake("a", seed=2), path)
        assert not (path / "rl_module" / "b").exists()
        other = fake("a", seed=3)
        checkpointing.restore_from_path(other, path)
        assert other.state["weights_seq_no"] == 9
        assert os.listdir(tmp_path) == ["save"]

    def test_an_empty_folder_is_free(self, tmp_path):
        saved, other = fake(seed=1), fake(seed=2)
        (tmp_path / "save").mkdir()
        checkpointing.restore_from_path(other, checkpointing.save_to_path(saved, tmp_path / "save"))
        assert_equal(other.state, saved.state)
        assert os.listdir(tmp_path) == ["save"]

    @pytest.mark.parametrize(
        ("make", "got"),
        [
            (lambda p: p.write_text("mine"), "a file"),
            (lambda p: (p / "mine").mkdir(parents=True), "a folder with other content"),
            (lambda p: (p.mkdir(), (p / "manifest.json").write_text("[]")), "a folder with other"),
            (lambda p: p.symlink_to("elsewhere"), "a symbolic link"),
        ],
    )
    def test_refuses_what_is_not_its_own(self, tmp_path, make, got):
        path = tmp_path / "save"
        make(path)
        with pytest.raises(UserError) as error:
            checkpointing.save_to_path(fake(), path)
        assert str(error.value).startswith(
            f"learner checkpoint {path}: expected an unused path, or a learner checkpoint to "
            f"replace, got {got}"
        )
        assert os.listdir(tmp_path) == ["save"]

    def test_refuses_a_run_folders_checkpoint(self, tmp_path):
        checkpoint_format.write(tmp_path / "ckpt-1", 1, {"x": np.ones([1])}, {}, None)
        with pytest.raises(UserError, match="a folder with other content"):
            checkpointing.save_to_path(fake(), tmp_path / "ckpt-1")
        with pytest.raises(UserError, match="'an unknown format' of schema version 3"):
            checkpointing.restore_from_path(fake(), tmp_path / "ckpt-1")

    def test_cannot_be_written(self, tmp_path):
        (tmp_path / "file").write_text("")
        with pytest.raises(UserError) as error:
            checkpointing.save_to_path(fake(), tmp_path / "file" / "save")
        assert "expected a writable folder with free disk space" in str(error.value)

    @pytest.mark.parametrize("at", ["data", "seal", "rename", "between"])
    def test_a_kill_leaves_the_earlier_save(self, tmp_path, monkeypatch, at):
        path = checkpointing.save_to_path(fake(seed=1), tmp_path / "save")
        with monkeypatch.context() as killing:
            kill(killing, at)
            with pytest.raises(Crash):
                checkpointing.save_to_path(fake(seed=2), path)
        other = fake(seed=3)
        checkpointing.restore_from_path(other, path)
        assert other.state["weights_seq_no"] == 8
        checkpointing.save_to_path(fake(seed=4), path)  # cleans up
        assert os.listdir(tmp_path) == ["save"]
        checkpointing.restore_from_path(other, path)
        assert other.state["weights_seq_no"] == 11

    def test_leaves_of_others_stay(self, tmp_path):
        for name in (".tmp-save-1-2-3-4", ".tmp-other-1-2", ".tmp-1-2", ".replaced-other"):
            (tmp_path / name).mkdir()
        (tmp_path / ".tmp-save-1-2").mkdir()
        before = set(os.listdir(tmp_path))
        checkpointing.save_to_path(fake(), tmp_path / "save")
        assert set(os.listdir(tmp_path)) == before - {".tmp-save-1-2"} | {"save"}

    def test_saving_often_makes_no_more_variables(self, tmp_path):
        learner = fake()
        checkpointing.save_to_path(learner, tmp_path / "save")
        made = checkpoint_format._object_graph.cache_info().misses
        checkpointing.save_to_path(learner, tmp_path / "save")
        assert checkpoint_format._object_graph.cache_info().misses == made


def kill(monkeypatch, at):
    """Makes the next save end at a place, as a kill would: nothing is cleaned up."""

    def crash(*args, **kwargs):
        raise Crash

    monkeypatch.setattr(shutil, "rmtree", lambda *a, **k: None)
    if at == "data":
        monkeypatch.setattr(checkpoint_format, "write_data", crash)
    elif at == "seal":
        monkeypatch.setattr(checkpoint_format, "seal", crash)
    elif at == "rename":
        monkeypatch.setattr(files, "replace_directory", crash)
    else:
        rename, done = os.rename, []

        def first_only(*args):
            if done:
                raise Crash
            done.append(rename(*args))

        monkeypatch.setattr(os, "rename", first_only)


class TestDamage:
    def flip(self, file):
        data = bytearray(file.read_bytes())
        data[len(data) // 2] ^= 1
        file.write_bytes(data)

    @pytest.mark.parametrize("part", ["rl_module/b", "optimizer/a/adam"])
    @pytest.mark.parametrize("name", ["data.data-00000-of-00001", "data.index", "manifest.json"])
    def test_a_changed_file_is_named(self, tmp_path, part, name):
        path = checkpointing.save_to_path(fake(), tmp_path / "save")
        self.flip(path / part / name)
        other = fake()
        with pytest.raises(UserError) as error:
            checkpointing.restore_from_path(other, path)
        assert str(error.value) == (
            f"learner checkpoint {path / part}: expected an intact checkpoint, got a "
            f"damaged checkpoint: {name} has changed since it was written. Use another "
            "checkpoint, or "
            "restore the intact components by name."
        )
        assert other.loaded == []

    @pytest.mark.parametrize(
        ("harm", "got"),
        [
            (lambda p: (p / "manifest.json").write_text("{}"), "manifest.json has 2 bytes instead"),
            (lambda p: (p / "COMPLETE").unlink(), "it is not marked complete"),
            (lambda p: (p / "COMPLETE").write_text("x"), "COMPLETE is unreadable"),
            (lambda p: (p / "manifest.json").unlink(), "manifest.json: No such file"),
            (lambda p: shutil.rmtree(p / "rl_module"), "it is not marked complete"),
            (lambda p: (p / "rl_module/a/data.index").unlink(), "data.index: No such file"),
        ],
    )
    def test_the_folder(self, tmp_path, harm, got):
        path = checkpointing.save_to_path(fake(), tmp_path / "save")
        harm(path)
        with pytest.raises(UserError, match="a damaged checkpoint: ") as error:
            checkpointing.restore_from_path(fake(), path)
        assert f"got a damaged checkpoint: {got}" in str(error.value)

    def test_no_checkpoint(self, tmp_path):
        (tmp_path / "file").write_text("")
        (tmp_path / "folder").mkdir()
        for name, got in [
            ("missing", "no such folder"),
            ("file", "a file"),
            ("folder", "a different kind of folder"),
        ]:
            with pytest.raises(UserError) as error:
                checkpointing.restore_from_path(fake(), tmp_path / name)
            assert str(error.value) == (
                f"learner checkpoint {tmp_path / name}: expected a folder that "
                f"Learner.save_to_path wrote, got {got}. Check the path; restore a run folder's "
                "checkpoints with its workflow."
            )

    def test_a_newer_schema(self, tmp_path, monkeypatch):
        with monkeypatch.context() as newer:
            newer.setattr(checkpointing, "SCHEMA_VERSION", 2)
            path = checkpointing.save_to_path(fake(), tmp_path / "save")
        with pytest.raises(UserError, match="got 'tfrl learner' of schema version 2, written by"):
            checkpointing.restore_from_path(fake(), path)


# The real Learner.


@loadable
def make_model():
    return keras.Sequential([keras.layers.Dense(4, activation="tanh")])


def ppo(**changes):
    return PPO(obs_spec=OBS, action_spec=ACTION, hidden=(4,)).replace(**changes)


def keras_ppo(model_fn):
    torso = networks.KerasNetwork(model_fn=model_fn, spec=OBS)
    return ppo(value=networks.ValueNetwork(torso=torso))


def ppo_batch(n=8):
    random = np.random.default_rng(0)
    return PolicyBatch(
        obs=random.normal(size=[n, 3]).astype(np.float32),
        action=random.integers(0, 2, [n]),
        log_prob=np.full([n], -0.7, np.float32),
        advantage=random.normal(size=[n]).astype(np.float32),
        value_target=random.normal(size=[n]).astype(np.float32),
        value=np.zeros([n], np.float32),
        mask=np.ones([n], bool),
    )


class TestLearner:
    CONFIGS = {
        "left": ModuleConfig(lr=[[0, 1e-2], [100, 1e-3]], grad_clip=None),
        "right": ModuleConfig(lr=1e-3),
    }

    def learner(self):
        learner = Learner(
            {"left": ppo(normalize_obs=True), "right": keras_ppo(make_model)}, config=self.CONFIGS
        )
        learner.build(tf.constant([1, 2]))
        learner.metrics.log("env_steps", 50, reduce="lifetime_sum", throughput=True)
        return learner

    def test_from_checkpoint(self, tmp_path):
        learner = self.learner()
        path = checkpointing.save_to_path(learner, tmp_path / "save")
        found = checkpointing.from_checkpoint(Learner, path)
        assert found.modules == learner.modules
        assert list(found.modules) == list(learner.modules)
        assert found.configs == learner.configs
        mine, its = learner.get_state(), found.get_state()
        for part in ("rl_module", "optimizer", "counters", "weights_seq_no"):
            assert_equal(its[part], mine[part])
        assert found.metrics.peek("env_steps") == 50

    def test_one_module_alone(self, tmp_path):
        learner = self.learner()
        path = checkpointing.save_to_path(learner, tmp_path / "save")
        other = Learner({"left": ppo(normalize_obs=True)})
        other.build(tf.constant([7, 7]))
        checkpointing.restore_from_path(other, path, "rl_module/left")
        left = learner.get_state()["rl_module"]["left"]
        assert_equal(other.get_state()["rl_module"]["left"], left)

    def test_modules_without_a_description_have_to_be_passed(self, tmp_path):
        agent, other = keras_ppo(lambda: make_model()), keras_ppo(make_model)
        learner = Learner({"a": agent, "b": other, "c": agent})
        learner.build(tf.constant([1, 2]))
        path = checkpointing.save_to_path(learner, tmp_path / "save")
        reason = "/value/torso/model_fn is a lambda, which has no name"
        with pytest.raises(UserError) as error:
            checkpointing.from_checkpoint(Learner, path)
        assert str(error.value) == (
            f"from_checkpoint({str(path)!r}): expected modules and configs that can be built from "
            f"their descriptions, got module 'a'{reason}; module 'c'{reason}. Pass "
            "modules={module_id: module} and config={module_id: ModuleConfig}."
        )
        found = checkpointing.from_checkpoint(Learner, path, modules={"c": agent, "a": agent})
        assert list(found.modules) == ["a", "b", "c"]
        assert_equal(found.get_state()["rl_module"], learner.get_state()["rl_module"])

    def test_the_only_module(self, tmp_path):
        agent = keras_ppo(lambda: make_model())
        learner = Learner(agent)
        learner.build(tf.constant([1, 2]))
        path = checkpointing.save_to_path(learner, tmp_path / "save")
        found = checkpointing.from_checkpoint(Learner, path, modules=agent)
        assert_equal(found.get_state()["rl_module"], learner.get_state()["rl_module"])

    def test_wrong_modules(self, tmp_path):
        path = checkpointing.save_to_path(self.learner(), tmp_path / "save")
        with pytest.raises(
            UserError, match="got a single PPO for 2 modules. Pass a dict keyed by module id."
        ):
            checkpointing.from_checkpoint(Learner, path, modules=ppo())
        with pytest.raises(UserError) as error:
            checkpointing.from_checkpoint(Learner, path, modules={"x": ppo(), "left": ppo()})
        assert str(error.value) == (
            f"modules: expected module ids of {path}: left, right, got x. Add new modules with "
            "add_module after restoring."
        )
        with pytest.raises(UserError, match=r"params/policy/torso/layer_0/kernel of shape \(3, 4"):
            checkpointing.from_checkpoint(Learner, path, modules={"left": ppo(hidden=(5,))})

    def test_a_class_that_is_gone(self, tmp_path):
        learner = self.learner()
        path = checkpointing.save_to_path(learner, tmp_path / "save")
        manifest = (path / "manifest.json").read_text()
        (path / "manifest.json").write_text(manifest.replace("make_model", "made_model"))
        checkpoint_format.seal(path)
        with pytest.raises(
            UserError, match="value/torso/model_fn is the name .*made_model.*not regi"
        ):
            checkpointing.from_checkpoint(Learner, path)

    def test_a_manifest_runs_nothing(self, tmp_path):
        """A module described as one that calls a function of the file's choice."""
        learner = Learner({"a": ppo()})
        learner.build(tf.constant([1, 2]))
        path = checkpointing.save_to_path(learner, tmp_path / "save")
        agents = f"touch {tmp_path}/ran"
        described = {
            "kind": "object",
            "class": "tfrl.agents.multi_agent:MultiAgent",
            "fields": {
                "obs_spec": codec.describe({agents: OBS}),
                "action_spec": codec.describe({agents: ACTION}),
                "policies": codec.describe({"a": ppo()}),
                "policy_mapping_fn": {"kind": "name", "name": "os:popen"},
            },
        }
        text = json.dumps(json.loads((path / "manifest.json").read_text()))
        one = json.dumps(codec.describe(ppo()))
        assert one in text
        (path / "manifest.json").write_text(text.replace(one, json.dumps(described)))
        checkpoint_format.seal(path)
        with pytest.raises(UserError, match="policy_mapping_fn is the name 'os:popen'"):
            checkpointing.from_checkpoint(Learner, path)
        assert not (tmp_path / "ran").exists()

    def test_options_of_the_manifest_are_those_that_are_saved(self, tmp_path):
        path = checkpointing.save_to_path(self.learner(), tmp_path / "save")
        manifest = json.loads((path / "manifest.json").read_text())
        manifest["options"]["optimizer_fn"] = "nonsense"
        (path / "manifest.json").write_text(json.dumps(manifest))
        checkpoint_format.seal(path)
        assert checkpointing.from_checkpoint(Learner, path).is_built

    @pytest.mark.parametrize(
        ("damage", "expected"),
        [
            (lambda m: m["description"]["fields"].update(obs_spec=None), "AttributeError"),
            (lambda m: m.clear(), "module 'left' has no description"),
        ],
    )
    def test_a_description_that_builds_no_module(self, tmp_path, damage, expected):
        path = checkpointing.save_to_path(self.learner(), tmp_path / "save")
        manifest = json.loads((path / "manifest.json").read_text())
        damage(manifest["modules"]["left"])
        (path / "manifest.json").write_text(json.dumps(manifest))
        checkpoint_format.seal(path)
        with pytest.raises(UserError, match=f"can be built from their descriptions.*{expected}"):
            checkpointing.from_checkpoint(Learner, path)

    @pytest.mark.parametrize("name", ["manifest.json", "COMPLETE"])
    def test_a_hundred_thousand_brackets(self, tmp_path, name):
        path = checkpointing.save_to_path(self.learner(), tmp_path / "save")
        (path / name).write_text("[" * 100_000 + "]" * 100_000)
        if name == "manifest.json":
            checkpoint_format.seal(path)
        with pytest.raises(UserError, match=f"{name} is .*brackets nested too deeply"):
            checkpointing.from_checkpoint(Learner, path)

    def test_other_configs(self, tmp_path):
        path = checkpointing.save_to_path(self.learner(), tmp_path / "save")
        found = checkpointing.from_checkpoint(Learner, path, config=ModuleConfig(grad_clip=2.0))
        assert found.configs["left"].grad_clip == 2.0

    def test_continued_equals_not_stopped(self, tmp_path):
        learner = Learner(ppo(), config=ModuleConfig(lr=[[0, 1e-2], [100, 1e-3]]))
        learner.build(tf.constant([1, 2]))
        rows = ppo_batch()
        options = {"num_epochs": 2, "minibatch_size": 4}
        learner.update_from_batch(rows, timesteps=30, **options)
        path = checkpointing.save_to_path(learner, tmp_path / "save")
        found = checkpointing.from_checkpoint(Learner, path)
        for each in (learner, found):
            each.update_from_batch(rows, timesteps=60, **options)
        mine, its = learner.get_state(), found.get_state()
        for part in ("rl_module", "optimizer", "counters", "weights_seq_no"):
            assert_equal(its[part], mine[part])
        assert mine["counters"]["learner_steps"] == 8
