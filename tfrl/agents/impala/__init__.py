"""IMPALA: V-trace on batched trajectories."""

from tfrl.agents.impala.agent import Impala

__all__ = ["Impala"]
