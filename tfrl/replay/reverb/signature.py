"""What the items of a table are made of: flat signatures, `{path: spec}`."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from tfrl import struct
from tfrl.errors import UserError
from tfrl.replay.reading import STATE_IN
from tfrl.replay.reverb.table_config import TableConfig
from tfrl.types import Nest

if TYPE_CHECKING:
    from tfrl.replay.reverb.maker import ReverbReplay

EXTRAS = ("policy_extras", "env_extras")
# Bits of a step's `flags` in a sequence; 0 behind its end.
VALID, TERMINATED, TRUNCATED = 1, 2, 4


def leaves(name: str, spec: Nest) -> dict[str, tf.TensorSpec]:
    """Returns the leaves of a field by path: `{"obs": spec}`, or `{"obs/position": spec, ...}`."""
    return {
        path: tf.TensorSpec(leaf.shape, tf.as_dtype(leaf.dtype), name=path)
        for path, leaf in struct.paths(spec, name).items()
    }


def state_in_spec(replay: "ReverbReplay") -> Nest:
    """Returns the spec of the recurrent state that is stored, or None."""
    return (replay.policy_extras_spec or {}).get(STATE_IN)


def step_extras(replay: "ReverbReplay", table: TableConfig) -> dict[str, Nest]:
    """Returns the specs of the extras of every step of an item, `{field: dict of specs}`.

    A sequence holds the recurrent state of its first step only, beside its steps.
    """
    found = {}
    for field in EXTRAS:
        spec = getattr(replay, f"{field}_spec")
        if spec is not None and field == "policy_extras" and table.is_sequence:
            spec = {key: nest for key, nest in spec.items() if key != STATE_IN}
        if spec:
            found[field] = spec
    return found


def item_signature(replay: "ReverbReplay", table: TableConfig) -> dict[str, tf.TensorSpec]:
    """Returns the signature of a table, sorted by path as Reverb takes it.

    n-step items: `obs`, `next_obs`, `action`, `reward` and `discount` as in `Transition`, and the
    extras of the first step. Sequences of k <= L steps: `obs` `[k + 1, ...]` with the true
    successor of the last step at the end; `action`, `reward`, `flags` and extras `[k, ...]`; and
    `state_in`.
    """
    found = {}
    for field, spec in step_extras(replay, table).items():
        found.update(leaves(field, spec))
    found.update(leaves("action", replay.action_spec))
    found.update(leaves("obs", replay.obs_spec))
    found.update(leaves("reward", tf.TensorSpec([], tf.float32)))
    if table.is_sequence:
        found.update(leaves("flags", tf.TensorSpec([], tf.uint8)))
        found = {path: _with_steps(spec) for path, spec in found.items()}
        if state_in_spec(replay) is not None:
            found.update(leaves(STATE_IN, state_in_spec(replay)))
    else:
        found.update(leaves("next_obs", replay.obs_spec))
        found.update(leaves("discount", tf.TensorSpec([], tf.float32)))
    return dict(sorted(found.items()))


def _with_steps(spec: tf.TensorSpec) -> tf.TensorSpec:
    return tf.TensorSpec([None, *spec.shape], spec.dtype, name=spec.name)


def rebuild(name: str, spec: Nest, flat: Mapping[str, Any]) -> Nest:
    """Returns the field that `leaves` took apart, of the leaves by path."""
    return tf.nest.pack_sequence_as(spec, [flat[path] for path in leaves(name, spec)])


def check_signature(table: str, want: Mapping[str, tf.TensorSpec], got: Any) -> None:
    """Compares the signature of a server's table with the one that is asked for.

    Raises:
      UserError: Naming the table and the first leaf that differs.
    """
    flat = struct.paths(got) if got is not None else {}
    for path in sorted({*want, *flat}):
        texts = [_text(specs.get(path)) for specs in (want, flat)]
        if texts[0] != texts[1]:
            raise UserError(
                f"Reverb table {table!r}, leaf {path}",
                expected=texts[0],
                got=texts[1],
                remedy="The specs of the environment and the agent, and what an item is, must be "
                "those that the server was started with.",
            )


def _text(spec: Any) -> str:
    if spec is None:
        return "no such leaf"
    dims = ", ".join("?" if d is None else str(d) for d in spec.shape)
    return f"{tf.as_dtype(spec.dtype).name} [{dims}]"
