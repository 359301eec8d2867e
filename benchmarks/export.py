"""Microseconds per action of an exported policy for one observation, by format.

  python -m benchmarks.export [--hidden=64,64] [--rounds=40] [--calls=100]

The policy is PPO's for CartPole, with an observation normaliser. It alternates with a bare
TensorFlow function, so that noise of the machine affects both: a hand-written network of the same
size over variables, with the same input and output, called as a concrete function. One JSON line
per measurement: the median over rounds, and the median of the ratios to the bare call of the same
round.
"""

import argparse
import importlib.util
import pathlib
import statistics
import tempfile
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from benchmarks import measure
from tfrl import seeding, specs
from tfrl.agents import PPO
from tfrl.experiment import export
from tfrl.experiment.export import save_functions
from tfrl.experiment.export_functions import policy_functions

OBSERVATION, ACTIONS = 4, 2
BARE = "bare_concrete_function"


def bare(hidden: tuple[int, ...], x: tf.Tensor) -> dict[str, Callable[[], Any]]:
    """Returns calls of a hand-written net, as a concrete function and as a tf.function."""
    sizes = [OBSERVATION, *hidden, ACTIONS]
    layers = [
        (tf.Variable(tf.random.normal([i, o]) / i**0.5), tf.Variable(tf.zeros([o])))
        for i, o in zip(sizes[:-1], sizes[1:], strict=True)
    ]

    @tf.function(input_signature=[tf.TensorSpec([None, OBSERVATION], name="observation")])
    def action(observation: tf.Tensor) -> tf.Tensor:
        hidden = observation
        for kernel, bias in layers[:-1]:
            hidden = tf.tanh(hidden @ kernel + bias)
        return tf.argmax(hidden @ layers[-1][0] + layers[-1][1], axis=-1)

    concrete = action.get_concrete_function()
    return {BARE: lambda: concrete(x), "bare_tf_function": lambda: action(x)}


def saved_model(folder: pathlib.Path, x: tf.Tensor) -> dict[str, Callable[[], Any]]:
    """Returns functions that call a SavedModel's action."""
    loaded = tf.saved_model.load(str(folder))
    signature = loaded.signatures["action"]
    array = x.numpy()
    return {
        "saved_model_signature": lambda: signature(observation=x),
        "saved_model_signature_numpy": lambda: signature(observation=tf.constant(array))[
            "action"
        ].numpy(),
        "saved_model_attribute": lambda: loaded.action(x),
    }


def tflite(folder: pathlib.Path, name: str, x: np.ndarray) -> dict[str, Callable[[], Any]]:
    """Returns functions that call a TFLite file, with NumPy in and out."""
    path = str(folder / export.TFLITE_FILE)
    interpreter = tf.lite.Interpreter(model_path=path)
    runner = interpreter.get_signature_runner("action")
    direct = tf.lite.Interpreter(model_path=path)
    # Signatures are subgraphs; the first one is `action`.
    input_index = direct.get_input_details()[0]["index"]
    output_index = direct.get_output_details()[0]["index"]
    direct.resize_tensor_input(input_index, x.shape)
    direct.allocate_tensors()

    def invoke() -> np.ndarray:
        direct.set_tensor(input_index, x)
        direct.invoke()
        return direct.get_tensor(output_index)

    return {f"{name}_interpreter": invoke, f"{name}_signature": lambda: runner(observation=x)}


def onnx(folder: pathlib.Path, x: np.ndarray) -> dict[str, Callable[[], Any]]:
    """Returns the call of an ONNX file by onnxruntime, one thread."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(
        str(folder / "action.onnx"), options, providers=["CPUExecutionProvider"]
    )
    return {"onnx": lambda: session.run(None, {"observation": x})}


def calls(root: pathlib.Path, hidden: tuple[int, ...]) -> dict[str, Callable[[], Any]]:
    """Exports the policy in every format; returns all functions to compare."""
    agent = PPO(
        obs_spec=tf.TensorSpec([OBSERVATION]),
        action_spec=specs.DiscreteSpec(ACTIONS),
        hidden=hidden,
        normalize_obs=True,
    )
    policy = policy_functions(agent, agent.init(seeding.key(0)))
    array = np.array([[0.1, -0.2, 0.05, 0.3]], np.float32)
    x = tf.constant(array)
    functions = {**bare(hidden, x), **saved_model(save_functions(policy, root / "saved_model"), x)}
    for name, quantize in (("tflite", False), ("tflite_quantized", True)):
        folder = root / name
        folder.mkdir()
        export.write_tflite(policy, folder, quantize=quantize)
        functions.update(tflite(folder, name, array))
    if all(importlib.util.find_spec(n) for n in ("tf2onnx", "onnxruntime")):
        (root / "onnx").mkdir()
        export.write_onnx(policy, root / "onnx")
        functions.update(onnx(root / "onnx", array))
    return functions


def microseconds(call: Callable[[], Any], count: int) -> float:
    """Returns the mean time of a call."""
    start = time.perf_counter()
    for _ in range(count):
        call()
    return (time.perf_counter() - start) / count * 1e6


def main() -> None:
    """Parses the command line and measures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--hidden", default="64,64", help="units of the layers")
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--calls", type=int, default=100, help="calls per round")
    args = parser.parse_args()
    hidden = tuple(int(size) for size in args.hidden.split(","))
    with tempfile.TemporaryDirectory() as root:
        compared = calls(pathlib.Path(root), hidden)
        for call in compared.values():
            microseconds(call, args.calls)
        contestants = {
            name: lambda call=call: microseconds(call, args.calls)
            for name, call in compared.items()
        }
        timings = measure.alternate(contestants, args.rounds)
    for name, values in timings.items():
        ratios = [own / bare for own, bare in zip(values, timings[BARE], strict=True)]
        measure.emit(
            benchmark="export",
            call=name,
            microseconds=statistics.median(values),
            ratio_to_bare_call=statistics.median(ratios),
            hidden=list(hidden),
            rounds=args.rounds,
        )


if __name__ == "__main__":
    main()
