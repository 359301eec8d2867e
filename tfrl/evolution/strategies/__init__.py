"""Evolution strategies: a distribution of candidates that moves to where they are fitter."""

from tfrl.evolution.strategies.open_es import OpenES

__all__ = ["OpenES"]
