"""Trajectories to TF-Agents' and back: by hand, and beside what TF-Agents itself makes of them."""

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized
from tf_agents.agents import data_converter
from tf_agents.agents.dqn import dqn_agent
from tf_agents.networks import q_network
from tf_agents.trajectories import PolicyStep, StepType, time_step, trajectory
from tf_agents.utils import nest_utils

import tfrl
from tfrl.compat import tf_agents as compat
from tfrl.compat.tf_agents import replay
from tfrl.errors import UserError
from tfrl.rollout import rollout
from tfrl.types import ActionOutput, Trajectory, Transition

FIRST, MID, LAST = (int(kind) for kind in (StepType.FIRST, StepType.MID, StepType.LAST))
GAMMA = 0.9


def steps(ends, valid=None, **more):
    """One environment's rows: T terminates, t is cut, B both, - goes on, . is not a step."""
    length = len(ends)
    flags = np.array(list(ends))[:, None]
    number = np.arange(length, dtype=np.float32)[:, None]
    valid = flags != "." if valid is None else valid
    return Trajectory(
        obs=number[..., None],
        action=np.arange(10, 10 + length)[:, None],
        reward=np.where(valid, number + 0.5, 0.0).astype(np.float32),
        next_obs=number[..., None] + 1,
        termination=np.isin(flags, ["T", "B"]),
        truncation=np.isin(flags, ["t", "B"]),
        valid=valid,
        **more,
    )


def tensors(nest):
    return tf.nest.map_structure(tf.constant, nest)


class ByHandTest(parameterized.TestCase):
    def check(self, made, step_type, discount):
        assert made.step_type[0].tolist() == step_type
        np.testing.assert_array_equal(made.discount[0], np.array(discount, np.float32))
        # The next step type of a frame is the step type of the next frame.
        assert made.next_step_type[0, :-1].tolist() == step_type[1:]

    def test_ends(self):
        made = compat.to_trajectory(steps("-T.-t.B.-"), first=True, discount=0.5)
        kinds = [FIRST, MID, LAST, FIRST, MID, LAST, FIRST, LAST, FIRST, MID]
        self.check(made, kinds, [0.5, 0, 1, 0.5, 0.5, 1, 0, 1, 0.5, 1])
        assert made.reward[0].tolist() == [0.5, 1.5, 0, 3.5, 4.5, 0, 6.5, 0, 8.5, 0]
        assert made.observation[0, :, 0].tolist() == list(range(10))
        assert made.action[0].tolist() == [*range(10, 19), 18]
        assert made.policy_info == ()
        dtypes = [made.step_type.dtype, made.next_step_type.dtype, made.discount.dtype]
        assert dtypes == [np.int32, np.int32, np.float32]

    @parameterized.parameters(
        ("-", [FIRST, MID], MID),
        ("T", [FIRST, LAST], FIRST),
        ("-t", [FIRST, MID, LAST], FIRST),
        (".", [LAST, FIRST], MID),
        ("t.", [FIRST, LAST, FIRST], MID),
        ("T..", [FIRST, LAST, LAST, LAST], FIRST),  # the padding of `Sequences`
    )
    def test_last_frames(self, ends, kinds, behind):
        made = compat.to_trajectory(steps(ends), first=True)
        self.check(made, kinds, [*made.discount[0, :-1], 1])
        assert made.next_step_type[0, -1] == behind
        assert made.reward[0, -1] == 0

    def test_frozen_rows_of_disabled(self):
        # They show the flags of the end.
        rows = steps("-TT", np.array([[True], [True], [False]]))
        self.check(compat.to_trajectory(rows), [MID, MID, LAST, LAST], [1, 0, 1, 1])
        back = compat.from_trajectory(compat.to_trajectory(rows))
        assert back.termination[:, 0].tolist() == [False, True, False]

    def test_where_it_begins(self):
        told = steps("--", env_extras={"episode_length": np.array([[1], [2]], np.int32)})
        assert compat.to_trajectory(told).step_type[0].tolist() == [FIRST, MID, MID]
        assert compat.to_trajectory(told, first=False).step_type[0, 0] == MID
        assert compat.to_trajectory(steps("--")).step_type[0, 0] == MID
        assert compat.to_trajectory(steps("--"), first=np.array([True])).step_type[0, 0] == FIRST
        assert compat.to_trajectory(steps(".-"), first=True).step_type[0].tolist()[:2] == [2, 0]

    def test_policy_info(self):
        info = {"log_prob": np.array([[1.0], [2.0]], np.float32)}
        made = compat.to_trajectory(steps("-T", policy_extras=info))
        assert made.policy_info["log_prob"].tolist() == [[1.0, 2.0, 2.0]]
        other = compat.to_trajectory(steps("-T", policy_extras=info), policy_info=())
        assert other.policy_info == ()
        assert compat.from_trajectory(made).policy_extras["log_prob"].tolist() == [[1.0], [2.0]]
        assert compat.from_trajectory(other).policy_extras is None

    def test_batch_major(self):
        rows = steps("-T.")
        swapped = tf.nest.map_structure(lambda x: np.swapaxes(x, 0, 1), rows)
        wanted = compat.to_trajectory(rows)
        made = compat.to_trajectory(swapped, time_major=False)
        tf.nest.map_structure(np.testing.assert_array_equal, made, wanted)
        back = compat.from_trajectory(made, time_major=False)
        tf.nest.map_structure(np.testing.assert_array_equal, back, swapped)

    def test_items_that_are_sequences(self):
        """Windows of theirs, as our items with padding behind the end, and back."""
        frames = tensors(compat.to_trajectory(steps("-----T.---"), first=True))
        windows = tf.nest.map_structure(
            lambda x: tf.concat([x[:, i : i + 5] for i in (0, 2, 4)], 0), frames
        )
        items = replay.sequences(windows)
        made = compat.to_trajectory(items.steps, first=[True, False, False], time_major=False)
        for i, steps_taken in enumerate((4, 4, 2)):
            for name in ("step_type", "observation"):  # with the frame behind the last step
                got, want = (getattr(x, name)[i, : steps_taken + 1] for x in (made, windows))
                np.testing.assert_array_equal(got, want)
            for name in ("next_step_type", "action", "reward", "discount"):
                got, want = (getattr(x, name)[i, :steps_taken] for x in (made, windows))
                np.testing.assert_array_equal(got, want)
        assert made.step_type[2].numpy().tolist() == [MID, MID, LAST, LAST, LAST]

    @parameterized.parameters(None, False, True)
    @pytest.mark.variants(1)
    def test_tensors(self, jit):
        rows = steps("-T.-t.B.-")
        functions = [
            compat.to_trajectory,
            compat.to_transitions,
            lambda s: compat.from_trajectory(compat.to_trajectory(s)),
        ]
        for convert in functions:
            wanted = convert(rows)
            run = convert if jit is None else tf.function(convert, jit_compile=jit)
            made = run(tensors(rows))
            assert all(tf.is_tensor(x) for x in tf.nest.flatten(made))
            tf.nest.map_structure(np.testing.assert_array_equal, made, wanted)

    @parameterized.parameters(np.asarray, tf.constant)
    def test_ends_without_a_boundary(self, array):
        rows = tf.nest.map_structure(array, steps("-T-"))
        with pytest.raises(UserError, match="an end in row 1 of environment 0.*NEXT_STEP"):
            compat.to_trajectory(rows)
        frames = compat.to_trajectory(steps("-T."))
        frames = frames._replace(step_type=np.array([[FIRST, MID, FIRST, MID]], np.int32))
        frames = tf.nest.map_structure(array, frames)
        with pytest.raises(UserError, match="an end in frame 1 of row 0.*boundary frames"):
            compat.from_trajectory(frames)

    def test_one_frame(self):
        frames = tf.nest.map_structure(lambda x: x[:, :1], compat.to_trajectory(steps("-")))
        with pytest.raises(UserError, match=r"at least two frames.*shape \[1, 1\]"):
            compat.from_trajectory(frames)
        row = tf.nest.map_structure(lambda x: x[0], frames)
        with pytest.raises(UserError, match=r"shape \[1\]"):
            compat.from_trajectory(row)


class TransitionTest(parameterized.TestCase):
    def test_rows_of_same_step(self):
        made = compat.to_transitions(steps("-T-t"), first=True)
        assert made.time_step.step_type.tolist() == [FIRST, MID, FIRST, MID]
        assert made.next_time_step.step_type.tolist() == [MID, LAST, MID, LAST]
        assert made.next_time_step.discount.tolist() == [1, 0, 1, 1]
        assert made.next_time_step.observation[:, 0].tolist() == [1, 2, 3, 4]
        assert made.action_step.action.tolist() == [10, 11, 12, 13]
        assert made.action_step.state == () == made.action_step.info

    def test_rows_that_are_no_steps(self):
        made = compat.to_transitions(steps("-T.-"))
        assert made.time_step.step_type.tolist() == [MID, MID, LAST, FIRST]
        assert made.next_time_step.step_type.tolist() == [MID, LAST, FIRST, MID]
        assert made.next_time_step.reward.tolist() == [0.5, 1.5, 0, 3.5]

    def test_the_same_as_of_their_frames(self):
        rows = steps("-T.-t.B.-")
        made = compat.to_transitions(rows, first=True)
        theirs = trajectory.to_transition(tensors(compat.to_trajectory(rows, first=True)))
        theirs = tf.nest.map_structure(lambda x: x[0], theirs)  # of the one environment
        tf.nest.map_structure(np.testing.assert_array_equal, made, theirs)

    def test_items(self):
        items = Transition(
            obs=np.zeros([2, 1], np.float32),
            action=np.zeros([2], np.int64),
            reward=np.ones([2], np.float32),
            next_obs=np.ones([2, 1], np.float32),
            discount=np.array([GAMMA**3, 0.0], np.float32),
            extras={"policy_extras": {"log_prob": np.ones([2], np.float32)}},
        )
        made = compat.to_transitions(items, GAMMA)
        np.testing.assert_allclose(made.next_time_step.discount, [GAMMA**2, 0], rtol=1e-6)
        assert made.next_time_step.step_type.tolist() == [MID, LAST]
        assert made.time_step.step_type.tolist() == [MID, MID]
        assert made.time_step.step_type.dtype == np.int32
        assert made.action_step.info["log_prob"].tolist() == [1, 1]
        with pytest.raises(UserError, match="gamma: expected a number above 0"):
            compat.to_transitions(items, 0.0)

    @parameterized.parameters(1, 3)
    def test_targets_and_losses_of_dqn(self, n):
        """Their loss of our items is that of their windows, which it makes into n steps itself."""
        obs_spec = tf.TensorSpec([1], tf.float32)
        action_spec = tfrl.specs.DiscreteSpec(30)
        rows = steps("-----T.-----T.---")
        frames = tensors(compat.to_trajectory(rows))
        starts = [i for i in range(len(rows.valid) - n) if rows.valid[i, 0]]
        windows = tf.nest.map_structure(
            lambda x: tf.concat([x[:, i : i + n + 1] for i in starts], 0), frames
        )
        agent = dqn_agent.DqnAgent(
            time_step.time_step_spec(compat.tensor_spec(obs_spec, "observation")),
            compat.tensor_spec(action_spec, "action"),
            q_network=q_network.QNetwork(
                compat.tensor_spec(obs_spec, "observation"),
                compat.tensor_spec(action_spec, "action"),
                fc_layer_params=(5,),
            ),
            optimizer=None,
            n_step_update=n,
            gamma=GAMMA,
        )
        converter = data_converter.AsNStepTransition(agent.data_context, GAMMA, n)
        theirs = converter(windows)
        ours = converter(compat.to_transitions(replay.transitions(windows, GAMMA), GAMMA))

        def target(pair):
            value = np.sin(pair.next_time_step.observation[:, 0])
            return pair.next_time_step.reward + GAMMA * pair.next_time_step.discount * value

        np.testing.assert_allclose(target(ours), target(theirs), rtol=1e-5)
        losses = [agent._loss(x, training=True).loss for x in (windows, ours)]
        np.testing.assert_allclose(*losses, rtol=1e-5)
        assert losses[0] > 0.1


class Alternate:
    """Always the same action in the first environment, by turns in the others."""

    def compute_actions(self, state, obs, key, carry=None):
        turns = tf.cast(obs[1:, 3] > 0, tf.int64)
        return ActionOutput(action=tf.concat([tf.ones([1], tf.int64), turns], 0))


class EnvironmentTest(parameterized.TestCase):
    def test_frames_are_those_of_their_loop(self):
        """A rollout, beside the same episodes played through a TF-Agents environment."""
        env = tfrl.make_env("tf:CartPole-v1", 3, autoreset="NEXT_STEP", max_episode_steps=15)
        start = env.reset(tfrl.seeding.key(5))
        rows, *_ = rollout(env, Alternate(), start, (), tfrl.seeding.key(0), 40)
        made = compat.to_trajectory(rows, first=True)
        assert rows.termination.numpy().any() and rows.truncation.numpy().any()

        played = compat.as_tf_environment(env, seed=5)
        frames, now = [], played.reset()
        for action in rows.action:
            then = played.step(action)
            frames.append(trajectory.from_transition(now, PolicyStep(action), then))
            now = then
        theirs = tf.nest.map_structure(lambda *x: tf.stack(x, 1), *frames)
        tf.nest.map_structure(
            lambda x, y: np.testing.assert_allclose(x[:, :-1], y, 1e-4, 1e-6), made, theirs
        )
        np.testing.assert_allclose(made.observation[:, -1], now.observation, 1e-4, 1e-6)
        np.testing.assert_array_equal(made.step_type[:, -1], now.step_type)
        spec = compat.trajectory_spec(env.obs_spec, env.action_spec)
        assert nest_utils.is_batched_nested_tensors(made, spec, num_outer_dims=2)

    def test_first_by_the_recorded_length(self):
        env = tfrl.make_env("tf:CartPole-v1", 2, autoreset="NEXT_STEP", max_episode_steps=5)
        state = env.reset(tfrl.seeding.key(5))
        kinds = []
        for i in range(2):
            fields = ("episode_length",)
            key = tfrl.seeding.key(i)
            rows, state, _ = rollout(env, Alternate(), state, (), key, 3, fields)
            kinds.append(compat.to_trajectory(rows).step_type[0].numpy().tolist())
        assert kinds == [[FIRST, MID, MID, MID], [MID, MID, LAST, FIRST]]
