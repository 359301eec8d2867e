"""Compares what an exported policy answers, in a process without tfrl, with the library itself."""

import dataclasses
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfrl import seeding, specs, struct
from tfrl.envs.action_masks import MASK
from tfrl.errors import UserError
from tfrl.experiment import export_client
from tfrl.experiment.export_functions import PolicyFunctions, leaf_name
from tfrl.experiment.export_oracle import Answers

OBSERVATIONS = 1000
# Of a policy with memory: so many sequences of so many steps.
_STEPS = 20
_SECONDS = 300.0
# Of actions, those larger than 1 relative to their size.
TOLERANCE = 1e-5
# Of parameters of a distribution, which are sums of larger numbers: relative to the largest.
PARAMETERS = 1e-4
# As of masked logits, which stand for minus infinity.
_INFINITE = 1e29
# Draws fall between two outcomes whose probabilities differ in the last bits.
_DRAWN = 0.998
_DISCRETE = ("logits", "q_values")
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
    form: str, folder: pathlib.Path, policy: PolicyFunctions, observations: Sequence[Any]
) -> Answers:
    """Lets a process without tfrl act by an export.

    Args:
      form: The format.
      folder: The export.
      policy: What was exported.
      observations: Nests `[B, ...]`, one a step.

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


def _failed(form: str, got: str) -> UserError:
    return UserError(
        f"verification of --format={form}",
        expected=f"the library's own actions, from a process without it, to {TOLERANCE:g}",
        got=got,
        remedy="Nothing was written. --noverify writes it unverified.",
    )


@dataclasses.dataclass
class _Comparison:
    """What was found so far, and what of it is too far off."""

    found: dict[str, Any]
    wrong: list[str]
    strict: bool

    def floats(self, name: str, own: np.ndarray, theirs: np.ndarray) -> None:
        parameters = name.startswith("distribution/")
        scale = _largest(own, None) if parameters else np.abs(own)
        self.found[name] = error = _distance(own, theirs, scale)
        limit = PARAMETERS if parameters else TOLERANCE
        if not np.isfinite(error) or self.strict and error > limit:
            self.wrong.append(f"{name} {error:.3g}")

    def choices(
        self, name: str, own: np.ndarray, theirs: np.ndarray, tie: np.ndarray, least: float = 1.0
    ) -> None:
        equal = (own == theirs) | tie
        share = float(equal.mean())
        self.found[name] = share
        self.found[f"{name} ties"] = int((tie & (own != theirs)).sum())
        if self.strict and share < least:
            self.wrong.append(f"{name} {share:.4f}")


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
      quantized: Whether to measure only: then any finite distance will do.
      count: How many observations.

    Returns:
      `observations`, `steps`, and for each float output of each signature the largest distance,
      see `TOLERANCE` and `PARAMETERS`, for each discrete one the share that is equal; for
      `metadata.json`.

    Raises:
      UserError: An action is farther off than `TOLERANCE`, or another one though no two were
        equally good; or the other process failed.
    """
    observations = draw_observations(policy.obs_spec, bool(policy.state), count)
    own = oracle.answers(observations, tuple(policy.functions))
    if form == "tf_agents":
        own = _clipped(own, policy)
    theirs = client_answers(form, folder, policy, observations)
    result = _Comparison({}, [], strict=not quantized)
    for name, x in theirs.items():
        signature, output = name.split("/", 1)
        expected = own[f"action/{output}"][0, :1] if signature == "single" else own.get(name)
        if expected is None:  # the state after `explore` and `distribution`
            expected = own[f"action/{output}"]
        if x.shape != expected.shape or x.dtype != expected.dtype:
            got, want = f"{x.dtype}{list(x.shape)}", f"{expected.dtype}{list(expected.shape)}"
            result.wrong.append(f"{name} {got} instead of {want}")
        elif np.issubdtype(x.dtype, np.floating):
            result.floats(name, expected, x)
        else:
            rows = slice(0, 1) if signature == "single" else slice(None)
            tie = _ties(policy, own, output, expected, x, rows if signature == "single" else None)
            least = _DRAWN if signature == "explore" else 1.0
            result.choices(name, expected, x, tie, least)
    if result.wrong:
        raise _failed(form, f"distances and shares of equal choices: {', '.join(result.wrong)}")
    steps = len(observations)
    return {
        "process": "without tfrl",
        "observations": steps * len(tf.nest.flatten(observations[0])[0]),
        "steps": steps,
        "tolerance": None if quantized else TOLERANCE,
        **_summary(result.found),
        "outputs": result.found,
    }


def _summary(found: Mapping[str, Any]) -> dict[str, Any]:
    """The least equal share and the largest distance over the outputs of `action`."""
    of = {k: v for k, v in found.items() if k.startswith("action/")}
    shares = [v for k, v in of.items() if f"{k} ties" in of]
    errors = [v for k, v in of.items() if f"{k} ties" not in of and not k.endswith(" ties")]
    return {
        "max_error": max(errors) if errors else None,
        "equal": min(shares) if shares else None,
    }


def _distance(own: np.ndarray, theirs: np.ndarray, scale: np.ndarray) -> float:
    own, theirs = own.astype(np.float64), theirs.astype(np.float64)
    return float(np.max(np.abs(own - theirs) / np.maximum(1.0, scale), initial=0.0))


def _largest(values: np.ndarray, axis: int | None) -> np.ndarray:
    """The largest size along an axis, or of all."""
    sizes = np.abs(values)
    finite = np.where(sizes < _INFINITE, sizes, 0.0)
    return np.max(finite, axis=axis, keepdims=axis is None, initial=0.0)


def _ties(
    policy: PolicyFunctions,
    own: Answers,
    output: str,
    expected: np.ndarray,
    theirs: np.ndarray,
    rows: slice | None,
) -> np.ndarray:
    """Where both choices are equally good to within the tolerance; bool of their shape."""
    nothing = np.zeros(expected.shape, bool)
    leaves = struct.paths(policy.action_spec)
    path = next((p for p in leaves if leaf_name(p, "action") == output), None)
    values = [own.get(f"distribution/{leaf_name(path, n)}") for n in _DISCRETE if path is not None]
    found = next((x for x in values if x is not None), None)
    if found is None or path is None:
        return nothing
    worth = found if rows is None else found[0, rows]
    if worth.size == expected.size:  # Bernoulli: 0 is as good as 1 where the logit is 0
        return np.abs(worth.reshape(expected.shape)) <= TOLERANCE
    first = specs.bounds(leaves[path])[0]
    worth = worth.reshape(*expected.shape, -1)
    last = worth.shape[-1] - 1
    index = [(x - first).astype(np.int64)[..., None] for x in (expected, theirs)]
    each = [np.take_along_axis(worth, np.clip(i, 0, last), -1)[..., 0] for i in index]
    there = ((index[1] >= 0) & (index[1] <= last))[..., 0]
    close = TOLERANCE * np.maximum(1.0, _largest(worth, -1))
    return there & (np.abs(each[0] - each[1]) <= close)


def _clipped(own: Answers, policy: PolicyFunctions) -> Answers:
    """TF-Agents clips actions to the bounds of their spec."""
    found = dict(own)
    for path, spec in struct.paths(policy.action_spec).items():
        if spec.dtype.is_floating:
            name = f"action/{leaf_name(path, 'action')}"
            found[name] = np.clip(own[name], *specs.bounds(spec)).astype(own[name].dtype)
    return found
