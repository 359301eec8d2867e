"""Pieces for recurrent modules: a time dimension with a mask, and the states at its start."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfrl.episodes import SingleAgentEpisode, lookback_buffer
from tfrl.errors import UserError
from tfrl.learners.connectors.connector import Connector
from tfrl.learners.connectors.episode_rows import rows_by_module

Nest = Any


def initial_state(module: object) -> Nest:
    """Returns the recurrent state `[...]` at an episode start; None without memory.

    Args:
      module: A module; a recurrent one has `initial_carry(batch_size)`.
    """
    initial = getattr(module, "initial_carry", None)
    carry = None if initial is None else initial(1)
    if carry is None:
        return None
    return tf.nest.map_structure(lambda x: np.asarray(x)[0], carry)


def state_before(episode: SingleAgentEpisode, step: int, initial: Nest) -> Nest:
    """Returns a module's recurrent state `[...]` before a step.

    It is the extra `state_in` of the step, or else `state_out` of the previous step, possibly in
    the lookback; at the start of the whole episode it is `initial`.

    Args:
      episode: An episode with the states in its policy extras.
      step: The step's index in this chunk.
      initial: The state at an episode start.

    Raises:
      UserError: If the episode has no such state.
    """
    extras = episode.policy_extras
    if "state_in" in extras:
        return lookback_buffer.take(extras["state_in"], (step, ...))
    if step > 0 and "state_out" in extras:
        return lookback_buffer.take(extras["state_out"], (step - 1, ...))
    if step == 0 and "state_out" in extras and episode.len_lookback_buffer:
        return episode.get_extra_model_outputs("state_out", -1, neg_index_as_lookback=True)
    if step == 0 and episode.t_started == 0:
        return initial
    raise UserError(
        f"episode {episode.id_}",
        expected=f"the recurrent state before step {episode.t_started + step}",
        got=f"extras {sorted(extras)} and a lookback of {episode.len_lookback_buffer} steps",
        remedy="Store state_out (or state_in) as extra_model_outputs of every step, and carry one "
        "step over from chunk to chunk with cut(len_lookback_buffer=1).",
    )


class AddTimeDimAndMask(Connector):
    """Cuts the rows of recurrent modules into sequences, leaves `[S, max_seq_len, ...]`.

    A sequence never spans two episodes. The end of an episode is padded with zeros, and False in
    the column `mask`. Rows of other modules are unchanged.
    """

    def __init__(self, max_seq_len: int = 20):
        """Makes the piece.

        Args:
          max_seq_len: The length of every sequence, in steps.

        Raises:
          UserError: Unless it is an integer of at least 1.
        """
        if isinstance(max_seq_len, bool) or not isinstance(max_seq_len, int) or max_seq_len < 1:
            raise UserError(
                "max_seq_len",
                expected="a whole number of at least 1",
                got=repr(max_seq_len),
                remedy="Use 20, or your horizon for backpropagation through time.",
            )
        self.max_seq_len = max_seq_len

    def __call__(
        self,
        *,
        modules: Mapping[str, Any],
        states: Mapping[str, Any],
        batch: dict[Any, Any],
        episodes: Sequence[Any],
        shared_data: dict[str, Any],
    ) -> dict[Any, Any]:
        """Reshapes the columns; see `Connector`."""
        for module_id, parts in rows_by_module(batch, self.name).items():
            if initial_state(modules[module_id]) is None:
                continue
            for rows in parts:
                rows.columns.setdefault("mask", np.ones([len(rows)], bool))
                rows.columns = {
                    name: lookback_buffer.map_leaves(self._sequences, nest)
                    for name, nest in rows.columns.items()
                }
                rows.sequence_starts = list(range(0, len(rows), self.max_seq_len))
        return batch

    def _sequences(self, x: np.ndarray) -> np.ndarray:
        """[T, ...] -> [S, L, ...], zeros at the end."""
        length = self.max_seq_len
        count = -(-len(x) // length)
        padded = np.pad(x, [(0, count * length - len(x))] + [(0, 0)] * (x.ndim - 1))
        return padded.reshape([count, length, *x.shape[1:]])


class AddStates(Connector):
    """Adds `state_in`, the recurrent state at the start of every sequence, leaves `[S, ...]`."""

    def __call__(
        self,
        *,
        modules: Mapping[str, Any],
        states: Mapping[str, Any],
        batch: dict[Any, Any],
        episodes: Sequence[Any],
        shared_data: dict[str, Any],
    ) -> dict[Any, Any]:
        """Adds the column; see `Connector`."""
        for module_id, parts in rows_by_module(batch, self.name).items():
            initial = initial_state(modules[module_id])
            if initial is None:
                continue
            for rows in parts:
                if rows.sequence_starts is None:
                    raise UserError(
                        f"the connector {self.name}",
                        expected="sequences",
                        got="rows without a time dimension",
                        remedy="Put AddTimeDimAndMask before it.",
                    )
                rows.columns["state_in"] = lookback_buffer.stack(
                    [state_before(rows.episode, t, initial) for t in rows.sequence_starts]
                )
        return batch
