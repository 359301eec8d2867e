"""The usual pipeline from episodes to batches of PPO-like modules."""

from collections.abc import Mapping
from typing import Any

from tfrl.learners.connectors.advantages import GeneralAdvantageEstimation
from tfrl.learners.connectors.batching import Batch, NormalizeObservations, ToTensors
from tfrl.learners.connectors.columns import AddColumnsFromEpisodes, AddObservationsFromEpisodes
from tfrl.learners.connectors.connector import ConnectorPipeline
from tfrl.learners.connectors.mapping import AgentToModule
from tfrl.learners.connectors.sequences import AddStates, AddTimeDimAndMask


def default_learner_pipeline(
    modules: Mapping[str, Any],
    *,
    discount: float | None = None,
    lambda_: float | None = None,
    max_seq_len: int = 20,
) -> ConnectorPipeline:
    """Makes the pipeline from episodes to `{module_id: TensorDict}` with `PolicyBatch`'s columns.

    Rows of recurrent modules, those with `initial_carry`, become sequences with `state_in`.

    Args:
      modules: `{module_id: module}`; those that train must have a value function.
      discount: gamma; each module's own `discount` if None.
      lambda_: Each module's own `gae_lambda` if None.
      max_seq_len: The length of sequences, in steps.

    Returns:
      The pipeline; pieces can be put in and taken out.

    Raises:
      UserError: For modules that train and lack what the pipeline needs.
    """
    advantages = GeneralAdvantageEstimation(discount, lambda_)
    advantages.check({m: module for m, module in modules.items() if getattr(module, "updates", ())})
    return ConnectorPipeline(
        [
            AddObservationsFromEpisodes(),
            AddColumnsFromEpisodes(),
            AgentToModule(),
            advantages,
            AddTimeDimAndMask(max_seq_len),
            AddStates(),
            Batch(),
            NormalizeObservations(),
            ToTensors(),
        ]
    )
