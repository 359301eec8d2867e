"""Fronts, crowding, hypervolume: by hand, by brute force, and beside pymoo."""

import numpy as np
import pytest
import tensorflow as tf

from tfrl import extras
from tfrl.errors import UserError
from tfrl.evolution import (
    crowding_distance,
    hypervolume,
    knee_point,
    non_dominated_ranks,
    pareto_front,
    plot_front,
)

INF = float("inf")
# Worked by hand: a, b, c and e are the front; d is behind b, f behind d, g is a candidate lost.
#                    a           b           c           d           e           f           g
HAND = tf.constant([[0.0, 4.0], [2.0, 3.0], [3.0, 1.0], [1.0, 3.0], [4.0, 0.0], [1, 2], [-INF] * 2])


def points(objectives, size=60, seed=0, ties=True):
    drawn = np.random.default_rng(seed).normal(size=(size, objectives))
    return (np.round(drawn * 3) if ties else drawn).astype(np.float32)


def test_ranks_by_hand():
    np.testing.assert_array_equal(non_dominated_ranks(HAND), [0, 0, 0, 1, 0, 2, 3])
    np.testing.assert_array_equal(pareto_front(HAND), [1, 1, 1, 0, 1, 0, 0])
    equal = tf.ones([3, 2])
    np.testing.assert_array_equal(non_dominated_ranks(equal), [0, 0, 0])
    chain = tf.range(5.0)[:, None] * tf.ones([1, 2])
    np.testing.assert_array_equal(non_dominated_ranks(chain), [4, 3, 2, 1, 0])


def test_what_is_not_finite_is_on_no_front():
    lost = tf.constant([[INF, 1.0], [float("nan"), 5.0], [0.0, 0.0]])
    np.testing.assert_array_equal(pareto_front(lost), [False, False, True])
    assert not pareto_front(tf.fill([3, 2], -INF)).numpy().any()


def test_crowding_by_hand():
    # Of a, b, c, e: for b (3 - 0) / 4 + (4 - 1) / 4, for c (4 - 2) / 4 + (3 - 0) / 4.
    expected = [INF, 1.5, 1.25, INF, INF, INF, INF]
    np.testing.assert_allclose(crowding_distance(HAND, non_dominated_ranks(HAND)), expected)
    same = tf.constant([[0.0, 1.0], [1.0, 1.0], [4.0, 1.0]])  # the second objective says nothing
    np.testing.assert_allclose(crowding_distance(same), [INF, 1.0, INF])
    np.testing.assert_array_equal(crowding_distance(tf.fill([3, 2], -INF)), [0.0, 0.0, 0.0])


@pytest.mark.parametrize("objectives", [2, 3, 4])
def test_ranks_by_brute_force(objectives):
    f = points(objectives)
    left, ranks, rank = set(range(len(f))), np.zeros(len(f), int), 0

    def dominated(i):
        return any((f[j] >= f[i]).all() and (f[j] > f[i]).any() for j in left)

    while left:
        front = {i for i in left if not dominated(i)}
        ranks[list(front)] = rank
        left, rank = left - front, rank + 1
    np.testing.assert_array_equal(non_dominated_ranks(tf.constant(f)), ranks)


@pytest.mark.parametrize("objectives", [2, 3, 4])
def test_beside_pymoo(objectives):
    sorting = pytest.importorskip("pymoo.util.nds.non_dominated_sorting")
    from pymoo.operators.survival.rank_and_crowding.metrics import calc_crowding_distance

    for seed in range(3):
        f = points(objectives, seed=seed, ties=seed == 0)
        ranks = non_dominated_ranks(tf.constant(f)).numpy()
        theirs = sorting.NonDominatedSorting().do(-f.astype(np.float64))
        for rank, front in enumerate(theirs):
            np.testing.assert_array_equal(np.sort(front), np.flatnonzero(ranks == rank))
        distance = crowding_distance(tf.constant(f), tf.constant(ranks)).numpy()
        for front in (np.flatnonzero(ranks == r) for r in range(len(theirs))):
            if len(front) > 2 and seed:  # they take the mean of the objectives
                expected = objectives * calc_crowding_distance(-f[front].astype(np.float64))
                np.testing.assert_allclose(distance[front], expected, rtol=1e-3)


def test_hypervolume_by_hand():
    # Above (0, 0): e adds no area, nor does a; b 2 x 3 and c (3 - 2) x 1.
    np.testing.assert_allclose(hypervolume(HAND, [0.0, 0.0]), 7.0)
    # Above (-1, -1): steps of width 1 to heights 5 at a, then 2 of 4 at b, 1 of 2, 1 of 1.
    np.testing.assert_allclose(hypervolume(HAND, [-1.0, -1.0]), 5 + 2 * 4 + 2 + 1)
    boxes = [[1.0, 1, 3], [3, 1, 1], [1, 3, 1], [0, 5, 5]]
    np.testing.assert_allclose(hypervolume(boxes, [0.0, 0, 0]), 3 + 2 * 2)
    assert float(hypervolume([[-1.0, 5.0]], [0.0, 0.0])) == 0.0
    assert float(hypervolume([[2.0, 3.0]], [0.0, 1.0])) == 4.0


@pytest.mark.parametrize("objectives", [2, 3])
def test_hypervolume_beside_pymoo(objectives):
    indicator = pytest.importorskip("pymoo.indicators.hv")
    for seed in range(4):
        f = points(objectives, size=40, seed=seed, ties=seed < 2)
        expected = indicator.HV(ref_point=np.full(objectives, 1.0))(-f.astype(np.float64))
        np.testing.assert_allclose(hypervolume(f, [-1.0] * objectives), expected, rtol=1e-6)


def test_hypervolume_by_counting():
    f = np.random.default_rng(0).integers(0, 6, (8, 3))
    corner = np.stack(np.meshgrid(*[np.arange(6)] * 3), -1).reshape(-1, 3)
    count = sum(any((c < p).all() for p in f) for c in corner)
    np.testing.assert_allclose(hypervolume(f.astype(float), [0.0] * 3), count)


def test_knee():
    assert int(knee_point(HAND)) == 1  # 2/4 + 3/4, of c it is 3/4 + 1/4, of a and e 1
    assert int(knee_point(tf.fill([3, 2], -INF))) == 0


def test_all_compile():
    @tf.function(jit_compile=True, autograph=False)
    def every(f):
        ranks = non_dominated_ranks(f)
        return ranks, crowding_distance(f, ranks), hypervolume(f, [-3.0] * 3), knee_point(f)

    f = tf.constant(points(3))
    ranks = non_dominated_ranks(f)
    eager = ranks, crowding_distance(f, ranks), hypervolume(f, [-3.0] * 3), knee_point(f)
    for a, b in zip(eager, every(f), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5)


@pytest.mark.parametrize("objectives", [2, 3])
def test_the_plot_is_an_image(tmp_path, objectives):
    pytest.importorskip("matplotlib")
    plot_front(
        points(objectives),
        tmp_path / "front.png",
        names=("speed", "-energy", "height")[:objectives],
    )
    assert (tmp_path / "front.png").read_bytes().startswith(b"\x89PNG")


def test_without_matplotlib(monkeypatch, tmp_path):
    def missing(name):
        raise ModuleNotFoundError(f"No module named {name!r}", name=name.partition(".")[0])

    monkeypatch.setattr(extras.importlib, "import_module", missing)
    with pytest.raises(UserError, match=r"pip install 'tfrl\[plots\]'"):
        plot_front(points(2), tmp_path / "front.png")


def test_numbers_of_other_types():
    doubles = np.array([[0.0, 1.0], [1.0, 0.0], [0.0, 0.0], [0.5, 0.4]])
    for fn in (non_dominated_ranks, pareto_front, crowding_distance, knee_point):
        for kind in (np.float64, np.int64):
            same = fn(doubles.astype(kind).astype(np.float32))
            np.testing.assert_array_equal(fn(doubles.astype(kind)), same)


def test_wrong_use(tmp_path):
    for fn in (pareto_front, knee_point, crowding_distance):
        with pytest.raises(UserError, match=f"fitness of {fn.__name__}"):
            fn(np.zeros(3))
    with pytest.raises(UserError, match="ranks of crowding_distance"):
        crowding_distance(points(2), tf.zeros([3], tf.int32))
    with pytest.raises(UserError, match="points of hypervolume.*2 or 3 objectives.*got 4"):
        hypervolume(points(4), [0.0] * 4)
    with pytest.raises(UserError, match="reference of hypervolume"):
        hypervolume(points(2), [0.0] * 3)
    with pytest.raises(UserError, match="fitness of non_dominated_ranks"):
        non_dominated_ranks(tf.zeros([3]))
    with pytest.raises(UserError, match=r"fitness of plot_front.*\[5, 4\]"):
        plot_front(np.zeros((5, 4)), tmp_path / "front.png")
    with pytest.raises(UserError, match="names of plot_front.*2 names"):
        plot_front(points(2), tmp_path / "front.png", names=("return",))
