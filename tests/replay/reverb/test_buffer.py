"""Priorities, order, limits and errors of a buffer on Reverb."""

import re
import threading
import time
from unittest import mock

import numpy as np
import pytest
import reverb
import tensorflow as tf
from absl.testing import parameterized

from tests.replay import oracle
from tests.replay.reverb import helpers
from tfrl.errors import UserError
from tfrl.replay import InGraphReplay


class PrioritiesTest(parameterized.TestCase):
    def test_drawn_in_proportion_to_priority_to_the_alpha(self):
        buffer = helpers.closed_after(self, kind="prioritized", alpha=0.5)
        buffer.add(helpers.rows(0, 4))
        index = dict(helpers.read_all(buffer).items())
        by_obs = {item[0]: key for key, item in index.items()}
        keys = [by_obs[obs] for obs in (0.0, 1.0, 2.0, 3.0)]
        buffer.update_priorities(np.array(keys), np.array([16.0, 4.0, 1.0, 0.0]))
        # 16^0.5 : 4^0.5 : 1 : 2^-24 = 4 : 2 : 1 : 0 of 7
        dataset = buffer.dataset(70, in_flight=70).take(60)
        drawn = np.concatenate([b.obs[:, 0] for b in buffer.batches(dataset)])[70:]
        got = [np.mean(drawn == obs) for obs in (0.0, 1.0, 2.0)]
        np.testing.assert_allclose(got, [4 / 7, 2 / 7, 1 / 7], atol=0.04)

    @parameterized.parameters(True, False)
    @pytest.mark.variants(1)
    def test_alpha_0_is_uniform_whatever_the_priorities(self, on_reverb):
        replay = InGraphReplay(
            obs_spec=helpers.OBS,
            action_spec=helpers.ACTION,
            capacity=4,
            num_envs=1,
            kind="prioritized",
            alpha=0.0,
        )
        buffer = (replay.on_reverb() if on_reverb else replay).init()
        if on_reverb:
            self.addCleanup(buffer.close)
        buffer.add(helpers.rows(0, 4))
        found = [buffer.sample(tf.constant([i, 1]), 4) for i in range(20)]
        index = np.unique(np.concatenate([batch.index for batch in found]))
        assert len(index) == 4
        buffer.update_priorities(index, np.array([0.0, 0.0, 7.0, 1e-3], np.float32))
        found = [buffer.sample(tf.constant([i, 2]), 4) for i in range(100)]
        drawn = np.concatenate([batch.index for batch in found])
        # 400 draws at 1/4 each: five standard deviations of the mean are 0.11
        np.testing.assert_allclose([np.mean(drawn == i) for i in index], [0.25] * 4, atol=0.11)
        for batch in found:
            np.testing.assert_allclose(batch.weight, np.ones(4), rtol=1e-6)

    def test_weights_are_those_of_the_probabilities(self):
        buffer = helpers.closed_after(self, kind="prioritized", alpha=1.0)
        buffer.add(helpers.rows(0, 4))
        by_obs = {item[0]: key for key, item in helpers.read_all(buffer).items()}
        buffer.update_priorities(np.array([by_obs[0.0]]), np.array([4.0]))
        batch = buffer.sample(None, 4, beta=0.5)
        while len(np.unique(batch.obs)) < 2 or 0.0 not in batch.obs.numpy():
            batch = buffer.sample(None, 4, beta=0.5)
        # P is 4/7 and 1/7: (4/1)^-0.5 = 0.5
        want = np.where(batch.obs[:, 0] == 0.0, 0.5, 1.0)
        np.testing.assert_allclose(batch.weight, want, rtol=1e-6)
        np.testing.assert_array_equal(buffer.sample(None, 4, beta=0.0).weight, np.ones(4))

    def test_duplicates_what_is_not_finite_and_zero(self):
        buffer = helpers.closed_after(self, kind="prioritized", alpha=0.5)
        buffer.add(helpers.rows(0, 4))
        by_obs = {item[0]: key for key, item in helpers.read_all(buffer).items()}
        a, b, c, d = (by_obs[float(i)] for i in range(4))
        buffer.update_priorities(
            tf.constant([a, a, b, c, a, d, 12345]),
            tf.constant([2.0, 5.0, np.nan, np.inf, 3.0, 0, 9]),
        )
        buffer.update_priorities(tf.zeros([0], tf.int64), tf.zeros([0]))
        found = helpers.stored(buffer)
        assert found[0.0] == 5.0 and found[1.0] == found[2.0] == 1.0
        # 2^-48: its square root is the least part, 2^-24; it is hardly ever sampled.
        assert found.get(3.0, 2.0**-48) == 2.0**-48

    def test_new_items_have_the_highest_priority_so_far(self):
        buffer = helpers.closed_after(self, kind="prioritized", alpha=1.0)
        buffer.add(helpers.rows(0, 4))
        key = next(iter(helpers.read_all(buffer)))
        buffer.update_priorities(np.array([key]), np.array([7.0]))
        buffer.update_priorities(np.array([key]), np.array([3.0]))
        buffer.add(helpers.rows(4, 6))
        found = helpers.stored(buffer)
        assert found[4.0] == found[6.0] == 7.0  # observation 5 is shown at the end alone
        assert sorted(found.values()) == [1.0, 1.0, 1.0, 3.0, 7.0, 7.0]

    def test_refusals(self):
        buffer = helpers.closed_after(self, kind="prioritized")
        with pytest.raises(UserError, match="priorities: expected non-negative numbers, got -2"):
            buffer.update_priorities(np.array([1, 2]), np.array([1.0, -2.0]))
        with pytest.raises(UserError, match=r"index: expected int64 \[3\].* got int32 \[2\]"):
            buffer.update_priorities(np.array([1, 2], np.int32), np.ones(3))
        with pytest.raises(UserError, match="^index: expected one number for .*, got None"):
            buffer.update_priorities(None, np.ones(3))
        with pytest.raises(UserError, match="^priorities: expected one number for .*, got None"):
            buffer.update_priorities(np.array([1]), None)
        plain = helpers.closed_after(self)
        message = "update_priorities: expected a table of kind=\"prioritized\", got kind='uniform'."
        with pytest.raises(UserError, match=re.escape(message)):
            plain.update_priorities(np.array([1]), np.ones(1))


class LimitsTest(parameterized.TestCase):
    def test_a_queue_keeps_the_order_of_each_environment(self):
        buffer = helpers.maker(num_envs=3, kind="fifo", timeout=1.0).init()
        self.addCleanup(buffer.close)
        buffer.add(oracle.trajectory(helpers.streams("NEXT_STEP", 3, 50), 0, 50))
        buffer.flush()
        count = int(buffer.size())
        taken = [item[0] for item in helpers.take(buffer, count)]
        assert len(set(taken)) == count > 100
        for env in range(3):
            own = [obs for obs in taken if 1000 * env <= obs < 1000 * (env + 1)]
            assert own == sorted(own) and len(own) > 30

    def test_a_full_queue_stops_the_writer(self):
        buffer = helpers.closed_after(self, kind="fifo", capacity=3, timeout=1.0)
        buffer.add(helpers.rows(0, 3))
        buffer.flush()
        buffer.add(helpers.rows(3, 8))
        with pytest.raises(UserError, match="up to 5 pending items. A table that"):
            buffer.flush()
        assert int(buffer.size()) == 3
        taken = helpers.take(buffer, 8)
        assert [item[0] for item in taken] == [0.0, 1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 9.0]

    def test_the_limiter_of_the_ratio(self):
        buffer = helpers.closed_after(
            self, samples_per_insert=2.0, min_size=2, tolerance=4.0, timeout=1.0
        )
        buffer.add(helpers.rows(0, 1))
        assert not buffer.can_sample()  # min_size
        buffer.add(helpers.rows(1, 4))
        # Inserts x 2 - samples is from 0 to 8 (2 x 2 +- 4): 4 inserts, no sample.
        assert buffer.can_sample(4) and not buffer.can_sample(9)
        buffer.add(helpers.rows(4, 6))  # two too many
        with pytest.raises(
            UserError, match="expected the server to accept items within timeout=1 s"
        ):
            buffer.flush()
        assert int(buffer.size()) == 4
        buffer.sample(None, 4)
        buffer.flush()  # 12 - 4 = 8
        info = buffer._connection.server_info()["replay"].rate_limiter_info
        assert (info.insert_stats.completed, info.sample_stats.completed) == (6, 4)
        buffer.sample(None, 6)
        assert buffer.can_sample(2) and not buffer.can_sample(3)  # 12 - 10 = 2
        with pytest.raises(UserError, match="the limiter to allow 3 samples within 1 s"):
            buffer.sample(None, 3)

    def test_a_writer_goes_on_as_items_are_sampled(self):
        buffer = helpers.closed_after(self, samples_per_insert=1.0, min_size=1, tolerance=8.0)
        thread = threading.Thread(target=lambda: [buffer.add(helpers.ROWS) for _ in range(4)])
        thread.start()
        stream = buffer.batches(buffer.dataset(4, in_flight=4, num_workers=1))
        seen = 0
        while thread.is_alive():
            next(stream)
            seen += 4
        thread.join()
        # 160 items less the 40 that one writer may hold unconfirmed and the tolerance twice.
        assert 160 - 40 - 16 - 12 <= seen <= 160 + 16


class DeadlinesTest(parameterized.TestCase):
    """No call of a server in this process waits for ever."""

    def test_a_call_that_a_limiter_blocks(self):
        buffer = helpers.closed_after(self, min_size=5, timeout=0.7)
        client = buffer.connection.client

        def blocked():
            return next(client.sample("replay", 1, emit_timesteps=False))

        began = time.monotonic()
        left = mock.patch(
            "tfrl.replay.reverb.cancellable_call.leave_behind"
        )  # it bounds pytest's own end
        with left as left_behind, pytest.raises(UserError) as error:
            buffer.connection.guard(blocked, "sampling", 0.7)
        left_behind.assert_called_once()
        assert 0.6 < time.monotonic() - began < 5.0
        assert str(error.value) == (
            f"Reverb server of this process at {buffer.address}: expected an answer within 0.7 s, "
            "needed for sampling, got no answer from a running server. Check whether it writes a "
            "large checkpoint or is overloaded, or raise the timeout."
        )
        buffer.add(helpers.rows(0, 9))
        buffer.flush()  # which lets the call that was left behind come back

    def test_all_calls_have_one(self):
        """Each call that has no deadline of its own is given the maker's, or a checkpoint's."""
        buffer = helpers.closed_after(self, kind="prioritized", timeout=7.0)
        connection, given = buffer.connection, {}
        guard = connection.guard

        def noted(fn, what, timeout=None):
            given[what] = timeout
            return guard(fn, what, timeout)

        with mock.patch.object(connection, "guard", noted):
            buffer.add(helpers.rows(0, 4))
            index = buffer.sample(None, 2).index
            buffer.update_priorities(index, np.ones(2))
            buffer._close_writer()
        assert given == {
            "opening writers": 7.0,
            "sampling from table 'replay'": None,  # the dataset's
            "setting priorities of table 'replay'": 7.0,
        }
        error = reverb.errors.DeadlineExceededError
        with (
            mock.patch.object(connection.client, "server_info", side_effect=error) as asked,
            pytest.raises(UserError, match="an answer within 7 s, needed for asking for"),
        ):
            buffer.size()
        asked.assert_called_once_with(timeout=7)


class SamplingTest(parameterized.TestCase):
    def test_an_empty_buffer(self):
        buffer = helpers.closed_after(self)
        assert int(buffer.size()) == 0 and not bool(buffer.can_sample())
        message = "batch_size: expected at most the 0 items of table 'replay'"
        with pytest.raises(UserError, match=message):
            buffer.sample(None, 1)
        with pytest.raises(
            UserError, match="batch_size: expected a whole number of at least 1, got 0"
        ):
            buffer.sample(None, 0)
        with pytest.raises(
            UserError, match="batch_size: expected a whole number of at least 1, got True"
        ):
            buffer.sample(None, True)
        buffer.add(helpers.rows(0, 4))
        assert buffer.sample(None, np.int64(2)).obs.shape == (2, 1)

    def test_what_the_trajectory_must_be(self):
        buffer = helpers.closed_after(self)
        with pytest.raises(UserError, match="trajectory.obs"):
            buffer.add(helpers.ROWS.replace(obs=helpers.ROWS.obs.astype(np.float64)))
        with pytest.raises(UserError, match="trajectory.reward"):
            buffer.add(helpers.ROWS.replace(reward=helpers.ROWS.reward[:3]))
        with pytest.raises(UserError, match="trajectory.next_obs: .* no such leaf in the"):
            buffer.add(helpers.ROWS.replace(next_obs=None))

        @tf.function
        def traced(x):
            buffer.add(helpers.ROWS.replace(reward=x))

        with pytest.raises(UserError, match="a tensor outside of compiled code"):
            traced(tf.constant(helpers.ROWS.reward))
        assert int(buffer.size()) == 0

    def test_an_episode_that_is_too_long(self):
        buffer = helpers.closed_after(self, episode_length=4)
        with pytest.raises(UserError, match="episode_length: expected episodes of at most 4 steps"):
            buffer.add(helpers.ROWS)
