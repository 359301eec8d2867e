"""The default pipeline from episodes to batches."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfrl import ops
from tfrl.episodes import lookback_buffer
from tfrl.errors import UserError
from tfrl.learners.connectors.batching import (
    Batch,
    NormalizeObservations,
    ToTensors,
    as_spec,
    function_of,
)
from tfrl.learners.connectors.columns import (
    AddColumnsFromEpisodes,
    AddObservationsFromEpisodes,
    AgentToModule,
    RowFunction,
    padded_size,
)
from tfrl.learners.connectors.connector import Connector, ConnectorPipeline
from tfrl.learners.connectors.episode_rows import EpisodeRows, column, rows_by_module
from tfrl.learners.connectors.sequences import (
    AddStates,
    AddTimeDimAndMask,
    initial_state,
    state_before,
)
from tfrl.learners.connectors.transitions import AddNStepTransitions, learns_from_transitions

Nest = Any


def learns_from_advantages(module: object) -> bool:
    """Whether a module's losses use advantages: it has values, or a reason why not."""
    if learns_from_transitions(module):
        return False
    names = ("compute_values", "gae_lambda", "why_not_episodes")
    return any(getattr(module, name, None) is not None for name in names)


class GeneralAdvantageEstimation(Connector):
    """Adds `value`, `value_target` and `advantage`, by `ops.gae` at the true successors.

    The module's value function is called once, for the observations and the last successors of
    all its episodes together. An episode that is truncated, or continues in another chunk,
    bootstraps from the value of its last observation; one that terminated does not. No step is
    added. It writes `explained_variance` and `value_mean` to `shared_data["metrics"]`.

    A module needs `compute_values(state, obs) -> float32 [N]` for raw observations `[N, ...]`; a
    recurrent one `compute_values(state, obs, carry=carry) -> [B, T]` for whole episodes
    `[B, T, ...]` and the states `[B, ...]` at their starts.
    """

    def __init__(
        self,
        discount: float | None = None,
        lambda_: float | None = None,
        module_ids: Collection[str] | None = None,
    ):
        """Makes the piece.

        Args:
          discount: gamma; each module's own `discount` if None.
          lambda_: Each module's own `gae_lambda` if None.
          module_ids: The modules to process; if None, those with `learns_from_advantages`.

        Raises:
          UserError: For a number outside 0 to 1.
        """
        for name, number in (("discount", discount), ("lambda_", lambda_)):
            if number is not None and not 0 <= number <= 1:
                raise UserError(
                    f"GeneralAdvantageEstimation.{name}",
                    expected="a number from 0 to 1, or None for the module's value",
                    got=repr(number),
                    remedy="Typical values are discount=0.99 and lambda_=0.95.",
                )
        self.discount = discount
        self.lambda_ = lambda_
        self.module_ids = module_ids
        self._functions: dict[str, tuple[Any, RowFunction]] = {}
        self._gae = RowFunction(_gae)

    def __call__(
        self,
        *,
        modules: Mapping[str, Any],
        states: Mapping[str, Any],
        batch: dict[Any, Any],
        episodes: Sequence[Any],
        shared_data: dict[str, Any],
    ) -> dict[Any, Any]:
        """Adds the columns; see `Connector`."""
        by_module = rows_by_module(batch, self.name)
        if self.module_ids is None:
            chosen = [m for m in by_module if learns_from_advantages(modules[m])]
        else:
            chosen = [m for m in by_module if m in self.module_ids]
        self.check({m: modules[m] for m in chosen})
        for module_id in chosen:
            metrics = self._add(module_id, modules[module_id], states[module_id], batch[module_id])
            shared_data.setdefault("metrics", {}).setdefault(module_id, {}).update(metrics)
        return batch

    def check(self, modules: Mapping[str, Any]) -> None:
        """Raises a UserError that lists everything that modules lack for this piece."""
        lacks = []
        for module_id, module in modules.items():
            why = getattr(module, "why_not_episodes", None)
            if why is not None:
                raise UserError(
                    f"episodes for module {module_id!r}",
                    expected="an agent that learns from advantages of whole episodes, such as PPO",
                    got=f"{type(module).__name__}: {why}",
                    remedy="Train it with OnPolicyWorkflow, or pass the result of its "
                    "learner_batch to "
                    "update_from_batch.",
                )
            if not callable(getattr(module, "compute_values", None)):
                lacks.append(f"{module_id!r} has no compute_values(state, obs) -> [N]")
            for ours, theirs in ((self.discount, "discount"), (self.lambda_, "gae_lambda")):
                if ours is None and getattr(module, theirs, None) is None:
                    lacks.append(f"{module_id!r} has no {theirs}")
        if lacks:
            raise UserError(
                self.name,
                expected="modules with a value function compute_values(state, obs), and with "
                "discount and gae_lambda unless the pipeline sets them",
                got="; ".join(lacks),
                remedy="Implement ValueFunctionAPI, exclude modules with module_ids=, or remove "
                "this piece from the pipeline.",
            )

    def _add(
        self, module_id: str, module: Any, state: Any, parts: list[EpisodeRows]
    ) -> dict[str, float]:
        """Adds the columns of one module; returns its metrics."""
        lengths = [len(rows) for rows in parts]
        values = self._values(module_id, module, state, parts)  # [sum of T + 1]
        is_step = np.ones([len(values)], bool)
        is_step[np.cumsum([n + 1 for n in lengths]) - 1] = False  # the last successors
        value, next_value = values[is_step], values[1:][is_step[:-1]]
        last = np.zeros([len(value)], bool)
        last[np.cumsum(lengths) - 1] = True
        termination = self._joined(parts, "termination")
        rows = {
            "reward": self._joined(parts, "reward"),
            "value": value,
            "next_value": next_value,
            "termination": termination,
            # Every chunk ends after its last row, so that none uses rows of the next.
            "truncation": (self._joined(parts, "truncation") | last) & ~termination,
            "mask": np.ones([len(value)], bool),
        }
        discount = module.discount if self.discount is None else self.discount
        lambda_ = module.gae_lambda if self.lambda_ is None else self.lambda_
        numbers = (tf.constant(discount, tf.float32), tf.constant(lambda_, tf.float32))
        advantage, target = self._gae(numbers, rows)
        stops = np.cumsum(lengths)
        for part, start, stop in zip(parts, stops - lengths, stops, strict=True):
            part.columns.update(
                value=value[start:stop],
                value_target=target[start:stop],
                advantage=advantage[start:stop],
            )
        explained = ops.explained_variance(tf.constant(value), tf.constant(target))
        return {"explained_variance": float(explained), "value_mean": float(value.mean())}

    def _joined(self, parts: list[EpisodeRows], name: str) -> np.ndarray:
        return np.concatenate([column(rows, name, self.name) for rows in parts])

    def _values(
        self, module_id: str, module: Any, state: Any, parts: list[EpisodeRows]
    ) -> np.ndarray:
        """V at all observations and the last successor of every episode, in order."""
        spec = getattr(module, "obs_spec", None)
        obs = [
            as_spec(lookback_buffer.concat([column(rows, "obs", self.name), rows.final_obs]), spec)
            for rows in parts
        ]
        initial = initial_state(module)
        if initial is None:
            fn = function_of(self._functions, module_id, module, module.compute_values)
            values = fn(state, lookback_buffer.concat(obs))
            return _checked(module_id, values, sum(len(rows) + 1 for rows in parts))
        fn = function_of(self._functions, module_id, module, _recurrent_values(module))
        carry = lookback_buffer.stack([state_before(rows.episode, 0, initial) for rows in parts])
        longest = padded_size(max(map(len, parts)) + 1)
        padded = lookback_buffer.stack(
            [lookback_buffer.map_leaves(lambda x: _fill(x, longest), o) for o in obs]
        )
        values = fn(state, {"obs": padded, "carry": carry})  # [B, longest]
        kept = [v[: len(rows) + 1] for v, rows in zip(values, parts, strict=True)]
        return _checked(module_id, np.concatenate(kept), sum(len(rows) + 1 for rows in parts))


def _gae(numbers: tuple[tf.Tensor, tf.Tensor], rows: dict[str, tf.Tensor]) -> Nest:
    discount, lambda_ = numbers
    return ops.gae(**rows, discount=discount, lambda_=lambda_)


def _recurrent_values(module: Any) -> Any:
    def values(state: Any, rows: dict[str, Nest]) -> tf.Tensor:
        return module.compute_values(state, rows["obs"], carry=rows["carry"])

    return values


def _fill(x: np.ndarray, length: int) -> np.ndarray:
    """An array with zeros at the end up to a length."""
    return np.pad(x, [(0, length - len(x))] + [(0, 0)] * (x.ndim - 1))


def _checked(module_id: str, values: np.ndarray, count: int) -> np.ndarray:
    if values.shape == (count,) and values.dtype == np.float32:
        return values
    raise UserError(
        f"compute_values of module {module_id!r}",
        expected=f"float32 [{count}], a value for every observation",
        got=f"{values.dtype} {list(values.shape)}",
        remedy="Squeeze the last axis of the value head.",
    )


def default_learner_pipeline(
    modules: Mapping[str, Any],
    *,
    discount: float | None = None,
    lambda_: float | None = None,
    max_seq_len: int = 20,
) -> ConnectorPipeline:
    """Makes the pipeline from episodes to `{module_id: TensorDict}` for each kind of module.

    Agents like PPO get the columns of `PolicyBatch`, off-policy agents those of a `Transition` with
    n-step rewards, modules with their own loss `obs`, `action`, `reward`, `termination`,
    `truncation`, the policy's extras and `mask`. Rows of recurrent modules, those with
    `initial_carry`, become sequences with `state_in`.

    Args:
      modules: `{module_id: module}`.
      discount: gamma; each module's own `discount` if None.
      lambda_: Each module's own `gae_lambda` if None.
      max_seq_len: The length of sequences, in steps.

    Returns:
      The pipeline; pieces can be inserted and removed.

    Raises:
      UserError: For trained modules that lack methods needed by the pipeline.
    """
    advantages = GeneralAdvantageEstimation(discount, lambda_)
    trained = {m: x for m, x in modules.items() if getattr(x, "updates", ())}
    advantages.check({m: x for m, x in trained.items() if learns_from_advantages(x)})
    return ConnectorPipeline(
        [
            AddObservationsFromEpisodes(),
            AddColumnsFromEpisodes(),
            AgentToModule(),
            advantages,
            AddNStepTransitions(),
            AddTimeDimAndMask(max_seq_len),
            AddStates(),
            Batch(),
            NormalizeObservations(),
            ToTensors(),
        ]
    )
