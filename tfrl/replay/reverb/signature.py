"""The signatures of items: one column per leaf, or one column of packed bytes.

Reverb stores, compresses, sends and decodes each column of an item separately, which is most of the
cost of a small item. A packed item has one column: the concatenated bytes of its leaves. The name
of the column lists the leaves, so that a table describes its contents.
"""

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

from tfrl import struct
from tfrl.errors import UserError
from tfrl.nest_packing import bytes_to_leaves, num_bytes
from tfrl.replay.core import EXTRAS, STATE_IN
from tfrl.replay.reverb.factory import TableConfig
from tfrl.types import Nest

if TYPE_CHECKING:
    from tfrl.replay.reverb.factory import ReverbReplay


# Bits of a step's `flags` in a sequence; 0 after its end.
VALID, TERMINATED, TRUNCATED = 1, 2, 4


def leaves(name: str, spec: Nest) -> dict[str, tf.TensorSpec]:
    """Returns the leaves of a field by path: `{"obs": spec}`, or `{"obs/position": spec, ...}`."""
    return {
        path: tf.TensorSpec(leaf.shape, tf.as_dtype(leaf.dtype), name=path)
        for path, leaf in struct.paths(spec, name).items()
    }


def state_in_spec(replay: "ReverbReplay") -> Nest:
    """Returns the spec of the stored recurrent state, or None."""
    return (replay.policy_extras_spec or {}).get(STATE_IN)


def step_extras(replay: "ReverbReplay", table: TableConfig) -> dict[str, Nest]:
    """Returns the specs of an item's extras per step, `{field: dict of specs}`.

    A sequence has the recurrent state of its first step only, beside its steps.
    """
    result = {}
    for field in EXTRAS:
        spec = getattr(replay, f"{field}_spec")
        if spec is not None and field == "policy_extras" and table.is_sequence:
            spec = {key: nest for key, nest in spec.items() if key != STATE_IN}
        if spec:
            result[field] = spec
    return result


def item_signature(replay: "ReverbReplay", table: TableConfig) -> dict[str, tf.TensorSpec]:
    """Returns the signature of a table, sorted by path as Reverb takes it.

    n-step items: `obs`, `next_obs`, `action`, `reward` and `discount` as in `Transition`, and the
    extras of the first step. Sequences of k <= L steps: `obs` `[k + 1, ...]` with the true
    successor of the last step at the end; `action`, `reward`, `flags` and extras `[k, ...]`; and
    `state_in`.
    """
    result = {}
    for field, spec in step_extras(replay, table).items():
        result.update(leaves(field, spec))
    result.update(leaves("action", replay.action_spec))
    result.update(leaves("obs", replay.obs_spec))
    result.update(leaves("reward", tf.TensorSpec([], tf.float32)))
    if table.is_sequence:
        result.update(leaves("flags", tf.TensorSpec([], tf.uint8)))
        result = {path: _with_steps(spec) for path, spec in result.items()}
        if state_in_spec(replay) is not None:
            result.update(leaves(STATE_IN, state_in_spec(replay)))
    else:
        result.update(leaves("next_obs", replay.obs_spec))
        result.update(leaves("discount", tf.TensorSpec([], tf.float32)))
    return dict(sorted(result.items()))


def _with_steps(spec: tf.TensorSpec) -> tf.TensorSpec:
    return tf.TensorSpec([None, *spec.shape], spec.dtype, name=spec.name)


def rebuild(name: str, spec: Nest, flat: Mapping[str, Any]) -> Nest:
    """Returns a field from its leaves by path, the inverse of `leaves`."""
    return tf.nest.pack_sequence_as(spec, [flat[path] for path in leaves(name, spec)])


def check_signature(table: str, want: Mapping[str, tf.TensorSpec], got: Any) -> None:
    """Compares the signature of a server's table with the wanted one.

    Raises:
      UserError: If they differ; it names the table and the first differing leaf.
    """
    flat = struct.paths(got) if got is not None else {}
    for path in sorted({*want, *flat}):
        texts = [_text(specs.get(path)) for specs in (want, flat)]
        if texts[0] != texts[1]:
            raise UserError(
                f"Reverb table {table!r}, leaf {path}",
                expected=texts[0],
                got=texts[1],
                remedy="Use the specs of the environment and the agent, and the item settings, "
                "that the server was started with.",
            )


def _text(spec: Any) -> str:
    if spec is None:
        return "no such leaf"
    dims = ", ".join("?" if d is None else str(d) for d in spec.shape)
    return f"{tf.as_dtype(spec.dtype).name} [{dims}]"


# The most bytes of an item that is packed by default: packed items store each observation twice, so
# that large ones would take twice the memory.
MOST_BYTES = 1024
_NAME = "packed "
_DTYPES = (
    *(tf.bool, tf.uint8, tf.uint16, tf.uint32, tf.uint64, tf.int8, tf.int16, tf.int32, tf.int64),
    *(tf.float16, tf.float32, tf.float64),
)
# Leaves of an item that are known only with its last step; they come after the others.
_LATE = ("reward", "discount", "next_obs")


class PackedItems:
    """The byte layout of a factory's n-step items.

    Attributes:
      name: The path of the column: "packed " and its leaves as JSON, [[path, dtype, shape], ...].
      dtype: A structured NumPy dtype of one item.
      late: The first byte of the leaves that are known with the last step: the return and the
        discount, both float32, and `next_obs`.
    """

    def __init__(self, replay: "ReverbReplay"):
        """Takes a factory whose tables have only n-step items."""
        result = item_signature(replay, replay.table_configs[0])
        late = {p: _LATE.index(p.partition("/")[0]) for p in result if p.partition("/")[0] in _LATE}
        paths = [p for p in result if p not in late] + sorted(late, key=lambda p: late[p])
        self._leaves = {path: result[path] for path in paths}
        listed = [[path, s.dtype.name, s.shape.as_list()] for path, s in self._leaves.items()]
        self.name = _NAME + json.dumps(listed, separators=(",", ":"))
        self.dtype = np.dtype(
            [(path, s.dtype.as_numpy_dtype, tuple(s.shape)) for path, s in self._leaves.items()]
        )
        self.late: int = self.dtype.fields["reward"][1]  # type: ignore[index]
        self._discount, self._block_size = replay.discount, replay.block

    @property
    def signature(self) -> dict[str, tf.TensorSpec]:
        """The signature of a table of packed items: one leaf, uint8 [bytes of a block]."""
        size = self._block_size * self.dtype.itemsize
        return {self.name: tf.TensorSpec([size], tf.uint8, name="packed")}

    def rows(self, columns: Mapping[str, np.ndarray]) -> np.ndarray:
        """Returns the bytes of steps `[T, B, bytes]`, each as the item of one step.

        Args:
          columns: The columns of a trajectory, `[T, B, ...]` by path.
        """
        rows = np.empty(columns["reward"].shape, self.dtype)
        for path in self._leaves:
            if path != "discount":
                rows[path] = columns[path]
        rows["discount"] = np.where(columns["termination"], 0.0, self._discount)
        return rows.view(np.uint8).reshape(*rows.shape, self.dtype.itemsize)

    def unpack(self, packed: tf.Tensor) -> dict[str, tf.Tensor]:
        """Returns the leaves `[..., *shape]` by path.

        Args:
          packed: uint8 [..., bytes of a transition].
        """
        leaves = bytes_to_leaves(packed, list(self._leaves.values()))
        return dict(zip(self._leaves, leaves, strict=True))

    def draw(self, blocks: tf.Tensor, batches: int) -> tf.Tensor:
        """Returns batches of transitions, uint8 [K, N, bytes of a transition].

        Each batch has one transition of each block, drawn uniformly. The K transitions of a block
        have equal distances, so they are different and far apart.

        Traced: each trace chooses the seeds of the draws.

        Args:
          blocks: uint8 [N, bytes of a block], N static.
          batches: K, at most the transitions of a block.
        """
        size = self._block_size
        blocks = tf.reshape(blocks, [-1, size, self.dtype.itemsize])
        # Reverb's draw of the block is not reproducible either. Without seeds, TensorFlow rejects
        # the op if op determinism is on.
        seed, seed2 = np.random.default_rng().integers(1, 2**31, 2).tolist()
        first = tf.raw_ops.RandomUniformInt(
            shape=tf.shape(blocks)[:1], minval=0, maxval=size, seed=seed, seed2=seed2
        )
        drawn = (first[:, tf.newaxis] + tf.range(batches) * (size // batches)) % size  # [N, K]
        return tf.transpose(tf.gather(blocks, drawn, batch_dims=1), [1, 0, 2])


def packs(replay: "ReverbReplay") -> bool:
    """Returns whether items can be packed: n-step items of numbers can."""
    configs = replay.table_configs
    if any(config.is_sequence for config in configs):
        return False
    specs = item_signature(replay, configs[0]).values()
    return all(s.dtype in _DTYPES and s.shape.num_elements() for s in specs)


def suits(replay: "ReverbReplay") -> bool:
    """Returns whether items are packed by default: small ones are."""
    if not packs(replay):
        return False
    specs = item_signature(replay, replay.table_configs[0]).values()
    return sum(map(num_bytes, specs)) <= MOST_BYTES


def stored_signature(replay: "ReverbReplay", table: Any) -> dict[str, tf.TensorSpec]:
    """Returns the signature of a table on the server: packed, or one column per leaf."""
    return PackedItems(replay).signature if replay.packed else item_signature(replay, table)


def leaves_of(signature: Any) -> tuple[dict[str, Any], bool]:
    """Returns the leaves of a table's signature by path, and whether they are packed.

    Args:
      signature: A nest of specs; None for a table without a signature.
    """
    flat = struct.paths(signature) if signature is not None else {}
    if len(flat) != 1 or not next(iter(flat)).startswith(_NAME):
        return flat, False
    listed = json.loads(next(iter(flat))[len(_NAME) :])
    return {path: tf.TensorSpec(shape, tf.as_dtype(dtype)) for path, dtype, shape in listed}, True


def block_of(signature: Any) -> float:
    """Returns the number of transitions per item of a table of packed items.

    Args:
      signature: A nest of specs that is packed by `leaves_of`.
    """
    listed, _ = leaves_of(signature)
    (spec,) = struct.paths(signature).values()
    return spec.shape[0] / sum(map(num_bytes, listed.values()))


def as_served(replay: "ReverbReplay", server_info: Mapping[str, Any]) -> "ReverbReplay":
    """Returns the factory with `packed` resolved; None takes the form of a server's items.

    Args:
      replay: The factory.
      server_info: `{table: reverb TableInfo}`.
    """
    if replay.packed is not None:
        return replay
    names = [config.name for config in replay.table_configs if config.name in server_info]
    packed = bool(names) and leaves_of(server_info[names[0]].signature)[1] and packs(replay)
    return replay.replace(packed=packed)


def check_form(replay: "ReverbReplay", table: Any, signature: Any) -> None:
    """Checks that a server's table packs items as the factory does.

    Args:
      replay: The factory, with the same leaves.
      table: The `TableConfig`.
      signature: The signature of the server's table.

    Raises:
      UserError: If only one of them packs items, or the order of leaves differs.
    """
    packed = leaves_of(signature)[1]
    if packed != bool(replay.packed):
        raise UserError(
            f"Reverb table {table.name!r}, packed",
            expected=str(bool(replay.packed)),
            got=packed,
            remedy="Set ReverbReplay.packed to the value of the server, or to None to adopt it.",
        )
    wanted = stored_signature(replay, table)
    if packed and signature.keys() == wanted.keys():
        sizes = [next(iter(specs.values())).shape[0] for specs in (wanted, signature)]
        if sizes[0] != sizes[1]:
            raise UserError(
                f"Reverb table {table.name!r}, block_size",
                expected=f"blocks of {replay.block} transitions, {sizes[0]} bytes",
                got=f"{sizes[1]} bytes",
                remedy=f"Bind ReverbReplay.block_size={block_of(signature):g}, as in the server's "
                "tables, or restart the server with this configuration.",
            )
    if packed and signature.keys() != wanted.keys():
        raise UserError(
            f"Reverb table {table.name!r}, packed",
            expected=f"leaves in the order {', '.join(leaves_of(wanted)[0])}",
            got=", ".join(leaves_of(signature)[0]),
            remedy="Serve and read it with the same version of tfrl.",
        )
