"""Compares an exported policy, in a process without tfrl, with the library."""

import dataclasses
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfrl import seeding, specs, struct
from tfrl.agents.core import Agent
from tfrl.envs.action_masks import MASK
from tfrl.errors import UserError
from tfrl.experiment import export, export_client
from tfrl.experiment.export_functions import (
    PolicyFunctions,
    has_distribution,
    initial_carry,
    leaf_name,
    leaf_names,
)
from tfrl.types import Nest

# {<signature>/<output>: [T, B, ...]}
Answers = dict[str, np.ndarray]


class AgentOracle:
    """The library's results: an agent's methods, called as in a rollout."""

    def __init__(self, agent: Agent, agent_state: Nest):
        self._agent, self._state = agent, agent_state
        self._names = leaf_names(agent.action_spec, "action")
        carry = initial_carry(agent, 1)
        self._carry_names = () if carry is None else tuple(leaf_names(carry, "state").values())

    def answers(
        self,
        observations: Sequence[Any],
        signatures: Sequence[str],
        keys: Callable[[int], tf.Tensor] = seeding.key,
    ) -> Answers:
        """Acts on the observations of an episode.

        Args:
          observations: Nests `[B, ...]`, one a step.
          signatures: Any of action, explore and distribution.
          keys: The key of `explore` in each step.

        Returns:
          `{<signature>/<output>: [T, B, ...]}`, with the client's names; each signature's outputs
          include the memory after each step.
        """
        agent, state = self._agent, self._state
        # Exploration carries its own memory, the others the greedy policy's.
        carry = explored = initial_carry(agent, len(tf.nest.flatten(observations[0])[0]))
        result: dict[str, list[np.ndarray]] = {}

        def add(signature: str, leaves: Mapping[str, Any], after: Any) -> None:
            if self._carry_names:
                after = zip(self._carry_names, tf.nest.flatten(after), strict=True)
                leaves = {**leaves, **dict(after)}
            for name, x in leaves.items():
                result.setdefault(f"{signature}/{name}", []).append(np.asarray(x))

        def actions(nest: Any) -> dict[str, Any]:
            return dict(zip(self._names.values(), tf.nest.flatten(nest), strict=True))

        for t, obs in enumerate(observations):
            greedy = agent.evaluate_actions(state, obs, seeding.key(0), carry)
            add("action", actions(greedy.action), greedy.carry)
            if "explore" in signatures:
                drawn = agent.compute_actions(state, obs, keys(t), explored)
                add("explore", actions(drawn.action), drawn.carry)
                explored = drawn.carry
            if has_distribution(agent):
                each, after = agent.policy_parameters(state, obs, carry)
                parameters = {
                    leaf_name(path, name): x
                    for path, (_, values) in each.items()
                    for name, x in values.items()
                }
                add("distribution", parameters, after)
            carry = greedy.carry
        return {name: np.stack(each) for name, each in result.items()}


# For actions and memory; relative for values above 1.
TOLERANCE = 1e-5
# For distribution parameters, which are sums of larger numbers: relative to the largest.
PARAMETERS = 1e-4
# With 8-bit weights: the share of greedy actions that must be equal or, for continuous ones, within
# this fraction of the range between their bounds (without bounds, of the range of the library's
# actions). Other outputs must be finite.
EQUAL = 0.95
RANGE = 0.05
# For masked logits, which represent minus infinity.
_INFINITE = 1e29
# A draw may fall between two outcomes if probabilities differ in the last bits.
_DRAWN = 0.998
_DISCRETE = ("logits", "q_values")


@dataclasses.dataclass
class Comparison:
    """Results of the comparison, by `<signature>/<output>`.

    Attributes:
      errors: The largest distance of each float output.
      shares: The share of equal values, or equally good choices, of each discrete output.
      ties: The number of different but equally good choices.
      within: With 8-bit weights, the share of a continuous action within `RANGE`.
      wrong: Messages about missing or wrong outputs.
    """

    errors: dict[str, float] = dataclasses.field(default_factory=dict)
    shares: dict[str, float] = dataclasses.field(default_factory=dict)
    ties: dict[str, int] = dataclasses.field(default_factory=dict)
    within: dict[str, float] = dataclasses.field(default_factory=dict)
    wrong: list[str] = dataclasses.field(default_factory=list)

    def summary(self, outputs: Sequence[str]) -> dict[str, float | None]:
        """The largest error of continuous greedy actions, the smallest share of equal ones."""
        names = [f"action/{output}" for output in outputs]
        errors = [self.errors[name] for name in names if name in self.errors]
        shares = [self.shares[name] for name in names if name in self.shares]
        return {"max_error": max(errors, default=None), "equal": min(shares, default=None)}

    def outputs(self) -> dict[str, Any]:
        """All measurements."""
        return {
            **self.errors,
            **self.shares,
            **{f"{name} ties": n for name, n in self.ties.items()},
            **{f"{name} within {RANGE:.0%}": x for name, x in self.within.items()},
        }


def compare(
    policy: PolicyFunctions,
    own: Answers,
    theirs: Answers,
    signatures: Sequence[str],
    *,
    quantized: bool = False,
) -> Comparison:
    """Compares the results of an export with the library's.

    Args:
      policy: The exported policy.
      own: The library's results `{<signature>/<output>: [T, B, ...]}`.
      theirs: The export's results; and `single/<output>` `[1, ...]`, for only the first
        observation.
      signatures: The expected functions; missing outputs are errors.
      quantized: Whether weights have 8 bits.

    Returns:
      The comparison; `wrong` is empty if all outputs are right.
    """
    expected = {f"action/{name}": None for name in (*policy.outputs, *policy.state)}
    expected |= {name: None for name in own if name.split("/", 1)[0] in signatures}
    single = [name.replace("action/", "single/", 1) for name in expected if name[:7] == "action/"]
    result = Comparison()
    result.wrong += [f"{name} is missing" for name in (*expected, *single) if name not in theirs]
    parted = _parted(policy, own, theirs)
    for name, x in theirs.items():
        signature, output = name.split("/", 1)
        one = signature == "single"
        wanted = own.get(f"action/{output}" if one else name)
        if wanted is None:
            result.wrong.append(f"{name} is not known")
            continue
        wanted = wanted[0, :1] if one else wanted
        if x.shape != wanted.shape or x.dtype != wanted.dtype:
            got, want = f"{x.dtype}{list(x.shape)}", f"{wanted.dtype}{list(wanted.shape)}"
            result.wrong.append(f"{name} {got} instead of {want}")
        elif np.issubdtype(x.dtype, np.floating):
            _floats(result, policy, name, wanted, x, parted, quantized)
        else:
            tie = _ties(policy, own, output, wanted, x, one) if signature != "explore" else None
            _choices(result, policy, name, wanted, x, tie, parted, quantized)
    return result


def _parted(policy: PolicyFunctions, own: Answers, theirs: Answers) -> np.ndarray | None:
    """Where draws diverged between two outcomes, now or earlier; bool `[T, B]`, or None.

    From there on the memories differ.
    """
    differ = None
    for name in (f"explore/{output}" for output in policy.outputs):
        mine, other = own.get(name), theirs.get(name)
        if mine is None or other is None or mine.shape != other.shape:
            continue
        if np.issubdtype(mine.dtype, np.floating):
            continue
        each = (mine != other).reshape(*mine.shape[:2], -1).any(-1)
        differ = each if differ is None else differ | each
    return None if differ is None else np.logical_or.accumulate(differ, axis=0)


def _floats(
    result: Comparison,
    policy: PolicyFunctions,
    name: str,
    own: np.ndarray,
    theirs: np.ndarray,
    parted: np.ndarray | None,
    quantized: bool,
) -> None:
    signature, output = name.split("/", 1)
    if signature == "explore" and parted is not None:
        own, theirs = own[~parted], theirs[~parted]
    parameters = signature == "distribution" and output not in policy.state
    error = _distance(own, theirs, _largest(own, None) if parameters else np.abs(own))
    result.errors[name] = error
    limit = PARAMETERS if parameters else TOLERANCE
    if not np.isfinite(error) or not quantized and error > limit:
        result.wrong.append(f"{name} {error:.3g}")
    elif quantized and signature == "action" and output in policy.outputs:
        share = _within(policy, output, own, theirs)
        result.within[name] = share
        if share < EQUAL:
            result.wrong.append(f"{name} {share:.4f} within {RANGE:.0%}")


def _choices(
    result: Comparison,
    policy: PolicyFunctions,
    name: str,
    own: np.ndarray,
    theirs: np.ndarray,
    tie: np.ndarray | None,
    parted: np.ndarray | None,
    quantized: bool,
) -> None:
    signature, output = name.split("/", 1)
    equal = own == theirs
    if tie is not None:
        result.ties[name] = int((tie & ~equal).sum())
        equal |= tie
    least = 1.0
    if signature == "explore":
        least = _DRAWN
        if parted is not None:
            # The diverging action itself is counted, its consequences are not.
            before = np.concatenate([np.zeros_like(parted[:1]), parted[:-1]])
            equal = equal[~(before if output in policy.outputs else parted)]
    if quantized:
        least = EQUAL if signature == "action" and output in policy.outputs else 0.0
    result.shares[name] = share = float(equal.mean()) if equal.size else 1.0
    if share < least:
        result.wrong.append(f"{name} {share:.4f}")


def _within(policy: PolicyFunctions, output: str, own: np.ndarray, theirs: np.ndarray) -> float:
    """The share of a continuous action's elements within `RANGE` of their range."""
    leaves = struct.paths(policy.action_spec)
    spec = next(s for path, s in leaves.items() if leaf_name(path, "action") == output)
    own, theirs = own.astype(np.float64), theirs.astype(np.float64)
    low, high = (bound.astype(np.float64) for bound in specs.bounds(spec))
    bounded = (np.abs(low) < _INFINITE) & (np.abs(high) < _INFINITE)
    span = np.where(bounded, high - low, own.max((0, 1)) - own.min((0, 1)))
    limit = np.maximum(RANGE * span, TOLERANCE * np.maximum(1.0, np.abs(own)))
    return float((np.abs(own - theirs) <= limit).mean())


def _distance(own: np.ndarray, theirs: np.ndarray, scale: np.ndarray) -> float:
    own, theirs = own.astype(np.float64), theirs.astype(np.float64)
    return float(np.max(np.abs(own - theirs) / np.maximum(1.0, scale), initial=0.0))


def _largest(values: np.ndarray, axis: int | None) -> np.ndarray:
    """The largest absolute value along an axis, or of all."""
    sizes = np.abs(values)
    finite = np.where(sizes < _INFINITE, sizes, 0.0)
    return np.max(finite, axis=axis, keepdims=axis is None, initial=0.0)


def _ties(
    policy: PolicyFunctions,
    own: Answers,
    output: str,
    expected: np.ndarray,
    theirs: np.ndarray,
    one: bool,
) -> np.ndarray:
    """Where both choices are equally good up to the tolerance; bool of their shape."""
    nothing = np.zeros(expected.shape, bool)
    leaves = struct.paths(policy.action_spec)
    path = next((p for p in leaves if leaf_name(p, "action") == output), None)
    values = [own.get(f"distribution/{leaf_name(path, n)}") for n in _DISCRETE if path is not None]
    result = next((x for x in values if x is not None), None)
    if result is None or path is None:
        return nothing
    worth = result[0, :1] if one else result
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


OBSERVATIONS = 1000
# Number and length of sequences for a policy with memory.
_STEPS = 20
_SECONDS = 300.0
# The missing functions of each format.
_WITHOUT = {
    "saved_model": (),
    "tf_agents": ("distribution",),
    "tflite": export.NOT_IN_TFLITE,
    "onnx": export.NOT_IN_ONNX,
}
# The seed of the key that replaces a TF-Agents policy's random key.
_KEY = 12
_EXCEPTION = re.compile(r"[\w.]+(Error|Exception|Exit): ")


def draw_observations(obs_spec: Any, memory: bool, count: int = OBSERVATIONS) -> list[Any]:
    """Draws observations within their spec; each action mask has a valid action.

    Args:
      obs_spec: The nest of specs of one observation.
      memory: Whether to draw steps of sequences.
      count: Number of observations.

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
    """Runs an export in a process without tfrl.

    Args:
      form: The format.
      folder: The export.
      policy: The exported policy.
      observations: Nests `[B, ...]`, one a step.
      key: The key of TF-Agents' exploring policy, int32 [2]; None to skip it.

    Returns:
      Its results, see `export_client`.

    Raises:
      UserError: The process failed.
    """
    leaves = [tf.nest.flatten(obs) for obs in observations]
    arrays = {n: np.stack([np.asarray(x[i]) for x in leaves]) for i, n in enumerate(policy.inputs)}
    with tempfile.TemporaryDirectory() as scratch:
        inputs_path, taken, job = (
            pathlib.Path(scratch, name) for name in ("observations.npz", "answers.npz", "job.json")
        )
        np.savez(inputs_path, **arrays)
        content = {
            "format": form,
            "folder": str(folder),
            "inputs": policy.inputs,
            "outputs": policy.outputs,
            "state": policy.state,
            "key": None if key is None else np.asarray(key).tolist(),
            "observations": str(inputs_path),
            "answers": str(taken),
        }
        job.write_text(json.dumps(content), encoding="utf-8")
        _run(form, job)
        with np.load(taken) as file:
            return dict(file)


def _run(form: str, job: pathlib.Path) -> None:
    # -I ignores the working directory and PYTHONPATH, which may contain tfrl.
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
        # A message may continue below the line with the exception's name.
        named = [line for line in lines if _EXCEPTION.match(line)] or lines
        raise _failed(form, named[-1] if named else f"exit code {done.returncode}")


def _failed(form: str, got: str, quantized: bool = False) -> UserError:
    expected = f"the library's actions within {TOLERANCE:g}, in a process without it"
    remedy = "Nothing was written. Use --noverify to write it unverified."
    if quantized:
        expected = (
            f"{EQUAL:.0%} of its actions equal to the library's, or within "
            f"{RANGE:.0%} of their range"
        )
        remedy = "Nothing was written. Leave out --quantize, or use --noverify."
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
    """Compares an export with the library.

    Args:
      form: "saved_model", "tf_agents", "tflite" or "onnx".
      folder: The export.
      policy: The exported policy.
      oracle: Has `answers`, see `AgentOracle`.
      quantized: Whether weights have 8 bits; then only greedy actions have a tolerance, see `EQUAL`
        and `RANGE`.
      count: Number of observations.

    Returns:
      `observations`, `steps`, and for each float output of each signature the largest error, for
      each discrete one the share of equal values; `not_compared`, the reason for skipped functions;
      for `metadata.json`.

    Raises:
      UserError: An output exceeds its tolerance, or a choice differs without a tie; an expected
        output is missing; or the other process failed.
    """
    observations = draw_observations(policy.obs_spec, bool(policy.state), count)
    has = [name for name in policy.functions if name not in _WITHOUT[form]]
    left_out: dict[str, str] = {}
    if form == "tf_agents":
        left_out = _without_key(folder, policy)
        has = [name for name in has if name not in left_out]
        key = seeding.key(_KEY)
        own = oracle.answers(observations, has, lambda t: key)
        own = _clipped(own, policy, ("action",))  # TF-Agents' collect policies do not clip
        explore_key = None if "explore" not in has else key
        theirs = client_answers(form, folder, policy, observations, explore_key)
    else:
        own = oracle.answers(observations, tuple(policy.functions))
        own = _clipped(own, policy, ("action", "explore"))
        theirs = client_answers(form, folder, policy, observations)
    result = compare(policy, own, theirs, has, quantized=quantized)
    if result.wrong:
        message = f"distances and shares of equal choices: {', '.join(result.wrong)}"
        raise _failed(form, message, quantized)
    steps = len(observations)
    return {
        "process": "without tfrl",
        "observations": steps * len(tf.nest.flatten(observations[0])[0]),
        "steps": steps,
        "tolerance": None if quantized else TOLERANCE,
        **result.summary(policy.outputs),
        "outputs": result.outputs(),
        "not_compared": left_out,
    }


def _without_key(folder: pathlib.Path, policy: PolicyFunctions) -> dict[str, str]:
    """Returns the reason if the draws of TF-Agents' exploring policy are not repeatable."""
    if "explore" not in policy.functions:
        return {"explore": policy.left_out.get("explore", "the policy has none")}
    _, _, others = export_client.draws(folder / "collect_policy")
    kinds = sorted({node.op for node in others})
    return {"explore": f"it draws by {', '.join(kinds)}, past its key"} if kinds else {}


def _clipped(own: Answers, policy: PolicyFunctions, signatures: Sequence[str]) -> Answers:
    """Clips the actions of functions to the bounds of their spec, like the exports."""
    result = dict(own)
    for path, spec in struct.paths(policy.action_spec).items():
        for name in (f"{signature}/{leaf_name(path, 'action')}" for signature in signatures):
            if spec.dtype.is_floating and name in own:
                result[name] = np.clip(own[name], *specs.bounds(spec)).astype(own[name].dtype)
    return result
