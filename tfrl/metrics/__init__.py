"""Metrics: log values by name, reduce them to rows, merge loggers of replicas and workers."""

from tfrl.metrics.logger import MetricsLogger

__all__ = ["MetricsLogger"]
