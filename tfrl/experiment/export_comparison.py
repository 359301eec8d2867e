"""What an export answered beside the library's own answers: distances, and what is too far off."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from tfrl import specs, struct
from tfrl.experiment.export_functions import PolicyFunctions, leaf_name
from tfrl.experiment.export_oracle import Answers

# Of actions and memory, those larger than 1 relative to their size.
TOLERANCE = 1e-5
# Of parameters of a distribution, which are sums of larger numbers: relative to the largest.
PARAMETERS = 1e-4
# With weights of 8 bits: the share of greedy actions that must be equal, or, of continuous ones,
# nearer than so much of the range between their bounds (without bounds, of the range that the
# library's own have). What else there is must be finite.
EQUAL = 0.95
RANGE = 0.05
# As of masked logits, which stand for minus infinity.
_INFINITE = 1e29
# Draws fall between two outcomes whose probabilities differ in the last bits.
_DRAWN = 0.998
_DISCRETE = ("logits", "q_values")


@dataclasses.dataclass
class Comparison:
    """What was found, by `<signature>/<output>`.

    Attributes:
      errors: The largest distance of each float output.
      shares: The share of each discrete output that is equal, or one of two equally good choices.
      ties: How many of these were another one of two equally good choices.
      within: With weights of 8 bits, the share of a continuous action within `RANGE`.
      wrong: What is missing or too far off, for people.
    """

    errors: dict[str, float] = dataclasses.field(default_factory=dict)
    shares: dict[str, float] = dataclasses.field(default_factory=dict)
    ties: dict[str, int] = dataclasses.field(default_factory=dict)
    within: dict[str, float] = dataclasses.field(default_factory=dict)
    wrong: list[str] = dataclasses.field(default_factory=list)

    def summary(self, outputs: Sequence[str]) -> dict[str, float | None]:
        """The largest distance of the greedy action's continuous leaves, the least equal share."""
        names = [f"action/{output}" for output in outputs]
        errors = [self.errors[name] for name in names if name in self.errors]
        shares = [self.shares[name] for name in names if name in self.shares]
        return {"max_error": max(errors, default=None), "equal": min(shares, default=None)}

    def outputs(self) -> dict[str, Any]:
        """All that was measured."""
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
    """Compares what an export answered with the library's own answers.

    Args:
      policy: What was exported.
      own: The library's answers `{<signature>/<output>: [T, B, ...]}`.
      theirs: Those of the export; and `single/<output>` `[1, ...]`, of the first observation alone.
      signatures: The functions that the export should have: each of their outputs is missed if it
        is not there.
      quantized: Whether weights are of 8 bits.

    Returns:
      What was found; its `wrong` is empty where all is well.
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
    """Where draws fell between two outcomes, in this step or before it; bool `[T, B]`, or None.

    From there on both sides remember something else.
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
            # An action counts in the step in which it parts, its consequences do not.
            before = np.concatenate([np.zeros_like(parted[:1]), parted[:-1]])
            equal = equal[~(before if output in policy.outputs else parted)]
    if quantized:
        least = EQUAL if signature == "action" and output in policy.outputs else 0.0
    result.shares[name] = share = float(equal.mean()) if equal.size else 1.0
    if share < least:
        result.wrong.append(f"{name} {share:.4f}")


def _within(policy: PolicyFunctions, output: str, own: np.ndarray, theirs: np.ndarray) -> float:
    """The share of a continuous action's elements that are nearer than `RANGE` of their range."""
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
    one: bool,
) -> np.ndarray:
    """Where both choices are equally good to within the tolerance; bool of their shape."""
    nothing = np.zeros(expected.shape, bool)
    leaves = struct.paths(policy.action_spec)
    path = next((p for p in leaves if leaf_name(p, "action") == output), None)
    values = [own.get(f"distribution/{leaf_name(path, n)}") for n in _DISCRETE if path is not None]
    found = next((x for x in values if x is not None), None)
    if found is None or path is None:
        return nothing
    worth = found[0, :1] if one else found
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
