"""Compares what an exported policy answers, in a process without tfrl, with the library itself."""

import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfrl import seeding, specs, struct
from tfrl.envs.action_masks import MASK
from tfrl.errors import UserError
from tfrl.experiment import export_client, export_lite, export_onnx
from tfrl.experiment.export_comparison import EQUAL, RANGE, TOLERANCE, compare
from tfrl.experiment.export_functions import PolicyFunctions, leaf_name
from tfrl.experiment.export_oracle import Answers

OBSERVATIONS = 1000
# Of a policy with memory: so many sequences of so many steps.
_STEPS = 20
_SECONDS = 300.0
# The functions that a format does not have.
_WITHOUT = {
    "saved_model": (),
    "tf_agents": ("distribution",),
    "tflite": export_lite.WITHOUT,
    "onnx": export_onnx.WITHOUT,
}
# The seed of the key that stands in for the one that a policy for TF-Agents draws.
_KEY = 12
_EXCEPTION = re.compile(r"[\w.]+(Error|Exception|Exit): ")


def draw_observations(obs_spec: Any, memory: bool, count: int = OBSERVATIONS) -> list[Any]:
    """Draws observations within their spec; of action masks each row has a valid action.

    Args:
      obs_spec: The nest of specs of one observation.
      memory: Whether they are the steps of sequences.
      count: How many.

    Returns:
      Nests `[B, ...]`, one a step.
    """
    steps = _STEPS if memory else 1
    key = seeding.stream(seeding.key(0), "export")
    drawn = specs.sample(obs_spec, key, [steps, max(1, count // steps)])
    leaves = {
        path: _mask(np.asarray(x)) if path.split("/")[-1] == MASK else np.asarray(x)
        for path, x in struct.paths(drawn).items()
    }
    return [
        tf.nest.pack_sequence_as(obs_spec, [tf.constant(x[t]) for x in leaves.values()])
        for t in range(steps)
    ]


def _mask(mask: np.ndarray) -> np.ndarray:
    mask = mask.astype(bool)
    mask[..., 0] |= ~mask.any(axis=-1)
    return mask


def client_answers(
    form: str,
    folder: pathlib.Path,
    policy: PolicyFunctions,
    observations: Sequence[Any],
    key: tf.Tensor | None = None,
) -> Answers:
    """Lets a process without tfrl act by an export.

    Args:
      form: The format.
      folder: The export.
      policy: What was exported.
      observations: Nests `[B, ...]`, one a step.
      key: What TF-Agents' policy that explores draws by, int32 [2]; None to leave it out.

    Returns:
      Its answers, see `export_client`.

    Raises:
      UserError: The process failed.
    """
    leaves = [tf.nest.flatten(obs) for obs in observations]
    arrays = {n: np.stack([np.asarray(x[i]) for x in leaves]) for i, n in enumerate(policy.inputs)}
    with tempfile.TemporaryDirectory() as scratch:
        given, taken, job = (
            pathlib.Path(scratch, name) for name in ("observations.npz", "answers.npz", "job.json")
        )
        np.savez(given, **arrays)  # type: ignore[arg-type]
        content = {
            "format": form,
            "folder": str(folder),
            "inputs": policy.inputs,
            "outputs": policy.outputs,
            "state": policy.state,
            "key": None if key is None else np.asarray(key).tolist(),
            "observations": str(given),
            "answers": str(taken),
        }
        job.write_text(json.dumps(content), encoding="utf-8")
        _run(form, job)
        with np.load(taken) as file:
            return dict(file)


def _run(form: str, job: pathlib.Path) -> None:
    # -I: neither the working directory nor PYTHONPATH, which may lead to tfrl, is looked into.
    command = [sys.executable, "-I", export_client.__file__, str(job)]
    clean = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
    try:
        done = subprocess.run(
            command, env=clean, capture_output=True, text=True, timeout=_SECONDS, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise _failed(form, f"no answer within {_SECONDS:.0f} s") from error
    if done.returncode:
        lines = done.stderr.strip().splitlines()
        # A message may go on below the line that names the exception.
        named = [line for line in lines if _EXCEPTION.match(line)] or lines
        raise _failed(form, named[-1] if named else f"exit code {done.returncode}")


def _failed(form: str, got: str, quantized: bool = False) -> UserError:
    expected = f"the library's own actions, from a process without it, to {TOLERANCE:g}"
    remedy = "Nothing was written. --noverify writes it unverified."
    if quantized:
        expected = (
            f"{EQUAL:.0%} of its actions to be the library's own: equal, or nearer than "
            f"{RANGE:.0%} of their range"
        )
        remedy = "Nothing was written. Leave out --quantize; --noverify writes it unverified."
    return UserError(f"verification of --format={form}", expected=expected, got=got, remedy=remedy)


def verify(
    form: str,
    folder: pathlib.Path,
    policy: PolicyFunctions,
    oracle: Any,
    *,
    quantized: bool = False,
    count: int = OBSERVATIONS,
) -> dict[str, Any]:
    """Compares an export with the library's own answers.

    Args:
      form: "saved_model", "tf_agents", "tflite" or "onnx".
      folder: The export.
      policy: What was exported.
      oracle: Has `answers`, see `export_oracle.AgentOracle`.
      quantized: Whether weights are of 8 bits; then greedy actions alone are held to a bound, see
        `export_comparison`.
      count: How many observations.

    Returns:
      `observations`, `steps`, and for each float output of each signature the largest distance,
      for each discrete one the share that is equal, see `export_comparison`; `not_compared`, why a
      function is left out; for `metadata.json`.

    Raises:
      UserError: An output is farther off than its bound, or a choice another one though no two
        were equally good; an output of a function that the format should have is missing; or the
        other process failed.
    """
    observations = draw_observations(policy.obs_spec, bool(policy.state), count)
    has = [name for name in policy.functions if name not in _WITHOUT[form]]
    left_out: dict[str, str] = {}
    if form == "tf_agents":
        left_out = _without_key(folder, policy)
        has = [name for name in has if name not in left_out]
        key = seeding.key(_KEY)
        own = oracle.answers(observations, has, lambda t: key)
        own = _clipped(own, policy)
        given = None if "explore" not in has else key
        theirs = client_answers(form, folder, policy, observations, given)
    else:
        own = oracle.answers(observations, tuple(policy.functions))
        theirs = client_answers(form, folder, policy, observations)
    found = compare(policy, own, theirs, has, quantized=quantized)
    if found.wrong:
        told = f"distances and shares of equal choices: {', '.join(found.wrong)}"
        raise _failed(form, told, quantized)
    steps = len(observations)
    return {
        "process": "without tfrl",
        "observations": steps * len(tf.nest.flatten(observations[0])[0]),
        "steps": steps,
        "tolerance": None if quantized else TOLERANCE,
        **found.summary(policy.outputs),
        "outputs": found.outputs(),
        "not_compared": left_out,
    }


def _without_key(folder: pathlib.Path, policy: PolicyFunctions) -> dict[str, str]:
    """Says why the draws of TF-Agents' policy that explores cannot be repeated, if they cannot."""
    if "explore" not in policy.functions:
        return {"explore": policy.left_out.get("explore", "the policy has none")}
    _, _, others = export_client.draws(folder / "collect_policy")
    kinds = sorted({node.op for node in others})
    return {"explore": f"it draws by {', '.join(kinds)}, past its key"} if kinds else {}


def _clipped(own: Answers, policy: PolicyFunctions) -> Answers:
    """TF-Agents clips actions to the bounds of their spec."""
    found = dict(own)
    for path, spec in struct.paths(policy.action_spec).items():
        if spec.dtype.is_floating:
            name = f"action/{leaf_name(path, 'action')}"
            found[name] = np.clip(own[name], *specs.bounds(spec)).astype(own[name].dtype)
    return found
