"""Searches over populations are described, with their operators, and built again."""

import pytest

from tfrl import evolution
from tfrl.storage import codec

SEARCHES = [
    evolution.GA(
        pop_size=6,
        selection=evolution.TruncationSelection(share=0.3),
        crossover=evolution.NeuronCrossover(),
        mutation=evolution.ERLMutation(rate=0.2),
    ),
    evolution.GA(pop_size=6, crossover=evolution.NPointCrossover(points=2)),
    evolution.PSO(pop_size=6),
    evolution.CSO(pop_size=6),
    evolution.DE(pop_size=6, bounds=((-1.0, -2.0), 1.0)),
    evolution.NSGA2(pop_size=6, bounds=(-1.0, 1.0)),
    evolution.RVEA(pop_size=6, bounds=(-1.0, 1.0)),
    evolution.MAPElites(pop_size=6, emitter=evolution.GaussianEmitter(std=0.2)),
]


@pytest.mark.parametrize("search", SEARCHES, ids=lambda search: type(search).__name__)
def test_built_again(search):
    assert codec.build(codec.describe(search)) == search
