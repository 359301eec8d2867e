"""Digests of short runs in graph mode, which show whether a code change altered training bits.

    python -m benchmarks.digests --out=before.json
    python -m benchmarks.digests --compare=before.json

Each run is a process of `bin/train.py` with few env steps; its digest covers the final parameters,
from `summary.json`. Digests depend on the processor, the number of threads and the stack
(TensorFlow, NumPy), so create both files on one machine and one stack, the first from a checkout of
the old version (`--checkout=FOLDER`).
"""

import importlib.metadata
import importlib.util
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time
from typing import Any

from absl import app, flags

from benchmarks.measure import ROOT, emit

_OUT = flags.DEFINE_string("out", None, "File to write the digests to.")
_COMPARE = flags.DEFINE_string("compare", None, "File of digests to compare with.")
_CHECKOUT = flags.DEFINE_string("checkout", str(ROOT), "The checkout to run.")
_ONLY = flags.DEFINE_list("only", None, "Names of the runs (default: all).")

_COMMON = {
    "train.final_eval_episodes": "2",
    "train.eval_interval": "None",
    "train.recorders": "()",
    "train.progress": "False",
    "train.video": "False",
}
_ON = {"OnPolicyWorkflow.compile": "'graph'", "OnPolicyWorkflow.iterations_per_call": "2"}
_OFF = {
    "OffPolicyWorkflow.compile": "'graph'",
    "OffPolicyWorkflow.iterations_per_call": "16",
    "OffPolicyWorkflow.random_steps": "128",
}
_HOST = {"OffPolicyWorkflow.compile": "{'rollout': 'numpy', 'update': 'graph'}"}
_TWO = ("--strategy=mirrored", "--num_logical_cpus=2")

# name: (gin file, env steps, bindings, flags)
RUNS: dict[str, tuple[str, int, dict[str, str], tuple[str, ...]]] = {
    "ppo": ("ppo/tf_cartpole.gin", 4_096, _ON, ()),
    "ppo_two_replicas": ("ppo/tf_cartpole.gin", 4_096, _ON, _TWO),
    "ppo_normalize_obs": (
        "ppo/tf_pendulum.gin",
        4_096,
        {**_ON, "PPO.normalize_obs": "True", "make_env.num_envs": "4"},
        (),
    ),
    "ppo_host": ("ppo/gymnasium_cartpole.gin", 4_096, _ON, ()),
    "ppo_rnn": ("ppo_rnn/tf_memory.gin", 4_096, _ON, ()),
    "ppo_penalty": ("ppo_penalty/tf_cartpole.gin", 4_096, _ON, ()),
    "a2c": ("a2c/tf_cartpole.gin", 2_048, _ON, ()),
    "reinforce": ("reinforce/tf_catch.gin", 2_048, _ON, ()),
    "impala": ("impala/tf_cartpole.gin", 2_048, _ON, ()),
    "mappo": ("mappo/tf_relay.gin", 4_096, _ON, ()),
    "dqn": ("dqn/tf_cartpole.gin", 1_024, _OFF, ()),
    "dqn_prioritized": (
        "dqn/tf_cartpole.gin",
        1_024,
        {**_OFF, "InGraphReplay.kind": "'prioritized'"},
        (),
    ),
    "dqn_two_replicas": ("dqn/tf_cartpole.gin", 1_024, _OFF, _TWO),
    "dqn_host": ("dqn/gymnasium_cartpole.gin", 1_024, {**_OFF, **_HOST}, ()),
    "sac": ("sac/tf_pendulum.gin", 768, _OFF, ()),
    "sac_host": ("sac/gymnasium_pendulum.gin", 768, {**_OFF, **_HOST}, ()),
    "sac_discrete": ("sac/tf_cartpole.gin", 1_024, _OFF, ()),
    "td3": ("td3/tf_pendulum.gin", 768, _OFF, ()),
    "ddpg": ("ddpg/tf_pendulum.gin", 768, _OFF, ()),
    "tf_agents_dqn": ("tf_agents/dqn_cartpole.gin", 1_024, {**_OFF, **_HOST}, ()),
    "task": ("examples/task_ppo.gin", 4_096, {}, ()),
}


def stack() -> str:
    """Returns the versions that the bits depend on."""
    names = ("tensorflow", "numpy")
    return ", ".join(f"{name} {importlib.metadata.version(name)}" for name in names)


def can_run(name: str) -> bool:
    """Whether this stack has the packages of a run."""
    return not name.startswith("tf_agents") or importlib.util.find_spec("tf_agents") is not None


def digest(name: str, checkout: pathlib.Path) -> dict[str, Any]:
    """Runs one of `RUNS`; returns its digest and other distinguishing values."""
    gin_file, env_steps, bindings, more = RUNS[name]
    bindings = {"train.total_env_steps": str(env_steps), **_COMMON, **bindings}
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        command = [
            sys.executable,
            str(checkout / "bin" / "train.py"),
            f"--root_dir={folder}/run",
            f"--gin_file={gin_file}",
            *(f"--gin_bindings={key}={value}" for key, value in bindings.items()),
            *more,
        ]
        path = os.pathsep.join([str(checkout), str(checkout / "examples")])
        done = subprocess.run(
            command,
            cwd=checkout,
            env={**os.environ, "PYTHONPATH": path},
            capture_output=True,
            text=True,
        )
        if done.returncode:
            raise RuntimeError(f"{name} ended with {done.returncode}: {done.stderr[-2_000:]}")
        summary = json.loads(pathlib.Path(folder, "run", "summary.json").read_text())
    figures = {key: summary[key] for key in ("params_digest", "env_steps", "eval_return_mean")}
    return {**figures, "stack": stack(), "seconds": time.monotonic() - started}


def main(_: list[str]) -> None:
    """Prints one JSON line per run; exits with 1 if a run differs from the file."""
    before = json.loads(pathlib.Path(_COMPARE.value).read_text()) if _COMPARE.value else {}
    results, differ = {}, []
    others = {run["stack"] for run in before.values() if "stack" in run} - {stack()}
    if others:
        sys.exit(
            f"{_COMPARE.value}: expected digests of {stack()}, got {', '.join(sorted(others))}."
        )
    for name in _ONLY.value or filter(can_run, RUNS):
        results[name] = digest(name, pathlib.Path(_CHECKOUT.value).resolve())
        same = None
        if name in before:
            same = results[name]["params_digest"] == before[name]["params_digest"]
            differ += [] if same else [name]
        emit(
            benchmark="digests",
            run=name,
            **results[name],
            **({} if same is None else {"same": same}),
        )
    if _OUT.value:
        pathlib.Path(_OUT.value).write_text(json.dumps(results, indent=1) + "\n")
    if differ:
        sys.exit(f"Changed digests: {', '.join(differ)}")


if __name__ == "__main__":
    app.run(main)
