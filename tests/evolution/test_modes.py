"""Every search gives eagerly, in a graph and compiled by XLA the same."""

import numpy as np
import pytest
import tensorflow as tf

from tests.evolution.problems import rosenbrock
from tfrl import evolution, seeding

SEARCHES = {
    "OpenES": evolution.OpenES(pop_size=6),
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
def test_modes(name):
    optimizer = SEARCHES[name]

    def generations(mean, key):
        state = optimizer.init(mean, key)
        for _ in range(2):
            population, state = optimizer.ask(state)
            state = optimizer.tell(state, rosenbrock(population))
        return optimizer.ask(state)[0], state

    given = (tf.constant([0.5, -1.0, 2.0]), seeding.key(3))
    eager = generations(*given)
    for jit in (False, True):
        compiled = tf.function(generations, jit_compile=jit, autograph=False)(*given)
        tf.nest.map_structure(
            lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), eager, compiled
        )
