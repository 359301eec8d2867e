"""Writes what one TensorFlow leaves to the others: runs, policies, a Learner's checkpoint.

From the top of the repository, on each stack (see docs/platforms.md):

    .venv/bin/python -m tests.stacks.make
    .venv-current/bin/python -m tests.stacks.make
"""

import json
import pathlib
import shutil
import sys
import tempfile

import numpy as np
import tensorflow as tf

import tfrl
from tfrl import seeding, specs
from tfrl.agents import PPO
from tfrl.experiment import export
from tfrl.experiment.export_functions import PolicyFunctions, policy_functions
from tfrl.experiment.export_verify import AgentOracle
from tfrl.keras import api as keras
from tfrl.learners import KerasModule, Learner, ModuleConfig

DATA = pathlib.Path(__file__).parent / "data"
OBS = np.linspace(-0.2, 0.2, 12, dtype=np.float32).reshape(3, 4)
ROWS = {"x": tf.constant([[1.0, 2.0], [3.0, -1.0]]), "y": tf.constant([0.5, -0.5])}
RUNS = {
    "ppo": {
        "gin_files": "ppo/tf_cartpole.gin",
        "train.total_env_steps": 256,
        "PPO.hidden": (8,),
        "OnPolicyWorkflow.compile": "graph",
        "OnPolicyWorkflow.rollout_length": 16,
    },
    # With replay, and optimizers of two kinds of networks.
    "dqn": {
        "gin_files": "dqn/tf_cartpole.gin",
        "train.total_env_steps": 256,
        "DQN.hidden": (8,),
        "InGraphReplay.capacity": 256,
        "OffPolicyWorkflow.compile": "graph",
        "OffPolicyWorkflow.random_steps": 128,
    },
}
COMMON = {
    "eval_interval": None,
    "final_eval_episodes": 1,
    "recorders": (),
    "progress": False,
    "video": False,
    "report": False,
    "make_env.num_envs": 4,
    "eval/make_env.num_envs": 1,
}
# Policies that are exported, by the same parameters on each stack.
POLICIES = {
    "discrete": PPO(
        obs_spec=tf.TensorSpec([3]), action_spec=specs.DiscreteSpec(4), normalize_obs=True
    ),
    "lstm": PPO(
        obs_spec=tf.TensorSpec([3]),
        action_spec=specs.BoundedTensorSpec([2], tf.float32, [-2.0, 0.0], [2.0, 1.0]),
        memory="lstm",
        memory_size=8,
        squash=True,
    ),
}
WRITERS = {"tflite": export.write_tflite, "onnx": export.write_onnx}


def stack() -> str:
    """Returns the name of this stack's folder."""
    return "tensorflow_" + ".".join(tf.__version__.split(".")[:2])


def learner() -> Learner:
    """Returns a Learner of a Keras model and a Keras optimizer."""
    model = keras.Sequential(
        [keras.Input([2]), keras.layers.Dense(3, "tanh"), keras.layers.BatchNormalization()]
    )
    module = KerasModule(model=model, loss_fn=loss)
    config = ModuleConfig(optimizer=keras.optimizers.Adam(), lr=0.1)
    made = Learner({"net": module}, config=config)
    made.build(0)
    return made


def loss(batch, outputs):
    return tf.square(tf.reduce_sum(outputs, -1) - batch["y"])


def update(made: Learner) -> float:
    """Takes a gradient step and returns the loss before it."""
    return float(made.update_from_batch({"net": ROWS})["net"]["loss"])


def predictions(policy: "tfrl.Policy") -> list:
    """Returns the actions for `OBS`."""
    return np.asarray(policy.predict(OBS, deterministic=True)[0]).tolist()


def policy(name: str) -> tuple[PolicyFunctions, AgentOracle]:
    """Returns what is exported, and the library's own answers."""
    agent = POLICIES[name]
    state = agent.init(seeding.key(2))
    return policy_functions(agent, state), AgentOracle(agent, state)


def write_exports(folder: pathlib.Path) -> None:
    """Writes each policy in the forms of `WRITERS`."""
    for form, write in WRITERS.items():
        for name in POLICIES:
            target = folder / "exports" / form / name
            target.mkdir(parents=True)
            write(policy(name)[0], target)


def main() -> None:
    folder = DATA / stack()
    shutil.rmtree(folder, ignore_errors=True)
    expected = {}
    for name, settings in RUNS.items():
        with tempfile.TemporaryDirectory() as temporary:
            root = pathlib.Path(temporary, name)
            tfrl.train(root_dir=root, **COMMON, **settings)
            expected[name] = predictions(tfrl.load(root))
            shutil.copytree(root, folder / name)
    write_exports(folder)
    made = learner()
    for _ in range(3):
        update(made)
    made.save_to_path(folder / "learner")
    expected["learner"] = [update(made) for _ in range(2)]
    expected["key"] = seeding.uniform(seeding.key(-3), [4]).numpy().tolist()
    (folder / "expected.json").write_text(json.dumps(expected, indent=1) + "\n")
    print(f"{folder}: {sum(p.stat().st_size for p in folder.rglob('*') if p.is_file())} bytes")


if __name__ == "__main__":
    sys.exit(main())
