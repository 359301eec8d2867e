"""Quality-diversity searches: many fit candidates with different behaviour."""

from tfrl.evolution.diversity.archive import GridArchive, coverage, qd_score
from tfrl.evolution.diversity.emitters import GaussianEmitter, IsoLineEmitter
from tfrl.evolution.diversity.map_elites import MAPElites
from tfrl.evolution.diversity.plotting import plot_archive

__all__ = [
    "GaussianEmitter",
    "GridArchive",
    "IsoLineEmitter",
    "MAPElites",
    "coverage",
    "plot_archive",
    "qd_score",
]
