"""MAPElites: the archive beside NumPy and pyribs, coverage of a toy arm."""

import numpy as np
import pytest
import tensorflow as tf

from benchmarks import evolution_quality
from tests.evolution.problems import rosenbrock
from tfrl import seeding
from tfrl.errors import UserError
from tfrl.evolution import (
    GaussianEmitter,
    MAPElites,
    coverage,
    plot_archive,
    qd_score,
)
from tfrl.evolution.diversity.archive import grid_cells

MEAN = np.array([0.5, -1.0, 2.0], np.float32)
GRID, BOUNDS = (3, 4), ((-2.0, 4.0), (-3.0, 1.0))
SEARCH = MAPElites(pop_size=8, grid=GRID, descriptor_bounds=BOUNDS, init_std=1.0)


def generations(optimizer, num):
    """Populations and states; the descriptors are the first two parameters."""
    state = optimizer.init(tf.constant(MEAN), seeding.key(0))
    for _ in range(num):
        x, state = optimizer.ask(state)
        state = optimizer.tell(state, rosenbrock(x), descriptors=x[:, :2])
        yield x.numpy(), state


def test_three_generations_are_those_of_the_formulas():
    elites = {}
    for t, (x, state) in enumerate(generations(SEARCH, 3)):
        for candidate, fitness in zip(x, rosenbrock(x).numpy(), strict=True):
            row = int(np.clip((candidate[0] + 2) // 2, 0, 2))
            column = int(np.clip((candidate[1] + 3) // 1, 0, 3))
            cell = 4 * row + column
            if cell not in elites or fitness > elites[cell][0]:
                elites[cell] = (fitness, candidate)
        archive = state.search.archive
        filled = np.flatnonzero(np.isfinite(archive.fitness))
        assert set(filled) == set(elites)
        for cell, (fitness, candidate) in elites.items():
            np.testing.assert_allclose(archive.fitness[cell], fitness, rtol=1e-6)
            np.testing.assert_array_equal(archive.params[cell], candidate)
            np.testing.assert_array_equal(archive.descriptors[cell], candidate[:2])
        np.testing.assert_allclose(coverage(archive), len(elites) / 12)
        score = sum(fitness + 1e4 for fitness, _ in elites.values())
        np.testing.assert_allclose(qd_score(archive, offset=-1e4), score, rtol=1e-6)
        np.testing.assert_array_equal(state.params, max(elites.values(), key=lambda e: e[0])[1])
        # The next candidates.
        key = seeding.stream(seeding.fold_in(seeding.key(0), t), "tell")
        keys = seeding.streams(key, ("elites", "emitter"))
        chosen = filled[seeding.randint(keys["elites"], [2, 8], 0, len(filled)).numpy()]
        one, other = archive.params.numpy()[chosen]
        noise = seeding.streams(keys["emitter"], ("iso", "line"))
        iso = 0.01 * seeding.normal(noise["iso"], [8, 3]).numpy()
        line = 0.2 * seeding.normal(noise["line"], [8, 1]).numpy() * (other - one)
        np.testing.assert_allclose(state.search.population, one + iso + line, rtol=1e-4, atol=1e-5)


def test_beside_pyribs():
    archives = pytest.importorskip("ribs.archives")
    theirs = archives.GridArchive(solution_dim=3, dims=GRID, ranges=BOUNDS, qd_score_offset=-1e4)
    for x, state in generations(SEARCH.replace(pop_size=50), 5):
        theirs.add(x, rosenbrock(x).numpy(), x[:, :2])
        archive, data = state.search.archive, theirs.data()
        np.testing.assert_array_equal(
            np.flatnonzero(np.isfinite(archive.fitness)), sorted(data["index"])
        )
        np.testing.assert_allclose(archive.fitness.numpy()[data["index"]], data["objective"], 1e-6)
        np.testing.assert_allclose(archive.params.numpy()[data["index"]], data["solution"], 1e-6)
        np.testing.assert_allclose(coverage(archive), theirs.stats.coverage, rtol=1e-6)
        np.testing.assert_allclose(qd_score(archive, -1e4), theirs.stats.qd_score, rtol=1e-5)


def test_cells():
    descriptors = tf.constant([[-2.0, -3.0], [4.0, 1.0], [-9.0, 9.0], [0.0, -2.5], [-0.01, 0.5]])
    np.testing.assert_array_equal(grid_cells(descriptors, GRID, BOUNDS), [0, 11, 3, 4, 3])


def test_the_first_of_equals_and_no_lost_candidate_is_kept():
    optimizer = MAPElites(pop_size=4, grid=(2,), descriptor_bounds=((0.0, 1.0),))
    state = optimizer.init(tf.zeros([1]), seeding.key(0))
    x, nan = tf.constant([[1.0], [2.0], [3.0], [4.0]]), float("nan")
    told = optimizer.tell(state, [5.0, 5.0, nan, 9.0], x, descriptors=[[0.1], [0.2], [0.9], [nan]])
    np.testing.assert_array_equal(told.search.archive.fitness, [5.0, -float("inf")])
    np.testing.assert_array_equal(told.search.archive.params, [[1.0], [0.0]])
    again = optimizer.tell(told, [5.0] * 4, 2 * x, descriptors=[[0.1]] * 4)  # none is fitter
    np.testing.assert_array_equal(again.search.archive.params[0], [1.0])


def test_while_all_are_lost_it_begins_again():
    optimizer = MAPElites(pop_size=500, grid=(2,), descriptor_bounds=((0.0, 1.0),))
    state = optimizer.init(tf.fill([1], 7.0), seeding.key(0))
    lost = optimizer.tell(state, tf.fill([500], float("nan")), descriptors=tf.zeros([500, 1]))
    np.testing.assert_allclose(tf.reduce_mean(optimizer.ask(lost)[0]), 7.0, atol=0.1)
    assert float(coverage(lost.search.archive)) == 0.0 == float(qd_score(lost.search.archive))
    np.testing.assert_array_equal(lost.params, [7.0])


def test_an_arm_reaches_everywhere():
    assert evolution_quality.filled(seed=0) >= 0.8


def test_gaussian_emitter():
    emitted = GaussianEmitter(std=0.5)(tf.fill([500, 4], 3.0), tf.zeros([500, 4]), seeding.key(0))
    np.testing.assert_allclose(np.mean(emitted), 3.0, atol=0.05)
    np.testing.assert_allclose(np.std(emitted), 0.5, atol=0.05)


def test_the_heat_map_is_an_image(tmp_path):
    pytest.importorskip("matplotlib")
    *_, (_, state) = generations(SEARCH, 1)
    plot_archive(SEARCH, state, tmp_path / "archive.png", names=("x", "y"))
    assert (tmp_path / "archive.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(UserError, match="optimizer of plot_archive.*two descriptors"):
        plot_archive(MAPElites(pop_size=4, grid=(2,), descriptor_bounds=((0.0, 1.0),)), state, "x")
    with pytest.raises(UserError, match="names of plot_archive.*two names"):
        plot_archive(SEARCH, state, "x", names=("speed",))


@pytest.mark.parametrize(
    "settings, message",
    [
        (dict(grid=(3, 0)), "MAPElites.grid"),
        (dict(grid=(3,)), r"MAPElites.descriptor_bounds.*each of the 1 descriptors"),
        (dict(descriptor_bounds=((0.0, 1.0), (1.0, 1.0))), "MAPElites.descriptor_bounds"),
        (dict(descriptor_bounds=(-1.0, 1.0)), r"descriptor_bounds.*got \(-1.0, 1.0\)"),
        (dict(descriptor_bounds=None), r"descriptor_bounds.*got None.*Pass \(\(-1.0"),
        (dict(grid=()), r"MAPElites.grid.*at least one descriptor"),
        (dict(grid=5), r"MAPElites.grid.*got 5.*\(50, 50\)"),
        (dict(emitter="iso"), r"MAPElites.emitter.*IsoLineEmitter\(\)"),
    ],
)
def test_wrong_settings(settings, message):
    with pytest.raises(UserError, match=message):
        MAPElites(pop_size=4, **settings)


def test_descriptors_of_the_wrong_shape():
    state = SEARCH.init(tf.constant(MEAN), seeding.key(0))
    with pytest.raises(UserError, match=r"descriptors of MAPElites.tell.*\[8, 2\].*\[8\]"):
        SEARCH.tell(state, tf.zeros([8]), descriptors=tf.zeros([8]))
    integers = SEARCH.tell(state, tf.range(8), descriptors=tf.zeros([8, 2], tf.int32))
    assert float(tf.reduce_max(integers.search.archive.fitness)) == 7.0
    with pytest.raises(TypeError, match="descriptors"):
        SEARCH.tell(state, tf.zeros([8]))
