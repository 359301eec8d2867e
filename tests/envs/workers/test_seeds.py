import numpy as np
import pytest

from tests.envs.workers.environments import Walk
from tfrl.envs.workers import SyncEnvironmentWorker, WorkerPool, episode_seed
from tfrl.errors import UserError


def test_seeds_are_the_first_31_bits_of_numpys_sequence():
    for worker_id, episode in ((0, 0), (3, 0), (0, 3), (7, 123_456)):
        sequence = np.random.SeedSequence(1337, spawn_key=(worker_id, episode))
        seed = episode_seed(1337, worker_id, episode)
        assert seed == sequence.generate_state(1)[0] // 2
        assert type(seed) is int and 0 <= seed < 2**31


def test_no_two_episodes_have_the_same_seed():
    seeds = [episode_seed(s, w, e) for s in range(2) for w in range(8) for e in range(100)]
    assert len(set(seeds)) == len(seeds)
    # A NumPy generator takes them, and the legacy one too.
    np.random.RandomState(max(seeds))


@pytest.mark.parametrize("seed", [-1, 1.5, "1", None, True])
def test_what_is_no_seed_is_refused(seed):
    with pytest.raises(UserError) as error:
        SyncEnvironmentWorker(Walk, seed=seed)
    assert str(error.value) == (
        "seed of the environment workers: expected a whole number of at least 0, "
        f"got {seed!r}. Give 0 or more."
    )


def test_a_numpy_integer_is_a_seed():
    with WorkerPool(Walk, 0, seed=np.int64(5)) as pool:
        pool.reset()
        assert pool.get_state().info["seed"] == episode_seed(5, 0, 0)
