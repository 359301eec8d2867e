import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

import tfrl
from tfrl import seeding, specs, struct
from tfrl.agents import PPO
from tfrl.errors import UserError
from tfrl.experiment import export_functions
from tfrl.experiment.export import export_policy, save_module
from tfrl.types import ActionOutput, AgentState


@struct.dataclass
class Normalizer(struct.Struct):
    mean: tf.Tensor
    std: tf.Tensor
    count: tf.Tensor


@struct.logic_dataclass
class GreedyAgent(struct.Struct):
    """argmax of a linear layer over the normalised, flattened observation."""

    obs: object
    action: object
    recurrent: bool = False

    @property
    def obs_spec(self):
        return self.obs

    @property
    def action_spec(self):
        return self.action

    def init(self, key):
        width = sum(int(np.prod(s.shape)) for s in tf.nest.flatten(self.obs))
        kernel = tf.random.stateless_normal([width, 3], key)
        return AgentState(
            params={"policy": {"layer_0": {"kernel": tf.Variable(kernel)}}},
            normalizer=Normalizer(
                mean=tf.range(width, dtype=tf.float32),
                std=tf.fill([width], 2.0),
                count=tf.constant(5, tf.int64),
            ),
        )

    def _logits(self, state, obs):
        leaves = tf.nest.flatten(obs)
        flat = tf.concat(
            [tf.reshape(tf.cast(x, tf.float32), [tf.shape(x)[0], -1]) for x in leaves], axis=-1
        )
        normal = (flat - state.normalizer.mean) / state.normalizer.std
        return normal @ state.params["policy"]["layer_0"]["kernel"]

    def compute_actions(self, state, obs, key, carry=None):
        raise NotImplementedError

    def evaluate_actions(self, state, obs, key, carry=None):
        logits = self._logits(state, obs)
        greedy = tf.argmax(logits, axis=-1, output_type=tf.int64)
        action = (
            {"move": greedy, "turn": logits[:, :2]} if isinstance(self.action, dict) else greedy
        )
        return ActionOutput(action=action, carry=tf.zeros([1]) if self.recurrent else None)


OBS = tf.TensorSpec([4], tf.float32)
MOVE = tf.TensorSpec([], tf.int64)
KEY = tf.constant([3, 4])

LOADER = """
import importlib.abc, json, sys
class Block(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("tfrl", "tensorflow_probability", "gin", "gymnasium"):
            raise ImportError(name)
sys.meta_path.insert(0, Block())
import numpy as np
import tensorflow as tf
policy = tf.saved_model.load(sys.argv[1])
batch = np.load(sys.argv[2])
answers = policy.signatures["action"](observation=tf.constant(batch))
assert list(answers) == ["action"], list(answers)
default = policy.signatures["serving_default"](observation=tf.constant(batch))["action"]
one = policy.signatures["action"](observation=tf.constant(batch[:1]))["action"]
assert "tfrl" not in sys.modules
action = answers["action"].numpy().tolist()
print(json.dumps([action, default.numpy().tolist(), one.shape.as_list()]))
"""


class TestExport:
    def test_a_process_with_tensorflow_alone_acts_the_same(self, tmp_path):
        agent = GreedyAgent(obs=OBS, action=MOVE)
        state = agent.init(KEY)
        batch = np.random.default_rng(0).normal(size=(50, 4)).astype(np.float32) * 5
        np.save(tmp_path / "batch.npy", batch)
        assert export_policy(agent, state, tmp_path / "policy") == tmp_path / "policy"
        environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
        command = [
            sys.executable,
            "-c",
            LOADER,
            str(tmp_path / "policy"),
            str(tmp_path / "batch.npy"),
        ]
        done = subprocess.run(
            command, capture_output=True, text=True, cwd=tmp_path, env=environment, timeout=120
        )
        assert done.returncode == 0, done.stderr
        expected = agent.evaluate_actions(state, batch, KEY).action.numpy().tolist()
        assert len(set(expected)) == 3
        assert done.stdout.strip().splitlines()[-1] == f"[{expected}, {expected}, [1]]"
        assert sorted(os.listdir(tmp_path)) == ["batch.npy", "policy"]

    @pytest.mark.parametrize("large", [False, True])
    def test_values_are_copies_and_those_alone_that_are_used(self, tmp_path, monkeypatch, large):
        if large:
            monkeypatch.setattr(export_functions, "CONSTANT_BYTES", 0)
        agent = GreedyAgent(obs=OBS, action=MOVE)
        state = agent.init(KEY)
        batch = tf.random.stateless_normal([40, 4], KEY) * 5
        before = agent.evaluate_actions(state, batch, KEY).action
        export_policy(agent, state, tmp_path / "policy")
        kernel = state.params["policy"]["layer_0"]["kernel"]
        kernel.assign(-kernel)
        policy = tf.saved_model.load(str(tmp_path / "policy"))
        after = policy.signatures["action"](observation=batch)["action"]
        np.testing.assert_array_equal(after, before)
        assert after.dtype == tf.int64
        stored = tf.train.list_variables(str(tmp_path / "policy" / "variables" / "variables"))
        shapes = [shape for name, shape in stored if name.startswith("values/")]
        # Not the normaliser's count; constants of the functions unless they are large.
        assert sorted(shapes) == ([[4], [4], [4, 3]] if large else [])

    def test_nests_of_observations_and_actions(self, tmp_path):
        obs = {
            "camera": {"left": tf.TensorSpec([2, 2], tf.uint8), "right": tf.TensorSpec([1])},
            "speed": tf.TensorSpec([], tf.float32),
        }
        agent = GreedyAgent(obs=obs, action={"move": MOVE, "turn": tf.TensorSpec([2])})
        state = agent.init(KEY)
        export_policy(agent, state, tmp_path / "policy")
        batch = {
            "camera": {
                "left": tf.constant(np.arange(24, dtype=np.uint8).reshape(6, 2, 2)),
                "right": tf.random.stateless_normal([6, 1], KEY),
            },
            "speed": tf.random.stateless_normal([6], KEY),
        }
        policy = tf.saved_model.load(str(tmp_path / "policy"))
        answers = policy.signatures["action"](
            observation_camera_left=batch["camera"]["left"],
            observation_camera_right=batch["camera"]["right"],
            observation_speed=batch["speed"],
        )
        expected = agent.evaluate_actions(state, batch, KEY).action
        assert sorted(answers) == ["action_move", "action_turn"]
        np.testing.assert_array_equal(answers["action_move"], expected["move"])
        np.testing.assert_allclose(answers["action_turn"], expected["turn"], rtol=1e-6)
        loaded = tfrl.load(tmp_path / "policy")
        lists = tf.nest.map_structure(lambda x: x.numpy().tolist(), batch)
        flat = {f"camera_{name}": x for name, x in lists["camera"].items()}
        for form in (lists, {**flat, "speed": lists["speed"]}):
            np.testing.assert_array_equal(loaded.predict(form)[0]["move"], expected["move"])
        one = {"camera": {name: x[0] for name, x in lists["camera"].items()}, "speed": 0.5}
        assert loaded.predict(one)[0]["move"].shape == ()
        with pytest.raises(UserError, match="obs/camera_left: expected uint8, got float64"):
            loaded.predict({**lists, "camera": {"left": [[0.5] * 2] * 2, "right": [0.0]}})
        with pytest.raises(UserError, match="obs: expected the parts .*, got observation_speed"):
            loaded.predict({"speed": 0.5})

    def test_replaces_an_earlier_export(self, tmp_path):
        agent = GreedyAgent(obs=OBS, action=MOVE)
        for seed in (1, 2):
            state = agent.init(tf.constant([seed, 0]))
            export_policy(agent, state, tmp_path / "policy")
        batch = tf.random.stateless_normal([40, 4], KEY) * 5
        policy = tf.saved_model.load(str(tmp_path / "policy"))
        np.testing.assert_array_equal(
            policy.signatures["action"](observation=batch)["action"],
            agent.evaluate_actions(state, batch, KEY).action,
        )
        assert os.listdir(tmp_path) == ["policy"]

    def test_a_failed_export_keeps_the_earlier_one(self, tmp_path, monkeypatch):
        agent = GreedyAgent(obs=OBS, action=MOVE)
        export_policy(agent, agent.init(KEY), tmp_path / "policy")

        def fail(*_, **__):
            raise OSError(28, "No space left on device")

        with monkeypatch.context() as failing:
            failing.setattr(tf.saved_model, "save", fail)
            with pytest.raises(UserError) as error:
                export_policy(agent, agent.init(KEY), tmp_path / "policy")
        assert str(error.value) == (
            f"policy folder {tmp_path / 'policy'}: expected a writable folder, got a full disk. "
            "Choose a different path, or free disk space."
        )
        assert os.listdir(tmp_path) == ["policy"]
        tf.saved_model.load(str(tmp_path / "policy"))

    def test_says_nothing(self, tmp_path, capfd):
        agent = GreedyAgent(obs=OBS, action=MOVE)
        export_policy(agent, agent.init(KEY), tmp_path / "policy")
        captured = capfd.readouterr()
        assert (captured.out, captured.err) == ("", "")

    def test_a_policy_with_memory_takes_and_gives_its_state(self, tmp_path):
        spec = tf.TensorSpec([3], tf.float32)
        agent = PPO(obs_spec=spec, action_spec=specs.DiscreteSpec(4), memory="gru", hidden=(8,))
        state = agent.init(KEY)
        policy = tf.saved_model.load(str(export_policy(agent, state, tmp_path / "policy")))
        act, begin = policy.signatures["action"], policy.signatures["initial_state"]
        carry, expected = dict(begin(batch_size=tf.constant(5))), agent.initial_carry(5)
        for t in range(4):
            obs = seeding.normal(seeding.fold_in(KEY, t), [5, 3])
            output = dict(act(observation=obs, **carry))
            own = agent.evaluate_actions(state, obs, KEY, expected)
            np.testing.assert_array_equal(output.pop("action"), own.action)
            carry, expected = output, own.carry
            assert sorted(carry) == ["state_policy_hidden", "state_value_hidden"]
            np.testing.assert_allclose(
                carry["state_policy_hidden"], expected["policy"]["hidden"], atol=1e-6
            )
        assert np.abs(carry["state_policy_hidden"]).max() > 0.01

    def test_a_carry_without_a_beginning(self, tmp_path):
        agent = GreedyAgent(obs=OBS, action=MOVE, recurrent=True)
        with pytest.raises(UserError) as error:
            export_policy(agent, agent.init(KEY), tmp_path / "policy")
        assert str(error.value) == (
            "export of GreedyAgent: expected a method initial_carry(batch_size), since "
            "evaluate_actions returns a carry, got a recurrent policy without an initial carry. "
            "Define it to return the initial recurrent state."
        )
        assert os.listdir(tmp_path) == []

    def test_names_that_collide(self, tmp_path):
        obs = {"a": {"b": tf.TensorSpec([1])}, "a_b": tf.TensorSpec([1])}
        agent = GreedyAgent(obs=obs, action=MOVE)
        with pytest.raises(UserError) as error:
            export_policy(agent, agent.init(KEY), tmp_path / "policy")
        assert str(error.value) == (
            "names of the exported observation: expected a different name for every part, got "
            "a/b, a_b, of which some collide once / is replaced by _. Rename the keys of the space."
        )

    def test_below_a_file(self, tmp_path):
        (tmp_path / "file").write_text("")
        agent = GreedyAgent(obs=OBS, action=MOVE)
        with pytest.raises(
            UserError, match="policy folder .*/file/policy: expected a writable folder"
        ):
            export_policy(agent, agent.init(KEY), tmp_path / "file" / "policy")


def test_a_full_disk_is_said_in_words(tmp_path, monkeypatch):
    def full(module, path, signatures):
        pathlib.Path(path).mkdir()
        message = (
            "{{function_node __wrapped__SaveV2_dtypes_1}} x.tempstate; No space left on device"
        )
        raise tf.errors.ResourceExhaustedError(None, None, message)

    (tmp_path / "policy").mkdir()
    (tmp_path / "policy" / "earlier").touch()
    monkeypatch.setattr(tf.saved_model, "save", full)
    with pytest.raises(UserError) as error:
        save_module(tf.Module(), {}, tmp_path / "policy")
    assert str(error.value) == (
        f"policy folder {tmp_path / 'policy'}: expected a writable folder, got a full disk. "
        "Choose a different path, or free disk space."
    )
    assert os.listdir(tmp_path) == ["policy"]
    assert os.listdir(tmp_path / "policy") == ["earlier"]
