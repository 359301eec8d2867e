"""Formats of an export, each used by a process without tfrl, beside the library's own answers."""

import functools
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

from tests.experiment.export_in_process import in_process
from tfrl import seeding, specs
from tfrl.agents import DQN, PPO, SAC
from tfrl.errors import UserError
from tfrl.experiment import export, export_client, export_verify
from tfrl.experiment.export import save_functions
from tfrl.experiment.export_functions import PolicyFunctions, policy_functions
from tfrl.experiment.export_verify import AgentOracle, compare, verify

OBS = tf.TensorSpec([3])
BOX = specs.BoundedTensorSpec([2], tf.float32, [-2.0, 0.0], [2.0, 1.0])
MASKED = {"observation": OBS, "action_mask": specs.BoundedTensorSpec([4], tf.bool, False, True)}
AGENTS = {
    "normalised": PPO(obs_spec=OBS, action_spec=specs.DiscreteSpec(4), normalize_obs=True),
    "masked": PPO(obs_spec=MASKED, action_spec=specs.DiscreteSpec(4)),
    "gru": PPO(obs_spec=OBS, action_spec=BOX, memory="gru", memory_size=8),
    "lstm": PPO(obs_spec=OBS, action_spec=BOX, memory="lstm", memory_size=8, squash=True),
    "rescaled": SAC(obs_spec=OBS, action_spec={"a": BOX, "b": BOX}, hidden=(64, 64)),
    "pixels": DQN(
        obs_spec=specs.BoundedTensorSpec([36, 36, 2], tf.uint8, 0, 255),
        action_spec=specs.DiscreteSpec(3, start=1),
    ),
}


@functools.cache
def exported(name):
    """An agent's functions, with larger heads than fresh ones have, and what to compare with."""
    agent = AGENTS[name]
    state = agent.init(seeding.key(2))
    params = tf.nest.map_structure(lambda x: 3.0 * x if x.shape.rank else x, state.params)
    state = state.replace(params=params)
    return policy_functions(agent, state), AgentOracle(agent, state)


def onnx():
    pytest.importorskip("tf2onnx", reason="the extra 'export' is not installed")
    pytest.importorskip("onnxruntime", reason="the extra 'export' is not installed")


def test_a_saved_model_with_memory(tmp_path, monkeypatch):
    in_process(monkeypatch)
    policy, oracle = exported("gru")
    folder = save_functions(policy, tmp_path / "policy")
    told = verify("saved_model", folder, policy, oracle)
    assert (told["observations"], told["steps"], told["equal"]) == (1000, 20, None)
    assert told["max_error"] <= 1e-5
    outputs = set(told["outputs"])
    assert {"action/action", "explore/action", "distribution/loc", "single/action"} <= outputs
    memory = {f"{name}/state_policy_hidden" for name in ("action", "explore", "distribution")}
    assert memory <= outputs


def test_tflite_with_memory(tmp_path, monkeypatch):
    in_process(monkeypatch)
    policy, oracle = exported("lstm")
    about = export.write_tflite(policy, tmp_path)
    assert about["signatures"] == ["action", "distribution", "initial_state"]
    assert about["ops"] == "built-in"
    assert about["bytes"] == (tmp_path / "policy.tflite").stat().st_size
    assert verify("tflite", tmp_path, policy, oracle)["max_error"] <= 1e-5


def test_tflite_quantised(tmp_path, monkeypatch):
    in_process(monkeypatch)
    policy, oracle = exported("rescaled")
    plain = export.write_tflite(policy, tmp_path)
    about = export.write_tflite(policy, tmp_path, quantize=True)
    assert about["quantized"] and about["bytes"] < 0.6 * plain["bytes"]
    told = verify("tflite", tmp_path, policy, oracle, quantized=True)
    assert told["tolerance"] is None
    assert 1e-5 < told["max_error"] < 0.1  # of actions in [-2, 2]
    assert told["outputs"]["action/action_a within 5%"] >= 0.95


@pytest.mark.slow
@pytest.mark.parametrize("form", ["saved_model", "tflite"])
def test_a_process_of_its_own_answers_the_same(tmp_path, form):
    policy, oracle = exported("gru")
    write = save_functions if form == "saved_model" else export.write_tflite
    write(policy, tmp_path)
    assert verify(form, tmp_path, policy, oracle)["max_error"] <= 1e-5


@pytest.mark.parametrize("name", list(AGENTS))
@pytest.mark.variants(2)
def test_onnx(tmp_path, name):
    onnx()
    policy, oracle = exported(name)
    about = export.write_onnx(policy, tmp_path)
    count = 100 if name == "pixels" else 1000
    told = verify("onnx", tmp_path, policy, oracle, count=count)
    assert told["observations"] == count
    assert about["files"] == sorted(f.name for f in tmp_path.iterdir()) or policy.state
    assert told["equal"] in (None, 1.0) and (told["max_error"] or 0.0) <= 1e-5
    assert any(name.startswith("distribution/") for name in told["outputs"])


def test_tflite_takes_batches_of_any_size(tmp_path):
    policy, oracle = exported("normalised")
    export.write_tflite(policy, tmp_path)
    runner = tf.lite.Interpreter(str(tmp_path / "policy.tflite")).get_signature_runner("action")
    for size in (1, 5, 2):
        obs = specs.sample(OBS, seeding.key(size), [size])
        own = oracle.answers([obs], ())["action/action"][0]
        np.testing.assert_array_equal(runner(observation=obs.numpy())["action"], own)


def with_function(call):
    """A policy whose action is a function of the observation."""
    function = tf.function(
        lambda x: {"action": call(x)},
        input_signature=[tf.TensorSpec([None, 3], name="observation")],
        autograph=False,
    )
    return PolicyFunctions(
        functions={"action": function}, tracked=(), obs_spec=OBS, action_spec=OBS,
        inputs=("observation",), outputs=("action",),
    )  # fmt: skip


def run_onnx(tmp_path, call, x):
    import onnxruntime

    export.write_onnx(with_function(call), tmp_path)
    session = onnxruntime.InferenceSession(tmp_path / "action.onnx")
    assert [given.name for given in session.get_inputs()] == ["observation"]
    (found,) = session.run(None, {"observation": x})
    return found


@pytest.mark.parametrize("size", [0, 1, 5])
def test_onnx_has_the_shapes_that_distributions_broadcast_to(tmp_path, size):
    """BroadcastArgs, which tf2onnx lacks; of ranks that differ, and of nothing too."""
    onnx()

    def call(x):
        shape = tf.broadcast_dynamic_shape(tf.shape(x)[:1], [2, 1])
        same = tf.broadcast_dynamic_shape(shape, tf.zeros([0], tf.int32))
        return tf.zeros(same) + x[:, 0] + tf.cast(tf.size(same), tf.float32)

    x = np.arange(3 * size, dtype=np.float32).reshape(size, 3)
    np.testing.assert_array_equal(run_onnx(tmp_path, call, x), call(tf.constant(x)))


@pytest.mark.parametrize("size", [3, 900])
def test_onnx_holds_tensors_from_outside_of_the_function(tmp_path, size):
    onnx()
    outside = tf.range(size, dtype=tf.float32)
    x = np.ones([2, 3], np.float32)
    found = run_onnx(tmp_path, lambda x: x[:, :1] * outside, x)
    np.testing.assert_array_equal(found, np.tile(np.arange(size), [2, 1]))


def test_what_onnx_lacks_is_refused(tmp_path):
    onnx()
    with pytest.raises(UserError, match="--format=onnx: expected a policy whose operations ONNX"):
        export.write_onnx(with_function(tf.math.digamma), tmp_path)


def test_what_tflite_lacks_is_taken_from_tensorflow_or_refused(tmp_path):
    about = export.write_tflite(
        with_function(lambda x: x * tf.linalg.det(tf.linalg.diag(x))[:, tf.newaxis]), tmp_path
    )
    assert about["ops"] == "built-in and Select TF ops"
    with pytest.raises(UserError, match="--format=tflite: expected a policy whose operations"):
        export.write_tflite(
            with_function(lambda x: tf.numpy_function(lambda y: y, [x], tf.float32)), tmp_path
        )


def test_nothing_is_printed(tmp_path, capfd):
    policy, _ = exported("normalised")
    export.write_tflite(policy, tmp_path)
    if export_onnx_installed():
        export.write_onnx(policy, tmp_path)
    captured = capfd.readouterr()
    assert (captured.out, captured.err) == ("", "")


def export_onnx_installed():
    import importlib.util

    return all(importlib.util.find_spec(n) for n in ("tf2onnx", "onnxruntime"))


class TestVerify:
    """What the comparison finds; the other process is played by its own answers."""

    @pytest.fixture(name="answers")
    def fixture_answers(self, monkeypatch):
        """Answers that a test may spoil before they are compared."""
        spoil = []

        def played(form, folder, policy, observations, key=None):
            found = self.oracle.answers(observations, ("action", "explore", "distribution"))
            found = export_verify._clipped(found, policy, ("action", "explore"))
            found = {name: x.copy() for name, x in found.items()}
            for name in (*policy.outputs, *policy.state):
                found[f"single/{name}"] = found[f"action/{name}"][0, :1]
            for change in spoil:
                change(found)
            return found

        monkeypatch.setattr(export_verify, "client_answers", played)
        return spoil

    def verify(self, name, form="onnx", **options):
        policy, self.oracle = exported(name)
        return verify(form, None, policy, self.oracle, **options)

    def test_equal_answers(self, answers):
        told = self.verify("rescaled")
        assert (told["max_error"], told["tolerance"]) == (0.0, 1e-5)
        assert self.verify("masked")["equal"] == 1.0

    def test_an_action_that_is_off(self, answers):
        def off(found):
            found["action/action_a"][0, 3, 1] += 1e-3

        answers.append(off)
        with pytest.raises(UserError) as error:
            self.verify("rescaled")
        assert str(error.value).startswith(
            "verification of --format=onnx: expected the library's actions within 1e-05, in a "
            "process without it, got distances and shares of equal choices: action/action_a 0.00"
        )
        assert self.verify("rescaled", quantized=True)["max_error"] > 5e-4

    @pytest.mark.slow
    def test_what_the_format_should_have_and_does_not(self, answers):
        self.verify("gru")
        for name in (
            "action/action", "action/state_policy_hidden", "distribution/scale",
            "distribution/state_policy_hidden", "single/action", "single/state_policy_hidden",
        ):  # fmt: skip
            answers[:] = [lambda found, name=name: found.pop(name)]
            with pytest.raises(UserError, match=f"{name} is missing"):
                self.verify("gru")
        answers[:] = [lambda found: found.pop("explore/action")]
        with pytest.raises(UserError, match=r"choices: explore/action is missing\."):
            self.verify("gru", form="saved_model")
        self.verify("gru", form="onnx")  # which has none
        answers[:] = [lambda found: found.update({"action/more": found["action/action"]})]
        with pytest.raises(UserError, match="action/more is not known"):
            self.verify("gru")

    @pytest.mark.parametrize("name", ["explore", "distribution"])
    def test_a_memory_that_is_off_in_another_function(self, answers, name):
        def off(found):
            found[f"{name}/state_policy_hidden"][7, 3] += 1e-3

        answers.append(off)
        with pytest.raises(UserError, match=f"choices: {name}/state_policy_hidden 0.00"):
            self.verify("gru", form="saved_model")

    def test_weights_of_8_bits_have_bounds_too(self, answers):
        rows = slice(0, 40)

        def off(found):
            found["action/action_a"][0, rows] -= 0.06 * np.array([4.0, 1.0], np.float32)

        answers.append(off)
        told = self.verify("rescaled", quantized=True)
        assert told["outputs"]["action/action_a within 5%"] == pytest.approx(0.96)
        rows = slice(0, 60)
        with pytest.raises(UserError) as error:
            self.verify("rescaled", quantized=True)
        assert str(error.value) == (
            "verification of --format=onnx: expected 95% of its actions equal to the library's, "
            "or within 5% of their range, got distances and shares of equal choices: "
            "action/action_a 0.9400 within 5%. Nothing was written. Leave out --quantize, or use "
            "--noverify."
        )

        def other(found):
            found["action/action"][0, rows] = (found["action/action"][0, rows] + 1) % 4

        answers[:] = [other]
        with pytest.raises(UserError, match=r"choices: action/action 0\.9400\."):
            self.verify("normalised", quantized=True)
        rows = slice(0, 40)
        assert self.verify("normalised", quantized=True)["equal"] == pytest.approx(0.96)

    def test_a_choice_may_differ_among_equals_alone(self, answers):
        def other(found):
            found["action/action"][0, 7] = (found["action/action"][0, 7] + 1) % 4

        answers.append(other)
        with pytest.raises(UserError, match=r"action/action 0\.9990"):
            self.verify("normalised")

        def equal(agent, state, obs, carry=None):
            rows = len(obs)
            return {".": ("categorical", {"logits": tf.zeros([rows, 4])})}, carry

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(PPO, "policy_parameters", equal)
            assert self.verify("normalised")["outputs"]["action/action ties"] == 1

    def test_another_shape_dtype_or_nan(self, answers):
        answers.append(lambda found: found.update({"action/action": found["action/action"][0]}))
        with pytest.raises(UserError, match=r"int64\[1000\] instead of int64\[1, 1000\]"):
            self.verify("normalised")
        answers[:] = [
            lambda found: found.update({"action/action_a": found["action/action_a"] + np.nan})
        ]
        with pytest.raises(UserError, match="action/action_a nan"):
            self.verify("rescaled", quantized=True)


def test_draws_that_fell_otherwise_lead_to_another_memory():
    policy = PolicyFunctions(
        functions={}, tracked=(), obs_spec=OBS, action_spec=specs.DiscreteSpec(3),
        inputs=("observation",), outputs=("action",), state=("state",),
    )  # fmt: skip
    own = {
        f"{signature}/{name}": np.zeros([3, 1000], dtype)
        for signature in ("action", "explore")
        for name, dtype in (("action", np.int64), ("state", np.float32))
    }
    theirs = {name: x.copy() for name, x in own.items()}
    theirs |= {f"single/{n}": theirs[f"action/{n}"][0, :1] for n in ("action", "state")}
    theirs["explore/action"][0, 5] = 1
    theirs["explore/state"][:, 5] = 1.0
    theirs["explore/action"][1:, 5] = 2
    found = compare(policy, own, theirs, ("action", "explore"))
    assert found.wrong == []
    assert found.shares["explore/action"] == pytest.approx(1 - 1 / 2998)
    theirs["explore/state"][2, 6] = 1.0
    assert compare(policy, own, theirs, ("action",)).wrong == ["explore/state 1"]
    theirs["explore/action"][:] = 1
    assert "explore/action 0.0000" in compare(policy, own, theirs, ("action",)).wrong


def test_the_other_process_cannot_import_the_library(tmp_path):
    client = repr(export_client.__file__)
    code = (
        f"import runpy, sys; found = runpy.run_path({client}); "
        "sys.meta_path.insert(0, found['_Bar']({'tfrl'})); import tfrl"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-c", code], capture_output=True, text=True, timeout=60
    )
    assert "ImportError: tfrl is not to be imported here" in done.stderr


def test_a_failing_process_is_told_by_its_error(tmp_path):
    policy, oracle = exported("normalised")
    if not export_onnx_installed():
        pytest.skip("the extra 'export' is not installed")
    with pytest.raises(UserError) as error:
        verify("onnx", tmp_path, policy, oracle)  # nothing is there
    assert "got KeyError: 'action'." in str(error.value)


def test_observations_and_masks():
    drawn = export_verify.draw_observations(MASKED, memory=False)
    (obs,) = drawn
    assert obs["observation"].shape == (1000, 3)
    mask = obs["action_mask"].numpy()
    assert mask.dtype == bool and mask.any(-1).all() and not mask.all()
    assert len(export_verify.draw_observations(OBS, memory=True)) == 20
