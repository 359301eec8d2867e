"""Learner connectors: pieces of the pipeline from episodes to batches."""

from tfrl.learners.connectors.batching import Batch, NormalizeObservations, ToTensors
from tfrl.learners.connectors.columns import (
    AddColumnsFromEpisodes,
    AddNextObservationsFromEpisodes,
    AddObservationsFromEpisodes,
    AgentToModule,
)
from tfrl.learners.connectors.connector import (
    MODULES_TO_TRAIN,
    Connector,
    ConnectorPipeline,
)
from tfrl.learners.connectors.default import GeneralAdvantageEstimation, default_learner_pipeline
from tfrl.learners.connectors.episode_rows import EpisodeRows
from tfrl.learners.connectors.sequences import AddStates, AddTimeDimAndMask
from tfrl.learners.connectors.transitions import AddNStepTransitions

__all__ = [
    "MODULES_TO_TRAIN",
    "AddColumnsFromEpisodes",
    "AddNStepTransitions",
    "AddNextObservationsFromEpisodes",
    "AddObservationsFromEpisodes",
    "AddStates",
    "AddTimeDimAndMask",
    "AgentToModule",
    "Batch",
    "Connector",
    "ConnectorPipeline",
    "EpisodeRows",
    "GeneralAdvantageEstimation",
    "NormalizeObservations",
    "ToTensors",
    "default_learner_pipeline",
]
