"""Injection of actors into a population, checked by hand."""

import numpy as np
import pytest
import tensorflow as tf

from tfrl import evolution, seeding
from tfrl.errors import UserError
from tfrl.evolution.injection import Injection

ZERO = {"w": tf.zeros([2])}
ACTOR, OTHER = {"w": tf.constant([7.0, 8.0])}, {"w": tf.constant([9.0, 9.0])}


def injection(kind, optimizer=None, **options):
    optimizer = optimizer or evolution.OpenES(pop_size=4)
    made = Injection(optimizer=optimizer, kind=kind, **options)
    return made, optimizer.init(ZERO, seeding.key(0))


def test_actors_replace_the_last_candidates():
    made, state = injection("replace", num_actors=2)
    plain, _ = made.optimizer.ask(state)
    population, _ = made.ask(state, [ACTOR, OTHER])
    np.testing.assert_array_equal(population["w"][:2], plain["w"][:2])
    np.testing.assert_array_equal(population["w"][2:], [[7.0, 8.0], [9.0, 9.0]])
    told, fitness, share = made.tell_arguments(state, population, tf.constant([1.0, 2.0, 3.0, 4.0]))
    assert told is population and fitness.shape == [4] and float(share) == 0.5


def test_an_extra_actor_takes_the_place_of_the_worst_if_it_is_fitter():
    made, state = injection("extra")
    population, _ = made.ask(state, [ACTOR])
    assert population["w"].shape == [5, 2]
    told, fitness, share = made.tell_arguments(
        state, population, tf.constant([3.0, 1.0, 4.0, 2.0, 2.5])
    )
    np.testing.assert_array_equal(fitness, [3.0, 2.5, 4.0, 2.0])
    np.testing.assert_array_equal(told["w"][1], ACTOR["w"])
    np.testing.assert_array_equal(told["w"][0], population["w"][0])
    assert float(share) == 0.25
    told, fitness, share = made.tell_arguments(
        state, population, tf.constant([3.0, 1.0, 4.0, 2.0, 0.5])
    )
    np.testing.assert_array_equal(told["w"], population["w"][:4])
    assert float(share) == 0.0


def test_two_extra_actors_and_a_lost_member():
    made, state = injection("extra", num_actors=2)
    population, _ = made.ask(state, [ACTOR, OTHER])
    nan = float("nan")
    fitness = tf.constant([3.0, nan, 4.0, 2.0, 1.0, 2.5])
    _, fitness, share = made.tell_arguments(state, population, fitness)
    np.testing.assert_array_equal(fitness, [3.0, 1.0, 4.0, 2.0][:1] + [2.5, 4.0, 2.0])
    assert float(share) == 0.25  # the second has taken the place of the first


def test_the_mean_is_pulled():
    made, state = injection("mean", pull_share=0.25)
    population, pulled = made.ask(state, [ACTOR])
    np.testing.assert_allclose(pulled.params["w"], [1.75, 2.0])
    np.testing.assert_allclose(pulled.search.mean, [1.75, 2.0])
    np.testing.assert_allclose(tf.reduce_mean(population["w"], 0), [1.75, 2.0], rtol=1e-6)
    assert float(made.tell_arguments(state, population, tf.zeros([4]))[2]) == 0.25


@pytest.mark.parametrize("name", ["CEM", "DiagonalCEM", "CMAES", "SepCMAES", "SNES", "PGPE", "ARS"])
def test_every_strategy_has_a_mean_to_pull(name):
    optimizer = getattr(evolution, name)(pop_size=4)
    state = optimizer.init(ZERO, seeding.key(0))
    np.testing.assert_allclose(optimizer.pull(state, ACTOR, 1.0).params["w"], ACTOR["w"])


@pytest.mark.parametrize("kind", ["replace", "extra", "mean"])
def test_nothing_enters_between_injections(kind):
    made, state = injection(kind, every=2)
    plain, _ = made.optimizer.ask(state)
    population, search = made.ask(state, [ACTOR])
    np.testing.assert_array_equal(population["w"][:4], plain["w"])
    fitness = tf.constant([1.0, 2.0, 3.0, 4.0, 5.0][: made.num_members])
    told, fitness, share = made.tell_arguments(search, population, fitness)
    np.testing.assert_array_equal(told["w"], plain["w"])
    assert float(share) == 0.0
    later = state.replace(generation=state.generation + 1)
    assert bool(made.due(later))


@pytest.mark.parametrize(
    "kind, options, message",
    [
        ("swap", {}, "inject.*replace"),
        ("replace", {"every": 0}, "inject_every"),
        ("mean", {"pull_share": 2.0}, "pull_share"),
        ("replace", {"num_actors": 4}, "OpenES.pop_size.*4 actors"),
        (
            "none",
            {"optimizer": evolution.NSGA2(pop_size=4, bounds=(-1.0, 1.0))},
            "a single-objective search",
        ),
    ],
)
def test_wrong_use(kind, options, message):
    with pytest.raises(UserError, match=f"(?s){message}"):
        injection(kind, **options)


def test_a_population_has_no_mean():
    made, state = injection("mean", optimizer=evolution.GA(pop_size=4))
    with pytest.raises(UserError, match=r"(?s)GA.pull.*mean"):
        made.ask(state, [ACTOR])
