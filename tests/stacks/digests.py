"""Digests of the final parameters of short runs, on each TensorFlow.

A change that is to change training records them again, on each stack:

    .venv/bin/python -m tests.stacks.digests
    .venv-current/bin/python -m tests.stacks.digests

The runs use graph mode, since XLA compiles for the processor, and the kernels of oneDNN that every
x86-64 processor has. The last bits still depend on the processor: `--add` records the digests of
another one beside the first. For a processor that is not recorded, the mean of the absolute
parameters tells whether training is the same up to rounding.
"""

import json
import os
import pathlib
import sys
import tempfile

import numpy as np
import tensorflow as tf

from tests import forked
from tests.stacks import make

PATH = pathlib.Path(__file__).parent / "digests.json"
EVERY_PROCESSOR = {"ONEDNN_MAX_CPU_ISA": "SSE41"}
RUNS = {
    **make.RUNS,
    "sac": {
        "gin_files": "sac/tf_pendulum.gin",
        "train.total_env_steps": 256,
        "SAC.hidden": (8,),
        "InGraphReplay.capacity": 256,
        "OffPolicyWorkflow.compile": "graph",
        "OffPolicyWorkflow.random_steps": 128,
    },
}


def result(name: str) -> tuple[str, float]:
    """Trains in a process of its own, where oneDNN has not chosen its kernels yet.

    Returns:
      The digest of the final parameters, and the mean of their absolute values.
    """
    code = f"from tests.stacks import digests; digests.train({name!r})"
    env = {**os.environ, **EVERY_PROCESSOR, "PYTHONPATH": str(forked.ROOT)}
    done = forked.run([sys.executable, "-c", code], cwd=forked.ROOT, env=env)
    assert done.returncode == 0, done.stderr
    digest, mean = done.stdout.split()[-2:]
    return digest, float(mean)


def train(name: str) -> None:
    """Trains here and prints the digest and the mean."""
    import tfrl

    with tempfile.TemporaryDirectory() as folder:
        summary = tfrl.train(root_dir=f"{folder}/run", **make.COMMON, **RUNS[name])
        workflow, state = tfrl.load(f"{folder}/run").workflow()
        params = tf.nest.flatten(workflow.agent_state(state).params)
    values = np.concatenate([np.ravel(x).astype(np.float64) for x in params])
    print(summary["params_digest"], np.abs(values).mean())


def main(add: bool) -> None:
    """Records this stack's digests; `add` keeps those of other processors."""
    recorded = json.loads(PATH.read_text()) if PATH.exists() else {}
    before = recorded.get(make.stack(), {}) if add else {}
    after = {}
    for name in RUNS:
        digest, mean = result(name)
        known = before.get(name, {}).get("digests", [])
        after[name] = {"digests": sorted({*known, digest}), "mean": round(mean, 6)}
    recorded[make.stack()] = after
    PATH.write_text(json.dumps(recorded, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main(add="--add" in sys.argv)
