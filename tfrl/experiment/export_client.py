"""Runs an exported policy, in a process without tfrl.

  python -I export_client.py job.json

A job has `format` and `folder` of the export; the names of its inputs, outputs and recurrent state
(`inputs`, `outputs`, `state`, in the order of the specs); `observations`, a .npz of arrays
`[T, B, ...]`; `key`, the two numbers of the key of TF-Agents' exploring policy, or null to skip it;
and `answers`, the .npz to write: `<signature>/<output>` `[T, B, ...]` and `single/<output>`, for
only the first observation. This file never imports the package.
"""

import importlib.abc
import json
import os
import pathlib
import re
import shutil
import sys
import tempfile

_ONLY = {
    "saved_model": ("tensorflow",),
    "tflite": ("tensorflow",),
    "onnx": ("onnxruntime",),
    "tf_agents": ("tensorflow", "tf_agents", "tensorflow_probability"),
}
_BARRED = {"tfrl", "gin", "gymnasium", "tensorflow", "tensorflow_probability", "tf_agents"}
# Imports of TF-Agents.
_THEIRS = {"gin", "gymnasium"}
_KEPT: list = []
# The scope in which a TF-Agents policy draws its key, and all random operations.
KEY_SCOPE = "tfrl_key"
_OF_KEY = re.compile(rf"(^|/){KEY_SCOPE}(_\d+)?/")
_DRAWS = {
    "Multinomial", "ParameterizedTruncatedNormal", "RandomGamma", "RandomPoisson",
    "RandomPoissonV2", "RandomShuffle", "RandomStandardNormal", "RandomUniform",
    "RandomUniformInt", "RngReadAndSkip", "StatefulStandardNormalV2", "StatefulTruncatedNormal",
    "StatefulUniform", "StatefulUniformFullInt", "StatefulUniformInt", "TruncatedNormal",
}  # fmt: skip


class _Bar(importlib.abc.MetaPathFinder):
    def __init__(self, barred):
        self.barred = barred

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in self.barred:
            raise ImportError(f"{name} is not to be imported here")
        return None


def saved_model(job):
    """Returns `{signature: function of named arrays}` of a SavedModel."""
    import tensorflow as tf

    loaded = tf.saved_model.load(job["folder"])
    _KEPT.append(loaded)  # its variables go with it

    def caller(signature):
        types = {x.name: x.dtype for x in signature.structured_input_signature[1].values()}

        def call(**inputs):
            tensors = {name: tf.constant(x, types[name]) for name, x in inputs.items()}
            return {name: x.numpy() for name, x in signature(**tensors).items()}

        return call

    return {name: caller(signature) for name, signature in loaded.signatures.items()}


def tflite(job):
    """Returns the same for a TFLite file."""
    import tensorflow as tf

    interpreter = tf.lite.Interpreter(model_path=str(pathlib.Path(job["folder"], "policy.tflite")))
    names = interpreter.get_signature_list()
    runners = {name: interpreter.get_signature_runner(name) for name in names}

    def caller(runner):
        types = {name: about["dtype"] for name, about in runner.get_input_details().items()}
        return lambda **inputs: runner(**{k: x.astype(types[k]) for k, x in inputs.items()})

    return {name: caller(runner) for name, runner in runners.items()}


def onnx(job):
    """Returns the same for a folder of ONNX files; the next state has the state's name."""
    import onnxruntime

    types = {"tensor(int32)": "int32", "tensor(int64)": "int64"}

    def caller(path):
        session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
        inputs = {x.name: types.get(x.type) for x in session.get_inputs()}
        outputs = [x.name for x in session.get_outputs()]

        def call(**arrays):
            # Unused inputs of a policy are not inputs of the file.
            fed = {k: x.astype(inputs[k] or x.dtype) for k, x in arrays.items() if k in inputs}
            result = session.run(outputs, fed)
            return {n.removeprefix("next_"): x for n, x in zip(outputs, result, strict=True)}

        return call

    return {path.stem: caller(path) for path in sorted(pathlib.Path(job["folder"]).glob("*.onnx"))}


def draws(folder):
    """Returns a SavedModel's proto, its random nodes of the key, and its other random nodes."""
    from tensorflow.core.protobuf import saved_model_pb2

    model = saved_model_pb2.SavedModel()
    model.ParseFromString(pathlib.Path(folder, "saved_model.pb").read_bytes())
    graphs = [graph.graph_def for graph in model.meta_graphs]
    nodes = [node for graph in graphs for node in graph.node]
    nodes += [
        n for graph in graphs for function in graph.library.function for n in function.node_def
    ]
    result = [node for node in nodes if node.op in _DRAWS]
    keys = [node for node in result if _OF_KEY.search(node.name)]
    return model, keys, [node for node in result if not _OF_KEY.search(node.name)]


def _with_key(folder, copy, key):
    """Copies a TF-Agents policy, with a constant instead of the random key."""
    import tensorflow as tf

    shutil.copytree(folder, copy)
    model, keys, _ = draws(folder)
    constant = tf.make_tensor_proto(key, tf.int32)
    for node in keys:
        node.op = "Const"
        del node.input[:]
        node.attr.clear()
        node.attr["dtype"].type = tf.int32.as_datatype_enum
        node.attr["value"].tensor.CopyFrom(constant)
    (copy / "saved_model.pb").write_bytes(model.SerializeToString())
    return copy


def tf_agents(job):
    """Returns the same for the policies of PolicySaver; `single` after an update.

    The exploring policy draws its key from TensorFlow's global random numbers. So it must load and
    run unchanged, and a copy with the job's key gives the draws to compare.
    """
    import tensorflow as tf
    from tf_agents.policies import SavedModelPyTFEagerPolicy
    from tf_agents.trajectories import time_step as ts

    def load(place):
        return SavedModelPyTFEagerPolicy(
            str(place), load_specs_from_pbtxt=True, batch_time_steps=False
        )

    folder = pathlib.Path(job["folder"])
    loaded = {name: load(folder / name) for name in ("policy", "collect_policy")}

    def call(policy, inputs):
        size = len(inputs[job["inputs"][0]])
        observation = _packed(policy.time_step_spec.observation, job["inputs"], inputs)
        state = _packed(policy.policy_state_spec, job["state"], inputs)
        begins = not any(inputs[name].any() for name in job["state"])
        step = ts.TimeStep(
            step_type=tf.fill([size], int(ts.StepType.FIRST if begins else ts.StepType.MID)),
            reward=tf.zeros([size]),
            discount=tf.ones([size]),
            observation=observation,
        )
        step = tf.nest.map_structure(tf.convert_to_tensor, step)
        result = policy.action(step, tf.nest.map_structure(tf.convert_to_tensor, state))
        leaves = tf.nest.flatten(result.action) + tf.nest.flatten(result.state)
        named = zip(job["outputs"] + job["state"], leaves, strict=True)
        return {name: x.numpy() for name, x in named}

    def act(**inputs):
        if len(inputs[job["inputs"][0]]) == 1:
            for name, policy in loaded.items():
                (checkpoint,) = folder.glob(f"checkpoints/{name}_checkpoint_*")
                policy.update_from_checkpoint(str(checkpoint))
            call(loaded["collect_policy"], inputs)
        return call(loaded["policy"], inputs)

    def begin(batch_size):
        state = loaded["policy"].get_initial_state(int(batch_size))
        named = zip(job["state"], tf.nest.flatten(state), strict=True)
        return {name: x.numpy() for name, x in named}

    result = {"action": act, "initial_state": begin}
    if job["key"] is not None:
        scratch = tempfile.TemporaryDirectory()
        _KEPT.append(scratch)
        copy = pathlib.Path(scratch.name, "collect_policy")
        explores = load(_with_key(folder / "collect_policy", copy, job["key"]))
        result["explore"] = lambda seed, **inputs: call(explores, inputs)
    return result


def _packed(spec, names, arrays):
    import tensorflow as tf

    return tf.nest.pack_sequence_as(spec, [arrays[name] for name in names])


def answers(job):
    """Runs all steps; returns the results of every signature."""
    import numpy as np

    with np.load(job["observations"]) as file:
        observations = {name: file[name] for name in job["inputs"]}
    steps, batch = observations[job["inputs"][0]].shape[:2]
    signatures = globals()[job["format"]](job)

    def begin(size):
        return signatures["initial_state"](batch_size=np.asarray(size)) if job["state"] else {}

    def at(t, rows=slice(None)):
        return {name: x[t, rows] for name, x in observations.items()}

    result: dict = {}
    # Exploration carries its own memory, the others the greedy policy's.
    state, explored = begin(batch), begin(batch)
    for t in range(steps):
        for name in ("action", "explore", "distribution"):
            if name in signatures:
                more = {**explored, "seed": np.asarray(t)} if name == "explore" else state
                for output, x in signatures[name](**at(t), **more).items():
                    result.setdefault(f"{name}/{output}", []).append(np.asarray(x))
        state = {name: result[f"action/{name}"][-1] for name in job["state"]}
        if "explore" in signatures:
            explored = {name: result[f"explore/{name}"][-1] for name in job["state"]}
    stacked = {name: np.stack(each) for name, each in result.items()}
    single = signatures["action"](**at(0, slice(0, 1)), **begin(1))
    return {**stacked, **{f"single/{name}": np.asarray(x) for name, x in single.items()}}


def main():
    """Runs the job of the command line."""
    import numpy as np

    job = json.loads(pathlib.Path(sys.argv[1]).read_text(encoding="utf-8"))
    allowed = set(_ONLY[job["format"]])
    barred = _BARRED - allowed - (_THEIRS if "tf_agents" in allowed else set())
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    sys.meta_path.insert(0, _Bar(barred))
    result = answers(job)
    loaded = barred & set(sys.modules)
    if loaded:
        raise SystemExit(f"imported all the same: {', '.join(sorted(loaded))}")
    np.savez(job["answers"], **result)


if __name__ == "__main__":
    main()
