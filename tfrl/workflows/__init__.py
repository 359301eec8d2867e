"""Workflows: setup, step, evaluate, learn, over external state."""

from tfrl.workflows.core import Advance, Workflow
from tfrl.workflows.erl import ERLWorkflow
from tfrl.workflows.evolution import EvolutionWorkflow
from tfrl.workflows.loop import RunReport, RunTime
from tfrl.workflows.off_policy import OffPolicyWorkflow
from tfrl.workflows.on_policy import OnPolicyWorkflow
from tfrl.workflows.options import RunOptions
from tfrl.workflows.pbt import PBTWorkflow
from tfrl.workflows.run_state import RunMetrics, State

__all__ = [
    "Advance",
    "ERLWorkflow",
    "EvolutionWorkflow",
    "OffPolicyWorkflow",
    "OnPolicyWorkflow",
    "PBTWorkflow",
    "RunMetrics",
    "RunOptions",
    "RunReport",
    "RunTime",
    "State",
    "Workflow",
]
