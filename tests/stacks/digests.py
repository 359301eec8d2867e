"""Digests of the parameters that short runs end with, on each TensorFlow.

A change that is to change training records them anew, on each stack:

    .venv/bin/python -m tests.stacks.digests
    .venv-current/bin/python -m tests.stacks.digests

oneDNN chooses the kernels of matrix products by the processor, and so their last bits: runs are
held to those that every x86-64 processor has. XLA compiles for the processor that it runs on, so
the runs compute in graphs.
"""

import json
import os
import pathlib
import sys
import tempfile

from tests import forked
from tests.stacks import make

PATH = pathlib.Path(__file__).parent / "digests.json"
EVERY_PROCESSOR = {"ONEDNN_MAX_CPU_ISA": "SSE41"}
RUNS = {
    **make.RUNS,
    "sac": {
        "gin_files": "sac/tf_pendulum.gin",
        "total_env_steps": 256,
        "SAC.hidden": (8,),
        "InGraphReplay.capacity": 256,
        "OffPolicyWorkflow.compile": "graph",
        "OffPolicyWorkflow.random_steps": 128,
    },
}


def digest(name: str) -> str:
    """Trains in a process of its own, where oneDNN has not chosen yet."""
    code = f"from tests.stacks import digests; digests.train({name!r})"
    env = {**os.environ, **EVERY_PROCESSOR, "PYTHONPATH": str(forked.ROOT)}
    done = forked.run([sys.executable, "-c", code], cwd=forked.ROOT, env=env)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()[-1]


def train(name: str) -> None:
    """Trains here and prints the digest."""
    import tfrl

    with tempfile.TemporaryDirectory() as folder:
        summary = tfrl.train(root_dir=f"{folder}/run", **make.COMMON, **RUNS[name])
    print(summary["params_digest"])


def main() -> None:
    """Records those of this stack."""
    recorded = json.loads(PATH.read_text()) if PATH.exists() else {}
    recorded[make.stack()] = {name: digest(name) for name in RUNS}
    PATH.write_text(json.dumps(recorded, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
