"""PGPE beside its formulas in NumPy."""

import numpy as np
import pytest
import tensorflow as tf

from tests.evolution import references
from tests.evolution.problems import rosenbrock
from tfrl import seeding
from tfrl.errors import UserError
from tfrl.evolution import PGPE, finite

MEAN = np.array([0.5, -1.0, 2.0], np.float32)


def test_three_generations_are_those_of_the_formulas():
    reference = references.PGPE(MEAN, 8, 0.5, lr=0.7, std_lr=0.4)
    optimizer = PGPE(pop_size=8, init_std=0.5, lr_schedule=0.7, std_lr_schedule=0.4)
    names = {"mean": "mean", "sigma": "sigma"}
    references.follows(optimizer, reference, rosenbrock, MEAN, names)


def test_three_generations_on_the_fitness_itself():
    reference = references.PGPE(MEAN, 8, 0.5, lr=1e-3, std_lr=1e-3, ranks=False)
    optimizer = PGPE(
        pop_size=8,
        init_std=0.5,
        lr_schedule=1e-3,
        std_lr_schedule=1e-3,
        fitness_shaping_fn=finite,
    )
    names = {"mean": "mean", "sigma": "sigma"}
    references.follows(optimizer, reference, rosenbrock, MEAN, names)


def test_sigma_changes_by_a_share_at_most():
    optimizer = PGPE(pop_size=8, init_std=0.5, std_lr_schedule=1e6, max_std_change=0.1)
    state = optimizer.init(tf.constant(MEAN), seeding.key(0))
    sigma = optimizer.tell(state, tf.range(8.0)).search.sigma
    np.testing.assert_allclose(np.abs(sigma - 0.5), 0.05, rtol=1e-5)


def test_other_optimizers_move_the_mean():
    optimizer = PGPE(pop_size=4, init_std=10.0, optimizer="adam", lr_schedule=0.5)
    moved = optimizer.tell(optimizer.init(tf.constant(MEAN), seeding.key(0)), tf.range(4.0))
    # Adam's first step is the learning rate in every coordinate, but for epsilon.
    np.testing.assert_allclose(np.abs(moved.params - MEAN), 0.5, rtol=0.05)


@pytest.mark.parametrize(
    "settings, expected",
    [
        ({"pop_size": 5}, r"PGPE.pop_size.*even.*Use 6\."),
        ({"pop_size": 4, "init_std": 0.0}, "PGPE.init_std.*above 0"),
        ({"pop_size": 4, "optimizer": "sdg"}, "PGPE.optimizer.*sgd"),
        ({"pop_size": 4, "max_std_change": 2.0}, "PGPE.max_std_change"),
        ({"pop_size": 4, "std_lr_schedule": -1.0}, "PGPE.std_lr_schedule"),
    ],
)
def test_wrong_settings(settings, expected):
    with pytest.raises(UserError, match=expected):
        PGPE(**settings)
