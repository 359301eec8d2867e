"""Every search gives eagerly, in a graph and compiled by XLA the same."""

import numpy as np
import pytest
import tensorflow as tf

from tests.evolution.problems import rosenbrock, tell
from tfrl import evolution, seeding

pytestmark = pytest.mark.usefixtures("grappler")

UNIFORM = dict(bounds=(-2.0, 3.0), init_std=None)
SEARCHES = {
    "OpenES": evolution.OpenES(pop_size=8),
    "GA": evolution.GA(pop_size=6),
    "GA of ERL": evolution.GA(
        pop_size=7,
        selection=evolution.TruncationSelection(),
        crossover=evolution.NeuronCrossover(),
        mutation=evolution.ERLMutation(rate=0.9, reset_prob=0.3),
    ),
    "GA with cuts": evolution.GA(pop_size=6, crossover=evolution.NPointCrossover(points=2)),
    "PSO": evolution.PSO(pop_size=6, max_velocity=0.5, **UNIFORM),
    "CSO": evolution.CSO(pop_size=6, phi=0.1),
    "DE/rand": evolution.DE(pop_size=6),
    "DE/best": evolution.DE(pop_size=6, variant="best/1/bin", **UNIFORM),
    "NSGA2": evolution.NSGA2(pop_size=8, **UNIFORM),
    "RVEA": evolution.RVEA(pop_size=7, num_generations=2, adaptation_frequency=0.5, **UNIFORM),
    "RVEA of three": evolution.RVEA(pop_size=10, num_objectives=3, num_generations=4, **UNIFORM),
    "MAPElites": evolution.MAPElites(pop_size=6, grid=(4, 5)),
    "VanillaES": evolution.VanillaES(pop_size=6, num_elites=2),
    "ARS": evolution.ARS(pop_size=6, num_elites=2),
    "PGPE": evolution.PGPE(pop_size=6),
    "SNES": evolution.SNES(pop_size=6),
    "XNES": evolution.XNES(pop_size=6),
    "SepCMAES": evolution.SepCMAES(pop_size=6),
    "CMAES": evolution.CMAES(pop_size=6),
    "CMAES lazy": evolution.CMAES(pop_size=6, eigen_interval=2),
    "CEM": evolution.CEM(pop_size=6),
    "DiagonalCEM": evolution.DiagonalCEM(pop_size=6),
}


@pytest.mark.parametrize("name", SEARCHES)
@pytest.mark.variants(4)
def test_modes(name):
    optimizer = SEARCHES[name]

    def generations(mean, key):
        state = optimizer.init(mean, key)
        for _ in range(2):
            population, state = optimizer.ask(state)
            state = tell(optimizer, state, population, rosenbrock)
        return optimizer.ask(state)[0], state

    given = (tf.constant([0.5, -1.0, 2.0]), seeding.key(3))
    eager = generations(*given)
    for jit in (False, True):
        compiled = tf.function(generations, jit_compile=jit, autograph=False)(*given)
        tf.nest.map_structure(
            lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), eager, compiled
        )
